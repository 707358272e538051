"""Private models as scikit-learn estimators: `fit`, `predict`, `score`.

An estimator and its clones share one ledger, the record of the privacy budget
that was spent. Every `fit` is charged to it, so cross-validation pays for each
of its fits or is refused.
"""

from keras_fm.estimators.private_classifier import PrivateClassifier
from keras_fm.estimators.private_regressor import PrivateRegressor

__all__ = ["PrivateClassifier", "PrivateRegressor"]
