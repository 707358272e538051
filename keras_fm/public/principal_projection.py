import math
from functools import partial
from typing import Any

import keras
import numpy as np
import scipy.linalg
from keras import ops

from keras_fm.core.second_moment import signed
from keras_fm.kernel import checks
from keras_fm.public.adapted_layer import AdaptedProjection

# Rows standardised at a time.
_ROWS = 1024
# Share of the largest deviation below which a feature counts as constant.
_TINY = 1e-6


@keras.saving.register_keras_serializable(package="keras_fm")
class PrincipalProjection(AdaptedProjection):
    """Leading directions of public features, scaled by their variance.

    Let `f` be public features with means `m` and deviations `s`. `adapt` solves
    `C u = v u` for the covariance `C` of `(f - m) / s`, and keeps the `units`
    directions of largest variance `v`. The output is

        `v_i**power u_i . ((f - m) / s)`.

    With `power=0` these are principal components, with -1/2 whitened ones.
    Values in between strengthen weak directions, but not so much that
    directions absent from the public data dominate. For photographs and drawn
    scenes -3/8 was best, and -1/4 before a private whitening. The output's norm
    is not bounded: put `NormalizationLayer` after it.

    For n records and d features this is an eigenvalue problem of size min(n,
    d); it takes minutes if both are thousands. With `mixtures=k` the records
    are first replaced by k orthonormal random combinations, which makes the
    size k. `v` and `u` are then those of the combinations. This is good enough
    if `units` is a fair share of n and directions of little variance need not
    be exact.

    The data given to `adapt` must be public or synthetic, because the kernel
    reveals it. `public_data` describes it.

    Source: principal components, Hotelling (1933); random combinations:
    Halko, Martinsson and Tropp, Finding Structure with Randomness, 2011.

    Args:
        units: int >= 1, at most the number of input features.
        power: number in [-1, 0], see above.
        mixtures: `None`, or int >= `units`, see above. Fewer records are used
            as they are.
        seed: int, for the random combinations.
        public_data: `None`, or the description of the data of `adapt`, from the
            config of an adapted layer.

    Input shape: `(..., features)`. Output shape: `(..., units)`.

    Raises:
        ValueError: if an argument is not as above, or the layer is called
            before `adapt`.

    Example:

    >>> features = np.random.default_rng(0).normal(size=(200, 10))
    >>> layer = PrincipalProjection(3)
    >>> layer.adapt(features, description="made-up numbers")
    >>> layer(features).shape
    (200, 3)
    >>> layer.public_data["records"]
    200
    """

    _adapt_call = "adapt(public_features, description=...)"

    def __init__(
        self,
        units: int,
        power: float = -0.25,
        mixtures: int | None = None,
        seed: int = 0,
        public_data: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, public_data, **kwargs)
        self.power = checks.number("power", power, at_least=-1, at_most=0)
        self.mixtures = checks.optional(
            partial(checks.integer, at_least=self.units), "mixtures", mixtures
        )
        self.seed = checks.natural("seed", seed)

    def adapt(self, public_features, description="not stated"):
        """Fits the map to public features.

        Args:
            public_features: array `(n, features)` with more than `units`
                records.
            description: str, names the public data in reports.

        Raises:
            ValueError: if a feature is not finite, or the records differ in
                fewer than `units` directions.
        """
        self._check_description(description)
        x = self._checked(public_features)
        # A copy, on some backends; each has as many bytes as all that follows.
        del public_features
        records, mean = len(x), x.mean(axis=0)
        # Of all at once it would need as much memory as they have.
        parts = np.array_split(x, max(1, x.shape[1] // _ROWS), axis=1)
        deviation = np.concatenate([part.std(axis=0) for part in parts])
        # Constant features are not scaled.
        deviation[deviation <= _TINY * deviation.max()] = 1.0
        rounding = 10 * np.finfo(x.dtype).eps
        if self.mixtures is None or self.mixtures >= len(x):
            found = _leading(x, mean, deviation, self.units, x.dtype)
        else:
            x = _mixed(x, mean, deviation, self.mixtures, self.seed)
            plain = np.zeros(1), np.ones(1)
            found = _leading(x, *plain, self.units, np.float64)
            rounding = max(rounding**2, 10 * np.finfo("float64").eps)
        variance, directions = found
        del x, found
        # A direction that is only rounding must not be scaled up.
        told = int(np.sum(variance > rounding * variance[0]))
        if told < self.units:
            raise ValueError(
                "The public records must differ in at least `units` "
                f"directions by more than rounding. They differ in {told}. "
                f"Received: units={self.units}"
            )
        directions *= variance**self.power
        directions /= deviation[:, None]
        self._assign(signed(directions), mean)
        self._tell(description, records=records)

    def _checked(self, features):
        x = checks.finite("public_features", ops.convert_to_numpy(features))
        self._checked_features(x.shape[1])
        # Sums of integers and half precision would lose digits.
        return x if x.dtype in ("float32", "float64") else x.astype("float64")


def _mixed(x, mean, deviation, mixtures, seed):
    """Orthonormal combinations of the standardised records, with their
    variances: `(mixtures, d)`."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((len(x), mixtures), np.float32)
    # NumPy would compute in float64.
    mixing = scipy.linalg.qr(mixing, overwrite_a=True, mode="economic")[0]
    found = np.zeros((mixtures, x.shape[1]), x.dtype)
    for i in range(0, len(x), _ROWS):
        rows = (x[i : i + _ROWS] - mean) / deviation
        found += mixing[i : i + _ROWS].T @ rows.astype(x.dtype)
    found *= math.sqrt(mixtures / len(x))
    return found


def _leading(x, mean, deviation, units, precision):
    """Largest variances and their directions `(d, units)`.

    Solves the smaller matrix of products, of features or of records, in a
    precision that may exceed that of the features.
    """
    n, d = x.shape
    mean, deviation = mean.astype(x.dtype), deviation.astype(x.dtype)

    def standardised(i, dtype=precision):
        return ((x[i : i + _ROWS] - mean) / deviation).astype(dtype)

    if d <= n:
        products = np.zeros((d, d), precision)
        for i in range(0, n, _ROWS):
            rows = standardised(i)
            products += rows.T @ rows
    else:
        products = np.empty((n, n), precision)
        for i in range(0, n, _ROWS):
            rows = standardised(i)
            for j in range(0, n, _ROWS):
                products[i : i + _ROWS, j : j + _ROWS] = (
                    rows @ standardised(j).T
                )
    last = len(products) - 1
    variance, vectors = scipy.linalg.eigh(
        products / n,
        subset_by_index=(last - units + 1, last),
        overwrite_a=True,
        check_finite=False,
    )
    variance = np.maximum(variance[::-1], 0)
    # NumPy multiplies a reversed view without BLAS.
    vectors = np.ascontiguousarray(vectors[:, ::-1])
    if d > n:
        vectors = vectors.astype(x.dtype)
        directions = np.zeros((d, units), x.dtype)
        for i in range(0, n, _ROWS):
            rows = standardised(i, x.dtype)
            directions += rows.T @ vectors[i : i + _ROWS]
        length = np.linalg.norm(directions, axis=0)
        directions /= np.maximum(length, 1e-30)
        vectors = directions
    return variance, vectors
