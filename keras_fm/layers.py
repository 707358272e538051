"""Private layers, and public feature layers that come before them."""

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.papers.adlm.perturbed_layers import (
    PerturbedAffine,
    PerturbedConv2D,
)
from keras_fm.papers.adlm.relevance_scaling import RelevanceScaling
from keras_fm.papers.dpa.private_encoder import PrivateEncoder
from keras_fm.papers.pcdbn.chebyshev_crbm import ChebyshevCRBM
from keras_fm.papers.pcdbn.private_patches import PrivatePatches
from keras_fm.preprocessing.dp_pca import DPPCA
from keras_fm.preprocessing.private_normalization import PrivateNormalization
from keras_fm.public.discriminant_projection import DiscriminantProjection
from keras_fm.public.local_response_normalization import (
    LocalResponseNormalization,
)
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.public.patch_dictionary import PatchDictionary
from keras_fm.public.principal_projection import PrincipalProjection
from keras_fm.public.quadratic_features import QuadraticFeatures
from keras_fm.public.random_features import RandomFeatures
from keras_fm.public.scattering import Scattering2D

__all__ = [
    "ChebyshevCRBM",
    "DPPCA",
    "NormalizationLayer",
    "PerturbedAffine",
    "PerturbedConv2D",
    "PrivateDense",
    "PrivateEncoder",
    "PrivateNormalization",
    "PrivatePatches",
    "QuadraticFeatures",
    "RandomFeatures",
    "RelevanceScaling",
    "Scattering2D",
]
