"""The papers' models, each a `keras.Model`."""

from keras_fm.models.adaptive_laplace import AdaptiveLaplace

__all__ = ["AdaptiveLaplace"]
