import math

import keras
import numpy as np
import scipy.linalg
from keras import ops

_ROWS = 4096


@keras.saving.register_keras_serializable(package="keras_fm")
class DiscriminantProjection(keras.layers.Layer):
    """Directions that tell groups of *public* records apart.

    `adapt` sees public or synthetic features in groups (drawings of one
    shape, crops of one image, ...), forms the scatter within groups Sw and
    between groups Sb, and solves

        Sb u = g (Sw + shrinkage * tr(Sw) / d * I) u,

    Fisher's discriminant with many small groups. The layer then maps

        x -> U^T (x - mean),

    with the `units` directions of largest g, each weighted by
    `sqrt(g / (1 + g))` (the reliability of a direction: variance between
    groups over all variance), and `mean` the public mean. Subtracting a
    public mean is free, and a private layer behind gets the difference
    between records instead of what they all share.

    No private record may be given to `adapt`: what it saw is public from
    then on, and is named in the privacy statement.

    Args:
        units: positive int, directions kept; at most the input's length.
        shrinkage: float > 0.

    Input shape: `(batch, inputs)`. Output shape: `(batch, units)`.

    Raises:
        ValueError: if an argument is outside its range, or the layer is
            called before `adapt`.

    Example:

    ```python
    images, shapes = fm.datasets.pen_strokes.load()
    layer = DiscriminantProjection(100)
    layer.adapt(images.reshape(len(images), -1), shapes,
                description="drawn pen strokes")
    ```

    Source: Fisher 1936; the weights and the centring are ours.
    """

    def __init__(self, units, shrinkage=0.1, description=None, **kwargs):
        kwargs.setdefault("trainable", False)
        super().__init__(**kwargs)
        if not isinstance(units, int) or units <= 0:
            raise ValueError(
                "Received an invalid value for `units`, expected a positive "
                f"integer. Received: units={units}"
            )
        if not (math.isfinite(shrinkage) and shrinkage > 0):
            raise ValueError(
                "`shrinkage` must be a finite number greater than 0. "
                f"Received: shrinkage={shrinkage}"
            )
        self.units = units
        self.shrinkage = float(shrinkage)
        self.description = description
        self.input_spec = keras.layers.InputSpec(ndim=2)

    @property
    def public_data(self):
        """What `adapt` saw, for the privacy statement; `None` before."""
        return self.description

    def build(self, input_shape):
        inputs = input_shape[-1]
        if self.units > inputs:
            raise ValueError(
                "`units` must not exceed the number of inputs. Received: "
                f"units={self.units}, inputs={inputs}"
            )
        for name, shape in (
            ("mean", (inputs,)),
            ("kernel", (inputs, self.units)),
        ):
            weight = self.add_weight(
                name=name, shape=shape, initializer="zeros", trainable=False
            )
            setattr(self, name, weight)

    def adapt(self, features, groups, description):
        """Fits the directions to public records.

        Memory beside `features` is that of three `inputs x inputs` matrices.

        Args:
            features: array `(n, inputs)`, public.
            groups: int array `(n,)`, the group of each record; at least two
                groups, and some group with two records.
            description: str, what the records are; goes into every privacy
                statement of a model with this layer.

        Raises:
            ValueError: on wrong shapes, NaN, too few groups, or no
                description.
        """
        features, groups = np.asarray(features), np.asarray(groups)
        if features.ndim != 2 or groups.shape != features.shape[:1]:
            raise ValueError(
                "`features` must have shape (n, inputs) and `groups` (n,). "
                f"Received: {features.shape} and {groups.shape}"
            )
        if not (isinstance(description, str) and description.strip()):
            raise ValueError(
                "`description` must say what the public records are: it is "
                "part of the privacy statement."
            )
        if not np.all(np.isfinite(features)):
            raise ValueError("`features` must be finite.")
        _, groups, counts = np.unique(
            groups, return_inverse=True, return_counts=True
        )
        if len(counts) < 2 or counts.max() < 2:
            raise ValueError(
                "`groups` must hold at least two groups, and at least one "
                "group of two records."
            )
        if not self.built:
            self.build((None, features.shape[1]))
        mean, kernel = _directions(
            features, groups, counts, self.units, self.shrinkage
        )
        self.mean.assign(mean)
        self.kernel.assign(kernel)
        self.description = (
            f"{description} ({len(features)} records in {len(counts)} groups)"
        )

    def call(self, inputs):
        if self.description is None:
            raise ValueError(
                "DiscriminantProjection has no directions yet: call "
                "`adapt(public_features, groups, description)` first."
            )
        return ops.matmul(inputs - self.mean, self.kernel)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "shrinkage": self.shrinkage,
            "description": self.description,
        }


def _directions(features, groups, counts, units, shrinkage):
    """The public mean `(d,)` and weighted directions `(d, units)`."""
    n, d = features.shape
    sums = np.zeros((len(counts), d))
    total = np.zeros((d, d))
    for start in range(0, n, _ROWS):
        rows = features[start : start + _ROWS].astype(np.float64)
        np.add.at(sums, groups[start : start + _ROWS], rows)
        total += rows.T @ rows
    # sum over groups of n_g m_g m_g^T, from rows sqrt(n_g) m_g.
    scaled = sums / np.sqrt(counts)[:, None]
    between = scaled.T @ scaled
    within = (total - between) / n
    mean = sums.sum(axis=0) / n
    between = between / n - np.outer(mean, mean)
    within[np.diag_indices(d)] += shrinkage * np.trace(within) / d
    g, u = scipy.linalg.eigh(
        between, within, subset_by_index=[d - units, d - 1]
    )
    g, u = np.maximum(g[::-1], 0.0), u[:, ::-1]
    return mean, u * np.sqrt(g / (1 + g))
