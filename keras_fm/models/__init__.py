"""The papers' models, each a `keras.Model`."""

from keras_fm.models.adaptive_laplace import AdaptiveLaplace
from keras_fm.models.behavior_autoencoder import BehaviorAutoencoder
from keras_fm.models.behavior_cdbn import BehaviorCDBN
from keras_fm.models.deep_private_autoencoder import (
    Autoencoder,
    DeepPrivateAutoencoder,
)
from keras_fm.models.dpmac import DPMAC
from keras_fm.models.energy_model import EnergyModel
from keras_fm.models.functional_net import FunctionalNet
from keras_fm.models.private_cdbn import PrivateCDBN
from keras_fm.models.unprotected_twin import unprotected_twin

__all__ = [
    "AdaptiveLaplace",
    "Autoencoder",
    "BehaviorAutoencoder",
    "BehaviorCDBN",
    "DPMAC",
    "DeepPrivateAutoencoder",
    "EnergyModel",
    "FunctionalNet",
    "PrivateCDBN",
    "unprotected_twin",
]
