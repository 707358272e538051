import keras
from keras import ops

from keras_fm.baselines.conditional_rbm import ConditionalRBM
from keras_fm.kernel import checks

_INFLUENCES = ("per_unit", "shared")


@keras.saving.register_keras_serializable(package="keras_fm")
class SocialRBM(ConditionalRBM):
    """Socialized conditional temporal RBM (SctRBM). Not private.

    A `ConditionalRBM` whose hidden units also feel the friends: with F_u the
    friends of person u and psi_t(v, u) the probability that v influences u
    at time t, the dynamic bias of hidden unit j is

        b_j(u) = b_j + (B^T u)_j + eta_j / |F_u| sum_{v in F_u} psi_t(v, u).

    The group `"social"` of the input holds the mean
    `sum psi_t(v, u) / |F_u|` (one column, or one for each kind of
    influence); this model learns eta. Environmental events enter as
    conditions like the past does.

    Phan et al. give each person one number eta_u, the same for all hidden
    units. A number of each person says nothing of people who were not
    trained on, and a record here carries no person's identity, so eta belongs
    to the model: one for each hidden unit (`influence="per_unit"`, which
    contains the shared form), or one number (`"shared"`, the papers' form
    with all people alike).

    Args:
        hidden: see `ConditionalRBM`.
        classes: see `ConditionalRBM`.
        columns: see `ConditionalRBM`; `"social"` is required.
        influence: `"per_unit"` or `"shared"`.
        **kwargs: see `ConditionalRBM`.

    Input and output shape: as `ConditionalRBM`.

    Raises:
        ValueError: as `ConditionalRBM`, if `influence` is unknown, or if
            `columns` has no `"social"`.

    Example:

    ```python
    model = fm.baselines.SocialRBM(
        200, 2, columns={
            "present": (0, 30), "history": (30, 120), "social": (120, 121)
        }
    )
    model.compile("adam", metrics=["accuracy"])
    ```

    Source: the social term is that of the behaviour model of Phan, Wang, Wu
    and Dou, "Differential Privacy Preservation for Deep Auto-Encoders", AAAI
    2016, put into the kind of RBM they compare it with; see also Phan, Dou,
    Piniewski and Kil, "Social Restricted Boltzmann Machine", ASONAM 2015.
    """

    def __init__(
        self, hidden, classes, columns, influence="per_unit", **kwargs
    ):
        super().__init__(hidden, classes, columns, **kwargs)
        self.influence = checks.one_of("influence", influence, _INFLUENCES)
        if not self._width("social"):
            raise ValueError(
                '`columns` must give the group "social" at least one column. '
                f"Received: columns={columns}"
            )

    def build(self, input_shape):
        super().build(input_shape)
        units = self.hidden if self.influence == "per_unit" else 1
        self.social_kernel = self._add(
            "social_kernel", (self._width("social"), units)
        )

    def dynamic_biases(self, inputs):
        visible, hidden, label = super().dynamic_biases(inputs)
        social = self._take(inputs, "social")
        # A shared weight is spread over all hidden units.
        hidden += ops.matmul(social, self._cast(self.social_kernel))
        return visible, hidden, label

    def get_config(self):
        return {**super().get_config(), "influence": self.influence}
