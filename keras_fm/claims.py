"""The papers' own noise scales: what they claim, and why it is not proven.

Only `guarantee="published"` uses this file. Every number here enters the
ledger as a *claim* and composes to infinity on the proven side.
"""

import math

import numpy as np

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
RECONSTRUCTION_REASON = (
    "none. The codes depend on the encoder's weights, so the coefficients "
    "change at every step, and every step reads the exact coefficients of its "
    "batch; see docs/guarantees.md"
)
ENERGY_REASON = (
    "none. The denominator Z depends on the weights and the records, and the "
    "negative phase of contrastive divergence reads the records at every "
    "step; see docs/guarantees.md"
)
EXPANSION_REASON = (
    "none. Theorem 6 leaves out the sum over incoming units, and records "
    "exceed it; sums are clipped, not records; see docs/guarantees.md"
)
SHUFFLED_REASON = (
    "none. Batches of a fixed size from a shuffled data set are accounted as "
    "if every record joined each of them by itself (Poisson samples); see "
    "docs/guarantees.md"
)
RELEVANCE_REASON = (
    "none. The network whose relevance is averaged was itself trained on "
    "the private records without noise; see docs/guarantees.md"
)

# Where the paper's text and its authors' code count differently.
SENSITIVITY_FORMS = ("paper", "patch")


def _relation_factor(neighbours):
    # The papers' factor 2 in Lemma 1 is the replace_one relation.
    relation = budget_lib.Neighbours.of(neighbours)
    return 1.0 if relation is budget_lib.Neighbours.REPLACE_ONE else 0.5


def relevance_sensitivity(features, records, *, neighbours):
    """AdLM's Delta_R = 2 d / |D| of the average relevance.

    L1 norm, every record's relevance min-max normalised to [0, 1]^d, as
    printed (Phan et al. 2017, Lemma 2); half of it for add_remove.

    Example:

    >>> round(relevance_sensitivity(784, 60_000, neighbours="replace_one"), 9)
    0.026133333
    """
    return 2.0 * features / records * _relation_factor(neighbours)


def affine_sensitivity(units, inputs, *, neighbours):
    """AdLM's Delta_h0 = 2 |h0| d for a first layer of `units` and `inputs`.

    L1 norm, inputs in [0, 1]^d, as printed (Phan et al. 2017, Lemma 4);
    half of it for add_remove.

    Example:

    >>> affine_sensitivity(32, 784, neighbours="replace_one")
    50176.0
    """
    return 2.0 * units * inputs * _relation_factor(neighbours)


def convolution_sensitivity(
    *, form, filters, positions, patch, inputs, neighbours
):
    """Delta_h0 of a convolutional first layer.

    * `"paper"`: 2 |h0| d with |h0| = filters x positions neurons and d
      inputs, as printed.
    * `"patch"`: 2 x positions x patch, as the authors' code computes it
      (2 * 14 * 14 * 25 for MNIST, 2 * 10 * 10 * 9 * 3 for CIFAR-10).

    Args:
        form: `"paper"` or `"patch"`.
        filters: number of feature maps.
        positions: height x width of one feature map.
        patch: entries of one filter, input channels included.
        inputs: entries of one record.
        neighbours: the papers' `"replace_one"`; half for `"add_remove"`.

    Example:

    >>> convolution_sensitivity(
    ...     form="patch", filters=32, positions=196, patch=25, inputs=784,
    ...     neighbours="replace_one",
    ... )
    9800.0
    """
    if form == "paper":
        return affine_sensitivity(
            filters * positions, inputs, neighbours=neighbours
        )
    return 2.0 * positions * patch * _relation_factor(neighbours)


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


def reconstruction_sensitivity(visible, units, *, neighbours):
    """Delta = d (b + b^2 / 4) of an auto-encoder's coefficients.

    L1 norm, codes in [0, 1]^b and visible units in [0, 1]^d, as printed (dPA
    Lemma 2); half of it for add_remove.

    Example:

    >>> reconstruction_sensitivity(784, 100, neighbours="replace_one")
    2038400.0
    """
    full = float(visible * (units + units**2 / 4))
    return full * _relation_factor(neighbours)


def energy_sensitivity(
    coefficients,
    *,
    form,
    positions,
    patch,
    bound,
    visible,
    normalization,
    neighbours,
):
    """pCDBN's Delta of the polynomial energy's coefficients (Lemma 2).

    L1 norm, one feature map. With unit weights a patch has the
    pre-activation s = patch * bound + 1, and a record's coefficients are at
    most

        positions * s * sum_l |alpha_l| (s / Z)^l + visible,

    twice that under replace_one. The paper takes the maximum over the
    records; we take it over the public bounds, so that Delta reads nothing.

    * `"paper"`: as above.
    * `"code"`: positions + visible, since the authors' code sums
      hidden probabilities, which are at most 1.

    Args:
        coefficients: alpha_0, ..., alpha_L.
        form: `"paper"` or `"code"`.
        positions: height x width of one feature map.
        patch: entries of one filter, input channels included.
        bound: largest entry of a patch.
        visible: largest L1 norm of a record's visible units.
        normalization: `(q, a, beta)` of the local Z, of which the map's own
            square is certain, or `None` if X = x / Z may reach 1.
        neighbours: the paper's `"replace_one"`; half for `"add_remove"`.

    Example:

    >>> energy_sensitivity(
    ...     (0.5, 0.25), form="code", positions=196, patch=25, bound=1.0,
    ...     visible=784.0, normalization=None, neighbours="replace_one",
    ... )
    1960.0
    """
    factor = 2.0 * _relation_factor(neighbours)
    if form == "code":
        return factor * (positions + visible)
    s = patch * bound + 1.0
    ratio = 1.0
    if normalization is not None:
        q, a, beta = normalization
        # t / Z(t), t <= s, is largest at s or where its slope vanishes.
        turn = s
        if beta > 0.5:
            turn = min(s, math.sqrt(q / (a * (2 * beta - 1))))
        ratio = max(t / max(t, (q + a * t * t) ** beta) for t in (s, turn))
    series = math.fsum(abs(c) * ratio**p for p, c in enumerate(coefficients))
    return factor * (positions * s * series + visible)


def network_expansion_sensitivity(sizes, *, neighbours):
    """S of FunctionalNet's Theorem 6: `2 (0.25^m P + P (0.1^m + 0.001625 m))`.

    With P the product of the sizes of the m layers above the inputs. As
    printed, for replace_one; half of it for add_remove. It is no bound: with
    five inputs and one output in [0, 1] two records reach 1.63 for 0.70
    (docs/proofs/network_expansion.md).

    Args:
        sizes: units of every layer.
        neighbours: `"add_remove"` or `"replace_one"`.

    Example:

    >>> round(network_expansion_sensitivity([1], neighbours="replace_one"), 5)
    0.70325
    """
    m, product = len(sizes), math.prod(sizes)
    full = 2 * (0.25**m * product + product * (0.1**m + 0.001625 * m))
    return full * _relation_factor(neighbours)


def normalised_relevance(relevance):
    """Each row min-max normalised to [0, 1] (AdLM Eq. 7); a constant row
    becomes zero."""
    rows = np.asarray(relevance, np.float64)
    low = rows.min(axis=1, keepdims=True)
    spread = rows.max(axis=1, keepdims=True) - low
    return np.where(spread > 0, (rows - low) / np.where(spread, spread, 1), 0.0)


def adaptive_epsilons(relevance, epsilon, floor):
    """eps_j = beta_j eps2 with beta_j = d |R_j| / sum |R| (AdLM line 6).

    Args:
        relevance: noisy average relevance R, of any shape with d entries.
        epsilon: eps2, the budget of the first layer.
        floor: float > 0; a smaller |R_j| counts as this much, since a
            feature with eps_j = 0 would need infinite noise (the authors'
            code uses 1e-5).

    Example:

    >>> adaptive_epsilons(np.array([0.3, -0.1]), 1.0, floor=1e-5)
    array([1.5, 0.5])
    """
    size = np.maximum(np.abs(np.asarray(relevance, np.float64)), floor)
    return epsilon * size * (size.size / math.fsum(size.ravel()))
