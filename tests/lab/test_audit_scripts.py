"""`keras-fm audit --fit=...`: functions of a user's script."""

import functools
import json
import pathlib
import sys

import numpy as np
import pytest

from keras_fm.lab import cli, script_functions

pytestmark = pytest.mark.once

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "audit_a_script.py"
SCRIPT = '''
import numpy as np

CALLS = []


def data():
    """Records and their classes."""
    return np.random.default_rng(0).random((60, 8)), np.arange(60) % 3


def table(x, y):
    CALLS.append((x.shape, y.shape))
    known = {row.tobytes(): label for row, label in zip(x, y)}

    def logits(x):
        return np.array([8.0 * np.eye(3)[known[row.tobytes()]] for row in x])

    return logits


def plain(x, y):
    return table(x, y)


def alone(x):
    return x


'''
CLAIM = ("--epsilon=1", "--delta=0", "--neighbours=replace_one")


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def run(command):
    return functools.partial(command, "audit", "--noprogress", "--out=")


def given(script, fit="table", control="plain", data="data"):
    named = {"fit": fit, "control": control, "dataset": data}
    return [f"--{flag}={script}:{name}" for flag, name in named.items()]


def test_from_a_script_to_files(run, script, tmp_path):
    out = tmp_path / "out"
    status, text, error = run(
        *given(script), *CLAIM, "--classes=3", "--seeds=2", f"--out={out}"
    )
    assert status == 0, error
    assert "claimed (epsilon = 1, delta = 0), replace_one" in text
    assert "verdict:     violated at 95%" in text
    # 30 canaries of 60 records, a fit and a control for each seed.
    calls = sys.modules["_audited_train"].CALLS
    assert calls == 4 * [((60, 8), (60,))]
    written = json.loads((out / "audit.json").read_text())
    assert f"--fit={script}:table" in written["command"]


def test_a_score_of_the_script(run, script):
    with open(script, "a") as f:
        f.write("\n\ndef seen(model, x, labels):\n    return labels * 0.0\n")
    status, text, error = run(
        *given(script), *CLAIM, "--classes=3", f"--score={script}:seen"
    )
    assert status == 0, error
    assert "score seen" in text and "lower bound: 0.000" in text


def test_a_script_finds_what_lies_beside_it_and_is_imported_once(
    script, tmp_path
):
    (tmp_path / "beside_it.py").write_text("TIMES = []\n")
    pathlib.Path(script).write_text(
        "import beside_it\nbeside_it.TIMES.append(1)\n"
        "def fit(x, y):\n    return len(beside_it.TIMES)\n"
        "if __name__ == '__main__':\n    raise RuntimeError\n"
    )
    named = {"fit": f"{script}:fit", "control": f"{script}:fit"}
    functions = script_functions.load(named)
    assert functions["fit"](0, 0) == functions["control"](0, 0) == 1


def test_the_example_by_its_own_words():
    """Its command is a command, and its data are what it says."""
    source = EXAMPLE.read_text(encoding="utf-8")
    command = source.split("    keras-fm ")[1].split("\n\n")[0]
    values, rest = cli._parse(
        cli.COMMANDS["audit"], command.replace("\\\n", " ").split()[1:]
    )
    assert not rest
    for flag in ("fit", "control", "dataset"):
        assert values[flag].value.startswith(f"examples/{EXAMPLE.name}:")
        name = values[flag].value.split(":")[1]
        loaded = script_functions.load({flag: f"{EXAMPLE}:{name}"})
        assert callable(loaded[flag])
    x, y = script_functions.load({"dataset": f"{EXAMPLE}:data"})["dataset"]()
    assert len(x) == len(y) == 2000 and set(np.unique(y)) == {0, 1}
