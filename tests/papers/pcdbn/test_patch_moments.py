"""Moments of patches: entries, energy and bounds.

Bounds are those of docs/proofs/patch_moments.md; see `neighbours` for the
search.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import strategies as st
from neighbours import (
    NORMS,
    RELATIONS,
    SLACK,
    Domain,
    check_generated,
    check_sensitivity,
    halves,
    shares,
)
from neighbours import (
    bounds as all_bounds,
)
from neighbours import (
    distances as all_distances,
)
from patches import ORDERS, make, some_patches, to_ball


def of_parts(d, order, patch_bound, constant, **kwargs):
    """By B and kappa."""
    bound = math.hypot(patch_bound, constant)
    return make(d + 1, order, bound, constant, **kwargs)


def bounds(objective):
    return {key[1:]: v for key, v in all_bounds(objective).items()}


def distances(objective, *pair):
    """By norm and relation, of two records."""
    found = all_distances(objective, *((record[None],) for record in pair))
    return {key[1:]: v for key, v in found.items()}


def full_tensor(patches, order):
    """Naive: sum over records of the mean over positions of u x ... x u."""
    p = patches.shape[-1]
    total = np.zeros((p,) * order)
    for record in patches:
        for u in record:
            power = u
            for _ in range(order - 1):
                power = np.multiply.outer(power, u)
            total += power / len(record)
    return total


# Entries ------------------------------------------------------------------


@pytest.mark.parametrize("p", [2, 3, 5])
@pytest.mark.parametrize("order", ORDERS)
def test_the_statistic_is_every_unique_entry_once(order, p):
    objective = make(p, order)
    patches = some_patches(objective)
    (made,) = objective.accumulate(objective.zero(), patches)
    assert made.shape == (objective.size,) == (math.comb(p + order - 1, order),)
    full, seen = full_tensor(patches, order), set()
    for index in itertools.combinations_with_replacement(range(p), order):
        place = sum(math.comb(i + k, k + 1) for k, i in enumerate(index))
        seen.add(place)
        assert made[place] == pytest.approx(full[index], abs=1e-12)
    assert seen == set(range(objective.size))
    dense = objective.moment(made, order)
    np.testing.assert_allclose(dense, full, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_lower_moments_equal_direct_ones(order):
    objective = make(4, order, bound=2.0, constant=0.7)
    patches = some_patches(objective, n=20)
    (made,) = objective.accumulate(objective.zero(), patches)
    for lower in range(1, order + 1):
        found = objective.moment(made, lower)
        direct = full_tensor(patches, lower)
        np.testing.assert_allclose(found, direct, rtol=1e-11, atol=1e-11)
        for axes in itertools.permutations(range(lower)):
            np.testing.assert_array_equal(found, found.transpose(axes))


# Bounds -------------------------------------------------------------------


def domain(objective, positions=2):
    """A record is its patches, one after the other, without the constant."""
    d = objective.num_features - 1

    def patches(v):
        return to_ball(objective, v.reshape(-1, d))

    return Domain(
        objective,
        positions * d,
        lambda v: patches(v)[:, :-1].ravel(),
        lambda v: (patches(v)[None],),
    )


def extremal(objective, positions=2):
    """Records of equal patches where the bounds are attained or near."""
    for pair in _extremal(objective):
        yield tuple(np.tile(v, positions) for v in pair)


def _extremal(objective):
    d, size = objective.num_features - 1, objective.patch_bound
    first, ones = size * np.eye(d)[0], np.full(d, size / math.sqrt(d))
    second = -first
    if d > 1:
        # <u, u'> = 0 where the constant allows it.
        cosine = -min(1.0, (objective.constant / size) ** 2)
        second = np.zeros(d)
        second[:2] = size * cosine, size * math.sqrt(1 - cosine**2)
    yield first, second
    yield first, -first
    yield ones, -ones
    yield ones, 0 * ones
    for one, other in halves(d, size, step=5.0):
        yield one, other
        yield one, -np.abs(other)


@pytest.mark.parametrize("constant", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("d", [1, 5])
@pytest.mark.parametrize("order", ORDERS)
def test_no_neighbouring_pair_exceeds_a_bound(order, d, constant):
    found = domain(of_parts(d, order, 1.0, constant))
    check_sensitivity(found, extremal(found.query), [order, d], tries=40)


def test_no_generated_pair_exceeds_a_bound():
    check_generated(
        lambda data: domain(
            of_parts(
                data.draw(st.integers(1, 4)),
                data.draw(st.sampled_from(ORDERS)),
                data.draw(st.sampled_from([0.01, 1.0, 30.0])),
                data.draw(st.sampled_from([0.03, 1.0, 8.0])),
            ),
            data.draw(st.integers(1, 3)),
        ),
        examples=120,
    )


@pytest.mark.parametrize("constant", [0.02, 1.0, 3.0])
@pytest.mark.parametrize("d", [1, 2, 6])
@pytest.mark.parametrize("order", ORDERS)
def test_the_bounds_are_attained(order, d, constant):
    found = domain(of_parts(d, order, 1.0, constant))
    for key, share in shares(found, extremal(found.query)).items():
        if key[1:] == ("l1", "replace_one"):
            # How near: docs/proofs/patch_moments.md, proposition 4.
            assert share >= 0.6, key
        elif key[1:] == ("l2", "replace_one") and d == 1 and order % 2 == 0:
            # Orthogonal patches need two entries beside the constant.
            assert share >= 0.7, key
        else:
            assert share == pytest.approx(1.0, rel=1e-9), key


def test_averaging_positions_never_moves_more_than_one_position():
    objective = make(4, 4)
    v = np.array([0.6, -0.5, 0.3])
    one = distances(objective, *(to_ball(objective, w) for w in (v, -v)))
    spread = distances(
        objective, to_ball(objective, [v, v, -v, v]), to_ball(objective, [-v])
    )
    for key in one:
        assert spread[key] <= one[key] * SLACK
    same = distances(
        objective, to_ball(objective, [v] * 5), to_ball(objective, [-v] * 3)
    )
    assert same == pytest.approx(one, rel=1e-12)


def test_golden_values_of_the_bounds():
    # C^2 = 2, kappa = B = 1, d = 4.
    second = bounds(make(5, 2))
    assert second == pytest.approx(
        {
            ("l1", "add_remove"): 1 + 2 + 2.5,
            ("l1", "replace_one"): 4 + math.sqrt(14),
            ("l2", "add_remove"): 2.0,
            ("l2", "replace_one"): 2 * math.sqrt(2),
        },
        rel=1e-14,
    )
    fourth = bounds(make(5, 4))
    assert fourth["l1", "add_remove"] == pytest.approx(
        1 + 2 + 10 / 4 + 20 / 8 + 35 / 16, rel=1e-14
    )
    assert fourth["l2", "add_remove"] == pytest.approx(4.0, rel=1e-14)
    assert fourth["l2", "replace_one"] == pytest.approx(4 * 2**0.5, rel=1e-14)
    # A large constant: 2 kappa^2 - C^2 = 3, C^2 = 5.
    large = of_parts(4, 2, 1.0, 2.0)
    assert large.sensitivity("l2", neighbours="replace_one") == pytest.approx(
        math.sqrt(2 * (25 - 9)), rel=1e-14
    )
    # Odd orders keep the sign: kappa = 1, B^2 = 2, s = -1, C^2 = 3.
    odd = of_parts(4, 3, math.sqrt(2), 1.0)
    assert odd.sensitivity("l2", neighbours="replace_one") == pytest.approx(
        math.sqrt(2 * (27 + 1)), rel=1e-14
    )


def test_the_bound_of_second_moments_is_below_that_without_a_constant():
    """C^2 (1 + p) / 2 is met where the constant is like the entries."""
    p, c = 9, 1.7
    for constant in (0.1, c / 3, 1.5):
        made = make(p, 2, c, constant).sensitivity(
            "l1", neighbours="add_remove"
        )
        limit = c**2 * (1 + p) / 2
        if constant == c / 3:
            assert made == pytest.approx(limit, rel=1e-12)
        else:
            assert made < 0.99 * limit


# Owners and reach -----------------------------------------------------------


def vector(objective, units, norm):
    """The released vector of a data set, a list of owners' records."""
    statistics = objective.zero()
    units = [u for u in units if len(u)]
    if units:
        owners = np.repeat(np.arange(len(units)), [len(u) for u in units])
        statistics = objective.accumulate(
            statistics, np.concatenate(units), owners
        )
    return objective.pack(statistics, norm)


def random_unit(objective, rng, most):
    n = int(rng.integers(1, most + 1))
    raw = rng.normal(size=(n, 2, objective.num_features - 1))
    raw *= rng.choice([0.05, 1.0, 1e3])
    if rng.random() < 0.5:
        raw[:] = raw[:1, :1]
    return np.stack([to_ball(objective, v) for v in raw])


@pytest.mark.parametrize("constant", [0.3, 2.0])
@pytest.mark.parametrize("order", ORDERS)
def test_no_owner_exceeds_a_bound(order, constant):
    objective = of_parts(3, order, 1.0, constant, grouped=True)
    rng = np.random.default_rng([order, int(constant)])
    limits, longest = bounds(objective), dict.fromkeys(NORMS, 0.0)
    background = [random_unit(objective, rng, 4)]
    for _ in range(25):
        owner, other = (random_unit(objective, rng, 12) for _ in range(2))
        if rng.random() < 0.2:
            other = other[:0]
        for norm, p in NORMS.items():
            with_owner = vector(objective, [owner, *background], norm)
            without = vector(objective, background, norm)
            replaced = vector(objective, [other, *background], norm)
            moved = np.linalg.norm(with_owner - without, p)
            assert moved <= limits[norm, "add_remove"] * SLACK
            longest[norm] = max(longest[norm], moved)
            moved = np.linalg.norm(with_owner - replaced, p)
            assert moved <= limits[norm, "replace_one"] * SLACK
    shares = [longest[n] / limits[n, "add_remove"] for n in NORMS]
    assert max(shares) > 0.999


@pytest.mark.parametrize("order", ORDERS)
def test_an_owner_adds_its_scaled_sum_and_one_record_as_it_is(order):
    objective = make(3, order, grouped=True)
    single = make(3, order)
    rng = np.random.default_rng(5)
    units = [random_unit(objective, rng, 6) for _ in range(5)]
    units.append(random_unit(objective, rng, 1))
    for norm in NORMS:
        total = 0.0
        for unit in units:
            own = single.accumulate(single.zero(), unit)
            scale = min(
                1.0,
                *(
                    single.sensitivity(n, neighbours="add_remove")
                    / np.linalg.norm(single.pack(own, n), p)
                    for n, p in NORMS.items()
                ),
            )
            total = total + scale * single.pack(own, norm)
        np.testing.assert_allclose(
            vector(objective, units, norm), total, atol=1e-10
        )
        alone = single.accumulate(single.zero(), units[-1])
        np.testing.assert_allclose(
            vector(objective, units[-1:], norm),
            single.pack(alone, norm),
            atol=1e-10,
        )


@pytest.mark.parametrize("order", ORDERS)
def test_the_bounds_of_owners(order):
    for constant in (0.5, 2.0):
        objective = of_parts(3, order, 1.0, constant, grouped=True)
        for norm in NORMS:
            one = objective.sensitivity(norm, neighbours="add_remove")
            single = of_parts(3, order, 1.0, constant)
            assert one == single.sensitivity(norm, neighbours="add_remove")
            # Odd moments of opposite patches may be opposite.
            apart = norm == "l1" or (order == 3 and constant == 0.5)
            twice = objective.sensitivity(norm, neighbours="replace_one")
            factor = 2.0 if apart else math.sqrt(2)
            assert twice == pytest.approx(factor * one, rel=1e-15)


@pytest.mark.parametrize("constant", [0.3, 8.0])
@pytest.mark.parametrize("order", ORDERS)
def test_no_unit_exceeds_a_bound_through_others(order, constant):
    reach = 2
    objective = of_parts(3, order, 1.0, constant, reach=reach)
    rng = np.random.default_rng([order, int(constant), 7])
    limits = bounds(objective)
    for _ in range(40):
        units = [random_unit(objective, rng, 1) for _ in range(2 * reach + 2)]
        own, replaced = units[:2]
        friends, changed = units[2 : 2 + reach], units[2 + reach :]
        if rng.random() < 0.5:
            # Others' records may vanish too.
            changed = [c[:0] for c in changed]
        for norm, p in NORMS.items():
            before = vector(objective, [own, *friends], norm)
            for relation, after in (
                ("add_remove", changed),
                ("replace_one", [replaced, *changed]),
            ):
                moved = np.linalg.norm(
                    before - vector(objective, after, norm), p
                )
                assert moved <= limits[norm, relation] * SLACK
    if constant == 8.0:
        # Vanishing is the larger change here: bounds that only counted
        # replaced records would be exceeded.
        unit = to_ball(objective, np.full(3, 9.0))[None]
        for norm, p in NORMS.items():
            moved = np.linalg.norm(vector(objective, [unit] * 3, norm), p)
            assert moved == pytest.approx(limits[norm, "add_remove"], rel=1e-9)


def test_the_bound_grows_by_the_larger_change_of_each_unit_reached():
    for constant, grouped in itertools.product((0.5, 8.0), (False, True)):
        alone = of_parts(3, 4, 1.0, constant, grouped=grouped)
        limits = bounds(alone)
        for (norm, relation), own in limits.items():
            more = max(limits[norm, r] for r in RELATIONS)
            made = of_parts(3, 4, 1.0, constant, grouped=grouped, reach=3)
            assert made.sensitivity(norm, neighbours=relation) == (
                pytest.approx(own + 3 * more, rel=1e-14)
            )
    large = bounds(of_parts(3, 4, 1.0, 8.0))
    assert large["l2", "replace_one"] < large["l2", "add_remove"]


def test_owners_must_be_given_and_contiguous():
    objective = make(3, 2, grouped=True)
    patches, statistics = some_patches(objective, 3), objective.zero()
    for owners, message in (
        (None, "one owner id"),
        ([0, 1], "one owner id"),
        ([0, 1, 0], "next to each other"),
        ([math.nan] * 3, "none missing"),
    ):
        with pytest.raises(ValueError, match=message):
            objective.accumulate(statistics, patches, owners)
    assert not statistics[0].any()
    # Without grouping nobody looks at them.
    single = make(3, 2)
    np.testing.assert_array_equal(
        single.accumulate(single.zero(), patches, [0, 1, 0])[0],
        single.accumulate(single.zero(), patches)[0],
    )


# Energy -------------------------------------------------------------------

SERIES = (0.5, 0.24, 0.03, -0.017)


def direct_energy(patches, filters, coefficients, scale):
    """-sum x sigma_L(x / Z) over records (mean of positions) and filters."""
    total = 0.0
    for record in patches:
        x = record @ filters
        hidden = sum(a * (x / scale) ** l for l, a in enumerate(coefficients))
        total -= np.sum(x * hidden) / len(record)
    return total


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("p", [2, 6])
def test_the_energy_of_moments_is_that_of_the_patches(p, order):
    objective = make(p, order, bound=1.6, constant=0.6)
    patches = some_patches(objective, n=12)
    (made,) = objective.accumulate(objective.zero(), patches)
    rng = np.random.default_rng(2)
    for count, scale in ((1, 0.5), (3, 2.3), (8, 1.0)):
        filters = rng.normal(size=(p, count))
        for length in range(1, order + 1):
            arguments = filters, made, SERIES[:length], scale
            direct = direct_energy(patches, filters, SERIES[:length], scale)
            found = objective.value(*arguments)
            assert found == pytest.approx(direct, rel=1e-10)
            # By differences too, in a random direction.
            step = rng.normal(size=filters.shape)
            ends = [
                objective.value(filters + t * step, *arguments[1:])
                for t in (1e-5, -1e-5)
            ]
            slope = np.vdot(objective.gradient(*arguments), step)
            assert slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_the_energy_at_the_size_of_the_papers_filters():
    objective = make(26, 4, bound=2.0, constant=1.0)
    patches = some_patches(objective, n=20, positions=9).astype(np.float32)
    (made,) = objective.accumulate(objective.zero(), patches)
    filters = np.random.default_rng(3).normal(size=(26, 32))
    filters /= np.linalg.norm(filters, axis=0)
    direct = direct_energy(patches.astype(float), filters, SERIES, 2.0)
    found = objective.value(filters, made, SERIES, 2.0)
    # The statistics are of the patches as float32 holds them.
    assert found == pytest.approx(direct, rel=1e-6)


# Errors and configuration ---------------------------------------------------


def test_invalid_patches_are_refused_and_add_nothing(monkeypatch):
    # The offence is in the last chunk: earlier ones must not stay.
    monkeypatch.setattr("keras_fm.papers.pcdbn.patch_moments._CHUNK", 1)
    objective = make(3, 2)
    good = some_patches(objective, 200)

    def spoiled(entry, value):
        patches = good.copy()
        patches[-1, -1, entry] = value
        return patches

    statistics = objective.zero()
    for patches, message in (
        (spoiled(0, math.nan), "finite"),
        (spoiled(1, math.inf), "finite"),
        (spoiled(0, 77.0), "outside the public L2 bound"),
        (spoiled(2, math.nan), "public constant 1; at least one"),
        (spoiled(2, 77.0), "public constant 1; at least one"),
        (spoiled(2, -1.0), "public constant 1; at least one"),
        (good[0], "Patches must have shape"),
        (good[..., :2], "Patches must have shape"),
        (good[:, :0], "at least one position"),
    ):
        for clip in (False, True):
            if clip and "outside" in message:
                continue
            with pytest.raises(ValueError, match=message) as caught:
                objective.accumulate(statistics, patches, clip=clip)
            assert "77" not in str(caught.value)
    assert not statistics[0].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("order", ORDERS)
def test_clipping_scales_the_patch_and_not_the_constant(order, dtype):
    objective = make(4, order, bound=1.3, constant=0.5)
    rng = np.random.default_rng(3)
    for size in (0.01, 1.0, 1e3):
        v = size * rng.normal(size=(1, 6, 3))
        u = np.concatenate([v, np.full((1, 6, 1), 0.5)], -1).astype(dtype)
        made = objective.accumulate(objective.zero(), u, clip=True)
        for norm, p in NORMS.items():
            length = np.linalg.norm(objective.pack(made, norm), p)
            limit = objective.sensitivity(norm, neighbours="add_remove")
            assert length <= limit * (1 + 1e-13)
        # One record: the entry of constants is kappa^m.
        assert made[0][-1] == pytest.approx(0.5**order, rel=1e-14)
        v = u[..., :3].astype(float)
        lengths = np.linalg.norm(v, axis=-1, keepdims=True)
        clipped = v * np.minimum(1.0, objective.patch_bound / lengths)
        mean = objective.moment(made[0], 1)[:3]
        np.testing.assert_allclose(mean, clipped[0].mean(0), atol=1e-12)
