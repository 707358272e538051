"""Real data sets by name, and synthetic ones.

`pen_strokes` and `drawn_scenes` draw public data to build features on;
`health_network` holds the schema of behaviour prediction, which
`health_simulator` fills.
"""

from keras_fm.datasets import (
    drawn_scenes,
    health_network,
    health_simulator,
    pen_strokes,
)
from keras_fm.datasets.behavior_windows import Windows
from keras_fm.datasets.health_network import HealthNetwork
from keras_fm.datasets.loaders import load

__all__ = [
    "HealthNetwork",
    "Windows",
    "drawn_scenes",
    "health_network",
    "health_simulator",
    "load",
    "pen_strokes",
]
