"""Training, a choice and a last number within one budget, on MNIST.

    KERAS_BACKEND=tensorflow python benchmarks/evaluation.py [--out=DIR]

Of one release three ridges are three models; which one is kept and how good it
is is asked of private records: of those it was trained on (one ledger), and of
a part by a hash (two ledgers). What the private numbers are worth is measured
on the test images, which are taken for public here.
"""

import os
import time

import numpy as np
from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_DATA = flags.DEFINE_string("data", "mnist", "Name of a data set.")
_EPSILONS = flags.DEFINE_list("epsilons", ["0.1", "0.5", "1"], "Of budgets.")
_DELTA = flags.DEFINE_float("delta", 1e-6, "Of budgets.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Repetitions.")
RIDGES = (0.05, 0.5, 5.0)
WAYS = ("same records", "parts by a hash")


def features(images):
    """Random features of pixels: public, and of unit length."""
    rng = np.random.default_rng(0)
    flat = images.reshape(len(images), -1)
    kernel = rng.normal(size=(flat.shape[1], 400)) / 4
    found = np.cos(flat @ kernel + rng.uniform(0, 2 * np.pi, 400))
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found.astype("float32")


def models_of(release, ledger, shape):
    import keras

    import keras_fm as fm

    found = []
    for ridge in RIDGES:
        head = fm.layers.PrivateDense(10, name="head", clip=True)
        model = keras.Sequential([keras.Input(shape), head])
        head.learn(release, ledger, ridge_factor=ridge)
        found.append(model)
    return found


def asked(train, held, budget, way):
    import keras

    import keras_fm as fm
    from keras_fm.evaluation import private_choice, private_evaluate

    same = way == WAYS[0]
    split = budget.split(training=18 * same, choice=1, evaluation=1)
    print(split)
    head = fm.layers.PrivateDense(10, name="head", clip=True)
    model = keras.Sequential([keras.Input(train[0].shape[1:]), head])
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        budget, data=train, guarantee=fm.Proven(spends=split.training or 1.0)
    )
    model.fit(*train, epochs=1, batch_size=1024, verbose=0, callbacks=[private])
    candidates = models_of(
        private.releases["head"], private.ledger, train[0].shape[1:]
    )
    ledger, options = private.ledger, {}
    if not same:
        ledger = fm.Ledger(budget, neighbours="add_remove")
        options["public"] = "released for the other part of the hash"
    start = time.perf_counter()
    records = train if same else held
    best = private_choice(
        candidates, records, ledger=ledger, share=split.choice, **options
    )
    found = private_evaluate(
        candidates[best.index],
        records,
        ledger=ledger,
        share="rest",
        **options,
    )
    seconds = time.perf_counter() - start
    print(found)
    return candidates, best.index, found, seconds, (private.ledger, ledger)


def main(argv):
    del argv
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras_fm as fm

    results = ResultsFile(_OUT.value, "evaluation", ("way", "epsilon", "seed"))
    (x, y), (x_test, y_test) = fm.datasets.load(_DATA.value)
    x, x_test = features(x), features(x_test)
    everything, parts = (x, y), fm.evaluation.part_by_hash(x, y)
    for way in WAYS:
        train, held = (everything, None) if way == WAYS[0] else parts
        for epsilon in map(float, _EPSILONS.value):
            budget = fm.PrivacyBudget(epsilon, _DELTA.value)
            for seed in range(_SEEDS.value):
                if results.has(way, epsilon, seed):
                    continue
                candidates, index, found, seconds, ledgers = asked(
                    train, held, budget, way
                )

                def right(model, x, y):
                    said = model.predict(x, verbose=0, batch_size=4096)
                    return float(np.mean(said.argmax(axis=1) == y))

                of = {
                    of: [getattr(found.mean("accuracy", of=of), end) for end in
                         ("value", "low", "high")]
                    for of in ("records", "population")
                }  # fmt: skip
                results.add(
                    (way, epsilon, seed),
                    max(ledgers, key=lambda ledger: ledger.epsilon()),
                    chosen=RIDGES[index],
                    test=[right(model, x_test, y_test) for model in candidates],
                    index=index,
                    true=right(candidates[index], *(held or train)),
                    seconds=round(seconds, 1),
                    **of,
                )

    def cells(row):
        r, p = (
            "{:.2f} [{:.2f}, {:.2f}]".format(*(100 * v for v in row[of]))
            for of in ("records", "population")
        )
        yield from (row["way"], row["epsilon"], row["chosen"], r)
        yield from (f"{100 * row['true']:.2f}", p)
        yield f"{100 * row['test'][row['index']]:.2f}"
        yield f"{100 * max(row['test']):.2f}"
        yield f"{float(row['proven']):.4g}"

    results.finish_table(
        "records asked | epsilon | ridge | private accuracy, these records | "
        "true | population | test images | best ridge's | proven",
        cells,
    )


if __name__ == "__main__":
    app.run(main)
