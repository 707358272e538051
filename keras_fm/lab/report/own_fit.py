"""One's own fit as a `Run`: of a ledger, a statement, a TensorBoard folder."""

import base64
import io
import json
import math
import os
import re
import struct

from keras_fm.core import statement_facts
from keras_fm.kernel.ledger import strict_json
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.statement import promised, rounded_up
from keras_fm.lab.engine import plot
from keras_fm.lab.report.page import CLAIMED, PROVEN, Cell, Run, Table, clean

EVENTS = "events.out.tfevents"
_MOST_CURVES, _MOST_PICTURES = 24, 12
_LARGEST = 32 * 2**20
_PNG = b"\x89PNG\r\n\x1a\n"
_LEDGERS = re.compile(r"privacy/ledger( \d+)?")
_CAVEATS = (
    "Epsilon is composed anew from the entries of the ledger. A file is not "
    "authenticated: anybody could have written it.",
    "Metrics of validation data are not covered by any epsilon.",
)


def of_text(text):
    """The `Run` of a ledger or of a saved statement.

    Raises:
        ValueError: if the text is neither.
    """
    data = strict_json.parse(text)
    if "ledgers" not in data:
        return _run([Ledger.from_json(text)])
    found = [Ledger.from_json(json.dumps(v["ledger"])) for v in data["ledgers"]]
    return _run(found, setting=(("weights, sha256", str(data["weights"])),))


def of_events(paths):
    """The `Run` of what a `PrivacyTensorBoard` wrote.

    Args:
        paths: list of str, event files in the order in which they were begun.

    Raises:
        ValueError: if that cannot be read, or no ledger is in it.
    """
    if sum(map(os.path.getsize, paths)) > _LARGEST:
        raise ValueError(f"its events are larger than {_LARGEST >> 20} MiB")
    curves, texts, pictures = _events(paths)
    ledgers = [
        Ledger.from_json(texts[tag])
        for tag in sorted(texts)
        if _LEDGERS.fullmatch(tag)
    ]
    if not ledgers:
        raise ValueError(
            "its events hold no ledger: the callback PrivacyTensorBoard writes "
            "one when `fit` ends"
        )
    shown = {"Curves of the fit.": _drawn(curves)} if curves else {}
    shown |= dict(list(pictures.items())[:_MOST_PICTURES])
    settings = texts.get("privacy/settings", "").strip()
    return _run(
        ledgers,
        pictures=[
            ("data:image/png;base64," + base64.b64encode(png).decode(), name)
            for name, png in shown.items()
        ],
        statements=[("Settings", settings)],
        tables_after=[_points(curves)] if curves else [],
    )


def _events(paths):
    """Curves, texts and pictures of the last fit in event files, by tag."""
    from tensorboard.util import tensor_util

    found = {}
    # A file that anybody wrote raises whatever it likes.
    try:
        for path in paths:
            for event in _records(path):
                for value in event.summary.value:
                    array = tensor_util.make_ndarray(value.tensor)
                    found.setdefault(value.tag, []).append((event.step, array))
    except Exception as e:
        raise ValueError(f"its events cannot be read: {e}") from e
    curves, texts, pictures = {}, {}, {}
    for tag, points in found.items():
        last = points[-1][1]
        if last.dtype.kind == "f" and last.size == 1 and last.ndim == 0:
            # No mark-up of matplotlib's, nothing that hides.
            name = clean(tag)[:60].replace("$", "")
            late = 0 if _by_steps(tag) else 1
            points = [(s + late, float(v)) for s, v in points]
            curves[name] = _last_fit(points)
        elif last.dtype.kind in "OS" and last.size == 1:
            texts[tag] = last.ravel()[0].decode("utf-8")
        elif last.dtype.kind in "OS" and last.size == 3:
            if last.ravel()[2][: len(_PNG)] == _PNG:
                pictures[tag] = last.ravel()[2]
    return curves, texts, pictures


def _records(path):
    """The events of a file. TensorBoard's own reader imports TensorFlow."""
    from tensorboard.compat.proto import event_pb2

    with open(path, "rb") as file:
        # A length and its checksum, then the event and its checksum.
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            content = file.read(min(length, _LARGEST))
            # One that is still being written is left out.
            if len(content) < length or len(file.read(4)) < 4:
                return
            yield event_pb2.Event.FromString(content)


def _last_fit(points):
    """Of fits one after another in a folder, the points of the last."""
    begin = 0
    for index in range(1, len(points)):
        if points[index][0] <= points[index - 1][0]:
            begin = index
    return points[begin:]


def _by_steps(tag):
    return tag.startswith(("privacy/", "step/"))


def _drawn(curves):
    """Curves as a PNG, a panel each; noise beside what it is in."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = {}
    for tag, points in sorted(curves.items())[:_MOST_CURVES]:
        together = "step/" if tag.startswith("step/") else tag
        panels.setdefault(together, {})[tag] = points
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(9, 2.4 * rows), layout="constrained", dpi=110)
    places = figure.subplots(rows, 2, squeeze=False).ravel()
    for ax, (title, lines) in zip(places, panels.items()):
        looks = zip(plot.colors(len(lines)), plot.markers(len(lines)))
        for (tag, points), (color, marker) in zip(lines.items(), looks):
            steps, values = zip(*points)
            ax.plot(steps, values, f"{marker}-", ms=3, color=color, label=tag)
        if len(lines) > 1:
            most = max(v for points in lines.values() for _, v in points)
            ax.set_ylim(0, 1.15 * max(most, 1e-12))
            ax.legend(fontsize=7)
        ax.set_title(title if title in curves else "", fontsize=9)
        ax.set_xlabel("steps" if _by_steps(title) else "epoch", fontsize=8)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(alpha=0.3)
    for ax in places[len(panels) :]:
        ax.set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _points(curves):
    rows = [
        (tag, step, value)
        for tag, points in sorted(curves.items())
        for step, value in points
    ]
    return Table.of(
        "All points of the curves",
        {
            "curve": lambda row: Cell(text=row[0]),
            "step or epoch": lambda row: Cell(text=str(row[1]), key=row[1]),
            "value": lambda row: Cell(text=f"{row[2]:.5g}", key=row[2]),
        },
        rows[:20_000],
    )


def _run(ledgers, pictures=(), statements=(), setting=(), tables_after=()):
    epsilons = [ledger.epsilon() for ledger in ledgers]
    proven = all(map(math.isfinite, epsilons))
    least = ", ".join(rounded_up(epsilon) for epsilon in epsilons)
    lead = " ".join(dict.fromkeys(map(promised, ledgers)))
    facts = []
    for ledger, epsilon in zip(ledgers, epsilons):
        delta = ledger.budget.delta
        facts += [("Budget", f"epsilon {ledger.budget.epsilon:g}, δ {delta:g}")]
        if math.isfinite(epsilon):
            facts += [("Spent, proven", f"epsilon {rounded_up(epsilon)}")]
            facts += [("Left", f"epsilon {ledger.remaining():.6g}")]
        else:
            claimed = f"epsilon {ledger.claimed_epsilon():.6g}"
            facts += [("Claimed, no guarantee", claimed)]
        facts += [("Relation", str(ledger.neighbours)), ("Unit", ledger.unit)]
    return Run(
        kind="fit",
        title=f"A fit at a proven epsilon of {least}"
        if proven
        else "A fit without a valid proof",
        lead=lead,
        standing=PROVEN if proven else CLAIMED,
        facts=tuple(facts),
        caveats=_CAVEATS,
        pictures=tuple(pictures),
        tables=(_plan(ledgers), _facts(ledgers)),
        tables_after=tuple(tables_after),
        statements=(
            *(("Privacy statement", one.statement()) for one in ledgers),
            *statements,
        ),
        setting=tuple(setting),
    )


def _plan(ledgers):
    rows = [e for ledger in ledgers for e in ledger.entries]
    return Table.of(
        "What was released, in this order",
        {
            "release": lambda e: Cell(text=e.name),
            "standing": lambda e: Cell(
                text=PROVEN
                if e.guarantee == "proven" and e.private
                else CLAIMED
            ),
            "uses": lambda e: Cell(text=e.uses),
            "mechanism": lambda e: Cell(text=e.describe()),
            "when": lambda e: Cell(text=e.when[:16].replace("T", " ")),
        },
        rows,
        wraps=True,
    )


def _facts(ledgers):
    return Table.of(
        "What it rests on",
        {
            "about": lambda row: Cell(text=row[0]),
            "by": lambda row: Cell(text=row[2]),
            "words": lambda row: Cell(text=row[1]),
        },
        [row for ledger in ledgers for row in statement_facts.of(ledger)],
        wraps=True,
    )
