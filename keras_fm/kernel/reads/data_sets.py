"""Data sets as their public interfaces show them: a row is a record."""

from keras_fm.kernel.reads import columns


def check(data):
    """Refuses a data set without end, one that leaves out what does not fill a
    batch, one with weights, and a loader that draws with replacement.

    A release counts the rows that it is given; nothing is read here, and
    nothing looks into what a data set is made of.

    Args:
        data: see `records.batches`.

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
    count, spec = int(data.cardinality()), data.element_spec
    if count == -1:
        raise ValueError(
            "The dataset has no end, so a pass over it never stops. Remove "
            "`.repeat()`; `epochs` of `fit` repeats training."
        )
    if isinstance(spec, (tuple, list)) and len(spec) > 2:
        raise ValueError(
            "A dataset must give pairs (x, y). Sample weights change what a "
            "record weighs and are not supported by a release. Received "
            f"elements of {len(spec)} parts"
        )
    for name, part in columns.flatten(spec, "data"):
        columns.check_dense(part, name)
        shape = part.shape
        # Of a batch that may be short, the number of rows is not known.
        if shape.rank and (shape[0] or 0) > 1 and count != 1:
            raise ValueError(
                "The dataset leaves out what does not fill a batch, so that "
                "one record more may bring in many others. Set "
                "`drop_remainder=False`, or give a dataset of records, "
                f"`.unbatch().batch({shape[0]})`. Received: batches of always "
                f"{shape[0]} rows"
            )


def of_one_length(data, batches):
    """Yields the batches `(x, y)` that were read of `data`.

    Raises:
        ValueError: if records of several batches have different lengths, or
            a dataset does not say how long they are.
    """
    unknown, several, forms = _has_unknown_lengths(data), False, set()
    for x, y in batches:
        count = columns.count(x)
        several |= count > 1
        if count:
            forms.add(tuple(v.shape[1:] for _, v in columns.flatten(x)))
        if several and (unknown or len(forms) > 1):
            raise ValueError(
                "Records must have one length in all batches, and a dataset "
                "must say which: padded to the longest of a batch, one record "
                "more changes what others are. Pad to a public length, "
                "`padded_batch(size, padded_shapes=...)` or `x.to_tensor(shape="
                "(None, length))`, or give batches of one record."
            )
        yield x, y


def _has_unknown_lengths(data):
    if not hasattr(data, "as_numpy_iterator"):
        return False
    shapes = [v.shape for _, v in columns.flatten(data.element_spec, "data")]
    return any(shape.rank and None in shape[1:] for shape in shapes)


def _check_loader(loader):
    # A `batch_sampler` of one's own has no sampler that is used.
    sampler = getattr(loader.batch_sampler, "sampler", None)
    rows = loader.dataset
    count = len(rows) if hasattr(rows, "__len__") else None
    drawn = getattr(sampler, "num_samples", count)
    if getattr(sampler, "replacement", False) or drawn != count:
        raise ValueError(
            "The DataLoader draws its records with replacement, or another "
            "number of them than there are, so that one may come any number "
            "of times. Build it with `shuffle=True` in the place of the "
            f"sampler. Received: {type(sampler).__name__}"
        )
    if getattr(loader.batch_sampler, "drop_last", False):
        raise ValueError(
            "The DataLoader leaves out other records at every pass. Set "
            "`drop_last=False`."
        )


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
    return any(
        kind.__module__.startswith("torch.utils.data")
        and kind.__name__ == "DataLoader"
        for kind in type(data).__mro__
    )
