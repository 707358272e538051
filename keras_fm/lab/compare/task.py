"""A comparison with its data: what every method trains on.

The architecture is

    public features -> affine layer -> unit norm -> output layer,

and every method starts from the same initial weights.
"""

import keras
import numpy as np

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.lab.baselines.dp_sgd_training import of_classes
from keras_fm.lab.compare.methods import METHODS
from keras_fm.lab.compare.own import OwnModel
from keras_fm.lab.engine import measuring, rival
from keras_fm.lab.engine.job import Job, Measured
from keras_fm.lab.engine.training import Training
from keras_fm.public.normalization_layer import NormalizationLayer

ARRAYS = ("x", "y", "x_test", "y_test", "images", "images_test")


class Task:
    """One comparison's split, architecture and initial weights.

    Args:
        spec: a `Comparison`.
        x, x_test: public features of the records, `(n, m)`.
        y, y_test: int labels.
        images, images_test: the records themselves, for a model of the
            user's and the methods that bring their own features.
        classes: int.
        own: `None`, or the `OwnModel` in the place of the architecture.
    """

    def __init__(
        self,
        spec,
        x,
        y,
        x_test,
        y_test,
        images,
        images_test,
        classes,
        own=None,
    ):
        self.spec, self.own = spec, own
        if own is None and spec.model:
            self.own = OwnModel(spec.model, images.shape[1:], classes)
            self.own.why_not("all_layers")
        self.x, self.y, self.x_test, self.y_test = x, y, x_test, y_test
        self.images, self.images_test = images, images_test
        self.classes = classes
        self.pretrained = {}

    @property
    def data(self):
        """What the network trains on: features, or the records where it is
        the user's."""
        return (self.images if self.own else self.x), self.y

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
        """Affine layer and unit norm, or nothing; of the user's network all
        below its last layer."""
        if self.own:
            return [self.own.body(seed), NormalizationLayer()]
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
                keras.Input(self.data[0].shape[1:]),
                *self.body(seed, **kwargs),
                head(
                    self.classes,
                    kernel_initializer=self.head_initializer(seed),
                    name="output",
                ),
            ]
        )

    def network(self, seed):
        """The whole network, plain, as rivals train it."""
        if self.own:
            return self.own.whole(seed)
        return self.model(seed, head=keras.layers.Dense)

    def for_steps(self, seed):
        """The same, with nothing that private steps cannot train."""
        return self.own.for_steps(seed) if self.own else self.network(seed)

    def _frozen_features(self, seed):
        """What the output layer of `one_release` sees, for train and test."""
        layers = self.body(seed)
        if not layers:
            return self.x, self.x_test
        x, _ = self.data
        body = keras.Sequential([keras.Input(x.shape[1:]), *layers])
        return tuple(
            body.predict(v, batch_size=1024, verbose=0)
            for v in (x, self.images_test if self.own else self.x_test)
        )

    # One run -------------------------------------------------------------

    def answer(self, request):
        """What a request asks for: a choice, or a row."""
        if request["kind"] == "tune":
            return self.tune(request["method"], request["epsilon"])
        job = Job(**request["job"])
        return self.run(job, request["choice"], request["log_dir"])

    def run(self, job, choice=None, log_dir=None):
        """Trains once; the row of `measuring.measure`.

        Args:
            job: a `Job`.
            choice: what `tune` returned for its method and epsilon.
            log_dir: TensorBoard folder, or `None`.
        """
        method, spec = METHODS[job.series], self.spec
        # Published noise is divided by the lot that there is.
        lot = min(spec.batch_size, len(self.x))
        training = Training(
            epsilon=job.epsilon,
            delta=spec.delta,
            neighbours=spec.neighbours,
            epochs=spec.epochs or max(40, -(-1000 * lot // len(self.x))),
            lot=lot,
            learning_rate=spec.learning_rate,
            log_dir=log_dir,
        )
        before = None
        if method.before:
            before = method.before(self, job.seed, training)
        work = lambda: self._trained(method, job, training)  # noqa: E731
        if method.tuned:
            # Neither trains by Keras 3's `fit`, so there are no logs.
            x, x_test = self._inputs(method, job.seed)
            fit = method.train(self, job.seed, job.epsilon)
            work = lambda: self._rival(fit, job, choice, x, x_test)  # noqa: E731
        return measuring.measure(job, method, work, before)

    def _trained(self, method, job, training):
        made = method.train(self, job.seed, training)
        on_records = method.on_images or self.own and not method.only_own
        x_test = self.images_test if on_records else self.x_test

        def classify():
            found = made.model.predict(x_test, batch_size=1024, verbose=0)
            return of_classes(made.model, found)

        return Measured(
            curve=lambda: self._curve(job, classify()),
            ledger=made.ledger,
            statement=made.private.report() if made.private else "",
        )

    def _rival(self, fit, job, choice, x, x_test):
        made = fit(choice, x, self.y)
        return Measured(
            curve=lambda: self._curve(job, made.predict(x_test)),
            ledger=made.ledger,
            notes=choice,
        )

    def _curve(self, job, outputs):
        right = outputs.argmax(axis=1) == self.y_test
        return ((job.epsilon, np.mean(right)),)

    # The rival's choice --------------------------------------------------

    def _inputs(self, method, seed):
        if (method.tuned or "").startswith("head"):
            return self._frozen_features(seed)
        if method.on_images or self.own:
            return self.images, self.images_test
        return self.x, self.x_test

    def tune(self, name, epsilon):
        """The settings that a rival chooses on its validation split."""
        method = METHODS[name]
        x, _ = self._inputs(method, 0)
        return rival.tune(
            method.train(self, 0, epsilon),
            x,
            self.y,
            optimizer=method.optimizer,
            choices=self.spec.dp_sgd,
        )[0]
