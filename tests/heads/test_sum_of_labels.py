"""Labels alone are secret: no pair of them exceeds a bound, features are
released as they are, and that happens under no other relation
(docs/proofs/labels.md)."""

import math

import numpy as np
import pytest
from hypothesis import strategies as st
from neighbours import (
    Domain,
    check_generated,
    check_sensitivity,
    shares,
    to_ball,
)

from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.heads.gradient_query import GradientQuery
from keras_fm.heads.squared_error import SquaredErrorQuery
from keras_fm.kernel.budget import Neighbours, PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.noisy_statistics import Release
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.release import calibrate, release, release_statistics
from keras_fm.lab.auditing import audit_objective
from keras_fm.lab.auditing.objective import worst_pair
from keras_fm.queries import ReconstructionQuery, SecondMomentQuery


def make(m, outputs=3, **kwargs):
    return CrossEntropyQuery(
        num_features=m, num_outputs=outputs, public_features=True, **kwargs
    )


def domain(m, outputs=3, **kwargs):
    """A record is its features, and a number that decides the label."""
    query = make(m, outputs, **kwargs)

    def inside(v):
        h = to_ball(v[:m], query.feature_bound, query.nonnegative)
        return np.append(h, v[m])

    def arguments(v):
        classes = max(outputs, 2)
        return v[None, :m], [int(abs(v[m]) * 7) % classes]

    return Domain(query, m + 1, inside, arguments)


def extremal(query):
    m = query.num_features
    for h in (np.full(m, m**-0.5), np.eye(m)[0]):
        h = query.feature_bound * h
        yield np.append(h, 0.0), np.append(h, 1 / 7 + 1e-3)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("m", [1, 2, 9])
def test_no_pair_of_labels_exceeds_a_bound_and_one_attains_it(
    m, outputs, nonnegative
):
    found = domain(m, outputs, feature_bound=1.7, nonnegative=nonnegative)
    pairs = list(extremal(found.query))
    check_sensitivity(found, pairs, [m, outputs])
    reached = shares(found, pairs)
    assert len(reached) == 2
    assert min(reached.values()) == pytest.approx(1.0, rel=1e-9)


BOUNDS = (-2.0, 5.0)


def of_columns(m, outputs, numbers):
    """A record is its features, and a number for each output: itself within
    bounds, or its sign as a label."""
    kind = SquaredErrorQuery if numbers else CrossEntropyQuery
    more = {"target_bounds": BOUNDS} if numbers else {"independent": True}
    query = kind(
        num_features=m, num_outputs=outputs, feature_bound=1.7,
        public_features=True, **more,
    )  # fmt: skip

    def inside(v):
        return np.append(to_ball(v[:m], 1.7), np.clip(v[m:], *BOUNDS))

    def arguments(v):
        y = v[None, m:]
        return v[None, :m], y if numbers else (y > 0).astype(int)

    return Domain(query, m + outputs, inside, arguments)


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("m", [1, 5])
def test_the_same_of_numbers_and_of_several_labels(m, outputs, numbers):
    found = of_columns(m, outputs, numbers)
    pairs = [
        tuple(np.append(1.7 * h, np.full(outputs, end)) for end in BOUNDS)
        for h in (np.full(m, m**-0.5), np.eye(m)[0])
    ]
    check_sensitivity(found, pairs, [m, outputs])
    assert min(shares(found, pairs).values()) == pytest.approx(1.0, rel=1e-9)


def test_no_generated_pair_exceeds_a_bound():
    check_generated(
        lambda data: domain(
            data.draw(st.integers(1, 6)),
            data.draw(st.sampled_from([1, 2, 5])),
            feature_bound=data.draw(st.sampled_from([0.1, 1.0, 9.0])),
        ),
        examples=100,
    )


def test_the_search_finds_a_bound_that_is_too_small():
    found = domain(3)

    class Less(CrossEntropyQuery):
        def sensitivity(self, norm, *, neighbours):
            return 0.99 * super().sensitivity(norm, neighbours=neighbours)

    found = Domain(
        Less(**found.query.config()), found.width, found.inside, found.arguments
    )
    with pytest.raises(AssertionError):
        check_sensitivity(found, extremal(found.query))


def test_the_numbers_of_the_proof():
    several, binary = make(4, 3, feature_bound=2.0), make(4, 1)
    label = {"neighbours": "replace_label"}
    assert several.sensitivity("l2", **label) == pytest.approx(2 * math.sqrt(2))
    assert several.sensitivity("l1", **label) == pytest.approx(2 * 2 * 2)
    assert binary.sensitivity("l2", **label) == pytest.approx(1.0)
    assert binary.sensitivity("l1", **label) == pytest.approx(2.0)
    assert several.size == 12 and several.proof == "docs/proofs/labels.md"


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_no_other_relation_lets_features_be_public(relation, norm):
    query = make(4)
    with pytest.raises(ValueError, match="replace_label"):
        query.sensitivity(norm, neighbours=relation)
    ledger = Ledger(PrivacyBudget(1.0, 1e-5), neighbours=relation)
    mechanism = calibrate(query, ledger.budget, neighbours="replace_label")

    def untouched():
        pytest.fail("the records were read")
        yield

    with pytest.raises(ValueError, match="replace_label"):
        release(
            query,
            untouched(),
            mechanism=mechanism,
            ledger=ledger,
            name="head",
            noise=NoiseSource(1),
        )
    assert not ledger.entries


def test_where_nothing_better_is_proved_replace_one_holds():
    for query in (
        CrossEntropyQuery(num_features=4, num_outputs=3),
        ReconstructionQuery(num_features=4, num_visible=3, visible_bound=1.0),
        SecondMomentQuery(num_features=4),
        GradientQuery(num_features=4, num_outputs=3, clip=0.1),
    ):
        assert query.sensitivity(
            "l2", neighbours="replace_label"
        ) == query.sensitivity("l2", neighbours="replace_one")
    assert Neighbours.REPLACE_LABEL.replaces


def data(n=300, m=4, seed=0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, m))
    h /= np.linalg.norm(h, axis=1, keepdims=True) * 1.01
    return h, rng.integers(0, 3, n)


def released(query, records, epsilon=1.0, delta=1e-5, noise=None):
    ledger = Ledger(PrivacyBudget(epsilon, delta), neighbours="replace_label")
    given = {
        "mechanism": calibrate(
            query, ledger.budget, neighbours="replace_label"
        ),
        "ledger": ledger,
        "name": "head",
        "noise": noise or NoiseSource(),
    }
    partial = PartialStatistics(query)
    partial.add(*records)
    one = release(query, [records], **{**given, "ledger": ledger})
    again = Ledger(ledger.budget, neighbours="replace_label")
    return one, release_statistics(partial, **{**given, "ledger": again})


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_is_exact_and_s_is_not(delta, tmp_path):
    h, y = data()
    query = make(4)
    for made in released(query, (h, y), delta=delta):
        np.testing.assert_allclose(made.quadratic, h.T @ h, atol=1e-3)
        np.testing.assert_array_equal(made.quadratic, made.quadratic.T)
        # By far more than any rounding.
        exact = h.T @ np.eye(3)[y]
        assert np.abs(made.linear - exact).max() > 0.1
        np.testing.assert_array_equal(made.vector(), made.linear.ravel())
        made.save(tmp_path / "release")
        loaded = Release.load(tmp_path / "release")
        assert loaded.query == query
        assert loaded.neighbours == "replace_label"
        for name, values in made.statistics.items():
            np.testing.assert_array_equal(loaded.statistics[name], values)


def test_what_is_public_does_not_depend_on_labels():
    """To the last bit: features' sums are released without noise."""
    h, y = data()
    query, other = make(4), y.copy()
    other[17] = (y[17] + 1) % 3
    one, two = (released(query, (h, labels))[0] for labels in (y, other))
    np.testing.assert_array_equal(one.quadratic, two.quadratic)


def test_the_noise_has_the_scale_of_the_sensitivity():
    """A false alarm in 1e-6: 2,000 draws of a Gaussian's variance."""
    h, y = data(n=20)
    query = make(40, outputs=50)
    h = np.pad(h, ((0, 0), (0, 36)))
    made = released(query, (h, y))[0]
    noise = made.linear - h.T @ np.eye(50)[y]
    expected = made.mechanism.coordinate_variance(query.size)
    sensitivity = query.sensitivity("l2", neighbours="replace_label")
    assert made.mechanism.sensitivity == sensitivity
    share = np.mean(noise**2) / expected
    width = 5 * math.sqrt(2 / noise.size)
    assert abs(share - 1) < width
    assert (2 / 3) ** 2 < 1 - width and (3 / 2) ** 2 > 1 + width


def test_ridges_have_a_unit_without_noise_on_a():
    h, y = data()
    made = released(make(4), (h, y))[0]
    assert made.noise_edge() > 0
    assert np.isfinite(made.minimise()[1]).all()
    assert made.query.off_diagonal_stddev(made.mechanism) == 0.0
    some, much = (made.minimise(factor)[1] for factor in (0.1, 10.0))
    assert np.linalg.norm(some) > np.linalg.norm(much)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_an_audit_of_the_worst_pair_of_labels(delta):
    query, budget = make(2, outputs=2), PrivacyBudget(1.0, delta)
    mechanism = calibrate(query, budget, neighbours="replace_label")
    records = [
        (np.array([h]), np.array([label]))
        for h in ((0.1, 0.0), (1.0, 0.0), (0.7, 0.7))
        for label in (0, 1)
    ]
    pair = worst_pair(query, mechanism, records, neighbours="replace_label")
    np.testing.assert_array_equal(pair[0][0], pair[1][0])
    audit = audit_objective(
        query,
        mechanism,
        budget,
        *pair,
        noise=NoiseSource(reproducible_noise=1),
        runs=4000,
    )
    assert 0.98 < audit.reach <= 1 + 1e-9
    assert 0.1 < audit.bound.epsilon <= 1.0


def test_rounds_are_functions_of_one_release_of_s():
    """Proposition 2: the label part of a gradient is S, whatever the
    weights."""
    h, y = data()
    query = GradientQuery(
        num_features=4, num_outputs=3, clip=1.5, loss="cross_entropy"
    )
    rows, targets = query.check_records(h, y)
    h = rows / 2**14
    rng = np.random.default_rng(1)
    for _ in range(3):
        weights = rng.normal(size=(4, 3))
        p = np.exp(h @ weights)
        p /= p.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            query.total(rows, targets, weights),
            h.T @ p - h.T @ np.eye(3)[y],
            atol=len(h) * query.clip / 2**24,
        )
