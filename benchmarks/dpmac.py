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

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "dpmac", "Name of the files.")
_PARTS = flags.DEFINE_list("parts", ["mnist", "usps"], "")
_FORMS = flags.DEFINE_list(
    "forms", ["proven", "warm", "strokes", "published", "twin"], ""
)
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
        exact_components(model, x)
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


def exact_components(model, x):
    """The components without noise, for the twin."""
    for layer in model.layers:
        if isinstance(layer, fm.layers.DPPCA):
            inputs = keras.Model(model.inputs[0], layer.input)
            found = inputs.predict(x, batch_size=2000, verbose=0)
            values, vectors = np.linalg.eigh(found.T @ found)
            top = slice(-1, -layer.units - 1, -1)
            mean = np.zeros(layer.input_dim)
            layer.set_components(mean, vectors[:, top], values[top])


def mnist(form, epsilon, draw):
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


# (batch size, epochs, learning rate) from scratch, and after a warm start.
USPS = (500, 50, 3e-3)
USPS_WARM = {
    1.0: (1000, 20, 1e-3),
    2.0: (1000, 20, 1e-3),
    4.0: (1000, 60, 1e-3),
    8.0: (1000, 60, 1e-3),
}


# A public start: shapes, drawings of each, plain steps of 250, learning rate.
STROKES = (40_000, 3, 24_000, 4e-3)
# The private steps after it, at every budget: (batch, epochs, rate).
USPS_STROKES = (1000, 60, 2e-3)


def usps_layers():
    return [
        keras.layers.Dense(units, activation="tanh")
        for units in (300, 100, 20, 100, 300)
    ] + [keras.layers.Dense(256, activation="sigmoid")]


def usps(form, epsilon, draw):
    (x, _), (x_test, _) = fm.datasets.load("usps")
    x, x_test = (v.reshape(-1, 256).astype("float32") for v in (x, x_test))
    layers, start = usps_layers(), None
    if form == "strokes":
        found, ledger = after_strokes(layers, x, epsilon, draw)
        missed = found.predict(x_test, batch_size=1000, verbose=0) - x_test
        return float((missed**2).sum(axis=1).mean()), ledger
    batch, epochs, rate = USPS
    if form == "warm":
        start = released_start(layers, x, epsilon)
        batch, epochs, rate = USPS_WARM[epsilon]
    model = fm.models.DPMAC(
        (256,),
        layers,
        loss="squared_error",
        clip=0.03,
        z_steps=10,
        z_optimizer=keras.optimizers.SGD(0.1),
    )
    optimizer = keras.optimizers.Adam(rate)
    if start is None:
        ledger = fit(model, optimizer, (x, None), form, epsilon, batch, epochs)
    else:
        ledger = go_on(model, optimizer, x, start, batch, epochs)
    found = model.predict(x_test, batch_size=1000, verbose=0)
    return float(((found - x_test) ** 2).sum(axis=1).mean()), ledger


def released_start(layers, x, epsilon):
    """Trains the layers on what half of the budget says; the ledger."""
    whole = fm.models.DeepPrivateAutoencoder((256,), hidden=(20,))
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA), data=x, planned_releases=2
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


def pen_strokes(shapes, variants):
    """Drawings of random pen strokes that fill 16 x 16 pixels; public."""
    # In 22 x 22 pixels the ink fits a square of 16.
    drawn, _ = fm.datasets.pen_strokes.load(shapes, variants, image_size=22)
    drawn = drawn[..., 0]

    def window(ink):
        """The 16 pixels around the middle of the ink."""
        first = ink.argmax(axis=1)
        last = 21 - ink[:, ::-1].argmax(axis=1)
        start = np.rint((first + last - 15) / 2).astype(int)
        return np.clip(start, 0, 6)[:, None] + np.arange(16)

    rows = window((drawn > 0.1).any(axis=2))[:, :, None]
    columns = window((drawn > 0.1).any(axis=1))[:, None, :]
    cut = drawn[np.arange(len(drawn))[:, None, None], rows, columns]
    return cut.reshape(-1, 256)


@functools.cache
def public_weights(draw):
    """Weights of the layers trained on strokes alone, and median norms of the
    strokes' own coefficients in the two last: no record is read."""
    layers = usps_layers()
    plain = keras.Sequential([keras.Input((256,)), *layers])
    shapes, variants, steps, rate = STROKES
    drawn = pen_strokes(shapes, variants)
    rate = keras.optimizers.schedules.CosineDecay(rate, steps)
    plain.compile(keras.optimizers.Adam(rate), "mse", steps_per_execution=20)
    epochs = steps * 250 // len(drawn)
    plain.fit(drawn, drawn, batch_size=250, epochs=epochs, verbose=0)
    norms = top_of(layers).coefficient_norms(drawn[:5000], drawn[:5000])
    return plain.get_weights(), np.median(norms, axis=0)


def top_of(layers):
    """The two last layers as a DPMAC above the others, which stay."""
    for layer in layers[:-2]:
        layer.trainable = False
    return fm.models.DPMAC(
        (256,),
        layers[-2:],
        loss="squared_error",
        # One small step: the coefficients are those of back-propagation.
        z_steps=1,
        z_optimizer=keras.optimizers.SGD(0.02),
        below=layers[:-2],
    )


def after_strokes(layers, x, epsilon, draw):
    """Private steps of the two last layers after a public start."""
    weights, thresholds = public_weights(draw)
    whole = keras.Sequential([keras.Input((256,)), *layers])
    whole.set_weights(weights)
    if epsilon is None:
        return whole, None
    model = top_of(layers)
    model.learn_thresholds(thresholds)
    batch, epochs, rate = USPS_STROKES
    batches = fm.datasets.PoissonBatches(x, x, batch_size=batch)
    rate = keras.optimizers.schedules.CosineDecay(
        rate, epochs * batches.num_batches
    )
    model.compile(keras.optimizers.Adam(rate))
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA),
        notes="initial weights and thresholds: from drawn pen strokes, public",
    )
    model.fit(batches, epochs=epochs, callbacks=[private], verbose=0)
    return whole, private.ledger


def go_on(model, optimizer, x, ledger, batch, epochs):
    """Private steps with what is left of the ledger's budget."""
    batches = fm.datasets.PoissonBatches(x, batch_size=batch)
    samples = batches.plan(
        steps=epochs * batches.num_batches,
        delta=DELTA,
        epsilon=ledger.budget.epsilon,
    )
    private = fm.callbacks.PrivateModel(
        ledger,
        noise_multiplier=fm.sampling.noise_multiplier(
            samples,
            ledger.budget,
            neighbours="add_remove",
            others=[entry.build_mechanism() for entry in ledger.entries],
        ),
        notes="initial weights: trained on records drawn from the release",
    )
    model.compile(optimizer)
    model.fit(batches, epochs=epochs, callbacks=[private], verbose=0)
    return private.ledger


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
