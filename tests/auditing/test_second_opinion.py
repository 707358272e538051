"""The membership attacks of another library, beside ours."""

import json
import os
import sys

import numpy as np
import pytest

from keras_fm.auditing import AuditReport, audit, second_opinion
from keras_fm.kernel.budget import PrivacyBudget

# An environment with tensorflow-empirical-privacy; CI makes one.
PYTHON = os.environ.get("KERAS_FM_SECOND_OPINION")
RECORDS = 400
X = np.random.default_rng(1).normal(size=(RECORDS, 3)).astype("float32")
Y = np.random.default_rng(2).integers(0, 2, RECORDS)
SAID = {"attack": "threshold_attack", "auc": 0.75, "advantage": 0.5}


def table(x, y):
    """A model that says of every record it saw what it was told."""
    known = {row.tobytes(): label for row, label in zip(x, y)}

    def logits(x):
        labels = np.array([known.get(row.tobytes(), 0) for row in x])
        return 8.0 * np.eye(2)[labels]

    return logits


def ignores(x, y):
    return lambda x: x[:, :2]


def run(python, fit=ignores):
    return audit(
        fit,
        (X, Y),
        PrivacyBudget(1.0, delta=0),
        control=table,
        neighbours="replace_one",
        classes=2,
        seeds=(0,),
        progress=False,
        second_opinion=python,
    )


@pytest.fixture
def python(tmp_path):
    """A function that makes a Python which answers as it is told, and keeps
    what it was asked."""

    def make(*attacks):
        answer = json.dumps({"version": "0", "attacks": attacks})
        path = tmp_path / "python"
        path.write_text(
            f"#!/bin/sh\ncat > {tmp_path}/asked\necho chatter\n"
            f"echo '{answer}'\n"
        )
        path.chmod(0o755)
        return str(path)

    return make


def test_what_it_says_is_reported_beside_the_control_and_survives_json(python):
    report = run(python({**SAID, "epsilon": 1.25}))
    [row] = [
        line for line in report.text().splitlines() if "threshold_" in line
    ]
    numbers = ["0.750", "0.500", "1.250"]
    assert row.split() == ["0", "threshold_attack", *numbers, *numbers]
    assert "no part of the verdict" in report.text()
    assert AuditReport.from_json(report.to_json()) == report
    assert second_opinion.TOOL not in run(None).text()


def test_it_is_asked_with_scores_coins_and_outputs(python, tmp_path):
    run(python(), fit=lambda x, y: table(x, y))
    asked = json.loads((tmp_path / "asked").read_text())
    scores, coins = np.array(asked["scores"]), np.array(asked["coins"])
    assert ((scores > 0) == coins).all()
    assert np.shape(asked["outputs"]) == (len(coins), 2)


@pytest.mark.parametrize("broken", [{"epsilon": float("nan")}, {"auc": -1}])
def test_numbers_that_are_none_are_refused(python, broken):
    with pytest.raises(ValueError, match="no number"):
        run(python({**SAID, "epsilon": 1.0, **broken}))


@pytest.mark.parametrize("python", [sys.executable, "/no/such/python", 7])
def test_an_environment_without_it_is_refused_before_any_training(python):
    def fit(x, y):
        raise AssertionError

    with pytest.raises(ValueError, match=second_opinion.TOOL):
        run(python, fit)


@pytest.mark.skipif(PYTHON is None, reason="needs KERAS_FM_SECOND_OPINION")
def test_its_attacks_see_a_table_and_nothing_where_nothing_is():
    report = run(PYTHON)
    [found] = report.runs
    names = [opinion.attack for opinion in found.opinions]
    assert names == [opinion.attack for opinion in found.control_opinions]
    assert len(names) == 5
    for nothing, everything in zip(found.opinions, found.control_opinions):
        # Of 200 coins that say nothing; 5 standard errors of an AUC.
        assert abs(nothing.auc - 0.5) < 0.21, nothing
        assert everything.auc > 0.99, everything
        assert everything.epsilon > nothing.epsilon
