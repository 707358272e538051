"""Private models as scikit-learn estimators: `fit`, `predict`, `score`.

Every `fit` charges the ledger that an estimator shares with its clones, so
cross-validation pays for each of its fits or is refused.
"""

from keras_fm.estimators.private_classifier import PrivateClassifier
from keras_fm.estimators.private_regressor import PrivateRegressor

__all__ = ["PrivateClassifier", "PrivateRegressor"]
