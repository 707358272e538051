"""What a `fit` may be called with, if its statement is to hold."""

import keras

from keras_fm.kernel import columns
from keras_fm.parts import fit_frame


def check(arguments, private):
    """Refuses what no statement of a `PrivateModel` could cover.

    Args:
        arguments: of the running fit.
        private: the callback.

    Raises:
        ValueError: saying what to change.
    """
    x = arguments.get("x")
    for name, part in columns.flatten(getattr(x, "element_spec", x)):
        # Steps see zeros of the same form, which must be dense.
        columns.check_dense(part, name)
    epochs = private.params.get("epochs", 1)
    if epochs <= (arguments.get("initial_epoch") or 0):
        raise ValueError(
            "A fit without an epoch would be paid for and not trained. "
            f"Received: epochs={epochs}"
        )
    given = fit_frame.callbacks(arguments)
    if private in given and any(
        isinstance(c, keras.callbacks.BackupAndRestore)
        for c in given[given.index(private) :]
    ):
        raise ValueError(
            "Put BackupAndRestore before PrivateModel in `callbacks`: a "
            "release that is restored after this callback began would "
            "have been drawn, and paid for, a second time."
        )
    for name in ("class_weight", "sample_weight"):
        if arguments.get(name) is not None:
            raise ValueError(
                f"`{name}` changes what a record weighs, which the "
                "sensitivity does not cover. Remove it from fit; weigh "
                "classes by public constants after the release instead."
            )
    if private.guarantee.kind == "published":
        return
    if arguments.get("validation_split"):
        raise ValueError(
            "`validation_split` would hold out records that the release "
            "has read already. Split first, give PrivateModel the "
            "training part as `data=`, and fit `validation_data=`."
        )
    if not private.guarantee.n_public and not arguments.get("steps_per_epoch"):
        raise ValueError(
            "With `n_public=False` the number of steps must not depend "
            "on the data: pass `steps_per_epoch` to fit."
        )
    for callback in given:
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
