"""Clipped Taylor coefficients of a network: sums, bounds, what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_fm.kernel import mechanisms
from keras_fm.papers.functional_net.expansion_query import (
    NetworkExpansionRelease,
)
from keras_fm.queries import NetworkExpansionQuery

SHAPES = ((4, 3), (4, 2))


def objective(**arguments):
    return NetworkExpansionQuery(
        **{"shapes_of_layers": SHAPES, "clip": 0.5, **arguments}
    )


def draw(n, seed=0, scale=1.0, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return [
        tuple(
            scale * rng.standard_normal((n, size))
            for size in (inputs, units, units)
        )
        for inputs, units in shapes
    ]


def row(factors, index):
    return [tuple(a[index : index + 1] for a in layer) for layer in factors]


def packed(target, factors):
    """The vector that noise is added to."""
    found = target.accumulate(target.zero(), factors)
    return target.pack(found, target.norm)


def vector(factors, target):
    """A record's vector, entry by entry."""
    g, h = [], []
    for z, delta, b in row(factors, 0):
        z, delta, b = z[0], delta[0], b[0]
        v = z**2
        if target.curvature == "majorized":
            v = np.abs(z) * np.abs(z).sum()
        for j in range(len(z)):
            for i in range(len(delta)):
                g.append(z[j] * delta[i])
                h.append(target.curvature_weight * v[j] * b[i])
    found = np.array(g + h)
    if target.clip is not None:
        order = {"l1": 1, "l2": 2}[target.norm]
        size = np.linalg.norm(found, order)
        found = found * min(1.0, target.clip / size)
    return found


@pytest.mark.parametrize("clip", [0.5, None])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("curvature", ["diagonal", "majorized"])
def test_sums_equal_a_loop_over_records_and_weights(clip, norm, curvature):
    target = objective(clip=clip, norm=norm, curvature=curvature)
    factors = draw(7)
    naive = sum(vector(row(factors, i), target) for i in range(7))
    whole = target.accumulate(target.zero(), factors)
    parts = target.zero()
    for i in range(7):
        parts = target.accumulate(parts, row(factors, i))
    for found in (whole, parts):
        np.testing.assert_allclose(target.pack(found, norm), naive, rtol=1e-10)
    g, h = target.unpack(target.pack(whole, norm), norm)
    np.testing.assert_allclose(
        np.concatenate([g, target.curvature_weight * h]), naive, rtol=1e-10
    )
    shapes = [part.shape for part in target.layers(g)]
    assert shapes == list(SHAPES)
    rebuilt = np.concatenate([part.ravel() for part in target.layers(h)])
    np.testing.assert_array_equal(rebuilt, h)


sizes = st.integers(1, 4)


@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(st.tuples(sizes, sizes), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.floats(-150, 120),
    clip=st.sampled_from([1e-6, 0.3, 1.0, 50.0]),
    norm=st.sampled_from(["l1", "l2"]),
    curvature=st.sampled_from(["diagonal", "majorized"]),
    weight=st.sampled_from([1e-3, 0.1, 7.0]),
)
def test_no_record_exceeds_the_sensitivity(
    shapes, seed, exponent, clip, norm, curvature, weight
):
    """add_remove: one record's vector; replace_one: the distance of two."""
    target = objective(
        shapes_of_layers=tuple(shapes),
        clip=clip,
        norm=norm,
        curvature=curvature,
        curvature_weight=weight,
    )
    pair = draw(2, seed, 10.0**exponent, shapes)
    a, b = (packed(target, row(pair, i)) for i in range(2))
    for kind, order in (("l1", 1), ("l2", 2)):
        alone = target.sensitivity(kind, neighbours="add_remove")
        swapped = target.sensitivity(kind, neighbours="replace_one")
        assert np.linalg.norm(a, order) <= alone
        assert np.linalg.norm(b, order) <= alone
        assert np.linalg.norm(a - b, order) <= swapped


@pytest.mark.parametrize("norm, order", [("l1", 1), ("l2", 2)])
def test_the_sensitivity_is_reached(norm, order):
    """A search over records ends within a millionth of the bound."""
    target = objective(norm=norm)
    up = draw(1, scale=100.0)
    down = [(z, -delta, -b) for z, delta, b in up]
    a, b = (packed(target, found) for found in (up, down))
    alone = target.sensitivity(norm, neighbours="add_remove")
    swapped = target.sensitivity(norm, neighbours="replace_one")
    assert np.linalg.norm(a, order) >= alone * (1 - 1e-6)
    assert np.linalg.norm(a - b, order) >= swapped * (1 - 1e-6)


def test_the_wider_norm_is_reached_too():
    """All entries of one size: sqrt(size) between L1 and L2."""
    target = objective(
        shapes_of_layers=((1, 1),), norm="l2", curvature_weight=1.0
    )
    ones = [(np.ones((1, 1)) * 3, np.ones((1, 1)) * 3, np.ones((1, 1)))]
    found = packed(target, ones)
    np.testing.assert_allclose(
        np.abs(found).sum(),
        target.sensitivity("l1", neighbours="add_remove"),
        rtol=1e-9,
    )
    assert target.sensitivity("l1", neighbours="add_remove") == pytest.approx(
        math.sqrt(2) * 0.5
    )


def test_clipping_keeps_the_newton_step():
    """Gradient and curvature are scaled alike."""
    free, clipped = objective(clip=None), objective(clip=1e-3)
    factors = draw(1)
    g, h = free.accumulate(free.zero(), factors)
    small = clipped.accumulate(clipped.zero(), factors)
    g_small, h_small = clipped.unpack(clipped.pack(small, "l2"), "l2")
    np.testing.assert_allclose(g_small / h_small, g / h, rtol=1e-10)


def test_majorized_curvature_bounds_moves_of_all_weights_of_a_unit():
    rng = np.random.default_rng(0)
    for _ in range(200):
        z, d = rng.standard_normal((2, 6))
        v = np.abs(z) * np.abs(z).sum()
        assert np.dot(z, d) ** 2 <= np.dot(v, d**2) * (1 + 1e-12)
    # Equal along signs(z): nothing smaller of this form would do.
    d = np.sign(z)
    np.testing.assert_allclose(np.dot(z, d) ** 2, np.dot(v, d**2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_number_is_refused_and_nothing_is_added(bad, place):
    target = objective()
    factors = draw(3)
    factors[1][place][2, 0] = bad
    statistics = target.zero()
    with pytest.raises(ValueError, match="not finite"):
        target.accumulate(statistics, factors)
    assert not any(part.any() for part in statistics)


def test_without_a_threshold_there_is_no_sensitivity():
    with pytest.raises(ValueError, match="no noise is enough"):
        objective(clip=None).sensitivity("l2", neighbours="add_remove")
    with pytest.raises(ValueError, match="norm"):
        objective().sensitivity("max", neighbours="add_remove")


def released(g, h, noise_multiplier=1e-9, **arguments):
    target = objective(**arguments)
    return NetworkExpansionRelease(
        statistics={"gradient": np.asarray(g), "curvature": np.asarray(h)},
        query=target,
        mechanism=mechanisms.GaussianMechanism(
            sensitivity=target.clip, noise_multiplier=noise_multiplier
        ),
        neighbours="add_remove",
        private=True,
    )


def test_the_quadratic_is_convex_whatever_the_noise():
    rng = np.random.default_rng(0)
    p = objective().num_weights
    for scale in (0.0, 1.0, 1e6):
        release = released(
            rng.standard_normal(p), scale * rng.standard_normal(p)
        )
        for g, h in release.quadratic():
            assert np.all(h > 0) and np.all(np.isfinite(g / h))


def test_the_ridge_is_a_rule_from_the_release_and_public_numbers():
    target = objective()
    p = target.num_weights
    h = np.linspace(-1, 3, p)
    release = released(np.ones(p), h, noise_multiplier=4.0)
    # Two standard deviations of the noise on a curvature.
    ridge = 2 * 0.25 * (4.0 * target.clip) / target.curvature_weight
    for (_, found), exact in zip(
        release.quadratic(ridge_factor=0.25, damping=0.5), target.layers(h)
    ):
        # The mean before negative ones are cut: the noise has mean zero.
        np.testing.assert_allclose(
            found, np.maximum(exact, 0) + 0.5 * exact.mean() + ridge
        )
