"""Behaviour prediction: dPAH and its comparators (dPA paper, Figs. 2 and 3).

    python benchmarks/behavior.py                          # both resolutions
    python benchmarks/behavior.py --resolutions=weekly --name=behavior_weekly

The SYNTHETIC health network (docs/health_network.md), windows of N = 3 past
steps, friends' influence taken as public, target "increase". The first 80 %
of the steps train, the rest tests. Accuracy against epsilon on all training
windows, and against the sampling rate at epsilon 1. Every choice is fixed in
advance; DP-SGD's rate is chosen on the last fifth of the training windows.

Results are written after every run; a second call goes on where one stopped.
"""

import json
import os
import statistics

import keras
import numpy as np
from absl import app, flags, logging

import keras_fm as fm

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "behavior", "Name of the files.")
_RESOLUTIONS = flags.DEFINE_list("resolutions", ["daily", "weekly"], "")
_EPSILONS = flags.DEFINE_list("epsilons", ["0.1", "0.5", "1", "2", "8"], "")
_RATES = flags.DEFINE_list("rates", ["0.1", "0.25", "0.5"], "Sampling rates.")
_DRAWS = flags.DEFINE_integer("draws", 3, "Runs of the fast methods.")
_METHODS = flags.DEFINE_list("methods", None, "Default: all.")
DELTA = 1e-6
RATE_EPSILON = 1.0
EPOCHS = {"pretrain": 5, "fit": 15, "rbm": 20}
LEARNING_RATE = 1e-3
BATCH = 256
FRIENDS = 4

# name: (label, whether epsilon matters, whether one run is enough)
METHODS = {
    "da": ("dA, exact loss, no noise", False, True),
    "tda": ("TdA, truncated, no noise", False, True),
    "crbm": ("CRBM, no noise", False, True),
    "sctrbm": ("SctRBM, no noise", False, True),
    "dpah": ("dPAH, proven", True, False),
    "dpah_pure": ("dPAH, proven, delta = 0", True, False),
    "dpah_user": ("dPAH, proven, unit = user", True, False),
    "dpah_friends": (
        "dPAH, proven, unit = user, 4 friends charged",
        True,
        False,
    ),
    "one_read": ("output layer alone, proven", True, False),
    "dp_sgd": ("DP-SGD, logistic, proven", True, False),
    "fm": ("functional mechanism, logistic, proven, delta = 0", True, False),
    "fm_tight": ("the same, tight sensitivity", True, False),
    "dpme": ("DPME, proven, delta = 0", True, False),
    "filter_priority": ("Filter-Priority, proven, delta = 0", True, False),
    "dpah_published": ("dPAH, published, claimed", True, True),
    "dpah_code": ("dPAH, authors' code, claimed", True, True),
}


def load(resolution, social="public"):
    name = "health_network" + ("_weekly" if resolution == "weekly" else "")
    friends = FRIENDS if social == "friends" else None
    windows = fm.datasets.load(name).windows(social=social, max_friends=friends)
    return windows.split(0.8)


def scaled(windows):
    return (windows.x - windows.low) / (windows.high - windows.low)


def accuracy(model, test):
    # Published models normalise by the batch they predict.
    z = model.predict(test.x, batch_size=5000, verbose=0)[:, 0]
    return float(np.mean((z > 0) == test.y))


def proven(train, test, budget, hidden=(100,), guarantee="proven"):
    if hidden:
        model = fm.models.BehaviorAutoencoder.of(train, hidden=hidden)
    else:
        model = keras.Sequential(
            [
                keras.Input(train.x.shape[1:]),
                fm.layers.NormalizationLayer((train.low, train.high), "linf"),
                keras.layers.Rescaling(2.0, offset=-1.0),
                fm.layers.NormalizationLayer(),
                fm.layers.PrivateDense(1),
            ]
        )
    private = fm.callbacks.PrivateModel(
        budget,
        data=(train.x, train.y),
        guarantee=guarantee,
        notes=(train.note,),
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    model.fit(
        train.x, train.y, batch_size=20_000, callbacks=[private], verbose=0
    )
    return accuracy(model, test), private.ledger


def owned(train, test, budget):
    user = fm.Unit(
        owners=train.users,
        reach=train.reach,
        words="one user with all windows",
    )
    return proven(train, test, budget, guarantee=fm.Proven(unit=user))


def deep(train, test, epsilon, form):
    """dA, TdA and the published form: two encoders of 200 units."""
    model = fm.models.BehaviorAutoencoder.of(
        train,
        hidden=(200, 200),
        guarantee="published",
        noise_on="hidden" if form == "dpah_code" else "coefficients",
        unprotected=epsilon is None,
    )
    private, callbacks, ledger = None, [], None
    if epsilon is not None:
        private = fm.callbacks.PrivateModel(
            epsilon, data=(train.x, train.y), guarantee=model.guarantee()
        )
        callbacks, ledger = [private], private.ledger
    exact = form == "da"
    binary = keras.losses.BinaryCrossentropy(from_logits=True)
    model.pretrain(
        train.x,
        private,
        epochs=EPOCHS["pretrain"],
        batch_size=BATCH,
        optimizer=keras.optimizers.Adam(LEARNING_RATE),
        loss=binary if exact else None,
    )
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE),
        binary if exact else fm.losses.TaylorCrossEntropy(),
    )
    model.fit(
        train.x,
        train.y,
        epochs=EPOCHS["fit"],
        batch_size=BATCH,
        callbacks=callbacks,
        verbose=0,
    )
    return accuracy(model, test), ledger


def rbm(train, test, kind):
    model = kind(200, classes=2, columns=train.columns)
    model.compile(keras.optimizers.Adam(LEARNING_RATE))
    model.fit(
        scaled(train),
        train.y,
        epochs=EPOCHS["rbm"],
        batch_size=BATCH,
        verbose=0,
    )
    z = model.predict(scaled(test), batch_size=5000, verbose=0)
    return float(np.mean(z.argmax(axis=1) == test.y)), None


def dp_sgd(train, test, epsilon):
    from keras_fm.lab.compare.methods import dp_sgd as rival_grid

    def features(windows):
        x = 2 * scaled(windows) - 1
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    x, y = features(train), train.y
    cut = len(x) * 4 // 5

    def fit(config, x, y):
        config = fm.baselines.DPSGDConfig(form="fast_clipping", **config)
        rival = fm.baselines.DPSGDClassifier(
            None, config, epsilon=epsilon, delta=DELTA
        )
        return rival.fit(x, y, num_classes=2)

    # A wide grid, so that the choice is not at its end.
    grid = [
        rival_grid.config(len(x), rate)
        for rate in (1.0, 4.0, 16.0, 64.0, 256.0)
    ]
    scores = [
        fit(config, x[:cut], y[:cut]).evaluate(x[cut:], y[cut:])["accuracy"]
        for config in grid
    ]
    rival = fit(grid[int(np.argmax(scores))], x, y)
    return rival.evaluate(features(test), test.y)["accuracy"], rival.ledger


def regression(train, test, epsilon, name):
    bounds = {"low": train.low, "high": train.high, "neighbours": "add_remove"}
    if name.startswith("fm"):
        kind = "tight" if name == "fm_tight" else "published"
        model = fm.baselines.FunctionalLogisticRegression(
            epsilon, sensitivity=kind, **bounds
        )
    elif name == "dpme":
        model = fm.baselines.DPME(epsilon, **bounds)
    else:
        model = fm.baselines.FilterPriority(epsilon, **bounds)
    model.fit(train.x, train.y)
    return float(model.score(test.x, test.y)), model.ledger


def run(method, train, test, epsilon):
    """Accuracy and ledger of one training."""
    budget = None if epsilon is None else fm.PrivacyBudget(epsilon, DELTA)
    if method in ("dpah", "one_read"):
        return proven(
            train, test, budget, () if method == "one_read" else (100,)
        )
    if method == "dpah_pure":
        return proven(train, test, fm.PrivacyBudget(epsilon))
    if method in ("dpah_user", "dpah_friends"):
        return owned(train, test, budget)
    if method in ("da", "tda", "dpah_published", "dpah_code"):
        return deep(train, test, epsilon, method)
    if method == "crbm":
        return rbm(train, test, fm.baselines.ConditionalRBM)
    if method == "sctrbm":
        return rbm(train, test, fm.baselines.SocialRBM)
    if method == "dp_sgd":
        return dp_sgd(train, test, epsilon)
    return regression(train, test, epsilon, method)


def jobs(methods):
    """(method, epsilon, rate, draw) of one resolution, fast ones first."""
    for slow in (False, True):
        for method in methods:
            label, private, once = METHODS[method]
            if once is not slow:
                continue
            draws = 1 if once else _DRAWS.value
            epsilons = map(float, _EPSILONS.value) if private else (None,)
            points = [(epsilon, 1.0) for epsilon in epsilons]
            if method not in ("dpah_user", "dpah_friends"):
                points += [
                    (RATE_EPSILON if private else None, rate)
                    for rate in map(float, _RATES.value)
                ]
            for epsilon, rate in points:
                for draw in range(draws):
                    yield method, epsilon, rate, draw


def summarise(rows):
    found = {}
    for row in rows:
        key = row["resolution"], row["method"], row["epsilon"], row["rate"]
        found.setdefault(key, []).append(row)
    return {
        key: (
            statistics.fmean(r["accuracy"] for r in group),
            statistics.stdev(r["accuracy"] for r in group)
            if len(group) > 1
            else 0.0,
            group[0],
        )
        for key, group in found.items()
    }


def table(rows):
    found = summarise(rows)
    lines = []
    resolutions = sorted({key[0] for key in found})
    epsilons = sorted({key[2] for key in found if key[2]})
    for resolution in resolutions:
        lines += [
            f"**{resolution}**",
            "",
            "| | " + " | ".join(f"{e:g}" for e in epsilons) + " |",
            "|---" * (len(epsilons) + 1) + "|",
        ]
        for method, (label, private, _) in METHODS.items():
            cells = []
            for epsilon in epsilons if private else [None]:
                cell = found.get((resolution, method, epsilon, 1.0))
                cells.append(
                    f"{100 * cell[0]:.1f} ± {100 * cell[1]:.1f}"
                    if cell
                    else "-"
                )
            if any(c != "-" for c in cells):
                cells += [""] * (len(epsilons) - len(cells))
                lines.append(f"| {label} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def plot(rows, path, majority):
    from matplotlib.figure import Figure

    found = summarise(rows)
    resolutions = [
        r for r in ("daily", "weekly") if any(k[0] == r for k in found)
    ]
    figure = Figure(figsize=(18, 5.5 * len(resolutions)), layout="constrained")
    grid = figure.subplots(len(resolutions), 2, squeeze=False)
    for axes, resolution in zip(grid, resolutions):
        for panel, (x_of, fixed, title) in enumerate(
            (
                (2, (3, 1.0), "all training windows"),
                (3, (2, RATE_EPSILON), f"epsilon = {RATE_EPSILON:g}"),
            )
        ):
            ax = axes[panel]
            for index, (method, (label, private, _)) in enumerate(
                METHODS.items()
            ):
                points = sorted(
                    (key[x_of], value)
                    for key, value in found.items()
                    if key[:2] == (resolution, method)
                    and (key[fixed[0]] == fixed[1] or not private)
                    and key[x_of] is not None
                )
                color = f"C{index % 10}"
                if not private and panel == 0:
                    value = found.get((resolution, method, None, 1.0))
                    if value:
                        ax.axhline(
                            100 * value[0],
                            color=color,
                            linestyle="--",
                            linewidth=1,
                            label=label,
                        )
                    continue
                if not points:
                    continue
                claimed = points[0][1][2]["proven"] == "inf" and private
                ax.errorbar(
                    [p[0] for p in points],
                    [100 * p[1][0] for p in points],
                    yerr=[100 * p[1][1] for p in points],
                    color=color,
                    marker="x" if claimed or index >= 10 else "o",
                    linestyle=(":" if claimed else "-" if private else "--"),
                    capsize=2,
                    label=label,
                )
            ax.axhline(100 * majority[resolution], color="grey", linewidth=0.7)
            ax.set_xscale("log", base=2)
            ticks = sorted({k[x_of] for k in found if k[x_of]})
            ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
            ax.set_xlabel("epsilon" if panel == 0 else "sampling rate")
            ax.set_ylabel("test accuracy, %")
            ax.set_title(
                f"{resolution}, synthetic network, {title}; dotted = claimed"
            )
            ax.grid(alpha=0.3)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside right upper")
    figure.savefig(path, dpi=130)


def main(_):
    logging.set_verbosity(logging.ERROR)
    os.makedirs(_OUT.value, exist_ok=True)
    base = os.path.join(_OUT.value, _NAME.value)
    rows = []
    if os.path.exists(f"{base}.json"):
        with open(f"{base}.json") as f:
            rows = json.load(f)
    done = {
        (r["resolution"], r["method"], r["epsilon"], r["rate"], r["draw"])
        for r in rows
    }
    majority = {}
    methods = _METHODS.value or list(METHODS)
    for resolution in _RESOLUTIONS.value:
        train, test = load(resolution)
        majority[resolution] = max(np.mean(test.y), 1 - np.mean(test.y))
        friends = load(resolution, "friends")
        for method, epsilon, rate, draw in jobs(methods):
            if (resolution, method, epsilon, rate, draw) in done:
                continue
            keras.utils.clear_session()
            keras.utils.set_random_seed(draw)
            part, held = friends if method == "dpah_friends" else (train, test)
            if rate < 1:
                part = part.sample(rate, seed=draw)
            score, ledger = run(method, part, held, epsilon)
            rows.append(
                {
                    "resolution": resolution,
                    "method": method,
                    "epsilon": epsilon,
                    "rate": rate,
                    "draw": draw,
                    "accuracy": score,
                    "records": len(part.x),
                    "proven": str(ledger.epsilon()) if ledger else None,
                    "claimed": ledger.claimed_epsilon() if ledger else None,
                    "delta": ledger.budget.delta if ledger else None,
                    "neighbours": str(ledger.neighbours) if ledger else None,
                    "unit": ledger.unit if ledger else None,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
            with open(f"{base}.json", "w") as f:
                json.dump(rows, f, indent=1)
    with open(f"{base}_table.md", "w") as f:
        f.write(table(rows))
    plot(rows, f"{base}.png", majority)
    print(table(rows))
    print({k: round(float(v), 4) for k, v in majority.items()})


if __name__ == "__main__":
    app.run(main)
