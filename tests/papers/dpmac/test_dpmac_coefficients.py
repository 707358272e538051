"""DPMAC's coefficients: exact, clipped per record, and of that record only."""

import types

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers as L
from keras import ops
from scipy import special

from keras_fm.papers.dpmac.coefficient_sums import second_order
from keras_fm.papers.dpmac.dpmac import DPMAC, CoordinateMap
from keras_fm.per_example.output_losses import LOSSES

pytestmark = pytest.mark.full

BACKEND = keras.backend.backend()


def array(x):
    return ops.convert_to_numpy(x)


def tensor(x):
    return ops.convert_to_tensor(x, "float32")


def classes(count=6, units=3, seed=0):
    return np.random.default_rng(seed).integers(0, units, count)


def records(shape, count=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, *shape)).astype("float32")


def dense(activation="tanh", loss="binary_crossentropy", **kwargs):
    keras.utils.set_random_seed(3)
    last = "sigmoid" if loss == "squared_error" else None
    stack = [
        L.Dense(4, activation=activation),
        L.Dense(5, activation="sigmoid", use_bias=False),
        L.Dense(3, activation=last, bias_initializer="normal"),
    ]
    return DPMAC((7,), stack, loss=loss, **kwargs)


def convolutional(**kwargs):
    keras.utils.set_random_seed(4)
    stack = [
        L.Conv2D(3, 3, strides=2, padding="same", activation="softplus"),
        L.Conv2D(2, 2, activation="tanh", use_bias=False),
        L.Flatten(),
        L.Dense(6, activation="relu"),
        L.Reshape((2, 3)),
        L.Flatten(),
        L.Dense(3),
    ]
    return DPMAC((6, 5, 2), stack, **kwargs)


def targets(model, y, count=3):
    return np.eye(count)[y].astype("float32")


def sums_of(model, x, y, masks, clipped=True):
    """`coefficient_sums` of one batch under several weights of records.

    The Z-steps, which JAX compiles anew at every call, are taken once.
    """
    meetings, _ = model._meet(*model._observed(x, y))
    found = []
    for mask in masks:
        sums = []
        for first, second in model._sums(meetings, tensor(mask), clipped):
            sums.append([array(v) for v in first])
            if second is not None:
                sums.append([array(second)])
        found.append(sums)
    return found


def per_record(model, x, y):
    """`(n, weights)` of every partition, before clipping."""
    found = [
        [np.concatenate([v.ravel() for v in part]) for part in sums]
        for sums in sums_of(model, x, y, np.eye(len(x)), clipped=False)
    ]
    return [np.stack(parts) for parts in zip(*found)]


def weights_of(layer):
    return [layer.kernel] + ([layer.bias] if layer.use_bias else [])


# A reference in float64 --------------------

LOSS_OF = {kind.__name__: name for name, kind in LOSSES.items()}
F = {
    "linear": lambda a: a,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "relu": lambda a: np.maximum(a, 0),
    "gelu": lambda a: a * special.ndtr(a),
}


def output_loss(name, a, y):
    if name == "binary_crossentropy":
        return np.sum(np.logaddexp(a, 0) - y * a, axis=-1)
    if name == "categorical_crossentropy":
        return special.logsumexp(a, axis=-1) - np.sum(a * y, axis=-1)
    return np.sum((special.expit(a) - y) ** 2, axis=-1) / 2


def affine(u, weights):
    a = u @ weights[0]
    return a + weights[1] if len(weights) > 1 else a


def objective(model, weights, x, z, y, penalty):
    """E_n of Dense layers, `(n,)`."""
    below, total = [x, *z], 0.0
    for k, layer in enumerate(model.private_layers):
        a = affine(below[k], weights[k])
        if k == len(z):
            return total + output_loss(
                LOSS_OF[type(model._steps.loss).__name__], a, y
            )
        missed = z[k] - F[layer.activation.__name__](a)
        total = total + penalty / 2 * np.sum(missed**2, axis=-1)


def float64(model):
    return [
        [array(w).astype(float) for w in weights_of(layer)]
        for layer in model.private_layers
    ]


def coordinates(model, x, y):
    steps = model._steps
    return steps.coordinates(tensor(x), tensor(y), steps.weights())


def differences(function, weights, h=1e-4):
    """First and second central differences of `(n,)` values by weights."""
    first, second = [], []
    middle = function(weights)
    for index, weight in enumerate(weights):
        for entry in np.ndindex(*weight.shape):
            ends = []
            for sign in (1, -1):
                moved = [w.copy() for w in weights]
                moved[index][entry] += sign * h
                ends.append(function(moved))
            first.append((ends[0] - ends[1]) / (2 * h))
            second.append((ends[0] - 2 * middle + ends[1]) / h**2)
    return np.stack(first, axis=1), np.stack(second, axis=1)


@pytest.mark.parametrize(
    "loss, activation, penalty",
    [
        ("binary_crossentropy", "tanh", 1.0),
        ("categorical_crossentropy", "gelu", 0.3),
        ("squared_error", "relu", 2.0),
    ],
)
def test_coefficients_are_the_derivatives_of_the_objective(
    loss, activation, penalty
):
    model = dense(
        activation,
        loss,
        penalty=penalty,
        order=2,
        curvature_clip=1.0,
        z_optimizer=keras.optimizers.Adam(0.05),
    )
    x, y = records((7,)), classes()
    y = targets(model, y)
    z = [array(v).astype(float) for v in coordinates(model, x, y)]
    weights = float64(model)
    made = per_record(model, x, y)
    for k in range(3):

        def function(moved, k=k):
            moved = weights[:k] + [moved] + weights[k + 1 :]
            return objective(model, moved, x, z, y, penalty)

        first, second = differences(function, weights[k])
        np.testing.assert_allclose(made[2 * k], first, atol=2e-5)
        assert np.abs(first).max() > 1e-3
        # The diagonal of C_h is the second derivative by each weight.
        units = weights[k][0].shape[1]
        size = sum(len(np.atleast_2d(w)) for w in weights[k])
        blocks = made[2 * k + 1].reshape(6, units, size, size)
        diagonal = np.einsum("nhii->nih", blocks).reshape(6, -1)
        np.testing.assert_allclose(diagonal, second, atol=1e-4)
        # And it is of rank one: the curvature times [z; 1] [z; 1]^T.
        u = [x, *z][k]
        if len(weights[k]) > 1:
            u = np.concatenate([u, np.ones((6, 1))], axis=1)
        curved = np.einsum("nhii->nh", blocks) / np.sum(u**2, 1)[:, None]
        np.testing.assert_allclose(
            blocks, np.einsum("nh,ni,nj->nhij", curved, u, u), atol=1e-4
        )


def gradient(function, values):
    """Automatic differentiation of the backend."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        values = [tf.convert_to_tensor(v) for v in values]
        with tf.GradientTape() as tape:
            tape.watch(values)
            total = function(values)
        return [array(g) for g in tape.gradient(total, values)]
    if BACKEND == "jax":
        import jax

        return [array(g) for g in jax.grad(function)(values)]
    import torch

    values = [v.detach().clone().requires_grad_(True) for v in values]
    return [array(g) for g in torch.autograd.grad(function(values), values)]


@pytest.mark.parametrize("make", [dense, convolutional])
def test_all_derivatives_equal_automatic_differentiation(make):
    model = make(z_steps=5, z_optimizer=keras.optimizers.SGD(0.1))
    steps = model._steps
    x, y = records(model.model.input_shape[1:]), classes()
    features, labels = tensor(x), tensor(targets(model, y))
    weights = steps.weights()
    # Anywhere, not only where the Z-steps lead.
    rng = np.random.default_rng(2)
    z = [
        tensor(array(v) + rng.normal(0, 0.3, v.shape))
        for v in coordinates(model, x, array(labels))
    ]

    def by_z(z):
        return ops.sum(steps.objective(features, z, labels, weights))

    first = steps.start(steps.forward(features, weights))[0]
    made = steps.gradients(z, labels, weights, first)
    for found, wanted in zip(made, gradient(by_z, z)):
        assert array(found).shape == wanted.shape
        np.testing.assert_allclose(array(found), wanted, atol=1e-4)
        assert np.abs(wanted).max() > 1e-2

    z = coordinates(model, x, array(labels))
    flat = [w for held in weights for w in held]

    def by_weights(flat):
        flat, held = list(flat), []
        for layer in model.private_layers:
            held.append([flat.pop(0) for _ in weights_of(layer)])
        return ops.sum(steps.objective(features, z, labels, held))

    wanted = gradient(by_weights, flat)
    made = sum(model.coefficient_sums(x, y, clipped=False), [])
    for found, slope in zip(made, wanted):
        np.testing.assert_allclose(found, slope, atol=1e-4)


# Z-steps --------------------


def test_the_first_coordinates_are_the_forward_pass():
    model = dense()
    x, y = records((7,)), targets(None, classes())
    steps, weights = model._steps, model._steps.weights()
    z = steps.start(steps.forward(tensor(x), weights))
    a = x
    for found, layer in zip(z, model.private_layers):
        a = array(layer(a))
        np.testing.assert_allclose(array(found), a, atol=1e-6)
    # Nothing is missed there: the objective is the loss of the network.
    value = steps.objective(tensor(x), z, tensor(y), weights)
    wanted = output_loss("binary_crossentropy", model.predict(x, verbose=0), y)
    np.testing.assert_allclose(array(value), wanted, rtol=1e-4)


@pytest.mark.parametrize("make", [dense, convolutional])
def test_the_first_gradients_come_from_the_loss_alone(make):
    model = make()
    steps, weights = model._steps, model._steps.weights()
    labels = tensor(targets(model, classes()))
    affine = steps.forward(
        tensor(records(model.model.input_shape[1:])), weights
    )
    z = steps.start(affine)
    made = steps.first_gradients(z, labels, weights, affine)
    wanted = steps.gradients(z, labels, weights, z[0])
    for found, other in zip(made, wanted, strict=True):
        assert array(found).shape == array(other).shape
        np.testing.assert_allclose(array(found), array(other), atol=1e-6)
    assert np.abs(array(made[-1])).max() > 1e-2


@pytest.mark.parametrize(
    "optimizer",
    [keras.optimizers.SGD(0.05, momentum=0.5), keras.optimizers.Adam(0.02)],
)
def test_z_steps_equal_a_naive_loop_on_one_record(optimizer):
    model = dense(z_optimizer=optimizer, z_steps=12, penalty=0.7)
    x, y = records((7,), 1), targets(None, classes(1))
    weights, h = float64(model), 1e-5
    z = []
    for layer, held in zip(model.private_layers[:-1], weights):
        below = z[-1] if z else x.astype(float)
        z.append(F[layer.activation.__name__](affine(below, held)))
    start = [v.copy() for v in z]
    memory = [[np.zeros_like(v), np.zeros_like(v)] for v in z]

    def value(z):
        return objective(model, weights, x, z, y, 0.7)[0]

    for step in range(1, 13):
        slopes = []
        for k, values in enumerate(z):
            slope = np.zeros_like(values)
            for entry in np.ndindex(*values.shape):
                ends = []
                for sign in (h, -h):
                    moved = [v.copy() for v in z]
                    moved[k][entry] += sign
                    ends.append(value(moved))
                slope[entry] = (ends[0] - ends[1]) / (2 * h)
            slopes.append(slope)
        for values, slope, (m, v) in zip(z, slopes, memory):
            if isinstance(optimizer, keras.optimizers.SGD):
                m[:] = 0.5 * m - 0.05 * slope
                values += m
                continue
            m[:] = 0.9 * m + 0.1 * slope
            v[:] = 0.999 * v + 0.001 * slope**2
            rate = 0.02 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            values -= rate * m / (np.sqrt(v) + 1e-7)
    for found, wanted in zip(coordinates(model, x, y), z):
        np.testing.assert_allclose(array(found), wanted, atol=2e-4)
    assert value(z) < value(start) - 1e-3


# Records on their own --------------------


@pytest.mark.parametrize("make", [dense, convolutional])
def test_no_record_changes_the_coefficient_of_another(make):
    model = make(clip=0.05)
    x, y = records(model.model.input_shape[1:]), classes()
    alone = model.coefficient_norms(x, y)
    other, labels = x.copy(), y.copy()
    other[1:] = 50 * records(model.model.input_shape[1:], 5, seed=9)
    other[3], labels[1:] = np.nan, classes(5, seed=9)
    changed = model.coefficient_norms(other, labels)
    np.testing.assert_allclose(changed[0], alone[0], rtol=1e-5)
    assert np.abs(changed[1] - alone[1]).max() > 1e-2


@pytest.mark.parametrize(
    "make, order",
    [(dense, 1), (dense, 2), (convolutional, 1)],
)
def test_clipped_sums_equal_a_naive_loop(make, order):
    kwargs = {"order": 2, "curvature_clip": [0.2, 0.1, 5.0]}
    kwargs = {} if order == 1 else kwargs
    model = make(z_optimizer=keras.optimizers.Adam(0.05), **kwargs)
    x, y = records(model.model.input_shape[1:]), classes()
    whole = per_record(model, x, y)
    norms = np.stack([np.linalg.norm(v, axis=1) for v in whole], axis=1)
    found = model.coefficient_norms(x, y)
    np.testing.assert_allclose(found, norms, rtol=1e-4, atol=1e-9)
    if order == 1:
        # Half of the records are clipped, in every layer.
        middle = np.maximum(np.median(norms, axis=0), 1e-4)
        model.learn_thresholds(middle.tolist())
    sums = model.coefficient_sums(x, y)
    assert len(sums) == len(model.partitions) == norms.shape[1]
    for index, (_, _, threshold) in enumerate(model.partitions):
        factor = threshold / np.maximum(norms[:, index], threshold)
        wanted = np.sum(whole[index] * factor[:, None], axis=0)
        found = np.concatenate([v.ravel() for v in sums[index]])
        np.testing.assert_allclose(found, wanted, atol=3e-4 * threshold)
        if order == 1:
            assert factor.min() < 0.999 < factor.max()


@pytest.mark.parametrize("padding", [0.0, 1e30, np.inf, np.nan])
def test_masked_rows_change_nothing_whatever_they_hold(padding):
    model = dense(clip=0.1, order=2, curvature_clip=0.1)
    x, y = records((7,)), classes()
    padded, mask = x.copy(), [1, 1, 1, 1, 0, 0]
    padded[4:] = padding
    for clipped in (True, False):
        (found,) = sums_of(model, padded, y, [mask], clipped)
        (wanted,) = sums_of(model, x[:4], y[:4], [[1] * 4], clipped)
        for part, right in zip(found, wanted):
            for a, b in zip(part, right):
                np.testing.assert_allclose(a, b, atol=1e-5)


def test_records_that_are_no_numbers_are_left_out():
    model = dense(clip=0.1, order=2, curvature_clip=0.1)
    x, y = records((7,)), classes()
    wanted = model.coefficient_sums(x[2:], y[2:])
    x[0], x[1, 3] = np.nan, np.inf
    found = model.coefficient_sums(x, y)
    # What lies behind a saturated unit is a number again.
    for part in found:
        assert all(np.all(np.isfinite(v)) for v in part)
    x[1] = np.nan
    both = model.coefficient_sums(x, y)
    for sums, parts in ((found, 2), (both, len(wanted))):
        for part, right in zip(sums[:parts], wanted):
            for a, b in zip(part, right):
                np.testing.assert_allclose(a, b, atol=1e-5)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    scale=st.floats(-3, 3),
    seed=st.integers(0, 2**20),
    thresholds=st.tuples(*[st.floats(-3, 1)] * 6),
)
def test_one_record_moves_each_sum_by_at_most_its_threshold(
    scale, seed, thresholds
):
    # Twins share their weights: only thresholds change.
    model = shared_model()
    values = [10.0**t for t in thresholds]
    model.learn_thresholds(values)
    x, y = records((7,), 4, seed), classes(4, seed=seed)
    x[0] *= 10.0**scale
    with_it, without = sums_of(model, x, y, [[1, 1, 1, 1], [0, 1, 1, 1]])
    total = 0.0
    for part, other, (_, _, threshold) in zip(
        with_it, without, model.partitions
    ):
        moved = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(part, other)))
        # Rounding of the sum over the others.
        assert moved <= threshold * (1 + 1e-4)
        total += (moved / threshold) ** 2
    stated = model.step_query.sensitivity("l2", neighbours="add_remove")
    assert np.sqrt(total) <= stated * (1 + 1e-4)
    assert stated == pytest.approx(np.sqrt(6))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(scale=st.floats(-3, 3), seed=st.integers(0, 2**20))
def test_one_owner_moves_each_sum_by_at_most_its_threshold(scale, seed):
    """An owner of three records, and of three alike, which reach it."""
    model = shared_model()
    model.learn_thresholds([1e-3] * 6)
    x, y = records((7,), 6, seed), classes(6, seed=seed)
    x[:3] *= 10.0**scale
    alone = sums_of(model, x, y, [[1, 0, 0, 0, 0, 0]])[0]
    for alike in (False, True):
        if alike:
            x[:3], y[:3] = x[0], y[0]
        rows = tensor(x.reshape(2, 3, 7)), tensor(np.ones((2, 3)))
        made = CoordinateMap(model, owned=True)
        with_it, without = (
            made.sums(rows, tensor(y.reshape(2, 3)), None, tensor(factors))
            for factors in ([1, 1], [0, 1])
        )
        moved = [array(a) - array(b) for a, b in zip(with_it, without)]
        for part in alone:
            each, moved = moved[: len(part)], moved[len(part) :]
            assert np.sqrt(sum(np.sum(v**2) for v in each)) <= 1 + 1e-4
            if alike:
                for a, b in zip(each, part):
                    np.testing.assert_allclose(a, b / 1e-3, atol=1e-4)


def shared_model(cache={}):  # noqa: B006
    if not cache:
        cache["model"] = dense(order=2, curvature_clip=1.0, z_steps=3)
    return cache["model"]


def test_the_threshold_is_reached():
    model = dense(clip=1e-3, order=2, curvature_clip=1e-3)
    x, y = records((7,), 1), classes(1)
    for part in model.coefficient_sums(x, y):
        norm = np.sqrt(sum(np.sum(v**2) for v in part))
        assert 0.999 * 1e-3 <= norm <= 1e-3


# Nothing of batch x weights --------------------


def sizes(function, *arguments):
    """Elements of every tensor that `function` makes, loops included."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        graph = tf.function(function).get_concrete_function(*arguments).graph

        def walk(graph):
            for operation in graph.get_operations():
                for output in operation.outputs:
                    if output.shape.is_fully_defined():
                        yield output.shape.num_elements()
                for name in ("body", "cond", "f"):
                    if name in operation.node_def.attr:
                        inner = operation.get_attr(name).name
                        yield from of_function(graph, inner)

        def of_function(graph, name):
            from tensorflow.python.framework import function_def_to_graph

            definition = graph._get_function(name).cached_definition
            yield from walk(
                function_def_to_graph.function_def_to_graph(definition)
            )

        return list(walk(graph))
    if BACKEND == "jax":
        import jax

        def walk_jaxpr(jaxpr):
            for equation in jaxpr.eqns:
                for variable in equation.outvars:
                    yield int(np.prod(variable.aval.shape))
                for value in equation.params.values():
                    for inner in (
                        value if isinstance(value, tuple) else (value,)
                    ):
                        inner = getattr(inner, "jaxpr", inner)
                        if hasattr(inner, "eqns"):
                            yield from walk_jaxpr(inner)

        return list(walk_jaxpr(jax.make_jaxpr(function)(*arguments).jaxpr))
    from torch.utils._python_dispatch import TorchDispatchMode

    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, made, types, args=(), kwargs=None):
            result = made(*args, **(kwargs or {}))
            for value in result if isinstance(result, tuple) else (result,):
                if hasattr(value, "numel"):
                    found.append(value.numel())
            return result

    with Watch():
        function(*arguments)
    return found


@pytest.mark.parametrize("kind", ["dense", "order 2", "convolution"])
def test_no_tensor_of_batch_times_weights(kind):
    rows = 103
    if kind == "convolution":
        stack = [L.Conv2D(7, 3, activation="tanh"),
                 L.Conv2D(11, 2, activation="tanh"), L.Flatten(),
                 L.Dense(101)]  # fmt: skip
        model = DPMAC((7, 7, 5), stack, z_steps=2)
        # The first convolution reads 25 patches of 45 inputs.
    else:
        kwargs = {"order": 2, "curvature_clip": 1.0} if kind != "dense" else {}
        stack = [L.Dense(31, activation="relu"), L.Dense(29)]
        model = DPMAC((37,), stack, z_steps=2, **kwargs)
    x = tensor(records(model.model.input_shape[1:], rows))
    units = model.model.output_shape[1]
    y = tensor(np.eye(units)[classes(rows, units)])

    def step(x, y):
        features, y = model._observed(x, y)
        meetings, _ = model._meet(features, y)
        rows = ops.ones((features.shape[0],))
        return model._sums(meetings, rows, True)

    found = sizes(step, x, y)
    weights = [layer.count_params() for layer in model.private_layers]
    for values in weights:
        assert rows * values not in found
        assert rows * (values - 1) not in found
    # No layer here has fewer weights than units, positions and inputs.
    assert rows * 37 in found or kind == "convolution"
    limit = rows * min(weights) if kind != "convolution" else rows * 1200
    assert max(found) < limit

    def naive(x, y):
        return ops.einsum("ni,nj->nij", x, y)

    if kind != "convolution":
        assert max(sizes(naive, x, y)) == rows * 37 * 29


def test_a_curvature_whose_square_is_zero():
    """A saturated unit of a long record: its norm was 0 and its coefficient
    eight times the threshold."""
    model = DPMAC((8,), [L.Dense(1)], order=2, clip=0.1, curvature_clip=0.1)
    (stage,) = model._steps.stages
    inputs, curvature = tensor(np.full((1, 8), 1e10)), tensor([[1e-21]])
    meeting = types.SimpleNamespace(inputs=inputs, curvature=curvature)
    found = second_order(stage, meeting, tensor([1.0]), 0.1)
    assert np.linalg.norm(array(found)) <= 0.1


# Analytic thresholds --------------------


def analytic(loss, activation="sigmoid", convolution=False, **kwargs):
    keras.utils.set_random_seed(6)
    last = activation if loss == "squared_error" else None
    stack = [L.Dense(4, activation=activation), L.Dense(3, activation=last)]
    shape = (5,)
    if convolution:
        stack = [L.Conv2D(2, 2, activation=activation), L.Flatten(), stack[-1]]
        shape = (3, 3, 2)
    with pytest.warns(UserWarning, match="far above"):
        return DPMAC(shape, stack, loss=loss, clip="analytic",
                     input_bound=2.0, **kwargs)  # fmt: skip


@pytest.mark.parametrize(
    "loss, activation, kwargs",
    [
        ("binary_crossentropy", "sigmoid", {"order": 2}),
        ("categorical_crossentropy", "tanh", {"order": 2}),
        ("squared_error", "tanh", {"order": 2, "penalty": 0.5}),
        ("squared_error", "sigmoid", {"convolution": True}),
    ],
)
def test_no_record_exceeds_its_analytic_threshold(loss, activation, kwargs):
    optimizer = keras.optimizers.SGD(30.0)
    model = analytic(loss, activation, z_optimizer=optimizer, z_steps=3,
                     **kwargs)  # fmt: skip
    thresholds = [threshold for _, _, threshold in model.partitions]
    # A search: weights of all sizes, records far outside the bound, Z-steps
    # so long that coordinates end at the corners of their range.
    rng, worst = np.random.default_rng(0), 0.0
    for size in (0.1, 1.0, 3.0, 10.0, 40.0):
        model.set_weights(
            [rng.normal(0, size, w.shape) for w in model.get_weights()]
        )
        x = 30 * records(model.model.input_shape[1:], 200, int(size))
        y = classes(200, seed=int(size))
        y = y if loss != "squared_error" else 9 * records((3,), 200)
        norms = model.coefficient_norms(x, y)
        assert np.all(norms <= np.array(thresholds) * (1 + 1e-4))
        worst = np.maximum(worst, (norms / thresholds).max(axis=0))
    # How loose they are: the search comes this near.
    assert np.all(worst > 0.15)
    print(loss, activation, worst)


def test_long_inputs_are_brought_to_their_bound():
    model = dense(input_bound=0.5)
    x = records((7,)) * np.array([[1e-3]] + [[10.0]] * 5, "float32")
    features = array(model._features(tensor(x)))
    norms = np.linalg.norm(features, axis=1)
    np.testing.assert_allclose(norms[1:], 0.5, rtol=1e-4)
    np.testing.assert_allclose(features[0], x[0], rtol=1e-4)
    # The model that predicts is the one that was trained.
    a = features
    for layer in model.private_layers:
        a = array(layer(a))
    np.testing.assert_allclose(model.predict(x, verbose=0), a, atol=1e-5)


def test_analytic_thresholds_need_public_bounds():
    stack = [L.Dense(4, activation="relu"), L.Dense(3)]
    with pytest.raises(ValueError, match="`input_bound`"):
        DPMAC((5,), stack, clip="analytic")
    with pytest.raises(ValueError, match="bounded activations"):
        DPMAC((5,), stack, clip="analytic", input_bound=1.0)
