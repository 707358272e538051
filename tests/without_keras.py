"""Which tests need Keras, read off their imports, and a process without it."""

import ast
import functools
import sys
from pathlib import Path

from keras_fm import public_names

FRAMEWORKS = {
    "jax",
    "jax_privacy",
    "keras",
    "tensorboard",
    "tensorflow",
    "tensorflow_privacy",
    "tf_keras",
    "torch",
}
TESTS = Path(__file__).resolve().parent


class Refusal:
    """A finder: importing a framework ends the test, whoever asks for it."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FRAMEWORKS:
            raise RuntimeError(f"`{name}` is imported --without-keras.")


def refuse():
    loaded = FRAMEWORKS & set(sys.modules)
    if loaded:
        raise RuntimeError(f"Imported before --without-keras: {loaded}")
    sys.meta_path.insert(0, Refusal())


@functools.cache
def needs_keras(path):
    """Whether the tests of a file, or what it imports, ask for a framework.

    A test file is looked at as a whole, other modules at what importing them
    runs: who calls a function that imports Keras says so in his own test.
    """
    return any(_is_framework(name) for name in _imported(path, nested=True))


@functools.cache
def _is_framework(name):
    # Modules that import each other are not asked twice.
    return any(n.partition(".")[0] in FRAMEWORKS for n in _closure(name))


@functools.cache
def _closure(name):
    found, waiting = set(), [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            path = _file(name)
            waiting += _imported(path) if path else ()
    return found


@functools.cache
def _file(name):
    """Of a module of ours."""
    place = name.replace(".", "/")
    root = TESTS.parent
    for path in (root / f"{place}.py", root / place / "__init__.py"):
        if path.is_file():
            return path
    return _helpers().get(name)


@functools.cache
def _helpers():
    """Modules that tests share; pytest lets them be imported by name."""
    return {
        path.stem: path
        for path in TESTS.rglob("*.py")
        if not path.stem.startswith("test_")
    }


@functools.cache
def _imported(path, nested=False):
    """Names of modules, with the packages above them."""
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    short = None
    for node in _nodes(tree, nested):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.add(alias.name)
                if alias.name == "keras_fm" and alias.asname:
                    short = alias.asname
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "attr", None)
            argument = getattr(node.args[0], "value", None)
            if function == "importorskip" and isinstance(argument, str):
                found.add(argument)
        elif (
            short
            and isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == short
        ):
            found.add(f"keras_fm.{node.attr}")
    whole = set()
    for name in map(_lives_in, found):
        parts = name.split(".")
        whole |= {".".join(parts[: i + 1]) for i in range(len(parts))}
    return frozenset(whole)


def _nodes(tree, nested):
    for child in ast.iter_child_nodes(tree):
        yield child
        if nested or not isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield from _nodes(child, nested)


def _lives_in(name):
    """The module behind a public name."""
    package, _, rest = name.partition(".")
    if package != "keras_fm" or _file(name):
        return name
    first, _, last = rest.partition(".")
    if first in public_names.NAMES:
        return public_names.NAMES[first]
    if first in public_names.MODULES:
        return f"keras_fm.{public_names.MODULES[first]}.{last}".rstrip(".")
    return name
