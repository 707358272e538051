"""Folders of all commands become runs; broken ones become clear errors."""

import json
import re

import pytest
import written_runs

from keras_fm.lab import report as html_report
from keras_fm.lab.report import checked, figures
from keras_fm.lab.report.content import NO_PROOF, Standing


def cells(table, row_number, column):
    titles = [c.title for c in table.columns]
    return table.rows[row_number][titles.index(column)]


def texts(table, column):
    return [cells(table, i, column).text for i in range(len(table.rows))]


def test_a_comparison_keeps_proven_and_claimed_apart(tmp_path):
    run = html_report.read(written_runs.compare(tmp_path / "a"))
    table = run.tables_after[0]
    assert run.kind == "compare"
    assert texts(table, "standing") == [
        "no privacy",
        "claimed, not proven",
        "claimed, not proven",
        "proven",
        "proven",
        "proven",
    ]
    assert texts(table, "ε proven") == [NO_PROOF] * 3 + ["0.9999", "8", "7.9"]
    # What is proven is not shown as a claim too.
    assert texts(table, "ε claimed") == ["–", "1", "8", "–", "–", "–"]
    assert cells(table, 3, "accuracy, %").text == "77.0 ± 1.0"
    assert cells(table, 3, "seconds").text == "1.25"
    assert cells(table, 3, "CPU seconds").text == "2.5"
    assert cells(table, 3, "memory, MiB").text == "12"
    assert ("δ", "1e-05") in run.facts and ("Data", "digits") in run.facts
    assert run.command.startswith("keras-fm compare") and run.is_recorded
    assert ("Keras backend", "jax") in run.setting
    assert any("not charged" in c for c in run.caveats)
    detail = run.details[3]
    assert detail.statement == written_runs.STATEMENT
    assert ("accuracy of each run, %", "76.1, 77.9") in detail.facts
    assert ("steps", "100") in run.details[5].facts
    first, second, costs = run.figures
    # Without privacy stands where it is near: here it would squeeze the rest.
    assert labels(first) == {"proven", "dp sgd head"}
    assert labels(second) == {"published"}
    assert labels(costs) == {"proven", "dp sgd head"}
    # Whom nobody proved stands apart, however its line looks.
    assert first.caption.startswith("Proven")
    assert second.caption.startswith("Claimed")


def labels(figure):
    """Words at the ends of a figure's lines."""
    words = re.findall(r"<text[^>]*>([^<]*[a-z][^<]*)</text>", figure.svg)
    return set(words) - {"epsilon", "runs", "test accuracy, %", "CPU seconds"}


def test_what_was_asked_comes_first(tmp_path):
    """Methods down, by rank, epsilons across, the best proven marked."""
    (table,) = html_report.read(written_runs.compare(tmp_path / "a")).tables
    assert texts(table, "method") == [
        "dp sgd head",
        "proven",
        "published",
        "non private",
    ]
    assert texts(table, "ε\u00a01") == ["–", "77.0", "16.0", "97.0"]
    assert texts(table, "ε\u00a08") == ["88.0", "90.0", "17.0", "97.0"]
    assert cells(table, 1, "ε\u00a08").aside == " ± 1.0"
    best = [
        (row, column)
        for row, cells_ in enumerate(table.rows)
        for column, cell in enumerate(cells_)
        if cell.is_best
    ]
    assert best == [(1, 1), (1, 2)]


def test_what_is_proven_is_said_in_a_sentence(tmp_path):
    run = html_report.read(written_runs.compare(tmp_path / "a"))
    assert run.caveats[0].startswith("A proven epsilon of ")
    assert "Whether any one record was used" in run.caveats[0]
    promises = [dict(d.facts).get("what it promises", "") for d in run.details]
    assert [bool(p) for p in promises] == [False] * 3 + [True] * 3
    assert "2.72 times as probable" in promises[3]
    assert "at most 1 in 100,000." in promises[3]


def test_a_caveat_stands_only_where_it_is_due(tmp_path):
    rows = [written_runs.row("proven", 1.0, 0.7, 1.0, 0.99, seeds=1)]
    run = html_report.read(written_runs.compare(tmp_path / "a", rows=rows))
    assert not any("not charged" in c for c in run.caveats)
    assert any("no spread" in c for c in run.caveats)
    assert texts(run.tables[0], "ε\u00a01") == ["70.0"]


def test_an_older_comparison_without_new_fields(tmp_path):
    old = written_runs.summary()
    for name in ("kind", "command", "when", "versions", "methods"):
        del old[name]
    for row in old["rows"]:
        for name in ("label", "cpu_seconds", "settings"):
            del row[name]
    old["unheard_of"] = [{"deep": [1, None]}]
    (tmp_path / "summary.json").write_text(json.dumps(old))
    run = html_report.read(str(tmp_path))
    table = run.tables_after[0]
    assert "CPU seconds" not in [c.title for c in table.columns]
    assert texts(table, "method")[0] == "non private"
    assert run.command == (
        "keras-fm compare --dataset=digits --features=pixels --hidden=64 "
        "--methods=non_private,published,proven,dp_sgd_head --epsilons=1,8 "
        "--delta=1e-05 --neighbours=add_remove --seeds=2"
    )
    assert not run.is_recorded
    # From the privacy statement, since nothing else tells.
    assert ("Run", "2026-01-02 03:04:05 UTC") in run.facts


def test_a_derived_command_is_quoted(tmp_path):
    spec = {"dataset": "my data; rm.npz", "epsilons": [0.1]}
    folder = written_runs.compare(tmp_path / "a", command=None, spec=spec)
    assert html_report.read(folder).command == (
        "keras-fm compare --dataset='my data; rm.npz' --epsilons=0.1"
    )


@pytest.mark.parametrize(
    "proven, claimed, standing",
    [
        (1.0, 1.0, Standing.PROVEN),
        ("inf", 1.0, Standing.CLAIMED),
        ("nan", 1.0, Standing.CLAIMED),
        (None, 1.0, Standing.CLAIMED),
        ("inf", None, Standing.NO_PRIVACY),
        # Reproducible noise: neither is worth anything.
        ("inf", "inf", Standing.NO_PRIVACY),
        (None, None, Standing.NO_PRIVACY),
    ],
)
def test_standing_follows_the_numbers_not_the_label(
    tmp_path, proven, claimed, standing
):
    row = written_runs.row("proven", 1.0, 0.7, claimed, proven)
    folder = written_runs.compare(tmp_path / "a", rows=[row])
    run = html_report.read(folder)
    assert run.tables[0].rows[0][-1].standing is standing
    assert run.details[0].standing is standing
    drawn = [figure.caption.split(":")[0] for figure in run.figures]
    assert drawn == {
        Standing.PROVEN: ["Proven", "What accuracy costs"],
        Standing.CLAIMED: ["Claimed"],
    }.get(standing, ["Test accuracy against the budget."])
    expected = "1" if standing is Standing.PROVEN else NO_PROOF
    assert texts(run.tables_after[0], "ε proven") == [expected]


@pytest.mark.parametrize("accuracy, is_near", [(0.92, True), (0.99, False)])
def test_costs_have_what_is_near_alone(tmp_path, accuracy, is_near):
    """The rest was drawn outside of the panel and took its width."""
    rows = [
        written_runs.row("non_private", None, accuracy, cpu_seconds=900.0),
        written_runs.row("proven", 8.0, 0.8, 8.0, 7.9, cpu_seconds=1.0),
        written_runs.row("rounds_proven", 8.0, 0.9, 8.0, 7.9, cpu_seconds=9.0),
    ]
    folder = written_runs.compare(tmp_path / "a", rows=rows)
    costs = html_report.read(folder).figures[-1]
    assert "where it is near, without privacy" in costs.caption
    assert (">500<" in costs.svg) == is_near


def test_the_picture_is_the_fallback_where_nothing_can_be_drawn(tmp_path):
    rows = [written_runs.row("proven", 1.0, None, 1.0, 0.9)]
    folder = written_runs.compare(tmp_path / "a", rows=rows)
    (figure,) = html_report.read(folder).figures
    assert not figure.svg and figure.png.startswith("data:image/png;base64,")
    assert (figure.width, figure.height) == (1, 1)
    (tmp_path / "a" / "accuracy.png").unlink()
    assert html_report.read(folder).figures == ()


def test_an_audit_derives_its_verdict(tmp_path):
    run = html_report.read(written_runs.audit(tmp_path / "a"))
    assert run.standing is Standing.VIOLATED
    run = html_report.read(written_runs.audit(tmp_path / "a", bound=0.1))
    assert run.standing is Standing.NOT_REFUTED
    run = html_report.read(written_runs.audit(tmp_path / "a", claimed=9.0))
    assert run.standing is Standing.NO_POWER
    assert texts(run.tables[0], "lower bound") == ["1.200"]
    assert run.details[0].standing is Standing.CLAIMED


def test_a_composition_names_the_bound_to_use(tmp_path):
    run = html_report.read(written_runs.compose(tmp_path / "a"))
    assert "100 x gaussian" in run.title
    # The table is of the whole plan, though the series ends at ten runs.
    assert texts(run.tables[0], "method") == [
        "basic",
        "optimal",
        "survey_basic",
    ]
    assert texts(run.tables[0], "standing") == [
        "proven bound",
        "proven bound",
        "as printed, no bound",
    ]
    notes = texts(run.tables[0], "note")
    assert [n.startswith("smallest") for n in notes] == [False, True, False]
    assert labels(run.figures[0]) == {"basic", "optimal"}
    assert texts(run.tables_after[0], "runs")[-1] == "10"
    (tmp_path / "a" / "table.txt").unlink()
    run = html_report.read(str(tmp_path / "a"))
    assert run.title == "Composition: 10 runs" and len(run.tables[0].rows) == 3


def test_a_reproduction_stands_beside_the_paper(tmp_path):
    run = html_report.read(written_runs.reproduce(tmp_path / "a"))
    ours, paper = run.tables
    assert texts(ours, "standing") == ["proven", "claimed, not proven"]
    assert texts(ours, "ε proven") == ["1.99", NO_PROOF]
    assert texts(ours, "accuracy, %") == ["75 ± 2", "75 ± 2"]
    assert texts(paper, "accuracy, %") == ["91"]
    assert texts(paper, "standing") == ["the paper's number"]
    assert run.command == "keras-fm reproduce adlm:mnist"
    assert ("Paper", "A, B: T. V 2017") in run.facts
    assert any("at an epsilon that the paper claims" in c for c in run.caveats)
    folder = written_runs.reproduce(
        tmp_path / "a", y={"label": "error", "scale": 2}
    )
    assert texts(html_report.read(folder).tables[0], "error")[0] == "1.5 ± 0.04"


def test_what_a_reproduction_was_not_run_on_is_not_said_of_it(tmp_path):
    """Its page began with the paper's budgets as if they were its own."""
    points = [{"series": "dp_sgd", "guarantee": "proven", "y": 1, "runs": 1}]
    folder = written_runs.reproduce(
        tmp_path / "a", shows="Accuracy at 0.5.", facts=[], points=points
    )
    run = html_report.read(folder)
    assert run.lead == "In the paper: Accuracy at 0.5."
    assert not any("paper claims" in caveat for caveat in run.caveats)
    assert any("is not charged to it" in caveat for caveat in run.caveats)


def test_a_file_cannot_call_proven_what_has_no_proof(tmp_path):
    points = [{"series": "s", "guarantee": "proven", "claimed": 1.0, "y": 1}]
    folder = written_runs.reproduce(tmp_path / "a", points=points)
    table = html_report.read(folder).tables[0]
    assert texts(table, "standing") == ["claimed, not proven"]


# Broken and hostile files ---------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rows": "many"}, "`rows` of summary.json must be a list"),
        ({"rows": ["x"]}, "entry 0 of `rows`"),
        ({"rows": [{"accuracy": {}}]}, "`accuracy` of entry 0"),
        ({"rows": [{"accuracy": True}]}, "`accuracy` of entry 0"),
        ({"rows": [{"accuracy": "high"}]}, "must be a number"),
        ({"rows": [{"proven": -1}]}, "must be at least 0"),
        ({"rows": [{"seconds": 10**400}]}, "must be a number"),
        ({"rows": [{"method": 3}]}, "`method` of entry 0"),
        ({"rows": [{}] * 20_001}, "at most 20000"),
        ({"spec": []}, "`spec` of summary.json is no table"),
        ({"statements": [1]}, "`statements` of summary.json is no table"),
        ({"versions": 3}, "`versions`"),
        ({"command": ["rm"]}, "`command`"),
        ({"kind": 3}, "`kind`"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, changes, message):
    folder = written_runs.compare(tmp_path / "a", **changes)
    with pytest.raises(ValueError, match=message):
        html_report.read(folder)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "no JSON"),
        (b"[]", "no table of fields"),
        (b"\xff\xfe\x00", "no text"),
        (b"[" * 100_000, "nested too deeply|no JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b"{}", "holds no run"),
        (b'{"kind": "else", "spec": {}, "rows": []}', "holds no run"),
        (b" " * (33 * 2**20), "larger than 32 MiB"),
    ],
    ids=lambda v: v[:12] if isinstance(v, bytes) else None,
)
def test_a_broken_summary(tmp_path, content, message):
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        html_report.read(str(tmp_path))


def test_other_broken_files(tmp_path):
    folder = written_runs.compare(tmp_path / "a", runs="method\n" + "x" * 2**18)
    with pytest.raises(ValueError, match="runs.csv is no CSV"):
        html_report.read(folder)
    folder = written_runs.compare(tmp_path / "a", rows=[])
    (tmp_path / "a" / "accuracy.png").write_text("<svg onload=alert(1)>")
    with pytest.raises(ValueError, match="accuracy.png is no PNG"):
        html_report.read(folder)
    folder = written_runs.compose(tmp_path / "b")
    (tmp_path / "b" / "composition.csv").write_text("count,method\nx,y\n")
    with pytest.raises(ValueError, match="`count` of row 1"):
        html_report.read(folder)
    with pytest.raises(ValueError, match="is no folder"):
        html_report.read(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": []},
        {"runs": "x"},
        {"ceiling": None},
        {"ceiling": "high"},
        {"canaries": []},
        {"claim": {"epsilon": 1.0}},
        {"claim": 3},
        {"notes": 3},
        {"unknown": 1},
    ],
)
def test_a_broken_audit(tmp_path, changes):
    folder = written_runs.audit(tmp_path / "a", **changes)
    with pytest.raises(ValueError):
        html_report.read(folder)


def leaves(value, path=()):
    """Paths of everything in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in inner:
        if isinstance(part, (dict, list)):
            yield from leaves(part, (*path, key))
        else:
            yield (*path, key)


@pytest.mark.parametrize("kind", ["compare", "audit", "reproduce"])
def test_no_value_whatever_breaks_more_than_the_read(
    tmp_path, monkeypatch, kind
):
    """Every value of a file is replaced by every wrong one."""
    for name in ("draw_lines", "draw_bars"):
        monkeypatch.setattr(figures, name, lambda *_, **__: "<svg></svg>")
    folder = getattr(written_runs, kind)(tmp_path / "a")
    (path,) = (tmp_path / "a").glob("*.json")
    original = path.read_text()
    refused = shown = 0
    for place in list(leaves(json.loads(original)))[1:]:
        for wrong in (None, -1, "<b>", [], {}, [[1]], 10**400, "nan", True):
            data = json.loads(original)
            part = data
            for key in place[:-1]:
                part = part[key]
            part[place[-1]] = wrong
            path.write_text(json.dumps(data))
            try:
                run = html_report.read(folder)
            except ValueError:
                refused += 1
                continue
            assert "<b>" not in html_report.render([run]).split("<p ")[0]
            shown += 1
    assert refused > 50 and shown > 50


def test_text_that_misleads_is_replaced():
    # Right-to-left override, a terminal's escape, half a surrogate pair.
    assert checked.clean("a\u202eb\x1bc\ud800d\te\nf") == (
        "a\ufffdb\ufffdc\ufffdd\te\nf"
    )
    assert checked.clean("ε ± 中 é") == "ε ± 中 é"
    assert len(checked.clean("x" * 10**6)) < 100_010


def test_extreme_numbers_are_shown_and_do_not_break_the_figure(tmp_path):
    rows = [
        written_runs.row("a", 1e300, 1e300, 1e300, 1e300),
        written_runs.row("a", 0.0, -5.0, 0.0, 0.0),
        written_runs.row("b", 1.0, "nan", None, "inf", spread="inf"),
        written_runs.row("c", 1.0, 0.5, 1.0, 1.0, seconds="inf"),
    ]
    folder = written_runs.compare(tmp_path / "a", rows=rows)
    run = html_report.read(folder)
    assert labels(run.figures[0]) == {"c"}
    assert "1e+300" in html_report.render([run])
