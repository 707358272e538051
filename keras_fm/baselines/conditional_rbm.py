import math

import keras
from keras import ops

from keras_fm.baselines.input_columns import check_columns, check_within
from keras_fm.kernel import checks
from keras_fm.parts import replicas

_VISIBLE = ("binary", "gaussian")
_OBJECTIVES = ("hybrid", "generative", "discriminative")


@keras.saving.register_keras_serializable(package="keras_fm")
class ConditionalRBM(keras.Model):
    """Conditional restricted Boltzmann machine with label units. Not private.

    Visible units v (a record's present), a group of label units y (one-hot)
    and binary hidden units h share an energy in which the conditions u (the
    record's past, and the events around it) act through biases only:

        a(u) = a + A^T u,   b(u) = b + B^T u,   c(u) = c + C^T u
        E(v, y, h | u) = E_v(v | u) - c(u).y - b(u).h - y^T U h - k(v)^T W h

    * `visible="binary"`: E_v = -a(u).v, k(v) = v. Values between 0 and 1
      stand for probabilities of binary units.
    * `visible="gaussian"`: E_v = |v - a(u)|^2 / (2 s^2), k(v) = v / s, with
      s = `stddev`.

    A are the autoregressive weights, B the weights from past to hidden
    units; the labels are visible units too, so they have their own, C.
    Hidden states sum out in closed form,

        F(v, y | u) = E_v(v | u) - c(u).y
                      - sum_j softplus((b(u) + U^T y + W^T k(v))_j),

    and so the labels' distribution is exact: p(y | v, u) is the softmax of
    -F(v, y | u) over y. The model's outputs are those logits (without the
    terms that are equal for all classes), so Keras metrics of a classifier
    apply.

    The loss is part of the model: `compile` it without one. With
    (v', y') the end of a Gibbs chain of `gibbs_steps` steps (CD-k) started
    at the record and held constant, per record

        discriminative:  D = -log p(y | v, u)
        generative:      G = F(v, y | u) - F(v', y' | u)
        hybrid:          D + generative_weight * G

    averaged over the batch. D does not depend on a and A, which
    `"discriminative"` leaves untrained. The gradient of G is contrastive
    divergence's; its value is no likelihood and may be negative. For
    stopping (`mode="min"`) and model selection watch what is logged beside
    it: `label_loss`, the mean of D, and `reconstruction_error`, the mean
    squared error per visible unit of `reconstruct`. In `evaluate`, too, the
    generative part of the loss draws its chain at random; the logged metrics
    and the outputs do not. A loaded model starts the stream of draws anew.

    Args:
        hidden: int, number of hidden units.
        classes: int, at least 2.
        columns: dict from `"present"`, `"history"`, `"social"` and
            `"events"` to the `(start, stop)` or slice of the input's columns
            that holds that group. `"present"` is required; `"history"` and
            `"events"` are the conditions u; `"social"` is not read by this
            model (see `SocialRBM`), so both models take the same records.
            An empty range is the same as no group.
        visible: `"binary"` or `"gaussian"`.
        stddev: float > 0, the standard deviation s of Gaussian visible
            units: a constant chosen beforehand, not learned.
        objective: `"hybrid"`, `"generative"` or `"discriminative"`.
        generative_weight: float >= 0, of `"hybrid"`.
        gibbs_steps: int, k of CD-k.
        sample_visible: whether the chain draws visible units. `False` uses
            their means, the usual choice where values in [0, 1] stand for
            probabilities; `True` makes it a Gibbs chain of the model, right
            for binary records. Hidden and label units are always drawn.
        seed: int or `None`, of initial weights and chain.

    Input shape: `(batch, features)`, scaled to [0, 1] by public bounds for
    binary visible units. Labels: whole numbers in [0, classes), shape
    `(batch,)` or `(batch, 1)`, or one-hot `(batch, classes)`. Output shape:
    `(batch, classes)`. Energies are computed in float32 at least, under
    mixed precision too.

    Raises:
        ValueError: if an argument is outside its range, groups overlap, the
            input has fewer columns than the groups name, no labels are
            given, or the model was compiled with a loss.

    Example:

    ```python
    model = fm.baselines.ConditionalRBM(
        200, 2, columns={"present": (0, 30), "history": (30, 120)}
    )
    model.compile("adam", metrics=["accuracy"])
    model.fit(x, y, epochs=20, validation_split=0.1)
    ```

    Sources: Taylor, Hinton and Roweis, "Modeling Human Motion Using Binary
    Latent Variables", NIPS 2006 (dynamic biases); Larochelle and Bengio,
    "Classification using Discriminative Restricted Boltzmann Machines", ICML
    2008 (label units and the three objectives). The weights C are ours:
    they treat label units as Taylor et al. treat all visible units.
    """

    def __init__(
        self,
        hidden,
        classes,
        columns,
        visible="binary",
        stddev=1.0,
        objective="hybrid",
        generative_weight=0.01,
        gibbs_steps=1,
        sample_visible=False,
        seed=None,
        **kwargs,
    ):
        # Half precision would round inputs before the energy sees them.
        super().__init__(autocast=False, **kwargs)
        self.hidden = checks.count("hidden", hidden)
        self.classes = checks.integer(
            "classes", classes, at_least=2, wanted="an integer >= 2"
        )
        self.gibbs_steps = checks.count("gibbs_steps", gibbs_steps)
        self.visible = checks.one_of("visible", visible, _VISIBLE)
        self.objective = checks.one_of("objective", objective, _OBJECTIVES)
        self.stddev = checks.number(
            "stddev", stddev, above=0, wanted="finite and greater than 0"
        )
        if visible == "binary" and stddev != 1:
            raise ValueError(
                '`stddev` belongs to visible="gaussian". Received: '
                f"stddev={stddev}, visible={visible!r}"
            )
        self.generative_weight = checks.number(
            "generative_weight",
            generative_weight,
            at_least=0,
            wanted="finite and at least 0",
        )
        self.seed = checks.optional(
            checks.integer, "seed", seed, wanted="an integer or None"
        )
        # A tuple: some backends wrap dicts set as attributes.
        self._columns = check_columns(columns)
        self.sample_visible = bool(sample_visible)
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
        features = input_shape[-1]
        if len(input_shape) != 2 or features is None:
            raise ValueError(
                "Inputs must have shape (batch, features) with known "
                f"features. Received: shape={tuple(input_shape)}"
            )
        check_within(self.columns, features)
        d, m = self._width("present"), self.hidden
        conditions = self._width("history") + self._width("events")
        # The scale that Larochelle and Bengio draw from.
        scale = 1 / math.sqrt(max(d, m))
        self.kernel = self._add("kernel", (d, m), scale)
        self.label_kernel = self._add("label_kernel", (self.classes, m), scale)
        # p(y | v, u) alone does not depend on the visible units' biases.
        generative = self.objective != "discriminative"
        self.visible_bias = self._add(
            "visible_bias", (d,), trainable=generative
        )
        self.hidden_bias = self._add("hidden_bias", (m,))
        self.label_bias = self._add("label_bias", (self.classes,))
        self.has_conditions = conditions > 0
        if self.has_conditions:
            scale = 1 / math.sqrt(max(conditions, m))
            self.autoregressive_kernel = self._add(
                "autoregressive_kernel", (conditions, d), trainable=generative
            )
            self.condition_kernel = self._add(
                "condition_kernel", (conditions, m), scale
            )
            self.condition_label_kernel = self._add(
                "condition_label_kernel", (conditions, self.classes)
            )
        self.built = True

    def _width(self, group):
        start, stop = self.columns.get(group, (0, 0))
        return stop - start

    def _add(self, name, shape, scale=0.0, trainable=True):
        initializer = "zeros"
        if scale:
            # Another stream for every weight and for the chain.
            seed = None
            if self.seed is not None:
                seed = self.seed + 1 + len(self.weights)
            initializer = keras.initializers.RandomUniform(
                -scale, scale, seed=seed
            )
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            trainable=trainable,
            autocast=False,
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
        # One row for each record, also without conditions.
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

    def hidden_probabilities(self, inputs, labels):
        """p(h_j = 1 | v, y, u), `(batch, hidden)`."""
        return ops.sigmoid(
            self._hidden_logits(
                self._take(inputs, "present"),
                self._one_hot(labels),
                self.dynamic_biases(inputs),
            )
        )

    def visible_mean(self, hidden, inputs):
        """E[v | h, u], `(batch, d)`: probabilities of binary units.

        Args:
            hidden: `(batch, hidden)` states in {0, 1}, or probabilities.
            inputs: `(batch, features)`, of which the conditions are read.
        """
        return self._visible_mean(
            self._cast(hidden), self.dynamic_biases(inputs)
        )

    def label_probabilities(self, hidden, inputs):
        """p(y | h, u), `(batch, classes)`. Arguments as `visible_mean`."""
        return ops.softmax(
            self._label_logits(self._cast(hidden), self.dynamic_biases(inputs))
        )

    def reconstruct(self, inputs, labels):
        """Mean-field reconstruction E[v | h = p(h | v, y, u), u].

        Args:
            inputs: `(batch, features)`.
            labels: see the class.

        Returns:
            `(batch, d)` tensor.
        """
        return self._reconstruct(
            self._take(inputs, "present"),
            self._one_hot(labels),
            self.dynamic_biases(inputs),
        )

    def gibbs_chain(self, inputs, labels):
        """The end of `gibbs_steps` steps of block Gibbs sampling.

        Each step draws h from p(h | v, y, u), then y from p(y | h, u), and
        draws v from p(v | h, u) or takes its mean (`sample_visible`). No
        gradient flows through it.

        Args:
            inputs: `(batch, features)`, where the chain starts.
            labels: see the class.

        Returns:
            `(v', y')`: `(batch, d)` and one-hot `(batch, classes)`.
        """
        visible = self._take(inputs, "present")
        labels = self._one_hot(labels)
        biases = self.dynamic_biases(inputs)
        for _ in range(self.gibbs_steps):
            hidden = self._bernoulli(
                ops.sigmoid(self._hidden_logits(visible, labels, biases))
            )
            visible = self._visible_mean(hidden, biases)
            if self.sample_visible:
                visible = self._draw_visible(visible)
            labels = self._categorical(self._label_logits(hidden, biases))
        return ops.stop_gradient(visible), ops.stop_gradient(labels)

    # Energies and conditionals, given a record's biases ------------------

    def _scaled(self, visible):
        return visible / self.stddev if self.visible == "gaussian" else visible

    def _hidden_logits(self, visible, labels, biases):
        return (
            biases[1]
            + ops.matmul(self._scaled(visible), self._cast(self.kernel))
            + ops.matmul(labels, self._cast(self.label_kernel))
        )

    def _visible_mean(self, hidden, biases):
        field = ops.matmul(hidden, ops.transpose(self._cast(self.kernel)))
        if self.visible == "gaussian":
            return biases[0] + self.stddev * field
        return ops.sigmoid(biases[0] + field)

    def _label_logits(self, hidden, biases):
        kernel = ops.transpose(self._cast(self.label_kernel))
        return biases[2] + ops.matmul(hidden, kernel)

    def _free_energy(self, visible, labels, biases):
        if self.visible == "gaussian":
            alone = ops.square(self._scaled(visible - biases[0])) / 2
        else:
            alone = -visible * biases[0]
        hidden = ops.softplus(self._hidden_logits(visible, labels, biases))
        return (
            ops.sum(alone, axis=-1)
            - ops.sum(labels * biases[2], axis=-1)
            - ops.sum(hidden, axis=-1)
        )

    def _logits(self, visible, biases):
        kernel = self._cast(self.kernel)
        field = biases[1] + ops.matmul(self._scaled(visible), kernel)
        # (batch, classes, hidden)
        field = field[:, None, :] + self._cast(self.label_kernel)
        return biases[2] + ops.sum(ops.softplus(field), axis=-1)

    def _reconstruct(self, visible, labels, biases):
        hidden = ops.sigmoid(self._hidden_logits(visible, labels, biases))
        return self._visible_mean(hidden, biases)

    # Draws ---------------------------------------------------------------

    def _uniform(self, like, least=0.0):
        return keras.random.uniform(
            ops.shape(like), least, 1.0, self._energy_dtype, seed=self._draws
        )

    def _bernoulli(self, probabilities):
        return self._cast(self._uniform(probabilities) < probabilities)

    def _categorical(self, logits):
        # The largest of logits with Gumbel noise: compiles on all backends.
        noise = -ops.log(-ops.log(self._uniform(logits, 1e-20)))
        largest = ops.argmax(logits + noise, axis=-1)
        return ops.one_hot(largest, self.classes, dtype=self._energy_dtype)

    def _draw_visible(self, mean):
        if self.visible == "binary":
            return self._bernoulli(mean)
        noise = keras.random.normal(
            ops.shape(mean), dtype=self._energy_dtype, seed=self._draws
        )
        return mean + self.stddev * noise

    # Training ------------------------------------------------------------

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        if self._compile_loss is not None:
            raise ValueError(
                f"{type(self).__name__} has its own loss, chosen by "
                "`objective`: call `compile()` without `loss`. Received: "
                f"loss={self.loss}"
            )
        if y is None:
            raise ValueError(
                f"{type(self).__name__} needs labels: pass `y`. Received: "
                "y=None"
            )
        visible = self._take(x, "present")
        labels = self._one_hot(y)
        biases = self.dynamic_biases(x)
        logits = self._logits(visible, biases) if y_pred is None else y_pred
        label_loss = keras.losses.categorical_crossentropy(
            labels, logits, from_logits=True
        )
        if self.objective == "discriminative":
            loss = label_loss
        else:
            loss = self._free_energy(visible, labels, biases)
            loss = loss - self._free_energy(*self.gibbs_chain(x, y), biases)
            if self.objective == "hybrid":
                loss = label_loss + self.generative_weight * loss
        error = ops.mean(
            ops.square(visible - self._reconstruct(visible, labels, biases)),
            axis=-1,
        )
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
        labels = ops.convert_to_tensor(labels)
        shape = tuple(labels.shape)
        if len(shape) == 2 and shape[1] == self.classes:
            return self._cast(labels)
        if len(shape) == 2 and shape[1] == 1:
            labels = labels[:, 0]
        elif len(shape) != 1:
            raise ValueError(
                "Labels must have shape (batch,), (batch, 1) or "
                f"(batch, {self.classes}). Received: shape={shape}"
            )
        return ops.one_hot(
            ops.cast(labels, "int32"), self.classes, dtype=self._energy_dtype
        )

    # Saving --------------------------------------------------------------

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.classes)

    def get_config(self):
        return {
            **super().get_config(),
            "hidden": self.hidden,
            "classes": self.classes,
            "columns": {name: list(pair) for name, pair in self._columns},
            "visible": self.visible,
            "stddev": self.stddev,
            "objective": self.objective,
            "generative_weight": self.generative_weight,
            "gibbs_steps": self.gibbs_steps,
            "sample_visible": self.sample_visible,
            "seed": self.seed,
        }
