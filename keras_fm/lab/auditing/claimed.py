"""The claim of an audited training: in numbers, or by its ledger."""

import dataclasses
import math

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.lab.auditing.report import Claim


def given_claim(claim, neighbours, guarantee):
    """The claim of the arguments, or `None` for the fits' own claim."""
    if claim is None or isinstance(claim, (Ledger, Claim)):
        if neighbours is not None:
            raise ValueError(
                "`neighbours` belongs to a claim in numbers; a ledger has "
                f"its own. Received: neighbours={neighbours!r}"
            )
        if isinstance(claim, Ledger):
            return ledger_claim(claim, guarantee)
        return claim
    checks.instance("claim", claim, budget_lib.PrivacyBudget, "a PrivacyBudget")
    if neighbours is None:
        raise ValueError(
            "A claim in numbers needs its relation: `neighbours` "
            '"replace_one" or "add_remove".'
        )
    return Claim(
        epsilon=claim.epsilon,
        delta=claim.delta,
        neighbours=str(budget_lib.Neighbours.of(neighbours)),
        # "": not known yet.
        guarantee=guarantee or "",
    )


def ledger_claim(ledger, guarantee=None):
    if ledger is None:
        raise ValueError(
            "Nothing is claimed: pass `claim`, or let `fit` return "
            "(model, ledger)."
        )
    if not ledger.entries:
        raise ValueError(
            "The ledger has no entry: nothing is claimed yet. Let `fit` "
            "return (model, ledger) instead, or pass the budget."
        )
    epsilon, word = ledger.epsilon(), "proven"
    if not math.isfinite(epsilon):
        epsilon, word = ledger.claimed_epsilon(), "claimed"
    if not math.isfinite(epsilon):
        raise ValueError(
            "The ledger states no finite epsilon (was its noise "
            "reproducible?). Pass the claim in numbers."
        )
    return Claim(
        epsilon=epsilon,
        delta=ledger.budget.delta,
        neighbours=str(ledger.neighbours),
        guarantee=guarantee or word,
    )


def check_relation(claim, audited, labelled=True):
    """Refuses canaries that cannot audit a claim.

    Args:
        claim: a `Claim`.
        audited: the relation of the canaries.
        labelled: bool, whether the two forms of a canary are two labels.
    """
    if audited == "add_remove" and claim.neighbours != "add_remove":
        raise ValueError(
            f'design="include" cannot test a {claim.neighbours} claim: its '
            'data sets differ in length. Use design="swap".'
        )
    if claim.neighbours == "replace_label" and not labelled:
        raise ValueError(
            "Canaries without labels cannot test a replace_label claim. Pass "
            "`data=(x, y)` and `classes`."
        )


def check_curve(claim, curve):
    """Refuses a Gaussian curve if the claim has no delta.

    Args:
        claim: a `Claim`.
        curve: `None` or `"gaussian"`.
    """
    if curve and claim.delta == 0:
        raise ValueError(
            'curve="gaussian" needs Gaussian noise, whose claims have delta > '
            f"0. Received: a claim of epsilon={claim.epsilon:g}, delta=0"
        )


def final_claim(given, ledgers, guarantee):
    """The claim of the report, and notes if ledgers differ from it."""
    spoken = [ledger for ledger in ledgers if ledger is not None]
    if given is None:
        claims = [ledger_claim(ledger, guarantee) for ledger in ledgers]
        kinds = {(c.neighbours, c.delta, c.guarantee) for c in claims}
        if len(kinds) > 1:
            raise ValueError(
                "The ledgers of the runs state different kinds of "
                f"guarantees: {sorted(map(str, claims))}"
            )
        return max(claims, key=lambda c: c.epsilon), ()
    notes, word = [], "claimed"
    for ledger in spoken[:1]:
        try:
            stated = ledger_claim(ledger)
        except ValueError as e:
            notes.append(f"The ledger of the training: {e}")
            continue
        word = stated.guarantee
        same = dataclasses.replace(
            stated,
            guarantee=given.guarantee,
            epsilon=given.epsilon
            if math.isclose(stated.epsilon, given.epsilon, rel_tol=1e-3)
            else stated.epsilon,
        )
        if same != given:
            notes.append(f"The ledger of the training states: {stated}.")
    if not given.guarantee:
        given = dataclasses.replace(given, guarantee=word)
    return given, notes
