from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core.configured_layer import ConfiguredLayer
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks

_MODES = ("unit", "ball", "box", "batch")
_NORMS = ("l2", "l1", "linf")


@keras.saving.register_keras_serializable(package="keras_fm")
class NormalizationLayer(ConfiguredLayer):
    """Scales every record to norm 1 at most, as sensitivities require.

    Modes:

    * `"unit"` (default without `bounds`): each record divided by its norm;
      zero stays zero.
    * `"ball"`: each record scaled back to norm 1 only if it is longer.
    * `"box"` (default with `bounds`): maps public bounds `low <= x <= high`
      into the ball, `(x - low) / ((high - low) sqrt(d))` for `"l2"`; values
      outside are clipped. This is dPA's Eq. 13 with public constants instead of
      the data's minimum and maximum.
    * `"batch"`: the papers' form (dPA Eq. 13; with `norm="linf"` AdLM's dense
      form). It uses each feature's minimum and maximum over the batch, at
      inference too. It mixes records, so a model with a proven guarantee
      refuses it.

    `"unit"`, `"ball"` and `"box"` treat every record on its own: they use no
    privacy.

    Args:
        bounds: `None`, or `(low, high)`: scalars, or arrays of one record's
            shape. Public constants, never computed from private records.
        norm: `"l2"`, `"l1"` or `"linf"`, over all axes but the first.
        mode: see above.

    Input and output shape: `(batch, ...)`.

    Raises:
        ValueError: if an argument is unknown, `bounds` is missing for
            `"box"`, or bounds are not finite with low < high.

    Example:

    >>> layer = NormalizationLayer(bounds=(0, 255))
    >>> y = layer(np.full((1, 4), 255.0))   # the corner has norm 1
    """

    relevance_rule = "same_entry"

    def __init__(
        self,
        bounds: Any = None,
        norm: str = "l2",
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if mode is None:
            mode = "unit" if bounds is None else "box"
        checks.one_of("mode", mode, _MODES)
        checks.one_of("norm", norm, _NORMS)
        if (bounds is not None) != (mode == "box"):
            raise ValueError(
                '`bounds=(low, high)` belongs to mode="box". Received: '
                f"mode={mode!r}, bounds={bounds}"
            )
        if bounds is not None:
            low, high = bounds_lib.checked_pair("bounds", bounds)
            bounds = (low.tolist(), high.tolist())
        self.bounds, self.norm, self.mode = bounds, norm, mode

    @property
    def depends_on_data(self):
        """Whether the layer mixes records."""
        return self.mode == "batch"

    def call(self, inputs):
        # Half precision overflows in the squares of a norm.
        wide = "float64" if self.compute_dtype == "float64" else "float32"
        x = ops.cast(inputs, wide)
        axes = tuple(range(1, len(inputs.shape)))
        if self.mode in ("unit", "ball"):
            norm = self._norm(x, axes)
            if self.mode == "ball":
                x = x / ops.maximum(norm, 1.0)
            else:
                x = ops.where(norm > 0, x / ops.where(norm > 0, norm, 1.0), x)
            return ops.cast(x, self.compute_dtype)
        if self.mode == "box":
            low = np.asarray(self.bounds[0], wide)
            high = np.asarray(self.bounds[1], wide)
        else:
            low, high = ops.min(x, axis=0), ops.max(x, axis=0)
            # Constant features would divide by zero.
            high = ops.maximum(high, low + 1e-6)
        x = ops.clip((x - low) / (high - low), 0.0, 1.0)
        # The norm of the farthest corner of [0, 1]^d.
        d = float(np.prod(inputs.shape[1:]))
        x = x / {"l2": d**0.5, "l1": d, "linf": 1.0}[self.norm]
        return ops.cast(x, self.compute_dtype)

    def _norm(self, x, axes):
        if self.norm == "l2":
            return ops.sqrt(ops.sum(x * x, axis=axes, keepdims=True))
        if self.norm == "l1":
            return ops.sum(ops.abs(x), axis=axes, keepdims=True)
        return ops.max(ops.abs(x), axis=axes, keepdims=True)

    def compute_output_shape(self, input_shape):
        return input_shape
