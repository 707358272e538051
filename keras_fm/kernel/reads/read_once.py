"""Data sets that hand on every record once, without weights."""

import re

import numpy as np

from keras_fm.kernel.reads import columns


def check(data):
    """Refuses a data set that hands on records more than once, or with
    weights, or is not dense; nothing is read.

    A release counts what it reads, so a record that comes twice counts
    twice. What functions of `map` and `filter` and data sets of your own do
    cannot be seen; other parts of a `tf.data.Dataset` are of kinds that
    are known.

    Args:
        data: see `records.batches`; other forms than a `tf.data.Dataset` or
            a `DataLoader` of PyTorch pass if they are dense.

    Raises:
        ValueError: saying what to write instead.
    """
    if is_loader(data):
        _check_loader(data)
    elif hasattr(data, "as_numpy_iterator"):
        _check_dataset(data)
    else:
        columns.check_dense(data, "data")
        for name, array in columns.flatten(data, "data"):
            columns.check_dense(array, name)


def _check_dataset(data):
    if int(data.cardinality()) == -1:
        raise ValueError(
            "The dataset repeats without end, so a pass over it never "
            "stops. Remove `.repeat()`."
        )
    spec = data.element_spec
    if isinstance(spec, (tuple, list)) and len(spec) > 2:
        raise ValueError(
            "A dataset must give pairs (x, y). Sample weights change what a "
            "record weighs and are not supported by a release. Received "
            f"elements of {len(spec)} parts"
        )
    for name, part in columns.flatten(spec, "data"):
        columns.check_dense(part, name)
    kinds = {*_check_once(data).values()}
    if kinds & _PADDED and not _has_known_lengths(spec):
        _refuse_padding()


# What brings records of different lengths into one batch.
_PADDED = {"DenseToRaggedDataset", "PaddedBatchDataset"}


def _has_known_lengths(spec):
    shapes = [part.shape for _, part in columns.flatten(spec, "data")]
    return all(s.rank is not None and None not in s[1:] for s in shapes)


def _refuse_padding():
    raise ValueError(
        "The dataset pads to the longest record of a batch, so that one "
        "record more may change what all others are. Pad to a public length, "
        "`padded_batch(size, padded_shapes=...)` or `x.to_tensor(shape=(None, "
        "length))`, or give batches of one record."
    )


def _is_one_series(dataset):
    """Whether this is one element, given again without end."""
    kinds = [
        type(part).__name__.strip("_") for part in (dataset, *dataset._inputs())
    ]
    return kinds == ["RepeatDataset", "TensorDataset"] and dataset._count == -1


def _check_once(dataset):
    """Refuses a data set that takes another one twice, or in which one record
    decides which others come.

    Returns:
        dict from the ids of what it is made of to their kinds.
    """
    kind = type(dataset).__name__.strip("_")
    if kind == "DirectedInterleaveDataset":
        raise ValueError(
            "The dataset chooses among others (`sample_from_datasets`, "
            "`choose_from_datasets`, `rejection_resample`), so a record may "
            "come any number of times. Pass a dataset that gives each record "
            "once."
        )
    if kind == "ZipDataset" and any(map(_is_one_series, dataset._inputs())):
        # As `keras.utils.timeseries_dataset_from_array` makes them.
        raise ValueError(
            "The dataset cuts windows out of one series, as "
            "`keras.utils.timeseries_dataset_from_array` does, so a row of it "
            "may be in several windows. If a window is what you protect, "
            "give the windows as arrays, `x, y = map(np.concatenate, "
            "zip(*dataset))`; if a person has several of them, name the "
            "persons: `Proven(unit=Unit(owners=ids))`."
        )
    parts = [_check_once(part) for part in dataset._inputs()]
    found = {id(dataset): kind}
    for part in parts:
        found |= part
    is_shared = len(found) < 1 + sum(map(len, parts))
    if kind == "RepeatDataset" and int(dataset._count) == -1:
        raise ValueError(
            "The dataset repeats its records without end, and a release "
            "would never have read them all. Remove `.repeat()`; `epochs` of "
            "`fit` repeats training."
        )
    if kind == "RepeatDataset" and int(dataset._count) != 1:
        raise ValueError(
            f"The dataset repeats its records {int(dataset._count)} times, "
            "and a release would count each of them as often. Remove "
            "`.repeat()`; `epochs` of `fit` repeats training."
        )
    if kind == "ConcatenateDataset" and is_shared:
        raise ValueError(
            "The dataset joins two parts of one source (`.concatenate()`), "
            "and nothing shows that no record is in both: a release would "
            "count it twice. Make the parts of different arrays or files."
        )
    if (
        kind == "ZipDataset"
        and is_shared
        and not _IN_ORDER >= {*found.values()}
    ):
        raise ValueError(
            "The dataset is zipped with itself, and parts of it are shuffled, "
            "skipped or chosen before, so a record may come in several pairs. "
            "Zip first, or make the pairs by `.map()`."
        )
    if kind in _CHOOSING and _SHUFFLING & {*found.values()}:
        _refuse_choice(kind)
    if kind == "FilterDataset" and any(map(_holds_batches, dataset._inputs())):
        _refuse_filter()
    if kind == "WindowDataset" and int(dataset._shift) < int(dataset._size):
        raise ValueError(
            "The dataset has windows that overlap, and a release would count "
            "a record once for each. Set `shift` to at least `size`."
        )
    if any(
        hasattr(dataset, name) and bool(getattr(dataset, name))
        for name in ("_drop_remainder", "_drop_remainder_t")
    ):
        raise ValueError(
            "The dataset leaves out what does not fill a batch, so that one "
            "record more may bring in many others. Set "
            "`drop_remainder=False`."
        )
    if kind in _MADE_BY_FUNCTIONS:
        if _check_function(dataset, kind):
            # For what is chosen of it.
            found[id(dataset)] = "ShuffleDataset"
    elif kind not in _ONCE:
        raise ValueError(
            f"The dataset has a part of a kind, {kind}, of which it is not "
            "known that each record comes once, whoever else does. Pass "
            "arrays, or a function that returns an iterator over (x, y) "
            "batches."
        )
    return found


# What hands on some records by their places, and what gives them others.
_CHOOSING = {"ShardDataset", "SkipDataset", "TakeDataset"}
_SHUFFLING = {"GlobalShuffleDataset", "ShuffleDataset"}
_LEAVING_OUT = _CHOOSING | {"FilterDataset"}


def _refuse_choice(kind):
    name = kind.removesuffix("Dataset").lower()
    raise ValueError(
        "The dataset chooses records by their places after they were shuffled "
        f"(`.{name}()`), so that one record more changes which others come, "
        "and every pass may have others. Choose first and then shuffle, or "
        "choose by what a record is: `keras_fm.evaluation.part_by_hash`."
    )


# Elements of these are several records, by their places.
_BATCHING = {
    "BatchDataset",
    "DenseToRaggedDataset",
    "GroupByWindowDataset",
    "LegacyRebatchDataset",
    "MapAndBatchDataset",
    "PaddedBatchDataset",
    "ParallelBatchDataset",
    "RebatchDataset",
    "WindowDataset",
}


def _holds_batches(dataset):
    """Whether the elements of a data set are batches that it made."""
    kind = type(dataset).__name__.strip("_")
    if kind == "UnbatchDataset":
        return False
    return kind in _BATCHING or any(map(_holds_batches, dataset._inputs()))


def _refuse_filter():
    raise ValueError(
        "The dataset leaves out whole batches (`.filter()` after `.batch()`), "
        "so that one record more may bring in or take away many others. "
        "Filter records before they are batched."
    )


# What hands on records as they are, in their order.
_IN_ORDER = {
    "BatchDataset",
    "CacheDataset",
    "MapDataset",
    "OptionsDataset",
    "ParallelBatchDataset",
    "ParallelMapDataset",
    "PrefetchDataset",
    "RangeDataset",
    "TensorDataset",
    "TensorSliceDataset",
    "ZipDataset",
}
# Of those that read once what they are made of. `take`, `skip` and `shard`
# say which records are meant.
_ONCE = _IN_ORDER | {
    "AssertCardinalityDataset",
    "ConcatenateDataset",
    "CopyToDeviceDataset",
    "CsvDatasetV2",
    "DenseToRaggedDataset",
    "FilterDataset",
    "FixedLengthRecordDataset",
    "FixedLengthRecordDatasetV2",
    "GlobalShuffleDataset",
    "LegacyRebatchDataset",
    "ListDataset",
    "LoadDataset",
    "MapAndBatchDataset",
    "MatchingFilesDataset",
    "PaddedBatchDataset",
    "ParseExampleDataset",
    "RebatchDataset",
    "RepeatDataset",
    "RestructuredDataset",
    "ShardDataset",
    "ShuffleDataset",
    "SkipDataset",
    "SnapshotDataset",
    "SqlDatasetV2",
    "TFRecordDataset",
    "TFRecordDatasetV2",
    "TakeDataset",
    "TextLineDataset",
    "TextLineDatasetV2",
    "UnbatchDataset",
    "WindowDataset",
}
# In functions that make data sets, by their operations.
_INSIDE = {kind.removesuffix("V2") for kind in _ONCE} - {
    "RepeatDataset",
    "WindowDataset",
}
_INSIDE |= {
    "FlatMapDataset",
    "GeneratorDataset",
    "InterleaveDataset",
    "ParallelInterleaveDataset",
}
_VERSION = re.compile(r"V\d+$")
# TensorFlow's number of the type of lengths.
_INT64 = 9

_MADE_BY_FUNCTIONS = {
    "FlatMapDataset": "_map_func",
    "GroupByWindowDataset": "_reduce_func",
    "InterleaveDataset": "_map_func",
    "LoadDataset": "_reader_func",
    "ParallelInterleaveDataset": "_map_func",
}
# What the pieces of a saved data set are read by.
_OF_PIECES = {
    "FlatMapDataset",
    "InterleaveDataset",
    "OptionsDataset",
    "ParallelInterleaveDataset",
    "PrefetchDataset",
    "ShuffleDataset",
}


def _is_true(node):
    value = node.attr["value"].tensor
    return any(value.bool_val) or any(value.tensor_content)


def _is_longest(node):
    """Whether it holds lengths of which one is that of the longest record."""
    if node.op != "Const" or node.attr["dtype"].type != _INT64:
        return False
    value = node.attr["value"].tensor
    words = np.frombuffer(value.tensor_content, np.int64)
    return any(v < 0 for v in [*value.int64_val, *words])


def _check_function(dataset, kind):
    """Refuses a data set whose function may repeat records or leave some out.

    Returns:
        bool, whether the function shuffles.
    """
    function = getattr(dataset, _MADE_BY_FUNCTIONS[kind], None)
    graph, nodes = (None, []) if function is None else _graph_of(function)
    kinds = {_VERSION.sub("", node.op) for node in nodes}
    kinds = {name for name in kinds if name.endswith("Dataset")}
    shuffles = bool(kinds & _SHUFFLING)
    for name in sorted(kinds & _CHOOSING) if shuffles else ():
        _refuse_choice(name)
    if kind == "LoadDataset":
        if graph is None or not kinds <= _OF_PIECES:
            raise ValueError(
                "The dataset is loaded by a `reader_func` of which it is not "
                "known that each record comes once. Leave it out, or only "
                "shuffle and interleave by it."
            )
    elif (
        graph is None
        # Which records are in a window depends on all before it.
        or (kind == "GroupByWindowDataset" and kinds & _LEAVING_OUT)
        or not _makes_each_once(dataset, kind, graph, nodes)
    ):
        raise ValueError(
            "The dataset makes several elements of one, or chooses some "
            "(`.flat_map()`, `.interleave()`, `.group_by_window()`), so "
            "it cannot be seen whether each record comes once, whoever "
            "else does. Read files or a generator by it, or "
            "pass arrays, or a function that returns an iterator over "
            "(x, y) batches."
        )
    return shuffles


def _graph_of(function):
    """The graph of a function, and the nodes of all that is in it."""
    graph = function.function.graph.as_graph_def()
    nodes = [*graph.node]
    for inner in graph.library.function:
        nodes += inner.node_def
    return graph, nodes


def _makes_each_once(dataset, kind, graph, nodes):
    """Whether it reads files or a generator, or groups, and repeats or leaves
    out none."""
    held = {node.name for node in nodes if _is_true(node)}
    longest = {node.name for node in nodes if _is_longest(node)}
    for node in nodes:
        op = _VERSION.sub("", node.op)
        if op.endswith("Dataset") and op not in _INSIDE:
            return False
        # Records, size, lengths, as many fillings, remainder.
        lengths = node.input[2 : 2 + (len(node.input) - 3) // 2]
        if op == "PaddedBatchDataset" and longest & {
            name.split(":")[0] for name in lengths
        }:
            _refuse_padding()
        # Last of the inputs of a batch: whether the remainder is dropped.
        if (
            "Batch" in op
            and node.input
            and node.input[-1].split(":")[0] in held
        ):
            return False
    (source,) = dataset._inputs()
    spec = source.element_spec
    names = getattr(getattr(spec, "dtype", None), "name", None) == "string"
    once = type(source).__name__.strip("_") == "TensorDataset"
    if not once and not _are_of_arguments(graph.node):
        return False
    return kind == "GroupByWindowDataset" or once or names


def _are_of_arguments(nodes):
    """Whether the records that a function makes depend on what it is called
    with; else each call makes the same."""
    reached = set()
    # In the order in which they were made.
    for node in nodes:
        sources = {name.strip("^").split(":")[0] for name in node.input}
        if node.name.startswith("args_") or sources & reached:
            reached.add(node.name)
        elif node.op in ("TensorDataset", "TensorSliceDataset"):
            return False
    return True


# PyTorch -------------------------------------------------------------------


def is_function(data):
    """Whether data are a function, which every reading calls."""
    others = ("as_numpy_iterator", "num_batches", "__len__", "__array__")
    return (
        callable(data)
        and not is_loader(data)
        and not any(hasattr(data, name) for name in others)
    )


def is_loader(data):
    """Whether data are a `torch.utils.data.DataLoader`."""
    return _is_of_torch(data, "DataLoader")


def _is_of_torch(value, *names):
    return any(
        kind.__module__.startswith("torch.utils.data")
        and kind.__name__ in names
        for kind in type(value).__mro__
    )


def _is_exactly(value, name):
    kind = type(value)
    return kind.__module__ == "torch.utils.data.sampler" and (
        kind.__name__ == name
    )


def _check_loader(loader):
    """Refuses a loader whose pass may leave records out or repeat them."""
    batches = loader.batch_sampler
    # Not the loader's own: it stands there unused beside one that was given.
    sampler = getattr(batches, "sampler", None)
    plain = _is_exactly(batches, "BatchSampler") and (
        _is_exactly(sampler, "SequentialSampler")
        or (_is_exactly(sampler, "RandomSampler") and not sampler.replacement)
    )
    count = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
    whole = getattr(sampler, "num_samples", count)
    if count is None or not plain or whole != count:
        raise ValueError(
            "The DataLoader must give each record once, in batches: of a "
            "dataset with a length, with its own sampler (`shuffle=...`) and "
            "a `batch_size`. For others pass a function that returns an "
            "iterator over (x, y) batches. Received: "
            f"dataset={type(loader.dataset).__name__}, "
            f"sampler={type(sampler).__name__}"
        )
    if batches.drop_last:
        raise ValueError(
            "The DataLoader leaves out other records at every pass. Set "
            "`drop_last=False`."
        )
    _check_parts_once(loader.dataset)


def _check_parts_once(dataset):
    """Refuses datasets of PyTorch that name a record twice.

    Returns:
        list of the ids of what they are made of.
    """
    found = [id(dataset)]
    if _is_of_torch(dataset, "Subset"):
        rows = [int(i) for i in dataset.indices]
        if hasattr(dataset.dataset, "__len__"):
            # From either end.
            rows = [i % len(dataset.dataset) for i in rows]
        if len(set(rows)) < len(rows):
            raise ValueError(
                "The Subset names a record more than once, and a release "
                "would count it as often. Name each index once."
            )
        found += _check_parts_once(dataset.dataset)
    elif _is_of_torch(dataset, "ConcatDataset"):
        parts = [i for d in dataset.datasets for i in _check_parts_once(d)]
        if len(set(parts)) < len(parts):
            raise ValueError(
                "The ConcatDataset joins a dataset with itself, and a release "
                "would count its records twice. Pass each record once."
            )
        found += parts
    elif _is_of_torch(dataset, "StackDataset"):
        rows = dataset.datasets
        rows = rows.values() if isinstance(rows, dict) else rows
        parts = [i for d in rows for i in _check_parts_once(d)]
        if len(set(parts)) < len(parts):
            raise ValueError(
                "The StackDataset pairs a dataset with itself, so a record "
                "may come in several pairs. Pass each record once."
            )
        found += parts
    return found
