"""Features whose directions all count alike, by a released second moment.

A descent on whitened features knows its curvature before it begins, so one
rule from public numbers gives steps that arrive and do not swing.
"""

import dataclasses
import math

import numpy as np

from keras_fm.core.second_moment import SecondMomentQuery
from keras_fm.heads.coefficient_grid import CoefficientGrid
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import sums as summation

# How far inside the bound a typical whitened row lies. Longer rows are scaled
# back, their constant too, and then are fitted as what they are not: a rare
# flag makes a row five times as long. No noise comes of room, which the clip
# of coefficients does not have. This rule and those below were chosen on
# made-up tables that docs/results/more_budget.md does not report.
_ROOM = 8.0
# Of typical rows: how long a row may be before its largest coefficient is
# clipped whatever the budget.
_LONG = 1.5
# In spectral edges of the noise, added to every eigenvalue.
_RIDGE = 0.5
# Eigenvalues below this share of the largest are cut features' rounding.
_LEAST = 1e-6
# The curvature along released directions, over what the release says: the
# noise may hide up to one edge, and momentum bears more than this.
_HIDDEN = 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """What a loss needs to know of its own to be descended.

    Attributes:
        curvature: most of one record's loss along its logits.
        residual: longest residual that there may be at the minimum.
        noise: standard deviation of a logit, from one full release, that
            `clip` may give it.
    """

    curvature: float
    residual: float
    noise: float


def rule(loss, outputs, independent=False):
    """A clip below the residuals turns a probability or a mean into something
    else, and one above them is noise. Numbers have a smaller one: their
    residuals are far from what they can be.

    Args:
        loss, outputs: of the layer.
        independent: whether the outputs are labels of their own.

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


# Of a typical row that noise makes too short.
_LEAST_LENGTH = 0.5
# Of a typical row.
_LEAST_CLIP = 0.1
# Of a logit from all rounds together, which bounds the rate where noise does.
_LOGIT_NOISE = 1.2


def clip(known, outputs, m, bound, units, multiplier):
    """The threshold on a coefficient: as large as the noise of the logits
    allows, between a tenth of a typical row and what residuals can be.

    Args:
        known: a `Rule`.
        outputs: of the layer.
        m: length of a feature vector.
        bound: C, of the features.
        units: the number of privacy units, public.
        multiplier: standard deviation over the threshold of the noise that
            one release of the whole budget would have.
    """
    # Of one Newton step, clipped at the length of a typical row.
    added = 1.25 * m * multiplier * math.sqrt(outputs) / units
    share = max(known.noise * known.curvature / added, _LEAST_CLIP)
    return bound / _ROOM * min(share, _LONG * known.residual)


def _length(values, scale, edge):
    """Of a typical row of which direction j is divided by the root of
    `scale[j]`. What the noise hides is what the trace, which has little of it,
    says beyond the directions that stand out."""
    seen = values > edge
    found = np.sum(values[seen] / scale[seen])
    if not np.all(seen):
        hidden = max(0.0, np.sum(values) - np.sum(values[seen]))
        found += hidden * np.mean(1 / scale[~seen])
    return math.sqrt(max(found, _LEAST_LENGTH**2))


class Whitening:
    """The map from features to whitened features, `None` until `learn`.

    Args:
        m: length of a feature vector.
        bound: C, of its norm, before and after.
        unit: what queries are told of the privacy unit.
    """

    def __init__(self, m, bound, **unit):
        self.query = SecondMomentQuery(
            num_features=m, feature_bound=bound, **unit
        )
        self._bound = bound
        # Of whole steps: products are exact, whatever rows stand together.
        self._grid = CoefficientGrid(bound, 1.0)
        self._map = None

    def learn(self, release, units):
        """Takes the map from the release.

        Args:
            release: a `SecondMomentRelease` of `query`.
            units: the number of privacy units, public.
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
        """Whitened features `(n, m)`, no longer than the bound: each a
        function of its own record alone, to the last bit.

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
        """What bounds the rate of a descent, see `Rounds.rate`.

        Args:
            known: the `Rule` of the loss.
            threshold: the clip. Below the residuals it flattens the loss: a
                longer step does not swing, and a short one would not arrive.
        """
        longest = self._bound / _ROOM * _LONG * known.residual
        flat = min(1.0, threshold / longest)
        return {
            "steepest": self.curvature * known.curvature * math.sqrt(flat),
            "weight_noise": _LOGIT_NOISE * _ROOM / self._bound,
        }

    def weights(self, whitened):
        """The weights of features, from those of whitened features."""
        return self._map @ whitened
