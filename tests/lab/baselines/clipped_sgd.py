"""DP-SGD without noise, in NumPy: what every library must compute.

One record at a time, own backpropagation, own clipping, own optimizers;
dense networks with tanh between the layers. For what is not dense, numbers
that one library produced (`GOLDEN`) hold for the other, which lives in an
environment of its own.
"""

import math

import keras
import numpy as np

from keras_fm.lab.baselines import DPSGDConfig

N, FEATURES, CLASSES = 60, 7, 4


def config(**changes):
    values = {
        "learning_rate": 0.5,
        "l2_norm_clip": 0.3,
        "batch_size": 20,
        "steps": 3,
    }
    values.update(changes)
    if values.get("sampling") == "full":
        values["batch_size"] = None
    return DPSGDConfig(**values)


def data(n=N, features=FEATURES, classes=CLASSES, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype("float32")
    return x, rng.integers(0, classes, n)


def with_weights(model, seed=1):
    """The model with normal weights that do not depend on the backend."""
    rng = np.random.default_rng(seed)
    model.set_weights(
        [
            rng.normal(size=w.shape, scale=w.shape[0] ** -0.5).astype("float32")
            for w in model.get_weights()
        ]
    )
    return model


def linear_model():
    return with_weights(
        keras.Sequential(
            [keras.layers.Input((FEATURES,)), keras.layers.Dense(CLASSES)]
        )
    )


def hidden_layer_model():
    return with_weights(
        keras.Sequential(
            [
                keras.layers.Input((FEATURES,)),
                keras.layers.Dense(5, activation="tanh"),
                keras.layers.Dense(CLASSES, activation="softmax"),
            ]
        )
    )


def convolutional_model():
    return with_weights(
        keras.Sequential(
            [
                keras.layers.Input((6, 6, 1)),
                keras.layers.Conv2D(3, 3, activation="tanh"),
                keras.layers.MaxPooling2D(2, strides=1),
                keras.layers.Flatten(),
                keras.layers.Dense(CLASSES),
            ]
        )
    )


def record_gradient(weights, row, label):
    """Gradients of one record's cross-entropy, kernel and bias in turn."""
    kernels, biases = weights[::2], weights[1::2]
    values = [row]
    for i, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        z = values[-1] @ kernel + bias
        values.append(np.tanh(z) if i + 1 < len(kernels) else z)
    p = np.exp(values[-1] - values[-1].max())
    p /= p.sum()
    p[label] -= 1
    gradients, back = [], p
    for i in reversed(range(len(kernels))):
        gradients = [np.outer(values[i], back), back, *gradients]
        back = (kernels[i] @ back) * (1 - values[i] ** 2)
    return gradients


def itself(row):
    return [row]


def there_and_back(row):
    return [row, -row]


def augment(record, rng):
    """What makes `there_and_back` of a record, in turn."""
    begins = rng.bit_generator.state["buffer_pos"] == 4
    rng.random()
    return record if begins else -record


def clipped_sum(weights, x, y, clip, views=itself):
    """Sum over records of gradients, the mean over views, clipped to an L2
    norm over all weights."""
    total = [np.zeros_like(w) for w in weights]
    for row, label in zip(x.astype("float64"), y, strict=True):
        each = [record_gradient(weights, v, label) for v in views(row)]
        gradients = [sum(g) / len(each) for g in zip(*each, strict=True)]
        norm = math.sqrt(sum(float(np.sum(g**2)) for g in gradients))
        scale = min(1.0, clip / norm)
        total = [t + scale * g for t, g in zip(total, gradients, strict=True)]
    return total


def by_hand(model, x, y, cfg, seed, views=itself):
    """Weights of a dense model after the noiseless run."""
    weights = [w.astype("float64") for w in model.get_weights()]
    average = None
    first = [np.zeros_like(w) for w in weights]
    second = [np.zeros_like(w) for w in weights]
    plan = cfg.plan(len(x), math.inf, 1e-5)
    batches = plan.batches(np.random.default_rng(seed))
    for t, rows in enumerate(batches, start=1):
        clip = cfg.l2_norm_clip
        sums = clipped_sum(weights, x[rows], y[rows], clip, views)
        falls = 1 - (1 - cfg.decay) * (t - 1) / plan.steps
        for i, total in enumerate(sums):
            g = total / plan.expected_batch_size
            if cfg.optimizer == "sgd":
                first[i] = cfg.momentum * first[i]
                first[i] = first[i] - falls * cfg.learning_rate * g
                weights[i] = weights[i] + first[i]
            else:
                first[i] = 0.9 * first[i] + 0.1 * g
                second[i] = 0.999 * second[i] + 0.001 * g**2
                rate = falls * cfg.learning_rate
                rate *= math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                weights[i] = weights[i] - rate * first[i] / (
                    np.sqrt(second[i]) + 1e-7
                )
        average = [
            cfg.average * a + (1 - cfg.average) * w
            for a, w in zip(average or weights, weights, strict=True)
        ]
    return average


def golden_run(classifier, optimizer, **changes):
    """Logits, up to a constant for each record, of a convolutional network
    after five noiseless steps of Poisson batches, most records clipped."""
    rate = {"sgd": 0.5, "adam": 0.02}[optimizer]
    cfg = config(
        optimizer=optimizer,
        learning_rate=rate,
        l2_norm_clip=0.5,
        steps=5,
        **changes,
    )
    x, y = data(features=36)
    x = x.reshape(-1, 6, 6, 1)
    fit = classifier(convolutional_model(), cfg, math.inf, 1e-5, seed=5)
    logits = np.log(fit.fit(x, y).predict(x[:3]))
    return logits - logits.mean(axis=1, keepdims=True)


# `golden_run(DPSGDClassifier, optimizer)`, printed: tensorflow-privacy 0.9.0
# on TensorFlow 2.21.0.
GOLDEN = {
    "sgd": [
        [0.2443904, 0.7078835, -0.5143166, -0.4379573],
        [-0.3934473, 0.9709831, 0.2389201, -0.816456],
        [-0.2886827, 0.8275004, 0.0551438, -0.5939616],
    ],
    "adam": [
        [0.2029309, 0.8257128, -0.6003606, -0.4282831],
        [-0.3824394, 1.0811583, 0.0281547, -0.7268741],
        [-0.16766, 0.8346188, -0.1260521, -0.5409062],
    ],
}
