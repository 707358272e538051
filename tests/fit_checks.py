"""Data of a fit that tell who reads them, for every kind of model."""

import keras
import pytest


class Unreadable:
    """Data that must not be touched."""

    def __len__(self):
        pytest.fail("private data was read")

    __getitem__ = __iter__ = __array__ = __call__ = __len__


class Reader:
    """Data that counts its passes and can fail in one of them."""

    def __init__(self, data, fails=None):
        self.data, self.fails, self.passes = data, fails, 0

    def __call__(self):
        self.passes += 1
        x, y = self.data
        first = len(x) // 3
        yield x[:first], y[:first]
        if self.passes == self.fails:
            raise OSError("the disk is gone")
        yield x[first:], y[first:]


def shown(error):
    """All that a traceback of an error may print."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def names(private):
    """Of the releases that were charged."""
    return [e.name for e in private.ledger.entries]


class Spy(keras.callbacks.Callback):
    """Keeps all logs that a callback is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def keep(self, logs):
        self.seen.append({k: float(v) for k, v in (logs or {}).items()})

    def on_train_batch_end(self, batch, logs=None):
        self.keep(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.keep(logs)

    def on_train_end(self, logs=None):
        self.keep(logs)


def forms_of(x, y):
    """The same 300 records as what else `PrivateModel` takes."""

    class Py(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return x[100 * i : 100 * i + 100], y[100 * i : 100 * i + 100]

    def generator():
        for i in range(0, 300, 50):
            yield x[i : i + 50], y[i : i + 50]

    forms = [generator, Py()]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        forms.append(tf.data.Dataset.from_tensor_slices((x, y)).batch(64))
    return forms
