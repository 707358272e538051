"""Private layers, and public feature layers to put before them."""

from keras_fm.layers.discriminant_projection import DiscriminantProjection
from keras_fm.layers.normalization_layer import NormalizationLayer
from keras_fm.layers.perturbed_affine import PerturbedAffine
from keras_fm.layers.private_dense import PrivateDense
from keras_fm.layers.random_features import RandomFeatures
from keras_fm.layers.scattering import Scattering2D

__all__ = [
    "DiscriminantProjection",
    "NormalizationLayer",
    "PerturbedAffine",
    "PrivateDense",
    "RandomFeatures",
    "Scattering2D",
]
