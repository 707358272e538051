import weakref

import keras
import numpy as np
from keras import ops

from keras_fm.core import layer_arguments, replicas, sealed
from keras_fm.core.private_part import PrivatePart
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.ledger_entry import check_line
from keras_fm.papers import own_loss, paper_model
from keras_fm.papers.functional_net import expansion_release
from keras_fm.papers.functional_net.expansion_query import (
    CURVATURES,
    NetworkExpansionQuery,
)
from keras_fm.papers.functional_net.expansion_state import ExpansionState
from keras_fm.papers.functional_net.network_expansion import NetworkExpansion
from keras_fm.per_example import (
    affine_maps,
    layer_stack,
    output_losses,
    past_weights,
)
from keras_fm.per_example.stages import Stage, constant, weights_of

# The recursions need losses that are sums over outputs.
LOSSES = ("binary_crossentropy", "squared_error")


@keras.saving.register_keras_serializable(package="keras_fm")
class FunctionalNet(PrivatePart, keras.Model):
    """FunctionalNet: a network trained on its own noisy Taylor expansion.

    Manco and Pirro, SEBD 2018. A round expands the error of all records
    about the current weights to second order (gradient and diagonal
    curvature, by recursions over the layers). The coefficients get noise
    once; this noisy sum is the round's release. The resulting quadratic is
    minimised, and the next round expands about its minimum. All `rounds` are
    released when a private fit begins. The fit itself then trains on the last
    quadratic and uses no records, for as many epochs as you like.

    `keras_fm.callbacks.PrivateModel` makes it private:

    * `guarantee="proven"`: a proof covers epsilon. Every record's gradient
      and curvature are clipped together before they are summed. The noise is
      Gaussian (L2) or, with delta = 0, Laplace (L1). Rounds get equal shares
      of the budget.
    * `guarantee=Published(lot="data")`: the paper's algorithm, whose epsilon
      is claimed: exact sums, clipped as a sum (see
      `keras_fm.models.PublishedFunctionalNet`), with Laplace noise of scale
      S / epsilon. The S of Theorem 6 is not a bound (docs/guarantees.md). The
      step is the printed one, to the minimum of the released quadratic with
      the diagonal curvature; the step's arguments do not change it. Theorem 6
      assumes sigmoid units and inputs in [0, 1], for example from
      `NormalizationLayer((low, high), "linf")`.

    Without the callback, `fit` refuses. With `unprotected=True` it minimises
    the exact expansion about `expansion_point` (the weights the model was
    built with, until `expand()`). This is the truncated twin, not private.

    Args:
        input_shape: shape of one record.
        layers: `Dense` layers to train. Pass activations as arguments of the
            layers: "linear", "relu", "leaky_relu", "sigmoid", "tanh",
            "softplus", "elu", "silu", "gelu" (the paper: sigmoid). With
            cross-entropy the last layer has none.
        loss: `"binary_crossentropy"` (per class, on logits) or
            `"squared_error"` (`1/2 ||output - y||^2`).
        rounds: int R >= 1, expansions of a private fit.
        clip: float > 0, threshold on one record's coefficients, gradient
            and curvature together. If it is far below their norms, every
            record counts the same.
        curvature: proven form only: `"majorized"` bounds the error if all
            weights of a unit move at once, so that a full step does not
            overshoot; `"diagonal"` is the paper's.
        curvature_weight: float > 0, weight of the curvature against the
            gradient when both are clipped and perturbed.
        step_size: proven form only: float > 0, the fraction of the way to a
            quadratic's minimum that a round moves; 1 is the paper's. `None`
            is 1 for one layer, for which the majorized curvature is a bound,
            and is halved for every further layer.
        momentum: proven form only: float in [0, 1), fraction of the previous
            step that is added.
        damping: proven form only: float >= 0, fraction of a layer's mean
            curvature that is added to all of its curvatures, beside the
            ridge for the noise.
        below: layers with public, frozen or already released weights that
            are applied first.
        unprotected: `True` for the non-private twin.

    Input shape: `(batch, *input_shape)`. Output shape: `(batch, units)`:
    logits, or outputs.

    Raises:
        ValueError: if a layer's coefficients are not known, or an argument is
            outside its range.

    Example:

    ```python
    model = fm.models.FunctionalNet(
        (784,),
        [keras.layers.Dense(64, activation="sigmoid"), keras.layers.Dense(10)],
        rounds=10,
        below=[fm.layers.NormalizationLayer(), keras.layers.Rescaling(8.0)],
    )
    private = fm.callbacks.PrivateModel(
        epsilon=1.0, delta=1e-5, data=(x, y)
    )
    model.compile("sgd", metrics=["accuracy"])
    model.fit(x, y, callbacks=[private], validation_data=test)
    ```
    """

    def __init__(
        self,
        input_shape,
        layers,
        loss="binary_crossentropy",
        rounds=1,
        clip=1.0,
        curvature="majorized",
        curvature_weight=0.1,
        step_size=None,
        momentum=0.8,
        damping=0.1,
        below=(),
        unprotected=False,
        **kwargs,
    ):
        layers = layer_stack.as_list(layers=layers)
        below = layer_stack.as_list(below=below)
        checks.one_of("loss", loss, LOSSES)
        checks.one_of("curvature", curvature, CURVATURES)
        given = {
            "input_shape": layer_arguments.sizes("input_shape", input_shape),
            "loss": loss,
            "rounds": checks.count("rounds", rounds),
            "clip": checks.norm_bound("clip", clip),
            "curvature": curvature,
            "curvature_weight": checks.norm_bound(
                "curvature_weight", curvature_weight
            ),
            "step_size": checks.optional(
                checks.norm_bound, "step_size", step_size
            ),
            "momentum": checks.number(
                "momentum", momentum, at_least=0, below=1
            ),
            "damping": 0.0
            if damping == 0
            else checks.norm_bound("damping", damping),
            "unprotected": unprotected,
        }
        trained = layer_stack.check_layers(layers, dense_only=True)
        activation = [layer_stack.activation_of(layer) for layer in trained]

        inputs = keras.Input(tuple(input_shape), name="records")
        features = layer_stack.apply_public(below, inputs, None)
        outputs, stages = features, []
        for layer, f in zip(trained, activation):
            made = affine_maps.of_layer(layer, outputs.shape[1:])
            stages.append(Stage(map=made, activation=f))
            outputs = layer(outputs)
        state = ExpansionState(name="expansion", unprotected=unprotected)
        outputs = state(outputs)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

        head = output_losses.LOSSES[loss](activation[-1], outputs.shape[-1])
        self.unprotected, self.rounds = unprotected, given["rounds"]
        self.momentum, self.damping = given["momentum"], given["damping"]
        # Hidden from Keras, which would save tracked objects a second time.
        self.__dict__["_state"] = state
        self.__dict__["_expansion"] = NetworkExpansion(stages, head, curvature)
        self.__dict__["_given"] = given
        self.__dict__["_stack"] = (layers, below)
        self.__dict__["_below"] = layer_stack.Below(inputs, features)
        self.__dict__["_traced"] = state.generation
        state.__dict__["_owner"] = weakref.ref(self)
        state.describe(self._learned())
        self.__dict__["_start"] = (state._digest(), None)
        self.expand()

    def _carrier(self):
        return self._state

    @property
    def published(self):
        """Whether the release is of the published form."""
        return self._state.published

    # Where training starts -------------------------------------------------

    def start_from(self, weights, public):
        """Starts training from public weights instead of random ones.

        Args:
            weights: list of arrays, kernel and bias of every trained layer.
            public: str, the source of the weights; the privacy statement
                repeats it. Weights computed from private records are not
                public.

        Raises:
            ValueError: if the model was released or perturbed before, shapes
                do not fit, or `public` is not one line of text.
        """
        check_line("`public`", public)
        if not public:
            raise ValueError(
                "`public` must name the source of the weights. Received: "
                f"public={public!r}"
            )
        if self.is_released or self.is_perturbed:
            raise ValueError(
                f"'{self.name}' already learned from a release. For another, "
                "build a new model."
            )
        held = self._state.described_weights()
        for variable, value in zip(held, weights, strict=True):
            variable.assign(value)
        self.__dict__["_start"] = (self._state._digest(), public)

    def check_start(self):
        """Refuses to start from weights that records may have trained.

        Raises:
            ValueError: with the way to pass public weights.
        """
        known, public = self._start
        if known != self._state._digest() or (
            public is None and past_weights.ledgers_of(self)
        ):
            raise ValueError(
                f"'{self.name}' does not have the weights it was built with, "
                "or its layers were trained before, and no ledger counts that "
                "training. Build a new model of new layers, or give public "
                "weights: `model.start_from(weights, public='where they are "
                "from')`."
            )

    @property
    def start_fact(self):
        """Source of the first weights, for the ledger."""
        return (
            f"initial weights of '{self.name}': public by declaration"
            f"{': ' + self._start[1] if self._start[1] else ''}"
        )

    @property
    def private_layers(self):
        """The layers that are trained, from the features upwards."""
        return list(dict.fromkeys(s.layer for s in self._expansion.stages))

    def _learned(self):
        """The trained variables, layer by layer."""
        return [w for layer in self.private_layers for w in weights_of(layer)]

    @property
    def feature_model(self):
        """The model of the layers in `below`: from records to the inputs of
        the first trained layer."""
        return self._below.model

    @property
    def needs_labels(self):
        """Whether `fit` needs y. If not, the targets are the outputs of
        `feature_model` unless you pass others."""
        return self._expansion.loss.labels

    # Private fit ---------------------------------------------------------

    @property
    def step_size(self):
        """Fraction of the way to a quadratic's minimum that a round moves."""
        given = self._given["step_size"]
        if given is None:
            return 0.5 ** (len(self.private_layers) - 1)
        return given

    trains_on_release = True

    def released_objective(self):
        return self._state.released_objective()

    def release_names(self):
        return [
            f"{self.name} (round {r + 1} of {self.rounds})"
            for r in range(self.rounds)
        ]

    def planned_releases(self, reading):
        """The rounds, see `expansion_release`."""
        return expansion_release.planned_releases(self, reading)

    def check_labels(self, y, n):
        """Refuses labels or targets that do not fit the outputs."""
        if y is None:
            return
        if self.needs_labels:
            paper_model.check_labels(y, self.output_shape[-1])
        elif not np.all(np.isfinite(y)):
            raise ValueError("Targets must be finite. At least one is not.")

    def install(self, release, reading, start):
        """Gives the model the quadratic of the last round."""
        if start == "minimiser":
            self.set_weights_from_minimiser()
        self._state.mark_released(
            reading.ledger.to_json(), self._state.published
        )

    def objective(self, norm="l2", clipped=True, grouped=False):
        """The `NetworkExpansionQuery` that one round releases.

        Args:
            norm: `"l2"` or `"l1"`, the norm that is clipped.
            clipped: `False` for the exact sums of the published form, with
                the diagonal curvature.
            grouped: whether the privacy unit is an owner of several records.
        """
        shapes = tuple(
            (stage.map.input_shape[0] + stage.layer.use_bias, stage.layer.units)
            for stage in self._expansion.stages
        )
        return NetworkExpansionQuery(
            shapes_of_layers=shapes,
            clip=self._given["clip"] if clipped else None,
            norm=norm,
            curvature=self._given["curvature"] if clipped else "diagonal",
            curvature_weight=self._given["curvature_weight"],
            grouped=grouped,
        )

    def set_release(self, quadratics, minimiser, ledger_json, published=False):
        """Makes the model train on a released quadratic, not on records.

        Args:
            quadratics: list of curvatures of every layer, `(inputs, units)`
                with the row of the bias last.
            minimiser: list of weights in the same shapes.
            ledger_json: str, kept with the model when it is saved.
            published: whether the release has no proof.
        """
        self._state.set_release(
            self._split(quadratics),
            self._split(minimiser),
            published,
            ledger_json,
        )

    def augmented_weights(self):
        """Current weights, `(inputs, units)` with the bias as last row."""
        found = []
        for layer in self.private_layers:
            held = [ops.convert_to_numpy(w) for w in weights_of(layer)]
            rows = np.concatenate([np.atleast_2d(w) for w in held])
            found.append(rows.astype(np.float64))
        return found

    def set_augmented_weights(self, weights):
        """Sets the trained weights, in the shapes of `augmented_weights`."""
        for weight, value in zip(self._learned(), self._split(weights)):
            weight.assign(value)

    def set_weights_from_minimiser(self):
        """Moves the trained weights to the minimum of the release."""
        for weight, value in zip(self._learned(), self._state.minimiser()):
            weight.assign(value)
        self._state._note()

    def _split(self, augmented):
        found = []
        for layer, rows in zip(self.private_layers, augmented):
            inputs = len(rows) - layer.use_bias
            found += [rows[:inputs], rows[-1]][: 1 + layer.use_bias]
        return found

    # Expansion -----------------------------------------------------------

    @property
    def expansion_point(self):
        """Weights that the exact objective is expanded about: a list of
        arrays, kernel and bias of every trained layer."""
        return [ops.convert_to_numpy(v) for v in self._state.point()]

    def expand(self, weights=None):
        """Sets the weights that the exact objective is expanded about.

        Args:
            weights: list of arrays like `expansion_point`, or `None` for
                the current weights.

        Raises:
            ValueError: if the shapes do not fit.
        """
        held = self._learned()
        if weights is None:
            weights = [ops.convert_to_numpy(w) for w in held]
        shapes = [tuple(w.shape) for w in held]
        given = [tuple(ops.shape(w)) for w in weights]
        if given != shapes:
            raise ValueError(
                f"`weights` must have the shapes {shapes}. Received: {given}"
            )
        self._state.set_point(weights)

    def factors(self, x, y=None, curvature=None):
        """Factors of every record's coefficients at the current weights.

        They are private, like the records.

        Args:
            x: records, `(n, *input_shape)`.
            y: as in `fit`.
            curvature: `None` for the model's, or another one for b.

        Returns:
            list of NumPy arrays `(z, delta, b)` for every trained layer, see
            `keras_fm.queries.NetworkExpansionQuery.accumulate`.
        """
        features = self._features(x)
        found = self._expansion.factors(
            features,
            self._targets(y, features),
            self._expansion.weights(),
            curvature,
        )
        return [tuple(ops.convert_to_numpy(v) for v in part) for part in found]

    # Keras' training -----------------------------------------------------

    def compile(self, optimizer="rmsprop", loss=None, metrics=None, **kwargs):
        """As in Keras, but without a loss: the model has its own.

        Raises:
            ValueError: if you pass a loss.
        """
        head = self._expansion.loss
        metrics = own_loss.metrics_of(self, head, loss, metrics)
        super().compile(optimizer, metrics=metrics, **kwargs)

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def make_train_function(self, force=False):
        if self.published:
            # A step that was compiled before does not check again.
            self._state.check_trains()
        elif self._state._released is not None:
            sealed.seal(self, [self._state])
        # Loading weights may have added noise or a release to a compiled
        # model.
        stale = self._traced != self._state.generation
        self.__dict__["_traced"] = self._state.generation
        super().make_train_function(force=force or stale)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if y is None:
            y = self._targets(None, self._features(x))
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _features(self, x):
        """Inputs of the first trained layer, as constants."""
        return own_loss.features(self._below, x, self._learned()[0])

    def _targets(self, y, features):
        return layer_stack.targets(self._expansion.loss, y, features)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        # Regularizers of weights do not use records.
        penalties = sum(
            ops.cast(weight.regularizer(weight), "float32")
            for weight in self.trainable_variables
            if weight.regularizer is not None
        )
        if training and self._state._released is not None:
            return replicas.share(self.released_objective() + penalties)
        features = self._features(x)
        y = self._targets(y, features)
        rows = own_loss.weights_of_rows(sample_weight, features)
        if not training:
            values = self._expansion.loss.value(constant(y_pred), y)
            return replicas.share(layer_stack.mean(values, rows) + penalties)
        return replicas.share(self._exact(features, y, rows) + penalties)

    def _exact(self, features, y, rows):
        """The mean expansion about `expansion_point`."""
        point, held = [], self._state.point()
        for layer in self.private_layers:
            count = 1 + layer.use_bias
            point.append([constant(w) for w in held[:count]])
            held = held[count:]
        values = self._expansion.value(features, y, point)
        total = layer_stack.mean(values, rows)
        share = rows / layer_stack.total(rows)
        factors = self._expansion.factors(features, y, point)
        curvature, damping = self._given["curvature"], self.damping
        for layer, about, (z, delta, b) in zip(
            self.private_layers, point, factors
        ):
            v = ops.square(z)
            if curvature == "majorized":
                v = ops.abs(z) * ops.sum(ops.abs(z), axis=1, keepdims=True)
            scale = ops.expand_dims(share, 1)
            g = ops.matmul(ops.transpose(z), delta * scale)
            h = ops.matmul(ops.transpose(v), b * scale)
            g, h = replicas.total([g, h])
            least = damping * ops.maximum(ops.mean(h), 0.0)
            h = ops.maximum(h, 0.0) + least
            moves = (
                ops.cast(ops.convert_to_tensor(w), g.dtype) - start
                for w, start in zip(weights_of(layer), about)
            )
            # The bias (if any) is the last row.
            shape = (-1, layer.units)
            move = ops.concatenate([ops.reshape(v, shape) for v in moves])
            g, h = ops.stop_gradient(g), ops.stop_gradient(h)
            total = total + ops.sum(g * move + h * ops.square(move) / 2)
        return total

    def get_config(self):
        layers, below = self._stack
        return {
            **self._given,
            "layers": keras.saving.serialize_keras_object(layers),
            "below": keras.saving.serialize_keras_object(below),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for key in ("layers", "below"):
            config[key] = keras.saving.deserialize_keras_object(
                config[key], custom_objects=custom_objects
            )
        return cls(**config)
