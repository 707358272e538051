"""Baselines to compare with: DP-SGD by other libraries, and private
regression."""

from keras_fm.lab.baselines.dp_sgd import DPSGDClassifier
from keras_fm.lab.baselines.dp_sgd_autoencoder import DPSGDAutoencoder
from keras_fm.lab.baselines.dp_sgd_config import DPSGDConfig
from keras_fm.lab.baselines.dp_sgd_jax import JaxDPSGDClassifier
from keras_fm.lab.baselines.functional_regression import (
    FunctionalLinearRegression,
    FunctionalLogisticRegression,
)

__all__ = [
    "DPSGDAutoencoder",
    "DPSGDClassifier",
    "DPSGDConfig",
    "FunctionalLinearRegression",
    "FunctionalLogisticRegression",
    "JaxDPSGDClassifier",
]
