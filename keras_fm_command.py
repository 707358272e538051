"""Entry point of the `keras-fm` command.

It stands outside the package because `import keras_fm` imports Keras, which
takes seconds and fails where a backend is broken. Help, completion and the
doctor have to speak there, too.
"""

import importlib.util
import sys


def main():
    """Runs the command line; returns the exit status."""
    if "keras_fm" not in sys.modules:
        # The package with its modules, but without what `__init__` imports:
        # a command that computes asks for that (`keras_fm.cli`).
        spec = importlib.util.find_spec("keras_fm")
        sys.modules["keras_fm"] = importlib.util.module_from_spec(spec)
    try:
        from keras_fm import cli
    except ModuleNotFoundError as e:
        if e.name != "absl":
            raise
        sys.stderr.write("keras-fm: pip install absl-py, which is missing.\n")
        return 2
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
