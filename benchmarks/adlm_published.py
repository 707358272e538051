"""AdLM as published, beside ILM and DP-SGD: accuracy at claimed epsilon.

    python benchmarks/adlm_published.py
    KERAS_BACKEND=jax python benchmarks/adlm_published.py --width=1 \\
        --epochs=500 --curve_epochs=500 --learning_rate=3e-4 --name=adlm_full
    python benchmarks/adlm_published.py --dataset=cifar10 --name=adlm_cifar10

The second command is the paper's size (32 and 64 maps, 500 epochs) for a
GPU; on the JAX backend DP-SGD is left out, as tensorflow-privacy needs
TensorFlow. The default is a size for two CPU cores: a quarter of the maps
and few epochs. All 60,000 records and the paper's lots of 1,800 stay, since
the noise is divided by the lot.

Test accuracy is recorded after every epoch and nothing is chosen by it:
`final` is that of the last epoch, without noise, as the paper evaluates.
`under_noise` is the accuracy on the training batches, with noise. DP-SGD
trains the same convolutions (without the batch's normalisation, which it
cannot bound) with a rate chosen for each epsilon on the last 10,000 training
records. A run that was interrupted goes on where it stopped.
"""

import json
import os
import time

import keras
import numpy as np
from absl import app, flags

import keras_fm as fm

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "adlm_published", "Name of the files.")
_DATASET = flags.DEFINE_enum(
    "dataset", "mnist", ["mnist", "cifar10"], "Data set."
)
_WIDTH = flags.DEFINE_float("width", 0.25, "Share of the paper's maps.")
_EPOCHS = flags.DEFINE_integer("epochs", 12, "Epochs at each epsilon.")
_CURVE_EPOCHS = flags.DEFINE_integer(
    "curve_epochs", 40, "Epochs of the curves at `curve_epsilons`; 0 for none."
)
_CURVES = flags.DEFINE_list("curve_epsilons", ["0.5", "2"], "For the curves.")
_EPSILONS = flags.DEFINE_list(
    "epsilons", ["0.2", "0.25", "0.5", "1", "2", "4", "8"], "Claimed epsilons."
)
_METHODS = flags.DEFINE_list(
    "methods", ["twin", "adlm", "ilm", "dp_sgd"], "What is trained."
)
_FORMS = flags.DEFINE_list(
    "forms", ["code"], "code (the authors' code) and paper (as printed)."
)
_RATE = flags.DEFINE_float("learning_rate", 1e-3, "Adam's; 3e-4 in the code.")
_PRETRAINING = flags.DEFINE_integer("pretraining_epochs", 2, "Of the twin.")

LOT = {"mnist": 1800, "cifar10": 7200}
DELTA = 1e-5
HELD_OUT = 10_000
DP_SGD_RATES = (2.0, 8.0)
DP_SGD_STEPS = (33, 100, 200)
CLAIMS = {  # AdLM, Fig. 4 and text: claimed epsilon -> accuracy in %
    "adlm": {0.25: 90.2, 0.5: 93.66},
    "ilm": {0.25: 88.46, 0.5: 92.39},
}


def build(shape, form, adaptive, unprotected=False):
    keras.utils.set_random_seed(0)
    model = fm.models.AdaptiveLaplace(
        shape,
        10,
        guarantee="published",
        architecture=_DATASET.value,
        form=form,
        width=_WIDTH.value,
        adaptive=adaptive,
        unprotected=unprotected,
    )
    model.compile(
        keras.optimizers.Adam(_RATE.value),
        fm.losses.TaylorCrossEntropy(),
        metrics=["accuracy"],
    )
    return model


def plain_network(shape):
    """The same convolutions and dense layers, for DP-SGD."""

    def maps(count):
        return max(1, round(count * _WIDTH.value))

    def convolution(count, size, **kwargs):
        return keras.layers.Conv2D(
            maps(count), size, padding="same", activation="relu", **kwargs
        )

    pool = keras.layers.MaxPooling2D
    if _DATASET.value == "mnist":
        body = [convolution(32, 5), pool(2), convolution(64, 5), pool(2)]
        hidden = 25
    else:
        body = [
            convolution(128, 3, strides=2),
            convolution(128, 5),
            convolution(256, 5),
            keras.layers.AveragePooling2D(2),
        ]
        hidden = 30
    return keras.Sequential(
        [
            keras.Input(shape),
            *body,
            keras.layers.Flatten(),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def fit(model, train, test, epochs, callbacks=(), lot=None):
    """Test accuracy in % after every epoch, and seconds."""
    begin = time.perf_counter()
    history = model.fit(
        *train,
        batch_size=lot or LOT[_DATASET.value],
        epochs=epochs,
        callbacks=list(callbacks),
        validation_data=test,
        validation_batch_size=len(test[0]),
        verbose=0,
    ).history
    percent = [
        [round(100 * v, 2) for v in history[key]]
        for key in ("val_accuracy", "accuracy")
    ]
    return *percent, time.perf_counter() - begin


def fit_dp_sgd(x, y, epsilon, rate, steps=100):
    from keras_fm.baselines import dp_sgd

    keras.utils.set_random_seed(0)
    setting = dp_sgd.DPSGDConfig(
        learning_rate=rate, l2_norm_clip=0.1, batch_size=1800, steps=steps
    )
    return dp_sgd.DPSGDClassifier(
        plain_network(x.shape[1:]), setting, epsilon, DELTA
    ).fit(x, y)


def run_dp_sgd(train, test, epsilon):
    x, y = train
    scores = []
    for rate in DP_SGD_RATES:
        rival = fit_dp_sgd(x[:-HELD_OUT], y[:-HELD_OUT], epsilon, rate)
        held_out = rival.evaluate(x[-HELD_OUT:], y[-HELD_OUT:])
        scores.append(held_out["accuracy"])
    rate = DP_SGD_RATES[int(np.argmax(scores))]
    rival = fit_dp_sgd(x, y, epsilon, rate)
    return {
        "method": "dp_sgd",
        "epsilon": epsilon,
        "final": round(100 * rival.evaluate(*test)["accuracy"], 2),
        "learning_rate": rate,
        "claimed": None,
        "proven": rival.ledger.epsilon(),
        "delta": DELTA,
        "neighbours": str(rival.ledger.neighbours),
        "seconds": round(rival.report()["seconds"], 1),
    }


def run_dp_sgd_points(train, test, epsilon, rate):
    """DP-SGD stopped after fewer and more epochs, each calibrated anew."""
    for steps in DP_SGD_STEPS:
        rival = fit_dp_sgd(*train, epsilon, rate, steps)
        yield {
            "method": "dp_sgd",
            "epsilon": epsilon,
            "epochs": round(steps * 1800 / len(train[0]), 2),
            "final": round(100 * rival.evaluate(*test)["accuracy"], 2),
            "learning_rate": rate,
            "proven": rival.ledger.epsilon(),
            "seconds": round(rival.report()["seconds"], 1),
            "is_curve": True,
        }


def run_published(train, test, form, method, epsilon, epochs, twin):
    model = build(train[0].shape[1:], form, adaptive=method == "adlm")
    if method == "adlm":
        model.get_layer("perturbed").relevance_of(twin)
    private = fm.callbacks.PrivateModel(
        epsilon,
        data=train,
        guarantee=model.guarantee(lot=LOT[_DATASET.value]),
    )
    curve, training, seconds = fit(model, train, test, epochs, [private])
    return {
        "method": method,
        "form": form,
        "epsilon": epsilon,
        "epochs": epochs,
        "final": curve[-1],
        "curve": curve,
        "under_noise": training[-1],
        "curve_under_noise": training,
        "claimed": private.ledger.claimed_epsilon(),
        "proven": str(private.ledger.epsilon()),
        "neighbours": str(private.ledger.neighbours),
        "seconds": round(seconds, 1),
    }, private


def finished(path, settings):
    """Rows of an interrupted run with the same settings."""
    if not os.path.exists(path):
        return []
    with open(path) as f:
        found = json.load(f)
    return found["rows"] if found["settings"] == settings else []


def plot(rows, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = {"adlm": "AdLM", "ilm": "ILM", "dp_sgd": "DP-SGD (proven)"}
    keys = sorted({(r["method"], r.get("form", "")) for r in rows})
    for index, (method, form) in enumerate(keys):
        if method == "twin":
            continue
        points = sorted(
            (r["epsilon"], r["final"])
            for r in rows
            if (r["method"], r.get("form", "")) == (method, form)
            and not r.get("is_curve")
        )
        label = f"{names[method]} {form and f'({form}, claimed)'}"
        style = "-o" if method == "dp_sgd" else ":x"
        if points:
            left.plot(*zip(*points), style, color=f"C{index}", label=label)
        for r in rows:
            is_own = (r["method"], r.get("form", "")) == (method, form)
            if is_own and r.get("is_curve") and "curve" in r:
                right.plot(
                    range(1, len(r["curve"]) + 1),
                    r["curve"],
                    color=f"C{index}",
                    linestyle="-" if r["epsilon"] < 1 else "--",
                    label=f"{names[method]} ({form}) at {r['epsilon']:g}",
                )
    for epsilon in sorted({r["epsilon"] or 0 for r in rows}):
        points = sorted(
            (r["epochs"], r["final"])
            for r in rows
            if r["method"] == "dp_sgd"
            and r["epsilon"] == epsilon
            and r.get("is_curve")
        )
        if points:
            right.plot(
                *zip(*points),
                "-o" if epsilon < 1 else "--o",
                color="black",
                label=f"DP-SGD (proven) at {epsilon:g}",
            )
    if _DATASET.value == "mnist":
        for method, marker in (("adlm", "*"), ("ilm", "^")):
            left.plot(
                *zip(*CLAIMS[method].items()),
                marker,
                color="gray",
                label=f"{names[method]}, the paper's figure",
            )
    ticks = sorted({r["epsilon"] for r in rows if r["epsilon"]})
    left.set_xscale("log", base=2)
    left.set_xticks(ticks, [f"{t:g}" for t in ticks])
    left.set_xlabel("epsilon (claimed for AdLM and ILM)")
    right.set_xlabel("epoch")
    for axes in (left, right):
        axes.set_ylabel("test accuracy, %")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def main(_):
    train, test = fm.datasets.load(_DATASET.value)
    twins = {}
    base = os.path.join(_OUT.value, _NAME.value)
    os.makedirs(_OUT.value, exist_ok=True)

    settings = {
        "dataset": _DATASET.value,
        "width": _WIDTH.value,
        "lot": LOT[_DATASET.value],
        "epochs": _EPOCHS.value,
        "learning_rate": _RATE.value,
        "pretraining_epochs": _PRETRAINING.value,
        "backend": keras.backend.backend(),
    }
    rows = finished(f"{base}.json", settings)

    def is_done(method, form, epsilon, epochs):
        wanted = (method, form, epsilon, epochs)
        return any(
            (r["method"], r.get("form"), r["epsilon"], r.get("epochs"))
            == wanted
            for r in rows
        )

    def record(row):
        rows.append(row)
        print(json.dumps(row), flush=True)
        with open(f"{base}.json", "w") as f:
            json.dump({"settings": settings, "rows": rows}, f, indent=1)

    methods = set(_METHODS.value)
    if keras.backend.backend() != "tensorflow":
        methods.discard("dp_sgd")
    published = [m for m in ("adlm", "ilm") if m in methods]
    for form in _FORMS.value:
        if published or "twin" in methods:
            twin = build(
                train[0].shape[1:], form, adaptive=True, unprotected=True
            )
            curve, _, seconds = fit(
                twin, train, test, _PRETRAINING.value, lot=600
            )
            twins[form] = twin
            if is_done("twin", form, None, _PRETRAINING.value):
                continue
            record(
                {
                    "method": "twin",
                    "form": form,
                    "epsilon": None,
                    "epochs": _PRETRAINING.value,
                    "final": curve[-1],
                    "curve": curve,
                    "seconds": round(seconds, 1),
                }
            )
    jobs = [(float(e), _EPOCHS.value, False) for e in _EPSILONS.value]
    if _CURVE_EPOCHS.value:
        jobs += [(float(e), _CURVE_EPOCHS.value, True) for e in _CURVES.value]
    for epsilon, epochs, is_curve in jobs:
        for form in _FORMS.value:
            for method in published:
                if is_done(method, form, epsilon, epochs):
                    continue
                row, private = run_published(
                    train, test, form, method, epsilon, epochs, twins[form]
                )
                record({**row, "is_curve": is_curve})
                if method == "adlm" and is_curve and form == "code":
                    shape = train[0].shape[1:]
                    fm.relevance.plot(
                        private.relevance.reshape(shape),
                        f"{base}_relevance_{epsilon:g}.png",
                        title=f"noisy relevance, claimed epsilon {epsilon:g}",
                    )
        if (
            "dp_sgd" in methods
            and not is_curve
            and not is_done("dp_sgd", None, epsilon, None)
        ):
            record(run_dp_sgd(train, test, epsilon))
    if "dp_sgd" in methods and _CURVE_EPOCHS.value:
        for epsilon in map(float, _CURVES.value):
            known = [
                r
                for r in rows
                if (r["method"], r["epsilon"]) == ("dp_sgd", epsilon)
            ]
            if known and not any(r.get("is_curve") for r in known):
                rate = known[0]["learning_rate"]
                for row in run_dp_sgd_points(train, test, epsilon, rate):
                    record(row)
    plot(rows, f"{base}.png")


if __name__ == "__main__":
    app.run(main)
