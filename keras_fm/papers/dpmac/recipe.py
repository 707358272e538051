"""DP-MAC: its classifiers and auto-encoder, and how each form trains them."""

import keras
import numpy as np

from keras_fm.core.guarantee import Published
from keras_fm.datasets import pen_strokes as strokes
from keras_fm.papers.dpmac.dpmac import DPMAC
from keras_fm.preprocessing.dp_pca import DPPCA
from keras_fm.public.normalization_layer import NormalizationLayer

# Drawn strokes that a public start sees at a time, and its learning rate.
_STROKE_BATCH = 250
_STROKE_RATE = 4e-3
# Of the private steps after it.
_TOP_RATE = 2e-3
# Components of the classifier's inputs, and how far they are made equal.
_COMPONENTS = 60
_WHITENING = 0.25
_EXACT = "exact_components"


def network(inputs, units, classes, below, z_rate=0.3, clip=(0.1, 0.3)):
    """One hidden layer on public features; one step towards its targets."""
    return DPMAC(
        inputs,
        [
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(classes),
        ],
        clip=list(clip),
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(z_rate),
        below=below,
    )


def classifier(inputs, unprotected=False):
    """Inputs, 60 released components (or exact ones, of the twin), 300
    units, 10 classes."""
    units = min(_COMPONENTS, inputs)
    components = DPPCA(units, whitening=_WHITENING)
    if unprotected:
        components = keras.layers.Dense(
            units, use_bias=False, trainable=False, name=_EXACT
        )
    return DPMAC(
        (inputs,),
        [keras.layers.Dense(300, activation="relu"), keras.layers.Dense(10)],
        clip=[0.03, 0.3],
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(0.1),
        below=[
            NormalizationLayer(),
            components,
            NormalizationLayer(),
            keras.layers.Rescaling(8.0),
        ],
        unprotected=unprotected,
    )


def autoencoder_layers(inputs):
    """300-100-20-100-300, and the inputs again."""
    return [
        keras.layers.Dense(units, activation="tanh")
        for units in (300, 100, 20, 100, 300)
    ] + [keras.layers.Dense(inputs, activation="sigmoid")]


def autoencoder(layers, inputs, **kwargs):
    """The layers as a DPMAC of which all are trained."""
    return DPMAC(
        (inputs,),
        layers,
        loss="squared_error",
        clip=0.03,
        z_steps=10,
        z_optimizer=keras.optimizers.SGD(0.1),
        **kwargs,
    )


def top_of(layers, inputs, **kwargs):
    """The two last layers as a DPMAC above the others, which stay."""
    for layer in layers[:-2]:
        layer.trainable = False
    return DPMAC(
        (inputs,),
        layers[-2:],
        loss="squared_error",
        # One small step: the coefficients are those of back-propagation.
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(0.02),
        below=layers[:-2],
        **kwargs,
    )


def fit(training, model, data, form, optimizer=None):
    """Trains as `"proven"`, `"published"` or `"twin"` (without noise, a model
    that was built so)."""
    lot, private = training.lot, None
    if form == "proven":
        private = training.proven()
    elif form == "published":
        guarantee = Published(lot=lot, neighbours=training.neighbours)
        private = training.private(data, guarantee)
    else:
        _set_exact_components(model, data[0])
    return training.fit(model, data, private, loss=None, optimizer=optimizer)


def _set_exact_components(model, x):
    """The components without noise, for the twin."""
    network = model.model
    for layer in network.layers:
        if layer.name == _EXACT:
            inputs = keras.Model(network.inputs[0], layer.input)
            found = inputs.predict(x, batch_size=2000, verbose=0)
            values, vectors = np.linalg.eigh(found.T @ found)
            top = slice(-1, -layer.units - 1, -1)
            exact = DPPCA(layer.units, whitening=_WHITENING)
            exact.build((None, len(vectors)))
            mean = np.zeros(len(vectors))
            exact.set_components(mean, vectors[:, top], values[top])
            layer.set_weights(exact.get_weights())


# A public start ------------------------------------------------------------


def pen_strokes(shapes, size):
    """Drawings of random pen strokes that fill `size` x `size` pixels.

    Public data: no record is read. `(n, size * size)` float32.
    """
    # In this many pixels the ink fills a square of `size`.
    side = round(size * 22 / 16)
    drawn, _ = strokes.load(shapes, 3, image_size=side)
    drawn = drawn[..., 0]

    def window(ink):
        """The pixels around the middle of the ink."""
        first = ink.argmax(axis=1)
        last = side - 1 - ink[:, ::-1].argmax(axis=1)
        start = np.rint((first + last + 1 - size) / 2).astype(int)
        return np.clip(start, 0, side - size)[:, None] + np.arange(size)

    rows = window((drawn > 0.1).any(axis=2))[:, :, None]
    columns = window((drawn > 0.1).any(axis=1))[:, None, :]
    cut = drawn[np.arange(len(drawn))[:, None, None], rows, columns]
    return cut.reshape(-1, size * size)


def public_start(inputs, shapes, steps):
    """Weights of the auto-encoder trained on strokes alone, and median norms
    of the strokes' own coefficients in its two last layers.

    Args:
        inputs: int, pixels of a square image.
        shapes: int, strokes that are drawn, three times each.
        steps: int, plain training steps.
    """
    size = round(inputs**0.5)
    layers = autoencoder_layers(inputs)
    plain = keras.Sequential([keras.Input((inputs,)), *layers])
    drawn = pen_strokes(shapes, size)
    rate = keras.optimizers.schedules.CosineDecay(_STROKE_RATE, steps)
    plain.compile(
        keras.optimizers.Adam(rate), "mse", steps_per_execution=_steps_at_once()
    )
    plain.fit(
        drawn,
        drawn,
        batch_size=_STROKE_BATCH,
        epochs=max(1, steps * _STROKE_BATCH // len(drawn)),
        verbose=0,
    )
    norms = top_of(layers, inputs).coefficient_norms(drawn[:5000], drawn[:5000])
    return plain.get_weights(), np.median(norms, axis=0)


def _steps_at_once():
    # Keras takes one at a time on PyTorch.
    return 1 if keras.backend.backend() == "torch" else 20


def after_start(training, start, x):
    """Private steps of the two last layers after a public start.

    Args:
        training: a `Training` of the laboratory; without an epsilon the
            start alone.
        start: what `public_start` returned.
        x: `(n, inputs)` records.
    """
    weights, thresholds = start
    inputs = x.shape[1]
    layers = autoencoder_layers(inputs)
    whole = keras.Sequential([keras.Input((inputs,)), *layers])
    whole.set_weights(weights)
    if training.epsilon is None:
        return training.fitted(whole)
    model = top_of(
        layers, inputs, public="an auto-encoder of drawn pen strokes"
    )
    model.learn_thresholds(thresholds)
    lot = min(1000, len(x) // 4)
    rate = keras.optimizers.schedules.CosineDecay(
        _TOP_RATE, training.epochs * -(-len(x) // lot)
    )
    training = training.but(
        lot=lot,
        notes=("layers below and thresholds: from drawn pen strokes, public",),
    )
    made = fit(training, model, (x, x), "proven", keras.optimizers.Adam(rate))
    return training.fitted(whole, made.private)
