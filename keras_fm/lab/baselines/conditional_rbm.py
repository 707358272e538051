"""CRBM and SctRBM, the baselines of the dPA paper. Not private."""

import math

import keras
from keras import ops

from keras_fm.core import replicas
from keras_fm.datasets.behavior_windows import column_range
from keras_fm.kernel import checks


@keras.saving.register_keras_serializable(package="keras_fm")
class ConditionalRBM(keras.Model):
    """Conditional restricted Boltzmann machine with label units. Not private.

    The model has binary visible units v (a record's present; values between 0
    and 1 stand for probabilities), a group of label units y (one-hot) and
    binary hidden units h. In their energy the conditions u (the record's past,
    and the events around it) act through biases only:

        a(u) = a + A^T u,   b(u) = b + B^T u,   c(u) = c + C^T u
        E(v, y, h | u) = -a(u).v - c(u).y - b(u).h - y^T U h - v^T W h

    A are the autoregressive weights, B the weights from past to hidden
    units; the labels are visible units too, so they have their own, C.
    The sum over hidden states has a closed form,

        F(v, y | u) = -a(u).v - c(u).y
                      - sum_j softplus((b(u) + U^T y + W^T v)_j),

    and so the labels' distribution is exact: p(y | v, u) is the softmax of
    -F(v, y | u) over y. The model's outputs are those logits (without the
    terms that are equal for all classes), so Keras metrics of a classifier
    apply.

    The loss is part of the model: `compile` it without one. With (v', y')
    the end of one step of block Gibbs sampling (CD-1; visible units take
    their means) that starts at the record and is held constant, it is per
    record

        -log p(y | v, u) + generative_weight (F(v, y | u) - F(v', y' | u)).

    The gradient of the second part is contrastive divergence's; its value is
    not a likelihood and may be negative. For early stopping (`mode="min"`) and
    model selection use the logged metrics: `label_loss`, the mean of the first
    part, and `reconstruction_error`, the mean squared error per visible unit of
    a mean-field reconstruction.

    Args:
        hidden: int, number of hidden units.
        classes: int, at least 2.
        columns: dict from `"present"`, `"history"`, `"social"` and
            `"events"` to the `(start, stop)` or slice of the input's columns
            that holds that group. `"present"` is required; `"history"` and
            `"events"` are the conditions u; `"social"` is ignored here and used
            by `SocialRBM`, so both models take the same records. An empty range
            counts as a missing group.
        generative_weight: float >= 0.
        seed: int or `None`, for the initial weights and the chain.

    Input shape: `(batch, features)`, scaled to [0, 1] by public bounds.
    Labels: whole numbers in [0, classes), shape `(batch,)` or `(batch, 1)`.
    Output shape: `(batch, classes)`. Energies are computed in float32 at
    least, under mixed precision too.

    Example:

    ```python
    model = ConditionalRBM(
        200, 2, columns={"present": (0, 30), "history": (30, 120)}
    )
    model.compile("adam", metrics=["accuracy"])
    model.fit(x, y, epochs=20, validation_split=0.1)
    ```

    Sources: Taylor, Hinton and Roweis, "Modeling Human Motion Using Binary
    Latent Variables", NIPS 2006 (dynamic biases); Larochelle and Bengio,
    "Classification using Discriminative Restricted Boltzmann Machines", ICML
    2008 (label units and the hybrid objective). The weights C are our addition:
    label units get dynamic biases, as all visible units do in Taylor et al.
    """

    def __init__(
        self,
        hidden,
        classes,
        columns,
        generative_weight=0.01,
        seed=None,
        **kwargs,
    ):
        # Half precision would round the inputs of the energy.
        super().__init__(autocast=False, **kwargs)
        self.hidden = checks.count("hidden", hidden)
        self.classes = checks.integer("classes", classes, at_least=2)
        self.generative_weight = checks.nonnegative(
            "generative_weight", generative_weight
        )
        self.seed = seed
        found = ((name, column_range(part)) for name, part in columns.items())
        # A tuple: some backends wrap dicts set as attributes.
        self._columns = tuple((n, (a, b)) for n, (a, b) in found if a < b)
        self._draws = keras.random.SeedGenerator(seed)
        self._energy_dtype = (
            "float64" if self.compute_dtype == "float64" else "float32"
        )
        self._label_loss = keras.metrics.Mean(name="label_loss")
        self._reconstruction_error = keras.metrics.Mean(
            name="reconstruction_error"
        )

    @property
    def columns(self):
        """Dict from group to `(start, stop)`, empty groups left out."""
        return dict(self._columns)

    def build(self, input_shape):
        last = max(stop for _, stop in self.columns.values())
        if input_shape[-1] < last:
            raise ValueError(
                f"`columns` must lie within the input. Received: "
                f"columns={self.columns}, features={input_shape[-1]}"
            )
        d, m = self._width("present"), self.hidden
        conditions = self._width("history") + self._width("events")
        # The scale that Larochelle and Bengio draw from.
        scale = 1 / math.sqrt(max(d, m))
        self.kernel = self._add("kernel", (d, m), scale)
        self.label_kernel = self._add("label_kernel", (self.classes, m), scale)
        self.visible_bias = self._add("visible_bias", (d,))
        self.hidden_bias = self._add("hidden_bias", (m,))
        self.label_bias = self._add("label_bias", (self.classes,))
        self.has_conditions = conditions > 0
        if self.has_conditions:
            self.autoregressive_kernel = self._add(
                "autoregressive_kernel", (conditions, d)
            )
            self.condition_kernel = self._add(
                "condition_kernel",
                (conditions, m),
                1 / math.sqrt(max(conditions, m)),
            )
            self.condition_label_kernel = self._add(
                "condition_label_kernel", (conditions, self.classes)
            )
        self.built = True

    def _width(self, group):
        start, stop = self.columns.get(group, (0, 0))
        return stop - start

    def _add(self, name, shape, scale=0.0):
        # A separate seed for every weight and for the chain.
        seed = None if self.seed is None else self.seed + 1 + len(self.weights)
        initializer = "zeros"
        if scale:
            initializer = keras.initializers.RandomUniform(-scale, scale, seed)
        return self.add_weight(
            name=name, shape=shape, initializer=initializer, autocast=False
        )

    # The model -----------------------------------------------------------

    def call(self, inputs):
        return self._logits(
            self._take(inputs, "present"), self.dynamic_biases(inputs)
        )

    def dynamic_biases(self, inputs):
        """Biases that the conditions give each record.

        Args:
            inputs: `(batch, features)`.

        Returns:
            `(a(u), b(u), c(u))`: `(batch, d)`, `(batch, hidden)` and
            `(batch, classes)`, of visible, hidden and label units.
        """
        # One row for each record, even without conditions.
        rows = ops.zeros_like(self._cast(inputs)[:, :1])
        visible, hidden, label = (
            rows + self._cast(bias)
            for bias in (self.visible_bias, self.hidden_bias, self.label_bias)
        )
        if self.has_conditions:
            u = ops.concatenate(
                [
                    self._take(inputs, group)
                    for group in ("history", "events")
                    if self._width(group)
                ],
                axis=-1,
            )
            visible += ops.matmul(u, self._cast(self.autoregressive_kernel))
            hidden += ops.matmul(u, self._cast(self.condition_kernel))
            label += ops.matmul(u, self._cast(self.condition_label_kernel))
        return visible, hidden, label

    def free_energy(self, inputs, labels):
        """F(v, y | u), with the hidden states summed out.

        Args:
            inputs: `(batch, features)`.
            labels: see the class.

        Returns:
            `(batch,)` tensor.
        """
        return self._free_energy(
            self._take(inputs, "present"),
            self._one_hot(labels),
            self.dynamic_biases(inputs),
        )

    def gibbs_step(self, inputs, labels):
        """Draws h from p(h | v, y, u), then y from p(y | h, u), and takes the
        mean of v. No gradient flows through it.

        Args:
            inputs: `(batch, features)`, where the step starts.
            labels: see the class.

        Returns:
            `(v', y')`: `(batch, d)` and one-hot `(batch, classes)`.
        """
        biases = self.dynamic_biases(inputs)
        p = self._hidden_mean(
            self._take(inputs, "present"), self._one_hot(labels), biases
        )
        hidden = self._cast(self._uniform(p) < p)
        visible = self._visible_mean(hidden, biases)
        kernel = ops.transpose(self._cast(self.label_kernel))
        logits = biases[2] + ops.matmul(hidden, kernel)
        # The argmax of logits with Gumbel noise compiles on all backends.
        noise = -ops.log(-ops.log(self._uniform(logits, 1e-20)))
        drawn = ops.argmax(logits + noise, axis=-1)
        return ops.stop_gradient(visible), self._one_hot(drawn)

    # Energies and conditionals, given a record's biases ------------------

    def _field(self, visible, labels, biases):
        return (
            biases[1]
            + ops.matmul(visible, self._cast(self.kernel))
            + ops.matmul(labels, self._cast(self.label_kernel))
        )

    def _hidden_mean(self, visible, labels, biases):
        return ops.sigmoid(self._field(visible, labels, biases))

    def _visible_mean(self, hidden, biases):
        kernel = ops.transpose(self._cast(self.kernel))
        return ops.sigmoid(biases[0] + ops.matmul(hidden, kernel))

    def _free_energy(self, visible, labels, biases):
        hidden = ops.softplus(self._field(visible, labels, biases))
        return (
            ops.sum(-visible * biases[0], axis=-1)
            - ops.sum(labels * biases[2], axis=-1)
            - ops.sum(hidden, axis=-1)
        )

    def _logits(self, visible, biases):
        field = biases[1] + ops.matmul(visible, self._cast(self.kernel))
        # (batch, classes, hidden)
        field = field[:, None, :] + self._cast(self.label_kernel)
        return biases[2] + ops.sum(ops.softplus(field), axis=-1)

    def _uniform(self, like, least=0.0):
        return keras.random.uniform(
            ops.shape(like), least, 1.0, self._energy_dtype, seed=self._draws
        )

    # Training ------------------------------------------------------------

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        visible = self._take(x, "present")
        labels = self._one_hot(y)
        biases = self.dynamic_biases(x)
        label_loss = keras.losses.categorical_crossentropy(
            labels, y_pred, from_logits=True
        )
        risen = self._free_energy(visible, labels, biases)
        risen = risen - self._free_energy(*self.gibbs_step(x, y), biases)
        loss = label_loss + self.generative_weight * risen
        hidden = self._hidden_mean(visible, labels, biases)
        missed = visible - self._visible_mean(hidden, biases)
        error = ops.mean(ops.square(missed), axis=-1)
        if sample_weight is not None:
            sample_weight = ops.reshape(self._cast(sample_weight), (-1,))
            loss = loss * sample_weight
        self._label_loss.update_state(label_loss, sample_weight)
        self._reconstruction_error.update_state(error, sample_weight)
        return replicas.share(ops.mean(loss))

    # Inputs --------------------------------------------------------------

    def _cast(self, x):
        return ops.cast(x, self._energy_dtype)

    def _take(self, inputs, group):
        start, stop = self.columns[group]
        return self._cast(inputs)[:, start:stop]

    def _one_hot(self, labels):
        labels = ops.reshape(ops.cast(labels, "int32"), (-1,))
        return ops.one_hot(labels, self.classes, dtype=self._energy_dtype)

    # Saving --------------------------------------------------------------

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.classes)

    def get_config(self):
        return {
            **super().get_config(),
            "hidden": self.hidden,
            "classes": self.classes,
            "columns": {name: list(pair) for name, pair in self._columns},
            "generative_weight": self.generative_weight,
            "seed": self.seed,
        }


@keras.saving.register_keras_serializable(package="keras_fm")
class SocialRBM(ConditionalRBM):
    """Socialized conditional temporal RBM (SctRBM). Not private.

    A `ConditionalRBM` in which friends also act on the hidden units. Let F_u be
    the friends of person u and psi_t(v, u) the probability that v influences u
    at time t. The dynamic bias of hidden unit j is

        b_j(u) = b_j + (B^T u)_j + eta_j / |F_u| sum_{v in F_u} psi_t(v, u).

    The group `"social"` of the input holds the mean
    `sum psi_t(v, u) / |F_u|` (one column, or one for each kind of
    influence); this model learns eta. Environmental events are conditions, like
    the past.

    Phan et al. give each person one number eta_u, the same for all hidden
    units. Such a number is unknown for new people, and a record here does not
    identify its person. So eta belongs to the model, one for each hidden unit.

    Args, input and output shape: as `ConditionalRBM`, with the group
    `"social"` in `columns`.

    Source: the social term is that of the behaviour model of Phan, Wang, Wu
    and Dou, "Differential Privacy Preservation for Deep Auto-Encoders", AAAI
    2016, put into the kind of RBM they compare it with; see also Phan, Dou,
    Piniewski and Kil, "Social Restricted Boltzmann Machine", ASONAM 2015.
    """

    def build(self, input_shape):
        super().build(input_shape)
        self.social_kernel = self._add(
            "social_kernel", (self._width("social"), self.hidden)
        )

    def dynamic_biases(self, inputs):
        visible, hidden, label = super().dynamic_biases(inputs)
        social = self._take(inputs, "social")
        hidden += ops.matmul(social, self._cast(self.social_kernel))
        return visible, hidden, label
