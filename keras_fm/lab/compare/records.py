"""The records of a comparison, and which of them are held out."""

import dataclasses

import numpy as np

from keras_fm import datasets
from keras_fm.lab.compare import table_file

_FEWEST = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """The two parts, and how many classes there are.

    Attributes:
        x, x_test: float32 arrays `(n, ...)`.
        y, y_test: int labels.
        classes: int.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int

    def first(self, count):
        """With so many training records; 0 for all."""
        count = count or len(self.x)
        found = dataclasses.replace(self, x=self.x[:count], y=self.y[:count])
        if len(found.x) < _FEWEST:
            raise ValueError(
                f"A comparison needs at least {_FEWEST} training records, of "
                f"which a fifth tunes the rivals. Received: {len(found.x)}"
            )
        return found


def load(spec):
    """The `Records` that a `Comparison` names."""
    if table_file.is_table(spec.dataset):
        return of_table(spec)
    loaded = datasets.load(spec.dataset)
    if not isinstance(loaded, tuple):
        raise ValueError(
            f"{spec.dataset!r} is not a data set of images. `keras-fm "
            "reproduce` compares behaviour prediction; see docs/dpa.md."
        )
    return of_arrays(*loaded)


def of_table(spec):
    """Those of a table in a file, of which a public schema is known."""
    parts = [
        table_file.read(path, spec.columns, spec.target)
        for path in (spec.dataset, spec.test)
        if path
    ]
    x, y, classes = parts[0]
    test = parts[1][:2] if spec.test else None
    return of_arrays((x, y), test, classes=classes)


def of_arrays(data, test=None, *, columns=None, classes=None):
    """Those of arrays or data frames.

    Args:
        data: `(x, y)`.
        test: `(x, y)`, or `None` for a fifth of the records.
        columns: see `keras_fm.estimators.PrivateClassifier`.
        classes: list of the labels that there may be, or `None`: labels are
            0, 1, ..., or any others, which are then sorted.
    """
    parts = [data] if test is None else [data, test]
    xs = [_numbers(x, columns) for x, _ in parts]
    ys = [np.asarray(y).reshape(-1) for _, y in parts]
    for x, y in zip(xs, ys):
        if len(x) != len(y) or x.ndim < 2:
            raise ValueError(
                "`data` and `test` must be pairs (x, y) of as many records as "
                f"labels. Received: x.shape={x.shape}, y.shape={y.shape}"
            )
    ys, count = _labels(ys, classes)
    if test is None:
        order = np.random.default_rng(0).permutation(len(ys[0]))
        cut = len(order) * 4 // 5
        (x,), (y,) = xs, ys
        xs = x[order[:cut]], x[order[cut:]]
        ys = y[order[:cut]], y[order[cut:]]
    return Records(x=xs[0], y=ys[0], x_test=xs[1], y_test=ys[1], classes=count)


def _numbers(x, columns):
    if columns is not None:
        return table_file.encoded(x, columns)
    try:
        return np.asarray(x).astype(np.float32)
    except (TypeError, ValueError):
        pass
    # Outside of `except`: NumPy's words show a value of a record.
    raise ValueError(
        "`x` must hold numbers. For columns of words, list the words in "
        '`columns={"work": ["farm", "office"]}`.'
    )


def _labels(ys, classes):
    """Numbers of the classes, and how many there are."""
    if classes is None and all(y.dtype.kind in "iu" for y in ys):
        if min(y.min() for y in ys) >= 0:
            found = [y.astype(np.int64) for y in ys]
            return found, max(2, int(max(y.max() for y in found)) + 1)
    known = [str(v) for v in (classes or np.unique(np.concatenate(ys)))]
    places = {label: i for i, label in enumerate(known)}
    found = [np.array([places.get(str(v).strip(), -1) for v in y]) for y in ys]
    if len(known) > len({*known}) or min(y.min() for y in found) < 0:
        raise ValueError(
            "`y` must hold labels of `classes`, each of which is named once. "
            "At least one is not."
        )
    if len(known) > max(100, len(ys[0]) // 5):
        raise ValueError(
            "`y` must hold classes; a comparison counts right predictions. "
            "Numbers are predicted by `keras_fm.estimators.PrivateRegressor`."
        )
    return found, max(2, len(known))
