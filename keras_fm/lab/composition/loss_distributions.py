"""Privacy loss distributions of the stages, by dp_accounting."""

import dataclasses
import functools
import math

import numpy as np

from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.lab.composition.plan import merged
from keras_fm.lab.composition.steps import amplified

# Below this, tails show the rounding of the fast Fourier transform.
SMALLEST_DELTA = 1e-12


@dataclasses.dataclass(frozen=True)
class Response:
    """`count` randomised responses: the worst (epsilon, delta)-DP steps."""

    epsilon: float
    delta: float
    count: int

    def reach(self):
        return self.epsilon

    def loss_distribution(self, grid):
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld import privacy_loss_distribution as pld_lib

        # Between grid points the trade-off is replaced by a chord above it
        # (dp_accounting's "connect the dots"), so a step is exact if its
        # epsilon is on the grid, and quadratically close otherwise.
        last = math.ceil(self.epsilon / grid - 1e-9)
        x = np.arange(-last, last + 1) * grid
        epsilon = self.epsilon
        log_for = -np.logaddexp(0.0, -epsilon)
        log_against = -np.logaddexp(0.0, epsilon)
        below = -np.expm1(np.minimum(x, 0.0))
        between = np.exp(log_for) * -np.expm1(
            np.minimum(x + log_against - log_for, 0.0)
        )
        delta = np.where(x <= -epsilon, below, between)
        delta = self.delta + (1 - self.delta) * np.clip(delta, 0.0, 1.0)
        # Rounding must not make it rise.
        delta = np.minimum.accumulate(delta)
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            grid, -last, last, delta
        )
        return pld_lib.PrivacyLossDistribution(pmf).self_compose(self.count)


@dataclasses.dataclass(frozen=True)
class _Gaussian:
    noise_multiplier: float
    rate: float
    count: int

    def reach(self):
        inverse = 1 / self.noise_multiplier
        one = inverse**2 / 2 + 10 * inverse
        return amplified(one, 0.0, self.rate)[0]

    def loss_distribution(self, grid):
        return mechanisms_lib.SampledGaussianMechanism(
            sensitivity=1.0,
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.rate,
            steps=self.count,
        ).loss_distribution(grid)


@dataclasses.dataclass(frozen=True)
class _Laplace:
    epsilon: float
    rate: float
    count: int

    def reach(self):
        return amplified(self.epsilon, 0.0, self.rate)[0]

    def loss_distribution(self, grid):
        from dp_accounting.pld import privacy_loss_distribution as pld_lib

        return pld_lib.from_laplace_mechanism(
            1 / self.epsilon,
            sampling_prob=self.rate,
            value_discretization_interval=grid,
        ).self_compose(self.count)


def parts_of(plan):
    parts, precision = [], 0.0
    for s in merged(plan.stages):
        rate = float(s.sampling_rate)
        if s.mechanism == "laplace":
            parts.append(_Laplace(s.pure_epsilon, rate, s.count))
        elif s.mechanism != "gaussian":
            pair = amplified(s.pure_epsilon, s.delta or 0.0, rate)
            parts.append(Response(*pair, s.count))
        elif rate < 1:
            parts.append(_Gaussian(float(s.noise_multiplier), rate, s.count))
        else:
            precision += s.count * float(s.noise_multiplier) ** -2
    if precision:
        # Gaussians on the same records compose to one Gaussian, exactly.
        parts.append(_Gaussian(precision**-0.5, 1.0, 1))
    return parts


def _grid(parts, scale):
    """Distance of the points on which privacy losses are kept.

    The error of a chord is about an eighth of the squared distance, so that of
    all steps together is about 1e-4 of epsilon. The bounds below limit the
    points to some 10^5 for a step and 10^7 for the whole.
    """
    count = sum(p.count for p in parts)
    scale = max(scale, 1e-4)
    grid = min(1e-3 * scale, math.sqrt(8e-4 * scale / count))
    for p in parts:
        grid = max(grid, 1e-5 * p.reach(), 2e-9 * p.reach() * p.count)
    responses = [p for p in parts if isinstance(p, Response)]
    if responses:
        # The grid can contain one randomised response: the most frequent.
        epsilon = max(responses, key=lambda p: p.count).epsilon
        grid = epsilon / max(1, math.ceil(epsilon / grid))
    return grid


def epsilon_of(parts, delta, scale):
    """Epsilon of all parts at delta; infinite if the rounding of the transforms
    may exceed delta."""
    delta -= mechanisms_lib.transform_error(sum(p.count for p in parts))
    if delta <= 0:
        return math.inf
    grid = _grid(parts, scale)
    total = functools.reduce(
        lambda p, q: p.compose(q), [p.loss_distribution(grid) for p in parts]
    )
    return float(total.get_epsilon_for_delta(delta))
