"""FunctionalNet: its composition survey, its sensitivity, its training."""

import math

import keras
import numpy as np

from keras_fm import composition
from keras_fm.callbacks import PrivateModel
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.lab.reproduce import facts, sources, training
from keras_fm.lab.reproduce.experiment import (
    ACCURACY,
    EPSILON,
    Axis,
    Experiment,
    Measured,
    Series,
)
from keras_fm.layers import NormalizationLayer
from keras_fm.models import FunctionalNet
from keras_fm.papers.functional_net import claims
from keras_fm.parts.guarantee import Published

_DELTA = 1e-5
_NORM = 8.0
_RATES = (0.25, 1.0, 4.0, 16.0)

# Composition ---------------------------------------------------------------

_COMPOSITION = facts.select("functional_net", metric="epsilon")
# Row of the printed example: the formula, and the theorem that is a bound.
_ROWS = {
    "basic": ("survey_basic", "basic"),
    "advanced": ("survey_advanced", "advanced"),
    "sampling": ("survey_sampling", "sampled_advanced"),
    "accountant": ("moments", "moments"),
}


def _composition(job, context):
    del context
    curve = []
    for fact in _COMPOSITION:
        setting = fact.setting
        # The first two rows of the example know nothing of the sampling.
        sampled = fact.system in ("sampling", "accountant")
        plan = composition.Plan(
            [
                composition.Stage(
                    mechanism="gaussian",
                    noise_multiplier=setting["noise_multiplier"],
                    sampling_rate=setting["sampling_rate"] if sampled else 1.0,
                    count=setting["count"],
                )
            ]
        )
        printed, theorem = _ROWS[fact.system]
        method = {"printed": printed, "theorem": theorem, "pld": "pld"}[
            job.series
        ]
        # The formulas take the delta of one step, a bound the total.
        delta = setting["step_delta"] if job.series == "printed" else fact.delta
        [row] = composition.compose(plan, delta, [method])
        curve.append(
            (f"{fact.system} (delta {fact.delta:g})", float(row.epsilon))
        )
    return Measured(curve=tuple(curve))


# Theorem 6 -----------------------------------------------------------------

_SENSITIVITY = facts.select("functional_net", metric="sensitivity")


def _distance(weights, x, y):
    """L1 distance of the coefficients of two records: gradient and diagonal
    curvature of the squared error of sigmoid units."""
    outputs, z = [x], x
    for w in weights:
        z = 1 / (1 + np.exp(-z @ w))
        outputs.append(z)
    slope = z * (1 - z)
    bend = slope * (1 - 2 * z)
    delta = (z - y) * slope
    curved = slope**2 + (z - y) * bend
    total = 0.0
    for index in reversed(range(len(weights))):
        z = outputs[index]
        for left, right in ((z, delta), (z**2, curved)):
            both = left[:, :, None] * right[:, None, :]
            total += np.abs(both[0] - both[1]).sum()
        if index:
            w, slope = weights[index], z * (1 - z)
            bend = slope * (1 - 2 * z)
            back = delta @ w.T
            curved = slope**2 * (curved @ (w**2).T) + bend * back
            delta = slope * back
    return total


def _reached(sizes, seed, steps):
    """The largest distance that a climb of `steps` steps finds: two records
    and weights in [0, 1]."""
    inputs, *units = sizes
    rng = np.random.default_rng(seed)
    shapes = list(zip(sizes[:-1], sizes[1:]))
    cuts = np.cumsum([a * b for a, b in shapes] + [2 * inputs])

    def distance(point):
        *weights, x, y = np.split(point, cuts)
        weights = [w.reshape(s) for w, s in zip(weights, shapes)]
        return _distance(weights, x.reshape(2, inputs), y.reshape(2, units[-1]))

    point = rng.random(cuts[-1] + 2 * units[-1])
    # Equal inputs of ones, opposite targets: a good place to begin.
    point[cuts[-2] : cuts[-1]] = 1.0
    point[cuts[-1] :] = np.repeat([0.0, 1.0], units[-1])
    best, width = distance(point), 0.5
    for _ in range(steps):
        moved = rng.random(point.size) < 0.15
        shift = width * rng.standard_normal(point.size)
        trial = np.where(moved, point + shift, point).clip(0, 1)
        if (other := distance(trial)) > best:
            point, best = trial, other
        width = max(0.03, width * 0.998)
    return best


def _sensitivity(job, context):
    curve = []
    for fact in _SENSITIVITY:
        sizes = fact.setting["sizes"]
        if job.series == "printed":
            value = claims.network_expansion_sensitivity(
                sizes[1:], neighbours="replace_one"
            )
        else:
            value = max(
                _reached(sizes, seed, context["steps"])
                for seed in range(context["climbs"])
            )
        curve.append((", ".join(map(str, sizes)), value))
    return Measured(curve=tuple(curve))


# Training ------------------------------------------------------------------


def _below():
    """Every record centred and of one norm: public maps of one record."""
    return [
        keras.layers.LayerNormalization(center=False, scale=False),
        NormalizationLayer(),
        keras.layers.Rescaling(_NORM),
    ]


def _layers(context, activation):
    hidden = [
        keras.layers.Dense(context["units"], activation=activation)
        for _ in range(context["layers"] - 1)
    ]
    # One class of ten: what the output layer would learn first.
    rare = keras.initializers.Constant(-math.log(9))
    return [*hidden, keras.layers.Dense(10, bias_initializer=rare)]


def _flat(name):
    return tuple((x.reshape(len(x), -1), y) for x, y in sources.images(name))


def _functional(job, context):
    train, test = context.data
    published = job.series == "published"
    paper = {"curvature": "diagonal", "step_size": 1.0, "momentum": 0.0}
    model = FunctionalNet(
        train[0].shape[1:],
        _layers(context, "sigmoid" if published else "tanh"),
        rounds=context["rounds"],
        below=_below(),
        **(paper if published else {}),
    )
    if published:
        private = PrivateModel(
            job.epsilon, data=train, guarantee=Published(lot="data")
        )
    else:
        private = PrivateModel(PrivacyBudget(job.epsilon, _DELTA), data=train)
    model.compile("sgd")
    model.fit(
        *train,
        batch_size=len(train[0]),
        steps_per_epoch=1,
        callbacks=[private],
        verbose=0,
    )
    return training.accuracy(model, *test), private.ledger


def _plain(job, context):
    """The same network, plain Adam on the exact loss."""
    (x, y), test = context.data
    model = keras.Sequential(
        [keras.Input(x.shape[1:]), *_below(), *_layers(context, "tanh")]
    )
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size=100, epochs=context["epochs"], verbose=0)
    return training.accuracy(model, *test)


def _dp_sgd(job, context):
    """It has the same public maps."""
    (x, y), (x_test, y_test) = context.data
    mapped = keras.Sequential([keras.Input(x.shape[1:]), *_below()])
    x, x_test = (
        mapped.predict(v, batch_size=5000, verbose=0) for v in (x, x_test)
    )

    def build():
        return keras.Sequential(
            [keras.Input(x.shape[1:]), *_layers(context, "tanh")]
        )

    rival, rate = training.dp_sgd_of_best_rate(
        build,
        (x, y),
        epsilon=job.epsilon,
        delta=_DELTA,
        rates=context["dp_sgd_rates"],
        l2_norm_clip=0.1,
        batch_size=2048,
        steps=200,
    )
    score = rival.evaluate(x_test, y_test)["accuracy"]
    return score, rival.ledger, {"learning_rate": rate}


def _training(job, context):
    ledger, notes = None, {}
    if job.series == "twin":
        score = _plain(job, context)
    elif job.series == "dp_sgd":
        score, ledger, notes = _dp_sgd(job, context)
    else:
        score, ledger = _functional(job, context)
    return Measured(curve=((job.epsilon, score),), ledger=ledger, notes=notes)


EXPERIMENTS = (
    Experiment(
        name="functional_net:composition",
        title="the worked example of the composition survey",
        shows=(
            "What 10,000 steps of noise 4 on samples of 1 % cost by basic "
            "and advanced composition, sampling and the moments accountant."
        ),
        dataset="none",
        x=Axis(name="category", label=""),
        y=Axis(name="epsilon", label="epsilon", is_log=True),
        series=(
            Series(
                name="printed",
                label="the survey's formula, evaluated",
                kind="formula",
                beside=tuple(_ROWS),
                is_random=False,
            ),
            Series(
                name="theorem",
                label="the theorem in full, same delta",
                kind="calculated",
                beside=tuple(_ROWS),
                is_random=False,
            ),
            Series(
                name="pld",
                label="privacy loss distribution, same delta",
                kind="calculated",
                beside=tuple(_ROWS),
                is_random=False,
            ),
        ),
        facts=_COMPOSITION,
        measure=_composition,
        small={"seeds": 1},
        full={"seeds": 1},
        minutes=0.1,
        deviations=(
            "the printed formulas drop terms and are no bounds; the paper "
            "gives no derivation, the formulas are our reading. The row "
            "accountant has one formula, a bound."
        ),
    ),
    Experiment(
        name="functional_net:sensitivity",
        title="Theorem 6 against the distance that two records reach",
        shows="A bound S on the L1 distance of the coefficients.",
        dataset="none",
        aliases=("functional_net:theorem-6",),
        x=Axis(name="category", label=""),
        y=Axis(name="sensitivity", label="L1 distance"),
        series=(
            Series(
                name="printed",
                label="Theorem 6, evaluated",
                kind="formula",
                beside=("Theorem 6",),
                is_random=False,
            ),
            Series(
                name="reached",
                label="reached by a search",
                kind="calculated",
                beside=("Theorem 6",),
                is_random=False,
            ),
        ),
        facts=_SENSITIVITY,
        measure=_sensitivity,
        small={"seeds": 1, "steps": 2000, "climbs": 2},
        full={"seeds": 1, "steps": 10_000, "climbs": 20},
        minutes=0.1,
        deviations=(
            "a distance above S refutes the theorem; the search gives a "
            "lower bound on the true sensitivity."
        ),
    ),
    Experiment(
        name="functional_net:training",
        title="accuracy of ten rounds against epsilon",
        shows="(The paper proposes the method; it is a preliminary analysis.)",
        dataset="digits",
        x=EPSILON,
        y=ACCURACY,
        series=(
            Series(
                name="published",
                label="FunctionalNet, as published, pure",
                kind="claimed",
            ),
            Series(
                name="proven", label="FunctionalNet, proven form", kind="proven"
            ),
            Series(
                name="dp_sgd",
                label="DP-SGD, the same network",
                kind="proven",
                needs_dp_sgd=True,
            ),
            Series(
                name="twin",
                label="the same network, Adam",
                kind="no privacy",
            ),
        ),
        why_no_facts="no measured accuracy is among the collected numbers.",
        measure=_training,
        load=_flat,
        small={
            "data": "digits",
            "epsilons": (0.5, 2.0, 8.0),
            "seeds": 1,
            "layers": 2,
            "rounds": 10,
            "units": 32,
            "epochs": 20,
            "dp_sgd_rates": _RATES,
        },
        full={
            "data": "mnist",
            "epsilons": (0.5, 1.0, 2.0, 4.0, 8.0),
            "seeds": 3,
            "layers": 2,
            "rounds": 10,
            "units": 64,
            "epochs": 20,
            "dp_sgd_rates": _RATES,
        },
        minutes=0.3,
        deviations=(
            "data and network are ours; two layers, records centred and of "
            "norm 8, ten rounds."
        ),
    ),
)
