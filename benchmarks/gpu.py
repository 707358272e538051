"""Keras on JAX with a GPU: whole jobs, DP-SGD beside them, and steps of a fit.

    KERAS_BACKEND=jax python benchmarks/gpu.py [--parts=jobs,scattering,steps]

Needs keras-fm, `jax[cuda12]` (or newer) with a GPU that it sees, and the MNIST
`.npz` file (`KERAS_FM_DATA`, or a download by Keras); jax-privacy for the
rival, which is left out without it. Without a GPU it stops and says so;
`--allow_cpu` runs it anyway, with the device in the result, and
`--images=2000 --repeats=2` makes that short.

1. Seconds by the clock from raw MNIST images to weights at (2, 1e-5), with the
   last sixth held out, by the jobs of `whole_job.py`: one read, 20 reads, and
   jax-privacy's DP-SGD of a linear layer on the same features, looked at every
   10 steps (not counted) until it is as accurate as one read (then: as 20).
   Imports are not counted; the first run compiles, the others find what it
   compiled on disk (JAX's compilation cache, in a folder that is new).
2. Scattering2D: images per second, 28 x 28 x 1 and 32 x 32 x 3, and of
   MNIST's features by the number of images in a batch.
3. A step of a fit over a plain Keras step, 784-300-25-10, batches of 256 and
   4,096, alternating: the published form, and a proven fit on a release.

Medians; written to `gpu.json`. Statistics are summed on the host in float64:
1 says what that costs beside the features.
"""

import json
import os
import statistics
import sys
import tempfile
import time

import keras
import numpy as np
import whole_job
from absl import app, flags
from fit_steps import Architecture

import keras_fm as fm

_REPEATS = flags.DEFINE_integer("repeats", 5, "Values per median.")
_IMAGES = flags.DEFINE_integer("images", 60_000, "MNIST images.")
_PARTS = flags.DEFINE_list("parts", ["jobs", "scattering", "steps"], "Which.")
_ALLOW_CPU = flags.DEFINE_bool("allow_cpu", False, "Also without a GPU.")

EPSILON = 2.0


def device():
    """What computes, in words; ends the program where it is no GPU."""
    if keras.backend.backend() != "jax":
        sys.exit(
            "This measures JAX: set KERAS_BACKEND=jax. Received: "
            f"{keras.backend.backend()}"
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
    for job in (whole_job.one_read, whole_job.reads):
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
        ("fast_clipping", "one_read"),
        ("fast_clipping_long", "reads"),
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


def main(_):
    results = {
        "device": device(),
        "images": _IMAGES.value,
        "repeats": _REPEATS.value,
    }
    print(json.dumps(results["device"]), flush=True)
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
    text = json.dumps(results, indent=1)
    print(text)
    out = flags.FLAGS.out
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "gpu.json"), "w") as f:
        f.write(text + "\n")


if __name__ == "__main__":
    app.run(main)
