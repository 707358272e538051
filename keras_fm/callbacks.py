"""Callbacks that make a fit private, and show what it released."""

from keras_fm.training.privacy_tensorboard import PrivacyTensorBoard
from keras_fm.training.private_model import PrivateModel
from keras_fm.training.relevance_image import RelevanceImage

__all__ = ["PrivacyTensorBoard", "PrivateModel", "RelevanceImage"]
