"""GradientNet beside tensorflow-privacy's DP-SGD: the same mechanism.

    python benchmarks/gradient_net.py                  # digits, 64-64-10
    python benchmarks/gradient_net.py --data=mnist     # 784-300-10
    python benchmarks/gradient_net.py --data=mnist_cnn # small_cnn
    python benchmarks/gradient_net.py --data=mnist_mobile # separable
    python benchmarks/gradient_net.py --way=decay      # of the rate

The same network from the same start, the same Poisson sampling, budget, steps,
clip, rate and momentum, which were chosen for DP-SGD; every draw has noise,
samples and a start of its own. `--way=average` ends with the average of the
weights over the last steps, `--way=decay` lowers the rate linearly to a
twentieth, of both. Milliseconds of a step are processor time, all cores
together: the slope between a short and a long training, tracing excluded, of a
plain Keras step on as many rows too; all in one process, in turns.
"""

import json
import os
import statistics
import time

from absl import app, flags

_DATA = flags.DEFINE_enum(
    "data",
    "digits",
    ["digits", "mnist", "mnist_cnn", "mnist_mobile"],
    "Records and network.",
)
_WAY = flags.DEFINE_enum(
    "way", "constant", ["constant", "average", "decay"], "Of the weights."
)
_DRAWS = flags.DEFINE_integer("draws", 5, "Trainings of each method.")
_TIMES = flags.DEFINE_integer("times", 3, "Slopes for a median.")
_RIVAL = flags.DEFINE_bool(
    "rival", True, "tensorflow-privacy as well; without, one thread."
)
_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
# Epsilon, rate, steps. Of digits: `keras-fm compare`'s choice for
# `dp_sgd_fast`.
_CHOICES = {
    "digits": ((0.5, 1.0, 100), (2.0, 1.0, 400), (8.0, 16.0, 400)),
    "mnist": ((2.0, 2.0, 200),),
    "mnist_cnn": ((2.0, 2.0, 100),),
    "mnist_mobile": ((2.0, 2.0, 100),),
}
_BATCH = {"digits": 359, "mnist": 2048, "mnist_cnn": 512, "mnist_mobile": 256}
_IMAGES = ("mnist_cnn", "mnist_mobile")
_CLIP, _MOMENTUM, _EPOCH, _DELTA = 0.1, 0.9, 20, 1e-5
# What an average keeps at a step, and of the rate what is left at the end.
# Chosen on held-out training records of digits: of 0.9, 0.95 and 0.98; not.
_AVERAGE, _LEFT = 0.95, 0.05
# Epochs of a long training.
_LONG = 8


def network(shape):
    """The network, with weights to begin with."""
    import keras

    from keras_fm.baselines import dp_sgd

    if _DATA.value == "mnist_cnn":
        return dp_sgd.small_cnn(shape, 10)
    if _DATA.value == "mnist_mobile":
        relu = {"activation": "relu"}
        wide = {"padding": "same", **relu}
        return keras.Sequential(
            [
                keras.Input(shape),
                keras.layers.Conv2D(8, 3, strides=2, **relu),
                keras.layers.SeparableConv2D(16, 3, **wide),
                keras.layers.SeparableConv2D(32, 3, strides=2, **wide),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(10),
            ]
        )
    hidden = [keras.layers.Dense(300, activation="relu")]
    if _DATA.value == "digits":
        # `keras-fm compare`'s.
        hidden = [
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.UnitNormalization(),
        ]
    return keras.Sequential(
        [keras.Input(shape), *hidden, keras.layers.Dense(10)]
    )


def ours(x, y, epsilon, rate, steps):
    """Trains; the model."""
    import keras

    import keras_fm as fm

    model = fm.models.GradientNet(x.shape[1:], network(x.shape[1:]), clip=_CLIP)
    rates = rate
    if _WAY.value == "decay":
        rates = keras.optimizers.schedules.PolynomialDecay(
            rate, steps, _LEFT * rate
        )
    model.compile(
        keras.optimizers.SGD(
            rates,
            momentum=_MOMENTUM,
            use_ema=_WAY.value == "average",
            ema_momentum=_AVERAGE,
        )
    )
    batches = fm.datasets.PoissonBatches(
        x, y, batch_size=_BATCH[_DATA.value], steps_per_epoch=_EPOCH
    )
    private = fm.callbacks.PrivateModel(fm.PrivacyBudget(epsilon, _DELTA))
    epochs = steps // _EPOCH
    model.fit(batches, epochs=epochs, callbacks=[private], verbose=0)
    assert private.ledger.epsilon() <= epsilon * (1 + 1e-9)
    return model


def theirs(x, y, epsilon, rate, steps):
    """Trains; the classifier."""
    from keras_fm.baselines import dp_sgd

    config = dp_sgd.DPSGDConfig(
        learning_rate=rate,
        l2_norm_clip=_CLIP,
        batch_size=_BATCH[_DATA.value],
        steps=steps,
        momentum=_MOMENTUM,
        decay=_LEFT if _WAY.value == "decay" else 1,
        average=_AVERAGE if _WAY.value == "average" else 0,
    )
    made = dp_sgd.DPSGDClassifier(network(x.shape[1:]), config, epsilon, _DELTA)
    return made.fit(x, y)


def plain(x, y, rate):
    """A function of a number of steps: trains without privacy on rows as
    many as a Poisson sample has, padding included."""
    import keras

    import keras_fm as fm

    model = network(x.shape[1:])
    model.compile(
        keras.optimizers.SGD(rate, momentum=_MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batches = fm.datasets.PoissonBatches(
        x, y, batch_size=_BATCH[_DATA.value], steps_per_epoch=_EPOCH
    )
    return lambda steps: model.fit(batches, epochs=steps // _EPOCH, verbose=0)


def milliseconds(x, y):
    """Processor milliseconds of a step, by method: medians."""
    epsilon, rate, _ = _CHOICES[_DATA.value][0]
    model = ours(x, y, epsilon, rate, _EPOCH)
    twin = type(model).from_config({**model.get_config(), "unprotected": True})
    twin.compile("sgd")
    batch = _BATCH[_DATA.value]
    twin.perturb(1.0, batch, 10**7)
    import keras_fm as fm

    batches = fm.datasets.PoissonBatches(
        x, y, batch_size=batch, steps_per_epoch=_EPOCH
    )
    methods = {
        "plain Keras": plain(x, y, 0.01),
        "GradientNet": lambda steps: twin.fit(
            batches, epochs=steps // _EPOCH, verbose=0
        ),
        "tensorflow-privacy": lambda steps: theirs(x, y, epsilon, rate, steps),
    }
    if not _RIVAL.value:
        del methods["tensorflow-privacy"]
    found = {name: [] for name in methods}
    for turn in range(_TIMES.value + 1):
        for name, train in methods.items():
            seconds = []
            for steps in (_EPOCH, _LONG * _EPOCH):
                start = time.process_time()
                train(steps)
                seconds.append(time.process_time() - start)
            if turn:
                slope = (seconds[1] - seconds[0]) / ((_LONG - 1) * _EPOCH)
                found[name].append(1e3 * slope)
    return {k: round(statistics.median(v), 2) for k, v in found.items()}


def main(_):
    import keras
    import numpy as np

    import keras_fm as fm

    if not _RIVAL.value:
        import tensorflow as tf

        # Threads that wait for others' work would count as time.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)

    os.makedirs(_OUT.value, exist_ok=True)
    data = "mnist" if _DATA.value.startswith("mnist") else "digits"
    (x, y), (x_test, y_test) = fm.datasets.load(data)
    if _DATA.value not in _IMAGES:
        x, x_test = (v.reshape(len(v), -1) for v in (x, x_test))
    rows = []
    for epsilon, rate, steps in _CHOICES[_DATA.value]:
        for name, train in (("GradientNet", ours), ("DP-SGD", theirs)):
            if not _DRAWS.value or (train is theirs and not _RIVAL.value):
                continue
            found = []
            for draw in range(_DRAWS.value):
                keras.utils.set_random_seed(draw)
                outputs = train(x, y, epsilon, rate, steps).predict(x_test)
                if outputs.ndim > 1:
                    outputs = outputs.argmax(axis=1)
                found.append(100 * float(np.mean(outputs == y_test)))
            rows.append(
                {
                    "epsilon": epsilon,
                    "method": name,
                    "rate": rate,
                    "steps": steps,
                    "accuracy": round(statistics.mean(found), 2),
                    "deviation": round(statistics.pstdev(found), 2),
                    "draws": [round(v, 2) for v in found],
                }
            )
            print(rows[-1], flush=True)
    told = {"rows": rows}
    if _TIMES.value:
        told["milliseconds"] = milliseconds(x, y)
        print(told["milliseconds"], flush=True)
    name = f"gradient_net_{_DATA.value}"
    if _WAY.value != "constant":
        name += f"_{_WAY.value}"
    if not _RIVAL.value:
        name += "_alone"
    with open(os.path.join(_OUT.value, f"{name}.json"), "w") as f:
        json.dump(told, f, indent=1)


if __name__ == "__main__":
    app.run(main)
