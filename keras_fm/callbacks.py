"""Callbacks that make a fit private, and show its releases."""

from keras_fm.training.privacy_tensorboard import PrivacyTensorBoard
from keras_fm.training.private_model import PrivateModel

__all__ = ["PrivacyTensorBoard", "PrivateModel"]
