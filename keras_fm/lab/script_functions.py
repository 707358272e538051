"""Functions of a user's script, named `path/to/script.py:function`.

To `load` a function the script is imported: its main part, below
`if __name__ == "__main__":`, does not run.
"""

import importlib.util
import os
import sys


def is_named(text):
    """Whether a text means a function of a script."""
    return isinstance(text, str) and ".py:" in text


def load(named):
    """The functions; every script is imported once.

    Args:
        named: dict from flags to texts.

    Returns:
        dict from flags to functions.

    Raises:
        ValueError: if a text names no function.
    """
    modules, functions = {}, {}
    for flag, text in named.items():
        path, _, name = text.rpartition(":")
        path = os.path.abspath(path)
        if not os.path.isfile(path):
            raise ValueError(
                f"`--{flag}` must be a function of a script, as path/to/"
                f"script.py:function. Received: {text!r}"
            )
        if path not in modules:
            modules[path] = imported(path)
        functions[flag] = getattr(modules[path], name, None)
        if not callable(functions[flag]):
            raise ValueError(
                f"`--{flag}`: {os.path.basename(path)} has no function {name!r}"
            )
    return functions


def imported(path):
    """The module of a script."""
    folder, file = os.path.split(path)
    # As Python does: a script finds what lies beside it.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Not by its own name, which may be that of a package.
    name = f"_audited_{os.path.splitext(file)[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
