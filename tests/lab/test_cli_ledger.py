"""`keras-fm ledger`: statements of ledgers in files."""

import functools

import pytest

from keras_fm.kernel import mechanisms
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry

pytestmark = pytest.mark.once


@pytest.fixture
def run(command):
    return functools.partial(command, "ledger")


def spent(path, epsilon=0.25):
    ledger = Ledger.open(
        path, budget=PrivacyBudget(1.0, 0.0), neighbours="add_remove"
    )
    mechanism = mechanisms.LaplaceMechanism(sensitivity=1.0, epsilon=epsilon)
    ledger.charge(
        [
            LedgerEntry(
                name="head",
                guarantee="proven",
                neighbours="add_remove",
                mechanism=mechanism.config(),
                uses="A and S",
                proof="docs/proofs/cross_entropy.md",
            )
        ]
    )
    return ledger


def test_what_was_spent_and_what_is_left(run, tmp_path):
    path = tmp_path / "privacy.json"
    ledger = spent(path)
    before = path.read_bytes()
    status, out, err = run(path)
    assert status == 0 and not err
    assert ledger.statement() in out and str(path) in out
    assert "left:       epsilon = 0.75 of 1 at delta 0" in out
    assert path.read_bytes() == before
    status, out, _ = run(path, path)
    assert status == 0 and out.count("Privacy statement") == 2


def test_what_is_no_ledger(run, tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    status, out, err = run(path)
    assert status == 2 and not out
    assert "other.json: This is not a keras_fm ledger" in err
    assert run()[0] == 2
    status, _, err = run(tmp_path / "gone.json")
    assert status == 2 and "gone.json: No such file" in err
    assert "Errno" not in err
    assert not (tmp_path / "gone.json").exists()
