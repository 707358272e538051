"""Private models as scikit-learn estimators: `fit`, `predict`, `score`.

Every `fit` charges the ledger that an estimator shares with its clones, so
cross-validation pays for each of its fits or is refused.
"""

from keras_fm.estimators.private_classifier import PrivateClassifier

__all__ = ["PrivateClassifier"]
