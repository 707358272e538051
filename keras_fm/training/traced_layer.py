"""What the code of a layer does, as calls of Keras that can be looked at.

A layer of a user's own is called on symbolic tensors of a few records, in
inference as records are read. What comes out is a graph of layers and of
operations of `keras.ops`. Code that goes another way (a backend, NumPy, a
choice by value, a variable or an attribute that is written) fails on symbolic
tensors or is noticed, and is not known.
"""

import contextlib
import re

import keras

from keras_fm.training.symbolic_call import (
    UnknownError,
    are_alike,
    check_not_replaced,
    is_tensor,
)

# Records in a symbolic batch; code asks for their number.
ROWS = 7
# With one of these a class may do more than its `call` says.
_RUNS = frozenset(
    """
    __call__ __getattribute__ symbolic_call quantized_call
    rematerialized_call
    """.split()
)

# Where Keras notes that, and from where, a layer was called.
_OF_KERAS = ("_called", "_parent_path")


@contextlib.contextmanager
def traced(layer, args, kwargs, expected):
    """The graph that a layer's `call` makes, while the context lasts.

    Args:
        layer: a built layer, or a model with a `call` of its own.
        args, kwargs: what it is called with, tensors symbolic.
        expected: the symbolic tensors that it gives then; `None` if these
            are not known.

    Yields:
        symbolic inputs, and the outputs and their masks, in which records lie
        along axis 0. An output that no input enters is left out.

    Raises:
        UnknownError: if there is no such graph.
    """
    _check_runs_call(layer)
    layers = layer._flatten_layers()
    nodes = [
        (found, len(found))
        for one in _operations(layers)
        for found in (one._inbound_nodes, one._outbound_nodes)
    ]
    own = [v for v in layers if not type(v).__module__.startswith("keras.src.")]
    before = [(one, dict(vars(one)), _symbols(one)) for one in own]
    copies = _Copies()
    try:
        given = keras.tree.map_structure(copies.of, (tuple(args), kwargs))
        outputs = _called(layer, own, *given, expected)
        for found in before:
            _check_kept(*found)
        _check_begins(copies.made)
        yield list(copies.made), outputs
    finally:
        for one, attributes, _ in before:
            vars(one).update(attributes)
        for found, count in nodes:
            del found[count:]


def _operations(layers):
    """All that leaves nodes when it is called, each once."""
    found = {id(layer): layer for layer in layers}
    for layer in layers:
        for model in (layer, getattr(layer, "_functional", None)):
            for one in getattr(model, "operations", ()):
                found[id(one)] = one
    return list(found.values())


def _check_runs_call(layer):
    check_not_replaced(layer)
    if getattr(layer, "quantization_mode", None) is not None:
        raise UnknownError(f"it is quantized ({layer.quantization_mode})")
    if not layer.built:
        raise UnknownError("it is not built")
    for base in type(layer).__mro__:
        if base is keras.layers.Layer:
            return
        if base.__module__.startswith("keras.src."):
            continue
        own = sorted(_RUNS & set(vars(base)))
        if own:
            raise UnknownError(f"its class has a `{own[0]}` of its own")


class _Copies:
    """Symbolic tensors of `ROWS` records in the place of others."""

    def __init__(self):
        self._known, self.made = {}, []

    def of(self, value):
        if not is_tensor(value):
            return value
        if id(value) not in self._known:
            if None in value.shape[1:]:
                raise UnknownError(
                    f"it is called with shape {tuple(value.shape)}, and its "
                    "code is read for lengths that are known: give all of "
                    "them in `keras.Input(shape)`"
                )
            new = keras.KerasTensor((ROWS, *value.shape[1:]), value.dtype)
            mask = getattr(value, "_keras_mask", None)
            if mask is not None:
                new._keras_mask = self.of(mask)
            # The first is kept, so that no other has its id.
            self._known[id(value)] = value, new
            self.made.append(new)
        return self._known[id(value)][1]


def _called(layer, own, args, kwargs, expected):
    """What `call` makes of symbolic tensors, called as Keras calls it.

    Args:
        layer: the layer.
        own: it and the layers in it whose class is not of Keras.
    """
    made = []

    def recording(one):
        def recorded(*args, **kwargs):
            found = one.call(*args, **kwargs)
            if one is layer:
                made.append(found)
            # Keras would make the layer the origin of what it gives.
            return keras.tree.map_structure(_copy, found)

        return recorded

    def measuring(one):
        """Its own knows the lengths that it was built for, perhaps none."""

        def measured(tensor, **_):
            kernel = keras.KerasTensor(one.kernel.shape)
            made = keras.ops.einsum(one.equation, tensor, kernel)
            return keras.KerasTensor(made.shape, one.compute_dtype)

        return measured

    if layer._call_has_training_arg:
        kwargs = {"training": False, **kwargs}
    # Keras asks a layer that is called on symbolic tensors for this.
    asked = {id(one): (one, recording(one)) for one in (layer, *own)}
    for one in layer._flatten_layers():
        if type(one) is keras.layers.EinsumDense:
            asked[id(one)] = one, measuring(one)
    for one, spec in asked.values():
        vars(one)["compute_output_spec"] = spec
    try:
        with keras.StatelessScope() as scope:
            given = layer(*args, **kwargs)
    # Code may fail in every way.
    except Exception as e:
        raise UnknownError(_unreadable("its `call`", e)) from e
    finally:
        for one, _ in asked.values():
            vars(one).pop("compute_output_spec", None)
    if scope.state_mapping:
        raise UnknownError("its `call` writes variables")
    given = keras.tree.flatten(given)
    shapes = [tuple(v.shape)[1:] for v in given]
    known = [tuple(v.shape)[1:] for v in expected or ()]
    agree = expected is None or _agree(shapes, known)
    if len(made) != 1 or not agree:
        raise UnknownError(
            f"its `call` gives shapes {shapes} for some records, and {known} "
            "for others"
        )
    found = [v for v in keras.tree.flatten(made[0]) if is_tensor(v)]
    masks = [getattr(v, "_keras_mask", None) for v in given]
    return found + [v for v in masks if v is not None]


@contextlib.contextmanager
def traced_function(function, rank):
    """The graph that a function of one tensor makes, as `traced`."""
    tensor = keras.KerasTensor((ROWS, *range(2, rank + 1)))
    try:
        with keras.StatelessScope():
            found = function(tensor)
    except Exception as e:
        raise UnknownError(_unreadable("it", e)) from e
    if not is_tensor(found):
        raise UnknownError("it gives something else than one tensor")
    _check_begins([tensor])
    yield [tensor], [found]


def _check_begins(tensors):
    """Raises if an operation gave back what it was given: a walk from the
    outputs would end there, and not see it (`ops.cond` of functions that
    return a tensor around them)."""
    made_by = (getattr(v, "_keras_history", (None,))[0] for v in tensors)
    if any(operation is not None for operation in made_by):
        raise UnknownError(
            "an operation chooses between its input and something else"
        )


def _unreadable(what, error):
    """With what an error says itself, not what Keras puts around it."""
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines()]
    lines = [v for v in lines if v and not v.startswith("Exception encoun")]
    said = lines[0][:160] if lines else ""
    if isinstance(error, UnknownError):
        return said
    return (
        f"{what} cannot be read as layers and operations of Keras "
        f"({type(error).__name__}: {said})"
    )


def _agree(shapes, known):
    return len(shapes) == len(known) and all(
        len(a) == len(b) and all(k is None or k == n for n, k in zip(a, b))
        for a, b in zip(shapes, known)
    )


def _copy(value):
    """A symbolic tensor like one; also of a constant of equal rows."""
    if not is_tensor(value) and not (
        tuple(getattr(value, "shape", ()))[:1] == (ROWS,) and are_alike(value)
    ):
        raise UnknownError(
            "its `call` gives something that is no row for each record"
        )
    dtype = keras.backend.standardize_dtype(value.dtype)
    new = keras.KerasTensor(tuple(value.shape), dtype)
    mask = getattr(value, "_keras_mask", None)
    if mask is not None:
        new._keras_mask = mask
    return new


def _check_kept(layer, before, symbols):
    """Raises if a call changed attributes of a layer."""
    now = {k: v for k, v in vars(layer).items() if k not in _OF_KERAS}
    changed = [k for k in now if k not in before or now[k] is not before[k]]
    kept = [name for name, _ in _symbols(layer) - symbols]
    for name in changed + kept:
        vars(layer).pop(name)
        raise UnknownError(
            f"its `call` keeps something in the attribute `{name}`"
        )


def _symbols(layer):
    """Symbolic tensors in attributes of a layer that hold several things."""
    return {
        (name, id(leaf))
        for name, value in vars(layer).items()
        if isinstance(value, (list, tuple, dict))
        for leaf in keras.tree.flatten(value)
        if is_tensor(leaf)
    }
