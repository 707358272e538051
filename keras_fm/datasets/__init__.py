"""Real data sets by name, and synthetic public data to build features on."""

#PS
from keras_fm.datasets.loaders import DATASETS, load

__all__ = ["DATASETS", "load"]
