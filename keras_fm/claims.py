"""The papers' own noise scales: what they claim, and why it is not proven.

Only `guarantee="published"` uses this file. Every number here enters the
ledger as a *claim* and composes to infinity on the proven side.
"""

import keras_fm.budget as budget_lib

AFFINE_REASON = (
    "none. The paper's proof treats the sum of the batch's inputs as the "
    "release, while the network consumes each input plus one shared vector "
    "through nonlinear layers; see docs/guarantees.md"
)
CROSS_ENTROPY_REASON = (
    "none. The features under the layer are trained on the private records, "
    "so the coefficients change at every step, and every step reads the "
    "exact coefficients of its batch; see docs/guarantees.md"
)


def _relation_factor(neighbours):
    # The papers' factor 2 in Lemma 1 is the replace_one relation.
    relation = budget_lib.Neighbours.of(neighbours)
    return 1.0 if relation is budget_lib.Neighbours.REPLACE_ONE else 0.5


def affine_sensitivity(units, inputs, *, neighbours):
    """AdLM's Delta_h0 = 2 |h0| d for a first layer of `units` and `inputs`.

    L1 norm, inputs in [0, 1]^d, as printed (Phan et al. 2017, Lemma 4);
    half of it for add_remove.

    Example:

    >>> affine_sensitivity(32, 784, neighbours="replace_one")
    50176.0
    """
    return 2.0 * units * inputs * _relation_factor(neighbours)


def cross_entropy_sensitivity(features, outputs, *, neighbours):
    """Delta_F = M (b + b^2 / 4) of the Taylor cross-entropy's coefficients.

    L1 norm, features in [0, 1]^b, as printed (dPA Lemma 3, AdLM Lemma 5);
    half of it for add_remove.

    Example:

    >>> cross_entropy_sensitivity(25, 10, neighbours="replace_one")
    1812.5
    """
    full = float(outputs * (features + features**2 / 4))
    return full * _relation_factor(neighbours)
