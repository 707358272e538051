"""`keras-fm doctor`: whether an installation works, and what it lacks."""

import importlib.metadata
import os
import platform
import re
import sys

from keras_fm.lab import environment

NAME = "doctor"
SUMMARY = "versions, backend, random source, what extras would add"
ALONE = True

WORDS = """Checks this installation, and lists what it lacks.

  keras-fm doctor
      one line for every package, check and extra

It also runs where Keras cannot be imported. Nothing is downloaded, written
or sent. Exit status 0 if the core works (the packages it needs, the backend,
the random source), 1 if not; extras that are missing are no error.
"""

BACKENDS = ("tensorflow", "jax", "torch")
# What to install, what that needs, and what it gives.
EXTRAS = (
    ("tensorboard", ("tensorboard",), "curves while a model trains"),
    (
        "keras-fm[dp-sgd]",
        ("tensorflow", "tensorflow-privacy", "tf-keras"),
        "baselines.DPSGDClassifier (Python 3.10 or 3.11)",
    ),
    ("keras-fm[jax]", ("jax",), "KERAS_BACKEND=jax"),
    ("keras-fm[torch]", ("torch",), "KERAS_BACKEND=torch"),
    ("keras-fm[beam]", ("apache-beam",), "a release by Apache Beam"),
    (
        "keras-fm[jax-privacy]",
        ("jax", "jax-privacy"),
        "baselines.JaxDPSGDClassifier (an environment of its own)",
    ),
    ("opacus", ("torch", "opacus"), "Opacus in comparisons"),
)


def define(values):
    """There are no flags."""
    del values


def run(values, rest):
    """Runs the command; returns the exit status."""
    del values, rest
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    checks = [
        *((name, _package, (name, oldest)) for name, oldest in _core()),
        ("backend", _backend, ()),
        ("random source", _noise, ()),
    ]
    good, lines = True, []
    for name, check, arguments in checks:
        try:
            ok, detail = "ok", check(*arguments)
        # Whatever a broken installation raises is what is to be shown.
        except Exception as e:
            good, ok, detail = False, "BAD", f"{type(e).__name__}: {e}"
        lines.append(f"  {ok:<4} {name}: {detail}")
    lines.append("Optional")
    for name, distributions, gives in EXTRAS:
        there = "yes" if all(map(_version, distributions)) else "no"
        lines.append(f"  {there:<4} {name}: {gives}")
    from keras_fm.version import __version__

    sys.stdout.write(
        f"keras-fm {__version__}, Python {platform.python_version()}, "
        f"{platform.platform()}\nCore\n"
        + "\n".join(lines)
        + f"\nThe core {'works' if good else 'does not work'}.\n"
    )
    return 0 if good else 1


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _core():
    """Pairs of the packages that all installations need, and their oldest
    version."""
    try:
        asked = importlib.metadata.requires("keras-fm") or ()
    except importlib.metadata.PackageNotFoundError:
        return
    for line in asked:
        if match := re.fullmatch(r"([\w.-]+)>=([\d.]+)", line):
            # It is for TensorBoard's folders alone.
            if match[1] != "tensorboard":
                yield match.groups()


def _package(name, oldest):
    found, install = _version(name), f"pip install '{name}>={oldest}'"
    if found is None:
        raise ImportError(f"missing; {install}")
    numbers = [re.findall(r"\d+", text)[:3] for text in (found, oldest)]
    if list(map(int, numbers[0])) < list(map(int, numbers[1])):
        raise ImportError(f"{found} is too old; {install}")
    return found


def _backend():
    name, who = environment.backend()
    try:
        with environment.quiet():
            import keras

            found = float(keras.ops.sum(keras.ops.ones(12)))
    # Whatever a broken backend raises.
    except Exception as e:
        others = [b for b in BACKENDS if environment.has(b)]
        raise ImportError(
            f"Keras cannot be imported with {name!r} ({who}): "
            f"{type(e).__name__}: {e}. Set KERAS_BACKEND to a backend that is "
            f"installed ({', '.join(others) or 'none is'})"
        ) from e
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise ValueError(f"{name!r} does not train; set KERAS_BACKEND")
    return f"{name}, computes {found:g}"


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
        raise ValueError("the noise has the wrong spread")
    return "the operating system's, gives fresh noise of the right size"
