"""FunctionalNet against epsilon: layers 1 to 3, rounds 1 to 10, and DP-SGD.

    KERAS_FM_DATA=... python benchmarks/functional_net.py

digits (scikit-learn, 1,437 / 360 images) and MNIST, add_remove, delta = 1e-5
(the published form: delta = 0, replace_one, claimed). Records are centred and
brought to norm 8, one by one; hidden layers of 32 (digits) or 64 units. Forms:

* `proven`: defaults of the model, tanh;
* `published`: as in the paper (sigmoid, diagonal curvature, full steps, no
  momentum, Theorem 6, Laplace noise), epsilon claimed;
* `published_steps`: the same noise, steps of the proven form;
* `no_noise`: the proven form at epsilon = 10^6;
* `dp_sgd`: the same network by tensorflow-privacy, its learning rate chosen
  for each budget on the last fifth of the training part, not charged.

Settings of the proven form were chosen on digits and on 10,000 held-out
training images of MNIST without noise. Results are written after every run; a
second call goes on.
"""

import statistics
import time

import keras
import numpy as np
from absl import app, flags, logging
from results_file import ResultsFile

import keras_fm as fm
from keras_fm.baselines import dp_sgd

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_NAME = flags.DEFINE_string("name", "functional_net", "Name of the files.")
_DATA = flags.DEFINE_list("data", ["digits", "mnist"], "")
_FORMS = flags.DEFINE_list(
    "forms",
    ["proven", "published", "published_steps", "no_noise", "dp_sgd"],
    "",
)
_LAYERS = flags.DEFINE_list("layers", ["1", "2", "3"], "")
_ROUNDS = flags.DEFINE_list("rounds", ["1", "3", "10"], "")
_EPSILONS = flags.DEFINE_list("epsilons", ["0.5", "2", "8"], "")
_DRAWS = flags.DEFINE_integer("draws", 1, "Runs of each.")
_DELTA = flags.DEFINE_float("delta", 1e-5, "0 for pure epsilon (proven).")
NORM = 8.0
UNITS = {"digits": 32, "mnist": 64}
RATES = (0.25, 1.0, 4.0, 16.0)


def below():
    """Every record centred and of one norm: public maps of one record."""
    return [
        keras.layers.LayerNormalization(center=False, scale=False),
        fm.layers.NormalizationLayer(),
        keras.layers.Rescaling(NORM),
    ]


def layers(data, depth, activation):
    hidden = [
        keras.layers.Dense(UNITS[data], activation=activation)
        for _ in range(depth - 1)
    ]
    # One class of ten: what the output layer would learn first.
    rare = keras.initializers.Constant(-np.log(9))
    return [*hidden, keras.layers.Dense(10, bias_initializer=rare)]


def functional(form, data, train, depth, rounds, epsilon):
    """A trained FunctionalNet and its ledger."""
    paper = {"curvature": "diagonal", "step_size": 1.0, "momentum": 0.0}
    model = fm.models.FunctionalNet(
        train[0].shape[1:],
        layers(data, depth, "sigmoid" if form == "published" else "tanh"),
        rounds=rounds,
        below=below(),
        **(paper if form == "published" else {}),
    )
    if form.startswith("published"):
        private = fm.callbacks.PrivateModel(
            epsilon, data=train, guarantee=fm.Published(lot="data")
        )
    else:
        private = fm.callbacks.PrivateModel(
            fm.PrivacyBudget(epsilon or 1e6, _DELTA.value), data=train
        )
    model.compile("sgd")
    model.fit(
        *train,
        batch_size=len(train[0]),
        steps_per_epoch=1,
        callbacks=[private],
        verbose=0,
    )
    return model, private.ledger if epsilon else None


def rival(data, train, depth, epsilon):
    """DP-SGD of the best learning rate, and its ledger.

    It has the same public maps: `train` is what they make of the records.
    """
    x, y = train
    cut = len(x) * 4 // 5

    def fit(rate, x, y):
        inputs = keras.Input(x.shape[1:])
        model = keras.Sequential([inputs, *layers(data, depth, "tanh")])
        config = dp_sgd.DPSGDConfig(
            learning_rate=rate,
            l2_norm_clip=0.1,
            batch_size=min(2048, len(x) // 4),
            steps=200,
        )
        fitted = dp_sgd.DPSGDClassifier(
            model, config, epsilon=epsilon, delta=_DELTA.value
        )
        return fitted.fit(x, y)

    scores = [
        fit(rate, x[:cut], y[:cut]).evaluate(x[cut:], y[cut:])["accuracy"]
        for rate in RATES
    ]
    rate = RATES[int(np.argmax(scores))]
    fitted = fit(rate, x, y)
    return fitted, fitted.ledger, rate


def jobs():
    """(data, form, layers, rounds, epsilon, draw); rounds 0 for DP-SGD."""
    for data in _DATA.value:
        for draw in range(_DRAWS.value):
            for form in _FORMS.value:
                budgets = map(float, _EPSILONS.value)
                for epsilon in (None,) if form == "no_noise" else budgets:
                    for depth in map(int, _LAYERS.value):
                        for rounds in map(int, _ROUNDS.value):
                            if form == "dp_sgd":
                                rounds = 0
                            yield data, form, depth, rounds, epsilon, draw


def load(data):
    train, test = fm.datasets.load(data)
    return tuple(
        (x.reshape(len(x), -1).astype("float32"), y) for x, y in (train, test)
    )


def main(_):
    logging.set_verbosity(logging.ERROR)
    file = ResultsFile(
        _OUT.value,
        _NAME.value,
        ("data", "form", "layers", "rounds", "epsilon", "draw"),
    )
    loaded = {data: load(data) for data in _DATA.value}
    for job in jobs():
        if file.has(*job):
            continue
        data, form, depth, rounds, epsilon, draw = job
        train, (x, y) = loaded[data]
        keras.utils.clear_session()
        keras.utils.set_random_seed(draw)
        start, more = time.process_time(), {}
        if form == "dp_sgd":
            mapped = keras.Sequential([keras.Input(x.shape[1:]), *below()])
            train = mapped.predict(train[0], verbose=0), train[1]
            model, ledger, rate = rival(data, train, depth, epsilon)
            more["learning_rate"] = rate
            z = model.predict(mapped.predict(x, verbose=0))
        else:
            model, ledger = functional(
                form, data, train, depth, rounds, epsilon
            )
            z = model.predict(x, batch_size=2000, verbose=0)
        file.add(
            job,
            ledger,
            accuracy=float(np.mean(z.argmax(axis=1) == y)),
            cpu_seconds=round(time.process_time() - start, 1),
            **more,
        )
    file.finish(table(file.rows))


def table(rows):
    """Accuracies in %, one table for each data set."""
    found = []
    for data in _DATA.value:
        own = [r for r in rows if r["data"] == data]
        epsilons = sorted({r["epsilon"] for r in own if r["epsilon"]})
        found.append(f"| {data} | " + " | ".join(map(str, epsilons)) + " |")
        found.append("|---" * (len(epsilons) + 1) + "|")
        for form, depth, rounds in dict.fromkeys(
            (r["form"], r["layers"], r["rounds"]) for r in own
        ):
            cells = []
            for epsilon in epsilons:
                values = [
                    100 * r["accuracy"]
                    for r in own
                    if (r["form"], r["layers"], r["rounds"])
                    == (form, depth, rounds)
                    and r["epsilon"] in (epsilon, None)
                ]
                cells.append(
                    f"{statistics.fmean(values):.1f}" if values else "-"
                )
            name = f"{form}, {depth} layer(s)"
            name += f", {rounds} round(s)" if rounds else ""
            found.append(f"| {name} | " + " | ".join(cells) + " |")
        found.append("")
    return "\n".join(found)


if __name__ == "__main__":
    app.run(main)
