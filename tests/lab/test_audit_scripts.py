"""`keras-fm audit --fit=...`: functions of a user's script."""

import json
import pathlib
import sys

import numpy as np
import pytest

from keras_fm.lab import cli, script_functions

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


def no_return(x, y):
    CALLS.append("no_return")


def history(x, y):
    return plain(x, y), {"loss": [1.0]}


def alone(x):
    return x


def fails(x, y):
    return {}["epsilon"]


def three():
    return 1, 2, 3


def words():
    return np.array([["a"]]), np.array([0])


def table_of_columns():
    return {"age": [1, 2]}


def spoiled():
    x, y = data()
    x[3, 3] = np.nan
    return x, y


def labels_of_another_length():
    x, y = data()
    return x, y[1:]


def raises():
    return open("/nowhere/at/all.csv")


number = 3
'''
CLAIM = ("--epsilon=1", "--delta=0", "--neighbours=replace_one")


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def run(capsys):
    def run(*args):
        status = cli.main(["audit", "--noprogress", "--out=", *args])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


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


def test_a_named_data_set_keeps_its_shape(run, script):
    run(
        *(f"--fit={script}:table", f"--control={script}:plain"),
        *("--dataset=digits", "--train_records=50", "--classes=3", *CLAIM),
    )
    # Ten classes are not three: refused before anything is trained.
    assert sys.modules["_audited_train"].CALLS == []
    run(
        *(f"--fit={script}:no_return", f"--control={script}:plain"),
        *("--dataset=digits", "--train_records=50", *CLAIM),
    )
    assert sys.modules["_audited_train"].CALLS == ["no_return"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"fit": "nothing"}, "has no function 'nothing'. It has: data, table"),
        ({"fit": "number"}, "has no function 'number'"),
        ({"fit": "a.b"}, "'a.b' is no name"),
        ({"fit": "alone"}, "`fit` is called with x and y, and cannot be"),
        ({"control": "alone"}, "`control` is called with x and y"),
        ({"control": "table"}, "`--control` must be another function"),
        ({"data": "three"}, "`data` must be (x, y), or x alone"),
        ({"data": "words"}, "must hold a numeric array"),
        ({"data": "table_of_columns"}, "must hold a numeric array"),
        ({"data": "spoiled"}, "`data` must be finite"),
        ({"data": "labels_of_another_length"}, "59"),
        ({"data": "table"}, "`table` failed"),
        (
            {"data": "raises"},
            "`raises` failed: train.py, line 66: FileNotFound",
        ),
        # Only a training shows what it returns.
        ({"fit": "no_return"}, "must return the trained model. Received: None"),
        ({"fit": "history"}, "must return a model or a pair (model, ledger)"),
        ({"fit": "fails"}, "`fails` failed: train.py, line 39: KeyError"),
    ],
)
def test_what_cannot_be_is_refused_in_words(run, script, change, message):
    status, text, error = run(*given(script, **change), *CLAIM, "--classes=3")
    assert status == 2 and message in error and text == ""
    loaded = sys.modules.pop("_audited_train", None)
    if loaded and change.get("fit", "table") not in ("no_return", "history"):
        assert loaded.CALLS == []


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--fit=train"], "`--fit` must be a function of a script"),
        (["--fit=/nowhere/train.py:fit"], "there is no such file"),
        (["--fit={script}"], "`--fit` must be a function of a script"),
        (["--dataset={script}"], "`--dataset` must be a function"),
        (["--dataset={script}:gone"], "has no function 'gone'"),
        (["--dataset=mist"], "Unknown data set 'mist'"),
        (["--dataset=digits", "--train_records=-1"], "`train_records`"),
        (["--train_records=9"], "`--train_records` is of a named data set"),
        (["--epochs=9"], "`--epochs` is of `--model`"),
        (["--model=head"], "`--model` is of `--model`"),
        (["--guarantee=proven"], "`--guarantee` is of `--model`"),
        (["--score=lost"], "`score` must be one of"),
        (["--score={script}:lost"], "has no function 'lost'"),
        (["--canaries=61"], "only 60"),
        (["--classes=1"], "`classes`"),
        (["--kind=noise"], 'kind="noise" needs `low`'),
        (["--bound=3"], 'kind="labels" does not use `bound`'),
        (["--design=include"], "says nothing about a replace_one claim"),
        (["--curve=gaussian"], "no pure epsilon"),
        (["--epsilon=-1"], "`epsilon` must be"),
        (["--epsilon=nan"], "`epsilon` must be"),
        (["--delta=2"], "`delta` must be"),
    ],
)
def test_wrong_flags_are_refused_before_a_training(run, script, flags, message):
    flags = [flag.format(script=script) for flag in flags]
    status, text, error = run(*given(script), *CLAIM, "--classes=3", *flags)
    assert status == 2 and message in error and text == ""
    loaded = sys.modules.pop("_audited_train", None)
    assert loaded is None or loaded.CALLS == []


def test_classes_are_public_and_never_read_from_labels(run, script):
    status, _, error = run(*given(script), *CLAIM)
    assert status == 2 and "Labels need `classes`" in error


def test_a_claim_is_whole_or_that_of_a_ledger(run, script):
    for some in (CLAIM[:1], CLAIM[1:], CLAIM[::2]):
        status, _, error = run(*given(script), *some, "--classes=3")
        assert status == 2 and "Missing: `--" in error
    status, _, error = run(*given(script), "--classes=3")
    assert status == 2 and "Nothing is claimed" in error


def test_flags_of_a_script_need_both_of_its_functions(run, script):
    for flags in (["--classes=3"], given(script)[:1], given(script)[1:2]):
        status, _, error = run(*flags)
        assert status == 2 and "give both `--fit` and `--control`" in error


@pytest.mark.parametrize(
    "text, message",
    [
        ("import a_module_that_is_not_there", "line 1: ModuleNotFoundError"),
        ("def fit(x, y):\n  return (", "cannot be read as Python: line 2"),
        ("x = 1\nraise RuntimeError('no')", "line 2: RuntimeError: no"),
        ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
        ("\x00", "cannot be read as Python"),
    ],
)
def test_a_script_that_cannot_be_imported(run, script, text, message):
    pathlib.Path(script).write_text(text)
    status, _, error = run(*given(script), *CLAIM, "--classes=3")
    assert status == 2 and message in error
    assert "_audited_train" not in sys.modules


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
