"""Steps of a fit over the plain Keras model's, in turn with it."""

import time

import keras
import numpy as np

import keras_fm as fm


def now():
    """Seconds on the clock and of all processors."""
    return np.array([time.perf_counter(), time.process_time()])


def timed(run):
    began = now()
    run()
    return now() - began


def medians(repeats, runs):
    """Median seconds of functions, taken in turn, after one call of each."""
    for run in runs.values():
        run()
    seconds = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            seconds[name].append(timed(run))
    return {k: np.median(v, axis=0) for k, v in seconds.items()}


def ratios(fits, repeats, steps):
    took = medians(repeats, fits)
    base = took[next(iter(took))]
    return {name: result(s / steps, base / steps) for name, s in took.items()}


def result(step, base):
    """Of seconds of a step, and of a plain one, on the clock and in all."""
    return {
        "ms_per_step": round(1000 * step[0], 3),
        "ratio": round(step[0] / base[0], 3),
        "processor_ratio": round(step[1] / base[1], 3),
    }


class Architecture:
    """784 inputs, hidden layers of these sizes, ten classes; random records."""

    def __init__(self, hidden, n, batch):
        self.hidden, self.n, self.batch = hidden, n // batch * batch, batch
        self.x = np.random.default_rng(0).random((self.n, 784), np.float32)
        self.y = np.arange(self.n) % 10
        # What a fit on a release compares with the records, once.
        rows = np.random.default_rng(1).random((batch, 784), np.float32)
        self.held_out = rows, np.arange(batch) % 10
        self.plain = self.model(keras.layers.Dense, keras.layers.Dense)

    def layers(self, affine, head):
        first, *last = self.hidden or (None,)
        return [
            keras.Input((784,)),
            # What published claims are for.
            fm.layers.NormalizationLayer((0, 1), "linf"),
            *([affine(first, activation="relu")] if self.hidden else []),
            *(keras.layers.Dense(units, activation="relu") for units in last),
            keras.layers.UnitNormalization(),
            head(10),
        ]

    def model(self, affine, head):
        keras.utils.set_random_seed(0)
        made = keras.Sequential(self.layers(affine, head))
        made.compile("adam", fm.losses.TaylorCrossEntropy())
        return made

    def steps(self, repeats, epochs=1):
        """The plain model, the published form and, of one layer, the proven
        fit on a release; what a fit does once is shared by so many epochs."""
        x, y, dense, head = (
            self.x,
            self.y,
            keras.layers.Dense,
            fm.layers.PrivateDense,
        )

        def fit(model, *callbacks):
            return lambda: model.fit(
                x,
                y,
                epochs=epochs,
                batch_size=self.batch,
                validation_data=self.held_out,
                verbose=0,
                callbacks=list(callbacks),
            )

        published = fm.callbacks.PrivateModel(
            1.0, 0.0, guarantee=fm.Published(lot=self.batch)
        )
        fits = {
            "plain": fit(self.plain),
            "published": fit(
                self.model(fm.layers.PerturbedAffine, head), published
            ),
        }
        if not self.hidden:
            proven = fm.callbacks.PrivateModel(
                epsilon=1.0, delta=1e-5, data=(x, y)
            )
            # The read is in the call that traces.
            fits["proven, on a release"] = fit(self.model(dense, head), proven)
        return ratios(fits, repeats, steps=epochs * (self.n // self.batch))
