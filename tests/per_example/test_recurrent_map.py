"""Recurrent layers: norms and sums from what they read and what came back."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.per_example import record_map
from keras_fm.per_example.private_network import PrivateNetwork

pytestmark = [pytest.mark.full, pytest.mark.backend]

L = keras.layers


def sequence(x):
    return L.SimpleRNN(3)(L.LSTM(3, return_sequences=True)(x))


KNOWN = {
    "LSTM": L.LSTM(3),
    "GRU": L.GRU(3),
    "SimpleRNN": L.SimpleRNN(3),
    "GRU, no bias": L.GRU(2, use_bias=False),
    "more times than weights": L.GRU(1),
    "backward": L.LSTM(3, go_backwards=True),
    "both ways": L.Bidirectional(L.GRU(3)),
    "one above the other": sequence,
    "other functions": L.LSTM(3, "relu", recurrent_activation="softmax"),
}
UNKNOWN = {
    "dropout": L.LSTM(3, dropout=0.5),
    "dropout of states": L.GRU(3, recurrent_dropout=0.5),
    "reset before": L.GRU(3, reset_after=False),
    "a first state": lambda x: L.SimpleRNN(3)(x, initial_state=x[:, 0]),
    "a cell": L.RNN(L.LSTMCell(3)),
}


def maps(layer, masked=False):
    """That of a network, and plain gradients of single records."""
    inputs = keras.Input((5,), dtype="int32")
    x = L.Embedding(7, 3, mask_zero=masked)(inputs)
    network = keras.Model(inputs, L.Dense(2)(layer(x)))
    rng = np.random.default_rng(0)
    for weight in network.weights:
        if weight.dtype == "float32":
            weight.assign(rng.normal(size=weight.shape))
    made = PrivateNetwork(network, clip=0.1)
    made.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    x = rng.integers(0, 7, (3, 5)).astype("int32")
    example = (x, np.array([0, 1, 1]))
    chosen = record_map.chosen_for(made, 0.1, example)
    return chosen, record_map.RecordMap(made, 0.1, "one"), example


def sums(made, example):
    x, y = map(ops.convert_to_tensor, example)
    keys = ops.ones((len(x), *made.key_shape), record_map.KEY_DTYPE)
    found = made.sums(x, y, keys, ops.ones((len(x),)))
    return [ops.convert_to_numpy(v) for v in found]


@pytest.mark.parametrize(
    "name, masked",
    [*((name, False) for name in KNOWN), ("LSTM", True), ("both ways", True)],
)
def test_sums_are_those_of_plain_gradients(name, masked):
    made, plain, example = maps(KNOWN[name], masked)
    assert made.way == "together" and not made.direct
    for one, other in zip(sums(made, example), sums(plain, example)):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_map_knows_is_no_layer_with_a_map(name):
    made, plain, example = maps(UNKNOWN[name])
    layers = [g.layer for g in made.ghosts if g.layer is not None]
    assert made.direct and len(layers) <= 2
    if name != "dropout":
        for one, other in zip(sums(made, example), sums(plain, example)):
            np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-4)
