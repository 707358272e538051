"""The data of `fit` as arrays of rows; a row is a record.

Data sets and loaders are read once through their public interfaces. They are
kept in memory, since a Poisson sample may need any row.
"""

import math
import warnings

import keras
import numpy as np

from keras_fm.kernel import checks, records
from keras_fm.kernel.access import columns
from keras_fm.per_example.owner_rows import OwnerRows, check_ids

# The most that is kept in memory.
_MOST_BYTES = 2**33


def is_text(array):
    """Whether an array holds text, with rows of any length."""
    return array.dtype.kind in "OSU"


class GivenRecords:
    """Rows of x and y, and the batch size that came with them.

    Args:
        x, y, sample_weight: as `keras.Model.fit` takes them.
        batch_size: int, or `None`: that of a data set or loader, else 32.
        classes: `None`, or a list of the class names in `y`, which become
            numbers.

    Attributes:
        x, y: trees of arrays `(n, ...)`; `y` may be `None`.
        weights: `None`, or `(n,)` numbers from 0 to 1.
        n: int, number of records.
        batch_size: int.
        owners: `None`, or the `OwnerRows` if each record is an owner.

    Raises:
        ValueError: if the data has no readable rows.
    """

    def __init__(
        self, x, y=None, sample_weight=None, batch_size=None, classes=None
    ):
        loader = getattr(x, "dataset", None)
        if hasattr(loader, "__getitem__") and hasattr(loader, "__len__"):
            # A loader of PyTorch: only its data set is used, not its order.
            check_loader(x)
            batch_size = batch_size or getattr(x, "batch_size", None)
            check_alone(y, sample_weight, x)
            items = (loader[i] for i in range(len(loader)))
            x, y, sample_weight = together(
                np.stack, map(keras.utils.unpack_x_y_sample_weight, items)
            )
        elif is_data_set(x):
            check_alone(y, sample_weight, x)
            x, y, sample_weight, size = _joined(batches_of(x))
            batch_size = batch_size or size
        elif hasattr(x, "__next__") or callable(x):
            raise ValueError(
                "`x` must be arrays, a `PyDataset`, a finite `tf.data.Dataset` "
                "or a PyTorch `DataLoader`: a Poisson sample is drawn from all "
                "rows, and a generator gives each row only once. For one "
                "epoch, `participation=Participation()` takes a generator. "
                f"Received: x={type(x).__name__}"
            )
        self.x = keras.tree.map_structure(lambda v: _array("x", v), x)
        if classes is not None:
            y = numbered(y, classes)
        self.y = y
        if y is not None:
            self.y = keras.tree.map_structure(lambda v: _array("y", v), y)
        leaves = keras.tree.flatten((self.x, [] if y is None else self.y))
        lengths = sorted({len(leaf) for leaf in leaves})
        if len(lengths) != 1 or lengths[0] == 0:
            raise ValueError(
                "All arrays of `x` and `y` must hold the same number of rows, "
                f"at least one. Received lengths: {lengths}"
            )
        self.n = lengths[0]
        batch_size = 32 if batch_size is None else batch_size
        self.batch_size = min(checks.count("batch_size", batch_size), self.n)
        self.weights = self.owners = None
        if sample_weight is not None:
            self.weights = _factors(sample_weight, self.n)

    def own(self, owners, most):
        """Makes every owner one record, with at most `most` of its rows.

        Args:
            owners: `(n,)` ids.
            most: int, public.
        """
        self.owners = OwnerRows(owners, most, self.n)
        self.n = self.owners.n
        self.batch_size = min(self.batch_size, self.n)

    def choose(self, unit):
        """Keeps the used rows if rows have several owners.

        Args:
            unit: a `keras_fm.Unit` with `(n, k)` owners.
        """
        check_ids(unit.owners, self.n)
        self.x, self.y, self.weights = keras.tree.map_structure(
            lambda v: None if v is None else v[unit.chosen],
            (self.x, self.y, self.weights),
        )
        self.n = len(unit.chosen)
        self.batch_size = min(self.batch_size, self.n)

    @property
    def labels(self):
        """The class of every row, a whole number."""
        labels = self.y
        if not isinstance(labels, np.ndarray):
            raise ValueError(
                "`class_weight` needs labels in one array. Give "
                "`sample_weight=` instead, numbers from 0 to 1."
            )
        if labels.ndim > 1 and labels.shape[-1] > 1:
            labels = labels.argmax(-1)
        return labels.reshape(len(labels))

    def weigh(self, class_weight, classes=None):
        """Weighs records by the public weights of their classes.

        Args:
            class_weight: dict from labels to numbers.
            classes: `None`, or the class names, in the order of outputs.
        """
        if isinstance(class_weight, dict) and classes is not None:
            class_weight = {
                classes.index(k) if k in classes else None: v
                for k, v in class_weight.items()
            }
        if not isinstance(class_weight, dict) or not all(
            isinstance(k, (int, np.integer)) and math.isfinite(v) and v >= 0
            for k, v in class_weight.items()
        ):
            raise ValueError(
                '`class_weight` must be "balanced", or a dict from labels to '
                "numbers of at least 0. Labels are whole numbers, or those in "
                "`classes` of `make_private`."
            )
        labels = self.labels
        found = np.ones(len(labels))
        for label, weight in class_weight.items():
            found[labels == label] = weight
        # A class without a weight has weight 1, even if it does not occur.
        most = max([1.0, *class_weight.values()])
        found = (found / most).astype("float32")
        self.weights = found if self.weights is None else self.weights * found


def warn_of_missing(given):
    """Warns if numbers are not finite."""
    for array in keras.tree.flatten((given.x, given.y)):
        if getattr(array, "dtype", np.dtype("O")).kind == "f" and not (
            np.isfinite(array.min()) and np.isfinite(array.max())
        ):
            warnings.warn(
                "Some records hold NaN or infinite numbers. Unless the model "
                "replaces them, such a record adds nothing to a step, and the "
                "noise is the same. Fill them by a public rule.",
                stacklevel=3,
            )
            return


def is_data_set(x):
    """Whether x is a data set of Keras or TensorFlow."""
    return isinstance(x, keras.utils.PyDataset) or hasattr(
        x, "as_numpy_iterator"
    )


def check_loader(loader):
    """Refuses a loader whose rows differ from those of its data set."""
    from torch.utils.data import (
        RandomSampler,
        SequentialSampler,
        default_collate,
    )

    sampler = getattr(loader, "sampler", None)
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement
    )
    if not plain or loader.collate_fn is not default_collate:
        raise ValueError(
            "A `DataLoader` must have no sampler or `collate_fn` of its own: "
            "`fit` draws the samples and would ignore both. Choose rows with "
            "`torch.utils.data.Subset(dataset, rows)`, and transform rows in "
            f"the data set. Received: sampler={type(sampler).__name__}"
        )


def batches_of(x):
    """The batches of a data set of Keras or TensorFlow."""
    if not isinstance(x, keras.utils.PyDataset):
        records.check_dataset(x, weights=True)
        return x.as_numpy_iterator()
    if x.num_batches is None:
        raise ValueError(
            "A data set without end has no number of records, which privacy "
            "depends on. Give the `PyDataset` a length."
        )
    return (x[i] for i in range(x.num_batches))


def check_alone(y, sample_weight, x):
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out if `x` is a data set, which holds "
                f"it. Received: x={type(x).__name__}, {name} given"
            )


def numbered(y, classes):
    """The numbers of labels in a public list of classes.

    Raises:
        ValueError: if a label is not among them.
    """
    table = {label: i for i, label in enumerate(classes)}
    y = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    # TensorFlow's strings are bytes.
    flat = [
        table.get(v.decode() if isinstance(v, bytes) else v, -1)
        for v in y.reshape(-1).tolist()
    ]
    if -1 in flat:
        raise ValueError(
            "`y` holds a label that is not among the public `classes` of "
            "`make_private`. Name all that may occur. Received: classes="
            f"{list(classes)}"
        )
    return np.array(flat, "int64").reshape(y.shape)


def _array(name, value):
    columns.check_dense(value, name)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    found = np.asarray(value if hasattr(value, "__array__") else 0)
    if found.ndim == 0:
        raise ValueError(
            f"`{name}` must hold arrays with rows along their first axis: "
            f"`np.array({name})` of lists, a `DataLoader` of a data set. "
            f"Received: a {type(value).__name__}"
        )
    if name == "y" and is_text(found):
        raise ValueError(
            "`y` must hold numbers, or `classes` must list the labels that may "
            'occur: `make_private(model, classes=["no", "yes"])`. Received: '
            f"dtype={found.dtype}"
        )
    mixed = found.dtype == object and not all(
        isinstance(v, (str, bytes)) for v in found.flat
    )
    if mixed or found.dtype.kind in "cmM":
        raise ValueError(
            f"`{name}` must hold arrays of numbers, of truth values or of text."
            " Of a pandas table give columns of numbers, "
            '`table[columns].astype("float32")`, and dates as days since a '
            f"public day. Received: dtype={found.dtype}"
        )
    return found.astype("float32") if found.dtype == "float64" else found


def _factors(weights, n):
    found = np.asarray(weights, "float64")
    if found.shape not in ((n,), (n, 1)):
        raise ValueError(
            f"`sample_weight` must hold one number for each of the {n} rows. "
            f"Received shape: {found.shape}"
        )
    found = found.reshape(n)
    if not np.all((found >= 0) & (found <= 1)):
        raise ValueError(
            "`sample_weight` must be from 0 to 1: it multiplies the clipped "
            "gradient of a record. Divide it by a public maximum."
        )
    return found.astype("float32")


def together(join, items):
    """x, y and weights of rows, or of batches, as arrays of all rows."""
    return [
        None
        if parts[0] is None
        else keras.tree.map_structure(
            lambda *v: join([np.asarray(one) for one in v]), *parts
        )
        for parts in zip(*items)
    ]


def _joined(batches):
    """The rows of batches, and the size of the first."""
    found, held, size = [], 0, None
    for batch in batches:
        batch = keras.utils.unpack_x_y_sample_weight(batch)
        batch = keras.tree.map_structure(
            lambda v: None if v is None else np.asarray(v), batch
        )
        leaves = [v for v in keras.tree.flatten(batch) if v is not None]
        if any(v.ndim == 0 for v in leaves):
            raise ValueError(
                "A data set must give batches of rows. Write "
                "`dataset.batch(256)`."
            )
        held += sum(v.nbytes for v in leaves)
        if held > _MOST_BYTES:
            raise ValueError(
                f"The data set holds more than {_MOST_BYTES / 2**30:g} GiB, "
                "and a Poisson sample needs every row at hand. Give `fit` "
                "memory-mapped arrays (`np.load(path, mmap_mode='r')`)."
            )
        size = size or len(leaves[0])
        found.append(batch)
    if not found:
        raise ValueError("`x` must hold at least one row. Received: none")
    shapes = {
        tuple(v.shape[1:] for v in keras.tree.flatten(batch) if v is not None)
        for batch in found
    }
    if len(shapes) > 1:
        raise ValueError(
            "Rows must have one shape in all batches: padding to the longest "
            "row of a batch reveals the length of other rows. Pad to a public "
            "length: `padded_batch(..., padded_shapes=...)`. Received shapes: "
            f"{sorted(shapes)}"
        )
    return (*together(np.concatenate, found), size)
