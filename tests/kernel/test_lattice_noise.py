"""Integer noise has exactly the stated law; rounding costs what is stated.

Tests of a law accept at p > 1e-5: with fixed seeds they are repeatable, and a
fresh seed would fail by chance once in 100,000 runs, each. Tests of moments
and correlations accept within five standard errors: once in a million.
"""

import collections
import copy
import decimal
import functools
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from keras_fm.kernel import discrete_noise
from keras_fm.kernel.access import exact_draws
from keras_fm.kernel.discrete_noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    OSWords,
    SeededWords,
    exp_bounds,
    exp_bounds_in_a_row,
)
from keras_fm.kernel.lattice_noise import (
    Lattice,
    gaussian_release,
    laplace_release,
    log_ratio,
)

pytestmark = pytest.mark.full

BY_CHANCE = 1e-5
# Small tables of single values, tables of wide blocks with the offset in the
# same word, and with one of its own.
SAMPLERS = [
    DiscreteLaplace(Fraction(1, 3)),
    DiscreteLaplace(1),
    DiscreteLaplace(Fraction(700, 9)),
    DiscreteLaplace(1500.7),
    DiscreteLaplace(2**40 + Fraction(1, 3)),
    DiscreteGaussian(Fraction(1, 4)),
    DiscreteGaussian(7),
    DiscreteGaussian(Fraction(40001, 3)),
    DiscreteGaussian(3e6),
    DiscreteGaussian(2**80 + Fraction(1, 3)),
]


@pytest.fixture
def precise():
    with decimal.localcontext() as context:
        context.prec = 120
        yield


def exact_weight(sampler, x):
    """exp(-energy), correctly rounded to the precision of the context."""
    numerator, denominator = sampler._energy(abs(x))
    return (-Decimal(numerator) / Decimal(denominator)).exp()


def law(sampler, reach):
    """Probabilities of -reach, ..., reach given that interval."""
    half = [float(exact_weight(sampler, x)) for x in range(reach + 1)]
    weights = np.array(half[:0:-1] + half)
    return weights / weights.sum()


def chi_square(values, probabilities, reach, least=10):
    """p-value; neighbouring cells are merged to expect `least` values."""
    inside = values[np.abs(values) <= reach]
    assert len(inside) > 0.999 * len(values)
    counts = np.bincount(inside + reach, minlength=2 * reach + 1)
    cells = np.floor(np.cumsum(probabilities) * len(inside) / least)
    edges = np.flatnonzero(np.diff(cells, prepend=-1))
    observed = np.add.reduceat(counts, edges)
    expected = np.add.reduceat(probabilities, edges) * len(inside)
    small = expected < 5
    observed = np.append(observed[~small], observed[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    return stats.chisquare(observed, expected).pvalue


class Words:
    """Words that the test chooses."""

    def __init__(self, *words):
        self._words = collections.deque(words)

    def words(self, count):
        taken = [self._words.popleft() for _ in range(count)]
        return np.array(taken, np.uint64)

    def __len__(self):
        return len(self._words)


# Sources of random words ----------------------------------------------------


def test_os_words_are_fresh_and_uniform():
    words = OSWords().words(100_000)
    assert words.dtype == np.uint64 and words.shape == (100_000,)
    assert len(np.unique(words)) == 100_000
    # Fresh entropy at each run: false alarm once in 10^9 runs.
    ones = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(0)
    assert stats.chi2(64).sf(np.sum((ones - 50_000) ** 2) / 25_000) > 1e-9
    assert OSWords.private and not SeededWords.private


def test_seeded_words_repeat_and_say_so():
    one, two = SeededWords(5), SeededWords(5)
    np.testing.assert_array_equal(one.words(9), two.words(9))
    assert not np.any(one.words(9) == SeededWords(5).words(9))
    assert "not private" in repr(one)
    for leak in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be pickled"):
            leak(one)


# Exponentials ---------------------------------------------------------------


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**40),
    st.integers(1, 10**40),
    st.integers(8, 400),
)
def test_exp_bounds_enclose(numerator, denominator, bits):
    low, high = exp_bounds(numerator, denominator, bits)
    with decimal.localcontext() as context:
        context.prec = 250
        # Beyond, the exponential does not reach one unit of 400 bits.
        argument = min(Decimal(numerator) / Decimal(denominator), Decimal(400))
        exact = (-argument).exp() * 2**bits
    assert low <= exact <= high
    assert 0 <= high - low <= 2


@pytest.mark.parametrize(
    "fraction", [(1, 10**30), (127, 1), (128, 1), (45, 1), (10**300, 1)]
)
def test_exp_bounds_at_the_ends(fraction, precise):
    low, high = exp_bounds(*fraction, 128)
    exact = (-Decimal(min(fraction[0], 1000)) / fraction[1]).exp() * 2**128
    assert low <= exact <= high <= low + 1


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.fractions(0, 10, max_denominator=10**30),
    st.fractions(0, 10, max_denominator=10**30),
    st.integers(1, 300),
)
def test_exponentials_in_a_row_enclose(first, second, bits):
    found = exp_bounds_in_a_row(first, second, 60, bits)
    with decimal.localcontext() as context:
        context.prec = 250
        for k, (low, high) in enumerate(found):
            exponent = k * first + k * (k - 1) // 2 * second
            argument = Decimal(exponent.numerator) / exponent.denominator
            exact = (-min(argument, Decimal(400))).exp() * 2**bits
            assert low <= exact <= high <= low + 2


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_long_row_is_that_of_single_ones(sampler):
    """Of every block of a table, to the last bit."""
    blocks, width = sampler._blocks + 1, sampler._width
    steps = [Fraction(*sampler._energy(k * width)) for k in (1, 2)]
    row = exp_bounds_in_a_row(steps[0], steps[1] - 2 * steps[0], blocks, 128)
    alone = [
        exp_bounds(*sampler._energy(k * width), 128) for k in range(blocks)
    ]
    assert row == alone


# The table is exact ---------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_alias_table_returns_every_symbol_with_its_integer_mass(sampler):
    columns = 2**sampler._column_bits
    capacity = 2**64 // columns
    masses = collections.Counter()
    for i, threshold in enumerate(sampler._threshold):
        kept = threshold - i * capacity
        assert 0 <= kept <= capacity
        masses[i] += kept
        masses[int(sampler._alias[i])] += capacity - kept
    assert sum(masses.values()) == 2**64
    assert [masses[i] for i in range(columns)] == sampler._masses + [0] * (
        columns - len(sampler._masses)
    )
    # Rejections that the rounding of weights costs.
    assert sampler._masses[-1] < 2**-40 * 2**64


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_weights_are_above_those_of_all_values_in_their_block(sampler, precise):
    width, blocks = 2**sampler._shift, sampler._blocks
    rng = np.random.default_rng(1)
    inner = {int(b) for b in rng.integers(0, blocks, 40)}
    for block in sorted(inner | {0, blocks - 1}):
        weight = sampler._weights[block]
        first = sampler._unit * exact_weight(sampler, block * width)
        last = sampler._unit * exact_weight(sampler, block * width + width - 1)
        assert first <= weight < first + 2
        # What is accepted on a few bits is accepted on all.
        assert int(sampler._sure[block]) * weight <= last * 2**15
    # So are the halved weights of the tail.
    for group in range(60):
        x = (blocks + (group << sampler._tail_bits)) * width
        weight = sampler._unit * exact_weight(sampler, x)
        assert weight * 2**group <= sampler._weights[blocks]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_acceptance_compares_exactly(sampler, precise):
    """A difference of 2^-76, far below that of floats, decides."""
    width = 2**sampler._shift
    for block in {0, sampler._blocks // 3, sampler._blocks - 1}:
        x = block * width + width - 1
        weight = sampler._weights[block]
        ratio = sampler._unit * exact_weight(sampler, x) / weight
        if ratio > 1 - Decimal(2) ** -70:
            continue
        bits = int(ratio * 2**79)
        # Weights far out need more words to enclose their exponentials.
        more = [2**63] * 4
        for shift, accepted in ((-8, True), (8, False)):
            first, rest = divmod(bits + shift, 2**64)
            value = sampler._decide(block, width - 1, first, Words(rest, *more))
            assert value == (x if accepted else None)
        # Undecided after 79 bits: the next 64 are asked for.
        first, rest = divmod(bits, 2**64)
        for following, accepted in ((0, True), (2**64 - 1, False)):
            words = Words(rest, following, *more)
            value = sampler._decide(block, width - 1, first, words)
            assert value == (x if accepted else None)
            assert len(words) <= 4


def test_energy_is_not_rounded():
    sampler = DiscreteGaussian(2**80 + Fraction(1, 3))
    numerator, denominator = sampler._energy(2**45 + 1)
    energy = Fraction(numerator, denominator)
    assert energy == Fraction((2**45 + 1) ** 2) / (2 * (2**80 + Fraction(1, 3)))
    # In floats it would be the energy of another value and variance.
    assert float(energy) == (2.0**45) ** 2 * (1 + 2.0**-44) / 2.0**81
    assert energy != Fraction(float(energy))


def test_column_is_decided_by_64_bits():
    sampler = DiscreteGaussian(7)
    capacity = 2 ** (64 - sampler._column_bits)
    for column, threshold in enumerate(sampler._threshold):
        if threshold % capacity == 0:
            continue
        high, low = divmod(threshold, 2**32)
        alias = int(sampler._alias[column])
        for second, symbol in ((low - 1, column), (low, alias)):
            words = Words(second << 32)
            assert sampler._symbol(high, column, words) == symbol
        assert sampler._symbol(high - 1, column, Words()) == column
        if 0 < column < sampler._blocks:
            # A draw with these 32 bits asks for more.
            words = Words(high << 32 | 1 << 31, (low - 1) << 32, 0)
            assert sampler._draw(1, words) == [-column]
            assert not len(words)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("negative", [0, 1])
def test_bits_of_a_word(wide, negative):
    """Block, sign, acceptance and offset share no bit."""
    sampler = DiscreteGaussian(2**60 if wide else 2**40)
    assert (sampler._shift > 16) == wide
    block = int(np.argmax(sampler._alias == np.arange(2**13)))
    high, sure = block << 19, int(sampler._sure[block])
    offset = sampler._width - 1 if wide else 0b1011
    for accept, more in ((sure - 1, []), (sure, [0])):
        word = high << 32 | negative << 31 | accept << 16
        words = [word | 0x5A5A, offset] if wide else [word | offset]
        words = Words(*words, *more)
        (drawn,) = sampler._draw(1, words)
        # One past what is sure costs a comparison with 64 more bits.
        assert not len(words)
        x = (block << sampler._shift) | offset
        assert drawn == (-x if negative else x)


# The law of samples ---------------------------------------------------------


@pytest.mark.parametrize(
    "sampler, wrong, reach, least",
    [
        (DiscreteLaplace(0.3), DiscreteLaplace(0.31), 5, 10),
        (DiscreteLaplace(1), DiscreteLaplace(1.02), 12, 10),
        (DiscreteLaplace(Fraction(77, 9)), DiscreteLaplace(8.8), 90, 10),
        (DiscreteLaplace(2000), DiscreteLaplace(2060), 20_000, 1000),
        (DiscreteGaussian(0.25), DiscreteGaussian(0.26), 3, 10),
        (DiscreteGaussian(1), DiscreteGaussian(1.03), 6, 10),
        (DiscreteGaussian(Fraction(400, 3)), DiscreteGaussian(140), 60, 10),
        (DiscreteGaussian(2000**2), DiscreteGaussian(2060**2), 10_000, 1000),
    ],
    ids=repr,
)
def test_law(sampler, wrong, reach, least):
    values = sampler.sample(300_000, SeededWords([6, reach]))
    assert values.dtype == np.int64 and values.shape == (300_000,)
    right = chi_square(values, law(sampler, reach), reach, least)
    assert right > BY_CHANCE
    # The same samples reject another scale.
    assert chi_square(values, law(wrong, reach), reach, least) < 1e-6


@pytest.mark.parametrize(
    "make, reach",
    [
        (lambda: DiscreteLaplace(5), 90),
        (lambda: DiscreteGaussian(60), 60),
    ],
    ids=["laplace", "gaussian"],
)
def test_law_when_the_table_is_short(make, reach, monkeypatch):
    """Six blocks, the rest in the tail."""
    monkeypatch.setattr(discrete_noise, "_COLUMN_BITS", 3)
    sampler = make()
    assert sampler._blocks == 6
    values = sampler.sample(40_000, SeededWords(7))
    assert np.mean(np.abs(values) >= 6) > 0.25
    assert chi_square(values, law(sampler, reach), reach) > BY_CHANCE


@pytest.mark.parametrize(
    "make, reach",
    [
        (lambda: DiscreteLaplace(41.5), 700),
        (lambda: DiscreteGaussian(40**2), 240),
    ],
    ids=["laplace", "gaussian"],
)
@pytest.mark.parametrize("offset_bits", [16, 2])
def test_law_in_wide_blocks(make, reach, offset_bits, monkeypatch):
    """Blocks of 16 values: one draw in three is compared exactly."""
    monkeypatch.setattr(discrete_noise, "_SCALE_BITS", 1)
    sampler = make()
    assert sampler._width == 16
    monkeypatch.setattr(discrete_noise, "_OFFSET_BITS", offset_bits)
    values = sampler.sample(40_000, SeededWords([8, offset_bits]))
    assert chi_square(values, law(sampler, reach), reach) > BY_CHANCE


@pytest.mark.parametrize(
    "sampler, limit",
    [
        (DiscreteLaplace(2**22 - 1.3), stats.laplace(scale=2**22 - 1.3)),
        (DiscreteLaplace(2**49 + 0.3), stats.laplace(scale=2**49 + 0.3)),
        (DiscreteGaussian((2**22 - 1) ** 2), stats.norm(scale=2**22 - 1)),
        (DiscreteGaussian((2**49 + 1) ** 2), stats.norm(scale=2**49 + 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_law_of_large_scales(sampler, limit):
    """The continuous laws, to which they come within one lattice step."""
    values = sampler.sample(200_000, SeededWords(9))
    assert stats.kstest(values, limit.cdf).pvalue > BY_CHANCE
    wrong = stats.kstest(values * 1.05, limit.cdf)
    assert wrong.pvalue < 1e-6
    # All low bits are in use, on both sides of zero.
    for side in (values, values[values < 0], values[values > 0]):
        counts = np.bincount(side & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > BY_CHANCE


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_mean_and_variance(sampler):
    values = sampler.sample(200_000, SeededWords(10)).astype(float)
    if isinstance(sampler, DiscreteLaplace):
        # 2 q / (1 - q)^2 with q = exp(-1 / scale), without loss.
        variance = 1 / (2 * math.sinh(1 / (2 * float(sampler.scale))) ** 2)
    else:
        reach = min(1000, math.isqrt(int(sampler.variance_parameter)) * 9 + 9)
        square = np.arange(-reach, reach + 1.0) ** 2
        # The continuous variance from 1000 on, to far more than 15 digits.
        variance = (
            float(law(sampler, reach) @ square)
            if reach < 1000
            else float(sampler.variance_parameter)
        )
    assert abs(values.mean()) < 5 * math.sqrt(variance / len(values))
    error = np.std(values**2) / math.sqrt(len(values))
    assert abs(np.mean(values**2) - variance) < 5 * error


@pytest.mark.parametrize(
    "sampler, reach, expected",
    [
        (DiscreteLaplace(1000), 8000, 1e6 * math.exp(-8)),
        (DiscreteLaplace(2**30), 10 * 2**30, 1e6 * math.exp(-10)),
        (DiscreteGaussian(10**8), 40_000, 1e6 * 2 * stats.norm.sf(4)),
        (DiscreteGaussian(2**60), 4 * 2**30, 1e6 * 2 * stats.norm.sf(4)),
    ],
    ids=repr,
)
def test_tails(sampler, reach, expected):
    values = sampler.sample(10**6, SeededWords(11))
    count = np.sum(np.abs(values) >= reach)
    assert stats.poisson.cdf(count, expected) > BY_CHANCE
    assert stats.poisson.sf(count - 1, expected) > BY_CHANCE


@pytest.mark.parametrize("sampler", [SAMPLERS[3], SAMPLERS[8]], ids=repr)
def test_samples_are_independent(sampler):
    # More than one chunk, so that lags cross their seams.
    values = sampler.sample(200_000, SeededWords(12)).astype(float)
    for series in (values, np.abs(values), values % 2, values > 0):
        series = series - np.mean(series)
        series /= np.std(series)
        for lag in (1, 2, 3, 7, 2**14):
            covariance = np.mean(series[lag:] * series[:-lag])
            assert abs(covariance) < 5 / math.sqrt(len(series) - lag)
    # The sign and the low bit tell nothing of the size.
    size = stats.rankdata(np.abs(values))
    for bit in (values > 0, values % 2):
        assert stats.spearmanr(bit, size).pvalue > BY_CHANCE


def test_samples_are_fresh_and_seeds_repeat():
    sampler = SAMPLERS[4]
    one, two = sampler.sample(50, OSWords()), sampler.sample(50, OSWords())
    assert not np.any(one == two)
    assert len(np.unique(one)) == 50
    np.testing.assert_array_equal(
        sampler.sample(50, SeededWords(3)), sampler.sample(50, SeededWords(3))
    )


# Coins and integers ----------------------------------------------------------


@pytest.mark.parametrize(
    "probability", [1e-3, 0.25, Fraction(1, 3), 0.9, 1 - 2**-53]
)
def test_coins_fall_as_often_as_stated(probability):
    drawn = exact_draws.bernoulli(probability, 200_000, SeededWords(21))
    p = float(probability)
    assert drawn.dtype == bool
    error = math.sqrt(200_000 * p * (1 - p)) + 1e-3
    assert abs(drawn.sum() - 200_000 * p) < 5 * error


def test_coins_compare_all_digits():
    """Words on both sides of 64 bits of 1/3, and equal to them: the next word
    decides, and the next."""
    third = 2**64 // 3
    words = Words(third - 1, third, third + 1, third)
    words._words.extend([third - 1, third, third, 2**63])
    drawn = exact_draws.bernoulli(Fraction(1, 3), 4, words)
    np.testing.assert_array_equal(drawn, [True, True, False, False])
    assert not len(words)
    # A float has so many digits and no more: no further words.
    words = Words(2**62 - 1, 2**62, 2**64 - 1)
    drawn = exact_draws.bernoulli(0.25, 3, words)
    np.testing.assert_array_equal(drawn, [True, False, False])
    for sure in (0, 0.0, 1, 1.0):
        drawn = exact_draws.bernoulli(sure, 2, Words(0, 2**64 - 1))
        np.testing.assert_array_equal(drawn, bool(sure))


def test_coins_of_enclosed_probabilities():
    """1 / e, whose digits are asked for as they are needed."""
    asked = []

    def enclose(bits):
        asked.append(bits)
        return exp_bounds(1, 1, bits)

    first = exp_bounds(1, 1, 64)[0]
    below, above = exp_bounds(1, 1, 128)
    second = below - (first << 64)
    words = Words(first - 1, first, first, second - 1, second + 2)
    drawn = exact_draws.bernoulli(enclose, 3, words)
    np.testing.assert_array_equal(drawn, [True, True, False])
    assert asked == [64, 128, 128] and not len(words)


@pytest.mark.parametrize("bound", [1, 2, 7, 1000, 2**31 + 1, 2**32])
def test_integers_are_uniform(bound):
    drawn = exact_draws.uniform_integers(bound, 50_001, SeededWords(22))
    assert drawn.min() >= 0 and drawn.max() < bound
    cells = np.bincount(drawn * min(bound, 50) // bound)
    if bound > 1:
        edges = np.ceil(np.arange(len(cells) + 1) * bound / len(cells))
        expected = np.diff(edges) / bound * 50_001
        assert stats.chisquare(cells, expected).pvalue > BY_CHANCE


def test_integers_reject_the_uneven_rest():
    """2^32 = 3 * 1431655765 + 1: the last number would be a fourth 0."""
    words = Words((2**32 - 1) | 5 << 32, 1 | 2 << 32)
    drawn = exact_draws.uniform_integers(3, 2, words)
    np.testing.assert_array_equal(drawn, [2, 1])
    for wrong in (0, -1, 2.5, 2**32 + 1):
        with pytest.raises(ValueError, match="`bound`"):
            exact_draws.uniform_integers(wrong, 1, SeededWords(0))


def test_a_seed_has_a_generator_far_from_its_words():
    source = SeededWords(3)
    generator = source.generator()
    raw = generator.bit_generator.random_raw(1000)
    assert not np.intersect1d(raw, source.words(1000)).size
    again = SeededWords(3).generator().bit_generator.random_raw(1000)
    np.testing.assert_array_equal(raw, again)


# Extreme and wrong parameters -----------------------------------------------


def test_extreme_scales():
    for tiny in (DiscreteLaplace(1e-300), DiscreteGaussian(5e-324)):
        assert not np.any(tiny.sample(1000, SeededWords(14)))
    largest = DiscreteGaussian(Fraction(2**101 - 1, 2))
    values = largest.sample(1000, SeededWords(15))
    assert 2**49 < np.std(values.astype(float)) < 2**51
    values = DiscreteLaplace(math.nextafter(2.0**50, 0)).sample(
        1000, SeededWords(16)
    )
    assert 2**50 < np.std(values.astype(float)) < 2**51.5


def test_samples_that_do_not_fit_are_an_error(monkeypatch):
    monkeypatch.setattr(discrete_noise, "_COLUMN_BITS", 3)
    monkeypatch.setattr(discrete_noise, "_NOISE_LIMIT", 10)
    with pytest.raises(OverflowError, match="does not fit"):
        DiscreteLaplace(5).sample(1000, SeededWords(17))


# The lattice ----------------------------------------------------------------

floats = st.floats(allow_nan=False, allow_infinity=False)
exponents = st.integers(-960, 900)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(floats, exponents)
def test_rounding_moves_half_a_step_at_most(value, exponent):
    lattice = Lattice(exponent)
    (rounded,) = lattice.rounded([value])
    exact = Fraction(value) / Fraction(2) ** exponent
    if abs(exact) > 2**62:
        assert rounded == int(math.copysign(2**62, value))
        assert abs(value) > lattice.largest
        return
    # Python rounds fractions half to even.
    assert int(rounded) == round(exact)
    assert abs(rounded - exact) <= Fraction(1, 2)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_values_must_be_finite(wrong):
    with pytest.raises(ValueError, match="`values` must be finite"):
        Lattice(0).rounded([0.0, wrong])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(-(2**53), 2**53), exponents)
def test_points_are_exact_floats(integer, exponent):
    lattice = Lattice(exponent)
    value = float(lattice.values(integer))
    assert Fraction(value) == integer * Fraction(2) ** exponent
    assert lattice.rounded([value])[0] == integer


@st.composite
def neighbours(draw):
    """Two vectors; in half of the cases next to where rounding jumps."""
    dimension = draw(st.integers(1, 6))
    exponent = draw(st.integers(-3, 3))
    near = st.builds(
        lambda k, e: math.ldexp(k + 0.5 + e, exponent),
        st.integers(-3, 3),
        st.sampled_from([-(2.0**-40), 0.0, 2.0**-40]),
    )
    values = st.lists(
        st.one_of(near, st.floats(-10, 10)),
        min_size=dimension,
        max_size=dimension,
    )
    return exponent, draw(values), draw(values)


def distance(one, two, norm):
    """L1 distance, or the square of the L2 distance, exactly."""
    moved = [Fraction(a) - Fraction(b) for a, b in zip(one, two)]
    return sum(abs(m) if norm == "l1" else m * m for m in moved)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@settings(max_examples=300, deadline=None, derandomize=True)
@given(neighbours())
def test_sensitivity_bounds_rounded_distances(norm, drawn):
    exponent, one, two = drawn
    # The distance, rounded up to a float.
    exact = distance(one, two, norm)
    root = float(exact) if norm == "l1" else math.sqrt(exact)
    before = math.nextafter(root * (1 + 2.0**-50), math.inf)
    lattice = Lattice(exponent)
    bound = lattice.sensitivity(before, len(one), norm)
    after = distance(
        map(int, lattice.rounded(one)), map(int, lattice.rounded(two)), norm
    )
    assert after <= (bound if norm == "l1" else bound**2)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("dimension", [1, 2, 5, 50])
def test_sensitivity_is_nearly_attained(norm, dimension):
    """Coordinates that straddle a jump move by a step beyond their own."""
    lattice, move = Lattice(0), 2.0**-20
    one = np.full(dimension, 0.5 - move / 4)
    two = np.full(dimension, 3.5 + move / 4)
    # 3 + move / 2 between them becomes 4.
    root = dimension if norm == "l1" else math.sqrt(dimension)
    bound = lattice.sensitivity((3 + move) * root, dimension, norm)
    after = np.abs(lattice.rounded(two) - lattice.rounded(one))
    assert np.all(after == 4)
    # In squares, which are exact. Without rounding it would be 3 + move.
    square = dimension**2 if norm == "l1" else dimension
    assert 16 * square <= bound**2 <= 16 * square * (1 + Fraction(1, 10**6))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.floats(1e-100, 1e100),
    st.integers(1, 10**9),
    st.sampled_from(["l1", "l2"]),
    st.floats(1e-12, 10.0),
)
def test_lattice_is_the_coarsest_of_the_precision(s, d, norm, precision):
    lattice = Lattice.for_statistic(s, d, norm, precision)
    root = d if norm == "l1" else math.sqrt(d)
    cost = lattice.step * root / s
    assert precision / 2 * (1 - 1e-9) < cost <= precision * (1 + 1e-9)
    bound = lattice.sensitivity(s, d, norm) * Fraction(lattice.step)
    assert bound <= Fraction(s) * (1 + Fraction(precision) * (1 + 2**-40))


# Releases and their privacy -------------------------------------------------


@pytest.mark.parametrize(
    "release, sampled",
    [
        (
            laplace_release(sensitivity=0.7, epsilon=0.5, dimension=1000),
            lambda: stats.laplace(scale=1.4),
        ),
        (
            gaussian_release(
                sensitivity=0.7, noise_multiplier=3.0, dimension=1000
            ),
            lambda: stats.norm(scale=2.1),
        ),
    ],
    ids=["laplace", "gaussian"],
)
def test_release_adds_noise_of_the_stated_size(release, sampled):
    exact = np.linspace(-50, 50, 10_000)
    noisy = release(exact, SeededWords(18))
    assert noisy.dtype == np.float64 and noisy.shape == exact.shape
    steps = noisy / release.lattice.step
    assert np.all(steps == np.rint(steps))
    assert stats.kstest(noisy - exact, sampled().cdf).pvalue > BY_CHANCE


def test_laplace_release_spends_epsilon_exactly():
    release = laplace_release(sensitivity=0.3, epsilon=0.1, dimension=7)
    assert release.sensitivity / release.sampler.scale == Fraction(0.1)
    assert release.lattice == Lattice.for_statistic(0.3, 7, "l1")
    with pytest.raises(ValueError, match="`epsilon` must be a finite"):
        laplace_release(sensitivity=0.3, epsilon=0.0, dimension=7)
    with pytest.raises(ValueError, match=r"below 2\*\*50 steps"):
        laplace_release(sensitivity=0.3, epsilon=1e-9, dimension=10**7)


def gaussian_delta(epsilon, multiplier):
    """Of one Gaussian (Balle and Wang 2018, theorem 8)."""
    low = 0.5 / multiplier - epsilon * multiplier
    high = -0.5 / multiplier - epsilon * multiplier
    return stats.norm.cdf(low) - math.exp(epsilon) * stats.norm.cdf(high)


def lattice_delta(epsilon, variance, shift):
    """Of the discrete Gaussian for two vectors `shift` apart, summed up."""
    reach = math.ceil(12 * math.sqrt(variance)) + max(map(abs, shift))
    x = np.arange(-reach, reach + 1.0)
    total = np.exp(-(x**2) / (2 * variance)).sum()

    def joint(centre):
        one = [np.exp(-((x - c) ** 2) / (2 * variance)) for c in centre]
        return functools.reduce(np.multiply.outer, one) / total ** len(centre)

    excess = joint([0] * len(shift)) - math.exp(epsilon) * joint(shift)
    return np.maximum(excess, 0).sum()


@pytest.mark.parametrize("shift", [(1,), (3,), (1, 1), (2, 1), (3, 0)])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.0])
def test_discrete_gaussian_is_as_private_as_the_continuous(shift, multiplier):
    sensitivity = math.sqrt(sum(s * s for s in shift))
    plain = (multiplier * sensitivity) ** 2
    violated = False
    for epsilon in np.linspace(0.0, 6.0, 25):
        allowed = gaussian_delta(epsilon, multiplier)
        assert lattice_delta(epsilon, plain + 4, shift) <= allowed + 1e-14
        violated |= lattice_delta(epsilon, plain, shift) > allowed + 1e-9
    # The extra variance is not for nothing: without it some are violated.
    if shift == (1,):
        assert violated


def test_gaussian_release_pays_for_the_lattice():
    release = gaussian_release(
        sensitivity=0.3, noise_multiplier=2.5, dimension=9
    )
    variance = release.sampler.variance_parameter
    assert variance == (Fraction(2.5) * release.sensitivity) ** 2 + 4
    stddev = math.sqrt(variance) * release.lattice.step
    assert 0.75 < stddev < 0.75 * (1 + 1e-4)
    with pytest.raises(ValueError, match="`noise_multiplier` must be"):
        gaussian_release(sensitivity=1.0, noise_multiplier=-1.0, dimension=1)


@pytest.mark.parametrize("rounding", [0.1, 0.2, 0.3])
def test_rounded_gaussians_are_near_discrete_ones(rounding):
    """The lemma behind `log_ratio`, with a variance that shows an error."""
    gaussian = 1.5
    variance = gaussian + rounding
    total = sum(math.exp(-(k**2) / (2 * variance)) for k in range(-40, 41))

    def chance(y, x):
        weights = np.exp(-((np.arange(-30, 31) - y) ** 2) / (2 * rounding))
        mine = math.exp(-((x - y) ** 2) / (2 * rounding)) / weights.sum()
        return mine * stats.norm.pdf(y, scale=math.sqrt(gaussian))

    error = 2 * sum(
        math.exp(-2 * math.pi**2 * rounding * k**2) for k in range(1, 9)
    )
    worst = 0.0
    for x in range(4):
        found, _ = integrate.quad(chance, -12, 12, args=(x,), limit=200)
        exact = math.exp(-(x**2) / (2 * variance)) / total
        worst = max(worst, abs(math.log(found / exact)))
    # The error is there, and the lemma bounds it.
    assert 1e-5 < worst <= math.log((1 + error) / (1 - error))


def test_log_ratio():
    assert log_ratio(1) == pytest.approx(
        4 * math.exp(-8 * math.pi**2), rel=1e-2
    )
    assert log_ratio(2**40) < 1e-21
    with pytest.raises(ValueError, match="`dimension`"):
        log_ratio(0)
