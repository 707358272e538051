"""What `validation_data` may show: records that no release was made of.

Metrics on private records stand in the history and in TensorBoard, and no
statement covers them. People validate on what they fit on, to look for errors,
also where `data=` is another form of these records, and in a later fit for
which the model needs no callback.
"""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = np.arange(48) % 3
OTHER = np.random.default_rng(1).normal(size=(12, 4)).astype("float32")
FRESH = OTHER, Y[:12].copy()


class Batches(keras.utils.PyDataset):
    """The records as batches of a class of one's own."""

    def __init__(self, x=X, y=Y):
        super().__init__()
        self.arrays = x.copy(), y.copy()

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return tuple(a[8 * index : 8 * index + 8] for a in self.arrays)


def network():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(3),
        ]
    )
    loss = fm.losses.TaylorCrossEntropy()
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def callback(data=None):
    data = (X, Y) if data is None else data
    return PrivateModel(epsilon=2.0, delta=1e-5, data=data)


def refused(model, x, y=None, match="holds private records", **fit):
    with pytest.raises(ValueError, match=match):
        model.fit(x, y, verbose=0, **fit)


def function():
    yield X[:24].copy(), Y[:24].copy()
    yield X[24:].copy(), Y[24:].copy()


# The release is of other records than the fit is given, or of these in a form
# that was not compared.
DATA = {
    "other arrays": (OTHER, Y[:12]),
    "a function": lambda: iter([(OTHER, Y[:12])]),
    "a PyDataset": Batches(X[::-1], Y),
}
GIVEN = {
    "arrays": ((X, Y), (X.copy(), Y.copy())),
    "a part of them": ((X, Y), (X[5:40].copy(), Y[5:40].copy())),
    "a PyDataset": ((Batches(),), (X.copy(), Y.copy())),
    "the same PyDataset": ((DATA["a PyDataset"],), DATA["a PyDataset"]),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("given", GIVEN)
def test_records_that_fit_was_given_are_refused(data, given):
    model, private = network(), callback(DATA[data])
    x, shown = GIVEN[given]
    refused(model, *x, callbacks=[private], validation_data=shown)
    assert not private.ledger.entries


def test_records_of_a_function_are_refused():
    """`data=` as a function, and the fit on something else."""
    model, private = network(), callback(function)
    shown = X.copy(), Y.copy()
    refused(model, *FRESH, callbacks=[private], validation_data=shown)
    assert not private.ledger.entries


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("loaded", [False, True])
def test_a_later_fit_without_the_callback_refuses_them(given, loaded, tmp_path):
    model = network()
    model.fit(X, Y, callbacks=[callback()], verbose=0)
    if loaded:
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    x, shown = GIVEN[given]
    refused(model, *x, validation_data=shown)
    refused(model, X, Y, match="`validation_split` would", validation_split=0.2)
    # The same with other records, and with none, as before.
    history = model.fit(*x, validation_data=FRESH, verbose=0).history
    assert set(history) == {"loss", "val_loss", "val_accuracy"}
    model.fit(*x, verbose=0)


def test_data_sets_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    given = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    model = network()
    model.fit(X, Y, callbacks=[callback()], verbose=0)
    for shown in (given, given.take(3), (X.copy(), Y.copy())):
        refused(model, given, validation_data=shown)
        private = callback((OTHER, Y[:12]))
        fit = {"callbacks": [private], "validation_data": shown}
        refused(network(), given, **fit)
        assert not private.ledger.entries


def test_generators_are_not_consumed_by_the_look():
    model = network()
    model.fit(X, Y, callbacks=[callback()], verbose=0)
    batches = iter([(X, Y)] * 3)

    def endless():
        yield from batches

    model.fit(endless(), steps_per_epoch=3, validation_data=FRESH, verbose=0)


def test_steps_that_read_the_records():
    model = fm.models.GradientNet((4,), [keras.layers.Dense(3)], clip=0.1)
    model.compile("sgd")
    private = PrivateModel(epsilon=2.0, delta=1e-5)
    shown = X.copy(), Y.copy()
    refused(model, X, Y, callbacks=[private], validation_data=shown)
    assert not private.ledger.entries
