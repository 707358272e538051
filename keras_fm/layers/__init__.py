"""Private layers, and public feature layers to put before them."""

from keras_fm.layers.chebyshev_crbm import ChebyshevCRBM
from keras_fm.layers.discriminant_projection import DiscriminantProjection
from keras_fm.layers.dp_pca import DPPCA
from keras_fm.layers.local_response_normalization import (
    LocalResponseNormalization,
)
from keras_fm.layers.normalization_layer import NormalizationLayer
from keras_fm.layers.perturbed_affine import PerturbedAffine
from keras_fm.layers.perturbed_conv2d import PerturbedConv2D
from keras_fm.layers.private_dense import PrivateDense
from keras_fm.layers.private_encoder import PrivateEncoder
from keras_fm.layers.random_features import RandomFeatures
from keras_fm.layers.relevance_scaling import RelevanceScaling
from keras_fm.layers.scattering import Scattering2D

__all__ = [
    "ChebyshevCRBM",
    "DPPCA",
    "DiscriminantProjection",
    "LocalResponseNormalization",
    "NormalizationLayer",
    "PerturbedAffine",
    "PerturbedConv2D",
    "PrivateDense",
    "PrivateEncoder",
    "RandomFeatures",
    "RelevanceScaling",
    "Scattering2D",
]
