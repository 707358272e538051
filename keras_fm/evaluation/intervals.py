"""Intervals for shares of noisy counts, of a noise whose law is known.

A share a = R / N of N = R + W records is asked for, and R + Z and W + Z' are
known. At the true share (1 - a) R - a W is 0, so

    T(a) = (1 - a) (R + Z) - a (W + Z')

is noise alone, of a known law: the shares at which T(a) is not too far out
are an interval for these records, exactly at its level (Fieller 1954). For
the population that the records were drawn from, T(p) is noise plus a centred
binomial number, whose tails are added up. docs/proofs/evaluation.md.
"""

import dataclasses
import math

import numpy as np

from keras_fm.kernel import checks
from keras_fm.kernel.mechanisms import GaussianMechanism

OF = ("records", "population")
# Of the error of a population's interval: for the number of records.
_FOR_THE_COUNT = 0.05
# Shares at which an interval is looked for before its ends are found.
_GRID = 33
_HALVINGS = 22
# How far out, in standard deviations, a binomial number is followed.
_FAR = 10.0
# Draws of a sum of absolute values that has no closed law.
_DRAWS = 20_000


@dataclasses.dataclass(frozen=True)
class Interval:
    """A noisy value, and between which numbers the true one lies.

    Attributes:
        value: float, the noisy value; NaN where noise hides it.
        low, high: floats, the ends.
        level: float, the probability with which it holds.
        of: `"records"`: what is estimated is the value on these very
            records, and the interval is for the noise alone. `"population"`:
            the value on the population that they were drawn from, each
            independently; the interval is for noise and sampling.
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
    """The law of the noise on each coordinate of a release.

    Args:
        mechanism: a `GaussianMechanism` or a `LaplaceMechanism`.
        size: int, coordinates of the released vector.
    """

    def __init__(self, mechanism, size):
        drawn = mechanism.lattice_release(size)
        self.step = drawn.lattice.step
        self.is_gaussian = isinstance(mechanism, GaussianMechanism)
        if self.is_gaussian:
            steps = math.sqrt(drawn.sampler.variance_parameter)
        else:
            steps = float(drawn.sampler.scale)
        # Standard deviation, or the scale of Laplace's law.
        self.scale = steps * self.step

    def tail(self, t, first, second=0.0):
        """P(first * Z + second * Z' >= t), at least.

        Args:
            t, first, second: floats or arrays.
        """
        first, second = np.abs(first), np.abs(second)
        # Rounding to the lattice, of the statistic and of the law.
        t = np.asarray(t, float) - 2 * self.step * (first + second)
        if self.is_gaussian:
            from scipy import special

            stddev = self.scale * np.hypot(first, second)
            return special.ndtr(-t / stddev)
        return _laplace_tail(t, first * self.scale, second * self.scale)

    def margin(self, level, first=1.0, second=0.0):
        """What |first * Z + second * Z'| exceeds with probability
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
        """Noise of this law from a public generator: it is nobody's; sums of
        `counts` draws."""
        if self.is_gaussian:
            return rng.normal(0.0, self.scale * np.sqrt(counts), shape)
        # Of one a Laplace variable.
        first, second = (rng.gamma(counts, self.scale, shape) for _ in "12")
        return first - second

    def held(self, rng, noisy, counts=1, sampled=False):
        """What counts may have been, `(draws, *noisy.shape)`: those that are
        known less noise that is drawn anew.

        Args:
            noisy: counts, each of the noise of `counts` draws.
            sampled: whether it is what the counts are on average, if records
                are drawn independently.
        """
        noisy = np.asarray(noisy, float)
        found = noisy - self.draws(rng, (_DRAWS, *noisy.shape), counts)
        if not sampled:
            return found
        # One more record in each row: zeros are no proof of never.
        more = np.maximum(found, 0.0) + 1 / noisy.shape[-1]
        return np.where(found > 0, rng.gamma(more), found)


def _laplace_tail(t, first, second):
    """P(X >= t) of a sum of two Laplace variables of these scales."""
    large, small = np.maximum(first, second), np.minimum(first, second)
    large, small = np.broadcast_arrays(large * 1.0, small * 1.0)
    far = np.abs(t)
    ratio = small / large
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rest = np.where(small > 0, np.exp(-far / small), 0.0)
        apart = (np.exp(-far / large) - ratio**2 * rest) / (1 - ratio**2) / 2
    # The limit of equal scales.
    alike = np.exp(-far / large) * (2 + far / large) / 4
    above = np.where(ratio > 1 - 1e-5, alike, apart)
    return np.where(t >= 0, above, 1 - above)


def share(law, right, wrong, *, records=0, level=0.95, of="records"):
    """The interval of `R / (R + W)`.

    Args:
        law: a `NoiseLaw`.
        right: float, noisy R.
        wrong: float, noisy W; not read if the number of records is known.
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
    return Interval(value, low, high, level, of)


def _test(law, right, wrong, records, level, of):
    """A function that says whether a share is in the interval."""

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
        # One-sided: twice the error for half the room.
        room = law.margin(1 - 4 * outside * _FOR_THE_COUNT, 1.0, 1.0)
        most = max(0, math.ceil(right + wrong + room))
        outside *= 1 - _FOR_THE_COUNT

    def accepted_of_many(p):
        t, *weights = moved(p)
        return _drawn_tail(law, t, weights, p, most) >= outside

    return accepted_of_many


def _drawn_tail(law, t, weights, p, records):
    """P(X >= t), or P(X <= t) for t < 0, of noise plus a centred binomial
    number of `records` coins."""
    from scipy import stats

    # As many heads as tails of 1 - p: the law mirrored.
    p, t = (p, t) if t >= 0 else (1 - p, -t)
    mean, stddev = records * p, math.sqrt(records * p * (1 - p))
    low = max(0, math.floor(mean - _FAR * stddev - _FAR))
    high = min(records, math.ceil(mean + _FAR * stddev + _FAR))
    heads = np.arange(low, high + 1)
    weight = stats.binom.pmf(heads, records, p)
    return float(weight @ law.tail(t - (heads - mean), *weights))


def _ends(accepted, value):
    """The hull of the shares in [0, 1] that are accepted."""
    grid = np.linspace(0.0, 1.0, _GRID)
    if not math.isnan(value):
        grid = np.unique(np.append(grid, value))
    inside = np.flatnonzero([accepted(p) for p in grid])
    if not len(inside):
        # Noise far out, at every share: nothing is known.
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
        # Outwards by what the search may miss.
        return float(lost)

    return end(inside[0], -1), end(inside[-1], 1)


def ratio(part, whole):
    """Their ratio, NaN where the whole is not above 0."""
    whole = np.where(np.asarray(whole) > 0, whole, np.nan)
    return part / whole


def area(table):
    """The area under the curve of two classes' counts `(..., 2, bins)`, bins
    in the order of scores: without and with pairs of one bin."""
    first, second = table[..., 0, :], table[..., 1, :]
    below = np.cumsum(first, axis=-1) - first
    apart = (second * below).sum(axis=-1)
    ties = np.maximum((second * first).sum(axis=-1), 0.0)
    pairs = [ratio(1.0, v.sum(axis=-1)) for v in (first, second)]
    return tuple(v * pairs[0] * pairs[1] for v in (apart, apart + ties))


def of_draws(
    value, least_drawn, most_drawn=None, *, level, of="records", least=0.0
):
    """The interval of a number by what it is of counts less drawn noise,
    `NoiseLaw.held`.

    A draw that hides it (NaN) is beyond both ends. Of a ratio of two sums it
    is the interval of `share`, of other functions nearly.

    Args:
        value: float, of the noisy counts.
        least_drawn, most_drawn: `(draws,)`, the least and the most that the
            number may be; the same if one is given.
        level: float in (0, 0.99].
        of: see `share`.
        least: which it cannot be below; it cannot be above 1.

    Returns:
        An `Interval`.
    """
    # Farther out there are too few draws.
    outside = 0.45 * (1 - checks.number("level", level, above=0, at_most=0.99))
    most_drawn = least_drawn if most_drawn is None else most_drawn
    known = (
        np.where(np.isnan(least_drawn), -math.inf, least_drawn),
        np.where(np.isnan(most_drawn), math.inf, most_drawn),
    )
    # No mean of two draws: of infinite ones it is none.
    low, high = (
        np.quantile(drawn, tail, method="inverted_cdf")
        for drawn, tail in zip(known, (outside, 1 - outside))
    )
    found = (float(np.clip(v, least, 1.0)) for v in (value, low, high))
    return Interval(*found, level, of)


def absolute_sum(law, right, wrong, confidence, *, records=0, level=0.95):
    """The interval of `sum_b |R_b - c_b N_b| / N` over bins, of the records.

    With D_b = (1 - c_b) R_b - c_b W_b and noise Z_b on it, the sum of the
    |D_b| is at most that of the noisy ones plus `sum s_b Z_b` for the true
    signs s, whose law no sign changes, and at least that of the noisy ones
    less `sum |Z_b|`.

    Args:
        law: a `NoiseLaw`.
        right, wrong: `(B,)` noisy counts.
        confidence: `(B,)`, c.
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
        # A tenth of the error for N; another for what draws do not show.
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
    return Interval(value, min(low, 1.0), high, level, "records")
