"""Folders that commands wrote, as `Run`s.

Anybody may have written them: files are of limited size, a value of the wrong
type is a `ValueError`, and what a number is worth follows from the numbers,
whatever a file says.
"""

import base64
import csv
import io
import json
import math
import operator
import os

from keras_fm.kernel.ledger import strict_json
from keras_fm.kernel.ledger.statement import promise, rounded_up
from keras_fm.lab.engine import grid
from keras_fm.lab.report import own_fit
from keras_fm.lab.report.page import (
    CLAIMED,
    NO_PRIVACY,
    PROVEN,
    Cell,
    Run,
    Table,
    clean,
)

_LARGEST_FILE = 32 * 2**20
_MOST_ROWS = 20_000
_NO_PROOF = "no valid proof"
TUNED = (
    "Settings of DP-SGD and noisy steps were chosen for each epsilon on a "
    "validation split of the training part. The privacy cost of that choice is "
    "not charged: the proven epsilon covers the final training only."
)
_RIVALS = ("all_layers", "dp_sgd", "dp_adam", "jax_privacy", "opacus")
_FRESH = (
    "Noise is drawn fresh in every run: the same command gives slightly "
    "different numbers. A seed fixes initial weights only."
)


def read(folder):
    """Reads what a command, or a fit, left.

    Args:
        folder: str, a folder written by `keras-fm compare`, `audit`,
            `compose`, `reproduce` or by a `PrivacyTensorBoard`; or the file of
            a ledger or of a saved statement.

    Returns:
        A `Run`.

    Raises:
        ValueError: if the folder holds no such run, or a file of it is
            broken.
    """
    shown = clean(str(folder))
    try:
        if os.path.isfile(folder):
            return own_fit.of_text(_text(*os.path.split(folder)))
        data, reader = _reader(folder)
        return reader(folder, data)
    except OSError as e:
        raise ValueError(f"{shown!r}: {e.strerror}.") from e
    except (*strict_json.MALFORMED, csv.Error) as e:
        raise ValueError(
            f"{shown!r} holds no run that can be shown: {clean(str(e))[:200]}"
        ) from e


def _reader(folder):
    for name, readers in (
        ("summary.json", {"compare": _comparison, "reproduce": _reproduction}),
        ("audit.json", {"audit": _audit}),
        ("composition.csv", {"compose": _composition}),
    ):
        if not os.path.isfile(os.path.join(folder, name)):
            continue
        if name.endswith(".csv"):
            return _csv(folder, name), _composition
        data = json.loads(_text(folder, name))
        kind = "audit" if name == "audit.json" else data["kind"]
        if kind in readers:
            return data, readers[kind]
    events = [v for v in os.listdir(folder) if v.startswith(own_fit.EVENTS)]
    if events:
        return sorted(events), _of_events
    raise ValueError(
        "there is no summary.json of `keras-fm compare` or `reproduce`, no "
        "audit.json, no composition.csv, and no events of a PrivacyTensorBoard"
    )


def _of_events(folder, names):
    return own_fit.of_events([os.path.join(folder, name) for name in names])


# Files ------------------------------------------------------------


def _bytes(folder, name):
    with open(os.path.join(folder, name), "rb") as f:
        found = f.read(_LARGEST_FILE + 1)
    if len(found) > _LARGEST_FILE:
        raise ValueError(f"{name} is larger than {_LARGEST_FILE >> 20} MiB")
    return found


def _text(folder, name):
    """ "" where there is no such file."""
    if not os.path.isfile(os.path.join(folder, name)):
        return ""
    return _bytes(folder, name).decode("utf-8")


def _csv(folder, name):
    rows = list(csv.DictReader(io.StringIO(_text(folder, name))))
    return _few(rows)


def _few(rows):
    if len(rows) > _MOST_ROWS:
        raise ValueError(f"a page shows at most {_MOST_ROWS} rows")
    return rows


def _pictures(folder, name, caption):
    """The PNG that a run left as a data URI, with its caption."""
    if not os.path.isfile(os.path.join(folder, name)):
        return ()
    content = _bytes(folder, name)
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError(f"{name} is not a PNG")
    uri = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return ((uri, caption),)


# Values ------------------------------------------------------------


def _float(value):
    """A number of JSON or CSV, infinity as text among them, or `None`."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        raise ValueError(f"{value} is not a number")
    return float(value)


def _number(value, spec=".4g", scale=1.0):
    value = _float(value)
    if value is None or not math.isfinite(value):
        return Cell()
    return Cell(text=f"{value * scale:{spec}}", key=value * scale)


def _word(value):
    return Cell(text="" if value is None else str(value))


def _field(name, spec=".4g", scale=1.0):
    return lambda row: _number(row.get(name), spec, scale)


def _said(name):
    return lambda row: _word(row.get(name))


def _facts(*pairs):
    """Those (name, value) that say something."""
    return tuple((name, str(value)) for name, value in pairs if value)


def _recorded(data):
    """When, by what, with which settings."""
    settings = {**data.get("spec", {}), **data.get("settings", {})}
    return _facts(
        ("run", data.get("when")),
        ("noise", "fresh; no seed reproduces it"),
        *data.get("versions", {}).items(),
        *((k, json.dumps(v)) for k, v in settings.items()),
    )


# Trainings ------------------------------------------------------------


def _standing(row):
    """What the epsilon of a training is worth, by its numbers."""
    kind = row.get("guarantee")
    words = {"calculated": "calculated", "formula": "as printed, no bound"}
    if kind in words:
        return words[kind]
    proven, claimed = (_float(row.get(name)) for name in ("proven", "claimed"))
    if proven is not None and 0 <= proven < math.inf:
        return PROVEN
    if claimed is not None and 0 <= claimed < math.inf:
        return CLAIMED
    return "not stated" if kind in ("proven", "claimed") else NO_PRIVACY


def _result(row, scale):
    value, spread = _float(row.get("y")), _float(row.get("spread"))
    cell = _number(value, ".4g", scale)
    if cell.text and spread and math.isfinite(spread):
        spread = f"\u00a0±\u00a0{spread * scale:.2g}"
        return Cell(text=cell.text + spread, key=cell.key)
    return cell


def _proven(row):
    if _standing(row) == PROVEN:
        return _number(row["proven"])
    if _standing(row) in (CLAIMED, NO_PRIVACY):
        return Cell(text=_NO_PROOF, key=math.inf)
    return Cell()


def _training_columns(name, label, scale):
    """Of a row of a comparison, or a point of a reproduction."""

    def claimed(row):
        return _number(
            row.get("claimed") if _standing(row) == CLAIMED else None
        )

    def relation(row):
        delta = _number(row.get("delta"), "g").text
        return _word(" ".join(filter(None, (delta, row.get("neighbours")))))

    return {
        name: _said("label"),
        "standing": lambda row: Cell(text=_standing(row)),
        "budget ε": _field("epsilon"),
        label: lambda row: _result(row, scale),
        "ε proven": _proven,
        "ε claimed": claimed,
        "δ, relation": relation,
        "seconds": _field("seconds", ".3g"),
        "CPU seconds": _field("cpu_seconds", ".3g"),
        "memory, MiB": _field("peak_mib", ".0f"),
        "runs": _field("runs"),
    }


# Comparisons ------------------------------------------------------------


def _comparison(folder, data):
    rows = [
        {**row, "y": row.get("accuracy"), "runs": row.get("seeds")}
        for row in _few(data["rows"])
    ]
    spec = data["spec"]
    dataset = os.path.basename(str(spec["dataset"]))
    labels = {row["method"]: row["label"] for row in rows}
    claimed = any(_standing(row) == CLAIMED for row in rows)
    return Run(
        kind="compare",
        title=f"{dataset}: every way of training, side by side",
        lead=(
            f"The same data and the same split, trained in {len(labels)} ways. "
            + "Proven and claimed results are kept apart." * claimed
        ),
        facts=_facts(
            ("Data", dataset),
            ("Model", spec.get("model")),
            ("Features", _features_of(spec)),
            ("Relation", spec.get("neighbours")),
            ("δ", spec.get("delta")),
            ("Seeds", spec.get("seeds")),
            ("Run", data.get("when")),
        ),
        caveats=(*_comparison_caveats(rows), *map(str, data.get("notes", ()))),
        pictures=_pictures(
            folder,
            "accuracy.png",
            "Test accuracy against the budget"
            + ": proven and claimed, each in a panel" * claimed
            + ".",
        ),
        tables=(_accuracies(rows),),
        tables_after=(
            Table.of(
                "Every method and budget",
                _training_columns("method", "accuracy, %", 100),
                rows,
                keep=("ε proven",),
            ),
        ),
        statements=tuple(data.get("statements", {}).items()),
        command=data.get("command") or "",
        setting=_recorded(data),
    )


def _features_of(spec):
    """Of a table there are no pixels."""
    own = spec.get("model") and spec.get("features") == "pixels"
    return "records as given" if own else spec.get("features")


def _comparison_caveats(rows):
    claimed = [
        "A claimed epsilon is asserted by a paper. No valid proof covers it, "
        "so it does not limit what the training reveals."
    ]
    found = [
        *claimed * any(_standing(row) == CLAIMED for row in rows),
        "Accuracy is measured on the test part, on which nothing was chosen. "
        "It is taken to be public: no epsilon here covers its records.",
        "Compare only numbers of one neighbouring relation: an epsilon for "
        "add_remove may be twice as large for replace_one, at a larger delta.",
        _FRESH,
    ]
    proven = [row for row in rows if _standing(row) == PROVEN]
    if proven:
        row = proven[len(proven) // 2]
        epsilon = _float(row["proven"])
        promised = promise(
            epsilon, _float(row["delta"]) or 0.0, row["neighbours"]
        )
        least = rounded_up(epsilon, 3)
        found.insert(0, f"A proven epsilon of {least} promises: {promised}")
    if any(row["method"].startswith(_RIVALS) for row in rows):
        found.append(TUNED)
    return tuple(found)


def _accuracies(rows):
    """Methods down, epsilons across."""
    kinds = {PROVEN: "proven", CLAIMED: "claimed", NO_PRIVACY: "no privacy"}
    places = [
        grid.Place(
            name=row["method"],
            epsilon=_float(row["epsilon"]),
            value=_float(row["y"]),
            kind=kinds[_standing(row)],
            relation=row["neighbours"],
        )
        for row in rows
        if _float(row["y"]) is not None
    ]
    ranked = grid.of(places)
    by_place = {(row["method"], _float(row["epsilon"])): row for row in rows}
    first = {row["method"]: row for row in rows}

    def column(epsilon):
        def cell(name):
            row = by_place.get((name, epsilon), by_place.get((name, None)))
            found = Cell() if row is None else _result(row, 100)
            is_best = (name, epsilon) in ranked.best
            return Cell(text=found.text, key=found.key, is_best=is_best)

        return cell

    names = [n for some in ranked.names.values() for n in some]
    return Table.of(
        "Test accuracy, %"
        + ", mean ± standard deviation" * any(r["runs"] != 1 for r in rows)
        + "; marked: the best proven of a column and relation",
        {
            "method": lambda name: _word(first[name]["label"]),
            **{f"ε\u00a0{e:g}": column(e) for e in ranked.epsilons or [0.0]},
            "standing": lambda name: Cell(text=_standing(first[name])),
        },
        list(dict.fromkeys(names)),
    )


# Reproductions ------------------------------------------------------------


def _reproduction(folder, data):
    series, facts = data["series"], _few(data["facts"])
    label, scale = data["y"]["label"], _float(data["y"]["scale"])
    points = [
        {**point, "label": series.get(point["series"], {}).get("label")}
        for point in _few(data["points"])
    ]
    columns = _training_columns("series", label, scale)
    place = [isinstance(point["x"], str) for point in points]
    columns["x"] = _said("x") if any(place) else _field("x")
    paper = data["paper"]
    caveats = [
        f"{words}: {data[name]}"
        for name, words in (
            ("deviations", "Differs from the paper"),
            ("facts_dataset", "The paper's data"),
            ("why_no_facts", "No number of the paper"),
        )
        if data.get(name)
    ]
    if facts:
        caveats.append(
            "The paper's numbers stand at an epsilon that the paper claims; "
            "ours stand at the epsilon of their own column."
        )
    if any(point["series"].startswith(_RIVALS) for point in points):
        caveats.append(TUNED)
    for name, why in data.get("skipped", {}).items():
        caveats.append(f"Left out: {name}: {why}.")
    tables = [Table.of("Ours", columns, points)]
    if facts:
        papers = {
            "system": _said("system"),
            "standing": lambda _: Cell(text="the paper's number"),
            "ε": _field("epsilon"),
            "epochs": _field("epochs"),
            label: _field("value", ".4g", scale),
            **{name: _said(name) for name in ("dataset", "where", "note")},
        }
        tables.append(Table.of("The paper's numbers", papers, facts))
    return Run(
        kind="reproduce",
        title=f"{data['experiment']}: {data['title']}",
        lead=f"In the paper: {data['shows']}",
        facts=_facts(
            (
                "Paper",
                "{authors}: {title}. {venue} {year}".format_map(paper),
            ),
            ("Form", data.get("form")),
            ("Data", data["settings"].get("data")),
            ("Run", data.get("when")),
        ),
        caveats=(_FRESH, *caveats),
        pictures=_pictures(
            folder,
            "figure.png",
            _legend(points, facts),
        ),
        tables=tuple(tables),
        statements=(
            ("Ours beside the paper, as printed", _text(folder, "table.txt")),
            *data.get("statements", {}).items(),
        ),
        command=data.get("reproduce") or "",
        setting=_recorded(data),
    )


def _legend(points, facts):
    """What the lines of a figure are, of those that it has."""
    kinds = {PROVEN: "solid", CLAIMED: "dotted", NO_PRIVACY: "dashed"}
    there = {_standing(point) for point in points}
    words = [f"{line}: {kind}" for kind, line in kinds.items() if kind in there]
    words += ["open markers: the paper's numbers"] * bool(facts)
    return "; ".join(words).capitalize() + "."


# Compositions ------------------------------------------------------------


def _composition(folder, rows):
    words = {"bound": "proven bound", "as printed": "as printed, no bound"}
    for row in rows:
        row["count"] = _float(row["count"])
        applies = _float(row["epsilon"]) is not None
        row["standing"] = words[row["kind"]] if applies else "does not apply"
    last = [row for row in rows if row["count"] == rows[-1]["count"]]
    bounds = [row for row in last if row["standing"] == "proven bound"]
    if bounds:
        best = min(bounds, key=lambda row: _float(row["epsilon"]))
        note = "smallest: the one to use"
        best["note"] = "; ".join(filter(None, (note, best["note"])))
    printed = _text(folder, "table.txt")
    title = (printed.splitlines() or [""])[0]
    columns = {
        "method": _said("method"),
        "standing": _said("standing"),
        "runs": _field("count", ",.0f"),
        "ε": _field("epsilon"),
        "δ": _field("delta"),
        "note": _said("note"),
    }
    recorded = json.loads(_text(folder, "summary.json") or "{}")
    return Run(
        kind="compose",
        title=f"Composition: {title}",
        lead=(
            "What many releases from the same records cost together, by every "
            "composition theorem."
        ),
        facts=_facts(("Plan", title), ("Run", recorded.get("when"))),
        caveats=(
            "Every row called a proven bound is a valid upper bound of the "
            "same plan. Use the smallest; the others show what their theorem "
            "costs.",
            'A row marked "as printed" is a formula of a survey that drops '
            "terms. It is not a bound.",
            "Rows without sampled_ count every run as if it used all records: "
            "valid, but wasteful for a sampled plan.",
        ),
        pictures=_pictures(
            folder,
            "composition.png",
            "Proven bounds on epsilon against the number of runs.",
        ),
        tables=(
            Table.of(
                f"Every theorem, {last[0]['count']:,.0f} runs", columns, last
            ),
        ),
        tables_after=(Table.of("All numbers of runs", columns, rows),),
        statements=(("The whole plan, as printed", printed),),
        command=recorded.get("command") or "",
        setting=_recorded(recorded),
    )


# Audits ------------------------------------------------------------


def _audit(folder, data):
    # Late: what the others stand on is not waited for.
    from keras_fm.lab.auditing.report import AuditReport

    report = AuditReport.from_json(_text(folder, "audit.json"))
    claim = report.claim

    def epsilon(name):
        found = operator.attrgetter(name)
        return lambda run: _number(found(run).epsilon, ".3f")

    def guesses(name):
        found = operator.attrgetter(name)
        return lambda run: _word(
            f"{found(run).correct} of {found(run).guesses}"
        )

    table = Table.of(
        "All runs, each at 95 % by itself",
        {
            "seed": lambda run: _number(run.seed),
            "lower bound": epsilon("bound"),
            "right of guessed": guesses("bound"),
            "control": epsilon("control"),
            "right of guessed, control": guesses("control"),
            "seconds": lambda run: _number(run.seconds, ".1f"),
        },
        _few(report.runs),
    )
    least = rounded_up(claim.epsilon, 4)
    return Run(
        kind="audit",
        title=f"Audit of a {claim.guarantee} epsilon {least}",
        lead=(
            f"{report.canaries} canaries were planted by coin flips, and the "
            "coins were guessed from the trained model. With 95 % confidence "
            f"the training has an epsilon of at least {report.bound:.3f}."
        ),
        # Derived from the numbers, never read.
        standing=report.verdict,
        facts=_facts(
            ("Statement", claim),
            ("Lower bound", f"{report.bound:.3f} (95 % confidence)"),
            ("Control", f"{report.control_bound:.3f} (without privacy)"),
            ("Ceiling", f"{report.ceiling:.3f}"),
            ("Run", data.get("when")),
        ),
        caveats=(
            "A lower bound refutes a statement or shows nothing. An audit "
            "never proves privacy: a stronger attack may show more.",
            "The control is the same network, trained without privacy on the "
            "same canaries. If its bound is not above the statement either, "
            "the attack is too weak to show anything.",
            *report.remarks(),
        ),
        pictures=_pictures(
            folder, "audit.png", "Lower bounds on epsilon beside the statement."
        ),
        tables=(table,),
        statements=(("The statement that was audited", report.text()),),
        command=data.get("command") or "",
        setting=_recorded(data),
    )
