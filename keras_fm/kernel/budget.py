"""What may be spent, and against whom: epsilon, delta, neighbours."""

import dataclasses
import enum
import numbers

_LARGEST_EPSILON = 1e6


class Neighbours(str, enum.Enum):
    """Which pairs of data sets must be hard to tell apart.

    * `add_remove`: one record is present in one and absent in the other.
    * `replace_one`: one record has another value; the number of records is
      the same.
    * `replace_label`: one record has another label. Everything else of the
      records, their features and their number, is public.

    Every pair under `replace_label` is one under `replace_one`: what is
    proved for that holds here. The converse does not.

    A `replace_one` guarantee and an `add_remove` guarantee with the same
    epsilon are different promises: numbers are comparable only within one
    relation.
    """

    ADD_REMOVE = "add_remove"
    REPLACE_ONE = "replace_one"
    REPLACE_LABEL = "replace_label"

    @classmethod
    def of(cls, value):
        """Returns the relation named by `value`.

        Raises:
            ValueError: if `value` names no relation.
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
        """Whether a record has another value, so that what is proved for any
        other value holds."""
        return self is not Neighbours.ADD_REMOVE

    def __str__(self):
        return self.value


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """The most that all releases of a model may reveal: (epsilon, delta).

    Args:
        epsilon: float in (0, 1e6]. The bound on the privacy loss (natural
            logarithm).
        delta: float in [0, 1). The probability with which the bound may
            fail, far below one over the number of records; `0` asks for pure
            differential privacy. It has no default: an epsilon never stands
            alone.

    Raises:
        ValueError: if a value is outside its range, NaN or infinite, or
            `delta` is left out.

    Example:

    >>> PrivacyBudget(epsilon=1.0, delta=1e-5)
    PrivacyBudget(epsilon=1.0, delta=1e-05)
    """

    epsilon: float
    # No default: `None` stands for one that was left out, and is refused.
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
        """Shares for training, for a choice and for a last number, planned
        before anything is read.

        Args:
            training, choice, evaluation: floats >= 0, weights of the parts;
                0 for a part that there is not.

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
        from keras_fm.kernel.planning import budget_split

        return budget_split.of_weights(
            self, training=training, choice=choice, evaluation=evaluation
        )


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
    """Refuses an epsilon without a delta; `call` is what to write, with `{}`
    for each of them."""
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
    # Of anything but a number or text the type alone: it may hold records.
    shown = type(value).__name__
    if value is None or isinstance(value, numbers.Number | str | bytes):
        shown = repr(value)
    raise ValueError(f"`{name}` must be a number. Received: {shown}")
