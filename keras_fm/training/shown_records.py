"""Whether what a fit is given beside the private records fits its model.

`fit` finds out at the first step, or when it first validates: after the charge.
"""

import contextlib
import inspect

import keras

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import records
from keras_fm.kernel.reads import columns
from keras_fm.parts import held_out, model_inputs, sealed
from keras_fm.training import compiled_loss


def check(arguments, model, plan):
    """Refuses x, labels and `validation_data` of a fit, and what was compiled,
    that do not fit the model or each other.

    Of data sets the description is looked at, or one batch.

    Args:
        arguments: of `fit`.
        model: that is fitted.
        plan: what it releases.

    Raises:
        ValueError: saying what differs; no record is shown.
    """
    x, y = arguments.get("x"), arguments.get("y")
    with _about("x"):
        given = _spec(x) if hasattr(x, "element_spec") else (x, y)
        if _has_form(given[0]):
            _check_inputs(plan.model, given[0])
    shown = arguments.get("validation_data")
    if shown is not None:
        with _about("validation_data"):
            _check_shown(shown, model, plan)
    if plan.guarantee.kind == "proven" and shown is not None:
        records.check(plan.data)
        held_out.check_held_out(shown, plan.data, plan.model)
        if not sealed.is_sealed(model):
            # Later fits, with the callback or without, look for themselves.
            held_out.check_fit(arguments, model)
    compiled_loss.check(model, y)
    if plan.guarantee.kind == "published":
        # Its steps show metrics, too.
        compiled_loss.check_metrics(model, given[1])


def _check_shown(shown, model, plan):
    compiled_loss.check_evaluates(model)
    given = _first(shown)
    if given is not None:
        _check_pair(given, plan)
        compiled_loss.check(model, given[1])
        compiled_loss.check_metrics(model, given[1])


@contextlib.contextmanager
def _about(name):
    try:
        yield
    except ValueError as e:
        message = str(e)
        if f"`{name}" not in message:
            message = f"`{name}` of fit does not fit the model. {message}"
        raise ValueError(message) from e.__cause__


def _first(shown):
    """`(x, y, weights)`, arrays or their descriptions, of what `fit` takes as
    `validation_data`; `None` if nothing is known of it."""
    if hasattr(shown, "element_spec"):
        return _spec(shown)
    if isinstance(shown, keras.utils.PyDataset):
        return _unpacked(shown[0]) if shown.num_batches != 0 else None
    if columns.is_loader(shown):
        batch = next(iter(shown), None)
        return None if batch is None else _unpacked(batch)
    if isinstance(shown, (tuple, list)) or columns.are_inputs(shown):
        given = _unpacked(shown)
        _check_arrays(part for part in given if part is not None)
        return given
    home = type(shown).__module__.partition(".")[0]
    if inspect.isgenerator(shown) or home == "grain":
        return None
    raise ValueError(
        "It must be arrays (x, y), a data set or a generator of batches. "
        f"Received: {type(shown).__name__}"
    )


def _check_arrays(parts):
    """Refuses lists, and types of numbers that no backend has."""
    for _, part in columns.flatten([*parts]):
        if not hasattr(part, "shape"):
            raise ValueError(
                "It must hold arrays: convert lists by `np.asarray`. "
                f"Received: {type(part).__name__}"
            )
        kind = getattr(part, "dtype", None)
        if kind is None or getattr(kind, "kind", None) in tuple("OSU"):
            continue
        try:
            keras.backend.standardize_dtype(kind)
        except ValueError:
            raise ValueError(
                "Keras takes no numbers of this type: convert them, "
                f'`np.asarray(x, "float32")`. Received: dtype={kind}'
            ) from None


def _spec(dataset):
    return _unpacked(dataset.element_spec)


def _unpacked(data):
    """As Keras unpacks them, whose error shows the arrays."""
    parts = tuple(data) if isinstance(data, (tuple, list)) else (data,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(
            "It must be (x, y), or (x, y, sample_weight). Received: "
            f"{len(parts)} parts"
        )
    return (*parts, None, None)[:3]


def _has_form(x):
    parts = [part for _, part in columns.flatten(x)]
    return bool(parts) and all(hasattr(part, "shape") for part in parts)


def _check_inputs(model, x):
    if getattr(model, "inputs", None):
        model_inputs.check_forms(model, x)


def _check_pair(given, plan):
    x, y, weights = given
    proven = plan.guarantee.kind == "proven"
    is_array = not any(
        hasattr(part, "is_compatible_with") for _, part in columns.flatten(x)
    )
    if is_array:
        x = columns.arrays(x)
    _check_inputs(plan.model, x)
    if y is None:
        if proven and plan.labelled_data:
            raise ValueError(
                "It must be a pair (x, y), records and labels. Received: x "
                "alone"
            )
        return
    if columns.are_several(y) or not (is_array or hasattr(y, "dtype")):
        return
    if is_array:
        y = columns.one_array(y, "y")
        _check_lengths(x, y, weights)
    kind = model_inputs.numpy_type(y)
    if kind is not None:
        bounds_lib.check_numbers(kind)
    if proven and is_array and len(y):
        top = plan.top
        # Numbers to compare with may be out of the bounds of private ones.
        if getattr(top, "predicts", None) != "numbers":
            plan.check_labels(y, len(y))


def _check_lengths(x, y, weights):
    n = columns.count(x)
    lengths = {"x": n, "y": len(y)}
    if weights is not None:
        weights = columns.one_array(weights)
        lengths["sample_weight"] = len(weights)
        if weights.dtype.kind not in "biuf" or weights.size != len(weights):
            raise ValueError(
                "Sample weights must be one number for each record. Received: "
                f"shape={weights.shape}, dtype={weights.dtype}"
            )
    if {*lengths.values()} != {n}:
        raise ValueError(
            "x and y must hold the same number of records. Received: "
            + ", ".join(f"{count} in {name}" for name, count in lengths.items())
        )
    if not n:
        raise ValueError("It holds no records.")
