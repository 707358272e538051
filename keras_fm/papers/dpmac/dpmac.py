import math
import warnings

import keras
import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.parts import full_precision, replicas
from keras_fm.parts.record_optimizer import RecordOptimizer
from keras_fm.stacks import (
    affine_maps,
    coefficient_sums,
    first_weights,
    layer_stack,
    output_losses,
)
from keras_fm.stacks.coefficient_model import (
    LEARNED,
    CoefficientModel,
    given_arguments,
    thresholds_of,
)
from keras_fm.stacks.coordinate_steps import CoordinateSteps
from keras_fm.stacks.step_noise import StepNoise

# Values of `clip` that are no thresholds.
_ELSEWHERE = (LEARNED, "analytic")
# Records that are looked at together.
_BATCH = 1024
# Floats in all second-order coefficients of a layer.
_LARGEST_CURVATURE = 5e7


@keras.saving.register_keras_serializable(package="keras_fm")
class DPMAC(CoefficientModel):
    """DP-MAC: a deep network trained by private auxiliary coordinates.

    Harder, Koehler, Welling and Park, PPML 2018. Every record has its own
    copy z of the hidden units; given z, the objective

        loss(output, y) + penalty / 2 sum_k ||z_k - f_k(W_k [z_{k-1}; 1])||^2

    is a sum over layers, and of each layer only the Taylor coefficients at
    its current weights are used, summed over the batch. A record's first
    coefficient is an outer product (delta_k, [z_{k-1}; 1]), so it is clipped
    to its threshold before it exists: nothing of the size records x weights
    is formed. With noise on the sums
    (`keras_fm.callbacks.PrivateModel`) these are all that a step knows of the
    records, and without it there is no step. With `unprotected=True` this is
    the non-private twin (MAC): no clipping, mean over the batch.

    The noisy coefficients reach the weights as the gradient of a surrogate
    `sum_k <coefficient_k, W_k>`, so `compile` takes any optimizer, and
    `loss` in the logs of a private fit is that surrogate: a function of what
    was released, of no meaning otherwise. Without noise it is the mean loss
    of the output layer.

    On several devices (`tf.distribute.MirroredStrategy`, or
    `keras.distribution.DataParallel` on JAX) a step is that of one device: sums
    over the whole batch, noise of one draw (docs/scale.md).

    With P partitions (layers x orders), the thresholds as units, one record
    more or less moves all sums together by at most sqrt(P) in L2 norm, and a
    replaced one by 2 sqrt(P); noise of `noise_multiplier` times that, times
    `threshold_k`, on partition k is one Gaussian mechanism of that multiplier.

    Args:
        input_shape: shape of one record.
        layers: the layers that are trained: `Dense` and `Conv2D`, with
            `Flatten` and `Reshape` between them, the last a `Dense`.
            Activations as arguments: "linear", "relu", "leaky_relu",
            "sigmoid", "tanh", "softplus", "elu", "silu", "gelu".
        loss: `"binary_crossentropy"` (per class, on logits),
            `"categorical_crossentropy"` (softmax, on logits) or
            `"squared_error"` (`1/2 ||output - y||^2`; without labels y is
            what the first of `layers` reads: an auto-encoder).
        clip: L2 threshold of a record's first-order coefficient: a float, one
            for each trained layer, `"histogram"` (learned from a noisy
            histogram of norms when a private fit begins, Algorithm 2 of the
            paper) or `"analytic"`, see `analytic_thresholds`.
        clip_quantile: float in (0, 1), of `clip="histogram"`: the share of
            records whose coefficients are not clipped.
        order: 1, or 2 for second-order coefficients beside them (`Dense`
            only): a damped Newton step, so that `SGD(1.0)` is the plain one.
        curvature_clip: of `order=2`: like `clip`, of the Frobenius norm of a
            record's second-order coefficients of a layer.
        damping: float > 0, of `order=2`: added to the second derivatives of
            a mean record, beside half the spectral edge of the noise.
            Without, a step from a saturated unit has no bound.
        penalty: float > 0, the paper's mu.
        z_steps: int, steps of every record's coordinates.
        z_optimizer: a Keras optimizer that moves every entry on its own
            (SGD, Adam, RMSprop, Adagrad, Adadelta, Adamax, Lion, Ftrl):
            name, config or instance.
        below: layers with public, frozen or already released weights that
            are applied first.
        input_bound: `None`, or public L2 bound on what the first of `layers`
            reads; longer inputs are scaled back.
        planned_steps: `None`, or how many steps are paid for at the first
            private fit, if that is not to be the last.
        noise_multiplier: `None` for the noise that spends the budget, or the
            noise of the steps, in units of the sensitivity.
        unprotected: `True` for the non-private twin (MAC).

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
    batches = fm.datasets.PoissonBatches(x, y, batch_size=500)
    private = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)
    model.fit(batches, epochs=5, callbacks=[private])
    ```
    """

    def __init__(
        self,
        input_shape,
        layers,
        loss="binary_crossentropy",
        clip=0.1,
        clip_quantile=0.5,
        order=1,
        curvature_clip=None,
        damping=0.1,
        penalty=1.0,
        z_steps=30,
        z_optimizer="adam",
        below=(),
        input_bound=None,
        planned_steps=None,
        noise_multiplier=None,
        unprotected=False,
        **kwargs,
    ):
        layers = layer_stack.as_list(layers=layers)
        below = layer_stack.as_list(below=below)
        first = first_weights.are_first(layers)
        checks.either("order", order, (1, 2))
        given = {
            **given_arguments(
                input_shape, loss, clip, clip_quantile, input_bound, unprotected
            ),
            "order": order,
            "curvature_clip": curvature_clip,
            "damping": checks.norm_bound("damping", damping),
            "penalty": checks.norm_bound("penalty", penalty),
            "z_steps": checks.count("z_steps", z_steps),
        }
        trained = layer_stack.check_layers(layers)
        optimizer = RecordOptimizer(z_optimizer, len(trained) - 1)
        thresholds = {
            1: thresholds_of("clip", clip, len(trained), _ELSEWHERE),
            2: thresholds_of(
                "curvature_clip",
                curvature_clip,
                len(trained),
                (*_ELSEWHERE, None),
            ),
        }
        _check_orders(order, clip, curvature_clip)

        inputs = keras.Input(tuple(input_shape), name="records")
        features = layer_stack.apply_public(below, inputs, input_bound)
        outputs, stages = layer_stack.connect(layers, trained, features)
        noise = StepNoise(
            name="step_noise",
            dtype=trained[-1].dtype_policy,
            unprotected=unprotected,
        )
        outputs = noise(outputs)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

        head = output_losses.LOSSES[loss](
            stages[-1].activation, outputs.shape[-1]
        )
        self.__dict__["_noise"] = noise
        self.__dict__["_steps"] = CoordinateSteps(
            stages,
            head,
            given["penalty"],
            optimizer,
            given["z_steps"],
            project=clip == "analytic",
        )
        self.__dict__["_given"] = given
        self.plan_steps(planned_steps, noise_multiplier)
        if order == 2:
            self._check_curvature_size()
        if clip == "analytic":
            thresholds = self._analytic()
            warnings.warn(
                'clip="analytic": the thresholds hold for every record there '
                "could be, and are far above what records do "
                f"({', '.join(f'{t:.3g}' for t in thresholds[1])}). The "
                "noise follows them; a threshold chosen in advance is "
                "mostly better.",
                stacklevel=2,
            )
        self.__dict__["_thresholds"] = thresholds
        self._keep(given, layers, below, inputs, features, first)

    # Thresholds from public facts ----------------------------------------

    def analytic_thresholds(self):
        """Bounds on the norm of any record's coefficients.

        With f in [low, high] for every hidden unit and z brought back to
        that range after the Z-steps (Appendices E-H of the paper bound the
        same quantities; this proof is our own):

        * `|f(a) - z| |f'(a)|` is at most 4/27 for the sigmoid, 32/27 for
          tanh, so a hidden layer has `||delta|| <= penalty sqrt(units)`
          times that;
        * the output layer has `||delta|| <= sqrt(units)` (binary cross-
          entropy, y in [0, 1]), `sqrt(2)` (softmax, y a distribution), or
          `sqrt(units)` times the constant above (squared error, y brought
          into the range of the activation);
        * what a hidden layer hands on has norm at most `sqrt(units) R`,
          `R = max(|low|, |high|)`, the features `input_bound`; the constant
          adds 1 to its square. A convolution reads an entry as often as its
          patches overlap, and adds 1 for each position.

        The norm of a coefficient is at most the product of both factors;
        of second-order ones, of the norm of the second derivatives and the
        square of the inputs' norm.

        Returns:
            list of floats in the order of `partitions`.

        Raises:
            ValueError: if an activation is not bounded, or there is no
                `input_bound`.
        """
        found = self._analytic()
        return [
            found[order][index]
            for index in range(len(self.private_layers))
            for order in range(1, self.order + 1)
        ]

    def _analytic(self):
        bound = self._given["input_bound"]
        if bound is None:
            raise ValueError(
                'clip="analytic" needs a public `input_bound` on the norm of '
                "what the first layer reads. Received: input_bound=None"
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
            if not isinstance(stage.map, affine_maps.DenseMap):
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

    # One step ------------------------------------------------------------

    @property
    def _solver(self):
        return self._steps

    def check_learning_layers(self):
        for layer in self.private_layers:
            layer_stack.check_layer(layer, seen=False)

    def _targets(self, y, features):
        y = super()._targets(y, features)
        if self._given["clip"] == "analytic" and not self.needs_labels:
            y = ops.clip(y, *self._steps.stages[-1].activation.bounds)
        return y

    def _meet(self, features, y):
        """What the records have to say to each layer, and what the last one
        makes of them before its activation."""
        weights = self._steps.weights()
        affine = self._steps.forward(features, weights)
        z = self._steps.coordinates(features, y, weights, affine)
        meetings = self._steps.meetings(
            features, z, y, weights, affine, curvature=self.order == 2
        )
        return meetings, affine[-1]

    def _try_step(self):
        """What a step takes of one record of zeros, whatever is below."""
        kind = self._steps.weights()[0][0].dtype
        features = ops.zeros((1, *self._feature_shape), kind)
        y = ops.zeros((1, self._steps.loss.units), kind)
        meetings, _ = self._meet(features, y)
        self._sums(meetings, ops.ones((1,), kind), self.has_thresholds)

    def _sums(self, meetings, rows, clipped):
        """Per layer: sums in the shapes of its weights, then those of
        second order if there are."""
        found = []
        for index, (stage, met) in enumerate(zip(self._steps.stages, meetings)):
            thresholds = [
                self._threshold(order, index) if clipped else None
                for order in range(1, self.order + 1)
            ]
            norms = coefficient_sums.norms(stage, met) if clipped else None
            first = coefficient_sums.first_order(
                stage, met, rows, thresholds[0], norms
            )
            second = None
            if self.order == 2:
                second = coefficient_sums.second_order(
                    stage, met, rows, thresholds[1]
                )
            found.append((first, second))
        return found

    def _plain_loss(self, features, y, y_pred, rows):
        """The mean loss, with the gradient of mean coefficients."""
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
                    first, second / total, 0.0, self._given["damping"]
                )
            pairs += zip(stage.weights, first)
        last = self._steps.stages[-1].activation.value(affine)
        mean = layer_stack.mean(self._steps.loss.value(last, y), rows)
        surrogate = self._surrogate(pairs)
        penalties = self._weight_penalties()
        return mean + surrogate - ops.stop_gradient(surrogate) + penalties

    def _released(self, features, y, rows):
        """Of each weight its coefficient, a function of noisy sums."""
        meetings, _ = self._meet(features, y)
        sums, units, mirrored = [], [], []
        both = self._sums(meetings, rows, clipped=True)
        for index, (first, second) in enumerate(both):
            sums += first
            units += [self._threshold(1, index)] * len(first)
            mirrored += [False] * len(first)
            if second is not None:
                sums.append(second)
                units.append(self._threshold(2, index))
                mirrored.append(True)
        sums = [value / unit for value, unit in zip(sums, units)]
        noisy = self._noisy(sums, units, mirrored)
        pairs = []
        for index, (stage, (first, second)) in enumerate(
            zip(self._steps.stages, both)
        ):
            first, noisy = noisy[: len(first)], noisy[len(first) :]
            if second is not None:
                first = coefficient_sums.newton_direction(
                    first,
                    noisy[0],
                    self._noise.deviation * self._threshold(2, index),
                    self._given["damping"],
                )
                noisy = noisy[1:]
            pairs += zip(stage.weights, first)
        return pairs

    # Looking at records: private -----------------------------------------

    @full_precision.scope()
    def coefficient_norms(self, x, y=None):
        """Norms of every record's coefficients, before clipping.

        They are private: thresholds chosen by them must be released (a
        noisy histogram, Algorithm 2 of the paper) or come from public data.

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
    def _sums_of(self, x, y, sample_weight, clipped):
        """The sums of one batch, as tensors."""
        features, y = self._observed(x, y)
        meetings, _ = self._meet(features, y)
        rows = coefficient_sums.weights_of_rows(
            sample_weight, features, clipped
        )
        found = []
        for first, second in self._sums(meetings, rows, clipped):
            found.append(first)
            if second is not None:
                found.append([second])
        return found

    # Saving --------------------------------------------------------------

    def get_config(self):
        optimizer = self._steps.optimizer.optimizer
        return {
            **super().get_config(),
            "z_optimizer": keras.optimizers.serialize(optimizer),
        }


def _check_orders(order, clip, curvature_clip):
    wanted = order == 2 and not isinstance(clip, str)
    if wanted != (curvature_clip is not None):
        raise ValueError(
            "`curvature_clip` is needed with `order=2` and thresholds that "
            "are numbers, and not otherwise. Received: "
            f"curvature_clip={curvature_clip}, order={order}, clip={clip!r}"
        )
