"""What `keras-fm audit` wrote: how much privacy a training cannot have."""

import dataclasses
import operator

from keras_fm.auditing import second_opinion
from keras_fm.auditing.report import NO_POWER, VIOLATED, AuditReport
from keras_fm.kernel.ledger.statement import rounded_up
from keras_fm.lab.report import checked, figures, parts
from keras_fm.lab.report.content import (
    Cell,
    Detail,
    Entry,
    Figure,
    Run,
    Standing,
)

_CAVEATS = (
    "A lower bound refutes a statement or says nothing. An audit never proves "
    "privacy: a stronger attack may show more.",
    "The control is the same network, trained without privacy on the same "
    "canaries. Where it shows no more than the statement, the attack has no "
    "power.",
    "No bound can be above the ceiling: more canaries raise it.",
)
_CLAIM = {"claimed": Standing.CLAIMED, "proven": Standing.PROVEN}
_VERDICTS = {VIOLATED: Standing.VIOLATED, NO_POWER: Standing.NO_POWER}


def read(folder):
    """Reads a folder of `keras-fm audit`; the verdict is derived again.

    Raises:
        ValueError: if a file of it is broken.
    """
    summary = checked.read_json(folder, "audit.json")
    report = _report(folder, summary)
    claim = report.claim
    verdict = _VERDICTS.get(report.verdict, Standing.NOT_REFUTED)
    command = summary.text("command")
    stated = (
        f"{claim.guarantee} epsilon {rounded_up(claim.epsilon)}, delta "
        f"{claim.delta:g}, {_text(claim.neighbours)}"
    )
    least = rounded_up(claim.epsilon, 4)
    return Run(
        kind="audit",
        title=f"Audit of a {claim.guarantee} epsilon {least}",
        lead=(
            f"{report.canaries} canaries were planted, and their coins "
            "guessed from what was trained: with 95 % confidence the "
            f"training has at least epsilon {report.bound:.3f}."
        ),
        standing=verdict,
        facts=parts.known(
            [
                ("Statement", stated),
                ("Verdict", verdict.value),
                ("Lower bound", f"{report.bound:.3f} (95 % confidence)"),
                ("Control", f"{report.control_bound:.3f} (without privacy)"),
                ("Ceiling", f"{report.ceiling:.3f}"),
                ("Relation", _text(claim.neighbours)),
                ("Run", parts.when(summary)),
            ]
        ),
        caveats=(*_CAVEATS, *map(_text, report.remarks())),
        figures=(_figure(report),),
        tables=parts.some(_table(report), _opinions(report)),
        details=(
            Detail(
                title="The statement that was audited",
                standing=_CLAIM[claim.guarantee],
                statement=_text(report.text()),
                is_aligned=True,
            ),
        ),
        command=command,
        is_recorded=bool(command),
        setting=parts.known(
            [
                ("run", parts.when(summary)),
                ("canaries", f"{report.canaries} of {report.records} records"),
                ("kind, design", f"{report.kind}, {report.design}"),
                ("score", _text(report.score)),
                ("seeds", ", ".join(str(r.seed) for r in report.runs)),
                ("noise", "fresh; no seed reproduces it"),
                *parts.versions(summary),
            ]
        ),
    )


def _text(value):
    return checked.clean(str(value))


def _report(folder, summary):
    """The `AuditReport`, with every number that is used checked."""
    fields = summary.fields("report")
    fields.finite_numbers("ceiling", "canaries", "records")
    fields.fields("claim").finite_numbers("epsilon", "delta")
    for run in fields.list_of_fields("runs"):
        run.finite_numbers("seconds", "control_seconds", "seed")
    text = checked.read_text(folder, "audit.json")
    try:
        report = AuditReport.from_json(text)
        # Whatever else is of the wrong type shows when it is put in words.
        report.text()
    except (OverflowError, TypeError) as e:
        raise ValueError(f"audit.json is broken: {e}.") from e
    if str(report.claim.guarantee) not in _CLAIM:
        raise ValueError("`guarantee` of audit.json must be claimed or proven.")
    return dataclasses.replace(
        report, kind=_text(report.kind), design=_text(report.design)
    )


def _table(report):
    def bound(of):
        return lambda run: parts.number(of(run).epsilon, ".3f")

    def guesses(of):
        return lambda run: parts.words(_guesses(of(run)))

    def seconds(of):
        return lambda run: parts.number(float(of(run)), ".1f")

    audited = operator.attrgetter("bound")
    control = operator.attrgetter("control")
    columns = (
        parts.column(
            "seed", lambda run: Cell(text=str(run.seed), key=float(run.seed))
        ),
        parts.column("lower bound", bound(audited), "of the audited training"),
        parts.text_column("right of guessed", guesses(audited)),
        parts.column("control", bound(control), "the same without privacy"),
        parts.text_column("right of guessed, control", guesses(control)),
        parts.column("seconds", seconds(operator.attrgetter("seconds"))),
        parts.column(
            "seconds, control", seconds(operator.attrgetter("control_seconds"))
        ),
    )
    return parts.table("All runs, each at 95 % by itself", columns, report.runs)


def _opinions(report):
    """What tensorflow-empirical-privacy says, an attack a row."""

    def value(which, name):
        return lambda row: parts.number(getattr(row[which], name), ".3f")

    columns = [
        parts.column(
            "seed", lambda row: Cell(text=str(row[0]), key=float(row[0]))
        ),
        parts.text_column(
            "attack", lambda row: parts.words(_text(row[1].attack))
        ),
    ]
    for which, whose in ((1, ""), (2, ", control")):
        for name in ("auc", "advantage", "epsilon"):
            columns.append(parts.column(name + whose, value(which, name)))
    rows = [
        (run.seed, ours, plain)
        for run in report.runs
        for ours, plain in zip(run.opinions, run.control_opinions)
    ]
    return parts.table(
        f"A second opinion, by {second_opinion.TOOL}; no lower bounds",
        columns,
        rows,
    )


def _guesses(bound):
    return _text(f"{bound.correct} of {bound.guesses}")


def _figure(report):
    claim = report.claim
    return Figure(
        caption=(
            "Lower bounds on epsilon, every bar at the confidence that makes "
            "95 % of all seeds together."
        ),
        alt=(
            f"Largest bound {report.bound:.3f}, control "
            f"{report.control_bound:.3f}, stated epsilon "
            f"{rounded_up(claim.epsilon, 4)}, ceiling {report.ceiling:.3f}."
        ),
        svg=figures.draw_bars(
            [
                (r.control_corrected.epsilon, r.corrected.epsilon)
                for r in report.runs
            ],
            [f"seed {int(r.seed)}" for r in report.runs],
            [(claim.epsilon, 4, "-"), (report.ceiling, 7, "--")],
        ),
        legend=(
            Entry(label="audited training", standing=None, swatch=_BLOCKS[0]),
            Entry(
                label="the same without privacy (control)",
                standing=None,
                swatch=_BLOCKS[1],
            ),
            Entry(
                label="stated epsilon",
                standing=_CLAIM[claim.guarantee],
                swatch=figures.rule(4),
            ),
            Entry(
                label="ceiling: all guesses right",
                standing=None,
                swatch=figures.rule(7, "5 3"),
            ),
        ),
    )


_BLOCKS = figures.block(0), figures.block(7)
