"""One call in a graph of Keras tensors, and what can be wrong with it.

Records lie along axis 0 of every tensor of such a graph.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


class MixesError(Exception):
    """It is known that records reach the features of others."""


class UnknownError(Exception):
    """It is not known that records stay apart."""


class UnlistedError(UnknownError):
    """Nothing is known of a layer but its code."""


@dataclasses.dataclass(frozen=True)
class SymbolicCall:
    """A call of a layer or an operation.

    Attributes:
        operation: what is called.
        args, kwargs: what it is called with.
        inner: function of a layer, or of a function of one tensor, and a
            shape, that checks what this one calls.
        training: whether the records are read while training.
    """

    operation: Any
    args: tuple
    kwargs: dict
    inner: Callable
    training: bool = False

    @functools.cached_property
    def leaves(self):
        """All arguments, without their structure."""
        return keras.tree.flatten((self.args, self.kwargs))

    @functools.cached_property
    def tensors(self):
        """Arguments that depend on records."""
        return [v for v in self.leaves if is_tensor(v)]


def is_tensor(value):
    """Whether a value depends on records."""
    return isinstance(value, keras.KerasTensor)


def check_not_replaced(operation):
    """Raises if an operation does not do what its class does."""
    for name, value in vars(operation).items():
        # Keras wraps these two in every layer.
        if name not in ("build", "quantize") and callable(value):
            if inspect.isroutine(getattr(type(operation), name, None)):
                raise UnknownError(f"its `{name}` was replaced")


def _is_plain(value):
    return value is None or isinstance(
        value, (bool, int, float, complex, str, np.generic)
    )


def check_no_arrays(call, alike=False):
    """Raises for constants with axes: one may hold a row for each record.

    With `alike` those pass whose rows are all the same.
    """
    for value in call.leaves:
        if not is_tensor(value) and not _is_plain(value):
            if not alike or not are_alike(value):
                raise UnknownError(
                    "it is called with an array beside the records"
                )


def are_alike(value):
    """Whether a constant has the same numbers in every row."""
    if not getattr(value, "shape", ()):
        return False
    rows = keras.ops.convert_to_numpy(value)
    return bool(np.all(rows == rows[:1]))


def with_axes(call):
    """Arguments that have axes: tensors, and constants."""
    return [v for v in call.leaves if is_tensor(v) or not _is_plain(v)]


def check_rank(tensor, low=1, high=None):
    """Raises unless a tensor has from `low` to `high` axes.

    Many layers take one record for a batch if an axis is missing.
    """
    found = len(tensor.shape)
    if found < low:
        raise MixesError(
            f"it takes records for parts of one: its input has shape "
            f"{tuple(tensor.shape)} and needs {low} axes"
        )
    if high is not None and found > high:
        raise UnknownError(f"its input has shape {tuple(tensor.shape)}")


def only_tensor(call, low=1, high=None, mask=None):
    """The one tensor that a call is of, with `low` to `high` axes.

    There may be a `mask` beside it.
    """
    check_no_arrays(call)
    tensors = [v for v in call.tensors if v is not mask]
    if len(tensors) != 1:
        raise UnknownError(f"it is called with {len(tensors)} tensors")
    (tensor,) = tensors
    check_rank(tensor, low, high)
    return tensor


def check_axes(axes, rank):
    """Raises unless axes are known and none of them is that of the records.

    Args:
        axes: an int, or ints in a list or tuple.
        rank: int, how many axes there are.
    """
    if axes is None:
        raise MixesError("it runs over all axes, that of the records too")
    for axis in axes if isinstance(axes, (list, tuple)) else [axes]:
        if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
            raise UnknownError(f"its axis is {axis!r}")
        if int(axis) % rank == 0:
            raise MixesError(f"its axis {axis} is that of the records")


def check_einsum(equation, ranks):
    """Raises unless an equation keeps the first axis of records apart.

    Args:
        equation: str, as `keras.ops.einsum` takes it.
        ranks: how many axes each operand has; `None` for one that does not
            depend on records.
    """
    left, arrow, out = equation.replace(" ", "").partition("->")
    specs = left.split(",")
    if not arrow or len(specs) != len(ranks):
        raise UnknownError(f"its equation is {equation!r}")
    constant = [s for s, rank in zip(specs, ranks) if rank is None]
    if any("." in spec for spec in constant):
        raise UnknownError(f"its equation is {equation!r}")
    rows, elided = set(), set()
    for spec, rank in zip(specs, ranks):
        if rank is None:
            continue
        letters = spec.replace("...", "")
        elided.add(rank - len(letters))
        first = letters[:1]
        if spec.startswith("...") and rank > len(letters):
            first = "..."
        if not first or letters.count(first) > 1:
            raise MixesError(f"its equation is {equation!r}")
        rows.add(first)
    (row, *others) = rows
    if elided == {0}:
        out = out.replace("...", "")
    # Axes that are not named line up from the right.
    apart = not others and out.startswith(row)
    if not apart or (row == "..." and len(elided) > 1):
        raise MixesError(f"its equation is {equation!r}")
    if row in "".join(constant):
        # A row of it for each record.
        raise UnknownError(f"its equation is {equation!r}")
