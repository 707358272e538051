"""One budget for training, for a choice and for a last number."""

import dataclasses
import math

from keras_fm.kernel import checks
from keras_fm.kernel.budget import as_float
from keras_fm.kernel.compose import compose_epsilon
from keras_fm.kernel.planning.calibration import calibrate, calibrate_choice

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
                make = calibrate_choice if name == "choice" else calibrate
                found[name] = make(
                    _One(), self.budget, neighbours=None, share=share
                )
        return found

    def __str__(self):
        budget = self.budget

        def epsilon(mechanisms):
            return compose_epsilon(
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


def of_weights(budget, **weights):
    """The `BudgetSplit` of `PrivacyBudget.split`."""
    asked = {name: weight for name, weight in weights.items() if weight}
    found = dict(zip(asked, shares(asked.values())))
    return BudgetSplit(
        budget=budget, **{name: found.get(name, 0.0) for name in weights}
    )


def shares(weights):
    """Normalises positive `weights` of a plan so that they sum to one.

    A share is a share of what composes: of epsilon for pure mechanisms, of
    the inverse squared noise multiplier for Gaussian ones.

    Raises:
        ValueError: if a weight is not finite and positive, or none is given.

    Example:

    >>> shares([1, 3])
    [0.25, 0.75]
    """
    weights = [as_float("share", w) for w in weights]
    if not weights or not all(math.isfinite(w) and w > 0 for w in weights):
        raise ValueError(
            "Every share of a privacy plan must be a finite number greater "
            f"than 0. Received: shares={weights}"
        )
    total = math.fsum(weights)
    return [w / total for w in weights]


class _One:
    """A query of sensitivity 1."""

    def sensitivity(self, norm, *, neighbours):
        return 1.0
