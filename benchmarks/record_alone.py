"""A private step of any network, over the plain step of the same backend.

    python benchmarks/record_alone.py --out=docs/results
    KERAS_BACKEND=jax python benchmarks/record_alone.py --out=docs/results
    KERAS_BACKEND=torch python benchmarks/record_alone.py --out=docs/results

In an environment with Opacus the last command measures it, too, on the same
networks written in PyTorch, over plain steps of these; with jax-privacy the
second one measures that on the same Keras network. Every row is a process of
its own. Steps are whole, as those of `fit`: the sample is drawn, padded and
taken to the device; noise and optimizer are included. A plain step takes its
rows from a shuffled order, as a plain `fit` does. Seconds are of all
processors (one thread is asked for), medians of steps taken in turn with plain
ones; compiling is given apart. Memory: what the process needed at most beyond
plain steps.
"""

import importlib
import importlib.util
import itertools
import json
import os
import resource
import statistics
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

import networks  # noqa: E402
from absl import app, flags  # noqa: E402
from results_file import ResultsFile  # noqa: E402

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_MODELS = flags.DEFINE_list("models", None, "What is trained; all if not set.")
_METHODS = flags.DEFINE_list("methods", None, "How; all if not set.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Steps that are measured.")
_ROW = flags.DEFINE_list("row", None, "One row: method, model.")

_RATE = 1 / 8  # of Poisson samples
# Of every network: who builds it, and how many records a step expects.
_NETWORKS = {
    "dense": (networks.dense, 1024),
    "cnn": (networks.cnn, 256),
    "resnet": (networks.resnet, 64),
    "transformer": (networks.transformer, 64),
    "lstm": (networks.lstm, 64),
    "lora": (networks.lora, 64),
}


def records(model, n):
    import numpy as np

    shape = tuple(model.input_shape[1:])
    rng = np.random.default_rng(0)
    if len(shape) == 1 and shape[0] == networks.LENGTH:
        x = rng.integers(0, networks.TOKENS, (n, *shape)).astype("int32")
    else:
        x = rng.random((n, *shape), np.float32)
    return x, (np.arange(n) % 10).astype("int32")


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Clock:
    """Seconds of all processors, of steps taken in turn."""

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
    start = _OTHERS.get(method.partition(";")[0], keras_steps)
    package = _PACKAGES[method]
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
    for _ in range(_REPEATS.value + 1):
        clock("private", step)
    memory = peak() - before
    for _ in range(_REPEATS.value + 1):
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


def keras_steps(method, name, build, batch):
    """A plain step, and what makes a private one and says its way."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    plain, network = build(), build()
    x, y = records(plain, round(batch / _RATE))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(keras.optimizers.SGD(0.1), loss)
    # As `fit` does: rows in a shuffled order.
    shuffled = np.random.default_rng(2).permutation(len(x))
    batches = itertools.cycle(np.split(shuffled, round(1 / _RATE)))

    def plain_step():
        rows = next(batches)
        plain.train_on_batch(x[rows], y[rows])

    return (
        plain_step,
        lambda: _STEPS[method](network, loss, x, y, batch),
    )


def opacus_steps(method, name, build, batch):
    """The same of Opacus."""
    del build
    import opacus_steps as opacus

    return opacus.steps(method, name, batch)


def tensorflow_privacy_steps(method, name, build, batch):
    """The same of tensorflow-privacy."""
    del build
    import tensorflow_privacy_steps as privacy

    return privacy.steps(method, name, batch, records)


def private_steps(network, loss, x, y, batch):
    """Steps of `make_private`: the train function on samples of its fit."""
    import keras

    import keras_fm as fm

    private = fm.make_private(network)
    private.compile(keras.optimizers.SGD(0.1), loss)
    taken = {}

    class Stop(Exception):
        pass

    class Catch(keras.callbacks.Callback):
        """Takes the place of the loop that `fit` would run."""

        def on_epoch_begin(self, epoch, logs=None):
            taken["fit"] = self.model._fit
            raise Stop

    try:
        private.fit(
            x,
            y,
            batch_size=batch,
            epochs=10,
            verbose=0,
            callbacks=[
                fm.callbacks.PrivateModel(epsilon=8.0, delta=1e-6),
                Catch(),
            ],
        )
    except Stop:
        pass
    fit = private._fit = taken["fit"]

    def step():
        keras.Model.train_on_batch(private, *fit.samples[0])

    return step, f"{fit.map.way}, {len(fit.map.ghosts)} ghost layers"


def jax_privacy_steps(network, loss, x, y, batch):
    """jax-privacy's clipped gradients of the same network, its noise, SGD;
    samples padded as its own batch selection pads them: not at all here."""
    import jax
    import jax_privacy
    import numpy as np

    def of_one(trainable, fixed, x, y):
        logits, _ = network.stateless_call(trainable, fixed, x, training=True)
        return loss(y, logits)

    clipped = jax_privacy.clipped_grad(
        of_one,
        argnums=0,
        batch_argnums=(2, 3),
        l2_clip_norm=1.0,
        keep_batch_dim=True,
    )

    @jax.jit
    def update(trainable, fixed, x, y, key):
        sums = clipped(trainable, fixed, x, y)
        keys = jax.random.split(key, len(trainable))
        return [
            w - 0.1 * (g + jax.random.normal(k, g.shape)) / batch
            for w, g, k in zip(trainable, sums, keys)
        ]

    state = [v.value for v in network.trainable_variables]
    fixed = [v.value for v in network.non_trainable_variables]
    rng = np.random.default_rng(1)

    def step():
        nonlocal state
        rows = rng.choice(len(x), batch, replace=False)
        key = jax.random.key(int(rng.integers(2**31)))
        state = update(state, fixed, x[rows], y[rows], key)
        jax.block_until_ready(state)

    return step, "clipped_grad"


_STEPS = {"keras_fm": private_steps, "jax-privacy": jax_privacy_steps}
_OTHERS = {
    "Opacus": opacus_steps,
    "tensorflow-privacy": tensorflow_privacy_steps,
}
_PACKAGES = {
    "keras_fm": "keras_fm",
    "jax-privacy": "jax_privacy",
    "tensorflow-privacy": "tensorflow_privacy",
    "tensorflow-privacy; ghost clipping": "tensorflow_privacy",
    "Opacus": "opacus",
    "Opacus; ghost clipping": "opacus",
}
# What a fit of keras_fm loads, in every process: no memory of a step.
_LOADED = (
    "keras_fm.per_example.private_network",
    "dp_accounting.pld.privacy_loss_distribution",
)
_OF_BACKEND = {
    "tensorflow": [
        "keras_fm",
        "tensorflow-privacy",
        "tensorflow-privacy; ghost clipping",
    ],
    "jax": ["keras_fm", "jax-privacy"],
    "torch": ["keras_fm", "Opacus", "Opacus; ghost clipping"],
}


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
        for method in _OF_BACKEND[backend]
        if importlib.util.find_spec(_PACKAGES[method])
    ]
    results = ResultsFile(
        _OUT.value, "record_alone", ("backend", "method", "model")
    )
    for name in _MODELS.value or _NETWORKS:
        for method in methods:
            key = (backend, method, name)
            if results.has(*key) or (name, method[:6]) == ("lora", "Opacus"):
                continue
            row = results.measure(
                __file__, (method, name), f"--repeats={_REPEATS.value}"
            )
            results.add(key, None, **row)
            print(table(results.rows[-1:]).splitlines()[-1], flush=True)
    print(table(results.rows))


if __name__ == "__main__":
    app.run(main)
