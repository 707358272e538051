"""The page of a run: self-contained, escaped, and true to the numbers."""

import base64
import hashlib
import html.parser
import json
import re

import pytest
import written_runs

from keras_fm.core import event_file
from keras_fm.kernel import mechanisms
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.lab import cli
from keras_fm.lab import report as html_report
from keras_fm.lab.report import page as page_lib

pytestmark = [
    pytest.mark.once,
    pytest.mark.full,
]

KINDS = ("compare", "audit", "compose", "reproduce")
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}"


class Parsed(html.parser.HTMLParser):
    """All elements of a page, and whether they are nested as they should."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text, self._open = [], "", []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return [getattr(written_runs, kind)(place / kind) for kind in KINDS]


@pytest.fixture(scope="module")
def page(folders):
    return html_report.render([html_report.read(f) for f in folders])


def texts(table, title):
    place = table.columns.index(title)
    return [row[place].text for row in table.rows]


# The page ------------------------------------------------------------


def test_the_page_is_one_file_and_loads_nothing(page):
    parsed = Parsed(page)
    assert len(parsed.all("h1")) == len(parsed.all("main")) == 1
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert len(parsed.all("caption")) == len(parsed.all("table")) > 4
    assert all(image["alt"] for image in parsed.all("img"))
    for _, attrs in parsed.elements:
        for name, value in attrs.items():
            assert not name.startswith("on"), name
            if name == "href":
                assert value[0] == "#" and value[1:] in ids
            if name in ("src", "srcset", "data"):
                assert value.startswith("data:image/png;base64,")
    for tag in ("link", "iframe", "object", "embed", "base", "form", "svg"):
        assert not parsed.all(tag)
    assert "://" not in page and "@import" not in page and "url(" not in page


def test_only_the_script_of_the_page_may_run(page):
    (policy,) = (
        meta["content"]
        for meta in Parsed(page).all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest())
    assert f"script-src 'sha256-{digest.decode()}'" in policy
    assert "default-src 'none'" in policy


def evil(value):
    """All texts of a JSON value but numbers as text replaced."""
    if isinstance(value, dict):
        return {k: evil(v) for k, v in value.items()}
    if isinstance(value, list):
        return [evil(v) for v in value]
    known = ("compare", "reproduce", "claimed", "add_remove", "replace_one")
    if isinstance(value, str) and value not in ("inf", *known):
        return EVIL
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_text_is_shown_and_never_run(tmp_path, kind):
    folder = getattr(written_runs, kind)(tmp_path / "a")
    for path in (tmp_path / "a").glob("*.json"):
        path.write_text(json.dumps(evil(json.loads(path.read_text()))))
    (tmp_path / "a" / "table.txt").write_text(EVIL)
    parsed = Parsed(html_report.render([html_report.read(folder)]))
    assert len(parsed.all("script")) == 1
    for tag, attrs in parsed.elements:
        assert not any(name.startswith("on") for name in attrs), tag
    assert all("x" != image["src"] for image in parsed.all("img"))
    # It is there for a reader, and no template in it is one.
    assert parsed.text.count("{{ 7 * 7 }}") == parsed.text.count("alert(2)") > 0
    assert EVIL in parsed.text


def test_text_that_misleads_is_replaced(tmp_path):
    # Right-to-left override, a terminal's escape, half a surrogate pair.
    words = "a\u202eb\x1bc\ud800d\te\nf"
    folder = written_runs.compare(tmp_path / "a", statements={"one": words})
    page = html_report.render([html_report.read(folder)])
    assert "a\ufffdb\ufffdc\ufffdd\te\nf" in page
    assert page_lib.clean("ε ± 中 é") == "ε ± 中 é"
    assert len(page_lib.clean("x" * 10**6)) < 100_010


def test_the_command_writes_one_file(folders, tmp_path, capsys):
    assert cli.main(["report", folders[0]]) == 0
    assert "report.html" in capsys.readouterr().out
    out = tmp_path / "new" / "all.html"
    assert cli.main(["report", *folders, f"--out={out}"]) == 0
    assert len(Parsed(out.read_text("utf-8")).all("article")) == 4
    for words in ([], folders, [folders[0], "--out=x.json"], ["nowhere"]):
        assert cli.main(["report", *words]) == 2


# The runs ------------------------------------------------------------


def test_a_comparison(tmp_path):
    """Methods down, by rank, epsilons across, the best proven marked."""
    run = html_report.read(written_runs.compare(tmp_path / "a"))
    (table,) = run.tables
    assert texts(table, "method") == [
        "dp sgd head",
        "proven",
        "published",
        "non private",
    ]
    assert texts(table, "ε\u00a01") == [
        "",
        *(f"{v}\u00a0±\u00a01" for v in (77, 16, 97)),
    ]
    best = [
        (row, column)
        for row, cells in enumerate(table.rows)
        for column, cell in enumerate(cells)
        if cell.is_best
    ]
    assert best == [(1, 1), (1, 2)]
    (every,) = run.tables_after
    assert texts(every, "ε proven")[:4] == [*["no valid proof"] * 3, "0.9999"]
    assert run.caveats[0].startswith("A proven epsilon of ")
    assert "Adding or removing any one record" in run.caveats[0]
    assert any("not charged" in caveat for caveat in run.caveats)
    assert run.statements == (("proven 1", written_runs.STATEMENT),)
    assert ("Features", "pixels") in run.facts
    # A table that one brings with a model has none.
    spec = written_runs.summary()["spec"] | {"model": "mine.py:build"}
    run = html_report.read(written_runs.compare(tmp_path / "b", spec=spec))
    assert ("Features", "records as given") in run.facts
    assert run.command.startswith("keras-fm compare")
    assert ("δ", "1e-05") in run.facts


@pytest.mark.parametrize(
    "proven, claimed, standing",
    [
        (1.0, 1.0, "proven"),
        ("inf", 1.0, "claimed, not proven"),
        ("nan", 1.0, "claimed, not proven"),
        (-1.0, 1.0, "claimed, not proven"),
        (None, 1.0, "claimed, not proven"),
        ("inf", None, "no privacy"),
        # Reproducible noise: neither is worth anything.
        ("inf", "inf", "no privacy"),
        (None, None, "no privacy"),
    ],
)
def test_standing_follows_the_numbers(tmp_path, proven, claimed, standing):
    row = written_runs.row("proven", 1.0, 0.7, claimed, proven)
    run = html_report.read(written_runs.compare(tmp_path / "a", rows=[row]))
    assert texts(run.tables[0], "standing") == [standing]
    expected = "1" if standing == "proven" else "no valid proof"
    assert texts(run.tables_after[0], "ε proven") == [expected]


def test_a_file_cannot_call_proven_what_has_no_proof(tmp_path):
    points = [
        {"series": "s", "guarantee": "proven", "claimed": c, "x": 1, "y": 1}
        for c in (1.0, None)
    ]
    folder = written_runs.reproduce(tmp_path / "a", points=points)
    table = html_report.read(folder).tables[0]
    assert texts(table, "standing") == ["claimed, not proven", "not stated"]


@pytest.mark.parametrize(
    "changes, verdict",
    [
        ({}, "violated at 95%"),
        ({"bound": 0.1}, "not refuted"),
        ({"claimed": 9.0}, "inconclusive: no power"),
    ],
)
def test_an_audit_derives_its_verdict(tmp_path, changes, verdict):
    run = html_report.read(written_runs.audit(tmp_path / "a", **changes))
    assert run.standing == verdict


def test_a_composition_names_the_bound_to_use(tmp_path):
    run = html_report.read(written_runs.compose(tmp_path / "a"))
    assert "100 x gaussian" in run.title
    (table,) = run.tables
    assert texts(table, "method") == ["basic", "optimal", "survey_basic"]
    assert texts(table, "standing") == [
        "proven bound",
        "proven bound",
        "as printed, no bound",
    ]
    notes = [n.startswith("smallest") for n in texts(table, "note")]
    assert notes == [False, True, False]


def test_a_reproduction_stands_beside_the_paper(tmp_path):
    run = html_report.read(written_runs.reproduce(tmp_path / "a"))
    ours, paper = run.tables
    assert texts(ours, "standing") == ["proven", "claimed, not proven"]
    assert texts(ours, "ε proven") == ["1.99", "no valid proof"]
    assert texts(ours, "accuracy, %") == ["75\u00a0±\u00a02"] * 2
    assert texts(paper, "accuracy, %") == ["91"]
    assert run.command == "keras-fm reproduce adlm:mnist"
    assert ("Paper", "A, B: T. V 2017") in run.facts


# Hostile files ------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
        b"{}",
        b'{"kind": "else", "spec": {}, "rows": []}',
        b" " * (33 * 2**20),
    ],
    ids=range(8),
)
def test_a_broken_summary(tmp_path, content):
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(repr(str(tmp_path)))):
        html_report.read(str(tmp_path))


def test_other_broken_files(tmp_path):
    folder = written_runs.compare(tmp_path / "a")
    (tmp_path / "a" / "accuracy.png").write_text("<svg onload=alert(1)>")
    with pytest.raises(ValueError, match="no run that can be shown"):
        html_report.read(folder)
    folder = written_runs.compose(tmp_path / "b")
    (tmp_path / "b" / "composition.csv").write_text("count,method\nx,y\n")
    with pytest.raises(ValueError, match="no run that can be shown"):
        html_report.read(folder)
    with pytest.raises(ValueError, match="No such file"):
        html_report.read(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="there is no summary.json"):
        html_report.read(str(tmp_path / "empty"))
    rows = [written_runs.row("a")] * 20_001
    folder = written_runs.compare(tmp_path / "c", rows=rows)
    with pytest.raises(ValueError, match="at most 20000 rows"):
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
def test_no_value_whatever_breaks_more_than_the_read(tmp_path, kind):
    """Every value of a file is replaced by every wrong one."""
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
            # What was read can be written.
            assert "<b>" not in html_report.render([run]).split("<p ")[0]
            shown += 1
    assert refused > 50 and shown > 50


# One's own fit -------------------------------------------------------------


def own_fit(folder, ledger, png=written_runs.PNG):
    """A TensorBoard folder as the callback writes it."""
    file = event_file.EventFile(folder)
    for epoch, accuracy in enumerate((0.5, 0.75)):
        file.step = epoch
        file.scalar("validation/accuracy", accuracy)
        file.scalar("step/a", 1.0)
        file.scalar("step/b", 2.0)
    file.text("privacy/ledger 1", ledger)
    file.text("privacy/settings", EVIL)
    if png:
        file.image("release/head/spectrum", png + bytes(16))
    file.close()
    return str(folder)


def spent(**changes):
    mechanism = mechanisms.LaplaceMechanism(sensitivity=1.0, epsilon=0.25)
    entry = {
        "name": "head",
        "guarantee": "proven",
        "neighbours": "add_remove",
        "mechanism": mechanism.config(),
        "uses": EVIL,
        "proof": "docs/proofs/cross_entropy.md",
        "notes": ("the number of records n is public by declaration",),
    }
    ledger = Ledger(PrivacyBudget(1.0, 0.0), neighbours="add_remove")
    ledger.charge([LedgerEntry(**entry | changes)])
    return ledger


def test_ones_own_fit(tmp_path, capsys):
    folder = own_fit(tmp_path / "first", spent().to_json())
    run = html_report.read(folder)
    assert run.standing == page_lib.PROVEN and "0.25" in run.title
    assert "any one record" in run.lead
    facts = dict(run.facts)
    assert facts["Spent, proven"] == "epsilon 0.25"
    assert facts["Left"] == "epsilon 0.75"
    curves, spectrum = run.pictures
    assert curves[0].startswith("data:image/png;base64,")
    assert spectrum[1] == "release/head/spectrum"
    assert texts(run.tables[0], "release") == ["head"]
    assert ("n", "declared") in [
        (r[0].text, r[1].text) for r in run.tables[1].rows
    ]
    points = [[c.text for c in row] for row in run.tables_after[0].rows]
    # Epochs from one; steps as they are.
    assert ["validation/accuracy", "2", "0.75"] in points
    assert ["step/b", "1", "2"] in points
    parsed = Parsed(html_report.render([run]))
    assert len(parsed.all("script")) == 1 and EVIL in parsed.text
    assert cli.main(["report", folder]) == 0
    assert "report.html" in capsys.readouterr().out


def test_a_ledger_alone_and_one_without_a_proof(tmp_path):
    path = tmp_path / "privacy.json"
    path.write_text(spent(private=False).to_json())
    run = html_report.read(str(path))
    assert run.standing == page_lib.CLAIMED and not run.pictures
    assert "nothing is promised" in run.lead
    assert cli.main(["report", str(path)]) == 0
    assert (tmp_path / "report.html").exists()


def test_the_last_of_several_fits_in_a_folder(tmp_path):
    own_fit(tmp_path, spent().to_json())
    run = html_report.read(own_fit(tmp_path, spent().to_json()))
    assert len(run.tables_after[0].rows) == 6


@pytest.mark.parametrize(
    "ledger, png, words",
    [
        ("{}", b"", "not a keras_fm ledger"),
        ('{"format": 1}', b"", "not a keras_fm ledger"),
        ("[" * 100_000, b"", "no run that can be shown"),
    ],
)
def test_hostile_events(tmp_path, ledger, png, words):
    with pytest.raises(ValueError, match=words):
        html_report.read(own_fit(tmp_path, ledger, png))


def test_damaged_events(tmp_path):
    own_fit(tmp_path, spent().to_json())
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for content in (b"", whole[:200], b"\xff" * 500, whole[:-300] + b"x" * 300):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(repr(str(tmp_path)))):
            html_report.read(str(tmp_path))
