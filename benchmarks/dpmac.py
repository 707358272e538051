"""DP-MAC: the paper's two experiments, proven, and its published form.

    KERAS_FM_DATA=... python benchmarks/dpmac.py

MNIST: 784-PCA60-300-10, delta = 1e-5, epsilon 0.5 / 2 / 8. USPS: an
auto-encoder 256-300-100-20-100-300-256 on 5,000 / 5,000 images, epsilon 1 / 2
/ 4 / 8, squared error summed over pixels. Poisson samples, sigma calibrated
to the budget by privacy loss distributions, DP-PCA in the same budget.
`published`: the same with shuffled batches, whose epsilon is claimed;
`twin`: no noise; `warm` (USPS): half of the budget (in squared inverse
multipliers) releases the second moment of the pixels, and the network starts
from a plain training on Gaussian records with the released moments; `strokes`
(USPS): it starts from a plain training on drawn pen strokes, which are public,
and the private steps train its two last layers.

The settings were chosen on the last 10,000 training images of MNIST and on
1,000 training images of USPS, which is not charged. Results are written after
every run; a second call goes on where one stopped.
"""

import functools
import statistics
import time

import keras
import numpy as np
from absl import app, flags, logging
from results_file import ResultsFile

import keras_fm as fm
from keras_fm.lab.reproduce import dpmac_networks as networks

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "dpmac", "Name of the files.")
_PARTS = flags.DEFINE_list("parts", ["mnist", "usps"], "")
_FORMS = flags.DEFINE_list(
    "forms", ["proven", "warm", "strokes", "published", "twin"], ""
)
_DRAWS = flags.DEFINE_integer("draws", 2, "Runs of each.")
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


def mnist(form, epsilon, draw):
    train, (x_test, y_test) = fm.datasets.load("mnist")
    x = train[0].reshape(-1, 784)
    model = networks.classifier(784, unprotected=form == "twin")
    batch, epochs, rate = MNIST[epsilon]
    steps = epochs * len(x) // batch
    if epsilon == 8.0:
        rate = keras.optimizers.schedules.CosineDecay(rate, steps)
    ledger = networks.fit(
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


# (batch size, epochs, learning rate) from scratch, and after a warm start.
USPS = (500, 50, 3e-3)
USPS_WARM = {
    1.0: (1000, 20, 1e-3),
    2.0: (1000, 20, 1e-3),
    4.0: (1000, 60, 1e-3),
    8.0: (1000, 60, 1e-3),
}


# A public start: strokes, plain steps; and epochs of private steps after it.
STROKES = (40_000, 24_000)
STROKE_EPOCHS = 60


def usps(form, epsilon, draw):
    (x, _), (x_test, _) = fm.datasets.load("usps")
    x, x_test = (v.reshape(-1, 256).astype("float32") for v in (x, x_test))
    layers, start = networks.autoencoder_layers(256), None
    if form == "strokes":
        found, ledger = networks.after_start(
            public_start(draw), x, epsilon, STROKE_EPOCHS
        )
        missed = found.predict(x_test, batch_size=1000, verbose=0) - x_test
        return float((missed**2).sum(axis=1).mean()), ledger
    batch, epochs, rate = USPS
    if form == "warm":
        start = released_start(layers, x, epsilon)
        batch, epochs, rate = USPS_WARM[epsilon]
    optimizer = keras.optimizers.Adam(rate)
    if start is None:
        model = networks.autoencoder(layers, 256, unprotected=form == "twin")
        ledger = networks.fit(
            model, optimizer, (x, None), form, epsilon, batch, epochs
        )
    else:
        model, ledger = go_on(layers, optimizer, x, start, batch, epochs)
    found = model.predict(x_test, batch_size=1000, verbose=0)
    return float(((found - x_test) ** 2).sum(axis=1).mean()), ledger


def released_start(layers, x, epsilon):
    """Trains the layers on what half of the budget says; the ledger."""
    whole = fm.models.DeepPrivateAutoencoder((256,), hidden=(20,))
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, networks.DELTA),
        data=x,
        guarantee=fm.Proven(releases=2),
    )
    whole.pretrain(x, private)
    encoder = whole.encoders[0]
    drawn = private.releases[encoder.name].gaussian_records(
        20_000, encoder.bias_feature
    )
    drawn = np.clip(drawn + encoder.centre, 0, 1).astype("float32")
    plain = keras.Sequential([keras.Input((256,)), *layers])
    plain.compile(keras.optimizers.Adam(1e-3), "mse")
    plain.fit(drawn, drawn, batch_size=250, epochs=30, verbose=0)
    return private.ledger


@functools.cache
def public_start(draw):
    return networks.public_start(256, *STROKES)


def go_on(layers, optimizer, x, ledger, batch, epochs):
    """Private steps of trained layers, with what is left of the ledger's
    budget; the model, and the ledger."""
    batches = fm.datasets.PoissonBatches(x, batch_size=batch)
    samples = batches.plan(
        steps=epochs * batches.num_batches,
        delta=networks.DELTA,
        epsilon=ledger.budget.epsilon,
    )
    noise = fm.sampling.noise_multiplier(
        samples,
        ledger.budget,
        neighbours="add_remove",
        others=[entry.build_mechanism() for entry in ledger.entries],
    )
    model = networks.autoencoder(layers, 256, noise_multiplier=noise)
    weights = [w for layer in layers for w in layer.get_weights()]
    model.start_from(
        weights, public="trained on records drawn from the release above"
    )
    private = fm.callbacks.PrivateModel(ledger)
    model.compile(optimizer)
    model.fit(batches, epochs=epochs, callbacks=[private], verbose=0)
    return model, private.ledger


def main(_):
    logging.set_verbosity(logging.ERROR)
    file = ResultsFile(
        _OUT.value, _NAME.value, ("part", "form", "epsilon", "draw")
    )
    measures = {"mnist": mnist, "usps": usps}
    for job in jobs():
        if file.has(*job):
            continue
        part, form, epsilon, draw = job
        keras.utils.clear_session()
        keras.utils.set_random_seed(draw)
        start = time.process_time()
        score, ledger = measures[part](form, epsilon, draw)
        file.add(
            job,
            ledger,
            score=round(score, 3),
            cpu_seconds=round(time.process_time() - start),
        )
    file.finish(table(file.rows))


def jobs():
    """(part, form, epsilon, draw)."""
    for part in _PARTS.value:
        for draw in range(_DRAWS.value):
            for form in _FORMS.value:
                if part == "mnist" and form in ("warm", "strokes"):
                    continue
                budgets = (None,) if form == "twin" else EPSILONS[part]
                if form == "strokes":
                    budgets = (None, *budgets)
                for epsilon in budgets:
                    yield part, form, epsilon, draw


# (label, form, whether it has no budget).
ROWS = (
    ("proven", "proven", False),
    ("warm", "warm", False),
    ("strokes", "strokes", False),
    ("strokes, no private step", "strokes", True),
    ("published", "published", False),
    ("twin", "twin", True),
)


def table(rows):
    lines = []
    for part, epsilons in EPSILONS.items():
        lines.append(
            f"| {part} | " + " | ".join(f"{e:g}" for e in epsilons) + " |"
        )
        lines.append("|---" * (len(epsilons) + 1) + "|")
        for label, form, without in ROWS:
            cells = []
            for epsilon in epsilons:
                values = [
                    r["score"]
                    for r in rows
                    if (r["part"], r["form"]) == (part, form)
                    and r["epsilon"] == (None if without else epsilon)
                ]
                spread = ""
                if len(values) > 1:
                    spread = f" ± {statistics.stdev(values):.2f}"
                cells.append(
                    f"{statistics.fmean(values):.2f}{spread}" if values else "-"
                )
            if set(cells) != {"-"}:
                lines.append(f"| {label} | " + " | ".join(cells) + " |")
        for name, values in PAPER[part].items():
            cells = " | ".join(map(str, values))
            lines.append(f"| {name}, in the paper, claimed | {cells} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    app.run(main)
