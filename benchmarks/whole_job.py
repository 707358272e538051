"""A whole job, raw MNIST to weights: processor seconds and peak memory.

    python benchmarks/whole_job.py [--epsilon=2] [--methods=...] [--out=DIR]

Two proven jobs on public scattering features at epsilon, delta = 1e-5, each
against tensorflow-privacy's DP-SGD at the same epsilon and delta:

* `one_release` of streamed features; beside it `fast_clipping` of a linear
  layer on the same features, `fast_clipping_cnn` of a small CNN on pixels and
  `vectorized_cnn`, the usual optimizer on the same CNN;
* `rounds`, whitened by a released second moment; beside it
  `fast_clipping_long` of the same features in four times the steps.

Rule, fixed in advance: the last 10,000 training images are held out, all
learn from the other 50,000. A proven job runs first; a rival is looked at
every 10 steps (at no cost of its seconds) and ends when it is as accurate on
the held-out images as the median of the proven jobs, or when its steps are
over, whose number sets its noise. The held-out accuracy is used without noise
by this rule: an advantage of the rivals. Their learning rates were chosen so,
too: of the linear layer the quickest one of 256, 512 and 1024, and for many
steps the best one of 64, 128 and 256; of the CNN the better one of 2 and 8.

`pcdbn` is the proven form of pCDBN with its defaults, on all training images,
and its accuracy that on test images (nothing is chosen on it); its row has the
processor seconds of every release, features and learning included. It is
measured alone, and by name:

    python benchmarks/whole_job.py --methods=pcdbn --epsilon=0.5

With KERAS_BACKEND=jax the proven jobs run on JAX, and rows are in
`whole_job_jax.json`.

The two forms on the CNN are the same mechanism, so the vectorized one, which
takes minutes, is measured for a few steps; its seconds are those of its start
and of as many steps as the other form needed.

Images stay as they are stored, uint8: features begin with a `Rescaling`, and
pCDBN's `bounds` are 0 and 255. Those of the CNN are float32 in [0, 1].

Every run is a process of its own: seconds of all its processors and peak
memory, imports of libraries included, without these, and of the fit alone
once features are there. OpenBLAS has one thread, since another one's waiting
would be counted as work; TensorFlow, which computes features and the rivals'
steps, has all. Rows that are in `whole_job.json` are not measured again.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_EPSILON = flags.DEFINE_float("epsilon", 2.0, "Budget of every job.")
_SIDE = flags.DEFINE_string("side", None, "One method, in this process.")
_TARGET = flags.DEFINE_float("target", 1.0, "With --side: accuracy to reach.")
_METHODS = flags.DEFINE_list("methods", None, "Only these; all by default.")

DELTA = 1e-5
HELD_OUT = 10_000
LOOK_EVERY = 10
ROUNDS = 20
# Of a method: what the table calls it, how many runs, and of a rival the job
# that it has to be as accurate as.
METHODS = {
    "one_release": ("**one release**, streamed", 3, None),
    "fast_clipping": ("fast clipping, same features", 3, "one_release"),
    "fast_clipping_cnn": ("fast clipping, CNN", 1, "one_release"),
    "vectorized_cnn": ("vectorized, CNN", 1, "one_release"),
    "rounds": (f"**{ROUNDS} rounds**", 3, None),
    "fast_clipping_long": ("fast clipping, same features", 3, "rounds"),
    "pcdbn": ("**pCDBN**, all images", 3, None),
}
_LINEAR = {"learning_rate": 512.0, "batch_size": 8192, "steps": 109}
_CNN = {"learning_rate": 8.0, "batch_size": 2048, "steps": 200}
SETTINGS = {
    "fast_clipping": _LINEAR,
    "fast_clipping_long": _LINEAR | {"steps": 438, "learning_rate": 128.0},
    "fast_clipping_cnn": _CNN,
    "vectorized_cnn": _CNN,
}
VECTORIZED_STEPS = 6


class Reached(Exception):
    """The rival is as accurate as the proven job."""


def peak_mib():
    """Of this process alone; `getrusage` begins with its parent's."""
    with open("/proc/self/status") as f:
        (line,) = (line for line in f if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def scattering(fm, shape):
    """From pixels as they are stored to features."""
    import keras

    body = fm.features.build("scattering", shape)
    rescaling = keras.layers.Rescaling(1 / 255)
    return keras.Sequential([keras.Input(shape), rescaling, *body.layers])


def one_release(fm, x, y, epsilon):
    """One pass: features of a batch are in memory, never all of them."""
    import keras
    import numpy as np

    body = scattering(fm, x.shape[1:])
    units = body.output_shape[-1]

    def read():
        for start in range(0, len(x), 1024):
            rows = slice(start, start + 1024)
            yield fm.features.extract(body, x[rows]), y[rows]

    # The release says where to start; random weights take JAX two seconds to
    # compile.
    head = fm.layers.PrivateDense(
        10, use_bias=False, kernel_initializer="zeros"
    )
    model = keras.Sequential([keras.Input((units,)), head])
    # The released objective needs no record: one step on a row of zeros.
    nothing = np.zeros((1, units), "float32"), np.zeros(1, int)
    guarantee = fm.Proven(n_public=False)
    ledger = released(fm, model, epsilon, read, nothing, guarantee)
    return keras.Sequential([body, model]), ledger, {}


def rounds(fm, x, y, epsilon):
    """Features once, then a second moment and the rounds."""
    import keras

    body = scattering(fm, x.shape[1:])
    units = body.output_shape[-1]
    h = fm.features.extract(body, x)
    began = time.process_time()
    model = keras.Sequential(
        [
            keras.Input((units,)),
            fm.layers.DPPCA(units, whitening=0.5),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(
                10,
                use_bias=False,
                kernel_initializer="zeros",
                rounds=fm.Rounds(rounds=ROUNDS),
            ),
        ]
    )
    # Divided by the number of records, which is public as the rivals' is.
    step = h[:1], y[:1]
    ledger = released(fm, model, epsilon, (h, y), step, fm.Proven())
    fit = {"steps": ROUNDS, "fit_cpu_seconds": time.process_time() - began}
    return keras.Sequential([body, model]), ledger, fit


def pcdbn(fm, x, y, epsilon):
    """What every release of pCDBN takes, and its last step."""
    from keras_fm.training.proven_plan import ProvenPlan

    parts, carry_out = {}, ProvenPlan.carry_out_one

    def clocked(plan, step):
        began = time.process_time()
        carry_out(plan, step)
        parts[step.name] = round(time.process_time() - began, 2)

    ProvenPlan.carry_out_one = clocked
    model = fm.models.PrivateCDBN(x.shape[1:], 10, bounds=(0, 255))
    step = x[:1], y[:1]
    ledger = released(fm, model, epsilon, (x, y), step, fm.Proven())
    return model, ledger, {"releases_cpu_seconds": parts}


def released(fm, model, epsilon, data, step, guarantee):
    """Releases what the model learns, then one step for Keras."""
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        epsilon=epsilon, delta=DELTA, data=data, guarantee=guarantee
    )
    model.fit(
        *step, steps_per_epoch=1, epochs=1, callbacks=[private], verbose=0
    )
    return private.ledger


def rival(method, fm, x, y, held_out, epsilon, target):
    """Steps, accuracy and seconds when the rival was good enough, if ever."""
    from keras_fm.lab.baselines import dp_sgd

    settings = SETTINGS[method]
    form = "vectorized" if "vectorized" in method else "fast_clipping"
    model, paused = None, 0.0
    if method.endswith("cnn"):
        model = dp_sgd.small_cnn(x.shape[1:], 10)
    else:
        body = scattering(fm, x.shape[1:])
        x = fm.features.extract(body, x)
        paused = time.process_time()
        held_out = fm.features.extract(body, held_out[0]), held_out[1]
        paused = time.process_time() - paused
    start = time.process_time() - paused
    looks, step_seconds = [], []

    class Watched(dp_sgd.DPSGDClassifier):
        paused = 0.0

        def _take(self, step, plan, batches):
            def watched(batch):
                began = time.process_time()
                step(batch)
                step_seconds.append(time.process_time() - began)
                self.look(len(step_seconds))

            super()._take(watched, plan, batches)

        def look(self, steps):
            began = time.process_time()
            if form == "vectorized":
                if steps == VECTORIZED_STEPS:
                    raise Reached
                return
            if steps % LOOK_EVERY == 0 or steps == settings["steps"]:
                accuracy = self.evaluate(*held_out)["accuracy"]
                looks.append((steps, accuracy))
                self.paused += time.process_time() - began
                if accuracy >= target:
                    raise Reached

    config = dp_sgd.DPSGDConfig(form=form, l2_norm_clip=0.1, **settings)
    watched = Watched(model, config, epsilon, DELTA)
    watched.paused = paused
    try:
        watched.fit(x, y, num_classes=10)
        reached = False
    except Reached:
        reached = True
    seconds = time.process_time() - watched.paused
    steps = len(step_seconds)
    per_step = statistics.median(step_seconds[1:])
    return {
        "cpu_seconds": seconds,
        "fit_cpu_seconds": seconds - start,
        "accuracy": round(100 * looks[-1][1], 2) if looks else None,
        "steps": steps,
        "reached": reached if looks else None,
        "cpu_seconds_per_step": round(per_step, 4),
        "start_cpu_seconds": round(seconds - steps * per_step, 2),
    }


def measure(method, epsilon, target):
    """One run, in this process."""
    import keras

    import keras_fm as fm

    proven = {f.__name__: f for f in (one_release, rounds, pcdbn)}.get(method)
    if not proven:
        from keras_fm.lab.baselines import dp_sgd

        dp_sgd._import_tensorflow_privacy()
    libraries = time.process_time(), peak_mib()
    train, held_out = fm.datasets.load("mnist", method.endswith("cnn"))
    if method != "pcdbn":
        x, y = train
        train = x[:-HELD_OUT], y[:-HELD_OUT]
        held_out = x[-HELD_OUT:], y[-HELD_OUT:]
    if proven:
        model, ledger, row = proven(fm, *train, epsilon)
        row["cpu_seconds"] = time.process_time()
        row["peak_mib"] = peak_mib()
        p = model.predict(held_out[0], batch_size=1024, verbose=0)
        accuracy = (p.argmax(axis=1) == held_out[1]).mean()
        row["accuracy"] = round(100 * float(accuracy), 2)
        row["spent"] = ledger.epsilon()
    else:
        row = rival(method, fm, *train, held_out, epsilon, target)
        row["peak_mib"] = peak_mib()
    row["backend"] = keras.backend.backend()
    row["cpu_seconds_without_imports"] = round(
        row["cpu_seconds"] - libraries[0], 2
    )
    row["cpu_seconds"] = round(row["cpu_seconds"], 2)
    if "fit_cpu_seconds" in row:
        row["fit_cpu_seconds"] = round(row["fit_cpu_seconds"], 2)
    row["peak_mib_beyond_imports"] = round(row["peak_mib"] - libraries[1])
    row["peak_mib"] = round(row["peak_mib"])
    return row


def median(rows, key):
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


SECONDS = ("cpu_seconds", "cpu_seconds_without_imports", "fit_cpu_seconds")


def medians(results, epsilon):
    """Of every method that was measured, its medians by name."""
    found = {}
    for method in METHODS:
        rows = [
            r
            for r in results.rows
            if (r["method"], r["epsilon"]) == (method, epsilon)
        ]
        keys = *SECONDS, "cpu_seconds_per_step", "steps", "accuracy", "peak_mib"
        if rows:
            found[method] = {
                **{key: median(rows, key) for key in keys},
                "runs": len(rows),
                "missed": any(r.get("reached") is False for r in rows),
            }
    slow, fast = found.get("vectorized_cnn"), found.get("fast_clipping_cnn")
    if slow and not fast:
        del found["vectorized_cnn"]
    elif slow:
        more = fast["steps"] - slow["steps"]
        for key in SECONDS:
            slow[key] += more * slow["cpu_seconds_per_step"]
        slow["steps"] = fast["steps"]
    return found


def table(results, epsilon):
    """Markdown; seconds and memory of a proven job over its rivals'."""
    found = medians(results, epsilon)
    lines = [
        "| job | runs | steps | held-out accuracy | CPU s | proven / it | "
        "without imports | fit alone | peak MiB | proven / it |",
        "|---" * 10 + "|",
    ]
    for method, it in found.items():
        label, _, rival_of = METHODS[method]
        ours = found.get(rival_of or method, it)
        ratios = [
            f"{ours[key] / it[key]:.2f}" if ours[key] and it[key] else "-"
            for key in (*SECONDS, "peak_mib")
        ]
        accuracy = "-" if it["accuracy"] is None else str(it["accuracy"])
        accuracy += " (not reached)" if it["missed"] else ""
        seconds = f"{it['cpu_seconds']:.1f}"
        if method == "vectorized_cnn":
            seconds += " (extrapolated)"
        cells = [label, it["runs"], it["steps"] or "-", accuracy, seconds]
        cells += [*ratios[:3], f"{it['peak_mib']:.0f}", ratios[3]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(_):
    epsilon, side = _EPSILON.value, _SIDE.value
    unknown = {*(_METHODS.value or ()), *([side] if side else ())} - {*METHODS}
    if unknown:
        raise app.UsageError(
            f"Methods must be of {', '.join(METHODS)}. "
            f"Received: {', '.join(sorted(unknown))}"
        )
    if side:
        print("ROW " + json.dumps(measure(side, epsilon, _TARGET.value)))
        return
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    name = "whole_job" + f"_{backend}" * (backend != "tensorflow")
    results = ResultsFile(_OUT.value, name, ("method", "epsilon", "run"))
    chosen = _METHODS.value or [m for m in METHODS if m != "pcdbn"]
    for method, (_, runs, ours) in METHODS.items():
        if method not in chosen:
            continue
        proven = medians(results, epsilon).get(ours)
        if ours and not proven:
            raise app.UsageError(f"{method} needs {ours} first.")
        target = proven["accuracy"] / 100 if ours else 1.0
        for run in range(runs):
            key = (method, epsilon, run)
            if results.has(*key):
                continue
            child = subprocess.run(
                [
                    sys.executable,
                    __file__,
                    f"--side={method}",
                    f"--epsilon={epsilon}",
                    f"--target={target}",
                ],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
            (line,) = (v for v in child.stdout.splitlines() if v[:4] == "ROW ")
            results.add(key, None, target=target, **json.loads(line[4:]))
    print(table(results, epsilon))


if __name__ == "__main__":
    app.run(main)
