import keras
import numpy as np
from keras import ops

from keras_fm.datasets.behavior_windows import column_range
from keras_fm.papers.paper_model import OfWindows
from keras_fm.papers.pcdbn.private_cdbn import PrivateCDBN
from keras_fm.public.normalization_layer import NormalizationLayer

_CONDITIONS = ("social", "events", "members")
# Bases as printed, time across.
_PRINTED = ((12, 4), (6, 2))


@keras.saving.register_keras_serializable(package="keras_fm")
class BehaviorCDBN(OfWindows, PrivateCDBN):
    """pCDBN's prediction of a person's behaviour from a window of records.

    Phan, Wu and Dou, Machine Learning 2017. A record is one (user, time)
    window. `keras_fm.datasets.HealthNetwork.windows(history=11)` makes
    windows of twelve time steps; the paper has four. A window's attributes
    are the visible units, an image of attributes x time. Friends' influence
    and environmental events condition it. The output is one logit: does the
    behaviour happen?

    In the published and the non-private form, the conditions act through
    dynamic biases of the first RBM's hidden and visible units (Eqs. 25 and
    26). Such weights can only be trained on records, so the proven form has
    none: its output layer gets the conditions, and the window itself, beside
    the maps.

    Args:
        columns: dict of slices or `(start, stop)` pairs of the window's
            features. `"present"` and `"history"` are the visible units.
            `"social"`, `"events"` and, if given, `"members"` (the behaviour
            of others at the window's steps) are the conditions.
        bounds: public `(low, high)` of the window's features.
        maps: `None` is the paper's two layers of 10 bases. Published: 12
            attributes x 4 steps and 6 x 2, as printed. Proven: 4 x 12 and
            2 x 6.
        padding: `"same"`; with less the second layer does not fit.
        units, pooling, dense, guarantee and others: see `PrivateCDBN`; the
            published form's `dropout` is 0.5 here, as printed.

    Input shape: `(batch, features)`. Output shape: `(batch, units)`.

    Example:

    ```python
    windows = fm.datasets.load("health_network").windows(history=11)
    train, test = windows.split(0.8)
    model = fm.models.BehaviorCDBN.of(train)
    ```
    """

    def __init__(
        self,
        input_shape,
        columns,
        bounds,
        units=1,
        maps=None,
        dense=0,
        padding="same",
        guarantee="proven",
        **kwargs,
    ):
        columns = {name: column_range(part) for name, part in columns.items()}
        self._columns = columns
        if maps is None:
            sizes = ((4, 12), (2, 6)) if guarantee == "proven" else _PRINTED
            maps = tuple((10, size) for size in sizes)
        super().__init__(
            input_shape,
            units=units,
            maps=maps,
            dense=dense,
            bounds=bounds,
            padding=padding,
            guarantee=guarantee,
            **kwargs,
        )

    _dropout = 0.5

    def _visible(self, inputs, bounds):
        window = NormalizationLayer(bounds, "linf", name="box")(inputs)
        image = WindowImage(self._columns, name="image")(window)
        parts = [self._columns.get(name) for name in _CONDITIONS]
        parts = [part for part in parts if part and part[1] > part[0]]
        if self._proven:
            return image, window
        if not parts:
            return image, None
        return image, ColumnSlice(parts, name="conditions")(window)

    def _output(self, units, outputs, conditions):
        if not self._proven:
            return super()._output(units, outputs, conditions)
        # The window is centred and gets unit norm, like the maps.
        middle = keras.layers.Rescaling(2.0, offset=-1.0, name="middle")
        window = NormalizationLayer(name="unit_window")(middle(conditions))
        both = keras.layers.Concatenate(name="beside")([outputs, window])
        both = NormalizationLayer(name="unit_both")(both)
        return self._head(units)(both)

    def reconstruct(self, x):
        """The attributes, reconstructed from the first RBM's maps in the
        public bounds, NumPy `(n, attributes, steps)`, the past on the left."""
        image = self.get_layer("image")
        features = (1, *self.input_shape[1:])
        low, high = (
            ops.convert_to_numpy(
                image(np.broadcast_to(np.asarray(b, "float32"), features))
            )[..., 0]
            for b in self._arguments["bounds"]
        )
        visible = self.energy_model(1).predict(x, verbose=0)[..., 0]
        return low + np.clip(visible, 0.0, 1.0) * (high - low)


@keras.saving.register_keras_serializable(package="keras_fm")
class WindowImage(keras.layers.Layer):
    """A window's attributes as an image of attributes x time, the past on
    the left.

    Args:
        columns: dict with the `(start, stop)` of `"present"` and optionally
            of `"history"`: the attributes one step before, two steps, ....

    Input shape: `(batch, features)`. Output shape: `(batch, attributes,
    steps, 1)`.
    """

    def __init__(self, columns, **kwargs):
        super().__init__(**kwargs)
        self._columns = tuple(
            (name, column_range(columns[name]))
            for name in ("present", "history")
            if name in columns
        )

    def call(self, inputs):
        parts = [inputs[:, a:b] for _, (a, b) in self._columns]
        attributes = parts[0].shape[-1]
        rows = ops.concatenate(parts, axis=-1)
        rows = ops.reshape(rows, (-1, rows.shape[-1] // attributes, attributes))
        return ops.transpose(ops.flip(rows, axis=1), (0, 2, 1))[..., None]

    def compute_output_shape(self, input_shape):
        sizes = [b - a for _, (a, b) in self._columns]
        return (input_shape[0], sizes[0], sum(sizes) // sizes[0], 1)

    def get_config(self):
        return {**super().get_config(), "columns": dict(self._columns)}


@keras.saving.register_keras_serializable(package="keras_fm")
class ColumnSlice(keras.layers.Layer):
    """Some columns of a window, side by side.

    Args:
        parts: tuple of `(start, stop)`.

    Input shape: `(batch, features)`. Output shape: `(batch, columns)`.
    """

    def __init__(self, parts, **kwargs):
        super().__init__(**kwargs)
        self._slices = tuple(column_range(part) for part in parts)

    def call(self, inputs):
        return ops.concatenate([inputs[:, a:b] for a, b in self._slices], -1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], sum(b - a for a, b in self._slices))

    def get_config(self):
        return {**super().get_config(), "parts": self._slices}
