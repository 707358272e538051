"""The coefficients that a step of DP-MAC takes of its records.

All that leaves a private step comes from `CoefficientModel._released`: sums of
clipped coefficients, with noise.
"""

import math

import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.papers.dpmac import coefficient_sums
from keras_fm.parts import replicas, sealed
from keras_fm.stacks import affine_maps, layer_stack
from keras_fm.stacks.coordinate_steps import constant
from keras_fm.stacks.network_expansion import weights_of
from keras_fm.stacks.stack_model import StackModel

_BATCH = 1024
# Floats in all second-order coefficients of a layer.
_LARGEST_CURVATURE = 5e7
# Values of `clip` that are no thresholds.
_LEARNED = ("histogram", "analytic")


class CoefficientModel(StackModel):
    """A stack whose layers' objectives are given by the coefficients of its
    records: their thresholds, their sums, and a step from them.

    `_given` holds the arguments, `_thresholds` floats or `None` by order,
    `_steps` the coordinates of records, and `_noise` the `StepNoise`.
    """

    # Thresholds ---------------------------------------------------------

    @property
    def partitions(self):
        """List of `(layer name, order, threshold)`: what a step releases.

        Thresholds that are still to be learned are `None`.
        """
        return [
            (
                layer.name,
                order,
                self._thresholds[order] and self._thresholds[order][index],
            )
            for index, layer in enumerate(self.private_layers)
            for order in range(1, self._given["order"] + 1)
        ]

    @property
    def sensitivity(self):
        """L2 sensitivity (add_remove) of all partitions together, each in
        units of its threshold: the square root of their number."""
        return math.sqrt(len(self.partitions))

    @property
    def learns_thresholds(self):
        """Whether a private fit learns the thresholds."""
        return self._given["clip"] == "histogram"

    @property
    def has_thresholds(self):
        """Whether every partition has a threshold."""
        return all(threshold for _, _, threshold in self.partitions)

    @property
    def clip_quantile(self):
        """The share of records that learned thresholds leave unclipped."""
        return self._given["clip_quantile"]

    def learn_thresholds(self, values):
        """Takes thresholds in the place of those it has.

        Args:
            values: floats > 0 in the order of `partitions`, public or
                released.

        Raises:
            ValueError: if noise was fixed for others.
        """
        if self.is_perturbed:
            raise ValueError(
                "The noise was fixed for the thresholds that the model has. "
                "Build a new model."
            )
        if len(values) != len(self.partitions):
            raise ValueError(
                f"`values` must hold one number for each of the "
                f"{len(self.partitions)} partitions. Received: {values}"
            )
        values = [checks.norm_bound("values", v) for v in values]
        orders = self._given["order"]
        self.__dict__["_thresholds"] = {
            order: values[order - 1 :: orders] for order in range(1, orders + 1)
        }
        self._given["thresholds"] = values
        # A compiled step holds the old ones.
        self._noise.generation += 1

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
            for order in range(1, self._given["order"] + 1)
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

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        features = self._features(x)
        y = self._targets(y, features)
        private = training and self.is_perturbed
        rows = coefficient_sums.weights_of_rows(
            sample_weight, features, private
        )
        penalties = self._weight_penalties()
        if not training:
            outputs = constant(y_pred)
            mean = layer_stack.mean(self._steps.loss.value(outputs, y), rows)
            return replicas.share(mean + penalties)
        self._noise.enter_training()
        weights = self._steps.weights()
        affine = self._steps.forward(features, weights)
        meetings = self._meet(features, y, weights, affine)
        if private:
            coefficients = self._released(meetings, rows)
        else:
            coefficients = self._exact(meetings, rows)
        surrogate = self._surrogate(coefficients)
        if private:
            sealed.expect_metrics()
            return replicas.share(surrogate + penalties)
        last = self._steps.stages[-1].activation.value(affine[-1])
        mean = layer_stack.mean(self._steps.loss.value(last, y), rows)
        # The value of the one with the gradient of the other.
        surrogate = surrogate - ops.stop_gradient(surrogate)
        return replicas.share(mean + surrogate + penalties)

    def _targets(self, y, features):
        y = super()._targets(y, features)
        if self._given["clip"] == "analytic" and not self.needs_labels:
            y = ops.clip(y, *self._steps.stages[-1].activation.bounds)
        return y

    def _meet(self, features, y, weights, affine):
        z = self._steps.coordinates(features, y, weights, affine)
        return self._steps.meetings(
            features, z, y, weights, affine, curvature=self._given["order"] == 2
        )

    def _sums(self, meetings, rows, clipped):
        """Per layer: sums in the shapes of its weights, then those of
        second order if there are."""
        found = []
        for index, (stage, meeting) in enumerate(
            zip(self._steps.stages, meetings)
        ):
            bounds = {1: None, 2: None}
            if clipped:
                bounds = {
                    n: t and t[index] for n, t in self._thresholds.items()
                }
            first = coefficient_sums.first_order(
                stage, meeting, rows, bounds[1]
            )
            second = None
            if self._given["order"] == 2:
                second = coefficient_sums.second_order(
                    stage, meeting, rows, bounds[2]
                )
            found.append((first, second))
        return found

    def _exact(self, meetings, rows):
        total = layer_stack.total(rows)
        found = []
        for first, second in self._sums(meetings, rows, clipped=False):
            first = [values / total for values in replicas.total(first)]
            if second is not None:
                (second,) = replicas.total([second])
                first = coefficient_sums.newton_direction(
                    first, second / total, 0.0, self._given["damping"]
                )
            found.append(first)
        return found

    def _released(self, meetings, rows):
        """Noisy clipped sums over the expected batch size, and what follows
        from them. All that leaves a private step comes from here."""
        sums, scales, mirrored = [], [], []
        both = self._sums(meetings, rows, clipped=True)
        for index, (first, second) in enumerate(both):
            sums += first
            scales += [self._thresholds[1][index]] * len(first)
            mirrored += [False] * len(first)
            if second is not None:
                sums.append(second)
                scales.append(self._thresholds[2][index])
                mirrored.append(True)
        scales = [self.sensitivity * scale for scale in scales]
        noisy = self._noise.release(sums, scales, mirrored)
        found = []
        for index, (first, second) in enumerate(both):
            first, noisy = noisy[: len(first)], noisy[len(first) :]
            if second is not None:
                noise = (
                    self.noise_multiplier
                    * self.sensitivity
                    * self._thresholds[2][index]
                    / self.expected_batch_size
                )
                first = coefficient_sums.newton_direction(
                    first, noisy[0], noise, self._given["damping"]
                )
                noisy = noisy[1:]
            found.append(first)
        return found

    def _surrogate(self, coefficients):
        total = 0.0
        for layer, found in zip(self.private_layers, coefficients):
            for weight, coefficient in zip(weights_of(layer), found):
                weight = ops.convert_to_tensor(weight)
                coefficient = ops.stop_gradient(coefficient)
                total = total + ops.sum(
                    ops.cast(coefficient, weight.dtype) * weight
                )
        return total

    # Looking at records: private -----------------------------------------

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
            meetings, _ = self._observe(x[part], labels)
            columns = []
            for stage, meeting in zip(self._steps.stages, meetings):
                columns.append(coefficient_sums.first_norms(stage, meeting))
                if self._given["order"] == 2:
                    columns.append(
                        coefficient_sums.second_norms(stage, meeting)
                    )
            found.append(
                np.stack([ops.convert_to_numpy(c) for c in columns], axis=1)
            )
        return np.concatenate(found)

    def coefficient_sums(self, x, y=None, sample_weight=None, clipped=True):
        """Sums of the coefficients over given records, without noise.

        They are private; a training step releases them with noise.

        Args:
            x, y, sample_weight: as in `fit`, one batch.
            clipped: whether each record is clipped to the thresholds.

        Returns:
            list with one list of NumPy arrays for each partition: kernel
            and bias, or `(units, m, m)` of second order.
        """
        meetings, features = self._observe(x, y)
        rows = coefficient_sums.weights_of_rows(
            sample_weight, features, clipped
        )
        found = []
        for first, second in self._sums(meetings, rows, clipped):
            found.append([ops.convert_to_numpy(v) for v in first])
            if second is not None:
                found.append([ops.convert_to_numpy(second)])
        return found

    def _observe(self, x, y):
        """The meetings of one batch, and its features."""
        if isinstance(y, (list, tuple)):
            y = np.asarray(y)
        features = self._features(x)
        y = self._targets(y, features)
        weights = self._steps.weights()
        affine = self._steps.forward(features, weights)
        return self._meet(features, y, weights, affine), features


def thresholds_of(name, value, count):
    """One float for each layer, or `None`: they come from elsewhere."""
    if value is None or (isinstance(value, str) and value in _LEARNED):
        return None
    if isinstance(value, (str, dict)):
        raise ValueError(
            f"`{name}` must be a number greater than 0, one for each of the "
            f'{count} trained layers, "histogram" or "analytic". Received: '
            f"{name}={value!r}"
        )
    values = np.ravel(value).tolist()
    if np.ndim(value) == 0:
        values = values * count
    if len(values) != count:
        raise ValueError(
            f"`{name}` must be one number or one for each of the {count} "
            f"trained layers. Received: {name}={value}"
        )
    return [checks.norm_bound(name, v) for v in values]


def check_orders(order, clip, curvature_clip):
    if clip is None:
        raise ValueError(
            "`clip` must be a number greater than 0, one for each trained "
            'layer, "histogram" or "analytic". Received: clip=None'
        )
    wanted = order == 2 and not isinstance(clip, str)
    if wanted != (curvature_clip is not None):
        raise ValueError(
            "`curvature_clip` is needed with `order=2` and thresholds that "
            "are numbers, and not otherwise. Received: "
            f"curvature_clip={curvature_clip}, order={order}, clip={clip!r}"
        )
