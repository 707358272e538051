"""Features whitened by a released second moment: all directions weigh alike.

The curvature of a loss on whitened features is known before training begins.
So one rule from public numbers gives steps that converge without oscillating.
"""

import dataclasses
import math

import numpy as np

from keras_fm.core.second_moment import SecondMomentQuery
from keras_fm.heads.coefficient_grid import CoefficientGrid
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import sums as summation

# The bound over the length of a typical whitened row. Rows beyond the bound are
# scaled back, with their constant entry, and are then fitted wrongly: a rare
# flag makes a row five times as long. A larger factor adds no noise, unlike a
# larger clip. This rule and those below were chosen on made-up tables that
# docs/results/more_budget.md does not report.
_ROOM = 8.0
# In lengths of typical rows: the largest coefficient of a longer row is
# clipped, whatever the budget.
_LONG = 1.5
# Added to every eigenvalue, in units of the noise's spectral edge.
_RIDGE = 0.5
# Eigenvalues below this share of the largest come from rounding of features.
_LEAST = 1e-6
# Largest true curvature along released directions, over the released one: noise
# may hide up to one edge. Momentum tolerates more than this factor.
_HIDDEN = 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """Facts about a loss from which clip and learning rate follow.

    Attributes:
        curvature: largest curvature of one record's loss in its logits.
        residual: length of the longest possible residual at the minimum.
        noise: standard deviation that `clip` may give a logit, in one
            release of the whole budget.
    """

    curvature: float
    residual: float
    noise: float


def rule(loss, outputs, independent=False):
    """The `Rule` of a loss.

    A clip below the residuals biases probabilities and means; a clip above
    them adds noise for nothing. Numbers get a smaller clip, because their
    residuals are usually far below the largest possible.

    Args:
        loss, outputs: those of the layer.
        independent: whether the outputs are separate labels.

    Returns:
        A `Rule`.
    """
    if loss == "squared_error":
        most = 2 * math.sqrt(outputs)
        return Rule(curvature=1.0, residual=most, noise=0.005)
    if outputs == 1 or independent:
        most = math.sqrt(outputs)
        return Rule(curvature=0.25, residual=most, noise=0.1)
    return Rule(curvature=0.5, residual=math.sqrt(2), noise=0.1)


# The least length of a typical row, which noise may make too short.
_LEAST_LENGTH = 0.5
# The least clip, in lengths of a typical row.
_LEAST_CLIP = 0.1
# Standard deviation of a logit from the noise of all rounds: bounds the rate.
_LOGIT_NOISE = 1.2


def clip(known, outputs, m, bound, units, multiplier):
    """The threshold on a coefficient: as large as the noise of the logits
    allows, between a tenth of a typical row and the longest residuals.

    Args:
        known: a `Rule`.
        outputs: number of outputs.
        m: length of a feature vector.
        bound: C, bound on features.
        units: number of privacy units, public.
        multiplier: standard deviation, over the threshold, that the noise of
            one release of the whole budget would have.
    """
    # Noise of one Newton step that is clipped at the length of a typical row.
    added = 1.25 * m * multiplier * math.sqrt(outputs) / units
    share = max(known.noise * known.curvature / added, _LEAST_CLIP)
    return bound / _ROOM * min(share, _LONG * known.residual)


def _length(values, scale, edge):
    """Length of a typical row after direction j is divided by the root of
    `scale[j]`. The trace has little noise: it gives the total length along the
    directions that the noise hides."""
    seen = values > edge
    found = np.sum(values[seen] / scale[seen])
    if not np.all(seen):
        hidden = max(0.0, np.sum(values) - np.sum(values[seen]))
        found += hidden * np.mean(1 / scale[~seen])
    return math.sqrt(max(found, _LEAST_LENGTH**2))


class Whitening:
    """The map from features to whitened features. Call `learn` first.

    Args:
        m: length of a feature vector.
        bound: C, bound on its norm before and after the map.
        unit: arguments of queries about the privacy unit.
    """

    def __init__(self, m, bound, **unit):
        self.query = SecondMomentQuery(
            num_features=m, feature_bound=bound, **unit
        )
        self._bound = bound
        # In whole steps products are exact, whatever rows share a batch.
        self._grid = CoefficientGrid(bound, 1.0)
        self._map = None

    def learn(self, release, units):
        """Takes the map from the release.

        Args:
            release: a `SecondMomentRelease` of `query`.
            units: number of privacy units, public.
        """
        values, vectors = np.linalg.eigh(release.quadratic / units)
        known = np.maximum(values, 0.0)
        edge = release.noise_edge() / units
        floor = max(known.max(initial=0.0) * _LEAST, np.finfo(float).tiny)
        scale = known + _RIDGE * edge + floor
        factor = self._bound / (_ROOM * _length(values, scale, edge))
        self._map = vectors * (factor / np.sqrt(scale))
        self.curvature = _HIDDEN * factor**2

    def rows(self, features, clip=False):
        """Whitened features `(n, m)`, no longer than the bound. Each row
        depends on its own record alone, to the last bit.

        Args:
            features: `(n, m)`.
            clip: whether rows outside the bound are scaled back.
        """
        given = bounds_lib.checked_features(
            features, self.query.num_features, self._bound, clip
        )
        whole, factors = self._grid.weights(self._map)
        steps = np.asarray(self._grid.narrow(given), np.float64)
        found = np.ascontiguousarray((whole @ steps.T * factors).T)
        inside = self._bound * (1 - 1e-13)
        lengths = summation.lengths(found)
        return found * (inside / np.maximum(lengths, inside))[:, None]

    def facts(self, known, threshold):
        """Arguments of `Rounds.rate` that bound the learning rate.

        Args:
            known: the `Rule` of the loss.
            threshold: the clip. Below the residuals it flattens the loss, so
                longer steps do not oscillate and are needed to converge.
        """
        longest = self._bound / _ROOM * _LONG * known.residual
        flat = min(1.0, threshold / longest)
        return {
            "steepest": self.curvature * known.curvature * math.sqrt(flat),
            "weight_noise": _LOGIT_NOISE * _ROOM / self._bound,
        }

    def weights(self, whitened):
        """Weights for features, from weights for whitened features."""
        return self._map @ whitened
