import math
import warnings

import keras
import numpy as np
from keras import ops

from keras_fm.core import full_precision, layer_arguments, replicas
from keras_fm.core.record_alone import FeatureMap
from keras_fm.core.record_optimizer import RecordOptimizer
from keras_fm.kernel import checks
from keras_fm.papers import own_loss, paper_model
from keras_fm.papers.dpmac import coefficient_sums
from keras_fm.papers.dpmac.coordinate_steps import CoordinateSteps
from keras_fm.per_example import layer_stack, output_losses, sum_noise
from keras_fm.per_example.affine_maps import DenseMap
from keras_fm.per_example.learned_clips import LearnedClips
from keras_fm.per_example.private_network import (
    PrivateNetwork,
    check_proven,
    surrogate,
)
from keras_fm.per_example.step_query import LayerCoefficientsQuery

# Values of `clip` that are not thresholds.
_LEARNED = "histogram"
_ELSEWHERE = (_LEARNED, "analytic")
# Records that are computed together.
_BATCH = 1024
# Floats in all second-order coefficients of a layer.
_LARGEST_CURVATURE = 5e7


class DPMAC(PrivateNetwork):
    """DP-MAC: a deep network trained by private auxiliary coordinates.

    Harder, Koehler, Welling and Park, PPML 2018. Every record has its own
    copy z of the hidden units. Given z, the objective

        loss(output, y) + penalty / 2 sum_k ||z_k - f_k(W_k [z_{k-1}; 1])||^2

    is a sum over layers. Training uses only each layer's Taylor coefficients
    at the current weights, summed over the batch. A record's first
    coefficient is an outer product (delta_k, [z_{k-1}; 1]). Its factors
    suffice to clip it to its threshold, so nothing of the size
    records x weights is formed. A step sees the records only in the sums with
    noise. `fit` works as in `keras_fm.make_private`: it draws a Poisson
    sample for every step, and charges all steps to the budget before the
    first. With `unprotected=True` this is the non-private twin (MAC): no
    clipping, mean over the batch.

    The noisy coefficients reach the weights as the gradient of a surrogate
    `sum_k <coefficient_k, W_k>`, so `compile` takes any optimizer. On several
    devices (`tf.distribute.MirroredStrategy`, or
    `keras.distribution.DataParallel` on JAX) a step is the same as on one:
    sums over the whole batch, noise drawn once (docs/large_data.md).

    There are P partitions (layers x orders). In units of the thresholds, one
    record more or less changes all sums together by at most sqrt(P) in L2
    norm; replacing a record, by 2 sqrt(P). Partition k gets noise of
    `noise_multiplier` times that bound times `threshold_k`. Together this is
    one Gaussian mechanism with that multiplier.

    Args:
        input_shape: shape of one record.
        layers: the layers to train: `Dense` and `Conv2D`, with `Flatten` and
            `Reshape` between them, the last a `Dense`. Pass activations as
            arguments of the layers: "linear", "relu", "leaky_relu",
            "sigmoid", "tanh", "softplus", "elu", "silu", "gelu".
        loss: `"binary_crossentropy"` (per class, on logits),
            `"categorical_crossentropy"` (softmax, on logits) or
            `"squared_error"` (`1/2 ||output - y||^2`; an auto-encoder
            is fitted on `(x, x)`).
        clip: L2 threshold of a record's first-order coefficient. A float, or
            one float for each trained layer. Or `"histogram"`: the medians of
            the norms, from a noisy histogram released when a private fit
            begins (Algorithm 2 of the paper). Or `"analytic"`: bounds on the
            norms of any record, from bounded activations and `input_bound`.
        order: 1, or 2 to add second-order coefficients (`Dense` only). With 2
            a step is a damped Newton step; `SGD(1.0)` applies it unscaled.
        curvature_clip: for `order=2`: like `clip`, for the Frobenius norm of
            a record's second-order coefficients of a layer.
        damping: float > 0, for `order=2`: added to the second derivatives of
            a mean record, beside half the spectral edge of the noise.
            Without it a step from a saturated unit would have no bound.
        penalty: float > 0, the paper's mu.
        z_steps: int, steps of every record's coordinates.
        z_optimizer: a Keras optimizer that moves every entry on its own
            (SGD, Adam, RMSprop, Adagrad, Adadelta, Adamax, Lion, Ftrl):
            name, config or instance.
        below: layers that are applied first: with public or frozen weights,
            or released by the fit before its steps (`DPPCA`).
        input_bound: `None`, or public L2 bound on the inputs of the first of
            `layers`; longer inputs are scaled back.
        unprotected: `True` for the non-private twin (MAC).
        **kwargs: as in `keras_fm.make_private`: `rows_per_owner`, `classes`,
            `public`.

    Input shape: `(batch, *input_shape)`. Output shape: `(batch, units)`:
    logits, or reconstructions.

    Raises:
        ValueError: if a layer, activation or optimizer has no exact
            per-record coefficients, or an argument is outside its range.

    Example:

    ```python
    model = fm.models.DPMAC(
        (784,),
        [keras.layers.Dense(300, activation="relu"), keras.layers.Dense(10)],
        clip=0.1,
    )
    model.compile(keras.optimizers.Adam(1e-3))
    private = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)
    model.fit(x, y, batch_size=500, epochs=5, callbacks=[private])
    ```
    """

    step_proof = LayerCoefficientsQuery.proof
    correlates = False

    def __init__(
        self,
        input_shape,
        layers,
        loss="binary_crossentropy",
        clip=0.1,
        order=1,
        curvature_clip=None,
        damping=0.1,
        penalty=1.0,
        z_steps=30,
        z_optimizer="adam",
        below=(),
        input_bound=None,
        unprotected=False,
        name="dpmac",
        **kwargs,
    ):
        layers = layer_stack.as_list(layers=layers)
        below = layer_stack.as_list(below=below)
        checks.either("order", order, (1, 2))
        checks.one_of("loss", loss, output_losses.LOSSES)
        trained = layer_stack.check_layers(layers)
        optimizer = RecordOptimizer(z_optimizer, len(trained) - 1)
        thresholds = {
            1: _thresholds_of("clip", clip, len(trained), _ELSEWHERE),
            2: _thresholds_of(
                "curvature_clip",
                curvature_clip,
                len(trained),
                (*_ELSEWHERE, None),
            ),
        }
        _check_orders(order, clip, curvature_clip)
        shape = layer_arguments.sizes("input_shape", input_shape)
        inputs = keras.Input(shape, name="records")
        bound = checks.optional(checks.norm_bound, "input_bound", input_bound)
        features = layer_stack.apply_public(below, inputs, bound)
        outputs, stages = layer_stack.connect(layers, trained, features)
        super().__init__(
            keras.Model(inputs, outputs, name=name),
            name=f"private_{name}",
            **kwargs,
        )
        self.unprotected = checks.boolean("unprotected", unprotected)
        self.order, self._clip, self._input_bound = order, clip, bound
        self._damping = checks.norm_bound("damping", damping)
        self._below = layer_stack.Below(inputs, features)
        head = output_losses.LOSSES[loss](
            stages[-1].activation, outputs.shape[-1]
        )
        # Hidden from Keras, which would track their contents a second time.
        self.__dict__["_steps"] = CoordinateSteps(
            stages,
            head,
            checks.norm_bound("penalty", penalty),
            optimizer,
            checks.count("z_steps", z_steps),
            project=clip == "analytic",
        )
        if order == 2:
            self._check_curvature_size()
        if clip == "analytic":
            thresholds = self._analytic()
            warnings.warn(
                'clip="analytic" takes thresholds that hold for every '
                "possible record, far above those of most records "
                f"({', '.join((f'{t:.3g}' for t in thresholds[1]))}). Noise "
                "grows with them: a smaller threshold, such as `clip=0.1`, is "
                "usually better.",
                stacklevel=2,
            )
        self.__dict__["_thresholds"] = thresholds

    # Thresholds ----------------------------------------------------------

    @property
    def private_layers(self):
        """The layers that are trained, from the features upwards."""
        return [stage.layer for stage in self._steps.stages]

    @property
    def feature_model(self):
        """Model from records to the inputs of the first trained layer."""
        return self._below.model

    @property
    def partitions(self):
        """List of `(layer name, order, threshold)`, one for each sum that a
        step releases. Thresholds that are still to be learned are `None`.
        """
        return [
            (layer.name, order, self._threshold(order, index))
            for index, layer in enumerate(self.private_layers)
            for order in range(1, self.order + 1)
        ]

    def _threshold(self, order, index):
        known = self._thresholds[order]
        return known and known[index]

    def learn_thresholds(self, values):
        """Replaces the thresholds.

        Args:
            values: floats > 0 in the order of `partitions`, public or
                released.
        """
        if len(values) != len(self.partitions):
            raise ValueError(
                f"`values` must hold one number for each of the "
                f"{len(self.partitions)} partitions. Received: {values}"
            )
        values = [checks.norm_bound("values", v) for v in values]
        self.__dict__["_thresholds"] = {
            order: values[order - 1 :: self.order]
            for order in range(1, self.order + 1)
        }

    # Thresholds from public facts ----------------------------------------

    def _analytic(self):
        """Bounds on the norm of any record's coefficients, by order.

        Every hidden unit has f in [low, high], and z is brought back to that
        range after the Z-steps. Appendices E-H of the paper bound the same
        quantities; this proof is our own:

        * `|f(a) - z| |f'(a)|` is at most 4/27 for the sigmoid, 32/27 for
          tanh, so a hidden layer has `||delta|| <= penalty sqrt(units)`
          times that;
        * the output layer has `||delta|| <= sqrt(units)` (binary cross-
          entropy, y in [0, 1]), `sqrt(2)` (softmax, y a distribution), or
          `sqrt(units)` times the constant above (squared error, y brought
          into the range of the activation);
        * the outputs of a hidden layer have norm at most `sqrt(units) R`,
          `R = max(|low|, |high|)`, and the features at most `input_bound`.
          The constant adds 1 to the squared norm. A convolution counts an
          entry once for each patch that holds it, and adds 1 for each
          position.

        The norm of a first-order coefficient is at most the product of
        `||delta||` and the inputs' norm. For second order it is at most the
        norm of the second derivatives times the squared inputs' norm.
        """
        bound = self._input_bound
        if bound is None:
            raise ValueError(
                'clip="analytic" needs a public `input_bound` on the norm of '
                "the first layer's input. Received: input_bound=None"
            )
        steps, found = self._steps, {1: [], 2: []}
        norm = bound
        for stage in steps.stages:
            f, units = stage.activation, math.prod(stage.map.output_shape)
            if stage is steps.stages[-1]:
                slope = steps.loss.slope_bound
                curve = steps.loss.curvature_bound
            else:
                slope = steps.penalty * math.sqrt(units) * f.pull
                curve = steps.penalty * math.sqrt(units) * f.bend
            if not math.isfinite(slope):
                raise ValueError(
                    'clip="analytic" needs bounded activations, "sigmoid" or '
                    f"\"tanh\". Received: layer '{stage.layer.name}' with "
                    f"activation={f.name!r}"
                )
            read = stage.map.input_bound(norm)
            found[1].append(slope * read)
            found[2].append(curve * read**2)
            if f.bounds is not None:
                largest = max(abs(end) for end in f.bounds)
                norm = math.sqrt(units) * largest
        return found

    def _check_curvature_size(self):
        for stage in self._steps.stages:
            layer = stage.layer
            if not isinstance(stage.map, DenseMap):
                raise ValueError(
                    "`order=2` is for Dense layers only. Received: layer "
                    f"'{layer.name}' ({type(layer).__name__})"
                )
            inputs = stage.map.input_shape[0] + layer.use_bias
            size = layer.units * inputs**2
            if size > _LARGEST_CURVATURE:
                raise ValueError(
                    f"The second-order coefficients of layer '{layer.name}' "
                    f"would be {layer.units} matrices of {inputs} x {inputs}, "
                    f"{size:.3g} numbers (at most {_LARGEST_CURVATURE:g}). "
                    "Reduce its inputs with a layer in `below`, or use "
                    "`order=1`."
                )

    # A fit's ledger --------------------------------------------------------

    def compile(self, optimizer="rmsprop", loss=None, metrics=None, **kwargs):
        """As in Keras, but without a loss: the model has its own.

        Raises:
            ValueError: if you pass a loss.
        """
        head = self._steps.loss
        metrics = own_loss.metrics_of(self, head, loss, metrics)

        def of_outputs(y, y_pred):
            return head.value(y_pred, layer_stack.targets(head, y, y_pred))

        super().compile(optimizer, of_outputs, metrics=metrics, **kwargs)

    def fit(self, x=None, y=None, batch_size=None, *args, **kwargs):
        if self.unprotected:
            return keras.Model.fit(self, x, y, batch_size, *args, **kwargs)
        return super().fit(x, y, batch_size, *args, **kwargs)

    def make_train_function(self, force=False):
        if self.unprotected:
            return keras.Model.make_train_function(self, force=force)
        return super().make_train_function(force=force)

    def check_guarantee(self, guarantee):
        if self.unprotected:
            raise ValueError(
                "The model was built with `unprotected=True`: the non-private "
                "twin is never released. Build a new model without it."
            )
        if guarantee.kind == "proven":
            check_proven(guarantee, self.rows_per_owner)

    def check_labels(self, y):
        if y is None:
            raise ValueError(
                "A DPMAC needs labels or targets. An auto-encoder is fitted "
                "on `fit(x, x)`. Received: y=None"
            )
        if self._steps.loss.labels:
            paper_model.check_labels(y, self.model.output_shape[-1])

    def check_records(self, given):
        if len(self.feature_model.layers) > 1:
            # A `FeatureMap`'s errors do not show records.
            below = FeatureMap(self.feature_model)
            for start in range(0, len(given.x), _BATCH):
                below(given.x[start : start + _BATCH])

    def released_first(self, ledger, spends):
        if self._clip != _LEARNED or self._thresholds[1] is not None:
            return []
        return [LearnedClips(self, ledger, spends)]

    @property
    def step_query(self):
        return LayerCoefficientsQuery(
            thresholds=tuple(t or 1.0 for _, _, t in self.partitions)
        )

    @property
    def step_uses(self):
        return self.step_query.uses

    # One step ------------------------------------------------------------

    def map_for(self, given, example):
        made = CoordinateMap(self, given.owners is not None)
        n = len(keras.tree.flatten(example)[0])
        x, y = keras.tree.map_structure(ops.convert_to_tensor, example)
        # If a step cannot run, it must fail here, before it is charged.
        made.sums(x, y, None, ops.ones((n,)))
        if given.owners is not None:
            x, y = x[0][:, 0], y[:, 0]
        # Keras would run a step to build the loss.
        self.loss_of_records(y, self.model(x, training=False))
        return made

    def noisy_sums(self, made, sums, keys, mechanism, expected):
        noisy = sum_noise.noisy(mechanism, sums, keys, made.symmetric)
        pairs = []
        for index, stage in enumerate(self._steps.stages):
            count = len(stage.weights)
            scale = self._threshold(1, index) / expected
            first = [value * scale for value in noisy[:count]]
            noisy = noisy[count:]
            if self.order == 2:
                scale = self._threshold(2, index) / expected
                first = coefficient_sums.newton_direction(
                    first,
                    noisy[0] * scale,
                    mechanism.stddev * scale,
                    self._damping,
                )
                noisy = noisy[1:]
            pairs += zip(stage.weights, first)
        return pairs

    def noise_length(self, mechanism, expected):
        # Each layer has its own thresholds.
        return None

    def call(self, inputs, training=None):
        if training and self.unprotected:
            return self.model(inputs, training=True)
        return super().call(inputs, training=training)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        if training and self.unprotected:
            return replicas.share(self._plain_loss(x, y, sample_weight))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def _features(self, x):
        """Inputs of the first trained layer, as constants."""
        first = self._steps.stages[0].weights[0]
        return own_loss.features(self._below, x, first)

    def _observed(self, x, y):
        """Features and targets of one batch."""
        features = self._features(x)
        y = layer_stack.targets(self._steps.loss, y, features)
        if self._clip == "analytic" and not self._steps.loss.labels:
            y = ops.clip(y, *self._steps.stages[-1].activation.bounds)
        return features, y

    def _meet(self, features, y):
        """A `Meeting` of the records with each layer, and the last layer's
        outputs before its activation."""
        weights = self._steps.weights()
        affine = self._steps.forward(features, weights)
        z = self._steps.coordinates(features, y, weights, affine)
        meetings = self._steps.meetings(
            features, z, y, weights, affine, curvature=self.order == 2
        )
        return meetings, affine[-1]

    def _sums(self, meetings, rows, clipped):
        """Per layer: sums in the shapes of its weights, and the second-order
        sums or `None`."""
        found = []
        for index, (stage, met) in enumerate(zip(self._steps.stages, meetings)):
            thresholds = [
                self._threshold(order, index) if clipped else None
                for order in range(1, self.order + 1)
            ]
            first = coefficient_sums.first_order(
                stage, met, rows, thresholds[0]
            )
            second = None
            if self.order == 2:
                second = coefficient_sums.second_order(
                    stage, met, rows, thresholds[1]
                )
            found.append((first, second))
        return found

    def _plain_loss(self, x, y, sample_weight):
        """The mean loss, whose gradient is the mean coefficients."""
        features, y = self._observed(x, y)
        rows = own_loss.weights_of_rows(sample_weight, features)
        meetings, affine = self._meet(features, y)
        total = layer_stack.total(rows)
        pairs = []
        for stage, (first, second) in zip(
            self._steps.stages, self._sums(meetings, rows, clipped=False)
        ):
            first = [values / total for values in replicas.total(first)]
            if second is not None:
                (second,) = replicas.total([second])
                first = coefficient_sums.newton_direction(
                    first, second / total, 0.0, self._damping
                )
            pairs += zip(stage.weights, first)
        last = self._steps.stages[-1].activation.value(affine)
        mean = layer_stack.mean(self._steps.loss.value(last, y), rows)
        moved = surrogate(pairs)
        penalties = self.weight_penalties()
        return mean + moved - ops.stop_gradient(moved) + penalties

    # Private values of records -------------------------------------------

    @full_precision.scope()
    def coefficient_norms(self, x, y=None):
        """Norms of every record's coefficients, before clipping.

        They are private. Do not choose thresholds by them: release
        thresholds (a noisy histogram, Algorithm 2 of the paper), or take
        them from public data.

        Args:
            x: records, `(n, *input_shape)`.
            y: as in `fit`.

        Returns:
            NumPy array `(n, P)` in the order of `partitions`.
        """
        found = []
        for start in range(0, len(x), _BATCH):
            part = slice(start, start + _BATCH)
            labels = None if y is None else y[part]
            meetings, _ = self._meet(*self._observed(x[part], labels))
            columns = []
            for stage, met in zip(self._steps.stages, meetings):
                columns.append(coefficient_sums.norms(stage, met))
                if self.order == 2:
                    columns.append(coefficient_sums.second_norms(stage, met))
            found.append(
                np.stack([ops.convert_to_numpy(c) for c in columns], axis=1)
            )
        return np.concatenate(found)

    @full_precision.scope()
    def coefficient_sums(self, x, y=None, sample_weight=None, clipped=True):
        """Sums of the coefficients over given records, without noise.

        They are private; a training step releases them with noise.

        Args:
            x, y, sample_weight: as in `fit`, one batch.
            clipped: whether each record is clipped to the thresholds.

        Returns:
            list with one list of NumPy arrays for each layer and order:
            kernel and bias, or `(units, m, m)` for second order.
        """
        features, y = self._observed(x, y)
        meetings, _ = self._meet(features, y)
        rows = own_loss.weights_of_rows(sample_weight, features)
        found = []
        for first, second in self._sums(meetings, rows, clipped):
            found.append(first)
            if second is not None:
                found.append([second])
        return [[ops.convert_to_numpy(v) for v in parts] for parts in found]


class CoordinateMap:
    """Sums of single records' clipped coefficients, in units of thresholds.

    It replaces `keras_fm.per_example.record_map.RecordMap`, which sums
    gradients.

    Args:
        model: a `DPMAC`.
        owned: `True` if a record is an owner with several rows. Its
            coefficients are then the mean of its rows', each clipped.
    """

    # A batch is one piece: nothing of records x weights is formed.
    piece, needs_xla = 2**31, False
    # Two words, for the noise of a step.
    key_shape = (1, 2)

    def __init__(self, model, owned):
        self._model, self._owned = model, owned
        self.symmetric = []
        for stage in model._steps.stages:
            self.symmetric += [False] * len(stage.weights)
            self.symmetric += [True] * (model.order == 2)

    def sums(self, x, y, keys, factors):
        """See `RecordMap.sums`; nothing here is random."""
        del keys
        if self._owned:
            (x, shares), most = x, x[1].shape[1]
            factors = ops.expand_dims(factors, 1) * shares / most
            x, y, factors = keras.tree.map_structure(
                lambda v: ops.reshape(v, (-1, *v.shape[2:])), (x, y, factors)
            )
        model = self._model
        features, y = model._observed(x, y)
        meetings, _ = model._meet(features, y)
        rows, found = ops.cast(factors, features.dtype), []
        both = model._sums(meetings, rows, clipped=True)
        for index, (first, second) in enumerate(both):
            found += [v / (model._threshold(1, index) or 1.0) for v in first]
            if second is not None:
                found.append(second / (model._threshold(2, index) or 1.0))
        return found


def _thresholds_of(name, value, count, elsewhere):
    """One float for each layer, or `None` if they come from elsewhere.

    Args:
        name: name of the argument.
        value: value of the argument.
        count: int, number of trained layers.
        elsewhere: values for which the result is `None`.
    """
    if (value is None or isinstance(value, str)) and value in elsewhere:
        return None
    values = np.ravel(value).tolist()
    if np.ndim(value) == 0:
        values = values * count
    if len(values) != count:
        raise ValueError(
            f"`{name}` must be one number or one for each of the {count} "
            f"trained layers. Received: {name}={value}"
        )
    return [checks.norm_bound(name, v) for v in values]


def _check_orders(order, clip, curvature_clip):
    wanted = order == 2 and not isinstance(clip, str)
    if wanted != (curvature_clip is not None):
        raise ValueError(
            "`curvature_clip` must be given if `order=2` and `clip` is "
            "numbers, and left out otherwise. Received: "
            f"curvature_clip={curvature_clip}, order={order}, clip={clip!r}"
        )
