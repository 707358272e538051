"""Public bounds, and the maps that make every record obey them.

A sensitivity is a statement about the worst record that the domain admits.
The bounds are constants the user states; reading them from the private
records would already be a release.
"""

import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation

# Features arrive in the precision of the network; a norm that exceeds its
# bound by no more than this is rounding, and is scaled back, not refused.
ROUNDING = {
    np.dtype(np.float64): 1e-9,
    np.dtype(np.float32): 1e-4,
    np.dtype(np.float16): 2e-2,
}


def check_bounds(low, high):
    """Returns `low`, `high` as float64 arrays after checking them.

    Raises:
        ValueError: if a bound is not finite or `low >= high` anywhere.
    """
    low = np.asarray(low, dtype=np.float64)
    high = np.asarray(high, dtype=np.float64)
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise ValueError(
            "Bounds must be finite public constants. "
            f"Received: low={low}, high={high}"
        )
    if not np.all(low < high):
        raise ValueError(
            "Every lower bound must be below its upper bound. "
            f"Received: low={low}, high={high}"
        )
    return low, high


def check_noise(**noise):
    """Refuses noise that is not finite; the error holds no value.

    Raises:
        ValueError: if a number of an array is NaN or infinite.
    """
    for name, values in noise.items():
        checks.finite(name, values, ". At least one is not.")


def check_labels(y, units):
    """Refuses labels of a classifier that no class has.

    Args:
        y: array `(n,)`, `(n, 1)` or `(n, units)`.
        units: int, outputs of the classifier. One is the logit of class 1.

    Raises:
        ValueError: if a class index is not an integer in `[0, units)`, or a
            target is outside `[0, 1]`.
    """
    y = np.asarray(y)
    index = units > 1 and (y.ndim == 1 or y.shape[1:] == (1,))
    if index:
        fits = (y == np.floor(y)) & (y >= 0) & (y < units)
    else:
        fits = (y >= 0) & (y <= 1)
    if not np.all(fits):
        wanted = f"whole numbers in [0, {units})" if index else "in [0, 1]"
        raise ValueError(f"Labels must be {wanted}. At least one is not.")


def class_indices(y, n, classes, columns=None):
    """Whole numbers in `[0, classes)` of `n` records, `(n,)` int64.

    Args:
        y: array `(n,)`, `(n, 1)`, or one-hot `(n, columns)`.
        n: int, the number of records.
        classes: int.
        columns: int, of the one-hot form; `None` is `classes`.

    Raises:
        ValueError: for another shape or other labels. The message carries
            no label.
    """
    y, columns = np.asarray(y), columns or classes
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if len(y) != n:
        raise ValueError(
            "Labels and features must hold the same number of records. "
            f"Received: {len(y)} labels, {n} feature vectors"
        )
    if y.ndim == 2 and y.shape[1] == columns:
        if not np.all((y == 0) | (y == 1)) or not np.all(y.sum(axis=1) == 1):
            raise ValueError(
                "Labels of shape (records, classes) must be one-hot."
            )
        return y.argmax(axis=1)
    if y.ndim != 1:
        raise ValueError(
            f"Labels must have shape (records,) or (records, {columns}). "
            f"Received: shape={y.shape}"
        )
    if not np.all((y >= 0) & (y < classes) & (y == np.floor(y))):
        raise ValueError(
            f"Labels must be whole numbers in [0, {classes}). At least one "
            "label is outside."
        )
    return y.astype(np.int64)


def box_to_ball(x, low, high, norm="l2"):
    """Maps the box [low, high]^d into the unit ball of `norm`.

    `(x - low) / ((high - low) sqrt(d))` for the L2 ball (dPA Eq. 13, Zhang
    et al. 2012), `(x - low) / ((high - low) d)` for the L1 ball.

    Args:
        x: array `(..., d)`.
        low, high: scalars or arrays `(d,)`, public.
        norm: `"l2"` or `"l1"`.

    Returns:
        float64 array of the same shape, inside the unit ball whenever `x`
        is inside the box.
    """
    low, high = check_bounds(low, high)
    x = np.asarray(x, dtype=np.float64)
    d = x.shape[-1]
    return (x - low) / (high - low) / (math.sqrt(d) if norm == "l2" else d)


def checked_features(h, num_features, bound, clip):
    """`project_to_ball` of features of a known number."""
    h = np.asarray(h)
    if h.ndim != 2 or h.shape[1] != num_features:
        raise ValueError(
            f"Features must have shape (records, {num_features}). "
            f"Received: shape={h.shape}"
        )
    return project_to_ball(h, bound, clip=clip)


def project_to_ball(h, bound, clip=False, rounding=None, l1_bound=None):
    """Makes every row of `h` obey its norm bound, in float64.

    This runs last, in the precision that is summed, so no cast or rounding
    before it can push a record past its bound.

    Args:
        h: array `(n, m)`.
        bound: L2 bound on a row.
        clip: whether rows outside are scaled back. If `False` they are an
            error unless they exceed the bound by rounding only.
        rounding: relative excess that counts as rounding; by default that
            of `h.dtype`.
        l1_bound: optional further bound on a row's L1 norm.

    Returns:
        float64 array `(n, m)` with `||h_i||_2 <= bound` (and
        `||h_i||_1 <= l1_bound`).

    Raises:
        ValueError: if a value is NaN or infinite, or a row is outside its
            bound and `clip` is `False`. The message carries no value of
            any record.
    """
    h = np.asarray(h)
    if rounding is None:
        rounding = ROUNDING.get(h.dtype, 2e-2)
    rows = np.array(h, dtype=np.float64, order="C")
    if rows.ndim != 2:
        raise ValueError(
            "Features must have shape (records, features). "
            f"Received: shape={h.shape}"
        )
    # Squares may overflow; the norm is then infinite, and refused.
    with np.errstate(over="ignore"):
        norms = summation.lengths(rows)
    if not np.all(np.isfinite(norms)):
        raise ValueError(
            "Features must be finite: at least one record has a NaN, an "
            "infinite or an overflowing feature. Clean the records, or "
            "clip the inputs to public bounds, before the release."
        )
    _scale_rows(rows, norms, bound, clip, rounding, "L2")
    if l1_bound is not None:
        norms = summation.lengths(rows, "l1")
        _scale_rows(rows, norms, l1_bound, clip, rounding, "L1")
    return rows


def _scale_rows(rows, norms, bound, clip, rounding, name):
    outside = norms > bound
    if not outside.any():
        return
    if not clip and np.any(norms > bound * (1 + rounding)):
        raise ValueError(
            f"At least one record has features outside the public {name} "
            f"bound {bound:g}. Put `keras_fm.layers.NormalizationLayer` "
            "before the private layer, or pass `clip=True` to scale such "
            "records back."
        )
    # A few ulp inside, so that rounding of the product does not exceed it.
    shrink = bound * (1 - 1e-15) / norms[outside]
    rows[outside] *= shrink[:, None]
