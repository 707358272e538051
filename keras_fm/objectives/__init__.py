"""Objectives as functions of perturbed statistics."""

from keras_fm.objectives.cross_entropy import CrossEntropyObjective

__all__ = ["CrossEntropyObjective"]
