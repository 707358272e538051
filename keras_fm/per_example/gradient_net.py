"""`make_private` of a network, on Poisson batches that the user makes."""

import contextlib
import math

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.parts import full_precision
from keras_fm.parts.record_alone import Attributes
from keras_fm.per_example import mended, record_map
from keras_fm.per_example.clipping import Clips
from keras_fm.public import activations
from keras_fm.stacks import (
    coefficient_sums,
    first_weights,
    layer_stack,
    output_losses,
    sum_noise,
)
from keras_fm.stacks.coefficient_model import (
    LEARNED,
    CoefficientModel,
    given_arguments,
    thresholds_of,
)
from keras_fm.stacks.step_noise import StepNoise

# Records that are looked at together.
_BATCH = 1024


@keras.saving.register_keras_serializable(package="keras_fm")
class GradientNet(CoefficientModel):
    """An ordinary network, all of whose layers learn by clipped noisy steps.

    The first-order Taylor coefficient of a record's loss about the current
    weights is its gradient. A step sums the gradients of a Poisson sample,
    each clipped to the norm `clip`, adds Gaussian noise, and hands the sum to
    the optimizer: DP-SGD. Every gradient is computed of its record alone,
    as `keras_fm.make_private` does; that has the interface of `keras.Model`,
    this one batches of `PoissonBatches`, owners, views, layers below that
    are released, and fits that go on.

    `keras_fm.callbacks.PrivateModel` gives the noise, charges all steps
    before the first, and without it there is no step. `loss` in the logs of a
    private fit is a function of what was released, of no meaning otherwise.
    Averages of the weights over steps cost nothing:
    `keras.optimizers.SGD(..., use_ema=True)`. With `unprotected=True` this
    is plain training.

    Args:
        input_shape: shape of one record.
        layers: the layers that are trained, as a list, or any Keras model of
            one input and one output `(batch, units)`: logits, for losses of
            classes. `keras_fm.check(model)` says how fast each layer is;
            batch normalization mixes records and is refused unless frozen.
        loss: `"categorical_crossentropy"` (softmax, on logits),
            `"binary_crossentropy"` (per class, on logits) or
            `"squared_error"` (`1/2 ||output - y||^2`; without labels y is
            what the first of `layers` reads: an auto-encoder).
        clip: a float: L2 threshold of a record's gradient, all layers
            together. A list, one for each trained layer: each layer's part is
            clipped by itself. `"histogram"`: as a float, learned from a
            noisy histogram of norms when a private fit begins.
        clip_quantile: float in (0, 1), of `clip="histogram"`: the share of
            records whose gradients are not clipped.
        below: layers with public, frozen or already released weights that
            are applied first.
        input_bound: `None`, or public L2 bound on what the first of `layers`
            reads; longer inputs are scaled back.
        views: int K: each record is K rows of a batch, as
            `PoissonBatches(..., augment=..., views=K)` gives them. Its
            gradient is the mean of theirs and is clipped once, so views cost
            no privacy.
        planned_steps: `None`, or how many steps are paid for at the first
            private fit, if that is not to be the last.
        noise_multiplier: `None` for the noise that spends the budget, or the
            noise of the steps, in units of the sensitivity.
        unprotected: `True` for the non-private twin.

    Input shape: `(batch, *input_shape)`. Output shape: `(batch, units)`:
    logits, or reconstructions.

    Raises:
        ValueError: if a layer mixes the records of a batch (it is named), or
            an argument is outside its range.

    Example:

    ```python
    model = fm.models.GradientNet(
        (28, 28, 1),
        [
            keras.layers.Conv2D(16, 8, strides=2, activation="tanh"),
            keras.layers.MaxPooling2D(2, strides=1),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ],
        clip=0.1,
    )
    model.compile(keras.optimizers.SGD(2.0, momentum=0.9))
    batches = fm.datasets.PoissonBatches(x, y, batch_size=2000)
    private = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)
    model.fit(batches, epochs=20, callbacks=[private])
    ```

    Source: Abadi et al., "Deep Learning with Differential Privacy", 2016.
    """

    def __init__(
        self,
        input_shape,
        layers,
        loss="categorical_crossentropy",
        clip=1.0,
        clip_quantile=0.5,
        below=(),
        input_bound=None,
        views=1,
        planned_steps=None,
        noise_multiplier=None,
        unprotected=False,
        **kwargs,
    ):
        if type(layers) is keras.Sequential or not isinstance(
            layers, keras.Model
        ):
            layers = layer_stack.as_list(layers=layers)
        below = layer_stack.as_list(below=below)
        first = first_weights.are_first(layers)
        given = {
            **given_arguments(
                input_shape, loss, clip, clip_quantile, input_bound, unprotected
            ),
            "views": checks.count("views", views),
        }
        if views > 1 and clip == LEARNED:
            raise ValueError(
                '`clip="histogram"` counts the norms of records as they are '
                f"given. Give a number. Received: views={views}"
            )
        inputs = keras.Input(tuple(input_shape), name="records")
        features = layer_stack.apply_public(below, inputs, input_bound)
        if None in features.shape[1:]:
            raise ValueError(
                "`layers` must read records of a known shape. Received: "
                f"{tuple(features.shape[1:])}"
            )
        network = _network(layers, features.shape[1:])
        mended.check(network)
        outputs = network(features)
        trained = _trained(network)
        _check_outputs(outputs, trained, layers)
        head = output_losses.LOSSES[loss](
            _activation(network, loss), outputs.shape[-1]
        )
        joint = np.ndim(clip) == 0
        thresholds = thresholds_of("clip", clip, len(trained), joint=joint)
        noise = StepNoise(
            name="step_noise",
            dtype=trained[-1].dtype_policy,
            unprotected=unprotected,
        )
        super().__init__(inputs=inputs, outputs=noise(outputs), **kwargs)

        self.__dict__["network"] = network
        self.__dict__["_noise"] = noise
        self.__dict__["_solver"] = _RecordLoss(network, head, views)
        self.__dict__["_thresholds"] = {1: thresholds}
        self.__dict__["_joint"] = joint
        self.__dict__["_map"] = None
        self._keep(given, layers, below, inputs, features, first)
        self.plan_steps(planned_steps, noise_multiplier)

    @property
    def clips_jointly(self):
        return self._joint

    @property
    def views(self):
        """How many rows of a batch are one record."""
        return self._given["views"]

    @property
    def private_layers(self):
        return _trained(self.network)

    def _learned(self):
        return list(self.network.weights)

    @property
    def draws_masks(self):
        return bool(record_map.seeds_of(self.network))

    def check_learning_layers(self):
        mended.check(self.network)
        known = [*map(id, self._carrier().described_weights())]
        if known != [*map(id, self._learned())]:
            raise ValueError(
                f"Layers of '{self.name}' have other weights than when it was "
                "built (`enable_lora`, `quantize`). Change the layers first, "
                "and build the model of them then."
            )

    # Gradients of single records -------------------------------------------

    def _try_step(self):
        self._records()

    def fix_steps(self, mechanism, expected_batch_size, steps, **more):
        # Outside of a compiled step.
        self._records()
        super().fix_steps(mechanism, expected_batch_size, steps, **more)

    def _records(self):
        """The `RecordMap` of the weights that learn now."""
        held, learned = self._map, self.network.trainable_variables
        if held is None or [*map(id, held.learned)] != [*map(id, learned)]:
            held = record_map.chosen_for(self._solver, 1.0, self._made_up())
            self.__dict__["_map"] = held
        held.clips = Clips(self._clips())
        return held

    def _clips(self):
        """The clips in use; thresholds still to be learned count as 1."""
        if self._joint:
            return self._threshold(1, 0) or 1.0
        return [
            (layer.trainable_variables, self._threshold(1, index) or 1.0)
            for index, layer in enumerate(self.private_layers)
        ]

    def _made_up(self):
        """Features and targets of three records."""
        rng, rows = np.random.default_rng(0), 3 * self.views
        features = rng.uniform(0, 1, (rows, *self._feature_shape))
        if any(
            isinstance(layer, keras.layers.Embedding)
            for layer in self.network._flatten_layers()
        ):
            features = np.rint(features)
        units = self._solver.loss.units
        y = np.eye(units)[np.arange(rows) % units]
        found = (v.astype("float32") for v in (features, y))
        return tuple(self._by_record(v, np.reshape) for v in found)

    def _by_record(self, value, reshape=ops.reshape):
        """Rows of a batch, those of a record together."""
        if self.views == 1:
            return value
        return reshape(value, (-1, self.views, *value.shape[1:]))

    def _factors(self, rows):
        """Weights of records from those of their rows: the least."""
        if self.views > 1:
            rows = ops.min(self._by_record(rows), axis=1)
        return ops.cast(rows, "float32")

    def _units(self):
        """The clip on each variable that learns, by its id."""
        if self._joint:
            clip = self._clips()
            return {id(v): clip for v in self.network.trainable_variables}
        return {id(v): clip for held, clip in self._clips() for v in held}

    def _released(self, features, y, rows):
        records, units = self._records(), self._units()
        x, y = self._by_record(features), self._by_record(y)
        factors = self._factors(rows)
        # Before the records are looked at.
        keys = self._noise.keys(ops.shape(factors)[0], records.key_shape[0])
        sums = records.sums(x, y, keys, factors)
        noisy = self._noisy(
            sums, [units[id(v)] for v in records.learned], keys=keys
        )
        return list(zip(records.learned, noisy))

    def _plain_loss(self, features, y, y_pred, rows):
        outputs = ops.cast(y_pred, features.dtype)
        mean = layer_stack.mean(self._solver.loss.value(outputs, y), rows)
        # Penalties of weights and of activities.
        return mean + sum(self.losses)

    def call(self, inputs, training=None, mask=None):
        if not training:
            return super().call(inputs, training=training, mask=mask)
        if self.is_perturbed:
            # A noisy step takes its records in `compute_loss`.
            shape = (ops.shape(inputs)[0], *self.output_shape[1:])
            return self._noise(ops.zeros(shape), training=True)
        features = self._feature_model(inputs, training=False)
        return self._noise(self.network(features, training=True), training=True)

    def fit(self, *args, **kwargs):
        if self.unprotected:
            return super().fit(*args, **kwargs)
        with Attributes(self.network):
            return super().fit(*args, **kwargs)

    # Looking at records: private -----------------------------------------

    @full_precision.scope()
    def coefficient_norms(self, x, y=None):
        """Norms of every record's gradient, before clipping, without dropout.

        They are private: thresholds chosen by them must be released (a noisy
        histogram) or come from public data.

        Args:
            x: records, `(n, *input_shape)`, or their views one after the
                other.
            y: as in `fit`.

        Returns:
            NumPy array `(n, P)` in the order of `partitions`.
        """
        found, size = [], self.views * max(_BATCH // self.views, 1)
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            labels = None if y is None else y[part]
            features, targets = self._observed(x[part], labels)
            with self._without_masks() as records:
                features = self._by_record(features)
                found.append(
                    records.norms(
                        features,
                        self._by_record(targets),
                        _no_keys(records, features.shape[0]),
                    )
                )
        return np.concatenate(found)

    @full_precision.scope()
    def _sums_of(self, x, y, sample_weight, clipped):
        """The sums of one batch, as tensors."""
        features, y = self._observed(x, y)
        rows = coefficient_sums.weights_of_rows(
            sample_weight, features, clipped
        )
        units = self._units()
        with self._without_masks() as records:
            if not clipped:
                records.clips = Clips(math.inf)
            features = self._by_record(features)
            keys = _no_keys(records, features.shape[0])
            sums = records.sums(
                features, self._by_record(y), keys, self._factors(rows)
            )
        found = {
            id(v): value * units[id(v)] if clipped else value
            for v, value in zip(records.learned, sums)
        }
        return [
            [found[id(v)] for v in layer.trainable_variables]
            for layer in self.private_layers
        ]

    @contextlib.contextmanager
    def _without_masks(self):
        records = self._records()
        records.training = False
        try:
            yield records
        finally:
            records.training = True


class _RecordLoss:
    """What a `RecordMap` asks for: a network, and the loss of one record."""

    metrics_variables = ()

    def __init__(self, network, loss, views):
        self.loss = loss
        self.model = network if views == 1 else _Views(network)

    def loss_of_records(self, y, y_pred):
        """The mean over the views of the one record."""
        y = ops.reshape(y, (-1, self.loss.units))
        return ops.mean(self.loss.value(ops.cast(y_pred, y.dtype), y))


class _Views(keras.Model):
    """A network on a record that is several rows."""

    def __init__(self, network):
        super().__init__(name="views")
        self.network, self.built = network, True

    def call(self, inputs, training=None):
        rows = ops.reshape(inputs, (-1, *inputs.shape[2:]))
        return self.network(rows, training=training)


def _no_keys(records, rows):
    """Keys for what draws nothing."""
    return ops.ones((rows, *records.key_shape), sum_noise.DTYPE)


def _network(layers, shape):
    """The layers as one model."""
    if isinstance(layers, keras.Model):
        return layers
    if not layers or not all(isinstance(v, keras.Layer) for v in layers):
        raise ValueError(
            "`layers` must be Keras layers, such as `keras.layers.Dense`, or "
            f"a Keras model. Received: layers={layers}"
        )
    inputs = outputs = keras.Input(tuple(shape))
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs, name="network")


def _is_stack(layer):
    return type(layer) is keras.Sequential or (
        type(layer).__name__ == "Functional"
        and type(layer).__module__.startswith("keras.")
    )


def _trained(network):
    """The layers that learn, whatever is in them."""
    found = []
    for layer in network.layers:
        for one in _trained(layer) if _is_stack(layer) else [layer]:
            if one.trainable_variables and all(one is not v for v in found):
                found.append(one)
    held = {id(v) for layer in found for v in layer.trainable_variables}
    # A model of its own may hold weights beside those of its layers.
    if any(id(v) not in held for v in network.trainable_variables):
        return [network]
    return found


def _check_outputs(outputs, trained, layers):
    if isinstance(outputs, keras.KerasTensor) and len(outputs.shape) == 2:
        if trained:
            return
        raise ValueError(
            "`layers` must have weights that are trainable. Received: "
            f"layers={layers}"
        )
    shapes = keras.tree.map_structure(lambda v: tuple(v.shape), outputs)
    raise ValueError(
        "`layers` must have one output of shape `(batch, units)`: put "
        "`keras.layers.Flatten()` before the last `Dense`. Received outputs "
        f"of shape: {shapes}"
    )


def _activation(network, loss):
    """The `Activation` that the outputs come from."""
    last = network
    while isinstance(last, keras.Model) and getattr(last, "outputs", None):
        last = last.outputs[0]._keras_history.operation
    given = getattr(last, "activation", None)
    if isinstance(last, keras.layers.Softmax):
        given = keras.activations.softmax
    found = activations.get(given or "linear")
    if found is None and loss != "squared_error":
        raise ValueError(
            f"loss={loss!r} is a loss of logits: give the last layer no "
            "activation. Received: activation="
            f"{getattr(given, '__name__', given)!r}"
        )
    return found or activations.get("linear")
