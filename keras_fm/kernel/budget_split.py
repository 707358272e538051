"""One budget for training, for a choice and for a last number."""

import dataclasses

from keras_fm.kernel import checks
from keras_fm.kernel import mechanisms as mechanisms_lib

PARTS = ("training", "choice", "evaluation")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetSplit:
    """Shares of a budget that sum to one, decided before anything is read.

    A share is a share of what composes: of epsilon for delta = 0, of the
    inverse squared noise multiplier else. A choice has pure epsilon, the
    largest that a Gaussian of its share pays for. However the parts are
    ordered or depend on each other, the ledger composes them to the budget
    at most; a choice leaves something over.

    Attributes:
        budget: a `PrivacyBudget`.
        training, choice, evaluation: floats, the shares; pass them on as
            `Proven(spends=...)` and `share=...`.
    """

    budget: object
    training: float
    choice: float
    evaluation: float

    def __post_init__(self):
        checks.fields(self, **dict.fromkeys(PARTS, checks.nonnegative))

    def mechanisms(self):
        """The mechanisms of the parts by name, of sensitivity 1."""
        found = {}
        for name in PARTS:
            share = getattr(self, name)
            if share:
                make = _choice if name == "choice" else _noise
                found[name] = make(self.budget, share)
        return found

    def __str__(self):
        budget = self.budget

        def epsilon(mechanisms):
            return mechanisms_lib.compose_epsilon(
                mechanisms, budget.delta, scale=budget.epsilon
            )

        found = self.mechanisms()
        lines = [
            f"Budget (epsilon = {budget.epsilon:g}, delta = {budget.delta:g})"
        ]
        for name, mechanism in found.items():
            lines.append(
                f"  {name:<11}share {getattr(self, name):.4f}, alone epsilon "
                f"{epsilon([mechanism]):.4g}"
                + (" (delta = 0)" if name == "choice" else "")
            )
        lines.append(f"  together   epsilon {epsilon(found.values()):.4g}")
        return "\n".join(lines)


def gaussian_share(budget, share):
    """The noise multiplier of a share of a budget with delta > 0."""
    multiplier = mechanisms_lib.gaussian_multiplier(
        budget.epsilon, budget.delta
    )
    return multiplier / share**0.5


def choice_epsilon(budget, share):
    """The pure epsilon of a choice that has a share of a budget.

    With delta > 0, that of the largest epsilon-private mechanism that is a
    function of a Gaussian with this share (docs/proofs/evaluation.md,
    proposition 4).

    Args:
        budget: a `PrivacyBudget`.
        share: float in (0, 1].

    Returns:
        float > 0.
    """
    if budget.delta == 0:
        return budget.epsilon * share
    from scipy import special

    half = 1 / gaussian_share(budget, share) / 2
    epsilon = special.log_ndtr(half) - special.log_ndtr(-half)
    # What logarithms are wrong by, and more.
    return float(epsilon) * (1 - 1e-9)


def _choice(budget, share):
    return mechanisms_lib.PermuteAndFlip(
        sensitivity=1.0, epsilon=choice_epsilon(budget, share)
    )


def _noise(budget, share):
    if budget.delta == 0:
        return mechanisms_lib.LaplaceMechanism(
            sensitivity=1.0, epsilon=budget.epsilon * share
        )
    return mechanisms_lib.GaussianMechanism(
        sensitivity=1.0, noise_multiplier=gaussian_share(budget, share)
    )
