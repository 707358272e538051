"""The coefficients that a noisy step takes of its records.

All that leaves a private step comes from `CoefficientModel._released`: sums of
clipped coefficients, with noise.
"""

import numpy as np
from keras import ops

from keras_fm.kernel import checks
from keras_fm.parts import replicas, sealed
from keras_fm.stacks import coefficient_sums, layer_stack
from keras_fm.stacks.layer_coefficients import LayerCoefficientsQuery
from keras_fm.stacks.stages import constant, weights_of
from keras_fm.stacks.step_model import StepModel

_BATCH = 1024
# Learned thresholds are no numbers.
LEARNED = "histogram"


class CoefficientModel(StepModel):
    """A stack whose layers' objectives are given by the coefficients of its
    records: their thresholds, their sums, and a step from them.

    `_given` holds the arguments, `_thresholds` floats or `None` by order,
    `_steps` what finds the coefficients of records, and `_noise` the
    `StepNoise`. A subclass says in `_meet` what the records have to say to
    each layer, and what the last one makes of them before its activation.
    """

    @property
    def _solver(self):
        return self._steps

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
        penalties = self._weight_penalties()
        if not training:
            outputs = constant(y_pred)
            mean = layer_stack.mean(self._steps.loss.value(outputs, y), rows)
            return replicas.share(mean + penalties)
        self._noise.enter_training()
        meetings, affine = self._meet(
            features, y, self._steps.weights(), training=True
        )
        records = coefficient_sums.weights_of_records(rows, self.views)
        if private:
            coefficients = self._released(meetings, records)
        else:
            coefficients = self._exact(meetings, records)
        surrogate = self._surrogate(coefficients)
        if private:
            sealed.expect_metrics()
            return replicas.share(surrogate + penalties)
        last = self._steps.stages[-1].activation.value(affine)
        mean = layer_stack.mean(self._steps.loss.value(last, y), rows)
        # The value of the one with the gradient of the other.
        surrogate = surrogate - ops.stop_gradient(surrogate)
        return replicas.share(mean + surrogate + penalties)

    def _try_step(self):
        """What a step takes of one record of zeros, whatever is below."""
        weights = self._steps.weights()
        kind = weights[0][0].dtype
        features = ops.zeros((self.views, *self._feature_shape), kind)
        y = ops.zeros((self.views, self._steps.loss.units), kind)
        meetings, _ = self._meet(features, y, weights)
        self._sums(meetings, ops.ones((1,), kind), self.has_thresholds)

    def _sums(self, meetings, rows, clipped):
        """Per layer: sums in the shapes of its weights, then those of
        second order if there are."""
        found, norms = [], None
        if clipped and self.clips_jointly:
            norms = coefficient_sums.whole_norms(self._steps.stages, meetings)
        for index, (stages, met) in enumerate(self._steps.by_layer(meetings)):
            thresholds = [
                self._threshold(order, index) if clipped else None
                for order in range(1, self.order + 1)
            ]
            if clipped and not self.clips_jointly:
                norms = coefficient_sums.whole_norms(stages, met)
            first = []
            for stage, meeting in zip(stages, met):
                first += coefficient_sums.first_order(
                    stage, meeting, rows, thresholds[0], norms
                )
            second = None
            if self.order == 2:
                second = coefficient_sums.second_order(
                    stage, meeting, rows, thresholds[1]
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
        # In the units of `step_query`, which the noise is for.
        sums = [value / unit for value, unit in zip(sums, units)]
        noisy = self._noise.release(sums, mirrored)
        noisy = [value * unit for value, unit in zip(noisy, units)]
        found = []
        for index, (first, second) in enumerate(both):
            first, noisy = noisy[: len(first)], noisy[len(first) :]
            if second is not None:
                first = coefficient_sums.newton_direction(
                    first,
                    noisy[0],
                    self._noise.deviation * self._threshold(2, index),
                    self._given["damping"],
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
            x: records, `(n, *input_shape)`, or their views one after the
                other.
            y: as in `fit`.

        Returns:
            NumPy array `(n, P)` in the order of `partitions`.
        """
        found = []
        size = self.views * max(_BATCH // self.views, 1)
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            labels = None if y is None else y[part]
            meetings, _ = self._observe(x[part], labels)
            if self.clips_jointly:
                norms = coefficient_sums.whole_norms(
                    self._steps.stages, meetings
                )
                found.append(ops.convert_to_numpy(norms)[:, None])
                continue
            columns = []
            for stages, met in self._steps.by_layer(meetings):
                columns.append(coefficient_sums.whole_norms(stages, met))
                if self.order == 2:
                    columns.append(coefficient_sums.second_norms(*stages, *met))
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
            list with one list of NumPy arrays for each layer and order:
            kernel and bias, or `(units, m, m)` of second order.
        """
        found = self._sums_of(x, y, sample_weight, clipped)
        return [[ops.convert_to_numpy(v) for v in parts] for parts in found]

    def _sums_of(self, x, y, sample_weight, clipped):
        """The same as tensors."""
        meetings, features = self._observe(x, y)
        rows = coefficient_sums.weights_of_rows(
            sample_weight, features, clipped
        )
        found = []
        rows = coefficient_sums.weights_of_records(rows, self.views)
        for first, second in self._sums(meetings, rows, clipped):
            found.append(first)
            if second is not None:
                found.append([second])
        return found

    def _observe(self, x, y):
        """The meetings of one batch, and its features."""
        if isinstance(y, (list, tuple)):
            y = np.asarray(y)
        features = self._features(x)
        y = self._targets(y, features)
        meetings, _ = self._meet(features, y, self._steps.weights())
        return meetings, features


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
