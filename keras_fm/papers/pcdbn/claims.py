"""pCDBN's own noise scale of an energy: claimed, never proven."""

import dataclasses
import functools
import math

import keras

from keras_fm.core.planned_release import replace_one_factor
from keras_fm.kernel import checks
from keras_fm.papers.paper_model import PaperOrCode

# The paper's constants of the local Z.
LOCAL = {"size": 5, "q": 2.0, "a": 1e-4, "beta": 0.75}

ENERGY_REASON = (
    "none. The denominator Z depends on the weights and the records, and the "
    "negative phase of contrastive divergence uses the records at every step; "
    "see docs/guarantees.md"
)


@keras.saving.register_keras_serializable(package="keras_fm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedCDBN(PaperOrCode):
    """Settings of the published pCDBN, whose epsilon is claimed, not proven.

    Pass them to `keras_fm.models.PrivateCDBN(guarantee=...)`, or for a model
    of your own to `keras_fm.Published(lot=..., settings=...)`.

    Args:
        form: `"paper"`, as printed: Lemma 2, noise drawn once; the model has
            local normalisation of maps, and min-max normalisation before the
            output. `"code"`, as the authors' code: noise drawn at every step;
            the model divides maps by the batch's largest value, and has batch
            normalisation before the output.
        noise: `None` (as `form` has it), `"once"` or `"per_step"`.
        fine_tune: for `PrivateCDBN`: whether the RBMs train on with the
            layers above. If not, they are fixed after pre-training.
        dropout: for `PrivateCDBN`: dropout rate of the units before the
            output; `None` is 0.5 for behaviour and 0 for images, as printed.
        l1: for `PrivateCDBN`: L1 penalty of the dense layer's kernel.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> PublishedCDBN(form="code").noise_per_step
    True
    """

    fine_tune: bool = False
    dropout: float | None = None
    l1: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        checks.fields(
            self,
            fine_tune=checks.boolean,
            dropout=functools.partial(
                checks.optional, checks.number, at_least=0, below=1
            ),
            l1=checks.nonnegative,
        )


def energy_sensitivity(
    coefficients,
    *,
    form,
    positions,
    patch,
    bound,
    visible,
    normalization,
    neighbours,
):
    """pCDBN's Delta of the polynomial energy's coefficients (Lemma 2, Eq. 15).

    It is an L1 norm for one feature map. With unit weights the pre-activation
    of a patch is s = patch * bound + 1, and a record's coefficients are at
    most

        positions * s * sum_l |alpha_l| (s / Z)^l + visible.

    Under replace_one Delta is twice that. The paper takes the maximum over
    the records. We take it over the public bounds: Delta then uses no record.

    * `"paper"`: as above.
    * `"code"`: positions + visible, since the authors' code sums
      hidden probabilities, which are at most 1.

    Args:
        coefficients: alpha_0, ..., alpha_L.
        form: `"paper"` or `"code"`.
        positions: height x width of one feature map.
        patch: entries of one filter, input channels included.
        bound: largest entry of a patch.
        visible: largest L1 norm of a record's visible units.
        normalization: `(q, a, beta)` of the local Z, in which only the map's
            own square is certain; or `None` if X = x / Z may reach 1.
        neighbours: the paper's `"replace_one"`; half for `"add_remove"`.

    Example:

    >>> energy_sensitivity(
    ...     (0.5, 0.25), form="code", positions=196, patch=25, bound=1.0,
    ...     visible=784.0, normalization=None, neighbours="replace_one",
    ... )
    1960.0
    """
    factor = 2.0 * replace_one_factor(neighbours)
    if form == "code":
        return factor * (positions + visible)
    s = patch * bound + 1.0
    ratio = 1.0
    if normalization is not None:
        q, a, beta = normalization
        # For t <= s, t / Z(t) is largest at s or where its slope vanishes.
        turn = s
        if beta > 0.5:
            turn = min(s, math.sqrt(q / (a * (2 * beta - 1))))
        ratio = max(t / max(t, (q + a * t * t) ** beta) for t in (s, turn))
    series = math.fsum(abs(c) * ratio**p for p, c in enumerate(coefficients))
    return factor * (positions * s * series + visible)
