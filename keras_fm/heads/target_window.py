"""Numbers to predict, in a window about their released mean.

Public bounds are often far wider than the numbers, and noise is proportional to
them. So a few moments of the numbers are released first, and the sums that
follow use numbers cut to a window of some standard deviations. It is computed
from that release and public numbers alone.
"""

import math

import numpy as np

from keras_fm.core.column_moments import ColumnMomentsQuery

# Of the layer's budget. docs/proofs/squared_error.md says on which tables these
# constants were chosen.
SHARE = 0.2
# Half of the window, in standard deviations, and how much noise may make it
# wider, which cuts off less.
_WIDTH, _NOISE = 3.0, 0.025
# How unsure the middle of the window is as a mean: its variance, in half
# windows.
UNSURE = 1 / 30


def query(outputs, **unit):
    """The moments that are released."""
    return ColumnMomentsQuery(num_columns=outputs, **unit)


def window(release, bounds, features):
    """The window of every output.

    Args:
        release: a `ColumnMomentsRelease` of numbers that `bounds` scale to
            [-1, 1].
        bounds: public pairs, one for each output.
        features: int, how many weights an output has.

    Returns:
        tuple of pairs. Each has the mean in its middle and ends at a bound at
        the latest, or as far beyond the other one.
    """
    means, scales = release.means_and_scales()
    noise = float(release.noise_of_means().max()) * math.sqrt(features)
    half = max(_WIDTH, _NOISE / max(noise, 1e-9)) * scales
    half = np.minimum(half, 1 + np.abs(means))
    low, high = np.array(bounds, np.float64).T
    middle, scale = low + (high - low) / 2, (high - low) / 2
    edges = middle + scale * np.array([means - half, means + half])
    return tuple(map(tuple, edges.T.tolist()))
