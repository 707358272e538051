"""Real data sets by name, and synthetic ones.

`pen_strokes` draws public data for feature maps. `health_simulator` simulates a
`HealthNetwork`, a social network of health behaviour.
"""

from keras_fm.datasets import health_simulator, pen_strokes
from keras_fm.datasets.behavior_windows import Windows
from keras_fm.datasets.health_network import HealthNetwork
from keras_fm.datasets.loaders import load

__all__ = [
    "HealthNetwork",
    "Windows",
    "health_simulator",
    "load",
    "pen_strokes",
]
