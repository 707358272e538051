"""Operations of `keras.ops` that keep records apart, and others."""

import sys

import keras
import numpy as np
import pytest
from keras import ops
from row_models import ROWS, accepted, graph, refused

from keras_fm.training import row_operations
from keras_fm.training.symbolic_call import (
    MixesError,
    SymbolicCall,
    UnknownError,
    check_einsum,
)

ALONG_ROWS = {
    "divided by the largest": lambda x: x / ops.max(x, axis=0),
    "largest, negative axis": lambda x: x - ops.max(x, -2, keepdims=True),
    "all axes": lambda x: x - ops.max(x, keepdims=True),
    "mean": lambda x: x - ops.mean(x, axis=(0, 1), keepdims=True),
    "sorted": lambda x: ops.sort(x, axis=0),
    "cumulative": lambda x: ops.cumsum(x, axis=0),
    "cumulative, flat": lambda x: ops.cumsum(x),
    "quantile": lambda x: x - ops.quantile(x, 0.5, axis=0, keepdims=True),
    "median": lambda x: x - ops.median(x, axis=0, keepdims=True),
    "argmax": lambda x: x * ops.cast(ops.argmax(x, axis=0), "float32"),
    "rolled": lambda x: ops.roll(x, 1, axis=0),
    "rolled, flat": lambda x: ops.roll(x, 1),
    "flipped": lambda x: ops.flip(x, axis=0),
    "flipped in all axes": lambda x: ops.flip(x),
    "softmax": lambda x: ops.softmax(x, axis=0),
    "normalised": lambda x: ops.normalize(x, axis=0),
    "moments": lambda x: x - ops.moments(x, axes=[0], keepdims=True)[0],
    "transposed": lambda x: ops.transpose(x),
    "transposed twice": lambda x: ops.transpose(ops.sort(ops.transpose(x))),
    "swapped": lambda x: ops.swapaxes(x, 0, 1),
    "moved": lambda x: ops.moveaxis(x, 0, -1),
    "merged rows": lambda x: ops.reshape(x, (1, -1, 6)),
    "joined rows": lambda x: ops.reshape(x, (-1, 12)),
    "split rows": lambda x: ops.reshape(x, (-1, 3)),
    "raveled": lambda x: ops.ravel(x),
    "gram matrix": lambda x: ops.matmul(x, ops.transpose(x)),
    "gram by einsum": lambda x: ops.einsum("bi,ci->bc", x, x),
    "sum by einsum": lambda x: ops.einsum("bi->i", x),
    "moments by einsum": lambda x: ops.einsum("bi,bj->ij", x, x),
    "product with rows": lambda x: ops.matmul(ops.ones((6, 6)), x),
    "tensordot": lambda x: ops.tensordot(x, x, axes=[[0], [0]]),
    "stacked first": lambda x: ops.stack([x, x]),
    "joined first": lambda x: ops.concatenate([x, x], axis=0),
    "a new first axis": lambda x: ops.expand_dims(x, 0),
    "the first row": lambda x: x - x[0],
    "taken rows": lambda x: ops.take(x, [0, 1], axis=0),
    "taken flat": lambda x: ops.take(x, [0, 1]),
    "padded": lambda x: ops.pad(x, ((1, 1), (0, 0))),
    "tiled": lambda x: ops.tile(x, (2, 1)),
    "repeated": lambda x: ops.repeat(x, 2, axis=0),
    "one for each row": lambda x: x * ops.sum(x, axis=1),
    "differences": lambda x: ops.diff(x, axis=0),
    "squeezed": lambda x: ops.squeeze(x),
    "norm": lambda x: x / ops.norm(x),
    "largest index": lambda x: ops.one_hot(ops.argmax(x, axis=1), 6, axis=0),
}


@pytest.mark.parametrize("name", ALONG_ROWS)
def test_operations_along_the_records_are_refused(name):
    try:
        model = graph(ALONG_ROWS[name])
    # A backend may not take the operation on tensors without values.
    except Exception as e:
        pytest.skip(f"not a graph of this backend: {e!r}"[:200])
    message = refused(model, "^Operation .* mixes records")
    operation = message.split("'")[1]
    # What is known is not made good by saying otherwise.
    assert refused(model, "mixes records", (operation,)) == message


@pytest.mark.parametrize(
    "key",
    [
        (slice(None, None, -1), 0),
        (slice(None, None, 2), slice(None)),
        (slice(1, None), slice(None)),
        (slice(0, 2), 0),
        (None, 0),
        (0, Ellipsis),
        (Ellipsis, 0, slice(None)),
        0,
    ],
)
def test_parts_of_a_batch_are_refused(key):
    model = graph(lambda x: x[key], batch_size=ROWS)
    refused(model, "takes some records out of a batch")


APART = {
    "scaled": lambda x: x / 255.0,
    "weighted": lambda x: x * np.arange(6.0, dtype="float32"),
    "centred": lambda x: x - ops.mean(x, axis=1, keepdims=True),
    "centred, negative": lambda x: x - ops.mean(x, -1, keepdims=True),
    "clipped": lambda x: ops.clip(x, 0.0, 1.0),
    "chosen": lambda x: ops.where(x > 0, x, ops.zeros_like(x)),
    "sorted": lambda x: ops.sort(x, axis=1),
    "reshaped": lambda x: ops.reshape(x, (-1, 2, 3)),
    "permuted": lambda x: ops.transpose(ops.reshape(x, (-1, 2, 3)), (0, 2, 1)),
    "sliced": lambda x: x[:, 1:4],
    "last": lambda x: x[..., -1:],
    "a new last axis": lambda x: x[:, :, None],
    "stacked": lambda x: ops.stack([x, -x], axis=1),
    "joined": lambda x: ops.concatenate([x, ops.exp(-x)], axis=-1),
    "split": lambda x: ops.concatenate(ops.split(x, 2, axis=1)[::-1], axis=1),
    "matmul": lambda x: x @ np.ones((6, 2), "float32"),
    "einsum": lambda x: ops.einsum("bi,ij->bj", x, np.ones((6, 2), "float32")),
    "einsum with dots": lambda x: ops.einsum(
        "...i,ij->...j", x, np.ones((6, 2), "float32")
    ),
    "outer": lambda x: ops.einsum("bi,bj->bij", x, x),
    "batched product": lambda x: ops.matmul(x[:, :, None], x[:, None, :]),
    "padded": lambda x: ops.pad(x, ((0, 0), (1, 1))),
    "tiled": lambda x: ops.tile(x, (1, 2)),
    "taken": lambda x: ops.take(x, [0, 2], axis=1),
    "softmax": lambda x: ops.softmax(x),
    "norm": lambda x: x / ops.norm(x, axis=1, keepdims=True),
    "one hot": lambda x: ops.one_hot(ops.argmax(x, axis=1), 6),
    "rolled": lambda x: ops.roll(x, 1, axis=1),
    "a variable": lambda x: x * keras.Variable(np.ones(6, "float32")),
}


@pytest.mark.parametrize("name", APART)
def test_operations_within_records_are_known(name):
    assert accepted(graph(APART[name])) == []


class Half(keras.Operation):
    """An operation of a user's own."""

    def call(self, x):
        return x / 2

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def test_an_operation_that_is_not_known_is_refused_with_a_way_out():
    model = graph(Half(name="half"))
    name = model.operations[-1].name
    message = refused(model, "not known to treat every record on its own")
    assert f"guarantee=keras_fm.Proven(per_record=('{name}',))" in message
    assert accepted(model, declared=(name,)) == [
        f"declared to treat every record on its own: operation '{name}' (Half)"
    ]


def test_a_constant_with_a_row_for_each_record_is_refused():
    """Rows then would differ by where they are, not by what they hold."""

    def times(constant):
        return graph(lambda x: x * constant, shape=(6,), batch_size=ROWS)

    rows = ops.reshape(ops.arange(ROWS * 6, dtype="float32"), (ROWS, 6))
    refused(times(rows), "a constant in it has shape")
    assert accepted(times(ops.broadcast_to(rows[:1], (ROWS, 6)))) == []


def test_joined_with_a_constant():
    """A class token in front of the parts of a record."""

    def joined(token):
        return graph(
            lambda x: ops.concatenate([token, x], axis=1), (3, 2), batch_size=4
        )

    assert accepted(joined(ops.ones((4, 1, 2)))) == []
    rows = ops.reshape(ops.arange(8.0), (4, 1, 2))
    refused(joined(rows), "an array beside the records")


@pytest.mark.parametrize(
    "equation, ranks, fine",
    [
        ("bi,ij->bj", (2, None), True),
        ("ij,bj->bi", (None, 2), True),
        ("bij,bjk->bik", (3, 3), True),
        ("b...i,ij->b...j", (4, None), True),
        ("...i,ij->...j", (3, None), True),
        # Nothing is left for the dots, and b is the first axis.
        ("...bi,ij->...bj", (2, None), True),
        ("...i,...i->...", (2, 2), True),
        ("bi,ij->j", (2, None), False),
        ("bi,ij->jb", (2, None), False),
        ("bi,ci->bc", (2, 2), False),
        ("bi,bj->ij", (2, 2), False),
        ("bi,ib->bi", (2, 2), False),
        ("bb->b", (2,), False),
        ("bib->bi", (3,), False),
        ("...i,...i->...", (3, 2), False),
        ("...i,bi->...i", (2, 2), False),
        ("i...,ij->j...", (2, None), False),
        ("bi,bj->bij", (2, None), None),
        ("bi,ij", (2, None), None),
        ("bi,...j->bij", (2, None), None),
    ],
)
def test_equations(equation, ranks, fine):
    if fine:
        check_einsum(equation, ranks)
        return
    with pytest.raises(UnknownError if fine is None else MixesError):
        check_einsum(equation, ranks)


# Their axis is not all that they are made with.
MORE_THAN_AN_AXIS = """
    ArraySplit Argpartition Nanpercentile Nanquantile Percentile Quantile
    Repeat Roll Split Squeeze Unstack
""".split()


@pytest.mark.parametrize(
    "name",
    [n for n in row_operations._ALONG_AXIS if n not in MORE_THAN_AN_AXIS],
)
def test_reductions_and_their_axes(name):
    modules = [sys.modules[m] for m in row_operations._MODULES]
    kinds = [vars(m)[name] for m in modules if name in vars(m)]
    if not kinds:
        pytest.skip("newer than this Keras")
    x = keras.Input((6,))
    for axis in (1, -1, 0, -2, None):
        call = SymbolicCall(kinds[0](axis=axis), (x,), {}, None)
        if axis in (1, -1):
            row_operations.check_operation(call)
        else:
            with pytest.raises(MixesError):
                row_operations.check_operation(call)
