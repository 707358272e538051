"""The papers' printed numbers."""

from fractions import Fraction

import numpy as np
import pytest

from keras_fm.heads import claims as head_claims
from keras_fm.papers.adlm import claims as adlm_claims
from keras_fm.papers.pcdbn import claims as pcdbn_claims


@pytest.mark.parametrize(
    "units, inputs, full", [(32, 784, 50176.0), (1, 1, 2.0), (25, 49, 2450.0)]
)
def test_affine_sensitivity(units, inputs, full):
    made = adlm_claims.affine_sensitivity(
        units, inputs, neighbours="replace_one"
    )
    assert made == full
    half = adlm_claims.affine_sensitivity(
        units, inputs, neighbours="add_remove"
    )
    assert half == full / 2


@pytest.mark.parametrize(
    "features, outputs, full",
    [(25, 10, 1812.5), (30, 10, 2550.0), (1, 1, 1.25), (3, 1, 5.25)],
)
def test_cross_entropy_sensitivity(features, outputs, full):
    made = head_claims.cross_entropy_sensitivity(
        features, outputs, neighbours="replace_one"
    )
    assert made == full
    half = head_claims.cross_entropy_sensitivity(
        features, outputs, neighbours="add_remove"
    )
    assert half == full / 2


@pytest.mark.parametrize(
    "function",
    [adlm_claims.affine_sensitivity, head_claims.cross_entropy_sensitivity],
)
def test_the_relation_must_be_named(function):
    with pytest.raises(TypeError):
        function(3, 2)
    with pytest.raises(ValueError, match="neighbours"):
        function(3, 2, neighbours="other")


def test_reasons_say_that_there_is_no_proof():
    for reason in (
        adlm_claims.AFFINE_REASON,
        head_claims.CROSS_ENTROPY_REASON,
        adlm_claims.RELEVANCE_REASON,
    ):
        assert reason.startswith("none. The ")
        assert reason.endswith("; see docs/guarantees.md")


# The golden table: exact rationals, to the last digit --------------------


def agrees(made, exact):
    """Whether a float is an exact rational to 1e-15, relative."""
    assert isinstance(made, float)
    return abs(Fraction(made) - exact) <= exact * Fraction(1, 10**15)


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
        made = adlm_claims.relevance_sensitivity(
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
        made = adlm_claims.affine_sensitivity(
            units, inputs, neighbours=neighbours
        )
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
        made = adlm_claims.convolution_sensitivity(
            form=form,
            filters=filters,
            positions=positions,
            patch=patch,
            inputs=inputs,
            neighbours=neighbours,
        )
        assert agrees(made, Fraction(full, part))


@pytest.mark.parametrize(
    "features, outputs, full",
    [
        # M (b + b^2 / 4): 25 hidden features for MNIST, 30 for CIFAR-10.
        (25, 10, Fraction(3625, 2)),
        (30, 10, Fraction(2550)),
        # With the constant entry of the bias.
        (26, 10, Fraction(1950)),
        (31, 10, Fraction(5425, 2)),
        (7, 3, Fraction(231, 4)),
    ],
)
def test_loss_noise_scale(features, outputs, full):
    epsilon = Fraction("0.15")
    assert full == outputs * (features + Fraction(features**2, 4))
    for neighbours, part in (("replace_one", 1), ("add_remove", 2)):
        made = head_claims.cross_entropy_sensitivity(
            features, outputs, neighbours=neighbours
        )
        assert agrees(made, full / part)
        assert agrees(made / float(epsilon), full / part / epsilon)


# eps_j = beta_j eps2 --------------------


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
    made = adlm_claims.adaptive_epsilons(
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
    made = adlm_claims.adaptive_epsilons(relevance, 0.075, floor=1e-5)
    exact = [max(abs(Fraction(r)), Fraction(1e-5)) for r in relevance]
    total = sum(exact)
    for value, size in zip(made.tolist(), exact):
        assert agrees(value, Fraction(0.075) * 784 * size / total)


# Relevance of one record in [0, 1] --------------------


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
    made = adlm_claims.normalised_relevance(rows)
    np.testing.assert_allclose(made, wanted, rtol=1e-15)
    np.testing.assert_array_equal(rows, before)
    # Every row by itself, and in double precision whatever comes in.
    for row, alone in zip(rows, wanted):
        single = adlm_claims.normalised_relevance(row[None].astype("float32"))
        assert single.dtype == np.float64
        np.testing.assert_allclose(single[0], alone, rtol=1e-6)


def test_one_normalised_record_moves_the_mean_within_the_claim():
    # What Delta_R claims: an L1 distance of at most d / n here, since both
    # records lie in [0, 1]^d; the paper's 2 d / n allows twice that.
    rng = np.random.default_rng(0)
    rows = adlm_claims.normalised_relevance(rng.normal(size=(10, 6)))
    assert rows.min() == 0 and rows.max() == 1
    allowed = adlm_claims.relevance_sensitivity(6, 10, neighbours="replace_one")
    for row in (np.zeros(6), np.ones(6), rows[3]):
        other = rows.copy()
        other[0] = row
        moved = np.abs(rows.mean(axis=0) - other.mean(axis=0)).sum()
        assert moved <= allowed / 2


# The polynomial energy of a convolutional RBM --------------------


def energy_delta(**kwargs):
    return pcdbn_claims.energy_sensitivity(
        kwargs.pop("coefficients", (0.5, 0.25)),
        **{
            "form": "paper",
            "positions": 196,
            "patch": 25,
            "bound": 1.0,
            "visible": 784.0,
            "normalization": None,
            "neighbours": "replace_one",
            **kwargs,
        },
    )


@pytest.mark.parametrize(
    "kwargs, full",
    [
        # 2 (positions s sum |alpha| + inputs bound), s = patch bound + 1.
        ({}, 2 * (196 * 26 * Fraction(3, 4) + 784)),
        # The published polynomial: 16 + 35 + 35 + 21 + 5 over 32.
        (
            {"coefficients": [a / 32 for a in (16, 35, 0, -35, 0, 21, 0, -5)]},
            2 * (196 * 26 * Fraction(112, 32) + 784),
        ),
        (
            {"bound": 0.5, "visible": 392},
            2 * (196 * Fraction(27, 2) * Fraction(3, 4) + 392),
        ),
        # As the code counts, whatever the polynomial.
        ({"form": "code"}, 2 * (196 + 784)),
        ({"form": "code", "coefficients": (9.0, -9.0)}, 2 * (196 + 784)),
        ({"form": "code", "visible": 392}, 2 * (196 + 392)),
        # Z: one map, (q + a s^2)^(1/2) = 5 at s = 4.
        (
            {
                "coefficients": (0.5, -0.25, 0.125),
                "positions": 10,
                "patch": 3,
                "visible": 12,
                "normalization": (9.0, 1.0, 0.5),
            },
            2
            * (
                10
                * 4
                * (
                    Fraction(1, 2)
                    + Fraction(1, 4) * Fraction(4, 5)
                    + Fraction(1, 8) * Fraction(16, 25)
                )
                + 12
            ),
        ),
        # The paper's constants leave X = 1 to large responses.
        (
            {"normalization": (2.0, 1e-4, 0.75)},
            2 * (196 * 26 * Fraction(3, 4) + 784),
        ),
    ],
)
def test_energy_sensitivity(kwargs, full):
    for neighbours, part in (("replace_one", 1), ("add_remove", 2)):
        made = energy_delta(neighbours=neighbours, **kwargs)
        assert agrees(made, Fraction(full) / part)


def test_energy_sensitivity_covers_every_record_and_is_attained():
    # One map, images of 5 x 5 x 2, patches of 3 x 3: 9 positions.
    coefficients = (0.5, 0.3, -0.1, 0.05)
    given = {
        "coefficients": coefficients,
        "positions": 9,
        "patch": 18,
        "bound": 0.7,
        "visible": 35.0,
        "neighbours": "add_remove",
    }
    allowed = energy_delta(**given)
    local = energy_delta(normalization=(2.0, 1e-4, 0.75), **given)
    rng = np.random.default_rng(0)

    def norm(v, kernel, bias, z):
        patches = np.lib.stride_tricks.sliding_window_view(
            v, (3, 3), axis=(0, 1)
        )
        x = np.einsum("ijcab,abc->ij", patches, kernel) + bias
        powers = [
            np.sum(np.abs(a * x * (x / z(x)) ** p))
            for p, a in enumerate(coefficients)
        ]
        return sum(powers) + np.abs(v).sum()

    def largest(x):
        return np.abs(x).max()

    def response(x):
        return np.maximum(np.abs(x), (2 + 1e-4 * x**2) ** 0.75)

    for _ in range(200):
        size = rng.random() ** 0.2
        v = rng.choice([-0.7, 0.7], (5, 5, 2)) * size
        kernel = np.sign(rng.normal(rng.normal(), 1, (3, 3, 2)))
        bias = rng.uniform(-1, 1)
        assert norm(v, kernel, bias, largest) <= allowed
        assert norm(v, kernel, bias, response) <= local
    full = np.full((5, 5, 2), 0.7), np.ones((3, 3, 2)), 1.0
    for z, bound in ((largest, allowed), (response, local)):
        assert norm(*full, z) == pytest.approx(bound, rel=1e-12)


def test_energy_sensitivity_needs_its_relation():
    with pytest.raises(ValueError, match="neighbours"):
        energy_delta(neighbours="other")
    assert pcdbn_claims.ENERGY_REASON.startswith("none. The ")
    assert pcdbn_claims.ENERGY_REASON.endswith("; see docs/guarantees.md")
