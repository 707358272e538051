"""Speed as ratios measured in one run; medians, no pass or fail.

    python benchmarks/speed.py [--parts=epochs] [--out=DIR]

steps: a published-form fit step against the same plain Keras model: with the
papers' last hidden layer of 25 units, and with one of 300, whose quadratic
coefficients are 10 x 301 x 301.

epochs: steps of 1,024 records over the plain Keras model's, in turn with it:
the published form, a proven fit on a release (the output layer on fixed
features, since what is below it is not trained), and both forms of
tensorflow-privacy. On the clock, and in seconds of all processors, which
other work on the machine disturbs less. jax-privacy is in
`dp_sgd_libraries.py`.

rounds: one of the many rounds of an output layer over a bare pair of matrix
products of the same sizes in float32, which does not compute what a read needs,
and one step of tensorflow-privacy's fast clipping on the same features; CPU
microseconds for each record, in turn.

share: CPU seconds of public scattering features and of the statistics pass over
those of one float32 product of square matrices with as many multiplications,
in turn with it. Those of a map are counted where it calls `matmul` and `conv`;
of the pass those of one triangle. OPENBLAS_NUM_THREADS=1, or what another
thread waits is counted.

The statistics pass is in `scale.py`, too. Parts that are not measured again
keep their results in the file.
"""

import functools
import json
import math
import os

import keras
import numpy as np
from absl import app, flags
from fit_steps import Architecture, result, timed

import keras_fm as fm
from keras_fm.kernel import mechanisms, partial_statistics
from keras_fm.kernel.access import gradient_rounds
from keras_fm.lab.baselines import dp_sgd

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_PARTS = flags.DEFINE_list(
    "parts", None, "steps, epochs, rounds, share; all by default."
)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Repetitions per median.")

# Of one fit: what a fit does once (a proven one compares the records with
# those that it is to show) is shared by so many.
EPOCHS = 4


def dp_sgd_steps(form, layers, x, y, batch, plain_step=lambda: None):
    """Medians of DP-SGD's steps, and of a plain one after each."""
    private, plain = [], []

    class Clocked(dp_sgd.DPSGDClassifier):
        def _take(self, step, plan, batches):
            def clocked(rows):
                private.append(timed(lambda: step(rows)))
                plain.append(timed(plain_step))

            super()._take(clocked, plan, batches)

    config = dp_sgd.DPSGDConfig(
        form=form,
        learning_rate=1.0,
        l2_norm_clip=0.1,
        batch_size=batch,
        # The first one is not counted.
        steps=1 + _REPEATS.value,
    )
    Clocked(keras.Sequential(layers), config, 1.0, 1e-5).fit(x, y)
    return [np.median(v[1:], axis=0) for v in (private, plain)]


def epochs(hidden, batch=1024):
    """One architecture: its plain form, ours, and DP-SGD's two."""
    found = Architecture(hidden, 16_384, batch)
    x, y = found.x, found.y
    rows = found.steps(_REPEATS.value, EPOCHS)
    dense = keras.layers.Dense
    for form in ("fast_clipping", "vectorized"):
        rows[f"DP-SGD, {form}"] = result(
            *dp_sgd_steps(
                form,
                # What published claims need, that library does not take.
                [
                    layer
                    for layer in found.layers(dense, dense)
                    if not isinstance(layer, fm.layers.NormalizationLayer)
                ],
                x,
                y,
                batch,
                lambda: found.plain.train_on_batch(x[:batch], y[:batch]),
            )
        )
    return rows


def rounds(m, n=16_384, outputs=10, batch=4096):
    """CPU microseconds a record: of our rounds, of bare products, of DP-SGD."""
    rng = np.random.default_rng(0)
    h = rng.normal(size=(n, m)).astype("float32")
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    y = rng.integers(outputs, size=n)
    weights = rng.normal(size=(m, outputs))
    delta = rng.normal(size=(n, outputs)).astype("float32")

    def opened(loss):
        mechanism = mechanisms.SampledGaussianMechanism(
            sensitivity=0.1,
            noise_multiplier=100.0,
            sampling_rate=1.0,
            steps=1 + _REPEATS.value,
        )
        return gradient_rounds.GradientRounds(
            fm.queries.GradientQuery(
                num_features=m, num_outputs=outputs, clip=0.1, loss=loss
            ),
            lambda: [(h, y)],
            mechanism=mechanism,
            ledger=fm.Ledger(
                fm.PrivacyBudget(9.0, 1e-5), neighbours="add_remove"
            ),
            name="output",
            noise=mechanisms.NoiseSource(),
            keep=True,
        )

    def products(rows, w, d):
        def run():
            rows @ w
            rows.T @ d

        return run

    runs = {
        "two products, float32": products(h, weights.astype("float32"), delta),
        "two products, float64": products(
            h.astype("float64"), weights, delta.astype("float64")
        ),
    }
    for loss in ("cross_entropy", "crammer_singer"):
        runs[f"read, {loss}"] = functools.partial(opened(loss), weights)
    seconds = {name: [] for name in runs}
    for _ in range(1 + _REPEATS.value):
        for name, run in runs.items():
            seconds[name].append(timed(run)[1])
    model = [keras.Input((m,)), keras.layers.Dense(outputs)]
    step, _ = dp_sgd_steps("fast_clipping", model, h, y, batch)
    found = {k: 1e6 * np.median(v[1:]) / n for k, v in seconds.items()}
    found["step, fast clipping"] = 1e6 * step[1] / batch
    return {name: round(value, 3) for name, value in found.items()}


def flops(map_, x):
    """Of one record, in the products that a map calls."""
    counted, originals = [], (keras.ops.matmul, keras.ops.conv)

    def matmul(a, b):
        found = originals[0](a, b)
        counted.append(2 * math.prod(found.shape) * a.shape[-1])
        return found

    def conv(inputs, kernel, *args, **kwargs):
        found = originals[1](inputs, kernel, *args, **kwargs)
        counted.append(2 * math.prod(found.shape) * math.prod(kernel.shape[:3]))
        return found

    keras.ops.matmul, keras.ops.conv = matmul, conv
    try:
        map_(x[:8])
    finally:
        keras.ops.matmul, keras.ops.conv = originals
    return sum(counted) / 8


def share(images=512, side=2048):
    """CPU seconds over those of a float32 product with as many flops."""
    rng = np.random.default_rng(0)
    square = rng.random((side, side), np.float32)

    def over_product(run, records, count):
        """Of a run over records with so many flops each."""
        seconds = []
        for _ in range(1 + _REPEATS.value):
            seconds.append((timed(run)[1], timed(lambda: square @ square)[1]))
        ours, product = np.median(seconds[1:], axis=0)
        return {
            "megaflop": round(count / 1e6, 1),
            "microseconds": round(1e6 * ours / records, 1),
            "over the product": round(
                ours * 2 * side**3 / (product * records * count), 2
            ),
        }

    found = {}
    for shape in ((28, 28, 1), (32, 32, 3)):
        map_ = fm.features.build("scattering", shape)
        x = rng.random((images, *shape), np.float32)
        row = over_product(
            lambda m=map_, x=x: fm.features.extract(m, x),
            images,
            flops(map_, x),
        )
        found[f"scattering, {' x '.join(map(str, shape))}"] = row
    for m in (800, 1500):
        h = rng.normal(size=(4096, m)).astype("float32")
        h /= np.linalg.norm(h, axis=1, keepdims=True)
        query = fm.queries.SecondMomentQuery(num_features=m)
        sums = partial_statistics.PartialStatistics(query, clip=True)
        row = over_product(lambda s=sums, h=h: s.add(h), len(h), m * m)
        found[f"statistics, {m} features"] = row
    return found


def main(_):
    path = os.path.join(_OUT.value, "speed.json")
    results = {}
    if _PARTS.value and os.path.exists(path):
        with open(path) as f:
            results = json.load(f)
    parts = _PARTS.value or ["steps", "epochs", "rounds", "share"]
    if "steps" in parts:
        for hidden in ((300, 25), (300,)):
            size = "-".join(map(str, (784, *hidden, 10)))
            results[f"published step / plain step, {size}, batch 256"] = (
                Architecture(hidden, 32_768, 256).steps(_REPEATS.value)
            )
    if "epochs" in parts:
        for hidden, name in (((300,), "784-300-10"), ((), "784-10")):
            results[f"epoch, {name}, batch 1024"] = epochs(hidden)
    if "rounds" in parts:
        for m in (800, 1500):
            results[f"CPU microseconds a record, {m} x 10"] = rounds(m)
    if "share" in parts:
        results["over a float32 product of as many flops"] = share()
    text = json.dumps(results, indent=1)
    print(text)
    os.makedirs(_OUT.value, exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


if __name__ == "__main__":
    app.run(main)
