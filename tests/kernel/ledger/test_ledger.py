"""Composition, refusal, persistence and the statement."""

import dataclasses
import json
import math
import os

import pytest
from ledger_entries import entry

from keras_fm import queries
from keras_fm.kernel import mechanisms, release
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger import locked_file
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger

DELTA = 1e-5
RELATIONS = ("add_remove", "replace_one")


def claim(epsilon=0.25, **changes):
    return entry(
        {"claimed_epsilon": epsilon},
        guarantee="claimed",
        proof="none.",
        **changes,
    )


def laplace(epsilon):
    return mechanisms.LaplaceMechanism(sensitivity=2.0, epsilon=epsilon)


def gaussian(multiplier, sensitivity=1.0):
    return mechanisms.GaussianMechanism(
        sensitivity=sensitivity, noise_multiplier=multiplier
    )


def new(epsilon=1.0, delta=0.0, neighbours="add_remove"):
    return Ledger(PrivacyBudget(epsilon, delta), neighbours=neighbours)


# Composition ----------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_relation_is_charged_once(delta, share):
    """It is in the sensitivity; the accountant must not double it."""
    objective = queries.CrossEntropyQuery(num_features=4, num_outputs=3)
    budget = PrivacyBudget(1.0, delta)
    spent, noise = {}, {}
    for relation in RELATIONS:
        mechanism = release.calibrate(
            objective, budget, neighbours=relation, share=share
        )
        ledger = Ledger(budget, neighbours=relation)
        ledger.charge([entry(mechanism, relation)])
        spent[relation] = ledger.epsilon()
        noise[relation] = mechanism.coordinate_variance(objective.size)
    assert spent["add_remove"] == spent["replace_one"]
    assert noise["add_remove"] < noise["replace_one"]
    if share == 1:
        assert spent["add_remove"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_plan_composes_to_its_budget_and_not_above(delta, count):
    objective = queries.CrossEntropyQuery(num_features=4, num_outputs=3)
    budget = PrivacyBudget(1.0, delta)
    mechanism = release.calibrate(
        objective, budget, neighbours="add_remove", share=1 / count
    )
    ledger = Ledger(budget, neighbours="add_remove")
    for _ in range(count):
        ledger.charge([entry(mechanism)])
    assert 0.999 <= ledger.epsilon() <= 1 + 1e-9
    with pytest.raises(BudgetExceededError):
        ledger.check([entry(mechanism)])


def test_a_claim_is_no_proof():
    ledger = new()
    ledger.charge([entry(), claim(0.5)])
    assert ledger.epsilon() == math.inf
    assert ledger.claimed_epsilon() == 0.75
    assert ledger.remaining() == 0.0


def test_reproducible_noise_is_no_proof():
    ledger = new()
    ledger.charge([entry(private=False)])
    assert ledger.epsilon() == math.inf
    assert ledger.remaining() == 0.0
    assert "NOT PRIVATE" in ledger.statement()


# Spending -------------------------------------------------------------------


@pytest.mark.parametrize(
    "refused",
    [
        [entry(laplace(0.51))],
        [entry(laplace(0.3)), entry(laplace(0.3))],
        [claim(0.6)],
        [entry(laplace(0.6), private=False)],
        [entry(gaussian(100.0))],
    ],
)
def test_a_refused_charge_leaves_no_entry(refused):
    ledger = new()
    ledger.charge([entry(laplace(0.5))])
    for spend in (ledger.check, ledger.charge):
        with pytest.raises(BudgetExceededError, match="No record was used"):
            spend(refused)
    assert len(ledger.entries) == 1
    assert ledger.epsilon() == 0.5
    # What is left can still be spent.
    ledger.charge([entry(laplace(0.5))])
    assert ledger.remaining() == 0.0


@pytest.mark.parametrize("spend", ["check", "charge"])
def test_an_entry_must_refer_to_the_same_relation(spend):
    ledger = new(neighbours="replace_one")
    with pytest.raises(ValueError, match="neighbouring relation"):
        getattr(ledger, spend)([entry(neighbours="add_remove")])
    assert ledger.entries == ()


def test_the_past_cannot_be_changed():
    made = entry()
    ledger = new()
    ledger.charge([made])
    made.mechanism["epsilon"] = 1e-9
    ledger.entries[0].mechanism["epsilon"] = 1e-9
    assert ledger.epsilon() == 0.25
    assert isinstance(ledger.entries, tuple)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ledger.entries[0].guarantee = "claimed"
    for name in ("entries", "budget", "neighbours"):
        with pytest.raises(AttributeError):
            setattr(ledger, name, None)


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_sampling_is_proven_under_add_remove_only(rate):
    mechanism = mechanisms.SampledGaussianMechanism(
        sensitivity=1.0, noise_multiplier=1.0, sampling_rate=rate, steps=3
    )
    entry(mechanism, "add_remove")
    if rate == 1:
        entry(mechanism, "replace_one")
    else:
        with pytest.raises(ValueError, match="sampled"):
            entry(mechanism, "replace_one")


# Persistence ----------------------------------------------------------------


def test_composition_is_redone_from_json():
    ledger = new()
    ledger.charge([entry(laplace(0.25))])
    data = json.loads(ledger.to_json())
    assert "spent" not in data and "composed" not in data
    data["entries"][0]["mechanism"]["epsilon"] = 0.75
    # A changed text of a ledger that is known here would be refused.
    data["id"] = "0" * 32
    assert Ledger.from_json(json.dumps(data)).epsilon() == 0.75


# In a file --------------------------------------------------------------------


def begin(path, epsilon=1.0, **arguments):
    arguments = {"neighbours": "add_remove", **arguments}
    return Ledger.open(path, budget=PrivacyBudget(epsilon, 0.0), **arguments)


def test_a_file_is_begun_and_continued(tmp_path):
    path = tmp_path / "privacy.json"
    first = begin(path, unit="one user")
    assert Ledger.load(path).entries == ()
    first.charge([entry(laplace(0.25), notes=("n is public",))])
    again = Ledger.open(path)
    assert again.entries == first.entries
    assert again.unit == "one user" and again.budget == PrivacyBudget(1.0, 0.0)
    again.charge([entry(laplace(0.5), name="other")])
    # One file is one ledger.
    assert first.epsilon() == 0.75
    with pytest.raises(BudgetExceededError, match="Charged before in") as e:
        first.check([entry(laplace(0.5))])
    assert "other" in str(e.value) and path.name in str(e.value)
    again.charge([entry(laplace(0.25), name="other")])
    first.reload()
    assert first.remaining() == 0.0
    assert sorted(os.listdir(tmp_path)) == [path.name, f"{path.name}.lock"]


def test_a_file_keeps_its_terms(tmp_path):
    path = tmp_path / "privacy.json"
    with pytest.raises(ValueError, match="no ledger at .* yet"):
        Ledger.open(path)
    assert not path.exists()
    begin(path)
    for arguments in (
        {"epsilon": 2.0},
        {"neighbours": "replace_one"},
        {"unit": "one user"},
    ):
        with pytest.raises(ValueError, match="cannot be changed"):
            begin(path, **arguments)
    budget = PrivacyBudget(1.0, delta=0)
    assert Ledger.open(path, budget=budget).path == str(path)
    # An epsilon alone would be one at delta = 0.
    with pytest.raises(ValueError, match=r"a keras_fm.PrivacyBudget\(epsilon"):
        Ledger.open(
            tmp_path / "other.json", budget=1.0, neighbours="add_remove"
        )
    assert not (tmp_path / "other").exists()
    assert new().path is None


def test_a_file_that_was_turned_back_is_noticed(tmp_path):
    path = tmp_path / "privacy.json"
    ledger = begin(path)
    older = path.read_text()
    ledger.charge([entry()])
    newest = path.read_text()
    for text in (older, newest.replace('"epsilon": 0.25', '"epsilon": 0.2')):
        path.write_text(text)
        for spend in (ledger.check, ledger.charge):
            with pytest.raises(ValueError, match="lost or changed"):
                spend([entry()])
        assert path.read_text() == text
    path.unlink()
    with pytest.raises(ValueError, match="is gone"):
        ledger.charge([entry()])
    assert not path.exists()
    path.write_text(newest)
    ledger.charge([entry()])
    assert ledger.epsilon() == 0.5


def test_a_charge_that_may_be_on_disk_counts(tmp_path, monkeypatch):
    """Renamed, then the folder could not be synchronised."""
    path = tmp_path / "privacy.json"
    ledger = begin(path)

    def fail(folder):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(locked_file, "_sync_folder", fail)
        with pytest.raises(OSError, match="gone"):
            ledger.charge([entry(laplace(0.75))])
    with pytest.raises(BudgetExceededError):
        ledger.charge([entry(laplace(0.75))])


def test_what_cannot_be_read_again_is_not_written(tmp_path):
    ledger = begin(tmp_path / "privacy.json", 1000.0)
    strange = claim(0.25)
    strange.mechanism["sizes"] = [1, math.inf]
    with pytest.raises(ValueError):
        ledger.charge([strange])
    assert ledger.entries == Ledger.load(ledger.path).entries == ()


def test_a_lock_that_is_held_for_long(tmp_path, monkeypatch):
    ledger = begin(tmp_path / "privacy.json")
    monkeypatch.setattr(locked_file, "_PATIENCE", 0.05)
    with locked_file.LockedFile(ledger.path).lock():
        with pytest.raises(TimeoutError, match="Another process has held"):
            ledger.charge([entry()])
    ledger.charge([entry()])


# Statement ------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["floating point", "lattice"])
def test_floating_point_noise_is_said(noise):
    ledger = new()
    assert "low-order bits" not in ledger.statement()
    ledger.charge([entry(noise="lattice"), entry(noise=noise)])
    listed = "low-order bits of floating-point noise" in ledger.statement()
    assert listed == (noise == "floating point")
    assert Ledger.from_json(ledger.to_json()).entries[1].noise == noise
    assert entry().noise == "floating point"


def test_statement_of_a_proven_ledger():
    ledger = new(1.0, 0.0, "replace_one")
    ledger.charge([entry(laplace(0.25), "replace_one", notes=("n is public",))])
    text = ledger.statement()
    for words in (
        "proven:     (epsilon = 0.25, delta = 0)",
        "budget:     (epsilon = 1, delta = 0)",
        "neighbours: replace_one",
        "one record",
        "head: proven",
        "A and S",
        "LaplaceMechanism",
        "docs/proofs/cross_entropy.md",
        "n is public",
        ledger.entries[0].when,
        # What people do with private records beside a fit.
        "metrics on private records",
        "choices made by looking at private records",
        "earlier scaling, filling in or selection by statistics of private",
        "whether invalid records were refused",
        "side channels",
    ):
        assert words in text
    assert "claimed" not in text and "NOT PRIVATE" not in text
    assert "0.25" in repr(ledger) and "replace_one" in repr(ledger)


def test_statement_of_a_claim():
    ledger = new()
    ledger.charge([claim(0.5)])
    text = ledger.statement()
    assert "proven:     (epsilon = inf, delta = 0)   (no valid" in text
    assert "claimed:    (epsilon = 0.5, delta = 0)" in text
    assert "not a guarantee" in text
    assert "covered" not in text


def test_an_audit_is_noted_and_changes_nothing_that_is_composed(tmp_path):
    ledger = new(0.3)
    ledger.charge([entry(laplace(0.25)), claim(0.05)])
    before = ledger.statement()
    numbers = ledger.epsilon(), ledger.claimed_epsilon(), ledger.remaining()
    ledger.note_audit("audit of claimed: violated at 95%; lower bound 2")
    assert numbers == (
        ledger.epsilon(),
        ledger.claimed_epsilon(),
        ledger.remaining(),
    )
    (when, line), *others = ledger.audits
    assert line.endswith("lower bound 2") and not others
    statement = ledger.statement()
    # The statement as it was, with what was measured under it.
    assert statement.startswith(before + "\n")
    assert f"measured:   {when}  {line}" in statement
    assert "never prove it" in statement and "measured" not in before
    again = Ledger.from_json(ledger.to_json())
    assert again.statement() == statement and again.audits == ledger.audits
    with pytest.raises(BudgetExceededError):
        again.charge([entry(laplace(0.1))])


@pytest.mark.parametrize("line", ["", "two\nproven: 0", "bell\a", 3, None])
def test_what_could_pass_for_another_line_is_not_noted(line):
    ledger = new()
    with pytest.raises(ValueError, match="line of an audit"):
        ledger.note_audit(line)
    assert ledger.audits == ()
    data = json.loads(ledger.to_json())
    for audits in ([["now", line]], ["now"], 3, {"a": "b"}):
        data["audits"] = audits
        with pytest.raises(ValueError, match="not a keras_fm ledger"):
            Ledger.from_json(json.dumps(data))
