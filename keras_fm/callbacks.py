"""Callbacks that make a fit private, and show what it released."""

from keras_fm.training.privacy_tensorboard import PrivacyTensorBoard
from keras_fm.training.private_model import PrivateModel

__all__ = ["PrivacyTensorBoard", "PrivateModel"]
