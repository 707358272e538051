"""Linear and logistic regression by the functional mechanism of 2012.

The objective of both is a quadratic in the weights w,

    alpha . w + w^T M w,    alpha = sum_i t_i x_i,    M = h sum_i x_i x_i^T,

with t = -2 y, h = 1 for least squares and t = 1/2 - y, h = 1/8 for the
second-order Taylor polynomial of the logistic loss. alpha and the upper
triangle of M get Laplace noise once; the minimiser is post-processing.

The proofs are in docs/proofs/regression_baselines.md.
"""

import math
import types
import typing

import numpy as np

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.kernel import sums as summation
from keras_fm.kernel.access import columns
from keras_fm.kernel.budget import Neighbours
from keras_fm.lab.baselines.private_estimator import (
    PrivateClassifier,
    PrivateEstimator,
    check_length,
)

SENSITIVITIES = ("published", "tight")


# Sensitivity -----------------------------------------------------------------


def linear_sensitivity(num_features, *, neighbours, form="published"):
    """L1 sensitivity of the least-squares coefficients.

    For d features with ||x||_2 <= 1 and |y| <= 1:

    * `"published"`: 2 (d + 1)^2 under replace_one (Zhang et al. 2012), half
      of it under add_remove. It bounds every way to store M (proposition 1).
    * `"tight"`: the exact sensitivity of the stored numbers (alpha and the
      upper triangle of M) for inputs in [0, 1 / sqrt(d)]^d, to which they are
      mapped (proposition 2).

    Args:
        num_features: int d, length of x, constant entry included.
        neighbours: `"replace_one"` (the paper's) or `"add_remove"`.
        form: `"published"` or `"tight"`.

    Example:

    >>> linear_sensitivity(13, neighbours="replace_one")
    392.0
    >>> round(linear_sensitivity(13, neighbours="replace_one", form="tight"), 2)
    16.07
    """
    d, replace = _check_query(num_features, neighbours, form)
    if form == "published":
        return (d + 1.0) ** 2 * (2 if replace else 1)
    return _tight(d, replace, linear=2.0, quadratic=1.0)


def logistic_sensitivity(num_features, *, neighbours, form="published"):
    """L1 sensitivity of the coefficients of the Taylor logistic loss.

    For d features with ||x||_2 <= 1 and y in {0, 1}:

    * `"published"`: d^2 / 4 + 3 d under replace_one (Zhang et al. 2012),
      half of it under add_remove. It bounds every way to store M
      (proposition 1).
    * `"tight"`: the exact sensitivity of the stored numbers, as in
      `linear_sensitivity` (proposition 2).

    Args:
        num_features: int d, length of x, constant entry included.
        neighbours: `"replace_one"` (the paper's) or `"add_remove"`.
        form: `"published"` or `"tight"`.

    Example:

    >>> logistic_sensitivity(13, neighbours="replace_one")
    81.25
    """
    d, replace = _check_query(num_features, neighbours, form)
    if form == "published":
        return (d * d / 4 + 3.0 * d) * (1 if replace else 0.5)
    return _tight(d, replace, linear=0.5, quadratic=0.125)


def _check_query(num_features, neighbours, form):
    d = checks.count("num_features", num_features)
    relation = Neighbours.of(neighbours)
    checks.either("form", form, SENSITIVITIES)
    return d, relation.replaces


def _tight(d, replace, *, linear, quadratic):
    one_record = linear * math.sqrt(d) + quadratic * (d + 1) / 2
    if not replace:
        return one_record
    # The other record is b (1, ..., 1): b balances its linear part against the
    # quadratic part that both records share.
    b = min(1 / math.sqrt(d), linear / (quadratic * (d + 1)))
    return one_record + linear * d * b - quadratic * d * (d + 1) * b**2 / 2


# Post-processing -------------------------------------------------------------


def positive_definite_part(quadratic, ridge):
    """Makes a noisy quadratic form bounded below (Zhang et al., section 6).

    Args:
        quadratic: symmetric array `(d, d)`.
        ridge: float >= 0, added to the diagonal first.

    Returns:
        Eigenvalues `(k,)`, all positive, and eigenvectors `(d, k)` of
        `quadratic + ridge I`; those with other eigenvalues are dropped.
    """
    values, vectors = np.linalg.eigh(quadratic + ridge * np.eye(len(quadratic)))
    # Relative to the largest: an eigenvalue of the size of rounding is not a
    # curvature.
    kept = values > max(1e-12 * np.abs(values).max(), 0.0)
    return values[kept], vectors[:, kept]


def minimise(linear, quadratic, ridge=0.0):
    """Minimiser of `linear . w + w^T (quadratic + ridge I) w` over the span
    of the kept eigenvectors; zero if none is kept.

    Args:
        linear: array `(d,)`.
        quadratic: symmetric array `(d, d)`.
        ridge: float >= 0.

    Returns:
        array `(d,)`.
    """
    values, vectors = positive_definite_part(quadratic, ridge)
    return vectors @ (vectors.T @ linear / (-2 * values))


# The functional mechanism ----------------------------------------------------


class _FunctionalRegression(PrivateEstimator):
    """The part that linear and logistic regression share."""

    _quadratic_factor: float | None = None
    _target: str | None = None
    _sensitivity_of: typing.Any = None

    def __init__(
        self,
        epsilon,
        *,
        fit_intercept=True,
        sensitivity="published",
        ridge_factor=4.0,
        **arguments,
    ):
        super().__init__(epsilon, **arguments)
        self.fit_intercept = bool(fit_intercept)
        self.sensitivity = checks.either(
            "sensitivity", sensitivity, SENSITIVITIES
        )
        self.ridge_factor = checks.nonnegative("ridge_factor", ridge_factor)

    def _plan(self, num_records, num_features):
        length = num_features + self.fit_intercept
        sensitivity = type(self)._sensitivity_of(
            length, neighbours=self._ledger.neighbours, form=self.sensitivity
        )
        return types.SimpleNamespace(
            sensitivity=sensitivity,
            # Under both relations no record's vector is longer.
            rounding_error=summation.error_bound(sensitivity),
            length=length,
            uses=(
                f"sum t x ({length}) and {self._quadratic_factor:g} sum x x^T "
                f"({length} x {length}, upper triangle) over all records, "
                f"once, t = {self._target}, "
                f"x in [0, 1 / sqrt({length})]^{length}"
            ),
            notes=(),
        )

    def _read(self, plan, cube, targets):
        if self.fit_intercept:
            # At its upper bound, so that the scaling below keeps x in the
            # unit ball.
            cube = np.hstack([cube, np.ones((len(cube), 1))])
        x = box_to_ball(cube, 0.0, 1.0)
        linear, quadratic = summation.total(
            (targets[part] @ x[part], x[part].T @ x[part])
            for part in summation.chunks(len(x))
        )
        upper = np.triu_indices(plan.length)
        return np.concatenate(
            [linear, self._quadratic_factor * quadratic[upper]]
        )

    def _release(self, plan, exact, mechanism, source):
        noisy = mechanism.perturb(exact, source, error=plan.rounding_error)
        m = plan.length
        self.linear_ = noisy[:m]
        quadratic = np.zeros((m, m))
        quadratic[np.triu_indices(m)] = noisy[m:]
        self.quadratic_ = quadratic + np.triu(quadratic, 1).T
        stddev = math.sqrt(mechanism.coordinate_variance(len(exact)))
        w = minimise(self.linear_, self.quadratic_, self.ridge_factor * stddev)
        self._set_solution(w / math.sqrt(m))

    def _set_solution(self, w):
        bias = w[-1] if self.fit_intercept else 0.0
        self._set_weights(w[: len(w) - self.fit_intercept], bias)


class FunctionalLinearRegression(_FunctionalRegression):
    """Least squares by the functional mechanism (Zhang et al. 2012).

    Features are clipped to their bounds and mapped to
    x = (x - low) / ((high - low) sqrt(d)), targets to [-1, 1]. The
    coefficients -2 sum y x and sum x x^T get Laplace noise once. Then
    `ridge_factor` standard deviations of that noise are added to the diagonal,
    and eigenvectors without a positive eigenvalue are dropped. The minimiser
    has a closed form. `fit_intercept` adds a constant entry to x, scaled as a
    feature at its upper bound; d counts it.

    Args:
        epsilon: float in (0, 1e6]; delta is 0.
        low, high: public bounds of the features, scalars or arrays `(d,)`.
        target_low, target_high: public bounds of y.
        fit_intercept: whether x gets a constant entry.
        neighbours: `"replace_one"` (the paper's) or `"add_remove"`.
        sensitivity: `"published"` (2 (d + 1)^2) or `"tight"` (exact, much
            smaller; see `linear_sensitivity`). Both are proven.
        ridge_factor: float >= 0; 4 in the paper, 5 in its authors' code.
        reproducible_noise: `None`, or an int seed ("not private").

    Attributes:
        coef_, intercept_: the fitted function, in the units of x and y,
            for x within its bounds.
        linear_, quadratic_: the released coefficients, noise added.
        ledger: the `keras_fm.Ledger` of the spent budget.

    Raises:
        ValueError: on arguments outside their range.

    Example:

    >>> model = FunctionalLinearRegression(
    ...     1.0, low=0.0, high=1.0, target_low=0.0, target_high=10.0
    ... )
    >>> model.ledger.epsilon()
    0.0

    Source: Zhang, Zhang, Xiao, Yang and Winslett, "Functional Mechanism:
    Regression Analysis under Differential Privacy", PVLDB 2012.
    """

    _quadratic_factor = 1.0
    _target = "-2 y, |y| <= 1"
    _sensitivity_of = staticmethod(linear_sensitivity)

    def __init__(self, epsilon, *, target_low, target_high, **arguments):
        super().__init__(epsilon, **arguments)
        low, high = bounds_lib.check_bounds(target_low, target_high)
        if low.ndim or high.ndim:
            raise ValueError(
                "`target_low` and `target_high` must be scalars. Received: "
                f"target_low={target_low}, target_high={target_high}"
            )
        self.target_low, self.target_high = float(low), float(high)

    def _check_targets(self, y, n):
        y = np.clip(_finite_targets(y, n), self.target_low, self.target_high)
        centre, half = self._target_map()
        return -2 * np.clip((y - centre) / half, -1.0, 1.0)

    def _target_map(self):
        half = (self.target_high - self.target_low) / 2
        return self.target_low + half, half

    def _set_solution(self, w):
        centre, half = self._target_map()
        w = half * w
        bias = w[-1] if self.fit_intercept else 0.0
        self._set_weights(w[: len(w) - self.fit_intercept], centre + bias)

    def predict(self, x):
        """Predictions `(n,)`; features outside the bounds are clipped."""
        return self._linear_function(x)

    def score(self, x, y):
        """R^2, the share of the variance of y that is explained."""
        predicted = self.predict(x)
        y = _finite_targets(y, len(predicted))
        spread = np.sum((y - y.mean()) ** 2)
        if spread == 0:
            raise ValueError("R^2 needs targets that are not all equal.")
        return float(1 - np.sum((y - predicted) ** 2) / spread)


def _finite_targets(y, n):
    y = columns.as_numbers(check_length(y, n), "y", np.float64)
    more = ": at least one target is NaN or infinite."
    return checks.finite("y", y, more)


class FunctionalLogisticRegression(_FunctionalRegression, PrivateClassifier):
    """Logistic regression by the functional mechanism (Zhang et al. 2012).

    As `FunctionalLinearRegression`, for the objective
    sum [log 2 + (1/2 - y) z + z^2 / 8], z = w . x: the second-order Taylor
    polynomial of the logistic loss about z = 0.

    Args:
        epsilon: float in (0, 1e6]; delta is 0.
        low, high: public bounds of the features, scalars or arrays `(d,)`.
        fit_intercept: whether x gets a constant entry.
        neighbours: `"replace_one"` (the paper's) or `"add_remove"`.
        sensitivity: `"published"` (d^2 / 4 + 3 d) or `"tight"` (exact, much
            smaller; see `logistic_sensitivity`). Both are proven.
        ridge_factor: float >= 0; 4 in the paper, 5 in its authors' code.
        reproducible_noise: `None`, or an int seed ("not private").

    Attributes:
        coef_, intercept_: the logit's function, in the units of x, for x
            within its bounds.
        linear_, quadratic_: the released coefficients, noise added.
        ledger: the `keras_fm.Ledger` of the spent budget.

    Raises:
        ValueError: on arguments outside their range.

    Example:

    ```python
    model = FunctionalLogisticRegression(1.0, low=0.0, high=bounds)
    model.fit(x, y).score(x_test, y_test)
    print(model.report())
    ```

    Source: Zhang et al. 2012.
    """

    _quadratic_factor = 0.125
    _target = "1/2 - y"
    _sensitivity_of = staticmethod(logistic_sensitivity)

    def _check_targets(self, y, n):
        return 0.5 - super()._check_targets(y, n)


def box_to_ball(x, low, high, norm="l2"):
    """Maps the box [low, high]^d into the unit ball of `norm`.

    `(x - low) / ((high - low) sqrt(d))` for the L2 ball (dPA Eq. 13, Zhang
    et al. 2012), `(x - low) / ((high - low) d)` for the L1 ball.

    Args:
        x: array `(..., d)`.
        low, high: scalars or arrays `(d,)`, public.
        norm: `"l2"` or `"l1"`.

    Returns:
        float64 array of the same shape, inside the unit ball whenever `x`
        is inside the box.
    """
    low, high = bounds_lib.check_bounds(low, high)
    x = columns.as_numbers(x, dtype=np.float64)
    d = x.shape[-1]
    return (x - low) / (high - low) / (math.sqrt(d) if norm == "l2" else d)
