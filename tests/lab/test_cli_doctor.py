"""`keras-fm doctor`."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_fm.kernel import discrete_noise, lattice_noise
from keras_fm.lab import cli, environment
from keras_fm.lab.commands import doctor

pytestmark = [pytest.mark.once, pytest.mark.full]

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def run(capsys):
    def run(*args):
        status = cli.main(["doctor", *args])
        return status, capsys.readouterr().out

    return run


def test_a_working_installation(run):
    status, out = run()
    assert status == 0 and "The core works." in out and "BAD" not in out
    assert f"ok   backend: {keras.backend.backend()}, computes 12" in out
    assert "ok   random source: the operating system's" in out
    if list(doctor._core()):
        assert f"ok   keras: {keras.__version__}" in out
    for name, _, _ in doctor.EXTRAS:
        assert name in out


@pytest.mark.parametrize(
    "version, words",
    [
        (None, "BAD  scipy: ImportError: missing; pip install 'scipy>=1.10'"),
        ("1.9.9", "1.9.9 is too old; pip install 'scipy>=1.10'"),
        ("1.10", "ok   scipy: 1.10"),
    ],
)
def test_a_missing_or_old_package(run, monkeypatch, version, words):
    """1.10 is newer than 1.9."""
    found = importlib.metadata.version

    def changed(name):
        if name == "scipy" and version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version if name == "scipy" else found(name)

    monkeypatch.setattr(importlib.metadata, "version", changed)
    monkeypatch.setattr(doctor, "_core", lambda: [("scipy", "1.10")])
    status, out = run()
    assert words in out and status == (words[:2] != "ok")


class Stuck:
    """A random source that gives the same words again and again."""

    private = True

    def words(self, count):
        return np.random.Philox(0).random_raw(count)


def test_a_random_source_that_repeats(run, monkeypatch):
    monkeypatch.setattr(discrete_noise, "OSWords", Stuck)
    status, out = run()
    assert status == 1 and "The core does not work." in out
    assert "BAD  random source: ValueError: two draws" in out


# Seen as right with a probability below 1e-13.
@pytest.mark.parametrize("scale", [2 / 3, 3 / 2])
def test_noise_of_the_wrong_size(run, monkeypatch, scale):
    right = lattice_noise.gaussian_release

    def wrong(sensitivity, noise_multiplier, dimension):
        return right(
            sensitivity=sensitivity,
            noise_multiplier=noise_multiplier * scale,
            dimension=dimension,
        )

    monkeypatch.setattr(lattice_noise, "gaussian_release", wrong)
    status, out = run()
    assert status == 1 and "spread" in out


# Where Keras cannot be imported ----------------------------------------------


def outside(*args, backend="none"):
    """The command in a process of its own, by default without a backend."""
    return subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_the_doctor_names_a_backend_that_cannot_be_imported():
    done = outside("-m", "keras_fm", "doctor")
    assert done.returncode == 1
    (bad,) = (line for line in done.stdout.splitlines() if "BAD" in line)
    assert "cannot be imported with 'none' (KERAS_BACKEND): " in bad
    assert keras.backend.backend() in bad.split("installed")[1]


def test_the_doctor_alone_is_heard():
    """Six lines of TensorFlow's log came first."""
    done = outside("-m", "keras_fm", "doctor", backend=keras.backend.backend())
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("keras-fm ")


def test_what_libraries_say_is_silenced_and_comes_back(capfd):
    with environment.quiet():
        os.write(2, b"from C")
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


def test_a_command_that_needs_keras_says_whom_to_ask():
    done = outside("-m", "keras_fm", "reproduce", "--out=", "adlm")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("keras-fm reproduce: keras_fm needs Keras")
    assert "`keras-fm doctor` shows what to install. Received: " in line
    assert "Traceback" not in done.stderr


def test_what_trains_nothing_needs_no_keras(tmp_path):
    """`compose` and `report` waited seconds for it."""
    code = (
        "import sys; from keras_fm.lab import cli; "
        "folder = sys.argv[1]; "
        "args = ['--mechanism=pure', '--epsilon=0.1', '--count=9']; "
        "assert cli.main(['compose', *args, f'--out={folder}']) == 0; "
        "assert cli.main(['report', folder]) == 0; "
        "assert 'keras' not in sys.modules"
    )
    done = outside("-c", code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()


def test_the_backend_that_keras_will_take(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert environment.backend() == ("tensorflow", "the default of Keras")
    file = tmp_path / "keras.json"
    file.write_text("{")
    assert environment.backend()[0] == "tensorflow"
    file.write_text('{"backend": "jax"}')
    assert environment.backend() == ("jax", str(file))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert environment.backend() == ("torch", "KERAS_BACKEND")
