"""AdLM's printed numbers: exact rationals, to the last digit."""

from fractions import Fraction

import numpy as np
import pytest
from rationals import agrees

from keras_fm.papers.adlm import claims


@pytest.mark.parametrize(
    "features, records, epsilon, scale",
    [
        # MNIST; padded MNIST; CIFAR-10: 2 d / (n eps1).
        (784, 60_000, "0.075", Fraction(784, 2250)),
        (1024, 60_000, "0.075", Fraction(1024, 2250)),
        (3072, 50_000, "0.25", Fraction(6144, 12500)),
        (6, 300, "1/4", Fraction(4, 25)),
    ],
)
def test_relevance_noise_scale(features, records, epsilon, scale):
    epsilon = Fraction(epsilon)
    assert scale == Fraction(2 * features, records) / epsilon
    for neighbours, part in (("replace_one", 1), ("add_remove", 2)):
        made = claims.relevance_sensitivity(
            features, records, neighbours=neighbours
        )
        assert agrees(made, scale * epsilon / part)
        assert agrees(made / float(epsilon), scale / part)


@pytest.mark.parametrize(
    "units, inputs, epsilon, scale",
    [
        # 2 |h0| d / eps2.
        (32, 784, "0.075", Fraction(50176 * 40, 3)),
        (25, 64, "1/8", Fraction(25600)),
        (30, 3072, "0.25", Fraction(737280)),
    ],
)
def test_affine_noise_scale(units, inputs, epsilon, scale):
    epsilon = Fraction(epsilon)
    for neighbours, part in (("replace_one", 1), ("add_remove", 2)):
        made = claims.affine_sensitivity(units, inputs, neighbours=neighbours)
        assert agrees(made, scale * epsilon / part)
        assert agrees(made / float(epsilon), scale / part)


@pytest.mark.parametrize(
    "form, filters, positions, patch, inputs, full",
    [
        # As the authors count, MNIST and CIFAR-10.
        ("patch", 32, 14 * 14, 25, 784, 9800),
        ("patch", 128, 10 * 10, 9 * 3, 3072, 5400),
        # As printed: 2 |h0| d.
        ("paper", 32, 28 * 28, 25, 784, 39_337_984),
        ("paper", 32, 14 * 14, 25, 784, 9_834_496),
        ("paper", 128, 32 * 32, 27, 3072, 805_306_368),
    ],
)
def test_convolution_sensitivity(form, filters, positions, patch, inputs, full):
    for neighbours, part in (("replace_one", 1), ("add_remove", 2)):
        made = claims.convolution_sensitivity(
            form=form,
            filters=filters,
            positions=positions,
            patch=patch,
            inputs=inputs,
            neighbours=neighbours,
        )
        assert agrees(made, Fraction(full, part))


@pytest.mark.parametrize(
    "relevance, epsilon, floor, shares",
    [
        ([0.5, 0.25, 0.25], "0.075", "1e-5", ["3/2", "3/4", "3/4"]),
        # By absolute value.
        ([0.5, -0.25, 0.25], "0.075", "1e-5", ["3/2", "3/4", "3/4"]),
        ([-3.0, -1.0], "2", "1e-5", ["3/2", "1/2"]),
        # The floor stands in for what is smaller.
        ([0.75, 0.0, 0.125, -0.0625], "1", "1/8", ["8/3", "4/9", "4/9", "4/9"]),
        ([0.0, 0.0], "0.5", "1e-5", ["1", "1"]),
        ([7.0], "0.25", "1e-5", ["1"]),
    ],
)
def test_adaptive_epsilons(relevance, epsilon, floor, shares):
    epsilon, floor = Fraction(epsilon), Fraction(floor)
    size = [max(abs(Fraction(r)), floor) for r in relevance]
    exact = [epsilon * s * len(size) / sum(size) for s in size]
    assert exact == [epsilon * Fraction(s) for s in shares]
    made = claims.adaptive_epsilons(
        np.array(relevance), float(epsilon), floor=float(floor)
    )
    assert made.shape == (len(relevance),)
    for value, wanted in zip(made.tolist(), exact):
        assert agrees(value, wanted)
    # Algorithm 1 spends d eps2 over the features, eps2 in the mean.
    total = sum(Fraction(value) for value in made.tolist())
    assert abs(total - len(relevance) * epsilon) < epsilon * Fraction("1e-14")


def test_adaptive_epsilons_of_many_features():
    rng = np.random.default_rng(0)
    relevance = rng.laplace(0.3, 0.2, 784)
    made = claims.adaptive_epsilons(relevance, 0.075, floor=1e-5)
    exact = [max(abs(Fraction(r)), Fraction(1e-5)) for r in relevance]
    total = sum(exact)
    for value, size in zip(made.tolist(), exact):
        assert agrees(value, Fraction(0.075) * 784 * size / total)


def test_normalised_relevance():
    rows = np.array(
        [
            [0.0, 1.0, 2.0, 4.0],
            [-3.0, 5.0, 1.0, 1.0],
            [2.0, 2.0, 2.0, 2.0],
            [0.0, 0.0, 0.0, 0.0],
            [-1e-30, 1e-30, 0.0, 0.0],
        ]
    )
    before = rows.copy()
    wanted = [
        [0.0, 0.25, 0.5, 1.0],
        [0.0, 1.0, 0.5, 0.5],
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0],
        [0.0, 1.0, 0.5, 0.5],
    ]
    made = claims.normalised_relevance(rows)
    np.testing.assert_allclose(made, wanted, rtol=1e-15)
    np.testing.assert_array_equal(rows, before)
    # Every row by itself, and in double precision whatever comes in.
    for row, alone in zip(rows, wanted):
        single = claims.normalised_relevance(row[None].astype("float32"))
        assert single.dtype == np.float64
        np.testing.assert_allclose(single[0], alone, rtol=1e-6)


def test_one_normalised_record_moves_the_mean_within_the_claim():
    # What Delta_R claims: an L1 distance of at most d / n here, since both
    # records lie in [0, 1]^d; the paper's 2 d / n allows twice that.
    rng = np.random.default_rng(0)
    rows = claims.normalised_relevance(rng.normal(size=(10, 6)))
    assert rows.min() == 0 and rows.max() == 1
    allowed = claims.relevance_sensitivity(6, 10, neighbours="replace_one")
    for row in (np.zeros(6), np.ones(6), rows[3]):
        other = rows.copy()
        other[0] = row
        moved = np.abs(rows.mean(axis=0) - other.mean(axis=0)).sum()
        assert moved <= allowed / 2


def test_it_needs_its_relation_and_has_no_proof():
    with pytest.raises(TypeError):
        claims.affine_sensitivity(3, 2)
    with pytest.raises(ValueError, match="neighbours"):
        claims.affine_sensitivity(3, 2, neighbours="other")
    for reason in (
        claims.AFFINE_REASON,
        claims.RELEVANCE_REASON,
    ):
        assert reason.startswith("none. The ")
        assert reason.endswith("; see docs/guarantees.md")
