"""Losses that are polynomials: Taylor expansions of the usual ones."""

from keras_fm.heads.taylor_cross_entropy import TaylorCrossEntropy
from keras_fm.papers.dpa.perturbed_reconstruction import PerturbedReconstruction

__all__ = ["PerturbedReconstruction", "TaylorCrossEntropy"]
