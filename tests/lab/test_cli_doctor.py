"""`keras-fm doctor` and `keras-fm completion`."""

import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from absl import flags

from keras_fm.kernel import discrete_noise, lattice_noise
from keras_fm.lab import cli, environment
from keras_fm.lab.commands import COMMANDS, completion, doctor

ROOT = pathlib.Path(__file__).parents[2]
SETUP = ROOT / "setup.py"


@pytest.fixture
def run(capsys):
    def run(*args):
        status = cli.main(list(args))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def lacking(monkeypatch):
    """Makes distributions look as if they had other versions, or none."""
    version = importlib.metadata.version

    def pretend(**versions):
        versions = {k.replace("_", "-"): v for k, v in versions.items()}

        def changed(name):
            if versions.get(name, "") is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions.get(name) or version(name)

        monkeypatch.setattr(importlib.metadata, "version", changed)

    return pretend


def rows(found, part):
    return {row["name"]: row for row in found[part]}


# What is well ----------------------------------------------------------------


def test_a_working_installation(run):
    status, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert status == 0 and found["ok"]
    core = rows(found, "core")
    assert core["keras"]["version"] == keras.__version__
    assert core["numpy"]["version"] == np.__version__
    checks = rows(found, "checks")
    assert checks["Backend"]["detail"].startswith(keras.backend.backend())
    assert set(checks) == {
        "Python",
        "Backend",
        "Random source",
        "KERAS_FM_DATA",
    }

    status, out, _ = run("doctor")
    assert status == 0 and "The core works." in out and "BAD" not in out
    for part in ("core", "data", "extras"):
        assert all(name in out for name in rows(found, part))


def test_the_packages_are_those_of_setup():
    source = SETUP.read_text(encoding="utf-8")
    oldest = doctor._oldest()
    for name in doctor.CORE:
        assert f'    "{name}>={oldest[name]}",\n' in source
    for name, _, _ in doctor.EXTRAS:
        if name.startswith("keras-fm["):
            extra = name.removeprefix("keras-fm[").removesuffix("]")
            assert f'"{extra}": ' in source
    assert f"'tensorflow>={oldest['tensorflow']}; " in source


def test_a_tree_that_is_not_installed_has_no_oldest_versions(
    lacking, monkeypatch
):
    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    lacking(scipy=None)
    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert doctor._oldest() == {}
    detail = rows(doctor.examine(), "core")["scipy"]["detail"]
    assert detail == "missing; pip install 'scipy'"


# What is not -----------------------------------------------------------------


def test_a_missing_package(run, lacking):
    lacking(scipy=None)
    status, out, _ = run("doctor")
    assert status == 1 and "The core does not work." in out
    assert "BAD  scipy: missing; pip install 'scipy>=1.10'" in out


@pytest.mark.parametrize(
    "version, ok", [("3.9.9", False), ("3.10", True), ("4", True)]
)
def test_an_old_package(lacking, version, ok):
    """3.10 is newer than 3.9."""
    lacking(keras=version)
    found = doctor.examine()
    assert found["ok"] is ok
    detail = rows(found, "core")["keras"]["detail"]
    assert detail == ("" if ok else "too old; pip install 'keras>=3.10'")


def test_a_package_that_cannot_be_imported(monkeypatch):
    monkeypatch.setattr(doctor, "CORE", {"numpy": "numpy.not_a_module"})
    (row,) = doctor.examine()["core"]
    assert not row["ok"] and row["version"] == np.__version__
    assert "cannot be imported: ModuleNotFoundError" in row["detail"]


class Stuck:
    """A random source that gives the same words again and again."""

    private = True

    def words(self, count):
        return np.random.Philox(0).random_raw(count)


def test_a_random_source_that_repeats(run, monkeypatch):
    monkeypatch.setattr(discrete_noise, "OSWords", Stuck)
    status, out, _ = run("doctor")
    assert status == 1
    assert "BAD  Random source: ValueError: two draws" in out


# Seen as right with a probability below 1e-13.
@pytest.mark.parametrize("scale", [2 / 3, 3 / 2])
def test_noise_of_the_wrong_size(monkeypatch, scale):
    right = lattice_noise.gaussian_release

    def wrong(sensitivity, noise_multiplier, dimension):
        return right(
            sensitivity=sensitivity,
            noise_multiplier=noise_multiplier * scale,
            dimension=dimension,
        )

    monkeypatch.setattr(lattice_noise, "gaussian_release", wrong)
    check = rows(doctor.examine(), "checks")["Random source"]
    assert not check["ok"] and "spread" in check["detail"]


def test_an_extra_that_is_not_there(lacking):
    lacking(jax=None, torch="2.0")
    found = doctor.examine()
    extras = rows(found, "extras")
    assert found["ok"]  # extras are optional
    assert not extras["keras-fm[jax]"]["installed"]
    assert not extras["keras-fm[jax-privacy]"]["installed"]
    assert extras["keras-fm[torch]"]["installed"]
    assert "no   keras-fm[jax]: jax missing" in doctor.text(found)


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
    done = outside("-m", "keras_fm", "doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["ok"]
    bad = [r for r in (*found["core"], *found["checks"]) if not r["ok"]]
    assert [row["name"] for row in bad] == ["Backend"]
    assert "backend 'none' (KERAS_BACKEND): " in bad[0]["detail"]
    working = keras.backend.backend()
    assert f"KERAS_BACKEND={working}, installed" in bad[0]["detail"]


def test_what_needs_no_keras_does_not_import_it():
    code = (
        "import sys; from keras_fm.lab import cli\n"
        "for args in (['--help'], ['compare', '--help'],\n"
        "             ['completion', 'zsh'], ['--version']):\n"
        "    sys.argv = ['keras-fm', *args]\n"
        "    assert cli.main() == 0\n"
        "heavy = {'keras', 'numpy', 'tensorflow', 'jax', 'torch'}\n"
        "assert not heavy & set(sys.modules)\n"
    )
    done = outside("-c", code)
    assert done.returncode == 0, done.stderr
    assert "#compdef keras-fm" in done.stdout


def test_a_command_that_needs_keras_says_whom_to_ask():
    done = outside("-m", "keras_fm", "reproduce", "--out=", "adlm")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("keras-fm reproduce: keras_fm needs Keras")
    assert "`keras-fm doctor` says what to install. Received: " in line
    assert "Traceback" not in done.stderr


def test_the_whole_package_is_there_when_a_command_computes(run):
    """And `python -m keras_fm` is the same command."""
    code = (
        "import runpy, sys; from keras_fm.lab import cli\n"
        "sys.argv = ['keras-fm', 'compose', '--count=2', '--methods=basic',\n"
        "            '--out=']\n"
        "assert cli.main() == 0\n"
        "import keras, keras_fm as fm\n"
        "assert fm.layers.PrivateDense and fm.PrivacyBudget(1.0, 0)\n"
        "name = 'keras_fm>PrivateDense'\n"
        "assert keras.saving.get_registered_object(name)\n"
        "sys.argv = ['keras_fm', '--version']\n"
        "runpy.run_module('keras_fm', run_name='__main__')\n"
    )
    done = outside("-c", code, backend=keras.backend.backend())
    assert done.returncode == 0, done.stderr
    assert "basic" in done.stdout
    assert done.stdout.endswith(run("--version")[1])


def test_the_backend_that_keras_will_take(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert environment.backend() == ("tensorflow", "the default of Keras")
    file = tmp_path / "keras.json"
    for text in ("", "[]", "{}", "{"):
        file.write_text(text)
        assert environment.backend()[0] == "tensorflow"
    file.write_text('{"backend": "jax"}')
    assert environment.backend() == ("jax", str(file))
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert environment.backend() == ("torch", "KERAS_BACKEND")


@pytest.mark.parametrize(
    "name, there, expected",
    [
        ("jax", [], "pip install 'jax'"),
        ("jax", ["jax"], "pip install --force-reinstall 'jax'"),
        (
            "torch",
            ["jax"],
            "pip install 'torch'; or set KERAS_BACKEND=jax, installed",
        ),
        ("numpy", ["jax"], "set KERAS_BACKEND=jax, installed"),
        ("none", [], "set KERAS_BACKEND to one of tensorflow, jax, torch"),
    ],
)
def test_what_to_do_about_a_backend(monkeypatch, name, there, expected):
    monkeypatch.setattr(environment, "has", lambda module: module in there)
    assert doctor._remedy(name) == expected


def test_without_keras_no_backend_is_blamed(monkeypatch):
    monkeypatch.setattr(environment, "has", lambda module: module != "keras")
    row = rows(doctor.examine(), "checks")["Backend"]
    assert row["detail"] == "ImportError: there is no Keras to ask"


# Data sets -------------------------------------------------------------------


def test_where_data_sets_are_found(tmp_path, monkeypatch):
    for variable in ("KERAS_FM_DATA", "KERAS_HOME", "SCIKIT_LEARN_DATA"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    found = doctor.examine()
    data = rows(found, "data")
    assert {n for n, row in data.items() if row["where"] is None} == {
        "mnist",
        "fashion_mnist",
        "cifar10",
        "usps",
    }
    folder = rows(found, "checks")["KERAS_FM_DATA"]
    assert folder["ok"] and "is no folder, hence ignored" in folder["detail"]

    places = {
        "mnist": "KERAS_FM_DATA/mnist.npz",
        "fashion_mnist": "KERAS_HOME/datasets/fashion-mnist/"
        "train-images-idx3-ubyte.gz",
        "cifar10": "KERAS_HOME/datasets/cifar-10-batches-py-target",
        "usps": "SCIKIT_LEARN_DATA/openml/host/api/v1/json/data/41082.gz",
    }
    for place in places.values():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    # The folder of KERAS_FM_DATA is looked at before the cache of Keras.
    (tmp_path / "KERAS_HOME/datasets/mnist.npz").write_bytes(b"")
    data = rows(doctor.examine(), "data")
    for name, place in places.items():
        where = str(tmp_path / place)
        assert where.startswith(data[name]["where"]), name
    assert data["mnist"]["detail"] == "KERAS_FM_DATA"
    monkeypatch.delenv("KERAS_FM_DATA")
    assert "Keras" in rows(doctor.examine(), "data")["mnist"]["detail"]


# Completion ------------------------------------------------------------------


def test_what_the_shells_are_told():
    """Every command, every flag, and the values of those that have a list."""
    (commands,) = completion.parser()._subparsers._group_actions
    assert set(commands.choices) == set(COMMANDS)
    for name, command in COMMANDS.items():
        values = flags.FlagValues()
        command.define(values)
        said = commands.choices[name]._option_string_actions
        for flag in values:
            assert f"--{flag}" in said
            assert (f"--no{flag}" in said) == values[flag].boolean
    told = commands.choices["audit"]._option_string_actions["--model"]
    assert {"dpa", "dpmac"} <= set(told.choices)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_words_values_and_files(run, tmp_path):
    (tmp_path / "script").write_text(run("completion", "bash")[1])
    (tmp_path / "plan.toml").write_text("")
    (tmp_path / "runs").mkdir()
    cases = {
        "keras-fm com": "compare compose completion",
        "keras-fm audit --mod": "--model",
        "keras-fm audit --model d": "dpa dpah dpmac dp_sgd",
        "keras-fm audit --model x": "",
        "keras-fm completion b": "bash",
        "keras-fm compose --plan pl": "plan.toml",
        "keras-fm report ru": "runs",
    }
    loop = (
        "source ./script; words=$(complete -p keras-fm); words=${words#*-F }\n"
        "while IFS= read -r COMP_LINE; do\n"
        "  COMP_WORDS=($COMP_LINE); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
        '  COMPREPLY=(); ${words% *}; echo "${COMPREPLY[*]}"\n'
        "done\n"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", loop],
        input="\n".join([*cases, ""]),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == list(cases.values())


@pytest.mark.parametrize("rest", [[], ["fish"], ["bash", "zsh"]])
def test_an_unknown_shell(run, rest):
    status, out, error = run("completion", *rest)
    assert (status, out) == (2, "")
    assert "The shell must be one of bash, zsh, tcsh. Received: " in error


@pytest.mark.parametrize("shell", completion.CHOICES)
def test_the_command_prints_a_script(run, shell):
    status, script, _ = run("completion", shell)
    assert status == 0 and "keras-fm" in script and "epsilons" in script
