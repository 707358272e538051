"""Rows of features and labels to predict behaviour."""

import dataclasses

import numpy as np

from keras_fm.kernel import checks


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Windows:
    """Rows to predict behaviour, made by `HealthNetwork.windows`.

    Attributes:
        x: float32 `(n, F)`, within `low` and `high`.
        y: int64 `(n,)`, 0 or 1.
        users, steps: int64 `(n,)`, the user u and the step t of each row.
        names: tuple of F names, such as `"steps[t-1]"`.
        columns: dict, "present", "history", "social", "events" to the slice
            of their columns (empty if there are none).
        low, high: float32 `(F,)`, public bounds.
        reach: int, the most other users whose rows one user's attributes can
            enter.
        note: str, which values of other users enter a row, and how often one
            value does; for a privacy statement.
    """

    x: np.ndarray
    y: np.ndarray
    users: np.ndarray
    steps: np.ndarray
    names: tuple
    columns: dict
    low: np.ndarray
    high: np.ndarray
    reach: int
    note: str

    def __repr__(self):
        return (
            f"<Windows: {len(self)} rows, {len(self.names)} features, "
            f"reach {self.reach}>"
        )

    def __len__(self):
        return len(self.x)

    def split(self, train=0.8):
        """Splits by time: the first steps, and the rest.

        Args:
            train: float in (0, 1), the first part's share of the steps, rounded
                so that neither part is empty.

        Returns:
            Two `Windows`. Every step of the first is before every step of
            the second. The last label of the first part is the activity at
            the first step of the second.

        Raises:
            ValueError: if `train` is not in (0, 1) or there is only one step.
        """
        checks.number(
            "train", train, above=0, below=1, wanted="between 0 and 1"
        )
        steps = np.unique(self.steps)
        if len(steps) < 2:
            raise ValueError(
                "Windows of a single step cannot be split by time."
            )
        first = min(max(round(train * len(steps)), 1), len(steps) - 1)
        early = self.steps < steps[first]
        return tuple(self.take(np.flatnonzero(r)) for r in (early, ~early))

    def sample(self, rate, seed=0):
        """Draws `round(rate n)` rows without replacement, in their order.

        Args:
            rate: float in (0, 1], the share of the rows.
            seed: int, seed of the NumPy generator.

        Returns:
            `Windows` of at least one row.

        Raises:
            ValueError: if `rate` is not in (0, 1].
        """
        checks.number("rate", rate, above=0, at_most=1)
        size = max(1, round(rate * len(self)))
        rows = np.random.default_rng(seed).permutation(len(self))[:size]
        return self.take(np.sort(rows))

    def take(self, rows):
        """The `Windows` of some rows, in the order of `rows`."""
        return dataclasses.replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            users=self.users[rows],
            steps=self.steps[rows],
        )


def column_range(part):
    """`(start, stop)` of a slice or a pair."""
    start, stop = (
        (part.start or 0, part.stop) if isinstance(part, slice) else part
    )
    return int(start), int(stop)
