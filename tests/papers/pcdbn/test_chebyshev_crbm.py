"""ChebyshevCRBM by itself: energies by brute force, noise, patches, Keras."""

import itertools

import keras
import numpy as np
import pytest
from layer_checks import (
    POLICIES,
    check_layer,
    check_saved,
)
from scipy import special, stats

from keras_fm.papers.pcdbn.chebyshev_crbm import ChebyshevCRBM
from keras_fm.papers.pcdbn.claims import PublishedCDBN
from keras_fm.public import polynomials

pytestmark = pytest.mark.full

BACKEND = keras.backend.backend()
SHAPE = (5, 4, 2)


def array(x):
    return keras.ops.convert_to_numpy(x)


def images(count=2, shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random((count, *shape)).astype("float32")


def inputs_of(layer, count=2, seed=0):
    """Records (and conditions) that the layer may read."""
    v = images(count, layer.record_shape, seed)
    if not layer.conditions:
        return v
    rng = np.random.default_rng(seed + 1)
    return [v, rng.normal(size=(count, layer.conditions)).astype("float32")]


def built(filters=3, kernel_size=(3, 2), shape=SHAPE, size=1.0, **kwargs):
    """A layer with no weight at zero."""
    layer = ChebyshevCRBM(filters, kernel_size, **kwargs)
    if layer.conditions:
        layer.build([(None, *shape), (None, layer.conditions)])
    else:
        layer.build((None, *shape))
    rng = np.random.default_rng(7)
    layer.set_weights(
        [rng.normal(0, size, w.shape) for w in layer.get_weights()]
    )
    return layer


# Brute force: plain loops --------------------


def margin(size, kernel, stride, padding):
    """Zeros before: "same" gives ceil(size / stride) values."""
    if padding == "valid":
        return 0, (size - kernel) // stride + 1
    count = -(-size // stride)
    return max((count - 1) * stride + kernel - size, 0) // 2, count


def reach(layer):
    """Every `(position, tap, pixel)` that a filter connects."""
    (height, width, _), (kh, kw) = layer.record_shape, layer.kernel_size
    si, sj = layer.strides
    top, rows = margin(height, kh, si, layer.padding)
    left, columns = margin(width, kw, sj, layer.padding)
    for i, j, a, b in itertools.product(
        range(rows), range(columns), range(kh), range(kw)
    ):
        y, x = i * si + a - top, j * sj + b - left
        if 0 <= y < height and 0 <= x < width:
            yield (i, j), (a, b), (y, x)


def loops(layer, inputs, weights=None):
    """x of every map, float64."""
    weights = weights or [w.astype(float) for w in layer.get_weights()]
    v, conditions = inputs if layer.conditions else (inputs, None)
    x = np.zeros((len(v), *layer.map_shape, layer.filters))
    x += weights[1]
    if conditions is not None:
        x += (conditions @ weights[3])[:, None, None, :]
    for n, (position, tap, pixel), k, c in itertools.product(
        range(len(v)),
        list(reach(layer)),
        range(layer.filters),
        range(v.shape[-1]),
    ):
        seen = v[(n, *pixel, c)] - layer.centre
        x[(n, *position, k)] += weights[0][(*tap, c, k)] * seen
    return x


def visible_bias(layer, inputs, weights=None):
    weights = weights or [w.astype(float) for w in layer.get_weights()]
    if not layer.conditions:
        return np.tile(weights[2], (len(inputs), 1, 1, 1))
    return (weights[2] + inputs[1] @ weights[4])[:, None, None, :]


def logits_by_loops(layer, inputs, hidden):
    bias = visible_bias(layer, inputs)
    z = np.zeros((len(hidden), *layer.record_shape)) + bias
    kernel = array(layer.kernel)
    for n, (position, tap, pixel), k, c in itertools.product(
        range(len(hidden)),
        list(reach(layer)),
        range(layer.filters),
        range(kernel.shape[2]),
    ):
        z[(n, *pixel, c)] += kernel[(*tap, c, k)] * hidden[(n, *position, k)]
    return z


def denominator(layer, x):
    """Z of every unit by its definition."""
    if layer.normalization == "constant":
        return np.full(x.shape, layer.scale)
    if layer.normalization == "batch":
        return np.full(x.shape, np.abs(x).max())
    z = np.zeros(x.shape)
    for k in range(x.shape[-1]):
        near = range(k - 2, k + 3)
        around = [x[..., m] ** 2 for m in near if 0 <= m < x.shape[-1]]
        floor = (2.0 + 1e-4 * sum(around)) ** 0.75
        z[..., k] = np.maximum(np.abs(x[..., k]), floor)
    return z


def probability(layer, x):
    normalised = np.clip(x / denominator(layer, x), -1, 1)
    if layer.polynomial == "exact":
        return special.expit(layer.gain * normalised)
    coefficients = layer.approximation.coefficients
    total = sum(
        a * (layer.gain * normalised) ** power
        for power, a in enumerate(coefficients)
    )
    return np.clip(total, 0, 1)


def energy_by_loops(layer, inputs, hidden=None):
    x = loops(layer, inputs)
    hidden = probability(layer, x) if hidden is None else hidden
    v = inputs[0] if layer.conditions else inputs
    bias = visible_bias(layer, inputs)
    found = []
    for n in range(len(v)):
        total = 0.0
        for index in np.ndindex(*x.shape[1:]):
            total -= x[n][index] * hidden[n][index]
        for y, i, c in np.ndindex(*v.shape[1:]):
            b = bias[n, 0, 0, c]
            if layer.visible == "binary":
                total -= v[n, y, i, c] * b
            else:
                total += (v[n, y, i, c] - layer.centre - b) ** 2 / 2
        found.append(total)
    return np.array(found)


GEOMETRIES = [
    {"padding": padding, "strides": strides, "kernel_size": kernel}
    for padding, strides, kernel in itertools.product(
        ("same", "valid"), (1, 2, (1, 2)), (1, (3, 2), (2, 4))
    )
]


@pytest.mark.parametrize("conditions", [0, 3])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_preactivation_and_visible_units_equal_loops(geometry, conditions):
    layer = built(conditions=conditions, centre=0.25, **geometry)
    inputs = inputs_of(layer)
    x = loops(layer, inputs)
    made = array(layer.preactivation(inputs))
    np.testing.assert_allclose(made, x, atol=2e-5)
    assert made.shape[1:] == (*layer.map_shape, 3)
    hidden = np.random.default_rng(2).random(x.shape)
    given = inputs[1] if conditions else None
    z = logits_by_loops(layer, inputs, hidden)
    made = array(layer.visible_logits(hidden, given))
    assert made.shape == (2, *SHAPE)
    np.testing.assert_allclose(made, z, atol=2e-5)
    made = array(layer.visible_mean(hidden, given))
    np.testing.assert_allclose(made, special.expit(z), atol=1e-5)
    layer.visible = "gaussian"
    made = array(layer.visible_mean(hidden, given))
    np.testing.assert_allclose(made, z + 0.25, atol=2e-5)


@pytest.mark.parametrize("visible", ["binary", "gaussian"])
@pytest.mark.parametrize("conditions", [0, 3])
@pytest.mark.parametrize(
    "kwargs",
    [
        {"polynomial": "exact"},
        {"polynomial": "exact", "gain": 3.0, "normalization": "batch"},
        {"polynomial": "chebyshev"},
        {"polynomial": "chebyshev", "degree": 3, "gain": 5.0, "strides": 2},
        {"polynomial": "taylor", "degree": 5},
        {"polynomial": "published", "padding": "valid", "strides": (1, 2)},
        {"polynomial": "published", "normalization": "constant", "scale": 4.0},
    ],
)
def test_energy_equals_loops(kwargs, conditions, visible):
    layer = built(
        4, visible=visible, conditions=conditions, centre=0.25, **kwargs
    )
    inputs = inputs_of(layer, 3)
    x = loops(layer, inputs)
    np.testing.assert_allclose(
        array(layer(inputs)), probability(layer, x), atol=1e-5
    )
    made = layer.energy(inputs)
    assert tuple(made.shape) == (3,)
    # Eq. 12 and Eq. 14.
    np.testing.assert_allclose(
        array(made), energy_by_loops(layer, inputs), rtol=2e-5, atol=1e-4
    )
    # Eq. 4, of drawn states.
    hidden = np.random.default_rng(0).integers(0, 2, x.shape)
    np.testing.assert_allclose(
        array(layer.energy(inputs, hidden=hidden)),
        energy_by_loops(layer, inputs, hidden),
        rtol=2e-5,
        atol=1e-4,
    )


# The conditionals are those of one joint distribution --------------------


def states(count):
    return np.array(list(itertools.product((0, 1), repeat=count)), "float32")


@pytest.mark.parametrize(
    "shape, kwargs",
    [
        ((2, 2, 1), {"kernel_size": 2}),
        ((2, 1, 2), {"kernel_size": (2, 1), "conditions": 2}),
        ((3, 1, 1), {"kernel_size": (2, 1), "padding": "valid"}),
        ((3, 1, 1), {"kernel_size": (3, 1), "strides": 2, "centre": 0.5}),
    ],
)
def test_conditionals_are_those_of_the_joint_energy(shape, kwargs):
    layer = built(
        2,
        shape=shape,
        size=0.15,
        polynomial="exact",
        normalization="constant",
        scale=1.0,
        **kwargs,
    )
    conditions = np.array([[0.7, -0.4]], "float32")
    v_all = states(np.prod(shape)).reshape(-1, *shape)
    h_all = states(np.prod(layer.map_shape) * 2)
    h_all = h_all.reshape(-1, *layer.map_shape, 2)
    # E of all pairs, `(states of v, states of h)`.
    v = np.repeat(v_all, len(h_all), axis=0)
    h = np.tile(h_all, (len(v_all), 1, 1, 1))
    given = np.repeat(conditions, len(v), axis=0)
    inputs = [v, given] if layer.conditions else v
    # X must not be clipped: Z = 1 then leaves the standard energy.
    assert np.abs(array(layer.preactivation(inputs))).max() < 1
    joint = np.exp(-array(layer.energy(inputs, hidden=h)).astype(float))
    joint = joint.reshape(len(v_all), len(h_all))
    some = slice(0, len(v), len(h_all))
    first = [v[some], given[some]] if layer.conditions else v[some]
    wanted = np.einsum("vh,h...->v...", joint, h_all)
    wanted /= joint.sum(axis=1)[:, None, None, None]
    np.testing.assert_allclose(array(layer(first)), wanted, atol=1e-5)
    assert np.ptp(wanted) > 0.03
    wanted = np.einsum("vh,v...->h...", joint, v_all)
    wanted /= joint.sum(axis=0)[:, None, None, None]
    made = layer.visible_mean(
        h_all, given[: len(h_all)] if layer.conditions else None
    )
    np.testing.assert_allclose(array(made), wanted, atol=1e-5)
    assert np.ptp(wanted) > 0.03


def test_gaussian_visible_units_have_unit_variance_about_their_mean():
    layer = built(visible="gaussian", centre=0.3, conditions=2)
    v, conditions = inputs_of(layer)
    h = np.random.default_rng(3).integers(0, 2, (2, *layer.map_shape, 3))
    mean = array(layer.visible_mean(h, conditions))
    lowest = array(layer.energy([mean, conditions], hidden=h))
    for seed in range(3):
        step = np.random.default_rng(seed).normal(size=v.shape)
        moved = layer.energy([mean + step, conditions], hidden=h)
        np.testing.assert_allclose(
            array(moved) - lowest,
            np.sum(step**2, axis=(1, 2, 3)) / 2,
            rtol=1e-3,
        )


# Polynomials --------------------


@pytest.mark.parametrize(
    "degree, gain",
    [(1, 1.0), (2, 1.0), (3, 0.5), (3, 1.0), (5, 5.0), (7, 1.0), (7, 5.0)],
)
@pytest.mark.parametrize("polynomial", ["chebyshev", "taylor", "piecewise"])
def test_activation_is_the_polynomial(polynomial, degree, gain):
    layer = ChebyshevCRBM(1, 1, polynomial=polynomial, degree=degree, gain=gain)
    z = np.linspace(-1, 1, 401).astype("float32")
    made = array(layer.activation(keras.ops.convert_to_tensor(z)))
    approximation = getattr(polynomials, polynomial)("sigmoid", degree, gain)
    assert layer.approximation == approximation
    wanted = np.clip(approximation(gain * z.astype(float)), 0, 1)
    np.testing.assert_allclose(made, wanted, atol=1e-5)
    assert made.min() >= 0 and made.max() <= 1
    missed = np.abs(made - special.expit(gain * z.astype(float)))
    assert missed.max() <= approximation.error + 1e-5
    if gain == 1:
        # 1 and 2 are one straight line, or two that are nearly one.
        assert missed.max() < (0.02 if degree < 3 else 4.1e-3)


@pytest.mark.parametrize("degree", [1, 3, 5, 7])
def test_the_published_polynomial(degree):
    layer = ChebyshevCRBM(1, 1, polynomial="published", degree=degree)
    z = np.linspace(-1, 1, 401).astype("float32")
    made = array(layer.activation(keras.ops.convert_to_tensor(z)))
    # Flat steps from 0 to 1; degree 7 as printed.
    numerators = {
        1: [1, 1],
        3: [2, 3, 0, -1],
        5: [8, 15, 0, -10, 0, 3],
        7: [16, 35, 0, -35, 0, 21, 0, -5],
    }[degree]
    wanted = sum(a * z.astype(float) ** p for p, a in enumerate(numerators))
    wanted /= 2 * numerators[0]
    np.testing.assert_allclose(made, np.clip(wanted, 0, 1), atol=1e-6)
    if degree == 7:
        plain = special.expit(z.astype(float))
        assert np.abs(made - plain).max() == pytest.approx(0.322, abs=1e-3)
        assert np.abs(made - special.expit(5 * z.astype(float))).max() < 0.021


# X --------------------


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("normalization", ["local", "batch", "constant"])
def test_normalised_responses_lie_in_the_unit_interval(normalization, size):
    layer = built(7, normalization=normalization, scale=3.0, size=size)
    x = layer.preactivation(images(4))
    made = array(layer.normalised(x))
    assert np.abs(made).max() <= 1
    x = array(x).astype(float)
    wanted = np.clip(x / denominator(layer, x), -1, 1)
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-7)
    if normalization == "batch":
        assert np.abs(made).max() == pytest.approx(1)


def test_learning_takes_powers_of_the_gain_into_the_coefficients():
    layer = built(gain=3.0, moment_order=4)
    made = layer.learning["coefficients"]
    z = np.linspace(-1, 1, 50)
    wanted = polynomials.chebyshev("sigmoid", 3, 3.0)(3 * z)
    np.testing.assert_allclose(
        np.polynomial.polynomial.polyval(z, made), wanted, atol=1e-12
    )
    assert len(built().learning["coefficients"]) == 2


# Contrastive divergence --------------------


@pytest.mark.parametrize("conditions", [0, 2])
@pytest.mark.parametrize("visible", ["binary", "gaussian"])
@pytest.mark.parametrize("steps", [1, 3])
def test_chain_is_gibbs_sampling(steps, visible, conditions):
    layer = built(visible=visible, conditions=conditions, size=0.5)
    inputs = inputs_of(layer)
    made = array(layer.chain(inputs, steps, keras.random.SeedGenerator(4)))
    assert made.shape == (2, *SHAPE)
    seed, v = keras.random.SeedGenerator(4), inputs
    for _ in range(steps):
        p = array(layer(v))
        drawn = array(keras.random.uniform(p.shape, seed=seed)) < p
        mean = layer.visible_mean(drawn, inputs[1] if conditions else None)
        v = [mean, inputs[1]] if conditions else mean
    np.testing.assert_allclose(made, array(mean), atol=1e-5)
    if visible == "binary":
        assert made.min() > 0 and made.max() < 1
    with pytest.raises(ValueError, match="`steps` must be a positive integer"):
        layer.chain(inputs, 0, seed)


def test_hidden_states_are_drawn_with_their_probabilities():
    # 20,000 units of probability 0.2: 5 standard deviations, 6e-7 false
    # alarms.
    layer = ChebyshevCRBM(
        1, 1, visible="gaussian", polynomial="exact", normalization="constant",
        scale=1.0, gain=np.log(4.0),
    )  # fmt: skip
    layer.build((None, 200, 100, 1))
    layer.set_weights([np.ones((1, 1, 1, 1)), np.zeros(1), np.zeros(1)])
    start = np.full((1, 200, 100, 1), -1.0, "float32")
    made = layer.chain(start, 1, keras.random.SeedGenerator(0))
    # The visible units show the states.
    assert set(np.unique(array(made))) == {0.0, 1.0}
    assert abs(array(made).mean() - 0.2) < 5 * (0.2 * 0.8 / 20_000) ** 0.5


# Published noise --------------------


def published(**kwargs):
    return built(**{"guarantee": "published", "size": 0.5, **kwargs})


def noise_for(layer, scale=0.05, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0, scale, shape)
        for name, shape in layer.noise_shapes(PublishedCDBN()).items()
    }


@pytest.mark.parametrize(
    "kwargs, powers",
    [
        ({"gain": 2.0}, 7),
        ({"polynomial": "taylor", "degree": 2}, 2),
        ({"polynomial": "published", "degree": 5}, 5),
        ({"polynomial": "piecewise", "degree": 4}, 1),
    ],
)
def test_noise_shifts_the_coefficients_while_training(kwargs, powers):
    layer = published(**kwargs)
    shapes = layer.noise_shapes(PublishedCDBN())
    assert shapes == {"coefficient_noise": (powers + 1, 3)}
    x = images()
    clean = array(layer(x))
    twin = published(unprotected=True, **kwargs)
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(array(twin(x, training=True)), clean)
    assert layer.is_published and not layer.is_perturbed
    with pytest.raises(ValueError, match="use the records unprotected"):
        layer(x, training=True)
    noise = noise_for(layer)
    layer.fix_noise(**noise)
    assert layer.is_perturbed
    np.testing.assert_array_equal(array(layer(x)), clean)
    z = array(layer.normalised(layer.preactivation(x))).astype(float)
    shift = sum(
        noise["coefficient_noise"][power] * z**power
        for power in range(powers + 1)
    )
    wanted = np.clip(clean + shift, 0, 1)
    assert np.abs(shift).max() > 1e-2
    for _ in range(2):
        made = array(layer(x, training=True))
        np.testing.assert_allclose(made, wanted, atol=1e-5)
    # In the energy too.
    pre = array(layer.preactivation(x)).astype(float)
    clean, noisy = (array(layer.energy(x, training=t)) for t in (False, True))
    np.testing.assert_allclose(
        clean - noisy,
        np.sum(pre * (wanted - array(layer(x))), axis=(1, 2, 3)),
        atol=1e-3,
    )


def test_a_resting_layer_is_used_as_it_is():
    layer = published()
    x = images()
    clean = array(layer(x))
    layer.fix_noise(**noise_for(layer))
    layer.trainable = False
    np.testing.assert_array_equal(array(layer(x, training=True)), clean)
    assert layer.is_published
    layer.trainable = True
    assert np.abs(array(layer(x, training=True)) - clean).max() > 1e-3


def test_noisy_probabilities_are_clipped():
    layer = published()
    layer.fix_noise(**noise_for(layer, scale=100.0))
    made = array(layer(images(), training=True))
    assert made.min() == 0 and made.max() == 1


def test_per_step_draws_have_the_given_scales(fixed_seed):
    # Fixed seed. False alarm 1e-3 for each of the two coefficients; 2/3 and
    # 3/2 of the scales are rejected.
    filters, steps = 400, 5
    layer = ChebyshevCRBM(
        filters, 1, degree=1, normalization="constant", scale=1.0,
        guarantee="published",
    )  # fmt: skip
    layer.build((None, 3, 1, 1))
    kernel = np.ones((1, 1, 1, filters))
    layer.set_weights([kernel, np.zeros(filters), np.zeros(1)])
    scales = np.geomspace(1e-3, 1e-2, 2 * filters).reshape(2, filters)
    layer.fix_noise(per_step=True, coefficient_noise=scales)
    # X is 0, 1 and -1 at the three positions: value and slope of the noise.
    x = np.array([0.0, 1.0, -1.0], "float32").reshape(1, 3, 1, 1)
    clean = array(layer(x))
    shifts = np.stack(
        [array(layer(x, training=True)) - clean for _ in range(steps)]
    )[:, 0, :, 0].astype(float)
    standard = np.stack([shifts[:, 0], (shifts[:, 1] - shifts[:, 2]) / 2])
    standard /= scales[:, None]
    for coefficient in standard:
        found = coefficient.ravel()
        assert stats.kstest(found, "laplace").pvalue > 1e-3
        for wrong in (2 / 3, 3 / 2):
            cdf = stats.laplace(scale=wrong).cdf
            assert stats.kstest(found, cdf).pvalue < 1e-6
    # Steps and coefficients are independent: |r| < 5 / sqrt(400), false
    # alarm 6e-7 for each of the 45 pairs.
    correlation = np.corrcoef(standard.reshape(2 * steps, filters))
    assert np.abs(correlation - np.eye(2 * steps)).max() < 0.25


@pytest.mark.parametrize("form", ["paper", "code"])
@pytest.mark.parametrize("polynomial", ["chebyshev", "published", "piecewise"])
def test_claimed_sensitivity(polynomial, form):
    layer = built(
        polynomial=polynomial, bounds=(-1.0, 2.0),
        centre=0.5, normalization="constant", strides=2,
    )  # fmt: skip
    settings = PublishedCDBN(form=form)
    full = layer.claimed_sensitivity("replace_one", settings)
    assert layer.claimed_sensitivity("add_remove", settings) == full / 2
    # 3 x 2 positions, patches of 12 entries, |v - centre| <= 1.5, |v| <= 2.
    if form == "code":
        assert full == 2 * (6 + 40 * 2.0)
        return
    made = layer.approximation
    if polynomial == "piecewise":
        # A line through every pair of points of a piece.
        z = np.linspace(-1, 1, 7001)
        slopes = np.diff(made(z)) / np.diff(z)
        size = np.abs(slopes).max() + np.abs(made(z[1:]) - slopes * z[1:]).max()
        tolerance = 1e-2
    else:
        size, tolerance = np.abs(made.coefficients).sum(), 1e-9
    assert full == pytest.approx(2 * (6 * 19 * size + 40 * 2.0), rel=tolerance)


def test_claimed_sensitivity_of_the_polynomial_that_is_perturbed():
    # The noise is on coefficients of X: the gain is part of them.
    steep, plain = built(gain=4.0), built()
    z = np.linspace(-1, 1, 50)
    made = polynomials.chebyshev("sigmoid", 7, 4.0)
    powers = [c * 4.0**p for p, c in enumerate(made.coefficients)]
    np.testing.assert_allclose(
        np.polynomial.polynomial.polyval(z, powers), made(4 * z), atol=1e-9
    )
    full = steep.claimed_sensitivity("replace_one")
    assert full == pytest.approx(2 * (20 * 13 * np.abs(powers).sum() + 40))
    assert full > plain.claimed_sensitivity("replace_one")
    with pytest.raises(ValueError, match="no coefficients to perturb"):
        built(polynomial="exact").claimed_sensitivity("replace_one")


# Patches --------------------


def patches_by_loops(layer, v, strides):
    """In the kernel's order, with what lies outside equal to the centre."""
    (height, width, channels), (kh, kw) = layer.record_shape, layer.kernel_size
    top, rows = margin(height, kh, strides[0], layer.padding)
    left, columns = margin(width, kw, strides[1], layer.padding)
    made = np.zeros((len(v), rows * columns, kh * kw * channels))
    for n, i, j, a, b, c in np.ndindex(len(v), rows, columns, kh, kw, channels):
        y, x = i * strides[0] + a - top, j * strides[1] + b - left
        if 0 <= y < height and 0 <= x < width:
            entry = (a * kw + b) * channels + c
            made[n, i * columns + j, entry] = v[n, y, x, c] - layer.centre
    return made


def gathered(layer, v, **kwargs):
    return np.concatenate(list(layer.patches(v, **kwargs)))


@pytest.mark.parametrize("moment_strides", [None, (2, 3)])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_patches_equal_loops(geometry, moment_strides):
    layer = built(
        patch_bound=1e3, centre=0.25, moment_strides=moment_strides, **geometry
    )
    v = images(3)
    made = gathered(layer, v)
    strides = layer.moment_strides or layer.strides
    wanted = patches_by_loops(layer, v, strides)
    assert made.shape == (3, wanted.shape[1], layer.patch_size + 1)
    np.testing.assert_allclose(made[..., :-1], wanted, rtol=2e-6)
    np.testing.assert_allclose(made[..., -1], layer.constant, rtol=1e-6)
    if strides == layer.strides:
        kernel, bias, _ = layer.get_weights()
        x = array(layer.preactivation(v)) - bias
        found = made[..., :-1] @ kernel.reshape(-1, 3)
        np.testing.assert_allclose(found.reshape(x.shape), x, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8"])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_long_patches_are_scaled_back(size, dtype):
    layer = built(patch_bound=1.3, centre=0.5, shape=(9, 8, 4))
    v = (size * images(5, (9, 8, 4), seed=3)).astype(dtype)
    made = gathered(layer, v).astype(np.float64)
    wanted = patches_by_loops(layer, v.astype("float64"), (1, 1))
    norms = np.linalg.norm(wanted, axis=-1, keepdims=True)
    assert norms.max() > 1.3
    wanted *= np.minimum(1, 1.3 / np.maximum(norms, 1e-9))
    np.testing.assert_allclose(made[..., :-1], wanted, rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(made[..., :-1], axis=-1).max() <= layer.input_bound
    assert np.linalg.norm(made, axis=-1).max() <= layer.moment_bound
    assert np.unique(made[..., -1]).size == 1
    np.testing.assert_allclose(made[..., -1], 1.3 / 3, rtol=1e-6)


@pytest.mark.parametrize("conditions", [0, 3])
@pytest.mark.parametrize("geometry", GEOMETRIES[::4])
def test_clip_makes_responses_those_of_the_released_patches(
    geometry, conditions
):
    layer = built(
        patch_bound=0.5, centre=0.25, clip=True, conditions=conditions,
        **geometry,
    )  # fmt: skip
    plain = built(centre=0.25, conditions=conditions, **geometry)
    inputs = inputs_of(layer)
    v = inputs[0] if conditions else inputs
    kernel, bias = layer.get_weights()[:2]
    wanted = gathered(layer, v)[..., :-1] @ kernel.reshape(-1, 3) + bias
    made = array(layer.preactivation(inputs))
    if conditions:
        dynamic = inputs[1] @ layer.get_weights()[3]
        wanted = wanted + dynamic[:, None, :]
    np.testing.assert_allclose(made, wanted.reshape(made.shape), atol=1e-4)
    # Short patches are left as they are, and zero ones too.
    given = [v * 0 + 0.26, *inputs[1:]] if conditions else v * 0 + 0.26
    np.testing.assert_allclose(
        array(layer.preactivation(given)),
        array(plain.preactivation(given)),
        atol=1e-5,
    )
    assert np.abs(array(plain.preactivation(inputs)) - made).max() > 1e-2


@pytest.mark.parametrize("policy", POLICIES)
def test_clip_holds_large_and_zero_records(policy):
    layer = built(patch_bound=1.0, clip=True, dtype=policy, size=0.5)
    # The largest response: the filter's length, and the bias.
    kernel, bias = layer.get_weights()[:2]
    most = np.linalg.norm(kernel.reshape(-1, 3), axis=0) + np.abs(bias)
    for size in (0.0, 1.0, 1000.0):
        x = layer.preactivation(size * images())
        x = array(keras.ops.cast(x, "float32"))
        assert np.all(np.isfinite(x)) and np.all(np.abs(x) <= most * 1.02)
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            keras.layers.Rescaling(0.0),
            built(
                patch_bound=1.0,
                clip=True,
                guarantee="published",
                dtype=policy,
                unprotected=True,
            ),
        ]
    )
    model.compile("sgd", "mse", run_eagerly=BACKEND == "tensorflow")
    model.fit(images(), np.zeros((2, 5, 4, 3)), verbose=0)
    assert all(np.all(np.isfinite(w)) for w in model.get_weights())


def test_set_filters_takes_the_order_of_patches():
    layer = built()
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(12, 3)), rng.normal(size=3)
    layer.visible_bias.assign(np.ones(layer.visible_bias.shape))
    layer.set_filters(kernel, bias)
    # What a fit without noise may have left there.
    assert not array(layer.visible_bias).any()
    v = images()
    wanted = patches_by_loops(layer, v, (1, 1)) @ kernel + bias
    made = array(layer.preactivation(v))
    np.testing.assert_allclose(made, wanted.reshape(made.shape), atol=1e-4)
    for wrong in (kernel.T, kernel[:-1], kernel.reshape(3, 2, 2, 3)):
        with pytest.raises(ValueError, match=r"must have shape \(12, 3\)"):
            layer.set_filters(wrong, bias)


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"conditions": 2}, "'crbm' has dynamic biases.*`conditions` at 0"),
        ({"normalization": "batch"}, "'crbm' divides by the largest response"),
        (
            {"moment_order": 4, "kernel_size": 5, "shape": (9, 9, 8)},
            "order-4 moments of patches with 201 entries are 70.* numbers",
        ),
        ({"filters": 25}, "12 entries has at most 24 filters.*filters=25"),
    ],
)
def test_what_no_release_can_teach(kwargs, match):
    with pytest.raises(ValueError, match=match):
        built(name="crbm", **kwargs).check_proven()


# A Keras layer --------------------


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"strides": (2, 2), "padding": "valid", "guarantee": "published"},
        {"polynomial": "exact", "normalization": "batch"},
        {"polynomial": "piecewise", "degree": 5, "strides": (1, 2)},
        {
            "polynomial": "published",
            "normalization": "constant",
            "scale": 2,
            "visible": "gaussian",
            "guarantee": "published",
        },
        {
            "polynomial": "taylor",
            "degree": 3,
            "gain": np.float32(2),
            "bounds": [-1, 1],
            "moment_order": 4,
            "patch_bound": np.float64(3),
            "clip": True,
            "sparsity": 0,
            "moment_strides": [2, 1],
            "centre": -0.5,
        },
    ],
)
def test_it_is_a_keras_citizen(kwargs, tmp_path):
    def make(**more):
        return ChebyshevCRBM(4, (3, 2), **kwargs, **more)

    fit = bool(kwargs.get("guarantee"))
    check_layer(make, images(3), trainable_fit=fit, private=True)
    check_saved(make(), images(3), tmp_path / "m.keras")
    layer = make()
    assert layer.compute_output_shape((None, None, 4, 2)) == (
        None, None, *layer.compute_output_shape((7, 9, 4, 2))[2:],
    )  # fmt: skip
    loaded = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert loaded.get_config() == layer.get_config()
    assert loaded.trainable == bool(kwargs.get("guarantee"))
    # Every argument that was given is in the config.
    config = layer.get_config()
    for name, value in kwargs.items():
        assert np.array_equal(config[name], value)
