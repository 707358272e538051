"""A worker of a comparison; started by `engine.workers.Processes`."""

import json
import os
import sys

import numpy as np

from keras_fm.lab.compare.comparison import Comparison
from keras_fm.lab.compare.task import ARRAYS, Task
from keras_fm.lab.engine import workers


def task(folder):
    """The `Task` that a folder describes."""
    with open(os.path.join(folder, "spec.json")) as f:
        found = json.load(f)
    spec = Comparison.from_config(found["spec"])
    # Few methods use the images, and none the test part while it trains: they
    # must not pay for their memory.
    arrays = {
        name: np.load(
            os.path.join(folder, f"{name}.npy"),
            mmap_mode=None if name in ("x", "y") else "r",
            allow_pickle=False,
        )
        for name in ARRAYS
    }
    return Task(spec, **arrays, classes=found["classes"])


if __name__ == "__main__":
    workers.serve(lambda: task(sys.argv[1]))
