"""`keras-fm doctor`: what is installed, what is found, what is missing."""

import importlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import sys

from keras_fm.lab import environment, known
from keras_fm.lab.commands import command_line

NAME = "doctor"
SUMMARY = "versions, backend, data sets found, what extras would add"
ALONE = True

WORDS = """Says whether this installation works, and what it lacks.

  keras-fm doctor
      one line for every package, check, data set and extra
  keras-fm doctor --json
      the same for a program, or for a bug report

It speaks where Keras cannot be imported, too, and names the backend at fault.
Nothing is downloaded, written or sent. Exit status 0 if the core works (the
packages it needs, the backend, the random source), 1 if not; data sets and
extras that are missing are no error.
"""

_OLDEST_PYTHON = (3, 10)

# What the core needs, and its module. Keras is imported by the check of its
# backend, which knows what may be wrong.
CORE = {
    "keras": None,
    "numpy": "numpy",
    "absl-py": "absl",
    "dp-accounting": "dp_accounting",
    "scipy": "scipy",
    "scikit-learn": "sklearn",
    "matplotlib": "matplotlib",
    "jinja2": "jinja2",
    "shtab": "shtab",
}

# Backends that run everything.
BACKENDS = ("tensorflow", "jax", "torch")

# What to install, what that needs, and what it gives.
EXTRAS = (
    (
        "tensorflow",
        ("tensorflow",),
        "the TensorFlow backend (the default of Keras)",
    ),
    (
        "tensorboard",
        ("tensorboard",),
        "callbacks.PrivacyTensorBoard, tensorboard/ of keras-fm compare",
    ),
    (
        "keras-fm[dp-sgd]",
        ("tensorflow", "tensorflow-privacy", "tf-keras"),
        "baselines.DPSGDClassifier and DPSGDAutoencoder, the dp_sgd rows of "
        "keras-fm compare (Python 3.10 or 3.11)",
    ),
    ("keras-fm[jax]", ("jax",), "the JAX backend: KERAS_BACKEND=jax"),
    ("keras-fm[torch]", ("torch",), "the PyTorch backend: KERAS_BACKEND=torch"),
    (
        "keras-fm[beam]",
        ("apache-beam",),
        "keras_fm.beam.SumStatistics: a release by Apache Beam",
    ),
    (
        "keras-fm[jax-privacy]",
        ("jax", "jax-privacy"),
        "baselines.JaxDPSGDClassifier, the jax_privacy rows of keras-fm "
        "compare (an environment of its own: docs/dp_sgd.md)",
    ),
)

# Below the folder of Keras: what its loaders leave there.
_KERAS_CACHE = {
    "mnist": ("datasets/mnist.npz",),
    "fashion_mnist": ("datasets/fashion-mnist/train-images-idx3-ubyte.gz",),
    "cifar10": (
        "datasets/cifar-10-batches-py-target",
        "datasets/cifar-10-batches-py",
    ),
}


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.bool("json", False, "Print JSON in the place of text.")


def run(values, rest):
    """Runs the command; returns the exit status."""
    del rest
    found = examine()
    if values.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(text(found))
    return 0 if found["ok"] else 1


def examine():
    """What `keras-fm doctor` reports, as a dict that JSON can hold.

    Returns:
        dict: `ok`, `keras_fm`, `python`, `platform`, `core` (name, version,
        ok, detail), `checks` (name, ok, detail), `data` (name, where or
        `None`, detail), `extras` (name, installed, packages, gives).
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras_fm.version import __version__

    oldest = _oldest()
    core = [_package(name, oldest.get(name)) for name in CORE]
    checks = [
        _checked("Python", _python),
        _checked("Backend", _backend),
        _checked("Random source", _noise),
        _checked("KERAS_FM_DATA", _data_folder),
    ]
    found = {
        "ok": all(row["ok"] for row in (*core, *checks)),
        "keras_fm": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "core": core,
        "checks": checks,
        "data": _data(),
        "extras": [_extra(*row) for row in EXTRAS],
    }
    return found


def text(found):
    """The report of `examine` for people."""
    lines = [
        f"keras-fm {found['keras_fm']}, Python {found['python']}",
        found["platform"],
        "",
        "Core",
    ]
    for row in found["core"]:
        said = f"{row['name']} {row['version'] or ''}".rstrip()
        lines.append(_line(row["ok"], said, row["detail"]))
    lines += ["", "Checks"]
    for row in found["checks"]:
        lines.append(_line(row["ok"], row["name"], row["detail"]))
    lines += ["", "Data sets"]
    for row in found["data"]:
        where = row["where"] or "not here"
        detail = f" ({row['detail']})" if row["detail"] else ""
        lines.append(f"  {row['name']:<22} {where}{detail}")
    lines += ["", "Optional"]
    for row in found["extras"]:
        versions = ", ".join(
            f"{name} {version or 'missing'}"
            for name, version in row["packages"].items()
        )
        lines.append(
            f"  {'yes' if row['installed'] else 'no ':<4} {row['name']}: "
            f"{versions}"
        )
        lines.append(f"       for {row['gives']}")
    ending = "The core works." if found["ok"] else "The core does not work."
    return "\n".join([*lines, "", ending, ""])


def _line(ok, said, detail):
    return f"  {'ok' if ok else 'BAD':<4} {said}{': ' * bool(detail)}{detail}"


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _oldest():
    """The oldest version of every package that this one asks for."""
    try:
        asked = importlib.metadata.requires("keras-fm") or ()
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+)>=([\d.]+)", line) for line in asked)
    return dict(match.groups() for match in found if match)


def _asked(name, oldest):
    return f"'{name}>={oldest}'" if oldest else f"'{name}'"


def _numbers(version):
    """`"3.15.1rc2"` as `(3, 15, 1)`."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _package(distribution, oldest):
    version, detail = _version(distribution), ""
    module = CORE[distribution]
    if version is None:
        detail = f"missing; pip install {_asked(distribution, oldest)}"
    elif oldest and _numbers(version) < _numbers(oldest):
        detail = f"too old; pip install {_asked(distribution, oldest)}"
    elif module:
        try:
            importlib.import_module(module)
        # Whatever a broken installation raises is what is to be shown.
        except Exception as e:
            detail = f"cannot be imported: {type(e).__name__}: {e}"
    return {
        "name": distribution,
        "version": version,
        "ok": not detail,
        "detail": detail,
    }


def _checked(name, check):
    """The row of a check, which says what it found or raises."""
    try:
        ok, detail = True, check()
    except Exception as e:
        ok, detail = False, f"{type(e).__name__}: {e}"
    return {"name": name, "ok": ok, "detail": detail}


def _python():
    if sys.version_info < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        raise ValueError(f"{platform.python_version()}, needs {oldest}")
    return platform.python_version()


def _remedy(name):
    """What to do about a backend that cannot be imported."""
    others = [b for b in BACKENDS if b != name and environment.has(b)]
    choose = "; or ".join(f"set KERAS_BACKEND={b}, installed" for b in others)
    if name not in BACKENDS:
        return choose or "set KERAS_BACKEND to one of " + ", ".join(BACKENDS)
    again = "--force-reinstall " if environment.has(name) else ""
    install = f"pip install {again}{_asked(name, _oldest().get(name))}"
    return f"{install}; or {choose}" if choose else install


def _backend():
    name, who = environment.backend()
    if not environment.has("keras"):
        raise ImportError("there is no Keras to ask")
    try:
        import keras
    # Whatever a broken backend raises.
    except Exception as e:
        raise ImportError(
            f"Keras cannot be imported with backend {name!r} ({who}): "
            f"{type(e).__name__}: {e}. Remedy: {_remedy(name)}"
        ) from e
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise ValueError(f"{name!r} does not train. Remedy: {_remedy(name)}")
    total = float(keras.ops.sum(keras.ops.ones((3, 4))))
    if total != 12:
        raise ValueError(f"{name} adds twelve ones up to {total}")
    return f"{name}, computes"


def _noise():
    import numpy as np

    from keras_fm.kernel import discrete_noise, lattice_noise

    size = 512
    draw = lattice_noise.gaussian_release(
        sensitivity=1.0, noise_multiplier=1.0, dimension=size
    )
    words = discrete_noise.OSWords()
    first, second = (draw(np.zeros(size), words) for _ in range(2))
    if np.array_equal(first, second):
        raise ValueError("two draws of the operating system are equal")
    # Right noise is outside with a probability below 1e-18.
    if not 0.8 < float(np.std([first, second])) < 1.25:
        raise ValueError("the noise has not the spread that was asked for")
    return "the operating system's, gives fresh noise of the right size"


def _data_folder():
    folder = os.environ.get("KERAS_FM_DATA")
    if not folder:
        return "not set"
    if not os.path.isdir(folder):
        return f"{folder} is no folder, hence ignored"
    return folder


def _data():
    rows = [_row("digits", "scikit-learn", "embedded")]
    for name in (*_KERAS_CACHE, "usps"):
        rows.append(_row(name, *_found(name)))
    for name in known.NETWORKS:
        rows.append(_row(name, "keras_fm", "synthetic"))
    return rows


def _row(name, where, detail):
    return {"name": name, "where": where, "detail": detail}


def _found(name):
    """Where `keras_fm.datasets.load` would find a data set, and how."""
    folder = os.environ.get("KERAS_FM_DATA")
    if folder and (pathlib.Path(folder) / f"{name}.npz").exists():
        return os.path.join(folder, f"{name}.npz"), "KERAS_FM_DATA"
    if name == "usps":
        home = os.environ.get("SCIKIT_LEARN_DATA", "~/scikit_learn_data")
        cache = pathlib.Path(home).expanduser() / "openml"
        for path in cache.glob("**/data/41082.gz"):
            return str(path.parent), "scikit-learn's cache"
        return None, "downloaded by scikit-learn at first use"
    home = pathlib.Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    for part in _KERAS_CACHE[name]:
        if (home / part).exists():
            return str(home / part), "the cache of Keras"
    return None, "downloaded by Keras at first use"


def _extra(name, distributions, gives):
    packages = {d: _version(d) for d in distributions}
    return {
        "name": name,
        "installed": all(packages.values()),
        "packages": packages,
        "gives": gives,
    }
