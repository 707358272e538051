"""The papers' printed numbers: exact rationals, to the last digit."""

import functools
import itertools
from fractions import Fraction

import numpy as np
import pytest
from rationals import agrees

from keras_fm.heads import claims as head
from keras_fm.papers.adlm import claims as adlm
from keras_fm.papers.dpa import claims as dpa
from keras_fm.papers.functional_net import claims as functional_net
from keras_fm.papers.pcdbn import claims as pcdbn

_CONVOLUTION = ("form", "filters", "positions", "patch", "inputs")
# The published polynomial: 16 + 35 + 35 + 21 + 5 over 32.
_PUBLISHED = [a / 32 for a in (16, 35, 0, -35, 0, 21, 0, -5)]


def convolution(*values):
    given = dict(zip(_CONVOLUTION, values))
    return functools.partial(adlm.convolution_sensitivity, **given)


def energy(coefficients=(0.5, 0.25), **given):
    defaults = {
        "form": "paper",
        "positions": 196,
        "patch": 25,
        "bound": 1.0,
        "visible": 784.0,
        "normalization": None,
    }
    return functools.partial(
        pcdbn.energy_sensitivity, coefficients, **defaults | given
    )


def of(function, *args):
    return functools.partial(function, *args)


# A paper's sensitivity under replace_one; half of it under add_remove.
NUMBERS = [
    # AdLM, relevance: 2 d / n, MNIST, padded MNIST, CIFAR-10.
    (of(adlm.relevance_sensitivity, 784, 60_000), Fraction(1568, 60_000)),
    (of(adlm.relevance_sensitivity, 1024, 60_000), Fraction(2048, 60_000)),
    (of(adlm.relevance_sensitivity, 3072, 50_000), Fraction(6144, 50_000)),
    # 2 |h0| d.
    (of(adlm.affine_sensitivity, 32, 784), Fraction(50_176)),
    (of(adlm.affine_sensitivity, 30, 3072), Fraction(184_320)),
    # As the authors count, MNIST and CIFAR-10; as printed, 2 |h0| d.
    (convolution("code", 32, 14 * 14, 25, 784), Fraction(9800)),
    (convolution("code", 128, 10 * 10, 27, 3072), Fraction(5400)),
    (convolution("paper", 32, 28 * 28, 25, 784), Fraction(39_337_984)),
    (convolution("paper", 128, 32 * 32, 27, 3072), Fraction(805_306_368)),
    # Output layers, M (b + b^2 / 4): MNIST and CIFAR-10, with and without
    # the constant entry of a bias.
    (of(head.cross_entropy_sensitivity, 25, 10), Fraction(3625, 2)),
    (of(head.cross_entropy_sensitivity, 30, 10), Fraction(2550)),
    (of(head.cross_entropy_sensitivity, 26, 10), Fraction(1950)),
    (of(head.cross_entropy_sensitivity, 1, 1), Fraction(5, 4)),
    # dPA, d (b + b^2 / 4).
    (of(dpa.reconstruction_sensitivity, 784, 100), Fraction(2_038_400)),
    (of(dpa.reconstruction_sensitivity, 30, 200), Fraction(306_000)),
    (of(dpa.reconstruction_sensitivity, 1, 1), Fraction(5, 4)),
    # pCDBN, 2 (positions s sum |alpha| + inputs bound), s = patch bound + 1.
    (energy(), 2 * (196 * 26 * Fraction(3, 4) + 784)),
    (energy(_PUBLISHED), 2 * (196 * 26 * Fraction(112, 32) + 784)),
    (
        energy(bound=0.5, visible=392),
        2 * (196 * Fraction(27, 2) * Fraction(3, 4) + 392),
    ),
    # As the code counts, whatever the polynomial.
    (energy((9.0, -9.0), form="code"), Fraction(2 * (196 + 784))),
    # Z: one map, (q + a s^2)^(1/2) = 5 at s = 4.
    (
        energy(
            (0.5, -0.25, 0.125),
            positions=10,
            patch=3,
            visible=12,
            normalization=(9.0, 1.0, 0.5),
        ),
        2 * (40 * (Fraction(1, 2) + Fraction(1, 5) + Fraction(2, 25)) + 12),
    ),
    # The paper's constants leave X = 1 to large responses.
    (
        energy(normalization=(2.0, 1e-4, 0.75)),
        2 * (196 * 26 * Fraction(3, 4) + 784),
    ),
]


@pytest.mark.parametrize("function, number", NUMBERS)
def test_sensitivities_are_the_printed_ones(function, number):
    assert agrees(function(neighbours="replace_one"), number)
    assert agrees(function(neighbours="add_remove"), number / 2)
    with pytest.raises(ValueError, match="neighbours"):
        function(neighbours="other")


@pytest.mark.parametrize(
    "sizes, printed", [([1], 0.703), ([3, 1], 0.454), ([8, 2], 2.424)]
)
def test_theorem_6_as_printed(sizes, printed):
    claimed = functional_net.network_expansion_sensitivity
    found = claimed(sizes, neighbours="replace_one")
    assert found == pytest.approx(printed, abs=1e-3)
    half = claimed(sizes, neighbours="add_remove")
    assert half == pytest.approx(found / 2)


def test_every_claim_says_why_it_is_no_proof():
    for reason in (
        adlm.AFFINE_REASON,
        adlm.RELEVANCE_REASON,
        head.CROSS_ENTROPY_REASON,
        dpa.RECONSTRUCTION_REASON,
        pcdbn.ENERGY_REASON,
        functional_net.EXPANSION_REASON,
    ):
        assert reason.startswith("none. ")
        assert reason.endswith("see docs/guarantees.md")


def test_dpa_counts_d_copies_of_the_same_matrix():
    """Brute force: one record's lambda^(1) and lambda^(2) as dPA lists them."""
    b, d = 3, 4
    worst = 0.0
    for bits in itertools.product([0.0, 1.0], repeat=b + d):
        h, v = np.array(bits[:b]), np.array(bits[b:])
        linear = np.abs(np.outer(h, 0.5 - v)).sum()
        worst = max(worst, linear + d * np.abs(np.outer(h, h) / 8).sum())
    assert worst == dpa.reconstruction_sensitivity(
        d, b, neighbours="add_remove"
    )


def test_the_two_readings_of_algorithm_1():
    """One vector for a lot: the sum of its inputs has the noise that the proof
    needs. One for each record: the sum has too little."""
    inputs, lot, epsilon = 6, 50, 1.0
    delta = adlm.affine_sensitivity(4, inputs, neighbours="replace_one")
    scale = delta / epsilon / lot
    rng = np.random.default_rng(0)
    shared = lot * rng.laplace(scale=scale, size=4000)
    own = rng.laplace(scale=scale, size=(4000, lot)).sum(1)
    assert np.abs(shared).mean() == pytest.approx(delta / epsilon, rel=0.1)
    assert own.std() == pytest.approx(shared.std() / lot**0.5, rel=0.1)


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
    made = adlm.adaptive_epsilons(
        np.array(relevance), float(epsilon), floor=float(floor)
    )
    assert made.shape == (len(relevance),)
    for value, wanted in zip(made.tolist(), exact):
        assert agrees(value, wanted)
    # Algorithm 1 spends d eps2 over the features, eps2 in the mean.
    total = sum(Fraction(value) for value in made.tolist())
    assert abs(total - len(relevance) * epsilon) < epsilon * Fraction("1e-14")


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
    made = adlm.normalised_relevance(rows)
    np.testing.assert_allclose(made, wanted, rtol=1e-15)
    np.testing.assert_array_equal(rows, before)
    # Every row by itself, and in double precision whatever comes in.
    for row, alone in zip(rows, wanted):
        single = adlm.normalised_relevance(row[None].astype("float32"))
        assert single.dtype == np.float64
        np.testing.assert_allclose(single[0], alone, rtol=1e-6)


def test_one_normalised_record_moves_the_mean_within_the_claim():
    # What Delta_R claims: an L1 distance of at most d / n here, since both
    # records lie in [0, 1]^d; the paper's 2 d / n allows twice that.
    rng = np.random.default_rng(0)
    rows = adlm.normalised_relevance(rng.normal(size=(10, 6)))
    assert rows.min() == 0 and rows.max() == 1
    allowed = adlm.relevance_sensitivity(6, 10, neighbours="replace_one")
    for row in (np.zeros(6), np.ones(6), rows[3]):
        other = rows.copy()
        other[0] = row
        moved = np.abs(rows.mean(axis=0) - other.mean(axis=0)).sum()
        assert moved <= allowed / 2


def test_energy_sensitivity_covers_every_record_and_is_attained():
    # One map, images of 5 x 5 x 2, patches of 3 x 3: 9 positions.
    coefficients = (0.5, 0.3, -0.1, 0.05)
    given = {
        "coefficients": coefficients,
        "positions": 9,
        "patch": 18,
        "bound": 0.7,
        "visible": 35.0,
    }
    allowed = energy(**given)(neighbours="add_remove")
    local = energy(normalization=(2.0, 1e-4, 0.75), **given)(
        neighbours="add_remove"
    )
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
