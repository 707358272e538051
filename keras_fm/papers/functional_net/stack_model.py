"""Base class of models whose layers are trained on coefficients."""

import weakref

import keras
from keras import ops

from keras_fm.core.private_part import PrivatePart
from keras_fm.kernel.ledger.ledger_entry import check_line
from keras_fm.per_example import layer_stack, past_weights
from keras_fm.per_example.stages import constant, weights_of


class StackModel(PrivatePart, keras.Model):
    """Public layers below, trained layers above, and a loss of its own.

    A subclass calls `_keep` once it is built, and has two attributes.
    `_solver` has `stages` and `loss`. `_carrier()` returns the layer that
    holds the release, whose `generation` counts changes that a compiled step
    does not see.
    """

    def _keep(self, given, layers, below, inputs, features):
        # Hidden from Keras, which would save tracked objects a second time.
        self.__dict__["_given"] = given
        self.__dict__["_stack"] = (layers, below)
        self.__dict__["_below"] = layer_stack.Below(inputs, features)
        self.__dict__["_traced"] = self._carrier().generation
        self._carrier().__dict__["_owner"] = weakref.ref(self)
        self._carrier().describe(self._learned())
        self.__dict__["_start"] = (self._carrier()._digest(), None)

    @property
    def unprotected(self):
        """Whether this is the non-private twin."""
        return self._given["unprotected"]

    @property
    def published(self):
        """Whether the release is of the published form."""
        return self._carrier().published

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
        held = self._carrier().described_weights()
        for variable, value in zip(held, weights, strict=True):
            variable.assign(value)
        self.__dict__["_start"] = (self._carrier()._digest(), public)

    def check_start(self):
        """Refuses to start from weights that records may have trained.

        Raises:
            ValueError: with the way to pass public weights.
        """
        known, public = self._start
        if known != self._carrier()._digest() or (
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
        return list(dict.fromkeys(s.layer for s in self._solver.stages))

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
        return self._solver.loss.labels

    # Keras' training -----------------------------------------------------

    def compile(self, optimizer="rmsprop", loss=None, metrics=None, **kwargs):
        """As in Keras, but without a loss: the model has its own.

        Raises:
            ValueError: if you pass a loss.
        """
        if loss is not None:
            raise ValueError(
                f"A {type(self).__name__} has its own loss, given when it is "
                f"built: `compile` it without one. Received: loss={loss!r}"
            )
        head = self._solver.loss
        if head.labels and head.units == 1 and metrics is not None:
            # Keras would compare the logit with 0.5 instead of 0.
            metrics = keras.tree.map_structure(layer_stack.of_logit, metrics)
        super().compile(optimizer, metrics=metrics, **kwargs)

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)

    def make_train_function(self, force=False):
        # Loading weights may have added noise or a release to a compiled
        # model.
        stale = self._traced != self._carrier().generation
        self.__dict__["_traced"] = self._carrier().generation
        return super().make_train_function(force=force or stale)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if y is None:
            y = self._targets(None, self._features(x))
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _features(self, x):
        """Inputs of the first trained layer, as constants."""
        x = constant(self._below(x))
        # The dtype's name: in a symbolic step a weight has no value.
        kind = keras.backend.standardize_dtype(self._learned()[0].dtype)
        x = ops.cast(x, "float64" if kind == "float64" else "float32")
        return ops.reshape(x, (-1, *self._below.shape))

    def _targets(self, y, features):
        return layer_stack.targets(self._solver.loss, y, features)

    def _weight_penalties(self):
        """Regularizers of weights; they do not use records."""
        return sum(
            ops.cast(weight.regularizer(weight), "float32")
            for weight in self.trainable_variables
            if weight.regularizer is not None
        )

    def get_config(self):
        layers, below = self._stack
        return {
            **self._given,
            "layers": _serialized(layers),
            "below": _serialized(below),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for key in ("layers", "below"):
            held = config[key]
            one = [held] if isinstance(held, dict) else held
            made = [
                keras.saving.deserialize_keras_object(
                    layer, custom_objects=custom_objects
                )
                for layer in one
            ]
            config[key] = made[0] if isinstance(held, dict) else made
        return cls(**config)


def _serialized(layers):
    """Config of a list of layers, or of one model."""
    if isinstance(layers, list):
        return [keras.saving.serialize_keras_object(v) for v in layers]
    return keras.saving.serialize_keras_object(layers)
