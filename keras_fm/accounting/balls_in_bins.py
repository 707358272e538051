"""The privacy cost of epochs in which each record is in one random step.

Each record enters one of `bins` noisy sums, chosen uniformly. The proof is in
docs/proofs/balls_in_bins.md. S is the mean of `bins` independent W, each the
likelihood ratio of one Gaussian. Putting W on a grid never lowers the cost.
"""

import math

import numpy as np

# Grid points per standard deviation of W, and the most points.
_FINE, _MOST_POINTS = 25, 2**21
# The tail that is cut off W has at most this mean, if the points suffice.
_TAIL = 2.0**-40
# Probability of a sum outside the window that is computed.
_OUTSIDE = 2.0**-44
# Below the least noise, W has tails that no grid holds. An epoch is then
# accounted as if the step of a record were known, which costs more. Noise
# above the most counts as the most.
_LEAST_NOISE, _MOST_NOISE = 0.45, 1e3
# Error of call prices, and of each level of a fast Fourier transform.
_ROUNDING = 2.0**-50


def loss_distribution(bins, noise_multiplier, grid):
    """A dp_accounting privacy loss distribution that dominates one epoch.

    Args:
        bins: int >= 1, steps of an epoch.
        noise_multiplier: float > 0.
        grid: float > 0, privacy losses are multiples of it.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld_lib

    if bins == 1 or noise_multiplier < _LEAST_NOISE:
        return pld_lib.from_gaussian_mechanism(
            standard_deviation=noise_multiplier,
            value_discretization_interval=grid,
        )
    from scipy.special import ndtri

    noise_multiplier = min(noise_multiplier, _MOST_NOISE)
    inverse = 1 / noise_multiplier
    width = math.sqrt(math.expm1(inverse**2)) / _FINE
    top = math.exp(inverse**2 / 2 - ndtri(_TAIL) * inverse)
    # Without the record, S = 0 would cost everything. On this grid it is rare.
    low = ndtri(_OUTSIDE ** (1 / bins)) * inverse - inverse**2 / 2
    fine = min(width, math.exp(low))
    return pld_lib.PrivacyLossDistribution(
        _losses(bins, noise_multiplier, grid, width, top, there=True),
        _losses(bins, noise_multiplier, grid, fine, top, there=False),
    )


def _losses(bins, noise, grid, width, top, there):
    """The losses of one direction: log S with the record, else its negative."""
    from dp_accounting.pld import pld_pmf
    from scipy import fft

    count = min(math.ceil(top / width), _MOST_POINTS)
    values = width * np.arange(count + 1)
    # Far below, where W never is, the law would be rounding errors alone.
    first = math.floor(math.exp(-0.5 / noise**2 - 9 / noise) / width)
    kept = np.r_[0, max(first, 1) : count + 1]
    law = np.zeros(count + 1)
    law[kept], beyond, error = on_points(values[kept], noise)
    start, size = _window(values[kept], noise, bins, width)
    size = fft.next_fast_len(max(size, len(law)), real=True)
    other = fft.rfft(law, size)
    own = fft.rfft(law * values, size) if there else other
    most = _power(other, bins - 2)
    rest = most * other
    # The mass that rounding may move, in both transforms and in the power.
    moved = 2 * np.abs(rest) + (bins - 1) * np.abs(most * own)
    error += 2 * math.log2(size) * _ROUNDING * moved.sum()
    masses = np.roll(fft.irfft(rest * own, size), -(start % size))
    masses = np.maximum(masses, 0)
    sums = width * (start + np.arange(size))
    error += 2 * _OUTSIDE + _ROUNDING * bins / max(sums[0], width)
    if sums[0] == 0:
        error += 0 if there else masses[0]
        sums, masses = sums[1:], masses[1:]
    losses = np.log(sums / bins)
    if not there:
        losses, masses = -losses[::-1], masses[::-1]
    # Improbable losses are rounded far up.
    first = np.searchsorted(np.cumsum(masses), error)
    last = size - np.searchsorted(np.cumsum(masses[::-1]), error)
    losses = np.maximum(losses, losses[min(first, len(losses) - 1)])[:last]
    error += masses[last:].sum()
    masses = masses[:last]
    # Split between two points of the grid, which keeps the mean of 1/S.
    places = np.floor(losses / grid).astype("int64")
    up = np.expm1(places * grid - losses) / math.expm1(-grid)
    lowest = places.min()
    places -= lowest
    found = np.bincount(places, masses * (1 - up), places.max() + 2)
    found += np.bincount(places + 1, masses * up, len(found))
    return pld_pmf.DensePLDPmf(
        grid, int(lowest), found, min(error + beyond * there, 1.0), True
    )


def _power(values, exponent):
    """Powers by squaring: for complex numbers far faster than `**`."""
    found = np.ones_like(values)
    while exponent:
        if exponent % 2:
            found = found * values
        values, exponent = values * values, exponent // 2
    return found


def on_points(points, noise):
    """A law on few points that is at least as spread as that of W.

    Args:
        points: increasing floats, the first 0.
        noise: float > 0, the noise multiplier.

    Returns:
        the probabilities of the points; the mean of the part beyond the last
        point, at infinity and of probability 0; and a bound on what rounding
        moved.
    """
    from scipy.special import ndtr

    # E max(W - w, 0), as the price of an option (Black and Scholes).
    far, half = np.log(points[1:]) * noise, 0.5 / noise
    prices = ndtr(half - far) - points[1:] * ndtr(-half - far)
    prices = np.concatenate([[1.0], prices])
    slopes = np.diff(prices) / np.diff(points)
    law = np.diff(np.concatenate([[-1.0], slopes, [0.0]]))
    moved = -np.minimum(law, 0) @ np.maximum(points, 1)
    return np.maximum(law, 0), max(prices[-1], 0.0), moved


def _window(values, noise, bins, width):
    """Where sums of `bins` W lie, except for `_OUTSIDE` on either side: the
    first multiple of the width, and how many multiples."""
    last, nats = len(values) - 1, -math.log(_OUTSIDE)
    places = np.geomspace(1, last, 500).astype("int64")
    points = values[np.unique(np.concatenate([[0], places, [last]]))]
    law, _, _ = on_points(points, noise)
    # From below, as all W are positive.
    mean, square = law @ points, law @ points**2
    low = bins * mean - math.sqrt(2 * bins * square * nats)
    # From above by Chernoff's bound, where the record is there.
    slopes = np.geomspace(0.1, 500, 200) / values[-1]
    grown = np.exp(slopes[:, None] * points)
    high = nats + (bins - 1) * np.log(grown @ law)
    high = np.min((high + np.log(grown @ (law * points))) / slopes)
    start = max(0, math.floor(low / width))
    return start, math.ceil(high / width) - start + 1
