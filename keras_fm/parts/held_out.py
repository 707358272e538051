"""Whether validation data are what they should be: other records."""

import itertools

import keras
import numpy as np

from keras_fm.kernel.reads import columns
from keras_fm.parts import model_inputs

# Steps that NumPy may take to see whether two views overlap.
_WORK = 100_000
# Rows compared at a time.
_ROWS = 4096
# Of the private rows, how many must be different ones for a match to mean
# that a record was taken and not that records look alike.
_DISTINCT = 0.95
# Batches of a data set that are looked at.
_BATCHES = 16


def check_fit(arguments, model):
    """Refuses what a fit on a release would show of the records that the fit
    itself was given, whatever the release was of.

    Args:
        arguments: of `fit`.
        model: that is fitted.

    Raises:
        ValueError: see `check_held_out`.
    """
    if arguments.get("validation_split"):
        raise ValueError(
            "`validation_split` would hold out records of which the release "
            "was made. Split first, release the training part, and fit "
            "`validation_data=`. Received: validation_split="
            f"{arguments['validation_split']}"
        )
    shown = arguments.get("validation_data")
    check_held_out(shown, given(arguments), model, "x of this fit")


def given(arguments):
    """The records that a fit was given: x, or `(x, y)`."""
    x, y = arguments.get("x"), arguments.get("y")
    return x if y is None else (x, y)


def check_held_out(validation_data, data, model=None, name="`data`"):
    """Refuses validation data that are the private records.

    What a fit shows of them would be a function of private records that no
    statement covers. Rows are compared where nearly all private ones are
    different: a table of few different rows is no sign of anything. Of a
    `tf.data.Dataset`, `PyDataset` or `DataLoader` the first batches are
    compared, and where a `tf.data.Dataset` or `DataLoader` comes from. Records
    that were changed, and those of generators, are not recognised.

    Args:
        validation_data: as `fit` takes it: x, `(x, y)`, `(x, y, weights)`
            or a data set; or `None`.
        data: the private records: x, `(x, y)` or a data set; or `None`.
        model: whose inputs the arrays of x are, where there are several.
        name: of the private records, for errors.

    Raises:
        ValueError: if they are the same object, share memory, or have most
            rows in common.

    Example:

    >>> x, y = np.random.normal(size=(10, 3)), np.zeros(10)
    >>> check_held_out((x[8:], y[8:]), (x[:8], y[:8]))
    >>> check_held_out((x[8:], y[8:]), (x, y))
    Traceback (most recent call last):
    ...
    ValueError: `validation_data` holds private records: it shares memory ...
    """
    reason = private_because(validation_data, data, model, name)
    if reason is not None:
        raise ValueError(
            f"`validation_data` holds private records: {reason}. Metrics on "
            "them would be a function of private records that no statement "
            "covers. Pass held-out or public records, or ask under the same "
            "ledger after `fit`: "
            "`keras_fm.evaluation.private_evaluate(model, data, "
            "ledger=private.ledger, share=...)`."
        )


def private_because(shown, data, model=None, name="`data`"):
    """Why records that are to be shown are private ones, in words; `None` if
    they are not known to be.

    Args:
        shown, data, model, name: see `check_held_out`.
    """
    if shown is None or data is None:
        return None
    if shown is data:
        return f"it is {name}"
    if _sources(shown) & _whole_sources(data):
        return f"it is made of what {name} is made of"
    (shown, labels), (private, others) = (
        _arrays(_first_of(v), model) for v in (shown, data)
    )
    for a in (*shown, *labels):
        if any(_overlap(a, b) for b in (*private, *others)):
            return f"it shares memory with {name}"
    if shown and len(shown) == len(private):
        return _in_rows(shown, private, name)
    return None


# Data sets of TensorFlow that hand on all records of others as they are.
_WHOLE = {
    "AssertCardinalityDataset",
    "BatchDataset",
    "CacheDataset",
    "ConcatenateDataset",
    "GlobalShuffleDataset",
    "OptionsDataset",
    "PaddedBatchDataset",
    "ParallelBatchDataset",
    "PrefetchDataset",
    "RebatchDataset",
    "ShuffleDataset",
    "UnbatchDataset",
}


def _sources(data, only=None):
    """Ids of a data set and of those it is made of.

    Args:
        data: any data; what is no data set is made of itself.
        only: `None`, or the kinds that are looked into.
    """
    found = {id(data)}
    kind = type(data).__name__.strip("_")
    if columns.is_loader(data):
        found.add(id(data.dataset))
    elif hasattr(data, "_inputs") and (only is None or kind in only):
        for part in data._inputs():
            found |= _sources(part, only)
    return found


def _whole_sources(data):
    """Those of which all records are in `data`."""
    return _sources(data, _WHOLE)


def _first_of(data):
    """The first records of a data set, in one pair of x and y; what is none,
    or can be read only once, as it is."""
    if hasattr(data, "as_numpy_iterator"):
        found = data.take(_BATCHES).as_numpy_iterator()
    elif isinstance(data, keras.utils.PyDataset):
        count = data.num_batches
        count = _BATCHES if count is None else min(count, _BATCHES)
        found = (data[index] for index in range(count))
    elif columns.is_loader(data):
        found = itertools.islice(data, _BATCHES)
    elif columns.is_function(data):
        found = itertools.islice(data(), _BATCHES)
    else:
        return data
    found = [v if isinstance(v, (tuple, list)) else (v,) for v in found]
    if not found:
        return data
    if len({*map(_lengths, found)}) > 1:
        found = found[:1]
    return tuple(map(_joined, zip(*(v[:2] for v in found))))


def _lengths(batch):
    """Shapes of the records of a batch."""
    leaves = keras.tree.flatten(batch)
    return tuple(tuple(getattr(v, "shape", ()))[1:] for v in leaves)


def _joined(parts):
    """One structure of what several batches hold."""
    return keras.tree.map_structure(
        lambda *arrays: np.concatenate(list(map(columns.one_array, arrays))),
        *parts,
    )


def _arrays(data, model):
    """Arrays of x, and of y; none of a data set, weights left out."""
    if not isinstance(data, (tuple, list)) and not columns.are_inputs(data):
        return [], []
    x, *y = [data] if columns.are_inputs(data) else data[:2]
    if columns.are_several(x) and getattr(model, "inputs", None):
        x = model_inputs.arranged(model, x)
    return [
        [columns.one_array(array) for _, array in columns.flatten(part)]
        for part in (x, y[0] if y and y[0] is not None else [])
    ]


def _overlap(a, b):
    try:
        return np.shares_memory(a, b, max_work=_WORK)
    except np.exceptions.TooHardError:
        return False


def _in_rows(shown, private, name):
    """`private_because` of arrays, by the hashes of their rows."""
    if not (len(shown[0]) and len(private[0])):
        return None
    kinds = []
    for a, b in zip(shown, private):
        if a[:1].size != b[:1].size or not a[:1].size:
            return None
        try:
            kinds.append(np.result_type(a, b))
        except TypeError:
            return None
    found, known = _hashes(shown, kinds), _hashes(private, kinds)
    if len(found) == len(known) and np.array_equal(found, known):
        return f"its records are those of {name}"
    different = np.unique(known)
    if len(different) >= _DISTINCT * len(known):
        share = float(np.mean(np.isin(found, different)))
        if share > 0.5:
            return f"{share:.0%} of its records are in {name}"
        share = float(np.mean(np.isin(different, found)))
        if share > 0.5:
            return f"{share:.0%} of the records of {name} are in it"
    return None


def _hashes(arrays, kinds):
    """Of rows, in types that both sides have."""
    found = np.empty(len(arrays[0]), np.int64)
    for start in range(0, len(found), _ROWS):
        rows = slice(start, start + _ROWS)
        parts = [
            columns.row_bytes(array[rows].astype(kind))
            for array, kind in zip(arrays, kinds)
        ]
        raw = np.ascontiguousarray(np.concatenate(parts, axis=1))
        found[rows] = [hash(row.tobytes()) for row in raw]
    return found
