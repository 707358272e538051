"""A comparison with its data: what every method trains on.

The architecture is

    public features -> affine layer -> unit norm -> output layer,

and every method starts from the same initial weights.
"""

import keras
import numpy as np

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.lab.compare import methods as methods_lib
from keras_fm.lab.compare.outcome import Outcome
from keras_fm.lab.compare.watch import Watch

ARRAYS = ("x", "y", "x_test", "y_test", "images", "images_test")


class Task:
    """One comparison's split, architecture and initial weights.

    Args:
        spec: a `Comparison`.
        x, x_test: public features of the records, `(n, m)`.
        y, y_test: int labels.
        images, images_test: the records themselves, for the methods that
            bring their own features.
    """

    def __init__(self, spec, x, y, x_test, y_test, images, images_test):
        self.spec = spec
        self.x, self.y, self.x_test, self.y_test = x, y, x_test, y_test
        self.images, self.images_test = images, images_test
        # The classes of the public data set, not of a private one.
        self.classes = int(max(y.max(), y_test.max())) + 1
        self.pretrained = {}

    # The architecture ----------------------------------------------------

    @property
    def units(self):
        """Of the hidden layer, for methods that cannot do without one."""
        return self.spec.hidden or 64

    def affine(self, seed, kind=keras.layers.Dense, **kwargs):
        return kind(
            self.spec.hidden,
            activation="tanh",
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
            name="affine",
            **kwargs,
        )

    def body(self, seed, **kwargs):
        """Affine layer and unit norm, or nothing."""
        if not self.spec.hidden:
            return []
        return [
            self.affine(seed, **kwargs),
            keras.layers.UnitNormalization(name="unit_norm"),
        ]

    def head_initializer(self, seed):
        return keras.initializers.GlorotUniform(seed=1_000_000 + seed)

    def model(self, seed, head=PrivateDense, **kwargs):
        """The whole network; `kwargs` are the affine layer's."""
        keras.utils.set_random_seed(seed)
        return keras.Sequential(
            [
                keras.Input(self.x.shape[1:]),
                *self.body(seed, **kwargs),
                head(
                    self.classes,
                    kernel_initializer=self.head_initializer(seed),
                    name="output",
                ),
            ]
        )

    def frozen_features(self, seed):
        """What the output layer of `proven` sees, for train and test."""
        layers = self.body(seed)
        if not layers:
            return self.x, self.x_test
        body = keras.Sequential([keras.Input(self.x.shape[1:]), *layers])
        return tuple(
            body.predict(x, batch_size=4096, verbose=0)
            for x in (self.x, self.x_test)
        )

    # One run -------------------------------------------------------------

    def run(self, job, choice=None, log_dir=None):
        """Trains once.

        Args:
            job: a `Job`.
            choice: what `tune` returned for its method and epsilon.
            log_dir: TensorBoard folder, or `None`.

        Returns:
            An `Outcome`.
        """
        method = methods_lib.METHODS[job.method]
        before = method.prepare(self, job)
        with Watch() as watch:
            trained = method.train(self, job, choice, log_dir)
        accuracy = float(np.mean(trained.classify() == self.y_test))
        ledger = trained.ledger
        private = ledger is not None
        return Outcome(
            method=job.method,
            epsilon=job.epsilon,
            seed=job.seed,
            accuracy=accuracy,
            claimed=ledger.claimed_epsilon() if private else None,
            proven=ledger.epsilon() if private else float("inf"),
            delta=ledger.budget.delta if private else None,
            neighbours=str(ledger.neighbours) if private else "",
            seconds=before.seconds + watch.seconds,
            cpu_seconds=before.cpu_seconds + watch.cpu_seconds,
            peak_mib=max(before.peak_mib, watch.peak_mib),
            settings=choice or {},
            statement=trained.statement,
        )

    def tune(self, method, epsilon):
        """The settings that `method` chooses on its validation split."""
        return methods_lib.METHODS[method].tune(self, epsilon)
