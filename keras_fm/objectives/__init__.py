"""Objectives as functions of perturbed statistics."""

from keras_fm.objectives.cross_entropy import CrossEntropyObjective
from keras_fm.objectives.patch_moments import PatchMomentObjective
from keras_fm.objectives.quadratic import QuadraticObjective
from keras_fm.objectives.reconstruction import ReconstructionObjective
from keras_fm.objectives.relevance import RelevanceObjective
from keras_fm.objectives.second_moment import SecondMomentObjective

OBJECTIVES = {
    kind.__name__: kind
    for kind in (
        CrossEntropyObjective,
        PatchMomentObjective,
        ReconstructionObjective,
        RelevanceObjective,
        SecondMomentObjective,
    )
}

__all__ = [
    "CrossEntropyObjective",
    "PatchMomentObjective",
    "QuadraticObjective",
    "ReconstructionObjective",
    "RelevanceObjective",
    "SecondMomentObjective",
]
