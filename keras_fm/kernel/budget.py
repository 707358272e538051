"""The limit on privacy loss: epsilon, delta and the neighbouring relation."""

import dataclasses
import enum
import math
import numbers
import warnings

from keras_fm.kernel import checks
from keras_fm.kernel.compose import compose_epsilon
from keras_fm.kernel.planning.calibration import calibrate, calibrate_choice

_LARGEST_EPSILON = 1e6
# The parts that a budget is split into.
PARTS = ("training", "choice", "evaluation")


class Neighbours(str, enum.Enum):
    """Which pairs of data sets must be hard to tell apart.

    * `add_remove`: one record is present in one and absent in the other.
    * `replace_one`: one record has another value; the number of records is
      the same.
    * `replace_label`: one record has another label. Everything else of the
      records, their features and their number, is public.

    Every pair under `replace_label` is also a pair under `replace_one`. So a
    guarantee under `replace_one` also holds under `replace_label`. The
    reverse is not true.

    An epsilon under `replace_one` and the same epsilon under `add_remove` are
    different promises. Compare numbers only within one relation.
    """

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"
    REPLACE_LABEL = "replace_label"

    @classmethod
    def of(cls, value):
        """Returns the relation named by `value`.

        Raises:
            ValueError: if `value` is not the name of a relation.
        """
        try:
            return cls(value)
        except ValueError:
            raise ValueError(
                '`neighbours` must be "add_remove", "replace_one" or '
                f'"replace_label". Received: neighbours={value!r}'
            ) from None

    @property
    def replaces(self):
        """Whether a record gets another value. What is proved for any other
        value then holds."""
        return self is not Neighbours.ADD_REMOVE

    def __str__(self):
        return self.value


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """The most that all releases together may reveal: (epsilon, delta).

    Args:
        epsilon: float in (0, 1e6]. The bound on the privacy loss (natural
            logarithm).
        delta: float in [0, 1). The probability with which the bound may
            fail; choose it far below one over the number of records. `0`
            means pure differential privacy. It has no default, because an
            epsilon means little without its delta.

    Raises:
        ValueError: if a value is outside its range, NaN or infinite, or
            `delta` is left out.

    Example:

    >>> PrivacyBudget(epsilon=1.0, delta=1e-5)
    PrivacyBudget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    # No default: `None` stands for an omitted delta, which is refused.
    delta: float = None  # type: ignore[assignment]

    def __post_init__(self):
        epsilon = _checked_epsilon(self.epsilon)
        check_delta_given(epsilon, self.delta, "PrivacyBudget({}, delta={})")
        delta = as_float("delta", self.delta)
        if not 0 <= delta < 1:
            raise ValueError(
                "`delta` must be in [0, 1); take it far below one over the "
                f"number of records. Received: delta={self.delta}"
            )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    def split(self, *, training=0.0, choice=0.0, evaluation=0.0):
        """Splits the budget between training, the choice of a model and a
        final evaluation, before any record is used.

        Args:
            training, choice, evaluation: floats >= 0, weights of the parts;
                0 for a part that you do not need.

        Returns:
            A `BudgetSplit`; `print` it.

        Raises:
            ValueError: if a weight is not a finite number of at least 0, or
                all are 0.

        Example:

        >>> budget = PrivacyBudget(1.0, delta=0)
        >>> split = budget.split(training=7, choice=1, evaluation=2)
        >>> print(split)
        Budget (epsilon = 1, delta = 0)
          training   share 0.7000, alone epsilon 0.7
          choice     share 0.1000, alone epsilon 0.1 (delta = 0)
          evaluation share 0.2000, alone epsilon 0.2
          together   epsilon 1
        """
        weights = dict(zip(PARTS, (training, choice, evaluation)))
        asked = {name: weight for name, weight in weights.items() if weight}
        found = dict(zip(asked, shares(asked.values())))
        return BudgetSplit(budget=self, **dict.fromkeys(PARTS, 0.0) | found)


def _checked_epsilon(value):
    epsilon = as_float("epsilon", value)
    if not 0 < epsilon <= _LARGEST_EPSILON:
        raise ValueError(
            "`epsilon` must be greater than 0 and at most "
            f"{_LARGEST_EPSILON:g} (beyond that nothing is protected: "
            "train the same model without a PrivateModel callback). "
            f"Received: epsilon={value}"
        )
    return epsilon


def check_delta_given(epsilon, delta, call):
    """Refuses an epsilon without a delta. `call` is the code to write instead,
    with `{}` for each of them."""
    epsilon = _checked_epsilon(epsilon)
    if delta is None:
        raise ValueError(
            "`delta` must be given together with `epsilon`: delta = 0 needs "
            "far more noise than a small delta, so neither is assumed. Write "
            f"`{call.format(f'{epsilon:g}', '1e-5')}`, with a delta far below "
            "one over the number of records, or "
            f"`{call.format(f'{epsilon:g}', '0')}` for pure differential "
            f"privacy. Received: epsilon={epsilon:g} and no delta"
        )


def as_float(name, value):
    if not isinstance(value, bool | str | bytes):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    # Show only the type of anything but a number or text: it may hold records.
    shown = type(value).__name__
    if value is None or isinstance(value, numbers.Number | str | bytes):
        shown = repr(value)
    raise ValueError(f"`{name}` must be a number. Received: {shown}")


# One budget for training, a choice and an evaluation --------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetSplit:
    """Shares of a budget that sum to one, decided before any record is used.

    A share is a part of the quantity that composes: epsilon for delta = 0,
    else the inverse squared noise multiplier. A choice gets a pure epsilon,
    the largest that a Gaussian of its share pays for. In any order, and
    however the parts depend on each other, they compose to at most the
    budget. A choice leaves some of it unused.

    Attributes:
        budget: a `PrivacyBudget`.
        training, choice, evaluation: floats, the shares. Pass them as
            `Proven(spends=...)` and `share=...`.
    """

    budget: object
    training: float
    choice: float
    evaluation: float

    def __post_init__(self):
        checks.fields(self, **dict.fromkeys(PARTS, checks.nonnegative))

    def mechanisms(self):
        """The mechanisms of the parts by name, for sensitivity 1."""
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


def shares(weights):
    """Normalises positive `weights` of a plan so that they sum to one.

    A share is a part of the quantity that composes: epsilon for pure
    mechanisms, the inverse squared noise multiplier for Gaussian ones.

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


# Delta beside the number of records -------------------------------------------


def warn_of_delta(delta, n):
    """Warns about a delta of one over `n` or more, which promises nothing.

    Args:
        delta: float in [0, 1).
        n: the public number of records, or of owners; `None` if unknown.

    Example:

    >>> warn_of_delta(1e-6, 1000)
    """
    if n and delta * n >= 1:
        warnings.warn(
            f"delta = {delta:g} is too large for {n} records: with a delta of "
            f"1/{n} or more, publishing a whole record counts as private. "
            f"Write a far smaller one, such as delta={0.01 / n:.0e}.",
            stacklevel=3,
        )
