"""Callbacks that make a fit private, and show what it released."""

from keras_fm.callbacks.privacy_tensorboard import PrivacyTensorBoard
from keras_fm.callbacks.private_model import PrivateModel
from keras_fm.callbacks.relevance_image import RelevanceImage

__all__ = ["PrivacyTensorBoard", "PrivateModel", "RelevanceImage"]
