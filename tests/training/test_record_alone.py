"""What a release reads of a record is computed of it alone.

Maps that mix the records of a batch, or keep something of them, are what
people put below a private layer without a thought: batch means in a `Lambda`,
moving averages, recurrent states, random numbers. Each gives the same bits for
a record in any company, on every backend.
"""

import keras
import numpy as np
import pytest
from alone import assert_alone
from keras import layers, ops

import keras_fm as fm
from keras_fm.core.record_alone import Attributes, FeatureMap, unlisted

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 6, 4)).astype("float32")
Y = np.arange(24) % 2
OTHERS = 50 * RANDOM.normal(size=(3, 6, 4)).astype("float32")
TENSORFLOW = keras.backend.backend() == "tensorflow"


class Average(layers.Layer):
    """Subtracts a moving average of what it saw."""

    def build(self, shape):
        self.mean = self.add_weight(
            shape=shape[1:], initializer="zeros", trainable=False
        )

    def call(self, x):
        self.mean.assign(0.5 * self.mean + 0.5 * ops.mean(x, axis=0))
        return x - self.mean


class Largest(layers.Layer):
    """Divides by the largest number of the records so far."""

    def build(self, shape):
        self.most = self.add_weight(
            shape=(), initializer="ones", trainable=False
        )

    def call(self, x):
        self.most.assign(ops.maximum(self.most, ops.max(ops.abs(x))))
        return x / self.most


class Keeps(layers.Layer):
    """Remembers in attributes what it was called with."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen, self.last, self.names = [], None, {}
        self.total = np.zeros(1)
        self.sum = ops.zeros((6, 4))

    def call(self, x):
        count = len(self.seen)
        self.seen.append(x)
        self.last = x
        self.names[str(count)] = x
        self.total += 1
        if keras.backend.backend() == "torch":
            self.sum += ops.mean(x, axis=0)
            x = x + self.sum
        return x * (1 + count) * float(self.total[0])


class Subtracts(keras.Model):
    """A model with a `call` of its own."""

    def call(self, x):
        return x - ops.mean(x, axis=0, keepdims=True)


class OfBatch(layers.Dense):
    """A subclass of a layer of the list may do anything."""

    def call(self, x):
        return super().call(x - ops.mean(x, axis=0, keepdims=True))


def centred(x):
    return x - ops.mean(x, axis=0, keepdims=True)


def same(shape):
    return shape


def nested(x):
    given = keras.Input((6, 4))
    return keras.Model(given, layers.Lambda(centred, same)(given))(x)


ALONE = {
    "a Lambda": lambda x: layers.Lambda(centred, same)(x),
    "an activation": lambda x: layers.Dense(5, centred)(x),
    "an average": lambda x: Average()(x),
    "a running maximum": lambda x: Largest()(x),
    "attributes": lambda x: Keeps()(x),
    "a model": lambda x: Subtracts()(x),
    "a subclass": lambda x: OfBatch(5)(x),
    "an operation": lambda x: ops.cumsum(x, axis=0),
    "an axis": lambda x: layers.Softmax(axis=0)(x),
    "an axis from the end": lambda x: layers.Softmax(axis=-2)(
        layers.Flatten()(x)
    ),
    "a mask while testing": lambda x: layers.Dropout(0.5)(x, training=True),
    "statistics of a batch": lambda x: layers.BatchNormalization(
        trainable=False
    )(x, training=True),
    "some records": lambda x: x[0:, 1:],
    "a nested model": nested,
    "a mask": lambda x: layers.GRU(3)(layers.Masking()(x)),
}
TOGETHER = {
    "attention": lambda x: layers.MultiHeadAttention(2, 4)(x, x),
    "LSTM": lambda x: layers.Bidirectional(layers.LSTM(5))(x),
    "a convolution": lambda x: layers.Conv1D(5, 3, activation="relu")(x),
    "frozen statistics": lambda x: layers.BatchNormalization(trainable=False)(
        x
    ),
    "arithmetic": lambda x: layers.Flatten()(x / 255.0 + 2 * x),
    "a part": lambda x: x[:, 2:, ::2],
    "several": lambda x: layers.Concatenate()(
        [layers.LayerNormalization(axis=(1, 2))(x), layers.ReLU()(x)]
    ),
    "an equation": lambda x: layers.EinsumDense("abc,cd->abd", (None, 3))(x),
}


def map_of(function):
    keras.utils.set_random_seed(1)
    x = keras.Input((6, 4))
    return FeatureMap(keras.Model(x, function(x)))


@pytest.mark.parametrize("name", ALONE)
def test_what_mixes_or_keeps_records_takes_each_alone(name):
    features = map_of(ALONE[name])
    assert features.unlisted is not None
    assert_alone(features, X, OTHERS)


@pytest.mark.parametrize("name", TOGETHER)
def test_layers_of_the_list_run_in_batches(name):
    features = map_of(TOGETHER[name])
    assert features.unlisted is None
    assert_alone(features, X, OTHERS)


@pytest.mark.skipif(not TENSORFLOW, reason="Keras reads text with TensorFlow")
def test_text_is_not_padded_to_the_longest_of_a_batch():
    text = layers.TextVectorization(vocabulary=["one", "two", "three"])
    x = keras.Input((), dtype="string")
    h = layers.Embedding(6, 4)(text(x))
    features = FeatureMap(keras.Model(x, layers.GlobalAveragePooling1D()(h)))
    words = np.array(
        ["one", "two", "one two", "three one one", "four two"], object
    )
    others = np.array(["one " * 50, "three", ""], object)
    assert_alone(features, words, others)


def test_random_numbers_begin_anew_for_every_record():
    def noisy(x):
        return x + keras.random.normal(ops.shape(x))

    features = map_of(lambda x: layers.Lambda(noisy, same)(x))
    assert_alone(features, X, OTHERS)


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="its own generator"
)
def test_numbers_of_pytorch_begin_anew_for_every_record():
    import torch

    before = torch.get_rng_state()
    features = map_of(
        lambda x: layers.Lambda(lambda v: v + torch.rand_like(v), same)(x)
    )
    assert_alone(features, X, OTHERS)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="modules of PyTorch"
)
def test_buffers_of_modules_are_given_back():
    import torch

    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(6, 4))

        def forward(self, x):
            self.total += x.mean(0)
            return x + self.total

    wrapped = layers.TorchModuleWrapper(Counts(), output_shape=(None, 6, 4))
    features = map_of(lambda x: wrapped(x))
    assert_alone(features, X, OTHERS)
    assert not wrapped.module.total.any()


def test_what_no_map_gives_back_is_refused():
    """A closure that counts, read eagerly."""
    seen = []

    def remembers(x):
        seen.append(1)
        return x * len(seen)

    features = map_of(lambda x: layers.Lambda(remembers, same, name="own")(x))
    features._compiled = False
    with pytest.raises(ValueError, match="Lambda 'own' draws random.*stores"):
        features.check_repeats()


def test_attributes_are_given_back_whatever_is_done_to_them():
    layer = Keeps()
    model = keras.Sequential([keras.Input((6, 4)), layer])
    kept = Attributes(model)
    before = len(layer.seen), list(layer.names), layer.total.copy()
    seen, total = layer.seen, layer.total
    layer(X[:1]), layer(X[:1])
    layer.more = 1
    assert len(seen) == before[0] + 2
    kept.give_back()
    assert layer.seen is seen and layer.total is total
    assert (len(seen), list(layer.names), total) == before
    assert not hasattr(layer, "more")


def model_of(layer):
    model = keras.Sequential(
        [
            keras.Input((6, 4)),
            layer,
            layers.Flatten(),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(2),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def private_of(epsilon=1.0):
    return fm.callbacks.PrivateModel(epsilon, 1e-5, data=(X, Y))


def test_plan_and_statement_say_which_way():
    private = private_of()
    model = model_of(layers.Lambda(centred, same, name="centre"))
    plan = private.plan(model)
    assert "record by record (Lambda 'centre')" in plan
    model.fit(X, Y, callbacks=[private], verbose=0)
    assert "record by record (Lambda 'centre')" in private.report()
    listed = private_of().plan(model_of(layers.ReLU()))
    assert "record by record" not in listed


@pytest.mark.parametrize("kind", ["an average", "attributes"])
def test_a_release_is_of_sums_of_single_records(kind):
    given = keras.Input((6, 4))
    model = model_of(keras.Model(given, ALONE[kind](given)))
    private = private_of(1e6)
    model.fit(X, Y, callbacks=[private], verbose=0)
    features = FeatureMap(keras.Model(model.inputs, model.layers[-1].input))
    h = np.concatenate([features(X[i : i + 1]) for i in range(len(X))])
    h = model.layers[-1].augment(h)
    np.testing.assert_allclose(private.release.quadratic, h.T @ h, atol=0.1)


def test_steps_on_records_take_each_alone_below():
    """Of a `DPMAC`, whose layers below run inside of its steps."""
    net = fm.models.DPMAC(
        (6, 4),
        layers=[layers.Dense(2)],
        below=[layers.Lambda(centred, same), layers.Flatten()],
        z_steps=1,
    )
    found = ops.convert_to_numpy(net._features(ops.convert_to_tensor(X[:5])))
    np.testing.assert_array_equal(found, np.zeros((5, 24)))
    net.compile(keras.optimizers.SGD(1.0))
    private = fm.callbacks.PrivateModel(100.0, 1e-3)
    net.fit(X, Y, batch_size=8, epochs=2, callbacks=[private], verbose=0)
    kernel, bias = net.get_weights()[:2]
    # Zeros teach a bias alone; the kernel has the noise of the steps.
    assert np.all(np.isfinite(kernel)) and np.all(np.isfinite(bias))


def test_a_layer_that_adapts_to_batches_is_unlisted():
    x = keras.Input((4,))
    layer = fm.layers.NormalizationLayer(mode="batch")
    assert unlisted(keras.Model(x, layer(x))) is not None
