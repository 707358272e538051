"""The page: escaped, self-contained, the same whatever the files say."""

import base64
import hashlib
import html.parser
import re

import pytest
import written_runs

from keras_fm.lab import report as html_report
from keras_fm.lab.commands import report as command
from keras_fm.lab.report.content import Standing

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
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return [
        getattr(written_runs, kind)(place / kind)
        for kind in ("compare", "audit", "compose", "reproduce")
    ]


@pytest.fixture(scope="module")
def page(folders):
    return html_report.render([html_report.read(f) for f in folders])


def test_the_page_is_well_formed(page):
    parsed = Parsed(page)
    assert page.startswith("<!DOCTYPE html>\n")
    assert parsed.all("html") == [{"lang": "en"}]
    assert len(parsed.all("h1")) == len(parsed.all("main")) == 1
    ids = [a["id"] for _, a in parsed.elements if "id" in a]
    assert len(ids) == len(set(ids))
    named = {
        name
        for _, attrs in parsed.elements
        for key in ("aria-labelledby", "href", "clip-path")
        for name in re.findall(r"[\w-]+", attrs.get(key, ""))
    }
    assert len(named) > 20 and named - {"url"} <= set(ids)
    assert all(a.get("scope") in ("col", "row") for a in parsed.all("th"))
    tables = len(parsed.all("table"))
    assert len(parsed.all("caption")) == tables > 4
    for image in parsed.all("img"):
        assert image["alt"]
    drawn = [a for a in parsed.all("div") if a.get("role") == "img"]
    assert len(drawn) == 5 and all(a["aria-label"] for a in drawn)


def test_the_page_loads_nothing(page):
    parsed = Parsed(page)
    for _, attrs in parsed.elements:
        for name, value in attrs.items():
            assert not name.startswith("on"), name
            if name in ("src", "href", "xlink:href", "srcset", "data"):
                assert value.startswith(("#", "data:image/png;base64,"))
    for tag in ("link", "iframe", "object", "embed", "base", "form", "style"):
        assert len(parsed.all(tag)) == (tag == "style")
    assert "://" not in page and "@import" not in page
    assert "url(" not in re.sub(r"url\(#d\d+-\w+\)", "", page)


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


def test_hostile_text_is_shown_and_never_run(tmp_path):
    rows = [
        written_runs.row(EVIL, 1.0, 0.5, 1.0, 1.0, label=EVIL, neighbours=EVIL)
    ]
    comparison = written_runs.compare(
        tmp_path / "a",
        dataset=EVIL,
        rows=rows,
        command=EVIL,
        when=EVIL,
        versions={EVIL: EVIL, "backend": EVIL},
        methods={EVIL: EVIL},
        statements={f"{EVIL} 1": EVIL, EVIL: EVIL},
        runs=f'method,epsilon\n"{EVIL.replace(chr(34), chr(34) * 2)}",1\n',
    )
    audit = written_runs.audit(
        tmp_path / "b", kind=EVIL, score=EVIL, design=EVIL, notes=[EVIL]
    )
    composition = written_runs.compose(tmp_path / "c")
    table = tmp_path / "c" / "table.txt"
    table.write_text(f"{EVIL}\n\n<u>x</u> 1 1e-5 bound {EVIL}\n")
    series = tmp_path / "c" / "composition.csv"
    series.write_text("count,method,epsilon,kind\n1,<u>z</u>,1.0,bound\n")
    again = written_runs.reproduce(
        tmp_path / "d",
        experiment=EVIL,
        title=EVIL,
        shows=EVIL,
        reproduce=EVIL,
        paper={"authors": EVIL, "title": EVIL, "venue": EVIL},
        settings={EVIL: [EVIL]},
        series={EVIL: {"label": EVIL, "guarantee": EVIL}},
        points=[{"series": EVIL, "x": EVIL, "y": 1, "neighbours": EVIL}],
        facts=[{"system": EVIL, "metric": EVIL, "where": EVIL, "value": 1}],
        skipped={EVIL: EVIL},
        y={"label": EVIL, "scale": 1},
    )
    runs = [
        html_report.read(f) for f in (comparison, audit, composition, again)
    ]
    for shown in (runs, *([run] for run in runs)):
        page = html_report.render(shown)
        parsed = Parsed(page)
        assert len(parsed.all("script")) == 1
        for tag, attrs in parsed.elements:
            assert not any(name.startswith("on") for name in attrs), tag
        assert all("x" != image["src"] for image in parsed.all("img"))
        assert "<u>" not in page
        # A template in a name is text, not a template.
        found = parsed.text.count("{{ 7 * 7 }}")
        assert found == parsed.text.count("alert(2)") > 0
    # It is there, letter by letter, for a reader.
    page = html_report.render(runs)
    assert Parsed(page).text.count(EVIL) > 20


def test_every_standing_has_a_look_of_its_own(page):
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    for standing in (
        Standing.PROVEN,
        Standing.CLAIMED,
        Standing.NO_PRIVACY,
        Standing.BOUND,
        Standing.AS_PRINTED,
        Standing.VIOLATED,
        Standing.NOT_REFUTED,
        Standing.CALCULATED,
    ):
        assert re.search(rf"\.badge\.{standing.css}\b", style), standing
    assert len({s.css for s in Standing}) == len(Standing)
    looks = {
        name: re.search(rf"\.badge\.{name}[^{{]*{{([^}}]*)}}", style).group(1)
        for name in ("is-proven", "is-claimed", "is-no-privacy")
    }
    assert len(set(looks.values())) == 3


def test_infinity_is_never_printed(page):
    text = Parsed(page).text
    assert "no valid proof" in text
    body = text.split("How to reproduce")[0]
    assert not re.search(r"\binf\b|\bnan\b|\bNone\b", body)


def test_the_same_runs_give_the_same_page(folders):
    def made():
        page = html_report.render([html_report.read(f) for f in folders])
        return re.sub(r"Made on [^ ]+ [^ ]+", "", page)

    assert made() == made()


def test_a_page_needs_a_run_and_a_name(folders, tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        html_report.render([])
    runs = [html_report.read(folders[0])]
    with pytest.raises(ValueError, match="must end in .html"):
        html_report.write(runs, str(tmp_path / "summary.json"))
    assert list(tmp_path.iterdir()) == []


def run_command(*arguments):
    from absl import flags

    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    command.define(values)
    rest = values(["keras-fm report", *arguments])[1:]
    return command.run(values, rest)


def test_the_command_writes_one_file(tmp_path, capsys):
    folder = written_runs.compare(tmp_path / "a")
    before = set((tmp_path / "a").iterdir())
    assert run_command(folder) == 0
    page = tmp_path / "a" / "report.html"
    assert set((tmp_path / "a").iterdir()) - before == {page}
    assert str(page) in capsys.readouterr().out
    assert "keras_fm" in page.read_text(encoding="utf-8")
    # No path of the machine but those in the run's own files.
    assert str(tmp_path) not in page.read_text(encoding="utf-8")


def test_the_command_takes_several_runs(folders, tmp_path):
    with pytest.raises(ValueError, match="several runs need --out"):
        run_command(*folders)
    with pytest.raises(ValueError, match="at least one run"):
        run_command()
    out = tmp_path / "new" / "all.html"
    assert run_command(*folders, f"--out={out}") == 0
    parsed = Parsed(out.read_text(encoding="utf-8"))
    assert len(parsed.all("article")) == 4
    (contents,) = (a for a in parsed.all("ol") if a["class"] == "contents")
    assert {"href": "#run-4"} in parsed.all("a")
