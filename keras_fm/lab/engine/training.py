"""A fit of a model: with the callback of a proven or a published form, or
without privacy."""

import dataclasses

import keras
import numpy as np

from keras_fm.callbacks import PrivacyTensorBoard, PrivateModel
from keras_fm.core.event_file import EventFile
from keras_fm.core.guarantee import Proven
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.losses import TaylorCrossEntropy

# Of full batches, in one epoch: an epoch costs more than a step.
_STEPS = 20


def taylor():
    """The loss whose coefficients are perturbed or released."""
    return TaylorCrossEntropy()


def exact():
    """The loss of a training without privacy."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class _Curves(keras.callbacks.Callback):
    """Metrics of epochs, as Keras' `TensorBoard` writes them, which needs
    TensorFlow."""

    def __init__(self, folder):
        super().__init__()
        self._file = EventFile(folder)

    def on_epoch_end(self, epoch, logs=None):
        self._file.step = epoch
        for name, value in (logs or {}).items():
            self._file.scalar(f"epoch_{name}", value)

    def on_train_end(self, logs=None):
        self._file.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained model and its callback; `None` without privacy."""

    model: object
    private: object = None

    @property
    def ledger(self):
        return self.private and self.private.ledger


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What whoever trains a model says of it.

    Attributes:
        epsilon: of the budget or the claim; `None` without privacy.
        delta, neighbours: of what is proven.
        epochs, pretraining_epochs: where records are seen in every step.
        lot: int, records of a batch; 0 for all.
        learning_rate: of Adam.
        pretraining_rate: of Adam below the head; 0 for the same.
        callbacks: more of Keras' callbacks.
        log_dir: folder of TensorBoard, or `None`.
        notes: for the statement.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    neighbours: str = "add_remove"
    epochs: int = 1
    pretraining_epochs: int = 1
    lot: int = 0
    learning_rate: float = 1e-3
    pretraining_rate: float = 0.0
    callbacks: tuple = ()
    log_dir: str | None = None
    notes: tuple = ()

    def but(self, **changes):
        """The same with changes."""
        return dataclasses.replace(self, **changes)

    def budget(self):
        return PrivacyBudget(self.epsilon, self.delta)

    def adam(self):
        return keras.optimizers.Adam(self.learning_rate)

    def claimed(self, data, guarantee):
        """The callback of a published form; `None` without privacy."""
        if self.epsilon is None:
            return None
        return PrivateModel(self.epsilon, 0.0, data=data, guarantee=guarantee)

    def private(self, data, guarantee, **kwargs):
        """The callback of a form that spends the budget."""
        return PrivateModel(
            self.budget(), data=data, guarantee=guarantee, **kwargs
        )

    def proven(self, data=None):
        """The callback of a proven form."""
        guarantee = Proven(neighbours=self.neighbours)
        return self.private(data, guarantee, notes=self.notes)

    def fitted(self, model, private=None):
        """What a recipe returns of a model that holds the trained one."""
        return Fitted(model=model, private=private)

    def fit(self, model, data, private=None, *, loss=taylor, optimizer=None):
        """Compiles and fits.

        Args:
            model: a Keras model.
            data: `(x, y)` or a `PyDataset`.
            private: callback, or `None`.
            loss: function that gives one, or `None` for the model's own.
            optimizer: `None` for Adam.

        Returns:
            `Fitted`.
        """
        given = {"x": data, "epochs": self.epochs}
        if isinstance(data, tuple):
            given |= self._batches(*data)
        model.compile(optimizer or self.adam(), loss and loss())
        model.fit(**given, callbacks=self._callbacks(private), verbose=0)
        return Fitted(model=model, private=private)

    def _batches(self, x, y):
        lot = min(self.lot or len(x), len(x))
        repeats = min(_STEPS, self.epochs) if lot == len(x) else 1
        if repeats > 1:
            x, y = (np.concatenate([a] * repeats) for a in (x, y))
        return {
            "x": x,
            "y": y,
            "batch_size": lot,
            "epochs": -(-self.epochs // repeats),
            "shuffle": repeats == 1,
        }

    def _callbacks(self, private):
        found = [] if private is None else [private]
        if self.log_dir is not None:
            found.append(
                _Curves(self.log_dir)
                if private is None
                else PrivacyTensorBoard(private, self.log_dir, hparams=False)
            )
        return [*found, *self.callbacks]

    def release(self, model, data):
        """A proven fit: the model starts at the optimum of what is released,
        so one step is enough."""
        private = self.proven(data)
        model.compile("sgd", TaylorCrossEntropy())
        # TensorFlow copies all that a fit is given.
        x, y = (part[:1000] for part in data)
        model.fit(
            x,
            y,
            batch_size=len(x),
            steps_per_epoch=1,
            callbacks=self._callbacks(private),
            verbose=0,
        )
        return Fitted(model=model, private=private)

    def pretrain(self, model, x, private=None, **kwargs):
        """The encoders or RBMs of a published form, before its head."""
        model.pretrain(
            x,
            private,
            epochs=self.pretraining_epochs,
            batch_size=min(self.lot or len(x), len(x)),
            optimizer=keras.optimizers.Adam(
                self.pretraining_rate or self.learning_rate
            ),
            **kwargs,
        )


def logits(model, x):
    """Outputs of a model.

    Published models normalise by the batch they predict, so the whole part is
    one batch, as far as memory goes.
    """
    return model.predict(x, batch_size=min(len(x), 20_000), verbose=0)


def accuracy(model, x, y):
    """Share of right predictions; one logit or one for each class."""
    z = logits(model, x)
    found = z[:, 0] > 0 if z.shape[1] == 1 else z.argmax(axis=1)
    return float(np.mean(found == y))


class Curve(keras.callbacks.Callback):
    """Test accuracy after some epochs, in `points`.

    Args:
        x, y: the test part.
        epochs: last epoch. 20 of them are looked at, spread evenly on a log
            scale.
    """

    def __init__(self, x, y, epochs):
        super().__init__()
        self._test, self.points = (x, y), []
        spread = np.geomspace(1, epochs, min(20, epochs))
        self._at = {int(round(e)) for e in spread} | {epochs}

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 in self._at:
            self.points.append((epoch + 1, accuracy(self.model, *self._test)))
