"""Objectives as functions of perturbed statistics."""

from keras_fm.objectives.cross_entropy import CrossEntropyObjective
from keras_fm.objectives.relevance import RelevanceObjective

OBJECTIVES = {
    kind.__name__: kind for kind in (CrossEntropyObjective, RelevanceObjective)
}

__all__ = ["CrossEntropyObjective", "RelevanceObjective"]
