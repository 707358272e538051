"""Many fits on one release: one after the other against all at once.

    KERAS_BACKEND=tensorflow python benchmarks/sweeps.py [--out=DIR]

Seconds of a sweep over starts, learning rates and ridges

* as Keras fits of one compiled model, whose weights, rate and ridge change
  between fits (nothing is traced twice, one row a step: what is least work),
* as `keras_fm.sweeps.sweep` run by run,
* as one `sweep`.

In turn, medians. No records but random ones are needed: nothing here depends
on what was released.
"""

import itertools
import os

import numpy as np
from absl import app, flags
from medians import medians
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Repetitions per median.")
_STEPS = flags.DEFINE_integer("steps", 200, "Steps of every run.")
STARTS, RATES, RIDGES = 2, (0.01, 0.03, 0.1), (0.25, 0.5, 1.0)
OUTPUTS = 10


def released(features):
    """A layer, and a release of random records for it."""
    from keras_fm.kernel.budget import PrivacyBudget
    from keras_fm.kernel.ledger import Ledger
    from keras_fm.kernel.mechanisms import NoiseSource
    from keras_fm.kernel.release import calibrate, release
    from keras_fm.layers import PrivateDense

    layer = PrivateDense(OUTPUTS)
    layer.build((None, features))
    rng = np.random.default_rng(0)
    x = rng.random((5000, features))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * 1.0001
    budget = PrivacyBudget(1.0, 1e-6)
    ledger = Ledger(budget, neighbours="add_remove")
    made = release(
        layer.objective(),
        [(layer.augment(x), rng.integers(OUTPUTS, size=len(x)))],
        mechanism=calibrate(layer.objective(), budget, neighbours="add_remove"),
        ledger=ledger,
        name="head",
        noise=NoiseSource(0),
    )
    return layer, made, ledger


def fits(features):
    import keras

    from keras_fm.heads.sweeps import sweep
    from keras_fm.losses import TaylorCrossEntropy

    layer, made, ledger = released(features)
    starts = np.random.default_rng(1).normal(
        size=(STARTS, features + 1, OUTPUTS)
    )
    steps, grid = _STEPS.value, list(itertools.product(starts, RATES, RIDGES))
    model = keras.Sequential([keras.Input((features,)), layer])
    layer.learn(made, ledger)
    model.compile(keras.optimizers.SGD(0.1), TaylorCrossEntropy())
    x, y = np.zeros((steps, features), "float32"), np.zeros(steps, int)

    def keras_fits():
        found = []
        for start, rate, ridge in grid:
            layer.learn(made, ledger, ridge_factor=ridge, start=start)
            model.optimizer.learning_rate = rate
            model.fit(x, y, batch_size=1, verbose=0)
            found.append(keras.ops.convert_to_numpy(layer.kernel))
        return np.stack(found)

    def run(starts, rates, ridges):
        return sweep(
            made,
            starts,
            rates,
            ridges,
            steps=steps,
            bias_feature=layer.bias_feature,
        ).weights

    def one_by_one():
        for start, rate, ridge in grid:
            run(start[None], [rate], [ridge])

    def together():
        return run(starts, RATES, RIDGES)

    one = keras_fits()
    other = together()[..., :-1, :].reshape(one.shape)
    difference = float(np.abs(one - other).max() / np.abs(one).max())
    if not difference < 1e-3:
        raise RuntimeError(f"The runs differ: {difference:.2g}")
    seconds = medians(
        _REPEATS.value,
        {
            "keras_fits": keras_fits,
            "one_by_one": one_by_one,
            "together": together,
        },
    )
    return {
        "runs": len(grid),
        "steps": steps,
        "relative_difference": difference,
        **{f"seconds_{name}": s for name, s in seconds.items()},
        "keras_fits_over_together": seconds["keras_fits"] / seconds["together"],
        "one_by_one_over_together": seconds["one_by_one"] / seconds["together"],
    }


def main(_):
    results = ResultsFile(_OUT.value, "sweeps", ["what", "size"])
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    for features in (64, 784):
        key = (f"fits ({backend})", features)
        if not results.has(*key):
            results.add(key, None, **fits(features))


if __name__ == "__main__":
    app.run(main)
