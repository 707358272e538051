"""The common part of the private regressions.

It fixes the public domain, the ledger, and the order of check, statistics,
charge and noise.
"""

import abc

import numpy as np
from scipy import special

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.access import columns
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LATTICE, LedgerEntry
from keras_fm.kernel.mechanisms import LaplaceMechanism, NoiseSource

PROOF = "docs/proofs/regression_baselines.md"


class PrivateEstimator(abc.ABC):
    """A scikit-learn-style estimator whose one `fit` spends its epsilon.

    It has no `get_params`, so tools cannot clone it: every clone would have a
    fresh ledger and spend the whole budget.

    Args:
        epsilon: float in (0, 1e6], the whole budget; delta is 0.
        low, high: public bounds of the features, scalars or arrays `(d,)`.
            Values outside are clipped.
        neighbours: `"replace_one"` (the papers') or `"add_remove"`.
        reproducible_noise: `None`, or an int seed. A seeded run is labelled
            "not private".
    """

    def __init__(
        self,
        epsilon,
        *,
        low,
        high,
        neighbours="replace_one",
        reproducible_noise=None,
    ):
        self.low, self.high = bounds_lib.check_bounds(low, high)
        shape = np.broadcast_shapes(self.low.shape, self.high.shape)
        if len(shape) > 1:
            raise ValueError(
                "Bounds must be scalars or have shape (d,). Received: "
                f"low.shape={self.low.shape}, high.shape={self.high.shape}"
            )
        self._bounds_shape = shape
        self._ledger = Ledger(
            PrivacyBudget(epsilon, 0.0), neighbours=neighbours
        )
        self._seed = reproducible_noise
        NoiseSource(reproducible_noise)  # An unusable seed fails here.
        self.coef_ = None

    @property
    def ledger(self):
        """The `keras_fm.Ledger` of this estimator."""
        return self._ledger

    def report(self):
        """The privacy statement, composed from the ledger."""
        return self._ledger.statement()

    def fit(self, x, y):
        """Sums over the records, charges the ledger, adds noise, solves.

        Args:
            x: array `(n, d)` of finite numbers.
            y: array `(n,)`.

        Returns:
            self.

        Raises:
            BudgetExceededError: on a second fit, before using the records.
            ValueError: if shapes, values or labels are invalid. Nothing is
                spent then.
        """
        plan = self._plan(*self._shape(x))
        epsilon = self._ledger.budget.epsilon
        mechanism = LaplaceMechanism(
            sensitivity=plan.sensitivity, epsilon=epsilon
        )
        entry = LedgerEntry(
            name=type(self).__name__,
            guarantee="proven",
            neighbours=str(self._ledger.neighbours),
            mechanism=mechanism.config(),
            uses=plan.uses,
            proof=PROOF,
            private=self._seed is None,
            noise=LATTICE,
            notes=plan.notes,
        )
        self._ledger.check([entry])
        summation.check_count(self._shape(x)[0])
        cube = self._to_cube(x)
        exact = self._read(plan, cube, self._check_targets(y, len(cube)))
        self._ledger.charge([entry])
        self._release(plan, exact, mechanism, NoiseSource(self._seed))
        return self

    @abc.abstractmethod
    def _plan(self, num_records, num_features):
        """The release of a fit, planned from public numbers: an object with
        `sensitivity`, `uses` and `notes`."""

    @abc.abstractmethod
    def _check_targets(self, y, n):
        """The targets in their public domain, float64 `(n,)`."""

    @abc.abstractmethod
    def _read(self, plan, cube, targets):
        """The exact statistic."""

    @abc.abstractmethod
    def _release(self, plan, exact, mechanism, source):
        """Adds noise to the statistic and solves; calls `_set_weights`."""

    def _shape(self, x):
        """`(n, d)` of the array `x`, without using its records."""
        shape = tuple(x.shape if hasattr(x, "shape") else np.shape(x))
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                "`x` must have shape (n, d) with at least one record and "
                f"one feature. Received: x.shape={shape}"
            )
        if self._bounds_shape not in ((), (1,), shape[1:]):
            raise ValueError(
                "`x` must have as many features as the bounds. Received: "
                f"x.shape={shape}, bounds of shape {self._bounds_shape}"
            )
        return int(shape[0]), int(shape[1])

    def _to_cube(self, x):
        """Clips to the bounds and maps them to [0, 1]^d, float64."""
        self._shape(x)
        x = columns.as_numbers(x, dtype=np.float64)
        checks.finite(
            "x",
            x,
            ": at least one record has a NaN or an infinite feature. Nothing "
            "was spent.",
        )
        x = np.clip(x, self.low, self.high)
        # Rounding in the division must not leave the cube.
        return np.clip((x - self.low) / (self.high - self.low), 0.0, 1.0)

    def _set_weights(self, weights, bias):
        """Stores a linear function of the cube, also in the units of `x`."""
        self._weights, self._bias = np.asarray(weights), float(bias)
        self.coef_ = self._weights / (self.high - self.low)
        self.intercept_ = self._bias - float(np.sum(self.coef_ * self.low))

    def _linear_function(self, x):
        if self.coef_ is None:
            raise RuntimeError(
                f"This {type(self).__name__} is not fitted. Call `fit` first."
            )
        if self._shape(x)[1] != len(self._weights):
            raise ValueError(
                f"`x` must have {len(self._weights)} features, as in `fit`. "
                f"Received: x.shape={np.shape(x)}"
            )
        return self._to_cube(x) @ self._weights + self._bias


class PrivateClassifier(PrivateEstimator):
    """A `PrivateEstimator` for labels 0 and 1 with a linear decision."""

    classes_ = np.array([0, 1])

    def _check_targets(self, y, n):
        return check_labels(y, n)

    def decision_function(self, x):
        """Logits `(n,)`; features outside the bounds are clipped."""
        return self._linear_function(x)

    def predict_proba(self, x):
        """Probabilities `(n, 2)` of the classes 0 and 1."""
        p = special.expit(self.decision_function(x))
        return np.stack([1 - p, p], axis=1)

    def predict(self, x):
        """Classes `(n,)`, 0 or 1."""
        return (self.decision_function(x) > 0).astype(np.int64)

    def score(self, x, y):
        """Accuracy on `(x, y)`."""
        predicted = self.predict(x)
        return float(np.mean(predicted == check_labels(y, len(predicted))))


def check_length(y, n):
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (n,):
        raise ValueError(
            "`y` must have shape (n,), one target for each record. "
            f"Received: y.shape={y.shape}, {n} records"
        )
    return y


def check_labels(y, n):
    y = check_length(y, n)
    if not np.all((y == 0) | (y == 1)):
        raise ValueError(
            "Labels must be 0 or 1. At least one label is something else."
        )
    return y.astype(np.float64)
