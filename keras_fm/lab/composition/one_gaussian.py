"""The epsilon of one Gaussian without sampling, exactly."""

import functools
import math


@functools.lru_cache(maxsize=4096)
def gaussian_epsilon(noise_multiplier, delta):
    """Smallest epsilon of one Gaussian at `delta`, exactly.

    Args:
        noise_multiplier: float > 0.
        delta: float in (0, 1).

    Returns:
        float >= 0; dp_accounting's trade-off (Balle and Wang 2018,
        "analytic Gaussian mechanism"), inverted.

    Example:

    >>> round(gaussian_epsilon(4.0, 1e-5), 3)
    0.926
    """
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
    from scipy import optimize

    loss = GaussianPrivacyLoss(noise_multiplier)

    def excess(epsilon):
        return float(loss.get_delta_for_epsilon([epsilon])[0]) - delta

    if excess(0.0) <= 0:
        return 0.0
    # The tail of the privacy loss, N(m^2 / 2, m^2), is beyond this.
    inverse = 1 / noise_multiplier
    high = inverse**2 / 2 + inverse * math.sqrt(2 * math.log(1 / delta))
    root = optimize.brentq(excess, 0.0, high * 1.001, xtol=1e-13 * high)
    # Rounded up by the error of the search.
    return root * (1 + 1e-9)
