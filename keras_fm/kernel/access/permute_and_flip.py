"""The choice of one of several candidates, and what it costs."""

import dataclasses
from fractions import Fraction

import numpy as np

from keras_fm.kernel import discrete_noise
from keras_fm.kernel.access import exact_draws
from keras_fm.kernel.noise_mechanisms import PureMechanism


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermuteAndFlip(PureMechanism):
    """The choice of one of several candidates by their scores (McKenna and
    Sheldon 2020).

    Every candidate flips a coin that shows heads with probability
    `exp(-epsilon * (best score - its score) / sensitivity)`, exactly. One of
    the heads is drawn. This equals the choice of the largest score after
    exponential noise of scale `sensitivity / epsilon` on each. It is never
    worse than the exponential mechanism (docs/proofs/evaluation.md).

    Args:
        sensitivity: how much two neighbours can change the difference of two
            scores.
        epsilon: float > 0.
    """

    norm = "range"

    def perturb(self, exact, source, *, error=0.0, dimension=None):
        """1 for the chosen candidate, 0 for the others.

        Args:
            exact: `(candidates,)` scores, finite, without rounding.
            source: a `NoiseSource`.
            error, dimension: see `lattice_release`.
        """
        self.lattice_release(dimension, error)
        scores = [Fraction(float(score)) for score in exact]
        rate = Fraction(self.epsilon) / Fraction(self.sensitivity)
        # All flip, so the number of drawn words reveals little of the scores.
        heads = [
            i
            for i, score in enumerate(scores)
            if _falls_on_heads(rate * (max(scores) - score), source)
        ]
        chosen = np.zeros(len(scores))
        one = exact_draws.uniform_integers(len(heads), 1, source)[0]
        chosen[heads[one]] = 1.0
        return chosen

    def lattice_release(self, dimension, error=0.0):
        """Nothing is rounded, so no error of the scores is covered.

        Raises:
            ValueError: if there is one.
        """
        if error:
            raise ValueError(
                "A choice is made by scores without rounding. Received: "
                f"error={error}"
            )

    def _on_lattice(self, **arguments):
        raise NotImplementedError("A choice adds no noise to a vector.")

    def coordinate_variance(self, size):
        raise NotImplementedError("A choice adds no noise to a vector.")


def _falls_on_heads(exponent, source):
    """A coin of probability `exp(-exponent)`, for a Fraction >= 0."""

    def enclose(bits):
        return discrete_noise.exp_bounds(
            exponent.numerator, exponent.denominator, bits
        )

    return bool(exact_draws.bernoulli(enclose, 1, source)[0])
