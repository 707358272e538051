"""The side-by-side run: table, files, one architecture, honest columns."""

import csv
import importlib.util
import json
import math
import os

import keras
import numpy as np
import pytest

from keras_fm import cli, compare

NO_DP_SGD = tuple(m for m in compare.METHODS if not m.startswith("dp_sgd"))


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
        "methods": NO_DP_SGD,
    }
    return compare.Comparison(**(settings | kwargs))


def test_columns_say_what_is_proven_and_what_is_claimed(small, tmp_path):
    outcomes = compare.run(spec(small), out=str(tmp_path / "o"), progress=False)
    rows = {(r["method"], r["epsilon"]): r for r in compare.summarise(outcomes)}
    assert len(rows) == 2 + 8 * 2
    for epsilon in (1.0, 100.0):
        for model in ("adlm", "dpa", "functional"):
            found = rows[f"{model}_proven", epsilon]
            assert 0.99 * epsilon < found["proven"] <= epsilon
            found = rows[f"{model}_published", epsilon]
            assert found["proven"] == math.inf
            assert found["claimed"] == pytest.approx(epsilon)
        proven = rows["proven", epsilon]
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
    assert rows["proven", 100.0]["accuracy"] > 0.9
    assert rows["proven", 100.0]["accuracy"] >= rows["proven", 1.0]["accuracy"]


def test_files(small, tmp_path):
    out = str(tmp_path / "out")
    outcomes = compare.run(spec(small, seeds=1), out=out, progress=False)
    with open(os.path.join(out, "runs.csv")) as f:
        lines = list(csv.DictReader(f))
    assert len(lines) == len(outcomes)
    assert float(lines[0]["accuracy"]) == outcomes[0].accuracy
    with open(os.path.join(out, "summary.json")) as f:
        summary = json.load(f)
    assert summary["spec"]["hidden"] == 8
    assert "claimed" in summary["statements"]["published 1"]
    with open(os.path.join(out, "accuracy.png"), "rb") as f:
        assert f.read(8) == b"\x89PNG\r\n\x1a\n"
    with open(os.path.join(out, "table.txt")) as f:
        assert f.read().strip() == compare.table(outcomes).strip()
    if keras.backend.backend() == "tensorflow":
        assert os.listdir(os.path.join(out, "tensorboard"))


def test_all_methods_begin_with_the_same_weights(small):
    s = spec(small)
    x = np.ones((4, 16), np.float32)
    y = np.arange(4) % 3
    trainer = compare._Trainer(s, (x, y), (x, y))
    reference = trainer._model(0).get_weights()
    for kwargs in (
        {"head": keras.layers.Dense},
        {"kind": compare.PerturbedAffine},
        {"trainable": False},
    ):
        for a, b in zip(reference, trainer._model(0, **kwargs).get_weights()):
            np.testing.assert_array_equal(a, b)
    body = trainer._dp_sgd_model("dp_sgd_sequential", 0, (16,))
    for a, b in zip(reference, body.get_weights()):
        np.testing.assert_array_equal(a, b)
    for published in (False, True):
        # All but the bias of the output layer, which starts at the rarity
        # of a class.
        net = trainer._functional_net(0, published)
        for a, b in zip(reference[:-1], net.get_weights()):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(net.get_weights()[-1], -np.log(2))


def test_dp_sgd_beside_ours(small, tmp_path):
    # Importing tensorflow-privacy needs its own switch, so only look.
    if importlib.util.find_spec("tensorflow_privacy") is None:
        pytest.skip("tensorflow-privacy is not installed")
    fast = ({"learning_rate": 4.0, "l2_norm_clip": 0.1, "batch_size": 75,
             "steps": 20},)  # fmt: skip
    outcomes = compare.run(
        spec(
            small,
            methods=(
                "proven",
                "dp_sgd_vectorized",
                "dp_sgd_sequential",
                "dp_sgd_head",
            ),  # fmt: skip
            epsilons=(50.0,),
            seeds=1,
            dp_sgd=fast,
        ),
        progress=False,
    )
    assert [o.method for o in outcomes][1:] == [
        "dp_sgd_vectorized",
        "dp_sgd_sequential",
        "dp_sgd_head",
    ]
    for o in outcomes:
        assert 49 < o.proven <= 50
        assert o.delta == 1e-5 and o.neighbours == "add_remove"
        assert o.accuracy > 0.6


def test_pure_budgets_leave_dp_sgd_out(small):
    jobs = compare.Comparison(dataset=small, delta=0.0).jobs()
    assert not any(method.startswith("dp_sgd") for method, _, _ in jobs)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"methods": ("magic",)}, "`methods` must be some of"),
        ({"epsilons": ()}, "`epsilons` must name"),
        ({"epsilons": (0.0,)}, "`epsilon` must be"),
        ({"seeds": 0}, "`seeds` must be at least 1"),
        ({"features": "magic"}, "`features` must be one of"),
        ({"neighbours": "both"}, "`neighbours` must be"),
    ],
)
def test_bad_specs(kwargs, message):
    with pytest.raises(ValueError, match=message):
        compare.Comparison(**kwargs)


def test_command_line(small, tmp_path, capsys):
    out = str(tmp_path / "out")
    status = cli.main(
        ["compare", f"--dataset={small}", "--methods=truncated,proven",
         "--epsilons=10", "--seeds=1", "--epochs=1", "--hidden=0",
         f"--out={out}", "--noprogress"]
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert status == 0
    assert "proven, one read" in printed and "add_remove" in printed
    assert os.path.exists(os.path.join(out, "accuracy.png"))


def test_command_line_teaches(capsys):
    assert cli.main([]) == 0
    assert "keras-fm compare" in capsys.readouterr().out
    assert cli.main(["compare", "--help"]) == 0
    text = capsys.readouterr().out
    assert "How to read the table" in text and "--dataset" in text
    assert cli.main(["--version"]) == 0
    assert cli.main(["compere"]) == 2


def test_command_line_errors(capsys):
    assert cli.main(["compare", "--epsilons=much"]) == 2
    assert cli.main(["compare", "--dataset=mnits"]) == 2
    assert "Unknown data set" in capsys.readouterr().err
    assert cli.main(["compare", "extra"]) == 2


def test_a_network_is_no_set_of_images():
    with pytest.raises(ValueError, match="benchmarks/behavior.py"):
        compare.run(compare.Comparison(dataset="health_network"))
