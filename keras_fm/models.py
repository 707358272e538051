"""The papers' models, and an ordinary network, each a `keras.Model`."""

from keras_fm.core.unprotected_twin import unprotected_twin
from keras_fm.papers.adlm.adaptive_laplace import AdaptiveLaplace
from keras_fm.papers.adlm.claims import PublishedAdLM
from keras_fm.papers.dpa.behavior_autoencoder import BehaviorAutoencoder
from keras_fm.papers.dpa.claims import PublishedDPA
from keras_fm.papers.dpa.deep_private_autoencoder import (
    Autoencoder,
    DeepPrivateAutoencoder,
)
from keras_fm.papers.dpmac.dpmac import DPMAC
from keras_fm.papers.functional_net.claims import PublishedFunctionalNet
from keras_fm.papers.functional_net.functional_net import FunctionalNet
from keras_fm.papers.pcdbn.behavior_cdbn import BehaviorCDBN
from keras_fm.papers.pcdbn.claims import PublishedCDBN
from keras_fm.papers.pcdbn.energy_model import EnergyModel
from keras_fm.papers.pcdbn.private_cdbn import PrivateCDBN
from keras_fm.per_example.gradient_net import GradientNet

__all__ = [
    "AdaptiveLaplace",
    "BehaviorAutoencoder",
    "BehaviorCDBN",
    "DPMAC",
    "DeepPrivateAutoencoder",
    "FunctionalNet",
    "GradientNet",
    "PrivateCDBN",
    "PublishedAdLM",
    "PublishedCDBN",
    "PublishedDPA",
    "PublishedFunctionalNet",
    "unprotected_twin",
]
