"""Functions of a user's script, named `path/to/script.py:function`.

What can be said of a name without running the script is said by `check`. To
`load` a function the script is imported: its main part, below
`if __name__ == "__main__":`, does not run.
"""

import functools
import importlib.util
import os
import sys
import traceback

_WANTED = "a function of a script, as path/to/script.py:function"


def is_named(text):
    """Whether a text means a function of a script, rightly or not."""
    return isinstance(text, str) and (".py:" in text or text.endswith(".py"))


def check(flag, text):
    """Refuses what names no function; runs nothing.

    Args:
        flag: of the command line, for the message.
        text: what it was given.

    Raises:
        ValueError: if there is no such file, or it is no Python.
    """
    path, name = _split(flag, text)
    if not os.path.isfile(path):
        raise ValueError(f"`--{flag}`: there is no such file: {path!r}")
    try:
        with open(path, "rb") as f:
            compile(f.read(), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OSError) as e:
        line = getattr(e, "lineno", None)
        where = f"line {line}: " if line else ""
        raise ValueError(
            f"`--{flag}`: {path!r} cannot be read as Python: {where}"
            f"{getattr(e, 'msg', None) or e}"
        ) from None
    if not name.isidentifier():
        raise ValueError(
            f"`--{flag}` must be {_WANTED}. Received: {text!r}, where {name!r} "
            "is no name"
        )


def load(named):
    """The functions; every script is imported once.

    What a function raises names the script and the line.

    Args:
        named: dict from flags to texts that `check` let pass.

    Returns:
        dict from flags to functions.

    Raises:
        ValueError: if a script cannot be imported, or has no such function.
    """
    modules, functions = {}, {}
    for flag, text in named.items():
        path, name = _split(flag, text)
        path = os.path.abspath(path)
        if path not in modules:
            modules[path] = _import(path)
        function = getattr(modules[path], name, None)
        if not callable(function):
            there = [
                key
                for key, value in vars(modules[path]).items()
                if getattr(value, "__module__", None) == modules[path].__name__
                and callable(value)
            ]
            raise ValueError(
                f"`--{flag}`: {os.path.basename(path)} has no function "
                f"{name!r}. It has: {', '.join(there) or 'none'}"
            )
        functions[flag] = _guarded(path, name, function)
    return functions


def _split(flag, text):
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ValueError(f"`--{flag}` must be {_WANTED}. Received: {text!r}")
    return path, name


def _import(path):
    folder, file = os.path.split(path)
    # As Python does: a script finds what lies beside it.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Not by its own name, which may be that of a package.
    name = f"_audited_{os.path.splitext(file)[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # A script raises what it likes, and may end the process.
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise ValueError(
            f"{file} cannot be imported: {_said(path, e)}. What it does as a "
            'program belongs below `if __name__ == "__main__":`.'
        ) from e
    return module


def _guarded(path, name, function):
    @functools.wraps(function)
    def call(*arguments):
        try:
            return function(*arguments)
        except Exception as e:
            raise ValueError(f"`{name}` failed: {_said(path, e)}") from e

    return call


def _said(path, error):
    """An error, and the last line of the script that led to it."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    where = f"{os.path.basename(path)}, line {lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {error}"
