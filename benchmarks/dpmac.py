"""DP-MAC: the paper's two experiments, proven, and its published form.

    KERAS_FM_DATA=... python benchmarks/dpmac.py

MNIST: 784-PCA60-300-10, delta = 1e-5, epsilon 0.5 / 2 / 8. USPS: an
auto-encoder 256-300-100-20-100-300-256 on 5,000 / 5,000 images, epsilon 1 / 2
/ 4 / 8, squared error summed over pixels. Poisson samples, sigma calibrated
to the budget by privacy loss distributions, DP-PCA in the same budget.
`published`: the same with shuffled batches, whose epsilon is claimed;
`twin`: no noise.

The settings were chosen on the last 10,000 training images of MNIST and on
1,000 training images of USPS, which is not charged. Results are written after
every run; a second call goes on where one stopped.
"""

import json
import os
import statistics
import time

import keras
import numpy as np
from absl import app, flags, logging

import keras_fm as fm

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "dpmac", "Name of the files.")
_PARTS = flags.DEFINE_list("parts", ["mnist", "usps"], "")
_FORMS = flags.DEFINE_list("forms", ["proven", "published", "twin"], "")
_DRAWS = flags.DEFINE_integer("draws", 2, "Runs of each.")
DELTA = 1e-5
EPSILONS = {"mnist": (0.5, 2.0, 8.0), "usps": (1.0, 2.0, 4.0, 8.0)}
# The paper's numbers at these budgets.
PAPER = {
    "mnist": {"DP-MAC": (90, 95, 97), "DP-SGD": (90, 95, 97)},
    "usps": {
        "DP-MAC": (12.7, 10.9, 9.6, 8.4),
        "DP-SGD": (11.8, 9.6, 7.9, 6.4),
    },
}
# (batch size, epochs, learning rate)
MNIST = {
    0.5: (1000, 10, 1e-2),
    2.0: (2000, 20, 1e-2),
    8.0: (2000, 40, 1e-2),
    None: (2000, 20, 1e-2),
}


def mnist_model():
    return fm.models.DPMAC(
        (784,),
        [keras.layers.Dense(300, activation="relu"), keras.layers.Dense(10)],
        clip=[0.03, 0.3],
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(0.1),
        below=[
            fm.layers.NormalizationLayer(),
            fm.layers.DPPCA(60, whitening=0.25),
            fm.layers.NormalizationLayer(),
            keras.layers.Rescaling(8.0),
        ],
    )


def fit(model, optimizer, train, form, epsilon, batch, epochs):
    """Trains; returns the ledger, or `None` without noise."""
    x, y = train
    model.compile(optimizer)
    if form == "twin":
        model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
        return None
    arguments, given = {}, {"x": x, "y": y, "batch_size": batch}
    if form == "published":
        arguments = {
            "data": x if y is None else train,
            "batch_size": batch,
            "guarantee": "published",
            "neighbours": "add_remove",
        }
    else:
        given = {"x": fm.datasets.PoissonBatches(x, y, batch_size=batch)}
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA), **arguments
    )
    model.fit(**given, epochs=epochs, callbacks=[private], verbose=0)
    return private.ledger


def mnist(form, epsilon):
    train, (x_test, y_test) = fm.datasets.load("mnist")
    x = train[0].reshape(-1, 784)
    model = mnist_model()
    batch, epochs, rate = MNIST[epsilon]
    steps = epochs * len(x) // batch
    if epsilon == 8.0:
        rate = keras.optimizers.schedules.CosineDecay(rate, steps)
    ledger = fit(
        model,
        keras.optimizers.Adam(rate),
        (x, train[1]),
        form,
        epsilon,
        batch,
        epochs,
    )
    z = model.predict(x_test.reshape(-1, 784), batch_size=2000, verbose=0)
    return 100 * float(np.mean(z.argmax(axis=1) == y_test)), ledger


def usps(form, epsilon):
    raise NotImplementedError


def main(_):
    logging.set_verbosity(logging.ERROR)
    os.makedirs(_OUT.value, exist_ok=True)
    base = os.path.join(_OUT.value, _NAME.value)
    rows = []
    if os.path.exists(f"{base}.json"):
        with open(f"{base}.json") as f:
            rows = json.load(f)
    keys = ("part", "form", "epsilon", "draw")
    done = {tuple(r[k] for k in keys) for r in rows}
    for part in _PARTS.value:
        for draw in range(_DRAWS.value):
            for form in _FORMS.value:
                budgets = (None,) if form == "twin" else EPSILONS[part]
                for epsilon in budgets:
                    if (part, form, epsilon, draw) in done:
                        continue
                    keras.utils.clear_session()
                    keras.utils.set_random_seed(draw)
                    start = time.process_time()
                    measure = {"mnist": mnist, "usps": usps}[part]
                    score, ledger = measure(form, epsilon)
                    rows.append(
                        {
                            "part": part,
                            "form": form,
                            "epsilon": epsilon,
                            "draw": draw,
                            "score": round(score, 3),
                            "cpu_seconds": round(time.process_time() - start),
                            "proven": str(ledger.epsilon()) if ledger else None,
                            "claimed": ledger.claimed_epsilon()
                            if ledger
                            else None,
                            "delta": DELTA if ledger else None,
                            "neighbours": str(ledger.neighbours)
                            if ledger
                            else None,
                        }
                    )
                    print(json.dumps(rows[-1]), flush=True)
                    with open(f"{base}.json", "w") as f:
                        json.dump(rows, f, indent=1)
    text = table(rows)
    with open(f"{base}_table.md", "w") as f:
        f.write(text)
    print(text)


def table(rows):
    lines = []
    for part, epsilons in EPSILONS.items():
        lines.append(
            f"| {part} | " + " | ".join(f"{e:g}" for e in epsilons) + " |"
        )
        lines.append("|---" * (len(epsilons) + 1) + "|")
        for form in ("proven", "published", "twin"):
            cells = []
            for epsilon in epsilons:
                values = [
                    r["score"]
                    for r in rows
                    if (r["part"], r["form"]) == (part, form)
                    and r["epsilon"] in (epsilon, None)
                ]
                spread = ""
                if len(values) > 1:
                    spread = f" ± {statistics.stdev(values):.2f}"
                cells.append(
                    f"{statistics.fmean(values):.2f}{spread}" if values else "-"
                )
            lines.append(f"| {form} | " + " | ".join(cells) + " |")
        for name, values in PAPER[part].items():
            cells = " | ".join(map(str, values))
            lines.append(f"| {name}, in the paper, claimed | {cells} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)
