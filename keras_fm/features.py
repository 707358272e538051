"""Named public feature maps for images: recipes of public layers.

Each maps a record on its own and is made without private records, so it
needs no privacy. The last step of every map is unit L2 norm.
"""

import functools

import keras
import numpy as np

from keras_fm.datasets import pen_strokes
from keras_fm.layers.discriminant_projection import DiscriminantProjection
from keras_fm.layers.normalization_layer import NormalizationLayer
from keras_fm.layers.random_features import RandomFeatures
from keras_fm.layers.scattering import Scattering2D

FEATURES = ("pixels", "scattering", "scattering_strokes")


def check(name):
    """Raises a ValueError unless `name` is a known feature map."""
    if name not in FEATURES:
        raise ValueError(
            f"`features` must be one of {FEATURES}. Received: "
            f"features={name!r}"
        )
