"""Checks of the arguments of a fit, all before anything is charged.

In this order: the ledger, the weights of records, the records that are shown,
callbacks that wait for a metric, the number of steps, and the compiled loss.
"""

import inspect
import itertools
import operator
import re

import keras
import numpy as np

from keras_fm.core import fit_frame, model_inputs
from keras_fm.kernel.access import columns, fixed_rows

# How many batches of a data set are compared, how many rows at a time, and how
# many columns first.
_BATCHES, _ROWS, _FEW = 16, 4096, 32
# The share of private rows that must be distinct. Only then does a match mean
# that a record was taken, and not that records look alike.
_DISTINCT = 0.95

# The ledger's note if the arguments of a fit are hidden.
NOT_CHECKED = "not checked: what `fit` was called with"


def check(given, private, data, model):
    """Refuses arguments that no statement of a `PrivateModel` could cover.

    Args:
        given: dict of the arguments of the running fit.
        private: the callback.
        data: the private records, or `None`.
        model: the model that they go through.

    Raises:
        ValueError: saying what to change.
    """
    callbacks = fit_frame.callbacks(given)
    _check_one_ledger(callbacks, private)
    check_unweighted(given)
    # In published forms the metrics of records are logged, and claimed.
    if private.guarantee.kind == "proven":
        check_shown(given, private.model)
        if not _are_same(records_of(given), data):
            check_held_out(given.get("validation_data"), data, model)
        check_monitors(callbacks)
        if not private.guarantee.n_public:
            _check_steps(given, private)
    check_loss(private.model, private.model.loss)


# One ledger -------------------------------------------------------------------


def _check_one_ledger(callbacks, private):
    # The second would find the first's release, and its own ledger would
    # state that no record was used.
    count = sum(hasattr(c, "makes_private") for c in callbacks)
    if count > 1:
        raise ValueError(
            "`callbacks` must hold one PrivateModel, because one ledger must "
            f"count the whole fit. Received: {count} of them"
        )
    if private in callbacks and any(
        isinstance(c, keras.callbacks.BackupAndRestore)
        for c in callbacks[callbacks.index(private) :]
    ):
        raise ValueError(
            "Put BackupAndRestore before PrivateModel in `callbacks`. "
            "Otherwise the release is drawn and charged again before the "
            "backup is restored."
        )


# Weights of records -----------------------------------------------------------


def check_unweighted(given):
    """Refuses a fit whose arguments give records weights other than 1.

    Args:
        given: dict of arguments of `fit`.

    Raises:
        ValueError: naming the argument, and what to write instead.
    """
    for name in ("class_weight", "sample_weight"):
        if given.get(name) is not None:
            raise ValueError(
                f"`{name}` must be left out of `fit`: it changes the weight "
                "of records, and the noise is not sized for that. To favor "
                "rare classes, write `PrivateDense(class_weight=...)`. "
                f"Received: {name} of type {type(given[name]).__name__}"
            )


# Records that are shown -------------------------------------------------------


def check_shown(given, model):
    """Refuses a fit that would show metrics of the records that it was given,
    whatever records the release used.

    Args:
        given: dict of arguments of `fit`.
        model: the model that is fitted.

    Raises:
        ValueError: see `check_held_out`.
    """
    if given.get("validation_split"):
        raise ValueError(
            "`validation_split` would validate on records of the release. "
            "Split the records first: give one part to "
            "`PrivateModel(data=...)` and the other to "
            "`fit(validation_data=...)`. Received: "
            f"validation_split={given['validation_split']}"
        )
    shown = given.get("validation_data")
    check_held_out(shown, records_of(given), model, "x of this fit")


def records_of(given):
    """The records that a fit was given: x, or `(x, y)`."""
    x, y = given.get("x"), given.get("y")
    return x if y is None else (x, y)


def _are_same(one, other):
    pair = isinstance(one, tuple) and isinstance(other, (tuple, list))
    pair = pair and len(one) == len(other)
    return all(map(operator.is_, one, other)) if pair else one is other


def check_held_out(validation_data, data, model=None, name="`data`"):
    """Refuses validation data that are private records.

    Metrics on them would be functions of private records that no statement
    covers. Common mistakes are `validation_data=(x, y)` of the fit itself,
    and a split that was made after `data` was given. Rows are compared if
    nearly all private ones are different: in a table of few different rows a
    match means nothing. For data in batches, the first ones are compared.
    Records that were changed, and those of generators, are not recognised.

    All rows are compared at every fit, since arrays may be changed in place
    (`x /= 255`) between two. At first a few columns are compared, and all
    columns only if these agree.

    Args:
        validation_data: as `fit` takes it: x, `(x, y)`, `(x, y, weights)`
            or a data set; or `None`.
        data: the private records: x, `(x, y)` or a data set; or `None`.
        model: the model whose inputs x holds, if there are several.
        name: of the private records, for errors.

    Raises:
        ValueError: if they are the same object, or have most rows in common.

    Example:

    >>> x, y = np.random.normal(size=(10, 3)), np.zeros(10)
    >>> check_held_out((x[8:], y[8:]), (x[:8], y[:8]))
    >>> check_held_out((x[8:], y[8:]), (x, y))
    Traceback (most recent call last):
    ...
    ValueError: `validation_data` holds private records: 100% of its ...
    """
    reason = private_because(validation_data, data, model, name)
    if reason is not None:
        raise ValueError(
            f"`validation_data` holds private records: {reason}. No privacy "
            "statement would cover metrics on them. Pass held-out or public "
            "records. Or evaluate after `fit`, under the same ledger: "
            "`keras_fm.evaluation.private_evaluate(model, data, "
            "ledger=private.ledger, share=...)`."
        )


def private_because(shown, data, model=None, name="`data`"):
    """Why records that are to be shown are private, in words; `None` if they
    are not known to be.

    Args:
        shown, data, model, name: see `check_held_out`.
    """
    if shown is None or data is None:
        return None
    if shown is data:
        return f"it is {name}"
    found, known = _hashes(shown, model, _FEW), _hashes(data, model, _FEW)
    # Equal rows are equal in these columns, too.
    agree = (np.isin(found, known), np.isin(known, found))
    if all(np.mean(v) <= _DISTINCT / 2 for v in agree if len(v)):
        return None
    found, known = _hashes(shown, model), _hashes(data, model)
    if np.array_equal(found, known):
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


def _hashes(data, model, most=None):
    """One hash for the x of each compared record; with `most`, of at most so
    many columns of an array, spread over it."""
    found = [_of_rows(x, model, most) for x in _inputs_of(data)]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def _inputs_of(data):
    """The x of data in memory, or of the first batches."""
    if columns.are_inputs(data) or isinstance(data, (tuple, list)):
        batches = [data]
    elif isinstance(data, keras.utils.PyDataset):
        count = data.num_batches
        count = _BATCHES if count is None else min(count, _BATCHES)
        batches = (data[index] for index in range(count))
    else:
        given, again = (data() if callable(data) else data for _ in range(2))
        # An iterator that can be read only once is left alone.
        once = given is again and hasattr(given, "__next__")
        batches = () if once else itertools.islice(given, _BATCHES)
    for batch in batches:
        yield batch[0] if isinstance(batch, (tuple, list)) else batch


def _of_rows(x, model, most):
    if columns.are_several(x) and getattr(model, "inputs", None):
        x = model_inputs.arranged(model, x)
    arrays = [array for _, array in columns.flatten(x)]
    count = len(arrays[0]) if np.ndim(arrays[0]) else 0
    found = [np.zeros(0, np.uint64)]
    for start in range(0, count, _ROWS):
        rows = slice(start, start + _ROWS)
        some = [_some(columns.one_array(array[rows]), most) for array in arrays]
        found.append(fixed_rows.hashes(some))
    return np.concatenate(found)


def _some(array, most):
    array = array.reshape(len(array), -1)
    step = -(-array.shape[1] // most) if most else 1
    array = array[:, step // 2 :: max(step, 1)]
    # One record gives the same numbers, whatever holds it.
    return array.astype("float32") if array.dtype.kind in "biuf" else array


# Callbacks that wait for a metric ---------------------------------------------


def check_monitors(callbacks, released=True):
    """Refuses callbacks that wait for a metric of the private records.

    Args:
        callbacks: list of them.
        released: whether the shown loss is a released objective.
    """
    why = "which is not shown"
    instead = 'Monitor one of `validation_data`, as "val_loss"'
    if released:
        why = "and would make training depend on them again"
        instead = (
            'Monitor "loss" (the released objective) or a metric of '
            "`validation_data`"
        )
    for callback in callbacks:
        # A checkpoint may be named by a metric, as "{loss:.2f}.keras".
        named = re.findall(r"{(\w+)", str(getattr(callback, "filepath", "")))
        for name in (getattr(callback, "monitor", None), *named):
            if name in (None, "epoch", "batch") or str(name)[:4] == "val_":
                continue
            if name != "loss" or not released:
                raise ValueError(
                    f"{type(callback).__name__} monitors {name!r}, a metric "
                    f"of the private records, {why}. {instead}."
                )


# The number of steps ----------------------------------------------------------


def _check_steps(given, private):
    """Refuses a fit whose number of steps may reveal the number of records:
    Keras stops where x ends, whatever `steps_per_epoch` is."""
    steps = given.get("steps_per_epoch")
    if not steps:
        raise ValueError(
            "With `n_public=False` the number of steps must not depend "
            "on the data: pass `steps_per_epoch` to fit."
        )
    x, size = given.get("x"), given.get("batch_size")
    enough = False
    if hasattr(x, "cardinality"):
        enough = int(x.cardinality()) == -1
    elif isinstance(x, keras.utils.PyDataset):
        enough = x.num_batches is None
    elif columns.are_inputs(x) or isinstance(x, (list, tuple)):
        n = columns.count(x)
        found = -(-n // (size or -(-n // steps)))
        at_once = private.model.steps_per_execution
        taken = -(-steps // at_once) * at_once
        # An epoch continues where the last one stopped, or begins anew.
        epochs = private.params.get("epochs", 1)
        enough = found >= taken * epochs or found % taken == 0
    if not enough:
        raise ValueError(
            "With `n_public=False` the number of steps must not depend on the "
            "data, but a fit stops where x ends. Give `fit` a data set "
            "without end, `dataset.repeat()`, or arrays of at least "
            "`steps_per_epoch * epochs` batches. Records come from `data` "
            f"alone; steps use zeros. Received: x of type {type(x).__name__}"
        )


# The compiled loss ------------------------------------------------------------


def check_loss(model, losses):
    """Refuses a loss that takes something else than the outputs of a model.

    Args:
        model: a built model.
        losses: what `compile` was given.

    Raises:
        ValueError: saying what to write instead.

    Example:

    >>> logits = keras_fm.layers.PrivateDense(3)
    >>> model = keras.Sequential([keras.Input((4,)), logits])
    >>> check_loss(model, "sparse_categorical_crossentropy")
    Traceback (most recent call last):
    ...
    ValueError: The compiled loss takes probabilities, but 'private_dense' ...
    """
    outputs = getattr(model, "outputs", None)
    layer = outputs[0]._keras_history[0] if len(outputs or ()) == 1 else None
    predicts = getattr(layer, "predicts", None)
    if isinstance(layer, keras.layers.Dense):
        ends = keras.activations.linear, keras.activations.relu
        predicts = "classes" if layer.activation in ends else None
    for loss in keras.tree.flatten(losses):
        of_logits = _from_logits(loss)
        if predicts == "numbers" and of_logits is not None:
            raise ValueError(
                f"The compiled loss is of classes, but '{layer.name}' gives "
                f'numbers. Compile with "mse". Received: loss={loss!r}'
            )
        if predicts in ("classes", "labels") and of_logits is False:
            raise ValueError(
                f"The compiled loss takes probabilities, but '{layer.name}' "
                "gives logits. Compile a loss with `from_logits=True`, such as "
                "`keras_fm.losses.TaylorCrossEntropy()`. Received: "
                f"loss={loss!r}"
            )


def _from_logits(loss):
    """Whether a loss of classes takes logits; `None` for other losses."""
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if isinstance(loss, keras.losses.Loss) or not callable(loss):
        return getattr(loss, "from_logits", None)
    given = inspect.signature(loss).parameters.get("from_logits")
    return None if given is None else bool(given.default)
