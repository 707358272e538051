"""DP-MAC: its classifiers and auto-encoder, and how each form trains them."""

import keras
import numpy as np

from keras_fm.core.guarantee import Published
from keras_fm.datasets import pen_strokes as strokes
from keras_fm.papers.dpmac.dpmac import DPMAC
from keras_fm.preprocessing.dp_pca import DPPCA
from keras_fm.public.normalization_layer import NormalizationLayer

# Batch size and learning rate of the public start on drawn strokes.
_STROKE_BATCH = 250
_STROKE_RATE = 4e-3
# Learning rate of the private steps after it.
_TOP_RATE = 2e-3
# Number of components of the classifier's inputs, and their whitening.
_COMPONENTS = 60
_WHITENING = 0.25
_EXACT = "exact_components"


def network(inputs, units, classes, below, z_rate=0.3, clip=(0.1, 0.3)):
    """One hidden layer on public features, with one Z-step."""
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
    """Classifier with 300 hidden units and 10 classes on 60 components of the
    inputs: released ones, or exact ones in the twin."""
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
    """Layers of 300-100-20-100-300 units, and one of the inputs' size."""
    return [
        keras.layers.Dense(units, activation="tanh")
        for units in (300, 100, 20, 100, 300)
    ] + [keras.layers.Dense(inputs, activation="sigmoid")]


def autoencoder(layers, inputs, **kwargs):
    """A DPMAC that trains all of the layers."""
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
    """A DPMAC that trains the last two layers and freezes the others."""
    for layer in layers[:-2]:
        layer.trainable = False
    return DPMAC(
        (inputs,),
        layers[-2:],
        loss="squared_error",
        # After one small step the coefficients equal back-propagation's.
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(0.02),
        below=layers[:-2],
        **kwargs,
    )


def fit(training, model, data, form, optimizer=None):
    """Trains the form `"proven"`, `"published"` or `"twin"`. For the last the
    model must be built with `unprotected=True`."""
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
    """Sets the twin's components, without noise."""
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

    Public data: no record is used. `(n, size * size)` float32.
    """
    # At this image size the ink fills a square of `size`.
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
    """Weights of the auto-encoder trained on strokes alone, and the median
    norms of the strokes' coefficients in its last two layers.

    Args:
        inputs: int, pixels of a square image.
        shapes: int, number of strokes, each drawn three times.
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
    # On PyTorch Keras runs one step at a time.
    return 1 if keras.backend.backend() == "torch" else 20


def after_start(training, start, x):
    """Trains the last two layers privately after a public start.

    Args:
        training: a `Training` of the laboratory; without an epsilon only
            the start is used.
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
