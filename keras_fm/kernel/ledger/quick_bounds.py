"""Bounds on what mechanisms lose, and what finding the exact loss would cost.

An accountant convolves privacy losses on a grid, which is exact but takes
memory and time that grow with how far the losses reach. What reaches too far,
or is too much, has bounds in closed form: they are larger than the exact
epsilon and never smaller. Everything here sees mechanisms through their
numbers only (`pure_epsilon()`, `noise_multiplier`, `sampling_rate`, `steps`).
"""

import math

import numpy as np

# Privacy losses beyond this are not convolved: their grid would be coarser
# than what an exponential function holds.
_FARTHEST = 1e8
_COARSEST = 500.0
# More runs than this are not convolved: their number is an exponent.
_MOST_RUNS = 2**21
# dp_accounting takes the number of points to the power of many runs, as an
# integer, unless there are many points.
_MANY_RUNS, _MANY_POINTS = 2**18, 4000
# Randomised responses beyond this are not randomised.
_LARGEST_PURE = 700.0
# Seconds that a composition may take, by the measured costs below.
_PATIENCE = 1.6
# Seconds for a point of the losses of a Gaussian and of a sampled Gaussian,
# for a point of what is convolved, and for a point that is passed when
# overflows are paid for: usually, and where they take much of delta.
_POINT, _SAMPLED_POINT, _CONVOLVED_POINT = 1e-6, 5e-6, 5e-7
_PASSED_POINT, _SEARCHED_POINT = 2e-6, 1e-5
# Seconds for a part, however few points it has.
_PURE_PART, _SAMPLED_PART = 3e-4, 3e-2
# Of delta; sampling plans stay below it.
_LITTLE_OVERFLOW = 1e-3

# Between integers the divergences of sampled noise are series that may
# converge slowly.
_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 256)
_MOST_DIVERGENCES = 100
# What rounding may take off a divergence of one run, per unit of its order.
_ROUNDING = 2.0**-46
_SMALLEST_NOISE = 1e-3
# A delta beyond this promises nothing that is worth a grid.
_LARGEST_DELTA = 0.99


def reach(mechanisms):
    """How far the privacy losses reach, roughly."""
    return math.fsum(map(_reach, mechanisms))


def _one_reach(noise_multiplier):
    inverse = 1 / noise_multiplier
    return inverse**2 / 2 + 10 * inverse


def _reach(mechanism):
    pure = mechanism.pure_epsilon()
    if math.isfinite(pure):
        return pure
    one = _one_reach(mechanism.noise_multiplier)
    steps = _runs(mechanism)
    if steps == 1:
        return one
    # By the central limit theorem many steps are like one Gaussian (see
    # `sampling.noise_multiplier`), but never reach further than their sum.
    inverse = 1 / mechanism.noise_multiplier
    rate = mechanism.sampling_rate
    grown = math.expm1(min(inverse**2, 300.0)) if rate < 1 else inverse**2
    inverse = rate * math.sqrt(steps * grown)
    return min(steps * one, max(one, inverse**2 / 2 + 10 * inverse))


def _runs(mechanism):
    return getattr(mechanism, "steps", 1)


def is_within_reach(mechanisms, delta):
    """Whether losses can be convolved at all."""
    pure = (m.pure_epsilon() for m in mechanisms)
    return (
        delta <= _LARGEST_DELTA
        and sum(map(_runs, mechanisms)) <= _MOST_RUNS
        and reach(mechanisms) <= _FARTHEST
        and all(e <= _LARGEST_PURE or math.isinf(e) for e in pure)
    )


def coarsened(grid, parts, far, overflow):
    """A grid on which the composition of `parts` takes no longer than a
    second or two; `None` if there is none.

    Args:
        grid: float, the distance of the points that is asked for.
        parts: list of pairs, mechanisms and how often they run.
        far: float, how far all losses reach together.
        overflow: float, the probability of an overflow over delta.
    """
    points, seconds, finest = 0.0, 0.0, math.inf
    for part, count in parts:
        if math.isfinite(part.pure_epsilon()):
            seconds += _PURE_PART
            each = _POINT if count == 1 else _SAMPLED_POINT
            points += 2 * part.pure_epsilon() * each
            continue
        one = _one_reach(part.noise_multiplier)
        rate = getattr(part, "sampling_rate", 1.0)
        if rate == 1:
            points += 2 * one * _POINT
            continue
        if part.steps > _MANY_RUNS:
            finest = min(finest, one / _MANY_POINTS)
        # Of both orders of the neighbours.
        seconds += _SAMPLED_PART
        points += 2 * (one + min(one, -math.log1p(-rate))) * _SAMPLED_POINT
    levels = 1 + math.log2(len(parts))
    points += 2 * far * levels * _CONVOLVED_POINT
    if overflow:
        much = overflow > _LITTLE_OVERFLOW
        points += 2 * far * (_SEARCHED_POINT if much else _PASSED_POINT)
    if seconds > _PATIENCE:
        return None
    grid = max(grid, points / _PATIENCE)
    return grid if grid <= min(finest, _COARSEST) else None


class Bound:
    """Bounds on epsilon and delta of mechanisms run on the same records, asked
    as a privacy loss distribution is.

    The smallest of: pure epsilons add up; concentrated differential privacy,
    where a Gaussian has rho = 1 / (2 m^2), whether sampled or not, and a pure
    mechanism epsilon^2 / 2; and Renyi divergences of integer orders, where
    sampling counts.

    Args:
        mechanisms: sequence of `keras_fm.mechanisms.Mechanism`.

    Source: Bun and Steinke, "Concentrated Differential Privacy", 2016;
    Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled
    Gaussian Mechanism", 2019.
    """

    def __init__(self, mechanisms):
        pure, always, sampled = [], [], {}
        for m in mechanisms:
            if math.isfinite(m.pure_epsilon()):
                pure.append(m.pure_epsilon())
                continue
            rate = getattr(m, "sampling_rate", 1.0)
            if rate < 1:
                key = rate, m.noise_multiplier
                sampled[key] = sampled.get(key, 0) + _runs(m)
            else:
                always.append(_concentrated(_runs(m), m.noise_multiplier))
        self._pure = math.fsum(pure)
        self._rho = math.fsum(
            [*always, *(_concentrated(n, z) for (_, z), n in sampled.items())]
        )
        self._squares = math.fsum(e * e / 2 for e in pure)
        self._divergences = None
        if len(sampled) > _MOST_DIVERGENCES:
            # None of them tells more than the worst of them would.
            rates, multipliers = zip(*sampled)
            worst = max(rates), min(multipliers)
            sampled = {worst: sum(sampled.values())}
        if sampled and min(z for _, z in sampled) >= _SMALLEST_NOISE:
            orders = np.asarray(_ORDERS, np.float64)
            self._divergences = (
                np.minimum(self._pure, self._squares * orders)
                + math.fsum(always) * orders
                + _sampled_divergences(sampled, orders)
            )

    def get_epsilon_for_delta(self, delta):
        """An epsilon that is met at delta in (0, 1)."""
        from dp_accounting.rdp import rdp_privacy_accountant as rdp

        log = -math.log(delta)

        def concentrated(rho):
            return rho + 2 * math.sqrt(rho * log)

        found = [
            concentrated(self._rho + self._squares),
            self._pure + concentrated(self._rho),
        ]
        if self._divergences is not None:
            found.append(
                float(rdp.compute_epsilon(_ORDERS, self._divergences, delta)[0])
            )
        # The rounding of these few operations.
        return min(found) * (1 + 1e-12)

    def get_delta_for_epsilon(self, epsilon):
        """A delta that is met at epsilon >= 0."""
        from dp_accounting.rdp import rdp_privacy_accountant as rdp

        epsilon /= 1 + 1e-12

        def concentrated(rho, epsilon):
            if epsilon <= rho:
                return 1.0 if rho > 0 or epsilon < 0 else 0.0
            if rho == 0:
                return 0.0
            return math.exp(-((epsilon - rho) ** 2) / (4 * rho))

        found = [
            concentrated(self._rho + self._squares, epsilon),
            concentrated(self._rho, epsilon - self._pure),
        ]
        if self._divergences is not None:
            found.append(
                float(rdp.compute_delta(_ORDERS, self._divergences, epsilon)[0])
            )
        return min(found)


def _concentrated(runs, noise_multiplier):
    return runs / (2 * noise_multiplier**2)


def _sampled_divergences(sampled, orders):
    import dp_accounting
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    total = np.zeros(len(orders))
    for (rate, multiplier), steps in sampled.items():
        accountant = rdp.RdpAccountant(
            orders, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(
                rate, dp_accounting.GaussianDpEvent(multiplier)
            )
        )
        one = np.maximum(accountant.rdp, 0.0) + _ROUNDING * orders
        total += steps * one
    return total
