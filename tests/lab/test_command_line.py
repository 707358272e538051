"""What the commands share: numbers in flags, names, folders, interruptions."""

import dataclasses
import os
import subprocess
import sys

import pytest
from absl import flags

from keras_fm import datasets, features
from keras_fm.lab import cli, commands, environment, known
from keras_fm.lab import compare as experiments
from keras_fm.lab import reproduce as reproductions
from keras_fm.lab.commands import command_line
from keras_fm.lab.engine import folder, store
from keras_fm.lab.engine.answering import answer_all
from keras_fm.lab.engine.progress import Progress


def test_numbers_of_a_flag():
    assert command_line.numbers("epsilons", ["0.5", "8"]) == [0.5, 8.0]


@pytest.mark.parametrize("command", ["compare", "reproduce"])
def test_a_flag_without_numbers(command, capsys):
    assert cli.main([command, "--epsilons=1,two"]) == 2
    assert capsys.readouterr().err == (
        f"keras-fm {command}: `epsilons` must be numbers, separated by "
        "commas. Received: '1,two'\n"
    )


# Before Keras ----------------------------------------------------------------


def test_names_known_without_keras_are_the_names():
    assert {*known.IMAGES, *known.NETWORKS} == set(datasets.DATASETS)
    assert known.FEATURES == features.FEATURES
    assert list(known.methods()) == list(experiments.METHODS)
    names = [e.name for e in reproductions.EXPERIMENTS]
    assert list(known.experiments()) == names
    assert list(commands.reproduce.CHOICES) == names
    fields = dataclasses.fields(experiments.Comparison)
    assert list(known.COMPARED) == [field.name for field in fields]
    for experiment in reproductions.EXPERIMENTS:
        declared = known.experiments()[experiment.name]
        sized = declared.get("both", {}) | declared.get("small", {})
        assert ("epsilons" in sized) == ("epsilons" in experiment.small)
        assert ("load" in declared) == (experiment.load is not None)
        assert (experiment.reads is None) == (experiment.load is None)


@pytest.mark.full
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
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "argv, message",
    [
        ("compare --dataset=mnits", "Unknown data set 'mnits'"),
        ("compare --dataset=a/b.npz", "there is no such file"),
        ("compare --dataset=health_network", "keras-fm reproduce"),
        ("compare --features=magic", "`features` must be one of"),
        ("compare --methods=proven,magic", "`methods` must be some of"),
        ("compare --delta=2", "`delta` must be in"),
        ("compare --epsilons=0", "`epsilon` must be"),
        ("compare --seeds=0", "`seeds` must be"),
        ("compare --out={file}", "`out` must be a folder in which"),
        ("compare --out={file}/below", "`out` must be a folder in which"),
        ("compare --spec={spec}", "`delta` must be in"),
        ("reproduce adlm:mist", "Near it are: adlm:mnist"),
        ("reproduce adlm --data=mnits", "Unknown data set"),
        ("reproduce adlm --seeds=0", "`seeds` must be"),
        ("reproduce adlm --epsilons=-1", "`epsilon` must be"),
        ("reproduce adlm --out={file}", "`out` must be a folder in which"),
        ("audit --delta=-1", "`delta` must be in"),
        ("audit --dataset=mnits", "Unknown data set"),
        ("audit --out={file}", "`out` must be a folder in which"),
        (
            "audit --tensorboard={file}",
            "`tensorboard` must be a folder in which",
        ),
        ("audit --canaries=0", "`canaries` must be"),
        ("audit --train_records=-1", "`train_records` must be"),
        ("audit --batch_size=-1", "`batch_size` must be"),
        ("audit --learning_rate=0", "`learning_rate` must be"),
        ("audit --guarantee=proven", "`guarantee` of ilm must be"),
        ("audit --model=dpmac --delta=0", "need a `delta` greater"),
        ("audit --design=include", 'Use design="swap"'),
        ("compare --spec={list}", "must be a table of settings"),
        ("compare --spec={no}", "No such file"),
        ("compare --spec={empty}", "at least one budget"),
        ("compare --spec={twice}", "`methods` must name each of them once"),
        ("compare --dataset={file}.npz", "not a readable .npz file"),
        ("compare --epsilons=1,1.0", "`epsilons` must name each of them once"),
        ("compare --methods=dp_sgd_fast --delta=0", "cannot run with delta"),
        ("compare --processes=0 --isolated", "needs `processes` of at least"),
        ("compare --seeds=99999999", "(at most 10,000)"),
        ("audit --model=adlm --score=gradient", "weights that records move"),
        ("audit --model=head --noise=per_step", "`noise` belongs to"),
        ("audit --model=head --normalization=none", "`normalization` belongs"),
        ("reproduce adlm --data=health_network", "adlm:mnist needs images"),
        ("reproduce dpa --data=digits", "dpa:health needs a health network"),
        ("reproduce adlm --epsilons=1e99", "`epsilon` must be"),
        ("compare --processes=-1", "`processes` must be"),
        ("compare --jax_python=nowhere", "`jax_python` must be a Python;"),
        ("compose --counts=1,x", "`counts` must be whole numbers"),
        ("compose --counts=0", "`counts` must be"),
        ("compose --delta=2", "`delta` must be"),
        ("compose --delta=0", "need `delta` > 0"),
        ("compose --ledger={no}", "No such file"),
        ("compose --mechanism=pure", "needs `epsilon`"),
        ("compose --methods=magic", "`methods` must be among"),
        ("compose --out={file}", "`out` must be a folder in which"),
        ("compose --plan={list}", "keras-fm compose: "),
        ("ledger {no}", "No such file"),
        ("report", "name the folder of at least one run"),
        ("report {no}", "is no folder"),
        ("report .", "it holds no run"),
        # One of several experiments.
        ("reproduce dpmac --data=digits", "reads no data set"),
    ],
)
def test_what_needs_no_training_is_answered_without_keras(
    argv, message, tmp_path, monkeypatch, capsys
):
    """A wrong name took seven seconds, an unwritable folder ninety-nine."""
    (tmp_path / "file").write_text("")
    (tmp_path / "spec.json").write_text('{"delta": 3.0}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "empty.json").write_text('{"epsilons": []}')
    (tmp_path / "twice.json").write_text('{"methods": ["proven", "proven"]}')
    (tmp_path / "file.npz").write_text("")
    monkeypatch.chdir(tmp_path)
    argv = argv.format(
        file=tmp_path / "file",
        spec=tmp_path / "spec.json",
        list=tmp_path / "list.json",
        empty=tmp_path / "empty.json",
        twice=tmp_path / "twice.json",
        no=tmp_path / "no",
    )

    def too_late():
        raise AssertionError("Keras is imported")

    monkeypatch.setattr(cli, "_load", too_late)
    assert cli.main(argv.split()) == 2
    assert message in capsys.readouterr().err


LISTS = ("compare --epsilons", "compare --methods", "reproduce --epsilons",
         "compose --methods", "compose --counts")  # fmt: skip


@pytest.mark.parametrize("flag", LISTS)
@pytest.mark.parametrize(
    "words, message",
    [("", "is empty"), (",", "has a gap"), ("1,", "has a gap"),
     ("1,2,1", "names '1' twice")],
)  # fmt: skip
def test_lists_say_each_thing_once(flag, words, message, monkeypatch, capsys):
    """An empty list trained everything, and a repeated entry all again."""
    monkeypatch.setattr(cli, "_load", None)
    assert cli.main(f"{flag}={words}".split()) == 2
    assert message in capsys.readouterr().err


def test_a_flag_that_is_given_says_something(monkeypatch, capsys):
    """Empty means to write nothing, or is an error."""
    monkeypatch.setattr(cli, "_load", None)
    for name, command in commands.COMMANDS.items():
        values = flags.FlagValues()
        command.define(values)
        for flag in sorted(values):
            if values[flag].boolean or flag in ("out", "tensorboard"):
                continue
            assert cli.main([name, f"--{flag}="]) == 2
            assert f"flag --{flag}=" in capsys.readouterr().err


def test_a_method_that_cannot_run_here_is_refused(monkeypatch):
    """Before Keras, by what is installed and which backend it would take."""
    monkeypatch.setattr(environment, "has", lambda module: module != "tf_keras")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    known.check_runnable(["proven", "rounds_proven"])
    with pytest.raises(ImportError, match="needs tensorflow_privacy, tf_keras"):
        known.check_runnable(["dp_sgd_fast"])
    with pytest.raises(ImportError, match="on the backend 'jax'"):
        known.check_runnable(["jax_privacy"])
    known.check_runnable(["jax_privacy"], jax_python="python")


def test_an_audit_by_gradients_is_refused_where_there_are_none():
    for model, forms in known.AUDITED.items():
        for form in forms:
            known.check_attack(model, form, "swap", "loss")
    known.check_attack("functional", "proven", "swap", "gradient")
    with pytest.raises(ValueError, match="dpa, proven, has none"):
        known.check_attack("dpa", "proven", "swap", "gradient")


def test_the_catalogue_needs_no_keras(capsys, monkeypatch):
    monkeypatch.setattr(cli, "_load", None)
    assert cli.main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out
    assert cli.main(["reproduce"]) == 0
    assert "adlm:mnist" in listed and listed == capsys.readouterr().out


def test_lines_of_libraries_are_shown_only_with_a_failure(capfd):
    with cli._held_back():
        os.write(2, b"a wall")
    with pytest.raises(RuntimeError):
        with cli._held_back():
            os.write(2, b"the reason")
            raise RuntimeError
    assert capfd.readouterr().err == "the reason"


# One folder, one command ------------------------------------------------------


def test_two_commands_do_not_write_to_one_folder(tmp_path, capsys):
    """One result was lost, and two tables disagreed."""
    with folder.held(tmp_path):
        with pytest.raises(ValueError, match="Another command writes"):
            folder.check(tmp_path)
        assert cli.main(["compare", f"--out={tmp_path}"]) == 2
        assert "Another command writes to" in capsys.readouterr().err
        spec = experiments.Comparison(methods=("truncated",))
        with pytest.raises(ValueError, match="Another command writes"):
            experiments.run(spec, out=tmp_path, progress=False)
        [experiment] = reproductions.find(["dpmac:accounting"])
        with folder.held(tmp_path / "dpmac-accounting"):
            with pytest.raises(ValueError, match="Another command writes"):
                reproductions.run(experiment, out=tmp_path)
    folder.check(tmp_path)


# Interruptions ----------------------------------------------------------------


def interrupted(requests, kept):
    def pool(missing):
        yield "a", {"y": 1}
        raise KeyboardInterrupt

    return answer_all(requests, kept, pool)


def test_an_interruption_says_what_is_kept(tmp_path, monkeypatch, capsys):
    """It was 123 lines of traceback."""
    kept = store.Store(str(tmp_path / "runs" / "points.jsonl"))
    with pytest.raises(KeyboardInterrupt, match="1 of 2 runs are finished"):
        interrupted({"a": 0, "b": 0}, kept)
    assert "a" in store.Store(str(tmp_path / "runs" / "points.jsonl"))

    def run(values, rest):
        interrupted({"a": 0, "b": 0}, kept)

    monkeypatch.setattr(commands.compare, "run", run)
    assert cli.main(["compare", f"--out={tmp_path}"]) == 130
    assert capsys.readouterr().err == (
        "keras-fm compare: interrupted; 1 of 2 runs are finished; they are "
        f"kept in {tmp_path / 'runs'}, and the same command goes on.\n"
    )


def test_an_interruption_before_the_first_run(monkeypatch, capsys):
    def run(values, rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.compare, "run", run)
    assert cli.main(["compare", "--out="]) == 130
    assert "no run of this call is finished" in capsys.readouterr().err


# What runs now ---------------------------------------------------------------


class Screen:
    """A stream that may be a terminal."""

    def __init__(self, is_terminal):
        self.isatty, self.text = (lambda: is_terminal), ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_line_names_what_runs(is_terminal):
    screen = Screen(is_terminal)
    progress = Progress("runs", lambda request: f"method {request}", screen)
    progress.start(4, 1)
    for request in "aab":
        progress.began(request)
        progress.done()
    progress.end()
    assert "1 of 4 runs are kept" in screen.text
    assert screen.text.count("now method a") == 1
    assert "3 of 4 runs in 0 s; now method b" in screen.text
    assert screen.text.count("\n") == (0 if is_terminal else 3)
    assert screen.text.endswith("\r\x1b[K" if is_terminal else "\n")


def test_nothing_is_said_where_nobody_asked(capsys):
    progress = Progress("runs", str, "")
    progress.start(1, 1)
    progress.began("a")
    progress.end()
    captured = capsys.readouterr()
    assert captured.out + captured.err == "" and sys.stderr
