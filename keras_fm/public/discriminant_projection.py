import math
from typing import Any

import keras
import numpy as np
import scipy.linalg
from keras import ops

from keras_fm.core.second_moment import signed
from keras_fm.kernel import checks
from keras_fm.public.adapted_layer import AdaptedProjection

# Rows turned into float64 at a time.
_ROWS = 4096


@keras.saving.register_keras_serializable(package="keras_fm")
class DiscriminantProjection(AdaptedProjection):
    """A linear map fitted to public groups, such as drawings of one shape.

    It keeps what differs between groups and damps what varies inside one.
    Let `f` be public features, `m` their group means and `c` the overall mean.
    `adapt` forms the scatter matrices `Sw = sum (f - m)(f - m)^T` and `Sb = sum
    (m - c)(m - c)^T`, both over records, and solves

        `Sb u = g (Sw + shrinkage * trace(Sw) / d * I) u`.

    The output is `w_i u_i . (f - c)` for the `units` largest `g_i`, with
    `u` of length 1 in the metric on the right and `w = sqrt(g / (1 + g))`.
    Subtracting the public mean removes the part that all records share, so the
    bounded norm is left for differences. The output's norm is not bounded: put
    `NormalizationLayer` after it.

    The data given to `adapt` must be public or synthetic, because the kernel
    reveals it. `public_data` describes it.

    Source: Fisher's linear discriminant (1936), with shrinkage.

    Args:
        units: int >= 1, at most the number of input features.
        shrinkage: number > 0, share of the mean within-group variance that
            is added to every direction.
        public_data: `None`, or the description of the data of `adapt`, from the
            config of an adapted layer.

    Input shape: `(..., features)`. Output shape: `(..., units)`.

    Raises:
        ValueError: if an argument is not as above, or the layer is called
            before `adapt`.

    Example:

    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(np.arange(50), 4)
    >>> features = rng.normal(size=(50, 10))[groups]
    >>> features = features + 0.1 * rng.normal(size=(200, 10))
    >>> layer = DiscriminantProjection(3)
    >>> layer.adapt(features, groups, description="made-up clusters")
    >>> layer(features).shape
    (200, 3)
    >>> layer.public_data["records"], layer.public_data["groups"]
    (200, 50)
    """

    _adapt_call = "adapt(public_features, groups, description=...)"
    _told = ("records", "groups")

    def __init__(
        self,
        units: int,
        shrinkage: float = 0.1,
        public_data: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, public_data, **kwargs)
        self.shrinkage = checks.positive("shrinkage", shrinkage)

    def adapt(self, public_features, groups, description="not stated"):
        """Fits the map to public features and their groups.

        Args:
            public_features: array `(n, features)`.
            groups: array `(n,)` of integers, equal for records of a group.
            description: str, names the public data in reports.

        Raises:
            ValueError: if shapes disagree, a feature is not finite, or there
                are fewer than two groups. (A `LinAlgError`, a subclass, if no
                group varies inside.)
        """
        self._check_description(description)
        x = ops.convert_to_numpy(public_features)
        groups = ops.convert_to_numpy(groups)
        if x.ndim != 2 or groups.shape != (len(x),):
            raise ValueError(
                "Public features must have shape (n, features) and groups "
                f"(n,). Received: {x.shape} and {groups.shape}"
            )
        checks.finite("public_features", x)
        d = self._checked_features(x.shape[1])
        names, places = np.unique(groups, return_inverse=True)
        if len(names) < 2:
            raise ValueError(
                f"`groups` needs at least two groups. Received: {len(names)}"
            )
        total, means = np.zeros((d, d)), np.zeros((len(names), d))
        for i in range(0, len(x), _ROWS):
            rows = x[i : i + _ROWS].astype(np.float64)
            total += rows.T @ rows
            np.add.at(means, places[i : i + _ROWS], rows)
        counts = np.bincount(places)
        means /= counts[:, None]
        self._assign(*self._solve(total, means, counts))
        self._tell(description, records=len(x), groups=len(names))

    def _solve(self, total, means, counts):
        """`(kernel, mean)` from `sum f f^T`, group means and sizes."""
        d = len(total)
        weighted = np.sqrt(counts)[:, None] * means
        of_means = weighted.T @ weighted
        mean = counts @ means / counts.sum()
        within = total - of_means
        of_means -= counts.sum() * np.outer(mean, mean)
        spread = np.trace(within) / d
        within[np.diag_indices(d)] += self.shrinkage * spread
        ratio, directions = scipy.linalg.eigh(
            of_means,
            within,
            subset_by_index=(d - self.units, d - 1),
            overwrite_a=True,
            overwrite_b=True,
            check_finite=False,
        )
        ratio = np.maximum(ratio[::-1], 0)
        directions = signed(directions[:, ::-1])
        # Directions are of length 1 for the *sum* over records; in units
        # of one record's deviation outputs have a size near 1.
        size = math.sqrt(counts.sum())
        return directions * (size * np.sqrt(ratio / (1 + ratio))), mean
