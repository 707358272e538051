"""What a fit may be given.

Metrics on private records stand in the history and in TensorBoard, and no
statement covers them. People validate on what they fit on, to look for errors,
also where `data=` is another form of these records, and in a later fit for
which the model needs no callback.
"""

import itertools

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.core import fit_contract

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = np.arange(48) % 3
OTHER = np.random.default_rng(1).normal(size=(12, 4)).astype("float32")
FRESH = OTHER, Y[:12].copy()


TEXT = np.array([f"text {i}" for i in range(48)])
TABLE = np.random.default_rng(2).integers(0, 2, (500, 3))


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


@pytest.mark.parametrize("given, data", zip(GIVEN, itertools.cycle(DATA)))
def test_records_that_fit_was_given_are_refused(given, data):
    model, private = network(), callback(DATA[data])
    x, shown = GIVEN[given]
    refused(model, *x, callbacks=[private], validation_data=shown)
    assert not private.ledger.entries


# More columns than are compared first; ALIKE differs in one of the others.
WIDE = np.random.default_rng(5).random((36, 200), np.float32)
ALIKE = WIDE.copy()
ALIKE[:, 0] += 1

OTHERS = {
    "alike in most columns": (ALIKE, WIDE),
    "none": (None, X),
    "arrays": (FRESH, (X, Y)),
    "weighted": ((*FRESH, np.ones(12)), (X, Y)),
    "x alone": (OTHER, X),
    "no record": ((OTHER[:0], Y[:0]), (X, Y)),
    "another shape": (X[:, :2], X),
    "one of many": (np.concatenate([OTHER, X[:1]]), X),
    "views of one array": (X[:10], X[10:]),
    "text": (np.array(["a", "b"]), TEXT),
    "few different rows": (TABLE[:100], TABLE),
    "batches": (Batches(OTHER.repeat(4, 0), Y), (X, Y)),
    "a function": (lambda: [FRESH], (X, Y)),
}
PRIVATE = {
    "wide": (WIDE[::-1], WIDE),
    "the same object": (function, function),
    "lists": ([X.tolist(), Y.tolist()], (X, Y)),
    "views": ((X[:5], Y[:5]), (X, Y)),
    "x alone": (X.copy(), (X,)),
    "reversed": ((X[::-1], Y), (X, Y)),
    "in other floats": (X.astype("float64"), X),
    "whole numbers": ((99 * X).astype(int), (99 * X).astype(int) / 1),
    "some": (np.concatenate([X[:8], OTHER[:4]]), X),
    "among others": (np.concatenate([X, *[OTHER] * 9]), X),
    "tensors": (keras.ops.convert_to_tensor(X), X),
    "text": (TEXT[5:].astype(object), TEXT),
    "a table in its order": (TABLE.copy(), TABLE),
    "batches": (Batches(), (X, Y)),
    "a function": ((X, Y), function),
}


@pytest.mark.once
@pytest.mark.parametrize("case", [*OTHERS, *PRIVATE])
def test_rows_are_compared_whatever_holds_them(case):
    if case in OTHERS:
        assert fit_contract.private_because(*OTHERS[case]) is None
    if case in PRIVATE:
        assert fit_contract.private_because(*PRIVATE[case])


@pytest.mark.once
def test_arrays_that_were_changed_in_place_are_compared_again():
    """`x /= 255` between two fits: the array is the same object, its records
    are others."""
    held, shown = WIDE.copy(), 2 * WIDE
    assert fit_contract.private_because(shown, held) is None
    held *= 2
    assert fit_contract.private_because(shown, held)


def test_inputs_are_compared_by_their_names():
    a, b = keras.Input((4,), name="a"), keras.Input((1,), name="b")
    model = keras.Model({"a": a, "b": b}, keras.layers.Flatten()(a))
    x = {"b": np.arange(48.0)[:, None], "a": X}
    shown = {"a": X.copy(), "b": x["b"].copy()}
    assert fit_contract.private_because(shown, x, model)
    others = {**x, "a": X + 1}
    assert fit_contract.private_because(others, x, model) is None


def test_loaders_of_torch():
    torch = pytest.importorskip("torch")
    pairs = list(zip(torch.tensor(X), torch.tensor(Y)))
    loader = torch.utils.data.DataLoader(pairs, batch_size=8, shuffle=True)
    for shown in (loader, (X, Y)):
        assert fit_contract.private_because(shown, (X, Y))
    assert fit_contract.private_because(FRESH, loader) is None


@pytest.mark.full
@pytest.mark.parametrize(
    "given, loaded", zip(GIVEN, itertools.cycle([True, False]))
)
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
    for shown in (given, given.take(3).shuffle(9), (X.copy(), Y.copy())):
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


def test_one_iterator_is_left_to_the_release():
    """The look at it took the first batches, and the release had the rest."""
    one = function()
    assert fit_contract.private_because(FRESH, lambda: one) is None
    assert len(list(one)) == 2


def test_steps_that_read_the_records():
    model = fm.models.GradientNet((4,), [keras.layers.Dense(3)], clip=0.1)
    model.compile("sgd")
    private = PrivateModel(epsilon=2.0, delta=1e-5)
    shown = X.copy(), Y.copy()
    refused(model, X, Y, callbacks=[private], validation_data=shown)
    assert not private.ledger.entries


# What is compiled --------------------

PROBABILITIES = (
    "sparse_categorical_crossentropy",
    keras.losses.SparseCategoricalCrossentropy(),
    keras.losses.binary_crossentropy,
    keras.losses.BinaryFocalCrossentropy(),
)


@pytest.mark.parametrize("loss", PROBABILITIES)
def test_losses_of_probabilities_are_refused_for_logits(loss):
    """Their values would mean nothing, and no epoch could be chosen by them."""
    model, private = network(), callback()
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="loss takes probabilities"):
        private.plan(model)


@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        None,
        "mse",
    ],
)
def test_losses_that_fit(loss):
    model, y = network(), Y
    if isinstance(loss, str):
        model = of_numbers()
    model.compile("sgd", loss)
    callback((X, y)).plan(model)


def of_numbers():
    head = fm.layers.PrivateDense(1, loss="squared_error", target_bounds=(0, 2))
    return keras.Sequential([keras.Input((4,)), head])


@pytest.mark.parametrize(
    "loss", [*PROBABILITIES, keras.losses.BinaryCrossentropy(from_logits=True)]
)
def test_losses_of_classes_are_refused_for_numbers(loss):
    """Validation failed after the charge, or its values meant nothing."""
    model = of_numbers()
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match="loss is of classes"):
        callback((X, Y)).plan(model)


# What is not seen --------------------


def test_a_fit_that_hides_its_arguments_is_said_to():
    """Callbacks of Keras are not told what `fit` was called with."""
    model, private = network(), callback()
    private.set_model(model)
    private.set_params({"epochs": 1, "steps": 1})
    private.on_train_begin()
    assert "not checked: what `fit` was called with" in private.report()
