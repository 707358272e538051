"""Confidence intervals for shares of noisy counts with a known noise law.

We want the share a = R / N of N = R + W records, and know R + Z and W + Z' with
noise Z and Z'. At the true share (1 - a) R - a W is 0, so

    T(a) = (1 - a) (R + Z) - a (W + Z')

is noise alone, with a known law. The shares at which T(a) is not in the tails
are an interval for these records, at its level exactly (Fieller 1954). For the
population that the records were drawn from, T(p) is noise plus a centred
binomial number, whose tails are summed. docs/proofs/evaluation.md.
"""

import dataclasses
import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.mechanisms import GaussianMechanism

OF = ("records", "population")
# Share of the error probability of a population's interval that is spent on the
# number of records.
_FOR_THE_COUNT = 0.05
# Number of shares at which the search for an interval starts.
_GRID = 33
_HALVINGS = 22
# Binomial numbers are summed up to so many standard deviations.
_FAR = 10.0
# Draws for a sum of absolute values, whose law has no closed form.
_DRAWS = 20_000


@dataclasses.dataclass(frozen=True)
class Interval:
    """A noisy value, and the two numbers between which the true value lies.

    Attributes:
        value: float, the noisy value; NaN where noise hides it.
        low, high: floats, the ends.
        level: float, the probability with which the interval holds.
        of: `"records"` if it is for the value on these records: it covers
            the noise alone. `"population"` if it is for the population from
            which they were drawn independently: it covers noise and sampling.
    """

    value: float
    low: float
    high: float
    level: float
    of: str

    def __str__(self):
        return (
            f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}] "
            f"({self.level:.0%}, {self.of})"
        )


class NoiseLaw:
    """The law (probability distribution) of the noise on each coordinate.

    Args:
        mechanism: a `GaussianMechanism` or a `LaplaceMechanism`.
        size: int, number of coordinates of the released vector.
    """

    def __init__(self, mechanism, size):
        drawn = mechanism.lattice_release(size)
        self.step = drawn.lattice.step
        self.is_gaussian = isinstance(mechanism, GaussianMechanism)
        if self.is_gaussian:
            steps = math.sqrt(drawn.sampler.variance_parameter)
        else:
            steps = float(drawn.sampler.scale)
        # Standard deviation of a Gaussian, or scale of a Laplace law.
        self.scale = steps * self.step

    def tail(self, t, first, second=0.0):
        """An upper bound on P(first * Z + second * Z' >= t).

        Args:
            t, first, second: floats or arrays.
        """
        first, second = np.abs(first), np.abs(second)
        # Statistic and noise are both rounded to the lattice.
        t = np.asarray(t, float) - 2 * self.step * (first + second)
        if self.is_gaussian:
            from scipy import special

            stddev = self.scale * np.hypot(first, second)
            return special.ndtr(-t / stddev)
        return _laplace_tail(t, first * self.scale, second * self.scale)

    def margin(self, level, first=1.0, second=0.0):
        """The number that |first * Z + second * Z'| exceeds with probability
        `1 - level`."""
        outside, low, high = (1 - level) / 2, 0.0, self.scale
        while self.tail(high, first, second) > outside:
            low, high = high, 2 * high
        for _ in range(60):
            middle = (low + high) / 2
            far = self.tail(middle, first, second) > outside
            low, high = (middle, high) if far else (low, middle)
        return high

    def draws(self, rng, shape, counts=1):
        """Sums of `counts` draws of this law from a public generator. This
        noise protects no record."""
        if self.is_gaussian:
            return rng.normal(0.0, self.scale * np.sqrt(counts), shape)
        # A difference of two gamma variables; for one count it is Laplace.
        first, second = (rng.gamma(counts, self.scale, shape) for _ in "12")
        return first - second

    def held(self, rng, noisy, counts=1, sampled=False):
        """Plausible true counts, `(draws, *noisy.shape)`: the noisy counts less
        newly drawn noise.

        Args:
            noisy: counts, each with the noise of `counts` draws.
            sampled: whether to return plausible expected counts of a
                population from which records are drawn independently.
        """
        noisy = np.asarray(noisy, float)
        found = noisy - self.draws(rng, (_DRAWS, *noisy.shape), counts)
        if not sampled:
            return found
        # One more record in each row: a count of 0 may still be possible.
        more = np.maximum(found, 0.0) + 1 / noisy.shape[-1]
        return np.where(found > 0, rng.gamma(more), found)


def _laplace_tail(t, first, second):
    """P(X >= t) for a sum of two Laplace variables with these scales."""
    large, small = np.maximum(first, second), np.minimum(first, second)
    large, small = np.broadcast_arrays(large * 1.0, small * 1.0)
    far = np.abs(t)
    ratio = small / large
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rest = np.where(small > 0, np.exp(-far / small), 0.0)
        apart = (np.exp(-far / large) - ratio**2 * rest) / (1 - ratio**2) / 2
    # The limit for equal scales.
    alike = np.exp(-far / large) * (2 + far / large) / 4
    above = np.where(ratio > 1 - 1e-5, alike, apart)
    return np.where(t >= 0, above, 1 - above)


def share(law, right, wrong, *, records=0, level=0.95, of="records"):
    """The interval of `R / (R + W)`.

    Args:
        law: a `NoiseLaw`.
        right: float, noisy R.
        wrong: float, noisy W; ignored if the number of records is public.
        records: int, the number of records if it is public, or 0.
        level: float in (0, 1).
        of: `"records"` or `"population"`.

    Returns:
        An `Interval` inside [0, 1].
    """
    checks.number("level", level, above=0, below=1)
    checks.either("of", of, OF)
    total = records or right + wrong
    value = min(max(right / total, 0.0), 1.0) if total > 0 else math.nan
    low, high = _ends(_test(law, right, wrong, records, level, of), value)
    return Interval(*map(float, (value, low, high)), level, of)


def _test(law, right, wrong, records, level, of):
    """Returns a function: whether a share is in the interval."""

    def moved(p):
        """T(p), and the weights of the noise in it."""
        if records:
            return right - p * records, 1.0, 0.0
        return (1 - p) * right - p * wrong, 1 - p, p

    outside, most = (1 - level) / 2, records
    if of == "records":

        def accepted(p):
            t, first, second = moved(p)
            return law.tail(abs(t), first, second) >= outside

        return accepted
    if not records:
        # One-sided, so twice the error probability is allowed.
        room = law.margin(1 - 4 * outside * _FOR_THE_COUNT, 1.0, 1.0)
        most = max(0, math.ceil(right + wrong + room))
        outside *= 1 - _FOR_THE_COUNT

    def accepted_of_many(p):
        t, *weights = moved(p)
        return _drawn_tail(law, t, weights, p, most) >= outside

    return accepted_of_many


def _drawn_tail(law, t, weights, p, records):
    """P(X >= t), or P(X <= t) for t < 0, for noise plus a centred binomial
    number of `records` trials."""
    from scipy import stats

    # For t < 0 mirror the law: failures are successes with 1 - p.
    p, t = (p, t) if t >= 0 else (1 - p, -t)
    mean, stddev = records * p, math.sqrt(records * p * (1 - p))
    low = max(0, math.floor(mean - _FAR * stddev - _FAR))
    high = min(records, math.ceil(mean + _FAR * stddev + _FAR))
    heads = np.arange(low, high + 1)
    weight = stats.binom.pmf(heads, records, p)
    return float(weight @ law.tail(t - (heads - mean), *weights))


def _ends(accepted, value):
    """The smallest interval with all accepted shares in [0, 1]."""
    grid = np.linspace(0.0, 1.0, _GRID)
    if not math.isnan(value):
        grid = np.unique(np.append(grid, value))
    inside = np.flatnonzero([accepted(p) for p in grid])
    if not len(inside):
        # The noise is extreme at every share: nothing is known.
        return 0.0, 1.0

    def end(index, step):
        kept, other = grid[index], index + step
        if not 0 <= other < len(grid):
            return float(kept)
        lost = grid[other]
        for _ in range(_HALVINGS):
            middle = (kept + lost) / 2
            if accepted(middle):
                kept = middle
            else:
                lost = middle
        # Outwards, by the precision of the search.
        return float(lost)

    return end(inside[0], -1), end(inside[-1], 1)


def ratio(part, whole):
    """part / whole, NaN if the whole is not above 0."""
    whole = np.where(np.asarray(whole) > 0, whole, np.nan)
    return part / whole


def area(table):
    """The AUC from counts of two classes `(..., 2, bins)`, bins in the order of
    scores: without and with the pairs that share a bin."""
    first, second = table[..., 0, :], table[..., 1, :]
    below = np.cumsum(first, axis=-1) - first
    apart = (second * below).sum(axis=-1)
    ties = np.maximum((second * first).sum(axis=-1), 0.0)
    pairs = [ratio(1.0, v.sum(axis=-1)) for v in (first, second)]
    return tuple(v * pairs[0] * pairs[1] for v in (apart, apart + ties))


def of_draws(
    value, least_drawn, most_drawn=None, *, level, of="records", least=0.0
):
    """The interval of a number from its values on plausible counts, see
    `NoiseLaw.held`.

    A draw with NaN counts as beyond both ends. For a ratio of two sums this is
    the interval of `share`; for other functions it is approximate.

    Args:
        value: float, the number for the noisy counts.
        least_drawn, most_drawn: `(draws,)`, the least and the largest value
            for each draw. Without the second both are the first.
        level: float in (0, 0.99].
        of: see `share`.
        least: the least possible value; the largest is 1.

    Returns:
        An `Interval`.
    """
    # Above 0.99 there are too few draws.
    outside = 0.45 * (1 - checks.number("level", level, above=0, at_most=0.99))
    most_drawn = least_drawn if most_drawn is None else most_drawn
    known = (
        np.where(np.isnan(least_drawn), -math.inf, least_drawn),
        np.where(np.isnan(most_drawn), math.inf, most_drawn),
    )
    # Not a mean of two draws: they may be infinite.
    low, high = (
        np.quantile(drawn, tail, method="inverted_cdf")
        for drawn, tail in zip(known, (outside, 1 - outside))
    )
    found = (float(np.clip(v, least, 1.0)) for v in (value, low, high))
    return Interval(*found, level, of)


def absolute_sum(law, right, wrong, confidence, *, records=0, level=0.95):
    """The interval of `sum_b |R_b - c_b N_b| / N` over bins, for the records.

    Let D_b = (1 - c_b) R_b - c_b W_b, with noise Z_b on it. `sum |D_b|` is at
    most the noisy sum plus `sum s_b Z_b` for the true signs s. The law of Z is
    symmetric, so the signs do not change it. `sum |D_b|` is at least the noisy
    sum less `sum |Z_b|`.

    Args:
        law: a `NoiseLaw`.
        right, wrong: `(B,)` noisy counts.
        confidence: `(B,)`, the c_b.
        records, level: see `share`.

    Returns:
        An `Interval` inside [0, 1].
    """
    checks.number("level", level, above=0, below=1)
    noisy = np.abs((1 - confidence) * right - confidence * wrong).sum()
    outside, total = 1 - level, float(np.sum(right) + np.sum(wrong))
    room = 0.0
    rng = np.random.default_rng(0)
    shape = (_DRAWS, len(right))
    z = (1 - confidence) * law.draws(rng, shape)
    z -= confidence * law.draws(rng, shape)
    if not records:
        # A tenth of the error probability is for N, another for the draws.
        sums = np.abs(law.draws(rng, (_DRAWS, 2 * len(right))).sum(axis=1))
        room = float(np.quantile(sums, 1 - 0.09 * outside))
        outside *= 0.9
    up = float(np.quantile(z.sum(axis=1), 1 - 0.45 * outside))
    down = float(np.quantile(np.abs(z).sum(axis=1), 1 - 0.45 * outside))
    least, most = (
        (records, records) if records else (total - room, total + room)
    )
    total = records or total
    value = min(noisy / total, 1.0) if total > 0 else math.nan
    low = max(0.0, noisy - down) / most if most > 0 else 0.0
    high = min(1.0, (noisy + up) / least) if least > 0 else 1.0
    found = (float(v) for v in (value, min(low, 1.0), high))
    return Interval(*found, level, "records")
