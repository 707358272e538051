"""The papers' models, each a `keras.Model`."""

from keras_fm.models.adaptive_laplace import AdaptiveLaplace
from keras_fm.models.behavior_autoencoder import BehaviorAutoencoder
from keras_fm.models.deep_private_autoencoder import (
    Autoencoder,
    DeepPrivateAutoencoder,
)

__all__ = [
    "AdaptiveLaplace",
    "Autoencoder",
    "BehaviorAutoencoder",
    "DeepPrivateAutoencoder",
]
