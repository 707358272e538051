"""The small CNN by DP-SGD, its settings chosen on held-out training records.

    python benchmarks/dp_sgd_cnn.py --data=usps --epsilons=0.5,2,8 \
        --rates=0.5,2,8 --steps=100,300 --networks=fine --decays=1,0.1
    python benchmarks/dp_sgd_cnn.py --data=usps --epsilons=0.5 --test

Without `--test` it trains by GradientNet, which is DP-SGD and cheap, on the
first four fifths of the training records for every combination of the
settings, and puts the accuracy on the last fifth into `cnn.json`. A best rate
at an end of those tried for the same other settings is followed by the next
one, a factor of 4 further, until the best is inside. With `--test` it takes the
best row there for each epsilon, trains with its settings on all training
records and measures on the test records: by GradientNet, or by a rival with
`--library`. What the choice costs in privacy is charged to nobody.
"""

import itertools
import statistics
import time

from absl import app, flags
from results_file import ResultsFile

_DATA = flags.DEFINE_string("data", "usps", "Images.")
_EPSILONS = flags.DEFINE_list("epsilons", ["2"], "Budgets.")
_RATES = flags.DEFINE_list("rates", ["2", "8"], "Learning rates.")
_STEPS = flags.DEFINE_list("steps", ["300"], "Numbers of steps.")
_BATCHES = flags.DEFINE_list("batches", ["0"], "Records; 0: a fourth, or 2048.")
_CLIP = flags.DEFINE_float("clip", 0.1, "Of a record's gradient.")
_ACTIVATIONS = flags.DEFINE_list("activations", ["tanh"], "Of the network.")
_NETWORKS = flags.DEFINE_list("networks", ["small"], "small, or fine (3 x 3).")
_VIEWS = flags.DEFINE_list("views", ["1"], "Shifted, flipped copies.")
_AVERAGES = flags.DEFINE_list("averages", ["0"], "Of the weights; 0: none.")
_DECAYS = flags.DEFINE_list("decays", ["1"], "What is left of the rate.")
_DRAWS = flags.DEFINE_integer("draws", 1, "Trainings of each setting.")
_TEST = flags.DEFINE_bool("test", False, "The best row, on test records.")
_LIBRARY = flags.DEFINE_enum(
    "library",
    "GradientNet",
    ["GradientNet", "jax-privacy", "tensorflow-privacy"],
    "Who trains on all records.",
)
_OUT = flags.DEFINE_string(
    "out", "docs/results/side_by_side", "Folder of `cnn.json`, added to."
)
_DELTA, _MOMENTUM = 1e-5, 0.9
_SETTINGS = (
    "network",
    "activation",
    "batch",
    "steps",
    "views",
    "average",
    "decay",
    "clip",
)
_KEYS = ("data", "on", "library", "epsilon", "rate", *_SETTINGS)


def network(kind, activation, shape):
    """A small CNN with weights to begin with."""
    import keras

    from keras_fm.lab.baselines import dp_sgd

    layers = keras.layers
    if kind == "small":
        made = dp_sgd.small_cnn(shape, 10)
        if activation != "tanh":
            told = made.get_config()
            for layer in told["layers"]:
                if layer["config"].get("activation") == "tanh":
                    layer["config"]["activation"] = activation
            made = keras.Sequential.from_config(told)
        return made
    convolution = {"padding": "same", "activation": activation}
    body = [
        layers.Conv2D(16, 3, **convolution),
        layers.AveragePooling2D(2),
        layers.Conv2D(32, 3, **convolution),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(32, activation=activation),
    ]
    return keras.Sequential([keras.Input(shape), *body, layers.Dense(10)])


def view(image, rng):
    """A shift by up to a tenth of the side; a photograph also mirrored."""
    most = max(1, image.shape[0] // 10)
    down, right = (int(v) for v in rng.integers(-most, most + 1, 2))
    height, width = image.shape[:2]
    if image.shape[2] == 3 and rng.random() < 0.5:
        image = image[:, ::-1]
    made = image.copy() if image.shape[2] == 3 else 0 * image
    made[max(0, down) : height + down, max(0, right) : width + right] = image[
        max(0, -down) : height - down, max(0, -right) : width - right
    ]
    return made


def ours(x, y, epsilon, rate, told):
    """Trains by GradientNet; a function from images to classes, and the
    ledger."""
    import keras

    import keras_fm as fm

    if told["views"] > 1:
        raise flags.UsageError("GradientNet here takes no `--views`.")
    shape, steps = x.shape[1:], told["steps"]
    model = fm.models.GradientNet(
        shape,
        network(told["network"], told["activation"], shape),
        clip=told["clip"],
    )
    rates = rate
    if told["decay"] < 1:
        rates = keras.optimizers.schedules.PolynomialDecay(
            rate, steps, told["decay"] * rate
        )
    average = {}
    if told["average"]:
        average = {"use_ema": True, "ema_momentum": told["average"]}
    model.compile(
        keras.optimizers.SGD(rates, momentum=_MOMENTUM, **average),
    )
    private = fm.callbacks.PrivateModel(epsilon=epsilon, delta=_DELTA)
    model.fit(
        x,
        y,
        batch_size=told["batch"],
        steps_per_epoch=steps,
        callbacks=[private],
        verbose=0,
    )
    return (
        lambda images: model.predict(images, verbose=0).argmax(axis=1),
        private.ledger,
    )


def theirs(x, y, epsilon, rate, told):
    """Trains by a library; the same."""
    from keras_fm import baselines

    config = baselines.DPSGDConfig(
        learning_rate=rate,
        l2_norm_clip=told["clip"],
        batch_size=told["batch"],
        steps=told["steps"],
        momentum=_MOMENTUM,
        decay=told["decay"],
        average=told["average"],
        views=told["views"],
    )
    kind = baselines.JaxDPSGDClassifier
    if _LIBRARY.value == "tensorflow-privacy":
        kind = baselines.DPSGDClassifier
    augment = {"augment": view} if told["views"] > 1 else {}
    model = network(told["network"], told["activation"], x.shape[1:])
    made = kind(model, config, epsilon, _DELTA, **augment).fit(x, y)
    return lambda images: made.predict(images).argmax(axis=1), made.ledger


def measured(rows, epsilon, rate, told, train, test):
    """The accuracy, once it is a row."""
    import keras
    import numpy as np

    fit = ours if _LIBRARY.value == "GradientNet" else theirs
    found, seconds = [], time.process_time()
    for draw in range(_DRAWS.value):
        keras.utils.set_random_seed(draw)
        predict, ledger = fit(*train, epsilon, rate, told)
        found.append(100 * float(np.mean(predict(test[0]) == test[1])))
        keras.backend.clear_session()
    on = "test" if _TEST.value else "held out"
    key = (_DATA.value, on, _LIBRARY.value, epsilon, rate, *told.values())
    rows.add(
        key,
        ledger,
        accuracy=round(statistics.mean(found), 2),
        deviation=round(statistics.stdev(found), 2) if len(found) > 1 else 0.0,
        draws=[round(v, 2) for v in found],
        cpu_seconds=round((time.process_time() - seconds) / _DRAWS.value),
    )
    return statistics.mean(found)


def search(rows, train, test):
    """Every combination; the rates of each until the best is inside."""
    from keras_fm.lab.engine import rival

    most = 2048 if len(train[0]) > 8192 else len(train[0]) // 4
    for epsilon, *combination in itertools.product(
        map(float, _EPSILONS.value),
        _NETWORKS.value,
        _ACTIVATIONS.value,
        [int(v) or most for v in _BATCHES.value],
        map(int, _STEPS.value),
        map(int, _VIEWS.value),
        map(float, _AVERAGES.value),
        map(float, _DECAYS.value),
    ):
        told = dict(zip(_SETTINGS, [*combination, _CLIP.value], strict=True))
        same = {"data": _DATA.value, "on": "held out", "epsilon": epsilon}
        scores = {
            row["rate"]: row["accuracy"]
            for row in rows.rows
            if {**told, **same}.items() <= row.items()
        }

        def score(rate, steps, epsilon=epsilon, told=told, scores=scores):
            if rate not in scores:
                scores[rate] = measured(rows, epsilon, rate, told, train, test)
            return scores[rate]

        rates = sorted(map(float, _RATES.value))
        rival.search(score, rates, [told["steps"]])


def chosen(rows, epsilon):
    """Rate and settings of the best row of held-out records."""
    found = [
        row
        for row in rows.rows
        if (row["data"], row["on"], row["epsilon"])
        == (_DATA.value, "held out", epsilon)
    ]
    best = max(found, key=lambda row: row["accuracy"])
    return best["rate"], {k: best[k] for k in _SETTINGS}


def main(_):
    import keras_fm as fm

    rows = ResultsFile(_OUT.value, "cnn", _KEYS)
    train, test = fm.datasets.load(_DATA.value)
    train, test = ((x.astype("float32"), y) for x, y in (train, test))
    if _TEST.value:
        for epsilon in map(float, _EPSILONS.value):
            measured(rows, epsilon, *chosen(rows, epsilon), train, test)
        return
    cut = len(train[0]) * 4 // 5
    parts = [[part[:cut] for part in train], [part[cut:] for part in train]]
    search(rows, *parts)


if __name__ == "__main__":
    app.run(main)
