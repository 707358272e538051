"""FunctionalNet: its composition survey, its sensitivity, its training."""

import keras
import numpy as np

from keras_fm.lab import composition as composition_lib
from keras_fm.lab.engine.job import Measured
from keras_fm.lab.engine.training import exact
from keras_fm.lab.reproduce import facts, points
from keras_fm.papers.functional_net import claims
from keras_fm.papers.functional_net import recipe as functional_net

_DELTA = 1e-5
_CLASSES = 10

# Composition ---------------------------------------------------------------

# Row of the printed example: the formula, and the theorem that is a bound.
_ROWS = {
    "basic": ("survey_basic", "basic"),
    "advanced": ("survey_advanced", "advanced"),
    "sampling": ("survey_sampling", "sampled_advanced"),
    "accountant": ("survey_accountant", "moments"),
}


def composition(job, context):
    """The survey's worked example by one method."""
    curve = []
    for fact in facts.select("functional_net", metric="epsilon"):
        setting = fact.setting
        # The first two rows of the example know nothing of the sampling.
        sampled = fact.system in ("sampling", "accountant")
        plan = composition_lib.Plan(
            [
                composition_lib.Stage(
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
        [row] = composition_lib.compose(plan, delta, [method])
        curve.append((fact.category, float(row.epsilon)))
    return Measured(curve=tuple(curve))


# Theorem 6 -----------------------------------------------------------------


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


def sensitivity(job, context):
    """The printed bound, or the distance that a search reaches."""
    curve = []
    for fact in facts.select("functional_net", metric="sensitivity"):
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
        curve.append((fact.category, value))
    return Measured(curve=tuple(curve))


# Training ------------------------------------------------------------------


def _layers(context, is_published=False):
    hidden = [
        keras.layers.Dense(
            context["units"], functional_net.activation(is_published)
        )
        for _ in range(context["layers"] - 1)
    ]
    return functional_net.layers(hidden, _CLASSES)


def _network(inputs, context, *below):
    """The same layers for plain training and for DP-SGD."""
    return keras.Sequential([keras.Input(inputs), *below, *_layers(context)])


def _functional(job, context):
    train, _ = context.data
    is_published = job.series == "published"
    model = functional_net.network(
        train[0].shape[1:],
        _layers(context, is_published),
        [*functional_net.centred(), *functional_net.inside(is_published)],
        rounds=context["rounds"],
    )
    training = points.training(job, context)
    return functional_net.fit(training, model, train, is_published)


def training(job, context):
    """Ten rounds, DP-SGD on the same public maps, or plain Adam."""
    train, test = context.data
    inputs = train[0].shape[1:]
    if job.series == "twin":
        model = _network(inputs, context, *functional_net.centred())
        made = points.training(job, context, lot=100).fit(
            model, train, loss=exact
        )
        return points.scored(job, made, test)
    if job.series != "dp_sgd":
        return points.scored(job, _functional(job, context), test)
    mapped = keras.Sequential([keras.Input(inputs), *functional_net.centred()])
    train, test = (
        (mapped.predict(x, batch_size=5000, verbose=0), y)
        for x, y in (train, test)
    )
    build = lambda: _network(inputs, context)  # noqa: E731
    return points.dp_sgd(job, context, build, train, test, _DELTA)
