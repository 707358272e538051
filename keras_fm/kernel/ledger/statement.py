"""The privacy statement of a ledger: what is proven, claimed, used, when."""

import decimal
import math
import re

from keras_fm.kernel import checks
from keras_fm.kernel.budget import Neighbours
from keras_fm.kernel.ledger.ledger_entry import FLOATING_POINT
from keras_fm.kernel.ledger.ledger_text import ONE_RECORD, shown_unit

RECORD = (
    "one row of the data as given; a person or record in several rows is "
    "protected only with `owners`"
)
_COVERED = (
    "weights, all checkpoints and everything computed from the releases below"
)
_UNCOVERED = (
    "metrics on private records{}",
    "choices made by looking at private records{}",
    "earlier scaling, filling in or selection by statistics of private records",
    "the number of records where public",
    "whether invalid records were refused",
)
# The proof of entries that measure how good a model is, or choose the best.
ASKED = "docs/proofs/evaluation.md"
_FEATURES = "features of the records, which are public beside their labels"
_LABELS = "   (the unit's label; all else of it is public)"
_LOW_BITS = "the low-order bits of floating-point noise"
_SIDE_CHANNELS = "side channels"
# Covers the rounding of sums, as in a ledger. Otherwise nothing rounds down.
_SUMS = 1e-9


def rounded_up(value, digits=6):
    """A promised number in words, never smaller than the number itself.

    Args:
        value: float of at least 0; may be infinite.
        digits: int, how many significant digits.

    Returns:
        str.

    Example:

    >>> rounded_up(1.00000321), rounded_up(0.1 + 0.2), rounded_up(1.00321, 3)
    ('1.00001', '0.3', '1.01')
    """
    found = f"{value:.{digits}g}"
    if float(found) < value * (1 - _SUMS):
        context = decimal.Context(digits, decimal.ROUND_CEILING)
        larger = context.create_decimal_from_float(float(value))
        found = f"{float(larger):.{digits}g}"
    return found


def promise(epsilon, delta, neighbours, unit="record"):
    """The promise of a proven epsilon, for somebody who decides.

    Args:
        epsilon, delta: float; what is proven.
        neighbours: a `Neighbours` or its name.
        unit: str, the unit that is hidden, such as `"record"`.

    Returns:
        str, one sentence.

    Raises:
        ValueError: if the epsilon is not finite and so promises nothing.
    """
    if not math.isfinite(epsilon):
        checks.refuse("epsilon", epsilon, "finite")
    change = {
        Neighbours.ADD_REMOVE: f"Adding or removing any one {unit}",
        Neighbours.REPLACE_ONE: f"Replacing any one {unit} by another",
        Neighbours.REPLACE_LABEL: f"Changing the label of any one {unit}",
    }[Neighbours.of(neighbours)]
    chance = math.floor(1 / delta * (1 + _SUMS)) if delta > 1e-300 else 0
    also = f", apart from a probability of at most 1 in {chance:,}"
    factor = math.exp(min(epsilon, 700.0))
    times = rounded_up(factor, 3)
    if 100 <= factor < 1e9:
        times = f"{math.ceil(factor * (1 - _SUMS)):,}"
    elif epsilon > 700:
        times = f"10^{math.ceil(epsilon / math.log(10)):,}"
    return (
        f"{change} makes a released result, or anything computed from it, "
        f"at most {times} times as probable{also * bool(chance)}."
    )


def promised(ledger):
    """One sentence: what a ledger promises, or that it promises nothing."""
    epsilon = ledger.epsilon()
    if not math.isfinite(epsilon):
        return "No valid proof covers these releases: nothing is promised."
    unit = "record" if ledger.unit == ONE_RECORD else "unit"
    return promise(epsilon, ledger.budget.delta, ledger.neighbours, unit)


def text(ledger):
    """The statement for people. Every number is composed from the entries now.

    Args:
        ledger: a `keras_fm.Ledger`.

    Returns:
        str.
    """
    entries, audits = ledger.entries, ledger.audits
    lines = ["Privacy statement", "=" * 17, *_summary(ledger, entries)]
    if any(not e.private for e in entries):
        lines.append(
            "NOT PRIVATE: the noise is reproducible from a seed "
            "(`reproducible_noise`); use it for tests and studies only"
        )
    if not entries:
        lines.append("releases:   none; no private record was used")
    for number, e in enumerate(entries, start=1):
        lines += [
            f"[{number}] {e.when}  {e.name}: {e.guarantee}",
            f"    uses:      {e.uses}",
            f"    mechanism: {e.describe()}",
            f"    proof:     {e.proof}",
            *(f"    note:      {note}" for note in e.notes),
        ]
    lines += [f"measured:   {when}  {line}" for when, line in audits]
    if audits:
        lines.append(
            "            (lower bounds by an attack: they can refute the "
            "statement, never prove it)"
        )
    return "\n".join(lines)


def _summary(ledger, entries):
    delta = ledger.budget.delta
    labels = ledger.neighbours is Neighbours.REPLACE_LABEL
    proven = ledger.epsilon()
    lines = [
        f"proven:     (epsilon = {rounded_up(proven)}, "
        f"delta = {rounded_up(delta)})"
        + ("" if math.isfinite(proven) else "   (no valid proof)")
    ]
    reasons = [e.proof for e in entries if e.guarantee == "claimed"]
    if reasons:
        lines += [
            f"claimed:    {_pair(ledger.claimed_epsilon(), delta)}   (by the "
            "paper; not a guarantee)",
            f"why:        {re.sub('^none[.:] ', '', reasons[0])}",
        ]
    lines += [
        f"budget:     {_pair(ledger.budget.epsilon, delta)}",
        f"neighbours: {ledger.neighbours}{_LABELS * labels}",
        f"unit:       {shown_unit(ledger.unit)}",
        f"record:     {RECORD}",
    ]
    if math.isfinite(proven):
        lines.insert(1, f"means:      {promised(ledger)}")
        asked = [n for n, e in enumerate(entries, start=1) if e.proof == ASKED]
        but = f" (except those of {asked})" if asked else ""
        uncovered = [words.format(but) for words in _UNCOVERED]
        if labels:
            uncovered.insert(0, _FEATURES)
        if any(e.noise == FLOATING_POINT for e in entries):
            uncovered.append(_LOW_BITS)
        uncovered.append(_SIDE_CHANNELS)
        lines += [
            f"covered:    {_COVERED}",
            f"uncovered:  {', '.join(uncovered)}",
        ]
    return lines


def _pair(epsilon, delta):
    return f"(epsilon = {epsilon:.6g}, delta = {delta:g})"
