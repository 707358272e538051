"""Objectives as functions of perturbed statistics."""

from keras_fm.objectives.cross_entropy import CrossEntropyObjective
from keras_fm.objectives.gradient import GradientObjective
from keras_fm.objectives.layer_coefficients import LayerCoefficientsObjective
from keras_fm.objectives.network_expansion import NetworkExpansionObjective
from keras_fm.objectives.norm_histogram import NormHistogramObjective
from keras_fm.objectives.patch_moments import PatchMomentObjective
from keras_fm.objectives.quadratic import QuadraticObjective
from keras_fm.objectives.reconstruction import ReconstructionObjective
from keras_fm.objectives.relevance import RelevanceObjective
from keras_fm.objectives.second_moment import SecondMomentObjective

OBJECTIVES = {
    kind.__name__: kind
    for kind in (
        CrossEntropyObjective,
        GradientObjective,
        NetworkExpansionObjective,
        NormHistogramObjective,
        PatchMomentObjective,
        ReconstructionObjective,
        RelevanceObjective,
        SecondMomentObjective,
    )
}

__all__ = [
    "CrossEntropyObjective",
    "GradientObjective",
    "LayerCoefficientsObjective",
    "NetworkExpansionObjective",
    "NormHistogramObjective",
    "PatchMomentObjective",
    "QuadraticObjective",
    "ReconstructionObjective",
    "RelevanceObjective",
    "SecondMomentObjective",
]
