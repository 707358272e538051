"""A private step of any network, over the plain step of the same backend.

    python benchmarks/record_alone.py --out=docs/results
    KERAS_BACKEND=jax python benchmarks/record_alone.py --out=docs/results
    KERAS_BACKEND=torch python benchmarks/record_alone.py --out=docs/results

In an environment with Opacus the last command measures it, too, on the same
networks written in PyTorch, over plain steps of these; with jax-privacy the
second one measures that on the same Keras network. Every row is a process of
its own, on one processor (where Linux can hold it there). Steps are whole, as
those of `fit`: the sample is drawn, padded and taken to the device; noise and
optimizer are included. A plain step takes its rows from a shuffled order, as a
plain `fit` does. Seconds are the processor's, medians of steps taken in turn
with plain ones; compiling is given apart. Memory: what the process needed at
most beyond plain steps.
"""

import importlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import time

for _name in (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
):
    os.environ.setdefault(_name, "1")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
)
# Threads of libraries stay where the one that starts them is.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import networks  # noqa: E402
import private_steps  # noqa: E402
from absl import app, flags  # noqa: E402
from results_file import ResultsFile  # noqa: E402

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_MODELS = flags.DEFINE_list("models", None, "What is trained; all if not set.")
_METHODS = flags.DEFINE_list("methods", None, "How; all if not set.")
_REPEATS = flags.DEFINE_integer(
    "repeats", 0, "Measured steps. 0: 25, or 9 of more than a second."
)
_ROW = flags.DEFINE_list("row", None, "One row: method, model.")

# Of every network: who builds it, and how many records a step expects.
_COMPARED = {
    "dense": (networks.dense, 1024),
    "cnn": (networks.cnn, 256),
    "resnet": (networks.resnet, 64),
    "transformer": (networks.transformer, 64),
    "lstm": (networks.lstm, 64),
    "lora": (networks.lora, 64),
}
# Layers of one's own, or used several times. Others are not measured here.
_OWN = {
    "own_dense": (networks.own_dense, 1024),
    "own_cnn": (networks.own_cnn, 256),
    "own_transformer": (networks.own_transformer, 64),
    "own_lstm": (networks.own_lstm, 64),
    "own_cell": (networks.own_cell, 64),
    "tied": (networks.tied, 1024),
    "shared": (networks.shared, 1024),
    "shared_cnn": (networks.shared_cnn, 256),
    "two_texts": (networks.two_texts, 256),
}
_NETWORKS = _COMPARED | _OWN


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Clock:
    """Seconds of the processor, of steps taken in turn."""

    def __init__(self):
        self.seconds = {}

    def __call__(self, name, run):
        wall, began = time.perf_counter(), time.process_time()
        run()
        self.seconds.setdefault(name, []).append(time.process_time() - began)
        return time.perf_counter() - wall

    def median(self, name):
        # The first one compiles.
        return statistics.median(self.seconds[name][1:])


def measure(method, name):
    """One row, in this process."""

    build, batch = _NETWORKS[name]
    start = private_steps.maker(method)
    package = private_steps.PACKAGES[method]
    if package == "tensorflow_privacy":
        # Says first how that is to be imported.
        package = "tensorflow_privacy_steps"
    for module in (package, *_LOADED):
        importlib.import_module(module)
    plain_step, begun = start(method, name, build, batch)
    clock = Clock()
    for _ in range(3):
        plain_step()
    before = peak()
    step, way = begun()
    began = time.perf_counter()
    step()
    first = time.perf_counter() - began
    second = clock("private", step)
    repeats = _REPEATS.value or (9 if second > 1 else 25)
    for _ in range(repeats):
        clock("private", step)
    memory = peak() - before
    for _ in range(repeats + 1):
        clock("plain", plain_step)
        clock("private", step)
    return {
        "batch": batch,
        "processor_ms": round(1000 * clock.median("private"), 2),
        "plain_ms": round(1000 * clock.median("plain"), 2),
        "ratio": round(clock.median("private") / clock.median("plain"), 3),
        "memory_mib": round(memory),
        "first_step_s": round(first, 1),
        "way": way,
    }


# What a fit of keras_fm loads, in every process: no memory of a step.
_LOADED = (
    "keras_fm.per_example.private_network",
    "dp_accounting.pld.privacy_loss_distribution",
)


def table(rows):
    """Markdown: milliseconds, their ratio to the plain step, memory."""
    lines = [
        "| network | backend | step | ms | over plain | MiB | first step, s |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        lines.append(
            f"| {row['model']} | {row['backend']} | {row['method']} | "
            f"{row['processor_ms']:,.0f} | {row['ratio']:.2f} | "
            f"{row['memory_mib']} | {row['first_step_s']:.0f} |"
        )
    return "\n".join(lines)


def main(_):
    if _ROW.value:
        print("ROW " + json.dumps(measure(*_ROW.value)))
        return
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    methods = _METHODS.value or [
        method
        for method in private_steps.OF_BACKEND[backend]
        if importlib.util.find_spec(private_steps.PACKAGES[method])
    ]
    results = ResultsFile(
        _OUT.value, "record_alone", ("backend", "method", "model")
    )
    for name in _MODELS.value or _NETWORKS:
        for method in methods:
            key = (backend, method, name)
            if results.has(*key) or (name, method[:6]) == ("lora", "Opacus"):
                continue
            if name in _OWN and method != "keras_fm":
                continue
            try:
                row = results.measure(
                    __file__, (method, name), f"--repeats={_REPEATS.value}"
                )
            except subprocess.CalledProcessError:
                print(f"{method} does not train {name}", flush=True)
                continue
            results.add(key, None, **row)
            print(table(results.rows[-1:]).splitlines()[-1], flush=True)
    print(table(results.rows))


if __name__ == "__main__":
    app.run(main)
