"""`keras-fm compose` from flags, files and ledgers to table and files."""

import csv
import functools
import json
import sys

import pytest

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.kernel.mechanisms import GaussianMechanism
from keras_fm.lab import composition
from keras_fm.lab.composition import Plan, Stage, accountants

pytestmark = pytest.mark.once

STAGES = {
    "stages": [
        {"mechanism": "pure", "epsilon": 0.1, "count": 20},
        {
            "mechanism": "gaussian",
            "noise_multiplier": 4,
            "sampling_rate": 0.1,
            "count": 50,
        },
    ]
}


@pytest.fixture
def run(command):
    return functools.partial(command, "compose")


def test_the_example_is_the_default(run, tmp_path):
    out = tmp_path / "out"
    status, text, error = run("--counts=1,100,10000", f"--out={out}")
    assert status == 0
    assert error == f"keras-fm compose: writes {out}\n"
    assert "10,000 x gaussian noise multiplier 4 on samples" in text
    assert f"Written to {out}" in text
    stage = Stage(
        mechanism="gaussian",
        noise_multiplier=4.0,
        sampling_rate=0.01,
        count=10_000,
    )
    expected = composition.table(composition.compose(Plan([stage]), 1e-5))
    assert expected in text
    assert expected in (out / "table.txt").read_text()
    assert (out / "composition.png").read_bytes()[:4] == b"\x89PNG"
    with open(out / "composition.csv", newline="") as f:
        counts = {line["count"] for line in csv.DictReader(f)}
    assert counts == {"1", "100", "10000"}


def test_one_stage_from_flags(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, text, _ = run(
        "--mechanism=approximate",
        "--epsilon=0.1",
        "--step_delta=1e-9",
        "--count=100",
        "--delta=1e-6",
        "--methods=optimal,basic",
        "--neighbours=replace_one",
        "--out=",
    )
    assert status == 0 and "replace_one" in text
    stage = Stage(mechanism="approximate", epsilon=0.1, delta=1e-9, count=100)
    rows = composition.compose(
        Plan([stage], "replace_one"), 1e-6, ["optimal", "basic"]
    )
    assert composition.table(rows) in text
    # A Gaussian without sampling unless it is asked for.
    status, text, _ = run(
        "--noise_multiplier=2", "--methods=basic", "--count=3", "--out="
    )
    assert status == 0
    assert "3 x gaussian noise multiplier 2; delta 1e-05" in text
    assert list(tmp_path.iterdir()) == []


def test_plans_from_files(run, tmp_path):
    plan = Plan.from_config(STAGES)
    expected = composition.table(composition.compose(plan, 1e-4))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(STAGES))
    out = tmp_path / "out"
    status, text, _ = run(
        f"--plan={path}", "--delta=1e-4", "--counts=1,3", f"--out={out}"
    )
    assert status == 0 and expected in text
    if sys.version_info >= (3, 11):
        path = tmp_path / "plan.toml"
        path.write_text(
            '[[stages]]\nmechanism = "pure"\nepsilon = 0.1\ncount = 20\n'
            '[[stages]]\nmechanism = "gaussian"\nnoise_multiplier = 4\n'
            "sampling_rate = 0.1\ncount = 50\n"
        )
        assert run(f"--plan={path}", "--delta=1e-4", "--out=")[1] in text


def test_a_ledger(run, tmp_path):
    noise = GaussianMechanism(sensitivity=1.0, noise_multiplier=5.0)
    ledger = Ledger(PrivacyBudget(2.0, 1e-6), neighbours="add_remove")
    ledger.charge(
        [
            LedgerEntry(
                name="layer",
                guarantee="proven",
                neighbours="add_remove",
                mechanism=noise.config(),
                uses="sums",
                proof="docs/proofs/mechanisms.md",
            )
        ]
    )
    path = tmp_path / "ledger.json"
    ledger.save(path)
    status, text, _ = run(f"--ledger={path}", "--out=")
    assert status == 0 and "delta 1e-06" in text
    found = accountants.pld(Plan.of_ledger(ledger), 1e-6).epsilon
    assert found == pytest.approx(ledger.epsilon(), rel=5e-3)
    assert f"{found:.4g}" in text
