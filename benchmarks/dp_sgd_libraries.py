"""Time and memory of a noisy step: both DP-SGD libraries and our models.

    python benchmarks/dp_sgd_libraries.py [--batches=256,1024,4096]
    KERAS_BACKEND=jax python benchmarks/dp_sgd_libraries.py

The two libraries live in different environments: the command is run in each,
and both write into one file; rows that are there are not measured again.
Every row is a process of its own, which takes plain steps before and after
those it measures: a ratio is one of the same minute. Plain: `train_on_batch`
of Keras on the same backend; DP-SGD, `GradientNet` and `DPMAC` (of dense
layers, one Z-step): Poisson batches of the same expected size, padding
included. Medians of at least five, without the first, of seconds on the clock
and of seconds of all processors, which other work on the machine disturbs
less. Memory: what the process needed at most beyond libraries and data.
"""

import importlib.metadata
import json
import resource
import statistics
import time

from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_MODELS = flags.DEFINE_list("models", ["dense", "cnn"], "What is trained.")
_BATCHES = flags.DEFINE_list("batches", ["256", "1024", "4096"], "Sizes.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Values per median, at least.")
_ROW = flags.DEFINE_list("row", None, "One row: method, model, batch.")

# Of a backend: distribution of the library, its forms.
_METHODS = {
    "tensorflow": {
        "plain (TensorFlow)": None,
        "tensorflow-privacy, fast clipping": "fast_clipping",
        "tensorflow-privacy, vectorized": "vectorized",
        "GradientNet": None,
        "DPMAC": None,
    },
    "jax": {
        "plain (JAX)": None,
        "jax-privacy": None,
        "GradientNet (JAX)": None,
    },
}
_PACKAGES = ("keras", "tensorflow", "tensorflow-privacy", "jax", "jax-privacy")
_RATE = 1 / 4  # of Poisson batches


def build(name):
    import keras

    from keras_fm.lab.baselines import dp_sgd

    if name == "cnn":
        return dp_sgd.small_cnn((28, 28, 1), 10)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def now():
    """Seconds on the clock and of all processors."""
    return time.perf_counter(), time.process_time()


def since(began):
    return tuple(b - a for a, b in zip(began, now(), strict=True))


def medians(pairs):
    return tuple(map(statistics.median, zip(*pairs, strict=True)))


def plain_seconds(model, x, y, batch, repeats):
    """Pairs of seconds, one for each step after the first two."""
    steps = []
    for i in range(repeats + 2):
        start = i % (len(x) // batch) * batch
        rows = slice(start, start + batch)
        began = now()
        model.train_on_batch(x[rows], y[rows])
        steps.append(since(began))
    return steps[2:]


def private_seconds(classifier, model, config, x, y):
    """Pairs of seconds, one for each step after the first; the clipping."""
    steps = []

    class Clocked(classifier):
        def _take(self, step, plan, batches):
            def clocked(batch):
                began = now()
                step(batch)
                steps.append(since(began))

            super()._take(clocked, plan, batches)

    rival = Clocked(model, config, 8.0, 1e-5).fit(x, y)
    return steps[1:], rival.report()["clipping"]


def noisy_seconds(method, model, x, y, batch, repeats):
    """The same of our models."""
    import keras

    import keras_fm as fm

    kind = fm.models.DPMAC if method == "DPMAC" else fm.models.GradientNet
    layers = model.layers if method == "DPMAC" else model
    noisy, steps = kind(x.shape[1:], layers, clip=0.1), []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: steps.append(now()),
        on_train_batch_end=lambda batch, logs: steps.append(since(steps.pop())),
    )
    noisy.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    private = fm.callbacks.PrivateModel(epsilon=8.0, delta=1e-5)
    noisy.fit(
        x,
        y,
        batch_size=batch,
        steps_per_epoch=repeats + 2,
        callbacks=[private, clock],
        verbose=0,
    )
    return steps[2:]


def measure(method, name, batch, repeats):
    """One row, in this process."""
    import keras
    import numpy as np

    from keras_fm import baselines

    backend = keras.backend.backend()
    form = _METHODS[backend][method]
    model = build(name)
    n = round(batch / _RATE)
    x = np.random.default_rng(0).random((n, 784), np.float32)
    x, y = x.reshape(n, *model.input_shape[1:]), np.arange(n) % 10
    plain = build(name)
    plain.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before = peak()
    base = plain_seconds(plain, x, y, batch, repeats)
    memory, clipping, taken = peak() - before, None, base
    if method.startswith(("GradientNet", "DPMAC")):
        taken = noisy_seconds(method, model, x, y, batch, repeats)
    elif not method.startswith("plain"):
        config = baselines.DPSGDConfig(
            form=form,
            learning_rate=0.1,
            l2_norm_clip=0.1,
            batch_size=batch,
            steps=repeats + 1,
        )
        classifier = (
            baselines.JaxDPSGDClassifier
            if backend == "jax"
            else baselines.DPSGDClassifier
        )
        taken, clipping = private_seconds(classifier, model, config, x, y)
    if taken is not base:
        memory = peak() - before
        base = base + plain_seconds(plain, x, y, batch, repeats)
    seconds, processors = medians(taken)
    plain_clock, plain_processors = medians(base)
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return {
        "ms_per_step": round(1000 * seconds, 2),
        "ratio": round(seconds / plain_clock, 2),
        "processor_ms_per_step": round(1000 * processors, 2),
        "processor_ratio": round(processors / plain_processors, 2),
        "peak_mib": round(memory),
        "clipping": clipping,
        "repeats": repeats,
        "versions": versions,
    }


def table(rows):
    """Markdown: processor time, its ratio (that of the clock), memory."""
    batches = sorted({r["batch"] for r in rows})
    lines = [
        "| model | step | " + " | ".join(map(str, batches)) + " |",
        "|---" * (2 + len(batches)) + "|",
    ]
    cells = {(r["model"], r["method"], r["batch"]): r for r in rows}
    for model, method in dict.fromkeys((r["model"], r["method"]) for r in rows):
        found = (cells.get((model, method, batch)) for batch in batches)
        texts = (
            "-"
            if r is None
            else f"{r['processor_ms_per_step']:,.0f} ms, "
            f"x {r['processor_ratio']:.3g} ({r['ratio']:.3g}), "
            f"{r['peak_mib']} MiB"
            for r in found
        )
        lines.append(f"| {model} | {method} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main(_):
    if _ROW.value:
        method, name, batch = _ROW.value
        method = method.replace(";", ",")
        row = measure(method, name, int(batch), _REPEATS.value)
        print("ROW " + json.dumps(row))
        return
    import keras

    results = ResultsFile(
        _OUT.value, "dp_sgd_libraries", ("method", "model", "batch")
    )
    for name in _MODELS.value:
        for batch in map(int, _BATCHES.value):
            for method in _METHODS[keras.backend.backend()]:
                key = (method, name, batch)
                if results.has(*key) or (method, name) == ("DPMAC", "cnn"):
                    continue
                row = results.measure(
                    __file__, key, f"--repeats={_REPEATS.value}"
                )
                results.add(key, None, **row)
    print(table(results.rows))


if __name__ == "__main__":
    app.run(main)
