"""A way of training, as a comparison sees it."""

import dataclasses
import importlib.util
import typing

import keras

from keras_fm.callbacks import PrivacyTensorBoard, PrivateModel
from keras_fm.kernel import budget as budget_lib
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.parts.guarantee import Proven


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a training left.

    Attributes:
        classify: function from nothing to the classes of the test part.
        ledger: a `Ledger`, or `None` without privacy.
        statement: str.
    """

    classify: typing.Callable
    ledger: object = None
    statement: str = ""


@dataclasses.dataclass(frozen=True)
class Before:
    """Cost of a preparation that several runs share."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mib: float = 0.0


class Method:
    """Base class; instances have no state.

    Attributes:
        name: key in `METHODS`.
        label: str, for tables; says whether epsilon is claimed.
        about: str, one sentence.
        private: whether it has an epsilon at all.
        needs_delta: whether it cannot have delta = 0.
        packages: what must be installed beyond the package's own needs.
        backend: `None`, or the only Keras backend it runs on.
        tuned: `None`, or the name of the choice on a validation split that
            it shares with others of the same name.
    """

    name: str | None = None
    label: str | None = None
    about: str | None = None
    private = True
    needs_delta = False
    packages: tuple[str, ...] = ()
    backend: str | None = None
    tuned: str | None = None

    def available(self):
        """Whether the packages and the backend at hand can run it."""
        if self.backend not in (None, keras.backend.backend()):
            return False
        return all(map(importlib.util.find_spec, self.packages))

    def prepare(self, task, job):
        """What is shared by several runs, before the watch starts."""
        del task, job
        return Before()

    def tune(self, task, epsilon):
        """A dict of settings, chosen on a validation split."""
        raise NotImplementedError

    def train(self, task, job, choice, log_dir):
        """Returns `Trained`."""
        raise NotImplementedError


def budget(task, epsilon):
    return budget_lib.PrivacyBudget(epsilon, task.spec.delta)


def proven(task, epsilon, x=None):
    """The callback of a proven fit on the training part.

    Args:
        task: the task.
        epsilon: of the budget.
        x: records in another form than `task.x`.
    """
    return PrivateModel(
        budget(task, epsilon),
        data=(task.x if x is None else x, task.y),
        guarantee=Proven(neighbours=task.spec.neighbours),
    )


def fit(
    task,
    model,
    private,
    log_dir,
    *,
    x=None,
    y=None,
    x_test=None,
    loss="taylor",
    optimizer=None,
    **kwargs,
):
    """Compiles and fits a Keras model, and says what came of it."""
    x = task.x if x is None else x
    x_test = task.x_test if x_test is None else x_test
    if not isinstance(x, keras.utils.PyDataset):
        kwargs = {"y": task.y if y is None else y} | kwargs
        kwargs.setdefault("batch_size", task.spec.batch_size)
    callbacks = [] if private is None else [private]
    if log_dir is not None:
        callbacks.append(
            keras.callbacks.TensorBoard(log_dir)
            if private is None
            else PrivacyTensorBoard(private, log_dir)
        )
    if loss == "taylor":
        loss = TaylorCrossEntropy()
    model.compile(
        optimizer or keras.optimizers.Adam(task.spec.learning_rate), loss
    )
    model.fit(x, callbacks=callbacks, verbose=0, **kwargs)

    def classify():
        return model.predict(x_test, batch_size=1024, verbose=0).argmax(axis=1)

    if private is None:
        return Trained(classify)
    return Trained(classify, private.ledger, private.report())
