"""Callbacks that make a fit private."""

from keras_fm.callbacks.private_model import PrivateModel

__all__ = ["PrivateModel"]
