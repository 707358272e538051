"""What several experiments train and score alike."""

import importlib.util

import keras
import numpy as np

from keras_fm.baselines import dp_sgd
from keras_fm.lab.reproduce.experiment import Measured
from keras_fm.losses import TaylorCrossEntropy


def accuracy(model, x, y):
    """Share of right predictions; one logit or one for each class.

    Published models normalise by the batch they predict, so the whole part is
    one batch, as far as memory goes.
    """
    z = model.predict(x, batch_size=min(len(x), 20_000), verbose=0)
    found = z[:, 0] > 0 if z.shape[1] == 1 else z.argmax(axis=1)
    return float(np.mean(found == y))


def fit_released(model, private, x, y, batch_size=1000):
    """Lets `private` release the records, whose objectives the model then
    starts at the optimum of: one step is enough."""
    model.compile("sgd", TaylorCrossEntropy())
    model.fit(
        x,
        y,
        batch_size=batch_size,
        steps_per_epoch=1,
        callbacks=[private],
        verbose=0,
    )


def above_maps(model, x):
    """What is above the resting RBMs of a `PrivateCDBN`, and what it reads.

    Maps that rest need to be made once only. The output layer keeps its
    noise.

    Args:
        model: a `PrivateCDBN` after its first epoch.
        x: `(n, ...)` records.

    Returns:
        the layers above as a model of its own, and the maps of `x`.
    """
    maps = model.get_layer("flatten").output
    below = keras.Model(model.inputs[0], maps)
    inputs = outputs = keras.Input(maps.shape[1:])
    names = [layer.name for layer in model.layers]
    for layer in model.layers[names.index("flatten") + 1 :]:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs), below.predict(
        x, batch_size=1000, verbose=0
    )


class Watch(keras.callbacks.Callback):
    """Test accuracy after some epochs, in `curve`.

    Args:
        x, y: the test part.
        epochs: last epoch.
        points: how many epochs are looked at, spread evenly on a log scale.
    """

    def __init__(self, x, y, epochs, points=20):
        super().__init__()
        self._test, self.curve = (x, y), []
        spread = np.geomspace(1, epochs, min(points, epochs))
        self._at = {int(round(e)) for e in spread} | {epochs}

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 in self._at:
            self.curve.append((epoch + 1, accuracy(self.model, *self._test)))


def has_dp_sgd():
    """Whether tensorflow-privacy can train here."""
    if keras.backend.backend() != "tensorflow":
        return False
    names = ("tensorflow_privacy", "tf_keras")
    return all(importlib.util.find_spec(name) for name in names)


def dp_sgd_of_best_rate(
    build, train, *, epsilon, delta, rates, held_out=0.2, **config
):
    """DP-SGD whose learning rate is chosen on the last training records.

    The choice is not charged to it.

    Args:
        build: function that gives a fresh Keras model, or `None` for a
            linear one.
        train: `(x, y)`.
        epsilon, delta: budget of every training.
        rates: learning rates to choose from; one alone is not tried.
        held_out: share of the training records that the choice looks at.
        **config: of `DPSGDConfig`; `batch_size` is at most a fourth of the
            records.

    Returns:
        a fitted `DPSGDClassifier` and the rate.
    """
    x, y = train
    cut = round(len(x) * (1 - held_out))
    classes = int(y.max()) + 1

    def fit(rate, x, y):
        made = dict(config)
        if made.get("batch_size"):
            made["batch_size"] = min(made["batch_size"], len(x) // 4)
        rival = dp_sgd.DPSGDClassifier(
            build() if build else None,
            dp_sgd.DPSGDConfig(learning_rate=rate, **made),
            epsilon=epsilon,
            delta=delta,
        )
        return rival.fit(x, y, num_classes=classes)

    rate = rates[0]
    if len(rates) > 1:
        scores = [
            fit(rate, x[:cut], y[:cut]).evaluate(x[cut:], y[cut:])["accuracy"]
            for rate in rates
        ]
        rate = rates[int(np.argmax(scores))]
    return fit(rate, x, y), rate


def dense_dp_sgd(job, context, delta):
    """DP-SGD of a network with 300 hidden units on flat images, as a point
    at its epsilon; `dp_sgd_steps` and `dp_sgd_rates` are settings."""
    (x, y), (x_test, y_test) = context.data
    x, x_test = (v.reshape(len(v), -1) for v in (x, x_test))

    def build():
        return keras.Sequential(
            [
                keras.Input(x.shape[1:]),
                keras.layers.Dense(300, activation="relu"),
                keras.layers.Dense(10),
            ]
        )

    rival, rate = dp_sgd_of_best_rate(
        build,
        (x, y),
        epsilon=job.epsilon,
        delta=delta,
        rates=context["dp_sgd_rates"],
        l2_norm_clip=0.1,
        batch_size=2048,
        steps=context["dp_sgd_steps"],
    )
    return Measured(
        curve=((job.epsilon, rival.evaluate(x_test, y_test)["accuracy"]),),
        ledger=rival.ledger,
        notes={"learning_rate": rate},
    )
