"""Relevance follows the epsilon rule, checked by three independent means.

Explicit loops in NumPy; conservation of the output's value; and, for
networks of linear layers, ReLU and pooling without biases, the fact that
the epsilon rule with a tiny epsilon is input times gradient (Ancona et al.
2018, proposition 1), with the gradient taken by central differences.
"""

import itertools

import keras
import numpy as np
import pytest
from keras import layers

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.papers.adlm.perturbed_layers import (
    PerturbedAffine,
    PerturbedConv2D,
)
from keras_fm.papers.adlm.relevance import layer_wise
from keras_fm.papers.adlm.relevance_scaling import RelevanceScaling
from keras_fm.public.discriminant_projection import DiscriminantProjection
from keras_fm.public.local_response_normalization import (
    LocalResponseNormalization,
)
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.public.random_features import RandomFeatures

VECTOR, SEQUENCE, MAP = (6,), (8, 3), (6, 5, 2)
ZERO_AT_START = ("bias", "beta", "moving_mean")


def records(shape, n=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape))


def randomise(model, seed=1, biases=False):
    """Weights from NumPy, so that every backend has the same."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        value = rng.normal(size=weight.shape)
        if weight.name in ZERO_AT_START and not biases:
            value = np.zeros(weight.shape)
        elif weight.name in ("moving_variance", "scale", "alpha"):
            value = np.abs(value) + 0.1
        weight.assign(value)
    return model


def sequential(shape, *parts, **kwargs):
    model = keras.Sequential([keras.Input(shape), *parts])
    return randomise(model, **kwargs)


def head(units=3, **kwargs):
    return layers.Dense(units, use_bias=False, name="head", **kwargs)


def outputs(model, x):
    x = np.asarray(x, "float32")
    return keras.ops.convert_to_numpy(model(x, training=False))


def total(relevance):
    return relevance.reshape(len(relevance), -1).sum(axis=1)


def assert_conserved(model, x, **kwargs):
    made = layer_wise(model, x, epsilon=1e-9, **kwargs)
    largest = outputs(model, x).max(axis=1)
    # Nothing is conserved by chance where the output is zero.
    assert np.abs(largest).min() > 0.005
    size = np.abs(made).reshape(len(x), -1).sum(axis=1)
    assert np.all(np.abs(total(made) - largest) <= 1e-4 * size)
    return made


def assert_input_times_gradient(made, model, x, step=1e-3):
    """Compares with differences of the largest output, but at kinks."""
    close, smooth = [], []
    for relevance, record in zip(made, x):
        moves = step * np.eye(record.size).reshape(-1, *record.shape)
        moved = np.concatenate([record[None], record + moves, record - moves])
        values = outputs(model, moved).astype(np.float64)
        values = values[:, values[0].argmax()]
        ahead, back = np.split(values[1:] - values[0], 2)
        expected = record.ravel() * (ahead - back) / (2 * step)
        error = np.abs(relevance.ravel() - expected)
        close.append(error <= 0.01 * np.abs(expected).max())
        # Where the two sides differ, the output has a kink.
        kink = np.abs(record.ravel() * (ahead + back)) / step
        smooth.append(kink <= 0.02 * np.abs(expected).max())
    close, smooth = np.ravel(close), np.ravel(smooth)
    assert smooth.mean() >= 0.9
    assert np.all(close[smooth])


# Linear layers, ReLU, pooling: conservation and input times gradient ------


def nested():
    inner = keras.Sequential(
        [
            keras.Input(VECTOR),
            layers.Dense(5, activation="relu"),
            keras.Sequential([keras.Input((5,)), layers.Dense(4)]),
        ]
    )
    return [inner, layers.ReLU(), head()]


def flat(*parts):
    return [*parts, layers.ReLU(), layers.Flatten(), head()]


HOMOGENEOUS = {
    "dense": (VECTOR, lambda: [layers.Dense(7, activation="relu"), head()]),
    "deep": (
        VECTOR,
        lambda: [
            layers.Dense(7, activation="relu"),
            layers.Dense(7, activation="leaky_relu"),
            head(),
        ],
    ),
    "dense on positions": (SEQUENCE, lambda: flat(layers.Dense(4))),
    "one output": (VECTOR, lambda: [layers.Dense(7), layers.ReLU(), head(1)]),
    "activations": (
        VECTOR,
        lambda: [
            layers.Dense(7),
            layers.LeakyReLU(),
            layers.Dense(7),
            layers.PReLU(),
            layers.Activation("relu"),
            head(),
        ],
    ),
    "conv valid": (MAP, lambda: flat(layers.Conv2D(3, 3))),
    "conv same": (MAP, lambda: flat(layers.Conv2D(3, 3, padding="same"))),
    "conv strides": (
        MAP,
        lambda: flat(
            layers.Conv2D(3, (3, 2), strides=2, padding="same"),
            layers.ReLU(),
            layers.Conv2D(2, 2, strides=(2, 1)),
        ),
    ),
    "conv dilation": (MAP, lambda: flat(layers.Conv2D(3, 2, dilation_rate=2))),
    "conv groups": (MAP, lambda: flat(layers.Conv2D(4, 3, groups=2))),
    "conv 1d": (
        SEQUENCE,
        lambda: flat(
            layers.Conv1D(4, 3, strides=2),
            layers.ReLU(),
            layers.Conv1D(4, 2, padding="same"),
        ),
    ),
    "conv 1d causal": (
        SEQUENCE,
        lambda: flat(layers.Conv1D(4, 3, padding="causal")),
    ),
    "depthwise": (
        MAP,
        lambda: flat(
            layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
            layers.ReLU(),
            layers.DepthwiseConv2D(2, strides=2),
        ),
    ),
    "average pooling": (
        MAP,
        lambda: flat(
            layers.Conv2D(3, 2),
            layers.ReLU(),
            layers.AveragePooling2D(2, padding="same"),
        ),
    ),
    "average pooling 1d": (SEQUENCE, lambda: flat(layers.AveragePooling1D(3))),
    "max pooling": (
        MAP,
        lambda: flat(layers.Conv2D(3, 2), layers.MaxPooling2D(2)),
    ),
    "max pooling 1d": (
        SEQUENCE,
        lambda: flat(layers.MaxPooling1D(3, strides=2)),
    ),
    "global average": (
        MAP,
        lambda: [
            layers.Conv2D(3, 2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            head(),
        ],
    ),
    "global max": (
        MAP,
        lambda: [layers.Conv2D(3, 2), layers.GlobalMaxPooling2D(), head()],
    ),
    "global 1d": (
        SEQUENCE,
        lambda: [
            layers.Conv1D(4, 2, activation="relu"),
            layers.GlobalAveragePooling1D(),
            head(),
        ],
    ),
    "global max 1d": (
        SEQUENCE,
        lambda: [layers.Conv1D(4, 2), layers.GlobalMaxPooling1D(), head()],
    ),
    "shapes": (
        MAP,
        lambda: flat(
            layers.ZeroPadding2D(((1, 0), (2, 1))),
            layers.Conv2D(3, 3),
            layers.Cropping2D(((1, 0), (0, 1))),
            layers.Permute((3, 1, 2)),
            layers.Reshape((-1, 3)),
            layers.ZeroPadding1D(1),
            layers.Conv1D(2, 2),
            layers.Cropping1D(1),
        ),
    ),
    "dropout": (
        VECTOR,
        lambda: [
            layers.Dropout(0.5),
            layers.Dense(7, activation="relu"),
            layers.GaussianNoise(1.0),
            layers.Dropout(0.5),
            head(),
        ],
    ),
    "batch normalisation": (
        MAP,
        lambda: flat(layers.Conv2D(3, 2), layers.BatchNormalization()),
    ),
    "rescaling": (VECTOR, lambda: [layers.Rescaling(0.5), head()]),
    "nested": (VECTOR, nested),
    "private dense": (
        VECTOR,
        lambda: [layers.Dense(7, activation="relu"), PrivateDense(3)],
    ),
    "perturbed affine": (
        VECTOR,
        lambda: [PerturbedAffine(7, activation="relu"), head()],
    ),
    "perturbed convolution": (
        MAP,
        lambda: flat(
            PerturbedConv2D(3, 3),
            PerturbedConv2D(2, 2, strides=2, padding="valid"),
        ),
    ),
    "random projection": (
        VECTOR,
        lambda: [RandomFeatures(9), layers.ReLU(), head()],
    ),
    "relevance scaling": (
        VECTOR,
        lambda: [
            RelevanceScaling(),
            layers.Dense(7, activation="relu"),
            head(),
        ],
    ),
}


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_relevance_is_conserved_and_is_input_times_gradient(name):
    shape, parts = HOMOGENEOUS[name]
    model, x = sequential(shape, *parts()), records(shape)
    made = assert_conserved(model, x)
    assert made.shape == x.shape and made.dtype == np.float32
    assert_input_times_gradient(made, model, x)


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow",
    reason="TensorFlow has no channels-first convolution on a CPU",
)
def test_channels_first():
    first = {"data_format": "channels_first"}
    model = sequential(
        (2, 6, 5),
        layers.Conv2D(3, 2, **first),
        layers.MaxPooling2D(2, **first),
        layers.DepthwiseConv2D(2, padding="same", **first),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(**first),
        head(),
        seed=2,
    )
    x = records((2, 6, 5))
    assert_input_times_gradient(assert_conserved(model, x), model, x)
    # The bias belongs to a channel.
    model = sequential(
        (2, 6, 5), layers.Conv2D(3, 2, **first), *flat()[1:], biases=True
    )
    last = sequential(
        (6, 5, 2),
        layers.Conv2D(3, 2, data_format="channels_last"),
        layers.Permute((3, 1, 2)),
        *flat()[1:],
        biases=True,
    )
    for one, two in zip(model.weights, last.weights):
        two.assign(one)
    np.testing.assert_allclose(
        layer_wise(model, x, epsilon=0.1),
        layer_wise(last, x.transpose(0, 2, 3, 1), epsilon=0.1).transpose(
            0, 3, 1, 2
        ),
        rtol=1e-3,
        atol=1e-4,
    )


def branching():
    inputs = keras.Input(VECTOR)
    trunk = layers.Dense(5, activation="relu", name="trunk")(inputs)
    shared = layers.Dense(5, name="shared")
    left = layers.ReLU(name="left")(shared(trunk))
    right = layers.Dense(5, activation="relu", name="right")(trunk)
    joined = layers.Add(name="sum")([left, right, trunk])
    mean = layers.Average(name="mean")([shared(right), joined])
    both = layers.Concatenate(name="both")([mean, left, inputs])
    return randomise(keras.Model(inputs, head()(both)))


def test_branches_add_up():
    model, x = branching(), records(VECTOR)
    made = assert_conserved(model, x)
    assert_input_times_gradient(made, model, x)


@pytest.mark.parametrize("merge", [layers.Add, layers.Average])
@pytest.mark.parametrize("skip", ["itself", "dropout", "linear"])
def test_a_sum_with_its_own_input_counts_it_once_each(merge, skip):
    """Layers that do nothing hand the same tensor on."""
    inputs = keras.Input(VECTOR)
    other = {
        "itself": lambda t: t,
        "dropout": layers.Dropout(0.5),
        "linear": layers.Activation("linear"),
    }[skip](inputs)
    model = randomise(keras.Model(inputs, head()(merge()([inputs, other]))))
    x = records(VECTOR)
    made = assert_conserved(model, x)
    assert_input_times_gradient(made, model, x)


# Layers that hand relevance on entry by entry -----------------------------


@pytest.mark.parametrize(
    "shape, part",
    [
        (VECTOR, lambda: layers.Activation("tanh")),
        (VECTOR, lambda: layers.Activation("sigmoid")),
        (VECTOR, lambda: layers.ELU()),
        (VECTOR, lambda: layers.Softmax()),
        (MAP, lambda: layers.BatchNormalization()),
        (MAP, lambda: layers.LayerNormalization()),
        (MAP, lambda: layers.GroupNormalization(2)),
        (MAP, lambda: layers.UnitNormalization()),
        (VECTOR, lambda: layers.Normalization(mean=0.3, variance=2.0)),
        (VECTOR, lambda: NormalizationLayer()),
        (VECTOR, lambda: NormalizationLayer(mode="ball", norm="l1")),
        (VECTOR, lambda: NormalizationLayer(bounds=(-1, 1))),
        (MAP, lambda: LocalResponseNormalization(size=3, q=0.5, a=0.5)),
        (MAP, lambda: RelevanceScaling()),
        (MAP, lambda: layers.SpatialDropout2D(0.5)),
    ],
)
def test_elementwise_layers_hand_relevance_on(shape, part):
    parts = [layers.Identity(name="below"), part(), layers.Flatten(name="up")]
    model = sequential(shape, *parts, head(), seed=6, biases=True)
    x = records(shape)
    made = assert_conserved(model, x)
    above = layer_wise(model, x, layer="up", epsilon=1e-9)
    np.testing.assert_array_equal(made, above)
    # And what is above is the head's: entries times weights.
    flat = layer_wise(model, x, layer="head", epsilon=1e-9)
    np.testing.assert_array_equal(flat, above.reshape(len(x), -1))
    hidden = keras.Model(model.inputs[0], model.get_layer("up").output)
    kernel = keras.ops.convert_to_numpy(model.get_layer("head").kernel)
    target = outputs(model, x).argmax(axis=1)
    np.testing.assert_allclose(
        flat, outputs(hidden, x) * kernel[:, target].T, rtol=1e-4, atol=1e-5
    )


# Explicit loops ------------------------------------------------------------


def through_affine(a, kernel, bias, relevance, epsilon):
    """The epsilon rule for one record, one number at a time."""
    found = np.zeros(len(a))
    for k in range(kernel.shape[1]):
        z = bias[k]
        for j in range(len(a)):
            z += a[j] * kernel[j, k]
        bottom = z + (epsilon if z >= 0 else -epsilon)
        for j in range(len(a)):
            if bottom != 0:
                found[j] += a[j] * kernel[j, k] / bottom * relevance[k]
    return found


def numpy_weights(layer):
    kernel = keras.ops.convert_to_numpy(layer.kernel).astype(np.float64)
    if getattr(layer, "bias", None) is None:
        return kernel, np.zeros(kernel.shape[-1])
    return kernel, keras.ops.convert_to_numpy(layer.bias).astype(np.float64)


@pytest.mark.parametrize("final", [None, "softmax"])
@pytest.mark.parametrize("epsilon", [0, 1e-6, 0.1, 1.0, 30.0])
def test_epsilon_rule_equals_loops_for_a_two_layer_network(epsilon, final):
    model = sequential(
        VECTOR,
        layers.Dense(5, activation="relu"),
        layers.Dense(3, activation=final),
        biases=True,
    )
    x = records(VECTOR, n=4)
    made = layer_wise(model, x, epsilon=epsilon)
    (w1, b1), (w2, b2) = (numpy_weights(layer) for layer in model.layers)
    for row, found in zip(x, made):
        a = np.maximum(row @ w1 + b1, 0)
        z = a @ w2 + b2
        relevance = np.where(np.arange(3) == z.argmax(), z, 0)
        relevance = through_affine(a, w2, b2, relevance, epsilon)
        expected = through_affine(row, w1, b1, relevance, epsilon)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_sum_of_exactly_zero_counts_as_positive():
    model = sequential(
        VECTOR, layers.Dense(1, activation="sigmoid"), head(), seed=2
    )
    model.layers[0].kernel.assign(np.ones((6, 1)))
    x = np.array([[1.0, -1.0, 2.0, 0.0, -2.0, 0.0]])
    (made,) = layer_wise(model, x, epsilon=0.5)
    (above,) = layer_wise(model, x, epsilon=0.5, layer="head")
    assert abs(above[0]) > 0.01
    np.testing.assert_allclose(made, x[0] / 0.5 * above[0], rtol=1e-5)


def through_convolution(x, kernel, bias, relevance, strides, padding, epsilon):
    """The epsilon rule for one map, one number at a time."""
    found = np.zeros(x.shape)
    starts = []
    for axis in (0, 1):
        n, k, s = x.shape[axis], kernel.shape[axis], strides[axis]
        count = relevance.shape[axis]
        before = 0
        if padding == "same":
            before = max((count - 1) * s + k - n, 0) // 2
        starts.append([i * s - before for i in range(count)])
    spots = list(itertools.product(*(range(size) for size in kernel.shape[:3])))
    for i, top in enumerate(starts[0]):
        for j, left in enumerate(starts[1]):
            for f in range(kernel.shape[3]):
                z, parts = bias[f], []
                for p, q, c in spots:
                    y, x_ = top + p, left + q
                    if 0 <= y < x.shape[0] and 0 <= x_ < x.shape[1]:
                        part = x[y, x_, c] * kernel[p, q, c, f]
                        parts.append(((y, x_, c), part))
                        z += part
                bottom = z + (epsilon if z >= 0 else -epsilon)
                for spot, part in parts:
                    found[spot] += part / bottom * relevance[i, j, f]
    return found


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kind", [layers.Conv2D, PerturbedConv2D])
def test_epsilon_rule_equals_loops_for_a_convolution(kind, padding, epsilon):
    strides = (2, 1)
    model = sequential(
        MAP,
        kind(3, (3, 2), strides=strides, padding=padding, activation="relu"),
        layers.Flatten(name="up"),
        head(),
        biases=True,
    )
    x = records(MAP, n=2)
    made = layer_wise(model, x, epsilon=epsilon)
    kernel, bias = numpy_weights(model.layers[0])
    above = layer_wise(model, x, layer="up", epsilon=epsilon)
    for row, relevance, found in zip(x, above, made):
        expected = through_convolution(
            row, kernel, bias, relevance, strides, padding, epsilon
        )
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, atol=1e-3 * scale)
    # The map itself, from the head, by loops too.
    hidden = keras.Model(model.inputs[0], model.layers[0].output)
    weights, zero = numpy_weights(model.get_layer("head"))
    for z, a, relevance in zip(outputs(model, x), outputs(hidden, x), above):
        expected = through_affine(
            a.ravel().astype(np.float64),
            weights,
            zero,
            np.where(np.arange(3) == z.argmax(), z, 0),
            epsilon,
        )
        np.testing.assert_allclose(
            relevance.ravel(), expected, rtol=1e-3, atol=1e-5
        )


def discriminant():
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(20), 4)
    features = rng.normal(size=(20, 6))[groups] + 0.2 * rng.normal(size=(80, 6))
    layer = DiscriminantProjection(4)
    layer.adapt(features, groups, description="made up")
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        lambda: RandomFeatures(9, kind="fourier", scale=2.0),
        discriminant,
    ],
)
def test_what_has_an_affine_part_follows_it(layer):
    """A bias keeps some relevance, so nothing is conserved."""
    features = layer()
    model = keras.Sequential([keras.Input(VECTOR), features, head()])
    last = model.get_layer("head").kernel
    last.assign(np.random.default_rng(3).normal(size=last.shape))
    x = records(VECTOR)
    made = layer_wise(model, x, epsilon=0.01)
    above = layer_wise(model, x, layer="head", epsilon=0.01)
    kernel, bias = numpy_weights(features)
    assert np.any(bias != 0)
    for row, relevance, found in zip(x, above, made):
        expected = through_affine(row, kernel, bias, relevance, 0.01)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


# A final softmax -----------------------------------------------------------


@pytest.mark.parametrize(
    "last",
    [
        lambda: [head(activation="softmax")],
        lambda: [head(), layers.Softmax()],
        lambda: [head(), layers.Activation("softmax")],
    ],
)
def test_a_final_softmax_is_left_out(last):
    parts = [layers.Dense(7, activation="relu")]
    with_softmax = sequential(VECTOR, *parts, *last())
    parts = [layers.Dense(7, activation="relu")]
    plain = sequential(VECTOR, *parts, head())
    x = records(VECTOR)
    np.testing.assert_allclose(outputs(with_softmax, x).sum(axis=1), 1, 1e-5)
    np.testing.assert_allclose(
        layer_wise(with_softmax, x), layer_wise(plain, x), rtol=1e-5
    )


# Where and for which output ------------------------------------------------


@pytest.mark.parametrize(
    "name, shape",
    [("conv", MAP), ("pool", (4, 3, 3)), ("flat", (2, 1, 3)), ("head", (6,))],
)
def test_relevance_at_the_input_of_a_layer(name, shape):
    model = sequential(
        MAP,
        layers.Conv2D(3, 3, activation="relu", name="conv"),
        layers.MaxPooling2D(2, name="pool"),
        layers.Flatten(name="flat"),
        head(),
    )
    x = records(MAP)
    made = assert_conserved(model, x, layer=name)
    assert made.shape == (3, *shape) and made.dtype == np.float32
    whole = layer_wise(model, x)
    if name == "conv":
        np.testing.assert_array_equal(layer_wise(model, x, layer=name), whole)


def test_a_target_picks_its_output():
    model = sequential(VECTOR, layers.Dense(7, activation="relu"), head())
    x = records(VECTOR, n=5)
    values = outputs(model, x)
    for target in (np.array([2, 0, 1, 1, 2]), np.zeros(5, np.uint8)):
        made = layer_wise(model, x, target=target, epsilon=1e-9)
        np.testing.assert_allclose(
            total(made), values[np.arange(5), target], rtol=1e-3, atol=1e-4
        )
    best = values.argmax(axis=1)
    np.testing.assert_allclose(
        layer_wise(model, x, target=best), layer_wise(model, x), rtol=1e-5
    )
    worst = layer_wise(model, x, target=values.argmin(axis=1).tolist())
    assert np.abs(worst - layer_wise(model, x)).max() > 0.1


# Errors --------------------------------------------------------------------


def attention():
    inputs = keras.Input(SEQUENCE)
    made = layers.MultiHeadAttention(1, 2, name="odd one")(inputs, inputs)
    return keras.Model(inputs, head()(layers.Flatten()(made)))


@pytest.mark.parametrize(
    "make, kind",
    [
        (attention, "MultiHeadAttention"),
        (
            lambda: sequential(
                SEQUENCE, layers.LSTM(3, name="odd one"), head()
            ),
            "LSTM",
        ),
        (
            lambda: sequential(
                SEQUENCE,
                layers.Lambda(
                    lambda t: t, output_shape=SEQUENCE, name="odd one"
                ),
                layers.Flatten(),
                head(),
            ),
            "Lambda",
        ),
        (
            lambda: sequential(
                SEQUENCE,
                layers.EinsumDense("abc,cd->abd", (8, 2), name="odd one"),
                layers.Flatten(),
                head(),
            ),
            "EinsumDense",
        ),
    ],
)
def test_a_layer_without_a_rule_is_named(make, kind):
    with pytest.raises(ValueError, match=rf"'odd one' \({kind}\) has no rel"):
        layer_wise(make(), records(SEQUENCE))
