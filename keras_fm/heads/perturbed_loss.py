"""The exact cross-entropy of an output layer, plus a noisy linear term.

For records (h_i, y_i), weights W and the cross-entropy l,

    sum_i l(W^T h_i, y_i) + <b, W> + ridge ||W||^2 / 2

is minimised over W, with Laplace noise b (objective perturbation, Chaudhuri,
Monteleoni and Sarwate 2011), and the minimiser is released. Its noise has m M
numbers; that of A has m^2 / 2. A computer finds the minimiser up to a known
distance, and a little noise on the weights covers that distance. The proof is
in docs/proofs/perturbed_loss.md.
"""

import dataclasses
import math
from functools import partial

import numpy as np

from keras_fm.heads import class_weights
from keras_fm.heads.exact_minimum import Records
from keras_fm.heads.gradient_query import WeightsRelease
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks, lattice_noise
from keras_fm.kernel.ledger.noisy_statistics import released_as
from keras_fm.kernel.noise_mechanisms import LaplaceMechanism
from keras_fm.kernel.query import SumQuery, is_replaced

# The share of epsilon for the noise on the weights.
_COVER = 2.0**-7
# How long the noise alone may make a vector of weights. Accuracy changes little
# within a factor of two.
_REACH = 64.0
# The scale of b in steps of its lattice.
_STEPS = 2.0**47
# Larger weights are clipped to it.
_LARGEST = 2.0**16


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerturbedLossQuery(SumQuery):
    """Query for the weights of one dense output layer that minimise its
    cross-entropy plus a noisy linear term, for a pure epsilon (delta = 0).

    Args:
        num_features: int m, length of a feature vector h (bias entry
            included).
        num_outputs: int M. With `M == 1` labels are binary (0 or 1),
            otherwise classes 0..M-1.
        feature_bound: C, bound on `||h||_2`.
        feature_l1_bound: `None`, or a further bound on `||h||_1`.
        class_weights: `None`, or a number in [0, 1] for each class. It
            multiplies a record's loss.

    Example:

    >>> objective = PerturbedLossQuery(num_features=9, num_outputs=3)
    >>> objective.sensitivity("l1", neighbours="add_remove")
    6.0
    """

    num_features: int
    num_outputs: int
    feature_bound: float = 1.0
    feature_l1_bound: float | None = None
    class_weights: tuple | None = None

    # The outputs are classes, not separate labels.
    independent = False
    names = ("weights",)
    proof = "docs/proofs/perturbed_loss.md"

    def __post_init__(self):
        checks.fields(
            self,
            num_features=checks.count,
            num_outputs=checks.count,
            feature_bound=checks.norm_bound,
            feature_l1_bound=partial(checks.optional, checks.norm_bound),
        )
        class_weights.check_field(self)

    @property
    def uses(self):
        """What a release uses of the records, in words."""
        bound = self.feature_l1_bound
        l1 = "" if bound is None else f", ||h||_1 <= {bound:g}"
        return (
            f"the minimiser of the cross-entropy ({self.num_features} x "
            f"{self.num_outputs}) of all records and a noisy linear term, "
            f"||h||_2 <= {self.feature_bound:g}{l1}"
            + class_weights.in_words(self.class_weights)
        )

    @property
    def shapes(self):
        return ((self.num_features, self.num_outputs),)

    def sensitivity(self, norm, *, neighbours):
        """L1 sensitivity of the gradient at any weights. With B the L1 bound
        on features it is B (two classes, one output) or 2 B; twice that for
        replace_one. docs/proofs/perturbed_loss.md, proposition 1."""
        checks.one_of("norm", norm, ("l1",), '"l1", since delta is 0')
        return (1 + is_replaced(norm, neighbours)) * self._longest

    @property
    def _longest(self):
        """Bound on the L1 norm of a record's gradient."""
        dense = math.sqrt(self.num_features) * self.feature_bound
        bound = min(dense, self.feature_l1_bound or dense)
        return bound if self.num_outputs == 1 else 2 * bound

    def rounding_error(self, norm):
        """0: the noise on the weights covers all rounding."""
        return 0.0

    def records(self, batches, clip):
        """`Records` from batches `(features, labels)`. Rows beyond their
        bounds are refused, or scaled back if `clip`."""
        records, outputs = Records(self), self.num_outputs
        bound = self.feature_bound, clip, self.feature_l1_bound
        for h, y in batches:
            rows = bounds_lib.checked_features(h, self.num_features, *bound)
            classes = len(y), max(2, outputs), outputs
            records.add(rows, bounds_lib.class_indices(y, *classes))
        return records

    def terms(self, mechanism):
        """How a mechanism's epsilon is divided.

        Returns:
            tuple `(epsilon, ridge, cover)`: the epsilon of b for one record's
            gradient, the ridge, and the epsilon of the noise on the weights.
        """
        outputs, square = self.num_outputs, self.feature_bound**2
        cover = _COVER * mechanism.epsilon
        sides = mechanism.sensitivity / self._longest
        # The factor covers the rounding of bounds and of these lines.
        epsilon = (mechanism.epsilon - cover) / sides * (1 - 2.0**-30)
        least = (8 if outputs > 2 else outputs) * square / epsilon
        length = self._longest / epsilon * math.sqrt(2 * self.size)
        ridge = 2.0 ** math.ceil(math.log2(max(least, length / _REACH)))
        if outputs > 2:
            # The curvature between the classes other than the record's.
            epsilon -= square / ridge * (outputs - 2) / (outputs - 1) / sides
        return epsilon, ridge, cover

    def minimise(self, records, mechanism, noise):
        """Noisy weights `(m, M)`.

        Args:
            records: `Records`.
            mechanism: a `LaplaceMechanism` of this sensitivity, paid for.
            noise: a `NoiseSource`.
        """
        epsilon, ridge, cover = self.terms(mechanism)
        size = self.size
        linear = lattice_noise.laplace_release(
            sensitivity=self._longest,
            epsilon=epsilon,
            dimension=size,
            precision=size / epsilon / _STEPS,
        )(np.zeros(self.shapes[0]), noise)
        weights = records.minimum(linear, ridge)
        # Distance of b from a continuous one; the gradient's own is added.
        off = math.sqrt(size) * 2.0**10 / _STEPS * self._longest / epsilon
        off = math.sqrt(size) * (off + records.tolerance) / ridge
        covering = LaplaceMechanism(
            sensitivity=off + size * _LARGEST * 2.0**-52, epsilon=cover / 2
        )
        weights = np.clip(weights, -_LARGEST, _LARGEST).ravel()
        return covering.perturb(weights, noise).reshape(self.shapes[0])


# A release of it holds the weights, too.
released_as(PerturbedLossQuery)(WeightsRelease)
