"""`audit` on trainings whose privacy is known exactly.

The trainings are look-up tables of NumPy, so nothing depends on a backend.
Seeds are fixed. A bound passes the true epsilon in at most 5% of audits with
fresh seeds.
"""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.kernel.mechanisms import GaussianMechanism, gaussian_multiplier
from keras_fm.lab.auditing import AuditReport
from keras_fm.lab.auditing.gaussian_bounds import epsilon_of, halved
from keras_fm.lab.auditing.one_run import one_run_best
from keras_fm.lab.auditing.report import NO_POWER, NOT_REFUTED, VIOLATED
from keras_fm.lab.auditing.training_audit import audit

pytestmark = pytest.mark.full

CLASSES, RECORDS = 2, 1200
X = np.random.default_rng(1).normal(size=(RECORDS, 3)).astype("float32")
Y = np.random.default_rng(2).integers(0, CLASSES, RECORDS)


def table(x, y, classes=CLASSES):
    """A model that says of every record it saw what it was told."""
    known = {row.tobytes(): label for row, label in zip(x, y)}

    def logits(x):
        found = np.zeros((len(x), classes))
        for row, record in zip(found, x):
            label = known.get(record.tobytes())
            if label is not None:
                row[label] = 8.0
        return found

    return logits


def ignores(x, y):
    return lambda x: np.zeros((len(x), CLASSES))


class RandomisedResponse:
    """Tells each label truthfully with the odds of `epsilon`, and no more.

    Replacing one label then costs exactly epsilon (two classes).
    """

    def __init__(self, epsilon, seed=7):
        self.truth = 1 / (1 + math.exp(-epsilon))
        self.rng = np.random.default_rng(seed)

    def __call__(self, x, y):
        lie = self.rng.random(len(y)) > self.truth
        return table(x, np.where(lie, 1 - y, y))


def run(fit, claim=1.0, control=table, **kwargs):
    given = {
        "neighbours": "replace_one",
        "classes": CLASSES,
        "seeds": (0, 1),
        "progress": False,
        **kwargs,
    }
    if isinstance(claim, float):
        claim = PrivacyBudget(claim, delta=0)
    return audit(fit, (X, Y), claim, control=control, **given)


# Verdicts ----------------------------------------------------------------


def test_a_training_that_tells_all_is_violated_at_its_ceiling():
    report = run(lambda x, y: table(x, y))
    assert report.verdict == VIOLATED == "violated at 95%"
    assert report.at_ceiling and report.bound == report.ceiling
    # Two seeds: each bound is at 97.5%, and all 600 guesses are right.
    right = np.ones(600)
    expected = one_run_best(right, right, delta=0, confidence=0.975)
    assert report.bound == pytest.approx(expected.epsilon)
    assert report.runs[0].bound.epsilon > report.bound > 4


def test_a_training_that_ignores_the_records_is_not_refuted_only_with_power():
    report = run(ignores)
    assert report.verdict == NOT_REFUTED == "not refuted"
    assert report.control_bound > 4 and report.bound < 1
    report = run(ignores, control=lambda x, y: ignores(x, y))
    assert report.verdict == NO_POWER == "inconclusive: no power"
    assert not report.has_power
    for name in (VIOLATED, NOT_REFUTED, NO_POWER):
        assert "private" not in name


def test_a_ceiling_below_the_claim_has_no_power():
    report = run(lambda x, y: table(x, y), claim=8.0)
    assert report.verdict == NO_POWER
    assert "cannot refute any training" in report.text()


def test_a_refutation_needs_no_control():
    report = run(RandomisedResponse(4.0), control=lambda x, y: ignores(x, y))
    assert report.verdict == VIOLATED and not report.has_power


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0])
def test_exact_mechanisms_stand_at_their_epsilon_and_not_at_half(epsilon):
    seeds = tuple(range(8))
    report = run(RandomisedResponse(epsilon), epsilon, seeds=seeds)
    assert report.verdict == NOT_REFUTED
    # Single rows may pass by chance, one in twenty; none does here.
    assert max(r.bound.epsilon for r in report.runs) <= epsilon
    leaky = run(RandomisedResponse(2 * epsilon + 0.3), epsilon, seeds=seeds)
    assert leaky.verdict == VIOLATED


@pytest.mark.parametrize("score", ["loss", "margin"])
@pytest.mark.parametrize("kind", ["labels", "noise", "unit"])
def test_every_kind_and_score_sees_a_table(kind, score):
    extra = {"noise": {"low": -1.0, "high": 1.0}, "unit": {"bound": 3.0}}
    report = run(
        lambda x, y: table(x, y),
        kind=kind,
        score=score,
        canaries=100,
        seeds=0,
        **extra.get(kind, {}),
    )
    assert report.verdict == VIOLATED
    assert (report.kind, report.score, report.records) == (kind, score, 1200)


def test_include_audits_add_remove():
    report = run(
        lambda x, y: table(x, y), design="include", neighbours="add_remove"
    )
    assert report.verdict == VIOLATED
    assert "number of records depends on the coins" in report.text()
    lengths = []

    def noted(x, y):
        lengths.append(len(x))
        return ignores(x, y)

    quiet = run(noted, design="include", neighbours="add_remove", canaries=100)
    assert quiet.verdict == NOT_REFUTED
    assert len(set(lengths)) > 1 and max(lengths) < RECORDS


def test_a_swap_bound_is_halved_for_add_remove():
    whole = run(lambda x, y: table(x, y))
    half = run(lambda x, y: table(x, y), neighbours="add_remove")
    assert half.bound == pytest.approx(whole.bound / 2)
    assert half.ceiling == pytest.approx(whole.ceiling / 2)
    assert half.control_bound == pytest.approx(whole.control_bound / 2)
    assert "divided by two" in half.text()
    # Randomised response at 1 under replace_one is no evidence against 0.6
    # under add_remove, though it is against 0.6 under replace_one.
    fits = [RandomisedResponse(1.0) for _ in range(2)]
    assert run(fits[0], 0.6, neighbours="add_remove").verdict == NOT_REFUTED
    assert run(fits[1], 0.6).verdict == VIOLATED


def test_the_delta_of_a_halved_bound_grows_with_epsilon():
    delta = 1e-4
    report = run(
        lambda x, y: table(x, y),
        PrivacyBudget(0.5, delta),
        neighbours="add_remove",
        seeds=0,
    )
    right = np.ones(600)

    def swap_bound(epsilon):
        wider = (1 + math.exp(epsilon)) * delta
        return one_run_best(right, right, delta=wider).epsilon

    assert swap_bound(report.bound) >= 2 * report.bound
    assert swap_bound(report.bound + 2e-4) < 2 * (report.bound + 2e-4)
    assert report.runs[0].bound.delta == delta
    assert report.bound < run(lambda x, y: table(x, y), seeds=0).bound / 2
    # A delta under which anything goes.
    open_door = run(
        lambda x, y: table(x, y),
        PrivacyBudget(0.5, 0.6),
        neighbours="add_remove",
    )
    assert open_door.bound == 0 and open_door.verdict == NO_POWER


class GaussianResponse:
    """Tells every label through noise: replacing one is `mu`-Gaussian."""

    def __init__(self, mu, seed=5):
        self.mu, self.rng = mu, np.random.default_rng(seed)

    def __call__(self, x, y):
        told = self.mu * (np.asarray(y) - 0.5) + self.rng.normal(size=len(y))
        rows = {row.tobytes(): t for row, t in zip(x, told)}

        def logits(x):
            signal = np.array([rows.get(row.tobytes(), 0.0) for row in x])
            return np.stack([-signal, signal], axis=1)

        return logits


def test_a_gaussian_curve_shows_more_and_still_not_too_much():
    mu, delta = 1.0, 1e-5
    claim = PrivacyBudget(epsilon_of(mu, delta), delta)
    bounds = {
        (curve, relation): run(
            GaussianResponse(mu), claim, neighbours=relation, curve=curve
        )
        for curve in (None, "gaussian")
        for relation in ("replace_one", "add_remove")
    }
    swap, half = (
        bounds["gaussian", relation]
        for relation in ("replace_one", "add_remove")
    )
    assert swap.verdict == NOT_REFUTED
    assert bounds[None, "replace_one"].bound < 0.8 * swap.bound
    assert bounds[None, "add_remove"].bound < half.bound
    assert half.bound == pytest.approx(halved(swap.bound, delta))
    assert "Bounds are for Gaussian noise" in swap.text()
    assert AuditReport.from_json(swap.to_json()) == swap
    # A third of the noise that was claimed.
    assert (
        run(GaussianResponse(3 * mu), claim, curve="gaussian").verdict
        == VIOLATED
    )


def test_outputs_that_are_not_finite_are_guessed_blindly():
    def diverged(x, y):
        told = table(x, y)
        return lambda x: np.where(x[:, :1] > 0, np.nan, told(x))

    report = run(diverged, seeds=0)
    assert 200 < report.runs[0].diverged < 400
    assert report.runs[0].control_diverged == 0
    assert "no finite output" in report.text()
    assert 0 < report.bound < report.control_bound
    lost = run(lambda x, y: lambda x: np.full((len(x), 2), np.inf), seeds=0)
    assert lost.verdict == NOT_REFUTED and lost.runs[0].diverged == 600


def test_a_score_of_ones_own_needs_no_labels():
    def fit(x):
        return {row.tobytes() for row in x}

    def surprise(model, x, labels):
        assert labels is None
        return [row.tobytes() not in model for row in x]

    report = audit(
        fit,
        X,
        PrivacyBudget(1.0, delta=0),
        control=lambda x: fit(x),
        neighbours="replace_one",
        kind="noise",
        low=-1.0,
        high=1.0,
        score=surprise,
        progress=False,
    )
    assert report.verdict == VIOLATED and report.score == "surprise"


# What the trainings see --------------------------------------------------


def test_trainings_see_copies_and_control_the_same_records():
    seen = []

    def fit(x, y):
        seen.append((x.copy(), y.copy()))
        x[:], y[:] = 0, 0
        return ignores(x, y)

    before = X.copy(), Y.copy()
    run(fit, control=lambda x, y: fit(x, y))
    assert np.array_equal(X, before[0]) and np.array_equal(Y, before[1])
    assert len(seen) == 4
    for private, control in (seen[:2], seen[2:]):
        assert all(map(np.array_equal, private, control))
    assert not np.array_equal(seen[0][1], seen[2][1])
    assert [len(x) for x, _ in seen] == [RECORDS] * 4


def test_the_global_generator_is_neither_read_nor_moved():
    reports = []
    for seed in (1, 2):
        np.random.seed(seed)
        state = np.random.get_state()[1].copy()
        reports.append(run(RandomisedResponse(2.0), seeds=3))
        assert np.array_equal(np.random.get_state()[1], state)
    first, second = (r.runs[0].bound for r in reports)
    assert first == second


# Claims ------------------------------------------------------------------


def ledger(epsilon=1.0, delta=1e-6, neighbours="replace_one", claimed=False):
    made = Ledger(PrivacyBudget(10.0, delta), neighbours=neighbours)
    mechanism = {"claimed_epsilon": epsilon}
    if not claimed:
        mechanism = GaussianMechanism(
            sensitivity=1.0,
            noise_multiplier=gaussian_multiplier(epsilon, delta),
        ).config()
    made.charge(
        [
            LedgerEntry(
                name="output",
                guarantee="claimed" if claimed else "proven",
                neighbours=neighbours,
                mechanism=mechanism,
                uses="all",
                proof="none",
            )
        ]
    )
    return made


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("returned", [False, True])
def test_a_ledger_says_what_is_claimed(claimed, returned):
    spent = ledger(claimed=claimed)
    report = run(
        (lambda x, y: (table(x, y), spent)) if returned else table,
        None if returned else spent,
        control=lambda x, y: table(x, y),
        neighbours=None,
    )
    assert report.claim.epsilon == pytest.approx(1.0, rel=1e-3)
    assert report.claim.guarantee == ("claimed" if claimed else "proven")
    assert report.claim.delta == report.runs[0].bound.delta == 1e-6
    assert str(report.claim) in report.text() and str(report.claim) in repr(
        report
    )


def test_numbers_hold_and_a_ledger_that_differs_is_noted():
    report = run(lambda x, y: (table(x, y), ledger()), 0.4)
    assert (report.claim.epsilon, report.claim.delta) == (0.4, 0.0)
    assert report.claim.guarantee == "proven"
    assert "The ledger of the training states" in report.text()
    same = run(
        lambda x, y: (table(x, y), ledger()),
        PrivacyBudget(1.0, 1e-6),
        guarantee="claimed",
    )
    assert same.notes == () and same.claim.guarantee == "claimed"


# Reports -----------------------------------------------------------------


def test_a_report_survives_json():
    report = run(RandomisedResponse(0.5), seeds=(3, 5))
    again = AuditReport.from_json(report.to_json())
    assert again == report and again.text() == report.text()
    # The verdict is derived, not read.
    data = json.loads(report.to_json())
    data["verdict"] = VIOLATED
    assert AuditReport.from_json(json.dumps(data)).verdict == NOT_REFUTED
    data["report"]["claim"]["epsilon"] = 0.0
    assert AuditReport.from_json(json.dumps(data)).verdict == VIOLATED
    for broken in ("{}", "[1]", json.dumps({**data, "format": 9}), "no"):
        with pytest.raises(ValueError, match="not a keras_fm audit"):
            AuditReport.from_json(broken)


def test_every_seed_is_listed_and_nothing_else_is_kept():
    report = run(RandomisedResponse(0.5), seeds=(11, 12, 13))
    rows = re.findall(r"^ +(\d+) +\d+\.\d{3} ", report.text(), re.MULTILINE)
    assert rows == ["11", "12", "13"]
    for text in (repr(report), report.text(), report.to_json()):
        assert "coin" not in text.replace("depends on the coins", "")

    def longest(value):
        if isinstance(value, dict):
            value = list(value.values())
            return max(map(longest, value), default=0)
        if isinstance(value, (list, tuple)):
            return max([len(value), *map(longest, value)])
        return 0

    # Neither coins nor scores: no list is longer than the seeds.
    assert longest(json.loads(report.to_json())) == 3
    assert longest(dataclasses.asdict(report)) == 3


def test_the_best_row_is_corrected_for_the_seeds():
    report = run(RandomisedResponse(3.0), seeds=(0, 1, 2, 3))
    best = max(report.runs, key=lambda r: r.bound.epsilon)
    assert report.bound < best.bound.epsilon
    assert best.corrected.confidence == pytest.approx(1 - 0.05 / 4)
    single = run(RandomisedResponse(3.0), seeds=9)
    assert single.bound == single.runs[0].bound.epsilon


# Refusals ----------------------------------------------------------------


def never(x, y):
    raise AssertionError("a training was run")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"control": None}, "`control` must be"),
        ({"control": never}, "`control` must"),
        ({"control": 3}, "`control` must"),
        ({"claim": None, "neighbours": "add_remove"}, "`neighbours` belongs"),
        ({"neighbours": None}, "A claim in numbers"),
        # An epsilon alone would be compared at delta = 0.
        ({"claim": 1}, "`claim` must"),
        ({"design": "include"}, 'design="include" cannot test'),
        ({"kind": "noise"}, 'kind="noise" needs'),
        ({"canaries": RECORDS + 1}, "1201 canaries"),
        ({"classes": None}, "Labels need"),
        ({"seeds": (1, 1)}, "`seeds` must"),
        ({"score": "accuracy"}, "`score` must"),
        ({"guarantee": "private"}, "`guarantee` must"),
        ({"curve": "gaussian"}, 'curve="gaussian" needs'),
    ],
)
def test_bad_arguments_are_refused_before_any_training(change, message):
    given = {"claim": 1.0, "control": lambda x, y: never(x, y), **change}
    with pytest.raises(ValueError, match=re.escape(message)):
        run(never, **given)


def test_bad_data_and_ledgers_are_refused_before_any_training():
    def refuse(data, claim, message):
        with pytest.raises(ValueError, match=message):
            audit(
                never,
                data,
                claim,
                control=lambda x, y: never(x, y),
                classes=CLASSES,
                progress=False,
            )

    empty = Ledger(PrivacyBudget(1.0, 0.0), neighbours="replace_one")
    refuse((X, Y), empty, "has no entry")
    refuse((np.full_like(X, np.nan), Y), ledger(), "`data` must")
    refuse((X, Y[:-1]), ledger(), "same number of records")
    refuse(X, ledger(), "needs labels")
