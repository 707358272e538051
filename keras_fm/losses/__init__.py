"""Polynomial losses."""

from keras_fm.losses.perturbed_reconstruction import PerturbedReconstruction
from keras_fm.losses.taylor_cross_entropy import TaylorCrossEntropy

__all__ = ["PerturbedReconstruction", "TaylorCrossEntropy"]
