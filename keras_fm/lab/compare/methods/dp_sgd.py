"""DP-SGD, by tensorflow-privacy and jax-privacy.

Its hyper-parameters are chosen for each epsilon on the last fifth of the
training part. What that choice costs in privacy is not charged to it.
"""

import keras
import numpy as np

from keras_fm import baselines
from keras_fm.lab.compare.methods import method as method_lib

# Large Poisson batches, a small clip and momentum are DP-SGD's best published
# practice on features (Tramer and Boneh 2021).
_BATCHES_PER_EPOCH = 4
_CLIP = 0.1
# Rates to begin with; the search goes on past an end that is best.
_RATES = {"sgd": (4.0, 16.0, 64.0), "adam": (1e-3, 4e-3, 16e-3)}
_STEPS = (100, 400)
_FACTOR = 4.0
_MOST_EXTENSIONS = 4


def config(n, learning_rate, steps=100, optimizer="sgd"):
    """Settings of a `DPSGDConfig` for `n` records."""
    return {
        "learning_rate": float(learning_rate),
        "l2_norm_clip": _CLIP,
        "batch_size": max(1, n // _BATCHES_PER_EPOCH),
        "sampling": "poisson",
        "momentum": 0.9,
        "steps": int(steps),
        "optimizer": optimizer,
    }


def search(score, rates, steps):
    """The best (rate, number of steps), its ends extended until interior.

    Args:
        score: function of a rate and a number of steps.
        rates: increasing, a constant factor apart.
        steps: numbers of steps; the rates of the second and later ones
            start at the best of the one before and a factor below it.

    Returns:
        `(rate, steps)`.
    """
    found = {}

    def best_of(count, rates):
        scores = {rate: score(rate, count) for rate in rates}
        for _ in range(_MOST_EXTENSIONS):
            best = max(scores, key=scores.get)
            if best == max(scores):
                scores[best * _FACTOR] = score(best * _FACTOR, count)
            elif best == min(scores):
                scores[best / _FACTOR] = score(best / _FACTOR, count)
            else:
                break
        found.update({(rate, count): s for rate, s in scores.items()})
        return max(scores, key=scores.get)

    for count in steps:
        best = best_of(count, rates)
        rates = (best / _FACTOR, best)
    return max(found, key=found.get)


class _DPSGD(method_lib.Method):
    needs_delta = True
    packages: tuple[str, ...] = ("tensorflow_privacy", "tf_keras")
    classifier: type = baselines.DPSGDClassifier
    optimizer = "sgd"
    form: str | None = "fast_clipping"
    tuned = "all"

    def _inputs(self, task, seed):
        """Features of the training and the test part."""
        del seed
        return task.x, task.x_test

    def model(self, task, seed, inputs):
        """The Keras 3 model that is trained."""
        keras.utils.set_random_seed(seed)
        head = keras.layers.Dense(
            task.classes, kernel_initializer=task.head_initializer(seed)
        )
        layers = self._layers(task, seed)
        return keras.Sequential([keras.Input(inputs), *layers, head])

    def _layers(self, task, seed):
        return task.body(seed)

    def _classifier(self, model, settings, epsilon, task):
        return self.classifier(
            model,
            baselines.DPSGDConfig(form=self.form, **settings),
            epsilon=epsilon,
            delta=task.spec.delta,
            neighbours=task.spec.neighbours,
        )

    def _fit(self, task, seed, settings, epsilon, x, y):
        model = self.model(task, seed, x.shape[1:])
        return self._classifier(model, settings, epsilon, task).fit(x, y)

    def tune(self, task, epsilon):
        x, _ = self._inputs(task, 0)
        cut = len(x) * 4 // 5

        def accuracy(settings):
            rival = self._fit(task, 0, settings, epsilon, x[:cut], task.y[:cut])
            return rival.evaluate(x[cut:], task.y[cut:])["accuracy"]

        if task.spec.dp_sgd:
            scores = [accuracy(c) for c in task.spec.dp_sgd]
            return dict(task.spec.dp_sgd[int(np.argmax(scores))])
        n, optimizer = len(x), self.optimizer
        rate, steps = search(
            lambda rate, steps: accuracy(config(n, rate, steps, optimizer)),
            _RATES[optimizer],
            _STEPS,
        )
        return config(n, rate, steps, optimizer)

    def train(self, task, job, choice, log_dir):
        del log_dir  # These do not train by Keras 3's `fit`.
        x, x_test = self._inputs(task, job.seed)
        rival = self._fit(task, job.seed, choice, job.epsilon, x, task.y)

        def classify():
            return rival.predict(x_test).argmax(axis=1)

        return method_lib.Trained(
            classify, rival.ledger, rival.ledger.statement()
        )


class Vectorized(_DPSGD):
    name = "dp_sgd_vectorized"
    label = "DP-SGD, vectorized optimizer"
    about = "tensorflow-privacy, all layers, per-record gradients."
    form = "vectorized"


class FastClipping(_DPSGD):
    name = "dp_sgd_fast"
    label = "DP-SGD, fast clipping"
    about = "tensorflow-privacy, all layers, norms of gradients only."


class Adam(_DPSGD):
    name = "dp_adam"
    label = "DP-Adam, fast clipping"
    about = "tensorflow-privacy, all layers, Adam."
    optimizer = "adam"
    tuned = "all, adam"


class _OnFeatures(_DPSGD):
    """Output layer only: the rival feature for feature."""

    tuned = "head"

    def _inputs(self, task, seed):
        return task.frozen_features(seed)

    def _layers(self, task, seed):
        return []


class OnFeatures(_OnFeatures):
    name = "dp_sgd_head"
    label = "DP-SGD on proven's features"
    about = "tensorflow-privacy, output layer only."


class JaxPrivacy(_DPSGD):
    name = "jax_privacy"
    label = "DP-SGD, jax-privacy"
    about = "jax-privacy on the JAX backend, all layers."
    packages = ("jax_privacy",)
    backend = "jax"
    classifier = baselines.JaxDPSGDClassifier
    form = None


class JaxPrivacyOnFeatures(_OnFeatures):
    name = "jax_privacy_head"
    label = "jax-privacy on proven's features"
    about = "jax-privacy on the JAX backend, output layer only."
    packages = JaxPrivacy.packages
    backend = JaxPrivacy.backend
    classifier = JaxPrivacy.classifier
    form = JaxPrivacy.form
