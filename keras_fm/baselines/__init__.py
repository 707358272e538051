"""Rivals, trained by their own libraries."""

from keras_fm.baselines.dp_sgd import DPSGDClassifier, DPSGDConfig

__all__ = ["DPSGDClassifier", "DPSGDConfig"]
