"""Runs a feature map on made-up records, to see whether they stay apart.

The features of a record must be the same to the last bit whoever else is in
its batch. A batch of ordinary records is the measure; in every other one some
of its records stay where they are and the others become something else:
nothing, other records, extreme ones, copies of those that stay. Rows are
split by the bits of their numbers, so that of any two rows each stays once
while the other changes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

# What stands in the place of a length that is not known.
_LENGTHS = (9, 32, 96, 224)
_SIZES = (0.0, 1e-6, 1e4, 1e30)
_WHOLE_SIZES = (0, 1, 1000, 100_000, 2**62, -(2**62))
_WORDS = np.array(
    "alpha beta gamma delta one two three 1 2 x".split()
    + ["alpha one", "one two three beta gamma", "x, 1; Two-three " * 20],
    object,
)


def probe(
    features: Callable,
    inputs: Sequence[Any],
    *,
    rows: int,
    variables: Sequence[Any] = (),
    thorough: bool = True,
    when: str = "",
    may_draw: bool = False,
) -> None:
    """Refuses a map in which one record changes the features of another.

    Args:
        features: function from a list of arrays, one for each input, to a
            list of arrays, each with a row for every record.
        inputs: one `(shape, dtype, categories)` for each input: the shape of
            one record, `None` where a length is not known, a dtype name, and
            `None` or how many categories its numbers may name.
        rows: int, rows of a batch.
        variables: what no call may change.
        thorough: whether all pairs of rows are tried.
        when: when the map is run, in words, for errors.
        may_draw: whether a map passes that gives other features each time;
            nothing can be seen of it then.

    Raises:
        ValueError: if features of a record depend on other records or on
            what was read before, or the map cannot be run.

    Example:

    >>> numbers = [((4,), "float32", None)]
    >>> probe(lambda x: [x[0] / 255], numbers, rows=256)
    >>> probe(lambda x: [x[0] / x[0].max()], numbers, rows=256)
    Traceback (most recent call last):
    ...
    ValueError: The layers under the private layer mix the records of a ...
    """
    with _Watched(features, variables) as watched:
        _probe(watched, inputs, rows, thorough, when, may_draw)
    for path in watched.written:
        raise ValueError(
            "The layers under the private layer keep something of the "
            f"records: variable '{path}' changed when records were read"
            f"{when}. Every layer must treat each record on its own and keep "
            "nothing."
        )


def _probe(features, inputs, rows, thorough, when, may_draw):
    records, found = _ordinary(features, inputs, rows)
    everyone = np.ones(rows, bool)

    def is_repeated():
        return _same(features(records.ordinary), found, everyone)

    if may_draw and not is_repeated():
        return
    plan = _thorough_plan if thorough else _short_plan
    for kept, kind, batch in plan(records):
        _compare(features, batch, found, kept, kind, when)
    if not is_repeated():
        raise ValueError(
            "The layers under the private layer gave other features when "
            f"the same batch was read again{when}: they draw random "
            "numbers or remember what they read. Every layer must be a "
            "function of its input."
        )


class _Watched:
    """A map, and the variables that any call of it changed.

    They are put back: what a first look left in them would hide from a second
    that they change.
    """

    def __init__(self, features, variables):
        self._features, self._variables = features, variables
        self.written = []

    def __enter__(self):
        self._before = [_value(v).copy() for v in self._variables]
        return self

    def __call__(self, arrays):
        try:
            return self._features(arrays)
        finally:
            self.written += [v.path for v, _ in self._changed()]

    def __exit__(self, *_):
        for variable, value in self._changed():
            variable.assign(value)

    def _changed(self):
        return [
            (variable, value)
            for variable, value in zip(self._variables, self._before)
            if _value(variable).tobytes() != value.tobytes()
        ]


def _predicted(model, arrays):
    """What a compiled model gives for a batch, a list of arrays."""
    found = model.predict_on_batch(_packed(model, arrays))
    # Under a strategy, each replica gives the whole batch.
    rows = len(arrays[0])
    return [np.asarray(v)[:rows] for v in keras.tree.flatten(found)]


def check_model(model, *, rows, thorough):
    """`probe` of a functional model, compiled as it reads records."""

    def features(arrays):
        return _predicted(model, arrays)

    seeds = _Seeds(model)
    try:
        probe(
            features,
            _inputs(model),
            rows=rows,
            variables=seeds.others,
            thorough=thorough,
        )
    finally:
        seeds.rewind()


def check_training(below, part, *, rows):
    """`probe` of a part of a model while it trains, on what is below it.

    Args:
        below: model from records to what the part reads.
        part: model from there to what the part makes of it.
        rows: int, rows of a batch.
    """
    seeds = _Seeds(part)

    def features(arrays):
        # The same draws each time: what is left are the records.
        seeds.rewind()
        read = _predicted(below, arrays)
        found = part(_packed(part, read), training=True)
        return [
            keras.ops.convert_to_numpy(v) for v in keras.tree.flatten(found)
        ]

    try:
        probe(
            features,
            _inputs(below, part),
            rows=rows,
            variables=seeds.others,
            thorough=False,
            when=" while training",
            may_draw=True,
        )
    finally:
        seeds.rewind()


def _packed(model, arrays):
    return keras.tree.pack_sequence_as(model.input, arrays)


def _inputs(model, *above):
    models = (model, *above)
    return [
        (tuple(t.shape[1:]), str(t.dtype), _categories(models, t.dtype))
        for t in model.inputs
    ]


class _Seeds:
    """The states of a model's random numbers, and its other variables."""

    def __init__(self, model):
        layers = model._flatten_layers(include_self=False)
        self._states = [
            (generator.state, _value(generator.state).copy())
            for layer in layers
            for generator in getattr(layer, "_seed_generators", ())
        ]
        drawn = {id(state) for state, _ in self._states}
        self.others = [v for v in model.variables if id(v) not in drawn]

    def rewind(self):
        for state, value in self._states:
            state.assign(value)


def _categories(models, dtype):
    """How many categories every index may name; `None` for no index.

    Fractions are indices only where an embedding reads fractions.
    """
    found = []
    for model in models:
        for layer in model._flatten_layers(include_self=False):
            if isinstance(layer, keras.layers.Embedding):
                size = layer.input_dim
            elif isinstance(layer, keras.layers.CategoryEncoding):
                size = layer.num_tokens
            else:
                continue
            nodes = layer._inbound_nodes
            kinds = [str(t.dtype) for n in nodes for t in n.input_tensors]
            if "int" in str(dtype) or any("float" in kind for kind in kinds):
                found.append(size)
    return min(found, default=None)


def _value(variable):
    tensor = keras.ops.convert_to_tensor(variable)
    return keras.ops.convert_to_numpy(tensor)


# Comparison ------------------------------------------------------------------


def _ordinary(features, inputs, rows):
    """Records that the map runs on, and what it makes of them."""
    unknown = any(None in shape for shape, *_ in inputs)
    best, failed = None, None
    for length in _LENGTHS if unknown else _LENGTHS[:1]:
        filled = [
            (tuple(length if d is None else d for d in shape), *others)
            for shape, *others in inputs
        ]
        for level in _LEVELS:
            records = _Records(filled, rows, level)
            try:
                found = features(records.ordinary)
                features(records.zeros())
            # Every backend has errors of its own.
            except Exception as e:
                failed = e
                continue
            share = min(np.mean(_finite(v)) if v.size else 0 for v in found)
            if best is None or share > best[0]:
                best = share, records, found
            if share == 1:
                break
        if best is not None:
            break
    if best is None or not best[0]:
        raise ValueError(_not_run(inputs, failed)) from failed
    _, records, found = best
    if any(np.shape(v)[:1] != (rows,) for v in found):
        raise ValueError(
            "The layers under the private layer must give a row of features "
            f"for each record. Received: shapes {[v.shape for v in found]} "
            f"for {rows} records"
        )
    return records, found


def _not_run(inputs, failed):
    shapes = [tuple(shape) for shape, *_ in inputs]
    what = "they give no finite number"
    if failed is not None:
        what = f"{type(failed).__name__}"
    backend = keras.backend.backend()
    if any(None in shape for shape in shapes):
        advice = "Give every length in `keras.Input(shape)`."
    elif any(kind == "string" for _, kind, *_ in inputs) and (
        backend != "tensorflow"
    ):
        advice = (
            f"Text inputs need TensorFlow, and the backend is {backend}: pass "
            "each word's place in a public list, "
            "`np.array([words.index(v) for v in column])`, to an input of "
            "whole numbers."
        )
    else:
        advice = (
            "Try `model.predict` on a batch of records of your own: the "
            "layers must run on whatever has these shapes and types."
        )
    return (
        "The layers under the private layer could not be run on made-up "
        f"records ({what}), so it was not seen whether they treat every "
        f"record on its own. {advice} Received inputs of shapes {shapes} and "
        f"types {[kind for _, kind, *_ in inputs]}"
    )


def _compare(features, batch, expected, kept, kind, when):
    try:
        found = features(batch)
    # Every backend has errors of its own.
    except Exception as e:
        if kind in ("extreme", "other"):
            # Not every number is a record: an index may be out of range.
            return
        raise ValueError(
            "The layers under the private layer could not be run on a batch "
            f"of records that they run on in other company{when}. Every "
            "layer must treat each record on its own."
        ) from e
    if not _same(found, expected, kept):
        others = {"copies": "copies of it", "other": "other ones"}
        raise ValueError(
            "The layers under the private layer mix the records of a batch: "
            "a record's features changed when other records changed "
            f"({others.get(kind, kind)}{when}). Every layer must treat each "
            "record on its own."
        )


def _same(found, expected, rows):
    """Whether arrays agree in these rows to the last bit; NaN equals NaN."""
    return len(found) == len(expected) and all(
        a.shape == b.shape and a.dtype == b.dtype and _equal(a[rows], b[rows])
        for a, b in zip(found, expected)
    )


def _equal(a, b):
    if a.dtype.kind in "OSU":
        return bool(np.all(a == b))
    bits = [
        np.ascontiguousarray(v).reshape(-1, 1).view(np.uint8) for v in (a, b)
    ]
    differ = np.any(bits[0] != bits[1], axis=1)
    pair = [v.reshape(-1)[differ] for v in (a, b)]
    return all(np.all(v != v) for v in pair)


def _finite(array):
    if array.dtype.kind in "OSUbiu":
        return np.ones(array.shape, bool)
    return np.isfinite(array)


def _short_plan(records):
    """A few batches, as `(rows that stay, kind of the others, batch)`."""
    number = np.arange(records.rows)
    low = number < records.rows // 2
    yield from _changed(records, number % 2 == 0, "zeros")
    yield from _changed(records, number % 2 == 1, "extreme")
    yield from _changed(records, low, "other")
    yield from _changed(records, ~low, "copies")
    yield from _changed(records, number == records.rows // 3, "zeros")
    yield from _changed(records, number == 0, "zeros")


def _thorough_plan(records):
    """Batches in which any two rows meet, once each way."""
    rows = records.rows
    number = np.arange(rows)
    kinds = ("zeros", "extreme", "other", "copies")
    for bit in range(max(1, (rows - 1).bit_length())):
        for side in (0, 1):
            kept = (number >> bit) % 2 == side
            kind = kinds[(2 * bit + side + bit // 2) % 4]
            yield from _changed(records, kept, kind, 1 << bit)
    # A neighbour on the other side that is the same.
    for side in (0, 1):
        kept = number % 2 == side
        yield from _changed(records, kept, "copies", 1 - 2 * side, around=True)
    # One record that stands out, alone, and in company of itself.
    for row, kind in ((rows // 3, "extreme"), (rows - 1, "other")):
        yield from _changed(records, number != row, kind)
    for row, kind in ((0, "zeros"), (rows // 2, "copies")):
        yield from _changed(records, number == row, kind, around=True)


def _changed(records, kept, kind, step=1, around=False):
    """Nothing if all rows stay or none does."""
    count = int(np.sum(~kept))
    if not 0 < count < len(kept):
        return
    if kind == "copies":
        number = np.arange(len(kept))
        twin = (number - step) % len(kept) if around else number ^ step
        # A row that stays, whichever it is, where the twin does not.
        stays = np.flatnonzero(kept)
        twin = np.where(
            (twin < len(kept)) & kept[twin % len(kept)],
            twin % len(kept),
            stays[number % len(stays)],
        )
        batch = [
            array[np.where(kept, number, twin)] for array in records.ordinary
        ]
        yield kept, kind, batch
        return
    changed = getattr(records, kind)(count)
    batch = [array.copy() for array in records.ordinary]
    for array, new in zip(batch, changed):
        array[~kept] = new
    yield kept, kind, batch


# Records ---------------------------------------------------------------------


def _wide(random, shape):
    """Records of three sizes: fractions, normal, up to 255."""
    array = random.random(shape, np.float32)
    size = random.integers(0, 3, shape[0])
    normal = size == 1
    array[normal] = random.standard_normal(
        (int(normal.sum()), *shape[1:]), np.float32
    )
    array[size == 2] *= 255
    return array


def _fractions(random, shape):
    return random.random(shape, np.float32)


def _binary(random, shape):
    return random.integers(0, 2, shape)


# From bold to timid: the first that a map runs on is taken. Whole numbers
# are below these.
_LEVELS = {_wide: 256, _fractions: 16, _binary: 2}


class _Records:
    """Made-up records: some ordinary ones, and what may take their place."""

    def __init__(self, inputs, rows, level):
        self._random = np.random.default_rng(0)
        self._inputs, self._level = inputs, level
        self.rows = rows
        self.ordinary = self.other(rows)
        # Rows without a record are zeros, too.
        for array, zeros in zip(self.ordinary, self.zeros(1)):
            array[:1] = zeros

    def other(self, rows):
        return [self._drawn(*spec, rows) for spec in self._inputs]

    def zeros(self, rows=None):
        rows = self.rows if rows is None else rows
        return [
            np.full((rows, *shape), "", object)
            if dtype == "string"
            else np.zeros((rows, *shape), dtype)
            for shape, dtype, _ in self._inputs
        ]

    def extreme(self, rows):
        """One size for each row."""
        return [self._far(*spec, rows) for spec in self._inputs]

    def _drawn(self, shape, dtype, categories, rows):
        random, shape = self._random, (rows, *shape)
        if dtype == "string":
            return random.choice(_WORDS, shape)
        if dtype == "bool":
            return random.integers(0, 2, shape).astype(bool)
        if categories is None and "int" in dtype:
            categories = min(_LEVELS[self._level], np.iinfo(dtype).max)
        if categories is not None:
            return random.integers(0, categories, shape).astype(dtype)
        return self._level(random, shape).astype(dtype)

    def _far(self, shape, dtype, categories, rows):
        random, each = self._random, (rows, *[1] * len(shape))
        if dtype in ("string", "bool"):
            return self._drawn(shape, dtype, categories, rows)
        shape = (rows, *shape)
        if categories is not None:
            # One that is out of range may end the process of an accelerator.
            size = random.choice((0, categories - 1), each)
        elif "int" in dtype:
            kind = np.iinfo(dtype)
            size = random.choice(
                np.clip(_WHOLE_SIZES, kind.min, kind.max), each
            )
        else:
            # Half precision has no larger numbers.
            sizes = np.minimum(_SIZES, 6e4 if dtype == "float16" else 1e30)
            sign = random.choice(np.array([-1, 1], np.float32), shape)
            size = sign * random.choice(sizes.astype(np.float32), each)
        return np.broadcast_to(size, shape).astype(dtype)
