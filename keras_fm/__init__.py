"""Keras layers, models and callbacks for training with differential privacy.

The functional mechanism adds noise to the coefficients of an objective once;
then train with ordinary `compile` and `fit` for as long as you like.

Importing the package loads no other module: each name is loaded when used.
"""

import importlib
import sys

from keras_fm import public_names
from keras_fm.version import __version__

sys.meta_path.insert(0, public_names.Finder())
if "keras" in sys.modules:
    public_names.register_layers()

__all__ = [*public_names.NAMES, *public_names.MODULES, "__version__"]


def __getattr__(name):
    if name in public_names.NAMES:
        module = importlib.import_module(public_names.NAMES[name])
        found = getattr(module, name)
    elif name in public_names.MODULES:
        found = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__():
    return sorted({*globals(), *__all__})
