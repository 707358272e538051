"""The coefficients that a noisy step takes of its records.

All that leaves a private step comes from `CoefficientModel._noisy`: sums of
clipped coefficients, with noise.
"""

import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.parts import layer_arguments, replicas, sealed
from keras_fm.stacks import coefficient_sums, layer_stack, output_losses
from keras_fm.stacks.layer_coefficients import LayerCoefficientsQuery
from keras_fm.stacks.stages import constant
from keras_fm.stacks.step_model import StepModel

# Learned thresholds are no numbers.
LEARNED = "histogram"


class CoefficientModel(StepModel):
    """A stack that learns from clipped coefficients of its records: their
    thresholds, and a step from their sums.

    `_given` holds the arguments, `_thresholds` floats or `None` by order, and
    `_noise` the `StepNoise`. A subclass gives `_sums_of`, sums over given
    records; `_released`, pairs of a variable and its coefficient, from what
    `_noisy` returned; and `_plain_loss`, that of the twin.
    """

    @property
    def order(self):
        """The order of the coefficients that a step takes, 1 or 2."""
        return self._given.get("order", 1)

    @property
    def clips_jointly(self):
        """Whether one threshold is on the coefficients of all layers
        together, and not one on each layer's."""
        return False

    @property
    def views(self):
        """How many rows of a batch are one record."""
        return 1

    # Thresholds ---------------------------------------------------------

    @property
    def partitions(self):
        """List of `(layer name, order, threshold)`: what a step releases.

        Thresholds that are still to be learned are `None`. A threshold on
        all layers together has the name of the model.
        """
        if self.clips_jointly:
            return [(self.name, 1, self._threshold(1, 0))]
        return [
            (
                layer.name,
                order,
                self._threshold(order, index),
            )
            for index, layer in enumerate(self.private_layers)
            for order in range(1, self.order + 1)
        ]

    def _threshold(self, order, index):
        """Of layer `index`; `None` if there is none yet."""
        known = self._thresholds[order]
        return known and known[0 if self.clips_jointly else index]

    def step_query(self, grouped=False):
        """What one step releases, each partition in units of its threshold.
        Thresholds that are still to be learned count as 1: what a step costs
        depends on their number.

        Args:
            grouped: see `LayerCoefficientsQuery`.
        """
        return LayerCoefficientsQuery(
            thresholds=tuple(t or 1.0 for _, _, t in self.partitions),
            joint=self.clips_jointly,
            grouped=grouped,
        )

    @property
    def learns_thresholds(self):
        """Whether a private fit learns the thresholds."""
        return self._given["clip"] == LEARNED

    @property
    def has_thresholds(self):
        """Whether every partition has a threshold."""
        return all(threshold for _, _, threshold in self.partitions)

    @property
    def clip_quantile(self):
        """The share of records that learned thresholds leave unclipped."""
        return self._given["clip_quantile"]

    @property
    def thresholds_ledger(self):
        """The ledger of the release that thresholds are from, or `None`."""
        return self._given.get("thresholds_ledger")

    def learn_thresholds(self, values, ledger_json=None):
        """Takes thresholds in the place of those it has.

        Args:
            values: floats > 0 in the order of `partitions`, public or
                released.
            ledger_json: `None`, or the ledger of their release as JSON. It
                stays with them: no other ledger pays for noisy steps.

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
        orders = self.order
        self.__dict__["_thresholds"] = {
            order: values[order - 1 :: orders] for order in range(1, orders + 1)
        }
        self._given["thresholds"] = values
        self._given["thresholds_ledger"] = ledger_json
        # A compiled step holds the old ones.
        self._noise.generation += 1

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
        if training:
            self._noise.enter_training()
        penalties = self._weight_penalties()
        if private:
            released = self._released(features, y, rows)
            sealed.expect_metrics()
            return replicas.share(self._surrogate(released) + penalties)
        if training:
            return replicas.share(self._plain_loss(features, y, y_pred, rows))
        outputs = constant(y_pred)
        mean = layer_stack.mean(self._solver.loss.value(outputs, y), rows)
        return replicas.share(mean + penalties)

    def _noisy(self, sums, units, symmetric=None, keys=None):
        """Sums with noise over the expected batch size: all that leaves a
        private step comes from here.

        Args:
            sums: list of tensors, in the units of `step_query`.
            units: list of floats, the threshold of each, its unit.
            symmetric, keys: see `StepNoise.release`.
        """
        noisy = self._noise.release(sums, symmetric, keys)
        return [value * unit for value, unit in zip(noisy, units)]

    def _surrogate(self, coefficients):
        """What has the coefficients for gradients.

        Args:
            coefficients: list of pairs of a variable and a tensor.
        """
        total = 0.0
        for weight, coefficient in coefficients:
            weight = ops.convert_to_tensor(weight)
            coefficient = ops.cast(coefficient, weight.dtype)
            one = ops.sum(ops.stop_gradient(coefficient) * weight)
            # Layers may differ in their dtype.
            total = total + ops.cast(one, "float32")
        return total

    # Looking at records: private -----------------------------------------

    def coefficient_sums(self, x, y=None, sample_weight=None, clipped=True):
        """Sums of the coefficients over given records, without noise.

        They are private; a training step releases them with noise.

        Args:
            x, y, sample_weight: as in `fit`, one batch.
            clipped: whether each record is clipped to the thresholds.

        Returns:
            list with one list of NumPy arrays for each layer and order:
            kernel and bias, or `(units, m, m)` of second order.
        """
        found = self._sums_of(x, y, sample_weight, clipped)
        return [[ops.convert_to_numpy(v) for v in parts] for parts in found]

    def _observed(self, x, y):
        """Features and targets of one batch."""
        if isinstance(y, (list, tuple)):
            y = np.asarray(y)
        features = self._features(x)
        return features, self._targets(y, features)


def given_arguments(
    input_shape, loss, clip, clip_quantile, input_bound, unprotected
):
    """The arguments that all such models have, checked, as their config
    holds them.

    Raises:
        ValueError: naming the one that is outside its range.
    """
    return {
        "input_shape": layer_arguments.sizes("input_shape", input_shape),
        "loss": checks.one_of("loss", loss, output_losses.LOSSES),
        "clip": clip,
        "clip_quantile": checks.number(
            "clip_quantile",
            clip_quantile,
            above=0,
            below=1,
            wanted="between 0 and 1",
        ),
        "input_bound": checks.optional(
            checks.norm_bound, "input_bound", input_bound
        ),
        "planned_steps": None,
        "noise_multiplier": None,
        "unprotected": unprotected,
    }


def thresholds_of(name, value, count, elsewhere=(LEARNED,), joint=False):
    """One float for each layer, or `None`: they come from elsewhere.

    Args:
        name: of the argument.
        value: what was given.
        count: int, trained layers.
        elsewhere: words that are no thresholds, and `None` where it is none.
        joint: whether one number is on all layers together: a list of one.
    """
    unlike = value is None or isinstance(value, (str, dict))
    if unlike and value in elsewhere:
        return None
    if unlike:
        words = " or ".join(f'"{word}"' for word in elsewhere if word)
        raise ValueError(
            f"`{name}` must be a number greater than 0, one for each of the "
            f"{count} trained layers, {words}. Received: {name}={value!r}"
        )
    values = np.ravel(value).tolist()
    if np.ndim(value) == 0:
        values = values if joint else values * count
        count = len(values)
    if len(values) != count:
        raise ValueError(
            f"`{name}` must be one number or one for each of the {count} "
            f"trained layers. Received: {name}={value}"
        )
    return [checks.norm_bound(name, v) for v in values]
