"""What the commands share: flags, names, folders, interruptions."""

import pytest

from keras_fm.datasets import loaders
from keras_fm.lab import cli, commands, environment, known
from keras_fm.lab import compare as experiments
from keras_fm.lab import reproduce as reproductions
from keras_fm.lab.commands import command_line
from keras_fm.lab.compare import methods
from keras_fm.lab.engine import folder, store
from keras_fm.lab.engine.answering import answer_all
from keras_fm.lab.engine.progress import Progress

pytestmark = pytest.mark.once


def test_numbers_of_a_flag():
    assert command_line.numbers("epsilons", ["0.5", "8"]) == [0.5, 8.0]


def test_names_known_without_keras_are_the_names():
    assert {*known.IMAGES, *known.NETWORKS} == set(loaders.DATASETS)
    assert list(known.methods()) == list(experiments.METHODS)
    names = [e.name for e in reproductions.EXPERIMENTS]
    assert list(known.experiments()) == names


@pytest.mark.parametrize(
    "argv, message",
    [
        ("compare --dataset=mnits", "Unknown data set 'mnits'"),
        ("compare --dataset=health_network", "keras-fm reproduce"),
        ("compare --features=magic", "`features` must be"),
        ("compare --methods=one_relase", "Near it are: one_release"),
        ("compare --delta=2", "`delta` must be"),
        ("compare --epsilons=0", "`epsilon` must be"),
        ("compare --epsilons=1,two", "`epsilons` must be numbers"),
        ("compare --epsilons=", "`epsilons` must name"),
        ("compare --methods=dp_sgd_fast --delta=0", "needs a `delta`"),
        ("compare --seeds=0", "`seeds` must be"),
        ("compare --out={file}", "`out` must be a folder in which"),
        ("compare --spec={file}", "its name must end in"),
        ("compare --nope", "nope"),
        ("compare stray", "unexpected argument 'stray'"),
        ("reproduce adlm:mist", "Near it are: adlm:mnist"),
        ("reproduce adlm --data=mnits", "Unknown data set"),
        ("reproduce adlm --seeds=0", "`seeds` must be"),
        ("reproduce adlm --epsilons=-1", "`epsilon` must be"),
        ("reproduce adlm --data=health_network", "needs images"),
        ("reproduce dpa --data=digits", "needs a health network"),
        ("reproduce dpmac --data=digits", "needs no data"),
        ("reproduce pcdbn:polynomial --epsilons=1", "has no epsilons"),
        ("audit --delta=-1", "`delta` must be"),
        ("audit --dataset=mnits", "Unknown data set"),
        ("audit --model=adaline", "adaline"),
        ("audit --guarantee=proven", "`guarantee` must be"),
        ("audit --hidden=0", "`hidden` must be"),
        ("audit --design=include", 'Use design="swap"'),
        ("audit --out={file}", "`out` must be a folder in which"),
        ("audit --fit=nowhere.py:fit", "`--fit` must be a function"),
        ("compose --delta=0", "need `delta` > 0"),
        ("compose --ledger={no}", "No such file"),
        ("compose --mechanism=pure", "needs epsilon"),
        ("compose --methods=magic", "`methods` must be"),
        ("ledger {no}", "No such file"),
    ],
)
def test_what_cannot_be_is_one_line(
    argv, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    argv = argv.format(file=tmp_path / "file", no=tmp_path / "no")
    if argv.startswith("audit"):
        argv += " --noprogress --epochs=1 --control_epochs=1 --seeds=1"
    assert cli.main(argv.split()) == 2
    error = capsys.readouterr().err
    assert message in error and f"keras-fm {argv.split()[0]}: " in error
    assert "Traceback" not in error


def test_help_names_every_command(capsys):
    assert cli.main([]) == 0
    usage = capsys.readouterr().out
    for name, command in commands.COMMANDS.items():
        assert name in usage
        assert cli.main([name, "--help"]) == 0
        assert command.WORDS in capsys.readouterr().out
    assert cli.main(["compere"]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1] == "keras-fm: unknown command 'compere'"


def test_a_method_that_cannot_run_here_is_refused(monkeypatch):
    monkeypatch.setattr(environment, "has", lambda module: module != "tf_keras")
    assert methods.METHODS["one_release"].available()
    assert not methods.METHODS["dp_sgd_fast"].available()
    spec = experiments.Comparison(methods=("dp_sgd_fast",))
    with pytest.raises(ImportError, match="needs tensorflow_privacy, tf_keras"):
        experiments.run(spec, progress=False)


# One folder, one command ------------------------------------------------------


def test_two_commands_do_not_write_to_one_folder(tmp_path, capsys):
    """One result was lost, and two tables disagreed."""
    with folder.held(tmp_path):
        assert cli.main(["compare", f"--out={tmp_path}"]) == 2
        assert "Another command writes to" in capsys.readouterr().err
        [experiment] = reproductions.find(["dpmac:accounting"])
        with folder.held(tmp_path / "dpmac-accounting"):
            with pytest.raises(ValueError, match="Another command writes"):
                reproductions.run(experiment, out=tmp_path)
    with folder.held(tmp_path):
        pass


# Interruptions ----------------------------------------------------------------


def interrupted(requests, kept):
    def pool(missing):
        yield "a", {"y": 1}
        raise KeyboardInterrupt

    return answer_all(requests, kept, pool)


def test_an_interruption_says_what_is_kept(tmp_path, monkeypatch, capsys):
    """It was 123 lines of traceback."""
    kept = store.Store(str(tmp_path / "runs" / "points.jsonl"))

    def run(values, rest):
        interrupted({"a": 0, "b": 0}, kept)

    monkeypatch.setattr(commands.compare, "run", run)
    assert cli.main(["compare", f"--out={tmp_path}"]) == 130
    assert capsys.readouterr().err == (
        f"keras-fm compare: writes {tmp_path}\n"
        "keras-fm compare: interrupted; 1 of 2 runs are finished; they are "
        f"kept in {tmp_path / 'runs'}, and the same command goes on.\n"
    )
    assert "a" in store.Store(str(tmp_path / "runs" / "points.jsonl"))


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
