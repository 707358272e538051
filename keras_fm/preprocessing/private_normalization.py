from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core.column_moments import ColumnMomentsQuery
from keras_fm.core.planned_release import PlannedRelease
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.preprocessing.column_histogram import ColumnHistogramQuery
from keras_fm.preprocessing.proven_map import ProvenMap


@keras.saving.register_keras_serializable(package="keras_fm")
class PrivateNormalization(ProvenMap):
    """`keras.layers.Normalization` with privacy: scales every column to a
    released mean of 0 and standard deviation of 1.

    Keras' `adapt` would use the records without any ledger counting it. Here
    `keras_fm.callbacks.PrivateModel` releases noisy sums and sums of squares of
    the columns once. They are in the model's plan and use a tenth of its
    budget, or the share in `Proven(shares=...)`. Before its release the layer
    maps the public bounds to [-1, 1].

    Outputs lie in `[-limit, limit]`, but their norm grows with the number of
    columns: put `NormalizationLayer()` after the layer (or after public
    features of its output).

    Args:
        bounds: `(low, high)`, the public range of the columns: numbers, or
            one for each. Do not compute them from private records. Values
            outside count as the nearest bound. The noise is proportional to
            `high - low`: a range ten times too wide has ten times the noise,
            unless `quantiles` narrow it.
        axis: int, the axis of the columns or channels. A record counts with its
            mean over all other axes but the first.
        limit: float > 0, the public bound on an output.
        quantiles: `None`, or `(lower, upper)` such as `(0.01, 0.99)`: a
            histogram of each column is released first (another twentieth of
            the budget), and its quantiles replace the bounds, to a 256th of the
            public range. Values beyond them count as the nearest one.
        missing: `None` (NaN is refused), or `"mean"`: NaN is left out of the
            statistics and mapped to 0, the released mean. Then no other layer
            may take the records as inputs.
        unprotected: `True` in a non-private twin: the layer then stays as it is
            before a release.

    Input and output shape: `(batch, ..., columns)`, or with the columns in
    another axis.

    Raises:
        ValueError: if an argument is outside its range, or the bounds do not
            fit the columns.

    Example:

    >>> layer = PrivateNormalization(bounds=([0, 0], [100, 1]))
    >>> np.asarray(layer(np.array([[50.0, 1.0]])))   # not released yet
    array([[0., 1.]], dtype=float32)

    Source: the layer of Keras; sensitivities:
    `keras_fm.queries.ColumnMomentsQuery`, `ColumnHistogramQuery`.
    """

    def __init__(
        self,
        bounds: Any,
        axis: int = -1,
        limit: float = 3.0,
        missing: str | None = None,
        quantiles: Any = None,
        **kwargs: Any,
    ) -> None:
        # Unscaled columns may not fit into half precision.
        super().__init__(autocast=False, **kwargs)
        low, high = bounds_lib.checked_pair("bounds", bounds)
        self.bounds = (low.tolist(), high.tolist())
        self.axis = checks.integer("axis", axis)
        self.limit = checks.positive("limit", limit)
        self.missing = checks.one_of("missing", missing, (None, "mean"))
        self.quantiles = None if quantiles is None else _shares(quantiles)

    @property
    def takes_missing(self):
        """Whether the layer accepts NaN."""
        return self.missing is not None

    def build(self, input_shape):
        rank = len(input_shape)
        axis = self.axis % rank if -rank <= self.axis < rank else 0
        if not axis or input_shape[axis] is None:
            raise ValueError(
                "`axis` must be one of the input, not the first, of known "
                f"length. Received: axis={self.axis}, "
                f"input_shape={tuple(input_shape)}"
            )
        self.num_columns = input_shape[axis]
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float64), self.num_columns)
            for bound in self.bounds
        )
        self._public, self._own_axis = (low, high), axis
        # Columns in their axis, length 1 in every other.
        self._shape = [1] * rank
        self._shape[axis] = self.num_columns
        middle, half = _middle_and_half(low, high)
        self.mean = self._constant("mean", middle)
        self.scale = self._constant("scale", half)
        if self.quantiles is not None:
            self.low = self._constant("low", low)
            self.high = self._constant("high", high)

    def _constant(self, name, value):
        return self.add_weight(
            name=name,
            shape=(self.num_columns,),
            initializer=keras.initializers.Constant(value),
            # Even if `trainable` of the model is set.
            trainable=False,
            autocast=False,
        )

    @property
    def _limits(self):
        """Where values are clipped: the public bounds, or released
        quantiles."""
        if self.quantiles is None:
            return self._public
        return self.low, self.high

    @property
    def _range(self):
        """`_limits` as float64 arrays."""
        return tuple(
            np.array(ops.convert_to_numpy(bound), np.float64)
            for bound in self._limits
        )

    def call(self, inputs, training=None):
        self.in_training(training)
        dtype = keras.backend.result_type(self.compute_dtype, "float32")
        x = ops.cast(inputs, dtype)
        mean, scale, low, high = (
            ops.reshape(ops.cast(value, dtype), self._shape)
            for value in (self.mean, self.scale, *self._limits)
        )
        known = None
        if self.missing is not None:
            known = ops.logical_not(ops.isnan(x))
            x = ops.where(known, x, mean)
        x = (ops.clip(x, low, high) - mean) / scale
        x = ops.clip(x, -self.limit, self.limit)
        if known is not None:
            x = ops.where(known, x, 0.0)
        return ops.cast(x, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    # A release of the layer ----------------------------------------------

    def release_names(self):
        names = [f"{self.name} (column moments)"]
        if self.quantiles is not None:
            names.insert(0, f"{self.name} (column histograms)")
        return names

    def default_shares(self, alike):
        return [0.1] if self.quantiles is None else [0.05, 0.1]

    def scaled(self, inputs, low, high):
        """Columns for a query: in the last axis, bounds at -1 and 1; NumPy."""
        x = np.moveaxis(np.asarray(inputs, np.float64), self._own_axis, -1)
        # Finite values may overflow when scaled: clip them to a bound first.
        x = np.where(np.isinf(x), x, np.clip(x, low, high))
        middle, half = _middle_and_half(low, high)
        return (x - middle) / half

    def planned_releases(self, reading):
        """The releases of the layer: with `quantiles` the histograms that
        narrow the bounds, then the moments of the columns."""
        common = {
            "num_columns": self.num_columns,
            "missing": self.takes_missing,
            **reading.privacy_unit,
        }

        def read(low, high):
            for inputs, rows, *owners in reading.unlabelled(self):
                z = self.scaled(inputs[rows], low, high)
                yield z, None, *owners

        def set_range(low, high):
            self.low.assign(low)
            self.high.assign(high)

        def learn_range(release):
            reading.on_failure(lambda: set_range(*self._public))
            middle, half = _middle_and_half(*self._public)
            found = release.range_of(*self.quantiles)
            low, high = (np.float32(middle + half * edge) for edge in found)
            # Far from 0 they may be equal in single precision.
            apart = low < high
            set_range(
                *(
                    np.where(apart, edge, bound)
                    for edge, bound in zip((low, high), self._public)
                )
            )

        def learn(release):
            middle, half = _middle_and_half(*self._range)
            means, scales = release.means_and_scales()
            self.mean.assign(middle + half * means)
            self.scale.assign(half * scales)
            reading.keep(self, release)

        *before, name = self.release_names()
        steps = [
            PlannedRelease(
                name=histograms,
                query=ColumnHistogramQuery(**common),
                read=lambda: read(*self._public),
                learn=learn_range,
            )
            for histograms in before
        ]
        moments = PlannedRelease(
            name=name,
            query=ColumnMomentsQuery(**common),
            read=lambda: read(*self._range),
            learn=learn,
        )
        return [*steps, moments]


def _middle_and_half(low, high):
    half = (high - low) / 2
    return low + half, half


def _shares(quantiles):
    """`quantiles` as a tuple of two shares."""
    try:
        lower, upper = map(float, quantiles)
    except (TypeError, ValueError):
        lower = upper = 0.0
    if not 0 <= lower < upper <= 1:
        checks.refuse(
            "quantiles", quantiles, "None or (lower, upper) within [0, 1]"
        )
    return lower, upper
