import collections
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
        center: bool, whether the public mean is subtracted.
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
        center: bool = True,
        public_data: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, public_data, **kwargs)
        self.shrinkage = checks.positive("shrinkage", shrinkage)
        self.center = checks.boolean("center", center)

    def adapt(self, public_features, groups=None, description="not stated"):
        """Fits the map to public features and their groups.

        Args:
            public_features: array `(n, features)`; or, with `groups=None`,
                an iterable of batches `(features, groups)` (a list, a
                generator, a `tf.data.Dataset`), read once. A group may
                spread over batches. Memory holds the sums of two `features
                x features` matrices and one mean for each group.
            groups: array `(n,)` of integers, equal for records of a group.
            description: str, names the public data in reports.

        Raises:
            ValueError: if shapes disagree, a feature is not finite, or there
                are fewer than two groups. (A `LinAlgError`, a subclass, if no
                group varies inside.)
        """
        self._check_description(description)
        if groups is not None:
            public_features = [(public_features, groups)]
        total, means, counts = _group_sums(public_features)
        self._checked_features(len(total))
        kernel, mean = self._solve(total, means, counts)
        if not self.center:
            mean = np.zeros_like(mean)
        self._assign(kernel, mean)
        self._tell(description, records=int(counts.sum()), groups=len(counts))

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


def _group_sums(batches):
    """Sums over public records, in float64.

    Returns:
        `(total, means, counts)`: `sum f f^T` `(d, d)`, the mean of each
        group `(groups, d)` and its size `(groups,)`.
    """
    total = None
    sums, counts = collections.defaultdict(float), collections.Counter()
    for features, groups in batches:
        features, groups = _checked_batch(features, groups)
        if total is None:
            total = np.zeros((features.shape[1],) * 2)
        for i in range(0, len(features), _ROWS):
            rows = features[i : i + _ROWS].astype(np.float64)
            total += rows.T @ rows
            order = np.argsort(groups[i : i + _ROWS], kind="stable")
            names, starts, sizes = np.unique(
                groups[i : i + _ROWS][order],
                return_index=True,
                return_counts=True,
            )
            parts = np.add.reduceat(rows[order], starts, axis=0)
            for name, part, size in zip(names.tolist(), parts, sizes):
                sums[name] += part
                counts[name] += int(size)
    if len(sums) < 2:
        raise ValueError(
            f"Public data must hold at least two groups. Received: {len(sums)}"
        )
    counts = np.array(list(counts.values()))
    return total, np.stack(list(sums.values())) / counts[:, None], counts


def _checked_batch(features, groups):
    features = ops.convert_to_numpy(features)
    groups = ops.convert_to_numpy(groups)
    if features.ndim != 2 or groups.shape != (len(features),):
        raise ValueError(
            "Public features must have shape (n, features) and groups (n,). "
            f"Received: {features.shape} and {groups.shape}"
        )
    return checks.finite("public_features", features), groups
