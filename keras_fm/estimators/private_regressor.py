import os
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from keras_fm.estimators.private_estimator import PrivateEstimator
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.kernel.ledger.ledger import Ledger


class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """A scikit-learn regressor with a proven epsilon. It is a `PrivateDense`
    with `loss="squared_error"` on public features, trained by a `PrivateModel`.

    All fits of the estimator and its clones share one budget. All parameters
    are public. Both are as in `PrivateClassifier`.

    Args:
        epsilon, delta, bounds, columns, features, fits, evaluation, held_out,
            ledger, neighbours, reproducible_noise: see `PrivateClassifier`.
        rounds: `None` for one release, a `keras_fm.Rounds`, or the number of
            rounds.
        target_bounds: `(low, high)`, the public range of the numbers to
            predict. Numbers outside are clipped to it, and so are
            predictions. One release first finds their mean and deviation:
            the noise of that is proportional to `high - low`.

    Attributes:
        model_: the Keras model, from columns to numbers.
        ledger_: the `keras_fm.Ledger` that was charged.

    Raises:
        ValueError: from `fit`, if a parameter is not as above.

    Example:

    ```python
    model = PrivateRegressor(
        1.0, 1e-6, bounds=(low, high), target_bounds=(0, 100)
    ).fit(X, y)
    print(model.predict(X[:3]), model.report())
    ```
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        columns: Any = None,
        features: Any = None,
        rounds: Any = None,
        fits: int = 1,
        evaluation: float = 0.0,
        held_out: float | None = None,
        ledger: Ledger | str | os.PathLike | None = None,
        neighbours: str | None = None,
        reproducible_noise: int | None = None,
    ) -> None:
        self._keep(locals())

    def _learned(self, y, known):
        head = PrivateDense(
            1,
            loss="squared_error",
            target_bounds=self.target_bounds,
            # For targets outside: features are in the unit ball already.
            clip=True,
            rounds=self.rounds,
            name="private_dense",
            **known,
        )
        return _numbers(y), head, "mse", {}

    def _asked(self, metrics):
        known = ("mean_absolute_error", "r2")
        return {"metrics": metrics or known, "clip": True}

    def predict(self, X: Any) -> np.ndarray:
        """Numbers `(n,)`, within `target_bounds`."""
        return self._outputs(X)[:, 0]

    def _meant(self, outputs):
        return np.clip(outputs, *self._range)

    @property
    def _range(self):
        # The bounds of the fit, as the layer holds them.
        return self.model_.layers[-1].target_bounds[0]


def _numbers(y):
    try:
        return np.asarray(y, np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    # Outside of `except`: NumPy's words show a value of a record.
    raise ValueError(
        "`y` must hold numbers. At least one is not a number, or too large "
        "for a float."
    )
