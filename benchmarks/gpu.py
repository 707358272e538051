"""Keras with a GPU: whole jobs, DP-SGD beside them, sums, and steps of a fit.

    KERAS_BACKEND=jax python benchmarks/gpu.py --parts=sums,jobs,private
    KERAS_BACKEND=torch python benchmarks/gpu.py --parts=sums,private

Five minutes, both; the first without `--parts` is all. Needs keras-fm,
`jax[cuda12]` (or newer) with a GPU that it sees, and the MNIST
`.npz` file (`KERAS_FM_DATA`, or a download by Keras); jax-privacy for the
rival, which is left out without it. Without a GPU it stops and says so;
`--allow_cpu` runs it anyway, with the device in the result, and
`--images=2000 --repeats=2` makes that short.

1. Seconds by the clock from raw MNIST images to weights at (2, 1e-5), with the
   last sixth held out, by the jobs of `whole_job.py`: one release, 20 rounds,
   and jax-privacy's DP-SGD of a linear layer on the same features, tested every
   10 steps (not counted) until it is as accurate as one release (then: as 20).
   Imports are not counted; the first run compiles, the others find what it
   compiled on disk (JAX's compilation cache, in a folder that is new).
2. Scattering2D: images per second, 28 x 28 x 1 and 32 x 32 x 3, and of
   MNIST's features by the number of images in a batch.
3. A step of a fit over a plain Keras step, 784-300-25-10, batches of 256 and
   4,096, alternating: the published form, and a proven fit on a release.

4. Sums of 50,000 rows of 800 features, of one release and of one round, on the
   device and by NumPy, and whether they have the same bits.
5. Steps of `make_private`, and of jax-privacy or Opacus, over plain ones taken
   in turn: a ResNet-20 and a transformer of four blocks.

Medians; written to `gpu.json`, and on PyTorch, where 4 and 5 are measured, to
`gpu_torch.json`.
"""

import functools
import json
import os
import statistics
import sys
import tempfile
import time

import keras
import networks
import numpy as np
import private_steps
import whole_job
from absl import app, flags
from fit_steps import Architecture

import keras_fm as fm
from keras_fm.core import device_sums
from keras_fm.kernel.partial_statistics import PartialStatistics

_REPEATS = flags.DEFINE_integer("repeats", 5, "Values per median.")
_IMAGES = flags.DEFINE_integer("images", 60_000, "MNIST images.")
_PARTS = flags.DEFINE_list(
    "parts", ["jobs", "scattering", "steps", "sums", "private"], "Which."
)
_BATCH = flags.DEFINE_integer("batch", 256, "Records of a private step.")
_ALLOW_CPU = flags.DEFINE_bool("allow_cpu", False, "Also without a GPU.")

EPSILON = 2.0


def device():
    """What computes, in words; ends the program where it is no GPU."""
    backend = keras.backend.backend()
    if backend == "torch" and {*_PARTS.value} <= {"sums", "private"}:
        import torch

        on_gpu = torch.cuda.is_available()
        if not on_gpu and not _ALLOW_CPU.value:
            sys.exit("No GPU. --allow_cpu measures what is there.")
        torch.set_default_device("cuda" if on_gpu else "cpu")
        kind = torch.cuda.get_device_name() if on_gpu else "cpu"
        return {
            "platform": "gpu" if on_gpu else "cpu",
            "kind": kind,
            "torch": torch.__version__,
            "keras": keras.__version__,
        }
    if backend != "jax":
        sys.exit(
            "This measures JAX: set KERAS_BACKEND=jax; on PyTorch pass "
            f"--parts=sums,private. Received: {backend}"
        )
    import jax

    found = jax.devices()[0]
    if found.platform != "gpu" and not _ALLOW_CPU.value:
        sys.exit(
            'No GPU. Needed: `pip install "jax[cuda12]"` and a GPU that '
            f"`jax.devices()` shows (it shows {jax.devices()}). "
            "--allow_cpu measures what is there."
        )
    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return {
        "platform": found.platform,
        "kind": found.device_kind,
        "jax": jax.__version__,
        "keras": keras.__version__,
    }


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def jobs(x, y):
    """Raw images to weights: seconds of every job, and of its features."""
    held = len(x) // 6
    train, held_out = (x[:-held], y[:-held]), (x[-held:], y[-held:])
    found = {}
    for job in (whole_job.one_release, whole_job.rounds):
        runs, (model, ledger, _) = repeated(job, fm, *train, EPSILON)
        p = model.predict(held_out[0], batch_size=1024, verbose=0)
        found[job.__name__] = {
            **medians(runs),
            "held-out accuracy": float(
                (p.argmax(axis=1) == held_out[1]).mean()
            ),
            "epsilon spent": ledger.epsilon(),
        }
    body = whole_job.scattering(fm, x.shape[1:])
    features, h = repeated(fm.features.extract, body, train[0])
    found["features alone"] = medians(features)
    h_held = fm.features.extract(body, held_out[0])
    for method, ours in (
        ("fast_clipping", "one_release"),
        ("fast_clipping_long", "rounds"),
    ):
        try:
            found[f"DP-SGD on the same features, as accurate as {ours}"] = (
                rival(
                    whole_job.SETTINGS[method],
                    (h, train[1]),
                    (h_held, held_out[1]),
                    found[ours]["held-out accuracy"],
                    statistics.median(features[1:]),
                )
            )
        except ImportError as e:
            found["DP-SGD"] = str(e)
    return found


def repeated(run, *arguments):
    """Seconds of a run that compiles and of all others; what the last made."""
    runs = []
    for _ in range(1 + _REPEATS.value):
        start = time.perf_counter()
        made = run(*arguments)
        runs.append(time.perf_counter() - start)
    return runs, made


def medians(runs):
    first, *others = runs
    return {
        "first run, compiling": round(first, 2),
        "seconds": round(statistics.median(others), 3),
        "all": [round(v, 3) for v in others],
    }


def rival(settings, train, held_out, target, features):
    """Seconds of DP-SGD by jax-privacy until it is as accurate."""
    from keras_fm.lab.baselines.dp_sgd_config import DPSGDConfig
    from keras_fm.lab.baselines.dp_sgd_jax import JaxDPSGDClassifier

    class Watched(JaxDPSGDClassifier):
        def _take(self, step, plan, batches):
            def watched(batch):
                step(batch)
                self.steps += 1
                is_last = self.steps == self.config.steps
                if self.steps % whole_job.LOOK_EVERY and not is_last:
                    return
                began = time.perf_counter()
                kernel, bias = (np.asarray(v) for v in step.weights())
                z = held_out[0] @ kernel + bias
                found = (z.argmax(axis=1) == held_out[1]).mean()
                self.looks.append(float(found))
                self.paused += time.perf_counter() - began
                if self.looks[-1] >= target:
                    raise whole_job.Reached

            super()._take(watched, plan, batches)

    given = {**settings, "batch_size": min(8192, len(train[0]) // 4)}
    config = DPSGDConfig(form=None, l2_norm_clip=0.1, **given)
    runs, made = [], []
    for _ in range(1 + _REPEATS.value):
        watched = Watched(None, config, EPSILON, whole_job.DELTA)
        watched.steps, watched.looks, watched.paused = 0, [], 0.0
        start = time.perf_counter()
        try:
            watched.fit(*train, num_classes=10)
        except whole_job.Reached:
            pass
        runs.append(features + time.perf_counter() - start - watched.paused)
        made.append(watched)
    return {
        **medians(runs),
        "of that features": round(features, 3),
        "held-out accuracy": [v.looks[-1] for v in made],
        "steps": [v.steps for v in made],
        "reached": [v.looks[-1] >= target for v in made],
    }


def scattering(x):
    found = {}
    for shape in ((28, 28, 1), (32, 32, 3)):
        layer = fm.layers.Scattering2D(data_format="channels_last")
        model = keras.Sequential([keras.Input(shape), layer])
        n = min(8192, _IMAGES.value)
        images = np.random.default_rng(0).random((n, *shape), np.float32)

        def run(model=model, images=images):
            model.predict(images, batch_size=512, verbose=0)

        run()
        median = statistics.median(seconds(run) for _ in range(_REPEATS.value))
        name = " x ".join(map(str, shape))
        found[name] = round(n / median)
    body = whole_job.scattering(fm, x.shape[1:])
    for batch in (256, 1024, 4096):

        def extract(batch=batch):
            for start in range(0, len(x) // batch * batch, batch):
                body.predict_on_batch(x[start : start + batch])

        extract()
        median = statistics.median(
            seconds(extract) for _ in range(_REPEATS.value)
        )
        found[f"MNIST's features, {batch} in a batch"] = round(
            len(x) // batch * batch / median
        )
    return found


def steps(batch):
    """Ratios of epochs; the proven model is a head on fixed features."""
    n = min(32_768, _IMAGES.value)
    deep = Architecture((300, 25), n, batch).steps(_REPEATS.value)
    head = Architecture((), n, batch).steps(_REPEATS.value)
    return {
        "published step / plain step": deep["published"]["ratio"],
        "proven step on a release / plain step": head["proven, on a release"][
            "ratio"
        ],
        "milliseconds of a plain step": deep["plain"]["ms_per_step"],
    }


def sums(m=800):
    """Seconds of the sums of one release, and of a round, there and here."""
    rng, n = np.random.default_rng(0), min(50_000, _IMAGES.value)
    h = rng.random((n, m), np.float32)
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    y, weights = rng.integers(10, size=n), rng.normal(size=(m, 10))
    query = fm.queries.CrossEntropyQuery(num_features=m, num_outputs=10)
    batches = [(h[i : i + 1024], y[i : i + 1024]) for i in range(0, n, 1024)]

    def numpy_sums():
        found = PartialStatistics(query)
        for batch in batches:
            found.add(*batch)
        return found.statistics()

    coefficients = fm.queries.GradientQuery(
        num_features=m, num_outputs=10, clip=0.1
    )
    blocks = []
    for i in range(0, n, 2**13):
        given = h[i : i + 2**13], y[i : i + 2**13]
        rows, targets = coefficients.check_records(*given)
        lengths = coefficients.lengths(rows)
        held = device_sums.DeviceRows(rows, targets, lengths)
        blocks.append((rows, held, targets, lengths))

    def numpy_round():
        return [
            coefficients.total(rows, targets, weights, lengths=lengths)
            for rows, _, targets, lengths in blocks
        ]

    def device_round():
        return [
            coefficients.total(held, targets, weights, lengths=lengths)
            for _, held, targets, lengths in blocks
        ]

    found = {"records": n}
    for name, there, here in (
        (
            "one release",
            lambda: device_sums.summed(query, batches).statistics(),
            numpy_sums,
        ),
        ("one round", device_round, numpy_round),
    ):
        took, made = repeated(there)
        host, expected = repeated(here)
        found[name] = {
            "device": medians(took),
            "NumPy": medians(host),
            "same bits": all(map(np.array_equal, made, expected)),
        }
    return found


PRIVATE = {
    "ResNet-20": functools.partial(networks.resnet, 3),
    "transformer, 4 blocks": functools.partial(networks.transformer, None, 4),
}


def private(name):
    """Milliseconds of private steps and of plain ones, by the clock."""

    def finish():
        if keras.backend.backend() == "torch":
            import torch

            if torch.cuda.is_available():
                torch.cuda.synchronize()

    found = {}
    for method in private_steps.OF_BACKEND[keras.backend.backend()]:
        start = private_steps.maker(method)
        try:
            plain, begun = start(method, name, PRIVATE[name], _BATCH.value)
            step, way = begun()
        except ImportError as e:
            found[method] = str(e)
            continue
        took = {plain: [], step: []}
        for _ in range(1 + 2 * _REPEATS.value):
            for run, times in took.items():
                times.append(seconds(lambda run=run: (run(), finish())))
        # The first one compiles.
        base, own = (statistics.median(v[1:]) for v in took.values())
        found[method] = {
            "plain_ms": round(1000 * base, 2),
            "private_ms": round(1000 * own, 2),
            "ratio": round(own / base, 3),
            "first_step_s": round(took[step][0], 1),
            "way": way,
        }
    return found


def main(_):
    results = {
        "device": device(),
        "images": _IMAGES.value,
        "repeats": _REPEATS.value,
    }
    print(json.dumps(results["device"]), flush=True)
    if "sums" in _PARTS.value:
        results["seconds of sums"] = sums()
        print(json.dumps(results), flush=True)
    x = y = None
    if {"jobs", "scattering"} & {*_PARTS.value}:
        (x, y), _ = fm.datasets.load("mnist", rescale=False)
        x, y = x[: _IMAGES.value], y[: _IMAGES.value]
    if "jobs" in _PARTS.value:
        results["seconds from raw MNIST to weights"] = jobs(x, y)
        print(json.dumps(results), flush=True)
    if "scattering" in _PARTS.value:
        results["scattering, images per second"] = scattering(x)
        print(json.dumps(results), flush=True)
    for batch in (256, 4096) if "steps" in _PARTS.value else ():
        if batch <= _IMAGES.value:
            results[f"steps, batch {batch}"] = steps(batch)
    for name in PRIVATE if "private" in _PARTS.value else ():
        results[f"private steps, {name}"] = private(name)
        print(json.dumps(results), flush=True)
    text = json.dumps(results, indent=1)
    print(text)
    out = flags.FLAGS.out
    os.makedirs(out, exist_ok=True)
    of_torch = "_torch" * (keras.backend.backend() == "torch")
    with open(os.path.join(out, f"gpu{of_torch}.json"), "w") as f:
        f.write(text + "\n")


if __name__ == "__main__":
    app.run(main)
