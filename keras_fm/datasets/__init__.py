"""Real data sets by name, and synthetic public data to build features on."""

from keras_fm.datasets import pen_strokes
from keras_fm.datasets.loaders import DATASETS, load

__all__ = ["DATASETS", "load", "pen_strokes"]
