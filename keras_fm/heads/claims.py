"""The noise scale that the papers print for an output layer: claimed only."""

from keras_fm.core.planned_release import replace_one_factor

CROSS_ENTROPY_REASON = (
    "none. The features under the layer are trained on the private records, "
    "so the coefficients change at every step, and every step uses the exact "
    "coefficients of its batch; see docs/guarantees.md"
)


def cross_entropy_sensitivity(features, outputs, *, neighbours):
    """Sensitivity Delta_F = M (b + b^2 / 4) of the Taylor cross-entropy.

    In the L1 norm of its coefficients, for features in [0, 1]^b, as printed
    (dPA Lemma 3, AdLM Lemma 5). Half of it for add_remove.

    Example:

    >>> cross_entropy_sensitivity(25, 10, neighbours="replace_one")
    1812.5
    """
    full = float(outputs * (features + features**2 / 4))
    return full * replace_one_factor(neighbours)
