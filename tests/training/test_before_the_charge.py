"""What a fit says and refuses before it is charged."""

import traceback

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

pytestmark = pytest.mark.full

N, D = 120, 6
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (N, D)).astype("float32")
Y = (X[:, 0] > 0.5).astype(int)


def model():
    m = keras.Sequential(
        [
            keras.Input((D,)),
            fm.layers.NormalizationLayer(bounds=(0, 1)),
            fm.layers.PrivateDense(2),
        ]
    )
    m.compile("sgd", fm.losses.TaylorCrossEntropy())
    return m


def fit(m, data):
    private = PrivateModel(fm.PrivacyBudget(2.0, 1e-6), data=data)
    try:
        m.fit(*data, callbacks=[private], verbose=0)
    finally:
        assert not private.ledger.entries, "it was charged"


def test_records_in_another_order_of_bytes():
    """PyTorch's error showed them, and JAX saw other numbers."""
    found = []
    for x in (X, X.astype(">f4")):
        m = model()
        seeded = PrivateModel(1.0, 0.0, data=(x, Y), reproducible_noise=0)
        m.fit(X, Y, callbacks=[seeded], verbose=0)
        found.append(m.get_weights()[0])
    np.testing.assert_array_equal(*found)


def test_what_a_backend_says_of_a_record_is_not_shown():
    """TensorFlow's error for an index that is out of range shows it, and so
    did a fit and a question. (JAX takes the nearest, and no error.)"""
    if keras.backend.backend() == "jax":
        pytest.skip("no error")
    x = RNG.integers(0, 5, (N, 1)).astype("int32")
    x[3] = 471147
    below = [
        keras.Input((1,), dtype="int32"),
        # Not of the input itself, whose numbers are looked at.
        keras.layers.Reshape((1,)),
        keras.layers.Embedding(5, 3, trainable=False),
        keras.layers.Flatten(),
        fm.layers.NormalizationLayer(),
    ]
    m = keras.Sequential([*below, fm.layers.PrivateDense(2)])
    m.compile("sgd", fm.losses.TaylorCrossEntropy())
    ledger = fm.Ledger(fm.PrivacyBudget(1.0, 1e-6), neighbours="add_remove")
    other = keras.Sequential([*below, keras.layers.Dense(2)])
    for ask in (
        lambda: fit(m, (x, Y)),
        lambda: fm.evaluation.private_evaluate(
            other, (x, Y), ledger=ledger, share=0.1, public="random"
        ),
    ):
        with pytest.raises(ValueError, match="fail on a record") as error:
            ask()
        assert "471147" not in "".join(traceback.format_exception(error.value))
    assert not ledger.entries


def test_the_statement_declares_lengths_that_a_model_leaves_open():
    """`pad_sequences` without `maxlen` pads to the longest record."""
    for length in (None, 5):
        m = keras.Sequential(
            [
                keras.Input((length,), dtype="int32", name="words"),
                keras.layers.Embedding(9, 3, trainable=False),
                keras.layers.GlobalAveragePooling1D(),
                fm.layers.NormalizationLayer(),
                fm.layers.PrivateDense(2),
            ]
        )
        m.compile("sgd", fm.losses.TaylorCrossEntropy())
        x = np.ones((N, 5), int)
        private = PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=(x, Y))
        m.fit(x, Y, verbose=0, callbacks=[private])
        said = "public by declaration: the lengths" in private.report()
        assert said == (length is None)


def test_one_private_model_in_a_fit():
    """The second found the first's release, and its ledger stayed empty."""
    m = model()
    pair = [
        PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=(X, Y)) for _ in "ab"
    ]
    with pytest.raises(ValueError, match="one PrivateModel.*Received: 2"):
        m.fit(X, Y, callbacks=pair, verbose=0)
    assert not any(private.ledger.entries for private in pair)
