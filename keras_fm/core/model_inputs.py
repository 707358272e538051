"""Pairs the arrays of records with the inputs of a model."""

import keras
import numpy as np

from keras_fm.core import full_precision, model_graph
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel.access import columns


def arranged(model, x, name="data"):
    """x in the order of `model.inputs`, as Keras pairs them.

    A dict is paired by the names of the inputs; its other keys are left out.
    A model that was built on a dict needs the same keys.

    Args:
        model: a functional or sequential model.
        x: an array, or a list or dict of them, nested too; tensors of a graph
            are taken as well.
        name: of x, for errors.

    Returns:
        an array for a model with one input, else a list.

    Raises:
        ValueError: naming what is missing.

    Example:

    >>> inputs = [keras.Input((2,), name="a"), keras.Input((3,), name="b")]
    >>> model = keras.Model(inputs, keras.layers.Concatenate()(inputs))
    >>> arranged(model, {"b": "of b", "a": "of a"})
    ['of a', 'of b']
    """
    # A sequential model keeps its graph in a functional one.
    struct = (getattr(model, "_functional", None) or model).input
    inputs = list(model.inputs)
    several = columns.are_several(x)
    if not several:
        found = [x]
    elif isinstance(x, dict) and not isinstance(struct, dict):
        found = _by_name(inputs, struct, x, name)
    else:
        found = _by_place(struct, x, name)
    if len(found) != len(inputs):
        raise ValueError(
            f"`{name}` must hold the inputs of the model, "
            f"{[i.name for i in inputs]}. Received: {_described(x)}"
        )
    return found[0] if len(found) == 1 else found


def _by_name(inputs, struct, x, name):
    flat = not isinstance(struct, (list, tuple)) or not any(
        columns.are_several(part) for part in struct
    )
    missing = [i.name for i in inputs if i.name not in x]
    if missing or not flat:
        raise ValueError(
            f"`{name}` must hold the inputs of the model by their names, "
            f"{[i.name for i in inputs]}. Received: {_described(x)}"
        )
    return [x[i.name] for i in inputs]


def _by_place(struct, x, name):
    if not columns.are_several(struct):
        struct = [struct]
    wanted = [part for part, _ in columns.flatten(struct, "")]
    given = columns.flatten(x, "")
    if [part for part, _ in given] != wanted:
        raise ValueError(
            f"`{name}` must have the structure that the model was built on, "
            f"{_described(struct)}. Received: {_described(x)}"
        )
    return [value for _, value in given]


def _described(x):
    """The structure of x, in words, without its numbers."""
    if isinstance(x, dict):
        parts = [f"{key!r}: {_described(value)}" for key, value in x.items()]
        return "{" + ", ".join(parts) + "}"
    if isinstance(x, (list, tuple)) and columns.are_several(x):
        return "[" + ", ".join(map(_described, x)) + "]"
    return f"shape {tuple(getattr(x, 'shape', ()))}"


def single(tensors):
    """The tensor of a list of one, else the list."""
    return tensors[0] if len(tensors) == 1 else tensors


def predicted(call, x):
    """The output of a function for a batch of records, an array.

    Raises:
        ValueError: if it fails. A backend's own message may show a record (an
            index that is out of range), so it is left out.
    """
    try:
        with full_precision.scope():
            return np.asarray(call(x))
    except Exception as e:
        failed = type(e).__name__
    # Outside of `except`, which would keep the first error as its cause.
    raise ValueError(
        f"The layers fail on a record ({failed}). Perhaps a number is not an "
        "index of an `Embedding`, or the vocabulary of a lookup lacks a "
        "category (give it `num_oov_indices=1`). The backend's message is "
        "left out, because it may show the record. To see it, call "
        "`model.predict` on made-up records."
    )


def checked(model, x, name="data"):
    """Records as the model takes them.

    Args:
        model: see `arranged`.
        x: NumPy arrays.
        name: of x, for errors.

    Returns:
        see `arranged`; arrays `(n,)` for an input `(1,)` get that axis.

    Raises:
        ValueError: naming the input whose records have another shape or
            type, or are not finite.
    """
    found = arranged(model, x, name)
    several = len(model.inputs) > 1
    arrays = found if several else [found]
    named = [
        _checked(model, tensor, array, f"input '{tensor.name}'" * several)
        for tensor, array in zip(model.inputs, arrays)
    ]
    return single(named)


def _fits(expected, shape):
    return len(shape) == len(expected) and all(
        None in (e, d) or e == d for e, d in zip(expected, shape)
    )


def _check_type(tensor, kind, of):
    wants_text = str(tensor.dtype) == "string"
    if wants_text and kind.kind != "O":
        raise ValueError(
            f"Records{of} must hold text. Received: dtype={kind}. Convert "
            "them: `x.astype(str)`."
        )
    if not wants_text and kind.kind not in "biuf":
        raise ValueError(
            f"Records{of} must hold numbers ({tensor.dtype}). Received: "
            f"dtype={kind}. For a table with columns of several types, give "
            "each column an input of its own: `{k: table[k].to_numpy() for k "
            "in table}`. For text, use a public vocabulary: "
            "`keras.layers.StringLookup(vocabulary=[...])`."
        )


def _checked(model, tensor, array, name):
    expected = tuple(tensor.shape[1:])
    if expected == (1,) and array.ndim == 1:
        array = array[:, None]
    elif expected == () and array.shape[1:] == (1,):
        array = array[:, 0]
    shape = array.shape[1:]
    of = f" of {name}" if name else ""
    if not _fits(expected, shape):
        raise ValueError(
            f"Records{of} must have shape {expected}, as the model's input. "
            f"Received: {shape}"
        )
    _check_type(tensor, array.dtype, of)
    is_text = array.dtype.kind == "O"
    if is_text and not all(isinstance(v, (str, bytes)) for v in array.flat):
        raise ValueError(
            f"Records{of} must hold text in every entry, and at least one "
            "entry is not text. Write missing values as text: "
            '`column.fillna("").astype(str)`. Nothing was spent.'
        )
    if array.dtype.kind == "f" and not _are_values(model, tensor, array):
        raise ValueError(
            f"`data` has NaN or infinite inputs{of}. Clean the records, or "
            "replace missing values by "
            '`keras_fm.layers.PrivateNormalization(missing="mean")`. Nothing '
            "was spent."
        )
    _check_tokens(model, tensor, array, of)
    return array if is_text else _held(tensor, array)


def _check_tokens(model, tensor, array, of):
    """Refuses numbers outside the tables of the `Embedding`s that read an
    input. Backends stop at them and show them, or turn them into NaN."""
    tables = [
        layer
        for layer in _readers(model, tensor)
        if isinstance(layer, keras.layers.Embedding)
    ]
    for layer in tables if array.size else ():
        if array.min() < 0 or array.max() >= layer.input_dim:
            raise ValueError(
                f"Records{of} must hold numbers from 0 to "
                f"{layer.input_dim - 1}, the rows of layer '{layer.name}' "
                f"(Embedding, input_dim={layer.input_dim}); at least one is "
                "outside. Replace such numbers by a public token: "
                f"`np.where((x >= 0) & (x < {layer.input_dim}), x, unknown)`. "
                "Nothing was spent."
            )


def _held(tensor, array):
    """Numbers as the input holds them. JAX would wrap 64-bit whole numbers to
    32 bits, and round floats that become whole numbers. One fraction in a
    list would then change all other records."""
    whole = "int" in str(tensor.dtype)
    if whole and array.dtype.kind == "f":
        return array.astype(np.int64)
    if not whole and array.dtype.itemsize == 8:
        return columns.floats(array)
    return array


def _are_values(model, tensor, array):
    """Whether all entries are numbers. They may be missing if the only layers
    that read this input know how missing entries are marked."""
    found = np.isfinite(array)
    if found.all():
        return True
    readers = _readers(model, tensor)
    if readers and all(getattr(r, "takes_missing", False) for r in readers):
        found |= np.isnan(array)
    return bool(found.all())


def _readers(model, tensor):
    """The layers and operations that read an input."""
    return [
        node.operation
        for node in model_graph.nodes(model)
        if any(t is tensor for t in node.input_tensors)
    ]


def refuse_text_labels(data):
    """Refuses `(x, y)` whose labels are words, as soon as they are given.
    Keras would stop at them before a fit begins, with "Invalid dtype".

    Raises:
        ValueError: saying what to write instead; no label is shown.
    """
    y = data[1] if isinstance(data, tuple) and len(data) == 2 else None
    try:
        y = np.asarray(y)
    # Ragged lists, or tensors on other devices: a later check explains them.
    except (TypeError, ValueError, RuntimeError):
        return
    text = y.dtype.kind in "SU"
    if y.dtype.kind == "O":
        text = any(isinstance(v, (str, bytes)) for v in y.flat)
    if text:
        raise ValueError(
            "Labels must be numbers or truth values. "
            f"{bounds_lib.NUMBER_THE_CLASSES} Received: text as y of "
            "`data=(x, y)`"
        )
