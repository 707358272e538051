"""What a `fit` may be called with, if its statement is to hold."""

import os
import string

import keras

from keras_fm.kernel import checks, records
from keras_fm.kernel.reads import columns
from keras_fm.parts import fit_frame


def check(arguments, private, kind):
    """Refuses what no statement of a `PrivateModel` could cover.

    Args:
        arguments: of the running fit.
        private: the callback.
        kind: the class of such callbacks, of which a fit has one.

    Raises:
        ValueError: saying what to change.
    """
    x = arguments.get("x")
    for name, part in columns.flatten(getattr(x, "element_spec", x)):
        # Steps see zeros of the same form, which must be dense.
        columns.check_dense(part, name)
    _check_numbers(arguments)
    checks.count("steps_per_execution", private.model.steps_per_execution)
    epochs = private.params.get("epochs", 1)
    if epochs <= (arguments.get("initial_epoch") or 0):
        raise ValueError(
            "A fit without an epoch would be paid for and not trained. "
            f"Received: epochs={epochs}"
        )
    given = fit_frame.callbacks(arguments)
    count = sum(isinstance(callback, kind) for callback in given)
    if count > 1:
        # The next would find the first's release, and say of its own ledger
        # that nothing was read.
        raise ValueError(
            f"`callbacks` must hold one {kind.__name__}, whose ledger counts "
            f"all that a fit reads. Received: {count} of them"
        )
    if private in given and any(
        isinstance(c, keras.callbacks.BackupAndRestore)
        for c in given[given.index(private) :]
    ):
        raise ValueError(
            "Put BackupAndRestore before PrivateModel in `callbacks`: a "
            "release that is restored after this callback began would "
            "have been drawn, and paid for, a second time."
        )
    fit_frame.check_unweighted(arguments)
    if private.guarantee.kind == "published":
        return
    if arguments.get("validation_split"):
        raise ValueError(
            "`validation_split` would hold out records that the release "
            "has read already. Split first, give PrivateModel the "
            "training part as `data=`, and fit `validation_data=`."
        )
    if not private.guarantee.n_public:
        _check_steps(arguments, private, epochs)
    _check_monitors(given, arguments)


def _check_monitors(given, arguments):
    """Refuses callbacks that look at what the fit does not log."""
    for callback in given:
        _check_files(callback, arguments)
        monitor = getattr(callback, "monitor", None)
        if isinstance(monitor, str) and not (
            monitor == "loss" or monitor.startswith("val_")
        ):
            raise ValueError(
                f"{type(callback).__name__} monitors {monitor!r}, a "
                "metric of the private records, and would make training "
                'depend on them again. Monitor "loss" (the released '
                "objective) or a metric of `validation_data`."
            )


def _check_steps(arguments, private, epochs):
    """Refuses a fit whose number of steps may tell how many records there
    are: Keras stops where x ends, whatever `steps_per_epoch` says."""
    steps = arguments.get("steps_per_epoch")
    if not steps:
        raise ValueError(
            "With `n_public=False` the number of steps must not depend "
            "on the data: pass `steps_per_epoch` to fit."
        )
    x, size = arguments.get("x"), arguments.get("batch_size")
    if hasattr(x, "cardinality"):
        enough = int(x.cardinality()) == -1
    elif isinstance(x, keras.utils.PyDataset):
        enough = x.num_batches is None
    elif columns.are_inputs(x) or isinstance(x, (list, tuple)):
        n = records.number((x,)) or 1
        found = -(-n // (size or -(-n // steps)))
        at_once = private.model.steps_per_execution
        taken = -(-steps // at_once) * at_once
        # An epoch goes on where the last one stopped, or begins anew.
        enough = found >= taken * epochs or found % taken == 0
    else:
        enough = False
    if not enough:
        raise ValueError(
            "With `n_public=False` the number of steps must not depend on the "
            "data, and a fit stops where x ends. Give fit a data set without "
            "end (`dataset.repeat()`; steps see zeros in the place of its "
            "records, which are read from `data`), or arrays of at least "
            "`steps_per_epoch * epochs` batches. Received: x of type "
            f"{type(x).__name__}"
        )


# What Keras counts with, some of it after the first epoch only.
_COUNTS = (
    "batch_size",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "validation_batch_size",
    "validation_steps",
)


def _check_numbers(arguments):
    for name in _COUNTS:
        value = arguments.get(name)
        if value is not None and not checks.is_integer(value):
            checks.refuse(name, value, "a whole number")
    if arguments.get("validation_data") is not None:
        every = arguments.get("validation_freq", 1)
        if not isinstance(every, list) and (
            type(every) is not int or every < 1
        ):
            checks.refuse(
                "validation_freq", every, "a positive integer or a list"
            )


# Where callbacks of Keras write.
_PATHS = ("filepath", "filename", "backup_dir", "log_dir")


def _check_files(callback, arguments):
    """Refuses files that Keras could not write at the first epoch's end."""
    for name in _PATHS:
        path = getattr(callback, name, None)
        if isinstance(path, str | os.PathLike):
            _check_place(callback, name, os.fspath(path))
    path = getattr(callback, "filepath", None)
    if not isinstance(path, str):
        return
    shown = arguments.get("validation_data") is not None
    for _, name, *_ in string.Formatter().parse(path):
        if name and not (
            name in ("epoch", "batch", "loss", "learning_rate")
            or (shown and name.startswith("val_"))
        ):
            raise ValueError(
                f"{type(callback).__name__} names its files by {name!r}, "
                'which this fit does not log: there is "loss" (the released '
                "objective), and metrics of `validation_data`. Received: "
                f"filepath={path!r}"
            )


def _check_place(callback, name, path):
    """Refuses a path whose folder cannot be, or be written."""
    # Stores of other machines have none to look at.
    if not isinstance(path, str) or "://" in path:
        return
    folder = os.path.abspath(path)
    if not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    # Above a drive that is not there is that drive.
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(
            f"{type(callback).__name__} must write where it may, and "
            f"{folder!r} is no folder that can be written. Received: "
            f"{name}={path!r}"
        )


def check_lot(arguments, wanted):
    """Refuses another batch size than the lot the noise is divided by."""
    batch_size = arguments.get("batch_size")
    if hasattr(arguments.get("x"), "shape"):
        batch_size = 32 if batch_size is None else batch_size
    if batch_size is not None and batch_size != wanted:
        raise ValueError(
            "The published noise is divided by the lot size, so "
            "PrivateModel and fit need the same `batch_size`. Received: "
            f"{wanted} and {batch_size}"
        )
