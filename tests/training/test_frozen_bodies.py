"""A body that others trained, batch normalisation and all, under a head.

Frozen, its moving statistics are constants: no release, step or prediction
moves them, and the statement names them as public.
"""

import keras
import numpy as np
import pytest
from keras import layers

import keras_fm as fm

pytestmark = pytest.mark.full

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 6)).astype("float32")
Y = RANDOM.integers(0, 2, 64)


def trained_body(**kwargs):
    """With statistics of other data, far from where they began."""
    body = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5),
            layers.BatchNormalization(momentum=0.5, name="bn", **kwargs),
            layers.ReLU(),
        ],
        name="body",
    )
    for _ in range(3):
        body(RANDOM.normal(3, 2, (32, 6)).astype("float32"), training=True)
    return body


def frozen_body():
    body = trained_body()
    body.trainable = False
    return body


def headed(body):
    model = keras.Sequential(
        [keras.Input((6,)), body, fm.layers.PrivateDense(2, clip=True)]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def private(budget=1.0, **kwargs):
    budget = fm.PrivacyBudget(budget, 1e-5)
    return fm.callbacks.PrivateModel(budget, data=(X, Y), **kwargs)


def statistics(model):
    bn = next(
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, layers.BatchNormalization)
    )
    return [
        keras.ops.convert_to_numpy(v).copy()
        for v in (bn.moving_mean, bn.moving_variance)
    ]


def assert_same(before, model):
    for old, new in zip(before, statistics(model)):
        np.testing.assert_array_equal(old, new)


def test_its_statistics_are_constants_and_named():
    body, callback = frozen_body(), private()
    before = statistics(body)
    features = body.predict(X, verbose=0)
    assert abs(before[0]).max() > 0.1
    model = headed(body)
    model.fit(X, Y, epochs=2, callbacks=[callback], verbose=0)
    model.train_on_batch(X, Y)
    assert_same(before, model)
    in_training = keras.ops.convert_to_numpy(body(X[:8], training=True))
    alone = [body.predict(x[None], verbose=0)[0] for x in X[:8]]
    np.testing.assert_allclose(in_training, alone, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(features[:8], alone, rtol=1e-5, atol=1e-5)
    assert (
        "public by declaration: moving statistics of layer 'bn' "
        "(BatchNormalization); name the data that trained them yourself"
    ) in callback.report()


@pytest.mark.parametrize("weights", [True, False])
def test_what_would_move_is_refused(weights):
    """With no weights at all, it would still keep means of what it saw."""
    body, callback = trained_body(center=weights, scale=weights), private()
    before = statistics(body)
    body.layers[0].trainable = False
    match = "trainable weights" if weights else "'bn'.*`body.trainable = Fal"
    with pytest.raises(ValueError, match=match):
        headed(body).fit(X, Y, callbacks=[callback], verbose=0)
    assert not callback.ledger.entries
    assert_same(before, body)


@pytest.mark.parametrize("callbacks", [True, False])
def test_unfrozen_after_the_release_no_step_moves_them(callbacks):
    body = trained_body(center=False, scale=False)
    body.trainable = False
    callback, model = private(), headed(body)
    model.fit(X, Y, callbacks=[callback], verbose=0)
    body.get_layer("bn").trainable = True
    before = statistics(model)
    with pytest.raises(ValueError, match="'bn'.*trainable = False"):
        model.fit(X, Y, callbacks=[callback] * callbacks, verbose=0)
    assert_same(before, model)


def test_a_normalization_that_was_never_adapted():
    """As the bodies of EfficientNet begin with; and one of ImageNet."""
    callback, layer = private(), layers.Normalization()
    body = keras.Sequential([keras.Input((6,)), layer])
    callback.plan(headed(body))
    layer.adapt(X)
    with pytest.raises(ValueError, match="constants of private data"):
        private().plan(headed(body))
    image = layers.Normalization()
    image.build((None, 4, 4, 3))
    mean, variance = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    image.adapt_mean.assign(mean)
    image.adapt_variance.assign(np.square(variance))
    image.finalize_state()
    model = keras.Sequential(
        [
            keras.Input((4, 4, 3)),
            image,
            layers.Flatten(),
            fm.layers.PrivateDense(2),
        ]
    )
    callback.plan(model)
