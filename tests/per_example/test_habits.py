"""Habits of Keras, pandas and notebooks, in fits of private networks.

Each test is a row of docs/threat_model.md: what people write as documentation
shows it, and why it costs nobody's privacy.
"""

import warnings

import keras
import numpy as np
import pytest
from test_private_network import X, Y, callback, compiled, network

import keras_fm as fm
from keras_fm.per_example.given_records import GivenRecords

pytestmark = [pytest.mark.full, pytest.mark.backend]

L = keras.layers
BACKEND = keras.backend.backend()


def fit(model, given=None, x=X, y=Y, **arguments):
    callbacks = [given or callback(), *arguments.pop("callbacks", [])]
    arguments = {"batch_size": 10, "verbose": 0, **arguments}
    return model.fit(x, y, callbacks=callbacks, **arguments)


# What a fit shows ------------------------------------------------------------


class Spy(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def on_train_batch_end(self, batch, logs=None):
        self.seen |= set(logs)

    def on_epoch_end(self, epoch, logs=None):
        self.seen |= set(logs)


def test_no_callback_sees_a_metric_of_the_records():
    """`metrics=["accuracy"]`, and early stopping on it: there is none."""
    spies = Spy(), Spy()
    private, given = compiled(network()), callback()
    stop = keras.callbacks.EarlyStopping("accuracy")
    with pytest.raises(ValueError, match="EarlyStopping monitors 'accuracy'"):
        private.fit(X, Y, batch_size=10, callbacks=[given, stop])
    # Keras would stop with a KeyError after an epoch that was charged.
    named = keras.callbacks.ModelCheckpoint("{epoch} {loss:.2f}.keras")
    with pytest.raises(ValueError, match="ModelCheckpoint monitors 'loss'"):
        private.fit(X, Y, batch_size=10, callbacks=[given, named])
    assert not given.ledger.entries
    history = private.fit(
        X,
        Y,
        batch_size=10,
        epochs=4,
        verbose=0,
        callbacks=[spies[0], given, spies[1]],
    ).history
    assert len(history["charged"]) == 4
    for spy in spies:
        assert spy.seen <= {"charged", "step"}


@pytest.mark.once
def test_the_statement_says_what_was_declared():
    """Weights of rows, rows to validate on, and weights to begin with are what
    their user says they are."""
    plain, declared = callback(), callback()
    fit(compiled(network()), plain)
    fit(
        compiled(network(), public="ImageNet"),
        declared,
        validation_data=(X[:5] + 1, Y[:5].copy()),
        sample_weight=np.ones(40),
    )
    for line, here, there in (
        ("first weights: random, by declaration", True, False),
        ("first weights: public by declaration: ImageNet", False, True),
        ("validation: 5 rows, not protected", False, True),
        ("weights of rows: each a function of its row", False, True),
    ):
        assert (line in plain.report()) == here
        assert (line in declared.report()) == there


# Records ---------------------------------------------------------------------


@pytest.mark.once
def test_rows_of_tables_are_taken_by_their_place():
    """A frame that `train_test_split` shuffled has the index of before."""
    pandas = pytest.importorskip("pandas")
    order = np.random.default_rng(1).permutation(40)
    frame = pandas.DataFrame(X, columns=list("abcdef")).iloc[order]
    given = GivenRecords(frame, pandas.Series(Y).iloc[order])
    np.testing.assert_array_equal(given.x, X[order])
    np.testing.assert_array_equal(given.y, Y[order])


def test_a_shuffled_data_set_is_kept_as_it_came():
    """It comes in another order at every pass; samples are drawn from one."""
    if BACKEND != "tensorflow":
        pytest.skip("a data set of TensorFlow")
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40).batch(7)
    given = GivenRecords(data)
    assert given.n == 40
    order = np.lexsort(X.T)
    found = np.lexsort(given.x.T)
    np.testing.assert_array_equal(given.x[found], X[order])
    np.testing.assert_array_equal(given.y[found], Y[order])


class Padded(keras.utils.PyDataset):
    """Pads every batch to the longest of its rows."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return np.ones((3, 4 + i)), np.zeros(3)


@pytest.mark.once
def test_batches_that_are_padded_to_their_longest_row_are_refused():
    """What a row is padded to tells of the others."""
    with pytest.raises(ValueError, match="must have one shape in all batches"):
        GivenRecords(Padded())


# Noise -----------------------------------------------------------------------


@pytest.mark.once
def test_a_delta_of_one_over_the_records_is_warned_about():
    for delta, warned in ((1 / 40, True), (0.02, False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            given = fm.callbacks.PrivateModel(epsilon=8.0, delta=delta)
            fit(compiled(network()), given)
        found = [w for w in caught if "is too large for" in str(w.message)]
        assert len(found) == warned


def test_a_global_seed_does_not_repeat_a_fit():
    """Notebooks begin with `keras.utils.set_random_seed`."""
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = network()
        before = model.get_weights()[0]
        fit(compiled(model))
        found.append((before, model.get_weights()[0]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert np.all(found[0][1] != found[1][1])


def test_a_scaled_loss_does_not_scale_the_noise():
    """Mixed precision multiplies the loss, and divides the gradient again."""
    found = []
    for scaled in (False, True):
        keras.utils.set_random_seed(0)
        model, optimizer = network(), keras.optimizers.SGD(0.5)
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        private = compiled(model, optimizer)
        before = model.get_weights()
        fit(private, callback(reproducible_noise=1), batch_size=40)
        moves = [b - a for a, b in zip(before, model.get_weights())]
        found.append(np.concatenate([v.ravel() for v in moves]))
    assert np.abs(found[0]).max() > 0.01
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_step_that_is_compiled_with_its_noise_is_refused():
    """`compile(jit_compile=True)` is what tutorials of PyTorch advise."""
    if BACKEND != "torch":
        pytest.skip("elsewhere noise comes with the batch")
    private, given = fm.make_private(network()), callback()
    private.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    with pytest.raises(ValueError, match="would compile the noise of one"):
        fit(private, given)
    assert not given.ledger.entries


def test_statistics_that_are_unfrozen_do_not_move():
    """`body.trainable = True` before fine tuning, as Keras' guide has it."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(4),
            L.BatchNormalization(trainable=False),
            L.Dense(2, activation="softmax"),
        ]
    )
    private = compiled(model)
    norm = model.layers[1]
    norm.trainable = True
    before = [
        keras.ops.convert_to_numpy(v).copy() for v in norm.non_trainable_weights
    ]
    given = callback()
    fit(private, given)
    for one, other in zip(before, norm.non_trainable_weights):
        np.testing.assert_array_equal(one, keras.ops.convert_to_numpy(other))
