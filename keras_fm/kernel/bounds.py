"""Public bounds, and the maps that make every record obey them.

A sensitivity is a statement about the worst record that the domain admits.
The user states the bounds as constants. To compute them from the private
records would already be a release.
"""

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.access import columns

# Features arrive in the precision of the network. A norm that exceeds its bound
# by no more than this is due to rounding: it is scaled back, not refused.
ROUNDING = {
    np.dtype(np.float64): 1e-9,
    np.dtype(np.float32): 1e-4,
    np.dtype(np.float16): 2e-2,
}


def checked_pair(name, bounds):
    """`check_bounds` of an argument `(low, high)`.

    Raises:
        ValueError: if it is not a pair, or `check_bounds` refuses it.
    """
    try:
        low, high = bounds
    except (TypeError, ValueError):
        checks.refuse(
            name,
            bounds,
            "`(low, high)`, two numbers or two arrays; a pair for each column "
            "is not accepted",
        )
    return check_bounds(low, high)


def check_bounds(low, high):
    """Returns `low`, `high` as float64 arrays after checking them.

    Raises:
        ValueError: if a bound is not a finite number, or `low >= high`
            anywhere.
    """
    low, high = _numbers("low", low), _numbers("high", high)
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


def _numbers(name, value):
    """`value` as float64. Text and dates, which NumPy would turn into numbers,
    are refused."""
    try:
        found = np.asarray(value)
        if found.dtype.kind not in tuple("USTMm"):
            return found.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(
        f"Bounds must be finite public numbers. Received: {name}={value!r}"
    )


# Advice for labels that are words.
NUMBER_THE_CLASSES = (
    'Name the classes in a public list, `classes = ["no", "yes"]`, and pass '
    "their places in it, `y = np.array([classes.index(v) for v in y])`."
)


def check_numbers(kind):
    """Refuses a dtype of labels that does not hold ordered numbers."""
    kind = np.dtype(kind)
    if kind.kind in "cMmOSU":
        advice = f" {NUMBER_THE_CLASSES}" if kind.kind in "OSU" else ""
        raise ValueError(
            "Labels must be numbers or truth values, not text, dates or "
            f"complex numbers.{advice} Received: dtype={kind}"
        )


def target_bounds(name, bounds, outputs):
    """Public bounds of every output as plain pairs `((low, high), ...)`.

    Args:
        name: of the argument, for the error.
        bounds: two numbers for all outputs, or one pair of them for each.
        outputs: int.

    Raises:
        ValueError: for anything else, NaN, infinity, `low >= high`, or
            bounds so far apart or so close that floats cannot hold a map
            between them and [-1, 1].

    Example:

    >>> target_bounds("target_bounds", (0, 5), 2)
    ((0.0, 5.0), (0.0, 5.0))
    """
    found = None
    if isinstance(bounds, tuple | list | np.ndarray):
        try:
            found = _numbers(name, bounds)
        except ValueError:
            pass
    if found is not None and found.shape == (2,):
        found = np.tile(found, (outputs, 1))
    if found is None or found.shape != (outputs, 2):
        checks.refuse(
            name,
            bounds,
            "public numbers `(low, high)`, for all outputs, or one such pair "
            f"for each of {outputs} output(s)",
        )
    with np.errstate(over="ignore"):
        low, high = check_bounds(found[:, 0], found[:, 1])
        size = np.abs(found).max(axis=1)
        fits = (size <= 1e30) & (high - low >= 1e-12 * size + 1e-30)
    if not np.all(fits):
        checks.refuse(
            name,
            bounds,
            "within 1e30, and further apart than rounding",
        )
    return tuple((float(a), float(b)) for a, b in found)


def numbers(y, n, bounds, clip=False):
    """Numbers inside public bounds, mapped to [-1, 1], `(n, outputs)`.

    The map is (y - centre) / half in float64, cut at -1 and 1. However it
    rounds, its result *is* the target, and lies inside.

    Args:
        y: array `(n,)` or `(n, 1)` for one output, or `(n, outputs)`.
        n: int, the number of records.
        bounds: see `target_bounds`.
        clip: whether numbers outside are moved to their bound instead of
            refused.

    Raises:
        ValueError: for another shape, a number that is not finite, or one
            outside its bounds by more than the rounding of `y.dtype`. The
            message carries no number of a record.
    """
    y, outputs = np.asarray(y), len(bounds)
    if y.ndim == 1 and outputs == 1:
        y = y[:, None]
    check_count("targets", y, n)
    if y.shape != (n, outputs):
        shapes = "(records,) or " if outputs == 1 else ""
        raise ValueError(
            f"Targets must have shape {shapes}(records, {outputs}). "
            f"Received: shape={y.shape}"
        )
    if y.dtype.kind not in "biuf":
        raise ValueError(f"Targets must be numbers. Received: dtype={y.dtype}")
    low, high = np.array(bounds, np.float64).T
    precise = y.astype(np.float64)
    checks.all_finite(Targets=precise)
    rounding = 2 * np.finfo(y.dtype).eps if y.dtype.kind == "f" else 1e-15
    slack = rounding * np.maximum(np.abs(low), np.abs(high))
    outside = (precise < low - slack) | (precise > high + slack)
    if not clip and np.any(outside):
        raise ValueError(
            f"Targets must be within their public bounds {bounds}. At least "
            "one is outside. Give wider `target_bounds`, from what is known "
            "without the records, or pass `clip=True` to move such targets "
            "to their bound."
        )
    half = (high - low) / 2
    return np.clip((precise - low) / half - 1, -1.0, 1.0)


def check_count(what, y, n):
    if len(y) != n:
        raise ValueError(
            f"{what.title()} and features must hold the same number of "
            f"records. Received: {len(y)} {what}, {n} feature vectors"
        )


def class_indices(y, n, classes, columns=None):
    """Whole numbers in `[0, classes)` of `n` records, `(n,)` int64.

    Args:
        y: array `(n,)`, `(n, 1)`, or one-hot `(n, columns)`.
        n: int, the number of records.
        classes: int.
        columns: int, of the one-hot form; `None` means `classes`.

    Raises:
        ValueError: for another shape or other labels. The message carries
            no label.
    """
    y, columns = np.asarray(y), columns or classes
    check_numbers(y.dtype)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    check_count("labels", y, n)
    if y.ndim == 2 and y.shape[1] == columns:
        if not np.all((y == 0) | (y == 1)) or not np.all(y.sum(axis=1) == 1):
            raise ValueError(
                "Labels of shape (records, classes) must be one-hot. If a "
                "record has several labels, build the private layer with "
                '`loss="binary_cross_entropy"`, or a private network with '
                '`loss="binary_crossentropy"`.'
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


def checked_features(h, num_features, bound, clip, l1_bound=None):
    """`project_to_ball` for features of a known length."""
    h = columns.as_numbers(h, "features")
    checks.shape("Features", h.shape, "records", num_features)
    return project_to_ball(h, bound, clip=clip, l1_bound=l1_bound)


def project_to_ball(h, bound, clip=False, l1_bound=None):
    """Makes every row of `h` obey its norm bound, in float64.

    This runs last, in the precision of the sums. So no cast or rounding
    before it can push a record past its bound.

    Args:
        h: array `(n, m)`.
        bound: L2 bound on a row.
        clip: whether rows outside are scaled back. If `False` they are an
            error, unless they exceed the bound by the rounding of `h.dtype`
            only.
        l1_bound: optional further bound on a row's L1 norm.

    Returns:
        float64 array `(n, m)` with `||h_i||_2 <= bound` (and
        `||h_i||_1 <= l1_bound`).

    Raises:
        ValueError: if a value is NaN or infinite, or a row is outside its
            bound and `clip` is `False`. The message carries no value of
            any record.
    """
    h = columns.as_numbers(h, "features")
    rounding = ROUNDING.get(h.dtype, 2e-2)
    rows = np.array(h, dtype=np.float64, order="C")
    checks.shape("Features", h.shape, "records", "features")
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


def share_within(rows, h):
    """How long the rows of `project_to_ball` are, over those it got, `(n, 1)`;
    1 if only their rounding was removed."""
    rounding = ROUNDING.get(np.asarray(h).dtype, 2e-2)
    before = summation.lengths(np.array(h, dtype=np.float64, order="C"))
    share = summation.lengths(rows) / np.maximum(before, np.finfo(float).tiny)
    return np.where(share < 1 - rounding, share, 1.0)[:, None]


def _scale_rows(rows, norms, bound, clip, rounding, name):
    outside = norms > bound
    if not outside.any():
        return
    if not clip and np.any(norms > bound * (1 + rounding)):
        norm = '(norm="l1")' if name == "L1" else ""
        raise ValueError(
            f"At least one record has features outside the public {name} "
            f"bound {bound:g}. Put `keras_fm.layers.NormalizationLayer{norm}` "
            "before the private layer, or pass `clip=True` to scale such "
            "records back."
        )
    # A few ulp inside, so that rounding cannot exceed the bound.
    shrink = bound * (1 - 1e-15) / norms[outside]
    rows[outside] *= shrink[:, None]
