"""FunctionalNet: the perturbed Taylor expansion of the whole network."""

import math

import keras

from keras_fm.callbacks import PrivateModel
from keras_fm.lab.compare.methods import method as method_lib
from keras_fm.models import FunctionalNet
from keras_fm.parts.guarantee import Published


def build(task, seed, published=False):
    """All layers, on features of norm 8; ten rounds."""
    layers = []
    if task.spec.hidden:
        affine = task.affine(seed)
        if published:
            affine.activation = keras.activations.sigmoid
        layers.append(affine)
    # What one class of many would learn first.
    rare = keras.initializers.Constant(-math.log(max(1, task.classes - 1)))
    layers.append(
        keras.layers.Dense(
            task.classes,
            kernel_initializer=task.head_initializer(seed),
            bias_initializer=rare,
            name="output",
        )
    )
    paper = {"curvature": "diagonal", "step_size": 1.0, "momentum": 0.0}
    return FunctionalNet(
        task.x.shape[1:],
        layers,
        rounds=10,
        below=[keras.layers.Rescaling(8.0)],
        **(paper if published else {}),
    )


class PublishedFunctionalNet(method_lib.Method):
    name = "functional_published"
    label = "published (FunctionalNet), claimed"
    about = "All layers, sigmoid, ten rounds, sums clipped as printed."

    def train(self, task, job, choice, log_dir):
        private = PrivateModel(
            job.epsilon,
            data=(task.x, task.y),
            guarantee=Published(lot="data"),
        )
        model = build(task, job.seed, published=True)
        return method_lib.fit(task, model, private, log_dir, loss=None)


class ProvenFunctionalNet(method_lib.Method):
    name = "functional_proven"
    label = "proven, FunctionalNet"
    about = "All layers, tanh, ten rounds, records clipped."

    def train(self, task, job, choice, log_dir):
        private = method_lib.proven(task, job.epsilon)
        model = build(task, job.seed)
        return method_lib.fit(task, model, private, log_dir, loss=None)
