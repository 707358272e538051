"""The side-by-side run: table, files, one architecture, honest columns."""

import csv
import dataclasses
import importlib.util
import json
import math
import os

import keras
import numpy as np
import pytest

from keras_fm.core import event_file
from keras_fm.lab import cli
from keras_fm.lab import compare as experiments
from keras_fm.lab.compare import files, methods, task
from keras_fm.lab.engine import rival, store, workers
from keras_fm.lab.engine.job import Job
from keras_fm.layers import PerturbedAffine

# The quick ones; those of whole networks are tried by themselves.
QUICK = (
    "non_private",
    "truncated",
    "published",
    "adlm_published",
    "one_release",
    "adlm_proven",
    "dpa_published",
    "dpa_proven",
    "functional_published",
    "functional_proven",
)


# Whose steps are many: compiled, see `untraced`.
TRACED = "dpmac"
pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.once,
    pytest.mark.full,
    pytest.mark.tensorflow,
]


@pytest.fixture
def small(tmp_path):
    """A data set of three classes that a line can tell apart."""
    rng = np.random.default_rng(0)

    def part(n):
        y = np.arange(n) % 3
        x = 0.2 * rng.random((n, 4, 4), np.float32)
        x[np.arange(n), y, y] += 0.8
        return x, y

    x, y = part(300)
    x_test, y_test = part(60)
    path = tmp_path / "small.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return str(path)


def spec(path, **kwargs):
    settings = {
        "dataset": path,
        "hidden": 8,
        "epsilons": (1.0, 100.0),
        "seeds": 2,
        "epochs": 2,
        "methods": QUICK,
    }
    return experiments.Comparison(**(settings | kwargs))


def test_columns_say_what_is_proven_and_what_is_claimed(small, tmp_path):
    outcomes = experiments.run(
        spec(small, seeds=1, epochs=1, epsilons=(100.0,)),
        out=str(tmp_path / "o"),
        progress=False,
    )
    rows = {
        (r["method"], r["epsilon"]): r for r in experiments.summarise(outcomes)
    }
    assert len(rows) == 2 + 8
    for epsilon in (100.0,):
        for model in ("adlm", "dpa", "functional"):
            found = rows[f"{model}_proven", epsilon]
            assert 0.99 * epsilon < found["proven"] <= epsilon
            found = rows[f"{model}_published", epsilon]
            assert found["proven"] == math.inf
            assert found["claimed"] == pytest.approx(epsilon)
        proven = rows["one_release", epsilon]
        assert 0.99 * epsilon < proven["proven"] <= epsilon
        assert proven["neighbours"] == "add_remove"
        assert proven["delta"] == 1e-5
        published = rows["published", epsilon]
        assert published["proven"] == math.inf
        assert published["claimed"] == pytest.approx(epsilon)
        assert published["neighbours"] == "replace_one"
    assert rows["non_private", None]["proven"] == math.inf
    assert rows["non_private", None]["claimed"] is None
    # With next to no noise the proven forms learn this easy problem.
    assert rows["dpa_proven", 100.0]["accuracy"] > 0.9
    assert rows["one_release", 100.0]["accuracy"] > 0.9


def test_files(small, tmp_path):
    out = str(tmp_path / "out")
    few = spec(
        small, methods=("truncated", "published", "one_release"), seeds=2
    )
    outcomes = experiments.run(
        few, out=out, progress=False, command="keras-fm compare --x"
    )
    with open(os.path.join(out, "runs.csv")) as f:
        lines = list(csv.DictReader(f))
    assert len(lines) == len(outcomes)
    assert float(lines[0]["accuracy"]) == outcomes[0].accuracy
    with open(os.path.join(out, "summary.json")) as f:
        summary = json.load(f)
    assert summary["spec"]["hidden"] == 8
    assert summary["kind"] == "compare"
    assert summary["command"] == "keras-fm compare --x"
    assert summary["versions"]["keras"] == keras.__version__
    assert [r["seeds"] for r in summary["rows"]] == [2] * 5
    assert "claimed" in summary["statements"]["ILM, as published, epsilon 1"]
    with open(os.path.join(out, "accuracy.png"), "rb") as f:
        assert f.read(8) == b"\x89PNG\r\n\x1a\n"
    with open(os.path.join(out, "table.txt")) as f:
        assert f.read().strip() == experiments.table(outcomes).strip()
    if event_file.can_be_written():
        assert os.listdir(os.path.join(out, "tensorboard"))


def made_outcomes(names, epsilons=(0.5, 2.0, 8.0)):
    """Two runs of every method and budget, of four digits each."""
    kinds = {name: methods.METHODS[name].kind for name in names}
    return [
        experiments.Outcome(
            method=name,
            epsilon=epsilon,
            seed=seed,
            accuracy=0.5 + 0.01 * index + 0.3 * seed,
            claimed=epsilon,
            proven=epsilon if kind == "proven" else math.inf,
            delta=epsilon and 1e-5,
            neighbours="replace_one" if epsilon else "",
            seconds=1000.0,
            cpu_seconds=1000.0,
            peak_mib=1000.0,
        )
        for index, (name, kind) in enumerate(kinds.items())
        for epsilon in (epsilons if kind != "no privacy" else (None,))
        for seed in (0, 1)
    ]


def test_the_table_says_what_its_numbers_are():
    """A reader of table.txt alone knew neither what +- is nor of how many
    runs, nor that DP-SGD was tuned on the records."""
    outcomes = made_outcomes(["non_private", "one_release", "dp_sgd_fast"])
    text = experiments.table(outcomes)
    assert "relation. Mean +- standard deviation, 2 runs.\n" in text
    assert "chosen on a fifth of the training part, uncharged." in text
    text = experiments.table([o for o in outcomes if o.seed == 0])
    assert "relation. One run each.\n" in text and "+-" not in text
    assert "uncharged" not in experiments.table(made_outcomes(["one_release"]))


def test_the_name_of_a_data_set_is_no_formula(tmp_path):
    """All runs were done, and then the picture stopped the command."""
    outcomes = made_outcomes(["one_release"])
    made = spec("in $\\frac{1$.npz", methods=("one_release",))
    files.draw(made, outcomes, str(tmp_path / "accuracy.png"))


def made_task(path, **kwargs):
    x = np.ones((4, 16), np.float32)
    y = np.arange(4) % 3
    images = x.reshape(4, 4, 4, 1)
    return task.Task(spec(path, **kwargs), x, y, x, y, images, images, 3)


def test_all_methods_begin_with_the_same_weights(small):
    made = made_task(small)
    reference = made.model(0).get_weights()
    for kwargs in (
        {"head": keras.layers.Dense},
        {"kind": PerturbedAffine},
        {"trainable": False},
    ):
        for a, b in zip(reference, made.model(0, **kwargs).get_weights()):
            np.testing.assert_array_equal(a, b)
    network = methods.network(made, 0, (16,))
    for a, b in zip(reference, network.get_weights()):
        np.testing.assert_array_equal(a, b)
    for published in (False, True):
        # All but the bias of the output layer, which starts at the rarity
        # of a class.
        net = methods.functional_network(made, 0, published)
        for a, b in zip(reference[:-1], net.get_weights()):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(net.get_weights()[-1], -np.log(2))


@pytest.mark.parametrize(
    "methods",
    [
        ("rounds", "pcdbn_published", "pcdbn_proven", "patches_proven"),
        ("dpmac_published", "dpmac_proven"),
    ],
    ids=["few steps", TRACED],
)
def test_methods_of_whole_networks(small, methods):
    """Each is proven or claimed as its label says, within the budget."""
    outcomes = experiments.run(
        spec(small, methods=methods, epsilons=(50.0,), seeds=1),
        progress=False,
    )
    for o in outcomes:
        if experiments.METHODS[o.method].kind == "claimed":
            assert o.proven == math.inf
            assert o.claimed == pytest.approx(50, rel=1e-3)
        else:
            # DP-MAC's noise has a floor, so it spends less than it may.
            assert 20 < o.proven <= 50
            # Images of 4 x 4 are too small for two layers of filters.
            assert o.accuracy > 0.5 or o.method == "pcdbn_proven"


def test_finished_runs_are_kept(small, tmp_path, monkeypatch):
    out = str(tmp_path / "out")
    settings = {"methods": ("truncated", "one_release"), "seeds": 1}
    first = experiments.run(spec(small, **settings), out=out, progress=False)

    def no_training(*_):
        raise AssertionError("trained again")

    with monkeypatch.context() as patch:
        patch.setattr(task.Task, "run", no_training)
        again = experiments.run(
            spec(small, **settings), out=out, progress=False
        )
        assert again == first
        with pytest.raises(AssertionError, match="trained again"):
            experiments.run(
                spec(small, **settings), out=out, progress=False, fresh=True
            )
        for changed in ({"epochs": 3}, {"hidden": 5}, {"train_records": 99}):
            with pytest.raises(AssertionError, match="trained again"):
                experiments.run(
                    spec(small, **settings | changed), out=out, progress=False
                )
        # Other code: other runs.
        patch.setattr(store, "code", lambda: "changed")
        with pytest.raises(AssertionError, match="trained again"):
            experiments.run(spec(small, **settings), out=out, progress=False)
    # One budget more: only that one is trained.
    trained = []
    run = task.Task.run

    def counted(self, job, *args):
        trained.append(job)
        return run(self, job, *args)

    monkeypatch.setattr(task.Task, "run", counted)
    more = spec(small, **settings, epsilons=(1.0, 100.0, 5.0))
    experiments.run(more, out=out, progress=False)
    assert trained == [Job(series="one_release", epsilon=5.0)]


def test_a_broken_kept_run_is_trained_again(small, tmp_path):
    out = tmp_path / "out"
    settings = spec(small, methods=("truncated",), seeds=1)
    experiments.run(settings, out=str(out), progress=False)
    (kept,) = (out / "runs").iterdir()
    kept.write_text('{"key": ')
    (again,) = experiments.run(settings, out=str(out), progress=False)
    assert 0 <= again.accuracy <= 1


def test_workers_do_the_same(small, tmp_path):
    out = str(tmp_path / "out")
    settings = spec(small, methods=("non_private", "one_release"), seeds=1)
    found = experiments.run(settings, out=out, progress=False, processes=1)
    assert [o.method for o in found] == [
        "non_private",
        "one_release",
        "one_release",
    ]
    # Without noise the same weights, to the rounding of threads.
    (here,) = experiments.run(
        spec(small, methods=("non_private",), seeds=1), progress=False
    )
    assert found[0].accuracy == pytest.approx(here.accuracy, abs=0.05)
    assert 0.99 < found[1].proven <= 1


def test_a_worker_that_ends_is_noticed(tmp_path):
    # It finds no arrays.
    arguments = ("-m", "keras_fm.lab.compare", tmp_path)
    with workers.Processes(arguments, 1, False) as pool:
        with pytest.raises(experiments.RunFailedError, match="worker ended"):
            list(pool.answers({"a": {"kind": "run"}}))


def test_tuning_goes_past_its_ends():
    def score(rate, steps):
        return -abs(np.log(rate / 900)) + 0.1 * steps / 100

    # 1024 is the power of four (times 4) next to 900.
    found = rival.search(score, (4.0, 16.0, 64.0), (100, 400))
    assert {steps: rate for steps, (_, rate) in found.items()} == {
        100: 1024.0,
        400: 1024.0,
    }
    assert found[400][0] > found[100][0]
    low = rival.search(lambda rate, _: -rate, (4.0, 16.0), (100,))
    # It does not go on for ever.
    assert low[100][1] == 4.0**-3


def test_a_rival_is_tuned_on_the_last_fifth_alone(monkeypatch):
    """It never sees what it is scored on, and the best choice comes first."""
    monkeypatch.setattr(rival, "STEPS", (10, 20))

    class Fitted:
        def __init__(self, settings, x):
            assert x.max() < 80
            self._settings = settings

        def evaluate(self, x, y):
            assert x.min() >= 80 and np.array_equal(x, y)
            rate, steps = (
                self._settings[k] for k in ("learning_rate", "steps")
            )
            return {"accuracy": steps - abs(rate - 16.0)}

    x = np.arange(100)
    found = rival.tune(lambda s, x, y: Fitted(s, x), x, x)
    assert [(f["steps"], f["learning_rate"]) for f in found] == [
        (20, 16.0),
        (10, 16.0),
    ]
    assert {f["batch_size"] for f in found} == {25}
    chosen = [{"learning_rate": r, "steps": 5} for r in (1.0, 16.0)]
    found = rival.tune(lambda s, x, y: Fitted(s, x), x, x, choices=chosen)
    assert found == chosen[::-1]


def test_dp_sgd_beside_ours(small, tmp_path):
    # Importing tensorflow-privacy needs its own switch, so only look.
    if importlib.util.find_spec("tensorflow_privacy") is None:
        pytest.skip("tensorflow-privacy is not installed")
    fast = ({"learning_rate": 4.0, "l2_norm_clip": 0.1, "batch_size": 75,
             "steps": 20},)  # fmt: skip
    outcomes = experiments.run(
        spec(
            small,
            methods=(
                "one_release",
                "dp_sgd_vectorized",
                "dp_sgd_fast",
                "dp_sgd_head",
            ),  # fmt: skip
            epsilons=(50.0,),
            seeds=1,
            dp_sgd=fast,
        ),
        progress=False,
    )
    assert outcomes[1].settings == fast[0]
    for o in outcomes:
        assert 49 < o.proven <= 50
        assert o.delta == 1e-5 and o.neighbours == "add_remove"
        assert o.accuracy > 0.6


def test_pure_budgets_leave_dp_sgd_out(small):
    jobs = experiments.Comparison(dataset=small, delta=0.0).jobs()
    found = {job.method for job in jobs}
    assert "one_release" in found
    assert not any(experiments.METHODS[m].needs_delta for m in found)
    assert methods.METHODS["rounds"].needs_delta


def test_files_of_a_comparison(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(
        'dataset = "mnist"\nmethods = ["one_release"]\nepsilons = [1, 2]\n'
        "[[dp_sgd]]\nlearning_rate = 2.0\n"
    )
    found = experiments.Comparison.load(path)
    assert found.epsilons == (1.0, 2.0) and found.methods == ("one_release",)
    assert found.dp_sgd == ({"learning_rate": 2.0},)
    again = tmp_path / "spec.json"
    again.write_text(json.dumps(dataclasses.asdict(found)))
    assert experiments.Comparison.load(again) == found
    for name, text in (
        ("a.toml", "magic = 1"),
        ("b.json", "[]"),
        ("c.json", "{"),
        ("d.json", '{"seeds": 1, "seeds": 2}'),
        ("e.toml", 'seeds = "many"'),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError):
            experiments.Comparison.load(tmp_path / name)


def test_command_line(small, tmp_path, capsys):
    out = str(tmp_path / "a folder")
    status = cli.main(
        ["compare", f"--dataset={small}", "--methods=truncated,one_release",
         "--epsilons=10", "--seeds=1", "--epochs=1", "--hidden=0",
         f"--out={out}", "--noprogress", "--processes=0"]
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert status == 0
    assert "private head, one release" in printed and "add_remove" in printed
    # There is such a folder where the package is that writes it.
    board = f"`tensorboard --logdir='{out}/tensorboard'`"
    assert (board in printed) == event_file.can_be_written()
    assert f"`keras-fm report '{out}'`" in printed
    assert os.path.exists(os.path.join(out, "accuracy.png"))


def test_a_batch_is_no_larger_than_the_records(small):
    """Published forms ended in the middle: noise and fit had two lots."""
    few = spec(
        small,
        methods=("published", "adlm_published"),
        epsilons=(1.0,),
        seeds=1,
        epochs=1,
        train_records=30,
    )
    assert len(experiments.run(few, progress=False)) == 2


def test_too_few_records_are_refused_before_features_are_made(small):
    """The fifth of them that tunes the rivals was empty."""
    with pytest.raises(ValueError, match="at least 10 training records"):
        experiments.run(spec(small, train_records=9))


def test_a_table_is_no_set_of_images(tmp_path):
    x, y = np.zeros((20, 6), "float32"), np.arange(20) % 2
    path = tmp_path / "table.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(ValueError, match="pcdbn_proven read images"):
        experiments.run(
            spec(str(path), methods=("one_release", "pcdbn_proven"))
        )
    settings = spec(str(path), methods=("one_release",), features="patches")
    with pytest.raises(ValueError, match="needs images"):
        experiments.run(settings, progress=False)
