"""The pages: every public symbol is there, every link leads somewhere.

All but the last tests need no Sphinx.
"""

import importlib
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import types
import urllib.parse

import pytest
from pages import DOCS, PAGES, ROOT

import keras_fm as fm
from keras_fm import public_names
from keras_fm.lab.engine import rival

pytestmark = [pytest.mark.once, pytest.mark.tensorflow]

API = DOCS / "api"


# The API reference -----------------------------------------------------------


def namespaces():
    """Public modules by name, and modules that one of them exports."""
    found = {"keras_fm": fm}
    for name in public_names.MODULES:
        found[f"keras_fm.{name}"] = getattr(fm, name)
    for module in list(found.values())[1:]:
        for name in getattr(module, "__all__", ()):
            if isinstance(value := getattr(module, name), types.ModuleType):
                found[value.__name__] = value
    return found


def public(module):
    """What a module exports: `__all__`, or what it defines."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (
            name.isupper()
            or getattr(value, "__module__", None) == module.__name__
        )
    ]
    return {
        name: getattr(module, name)
        for name in names
        if not isinstance(getattr(module, name), types.ModuleType)
    }


def symbols():
    """Every public symbol by its full names: `{name: object}`."""
    return {
        f"{namespace}.{name}": value
        for namespace, module in namespaces().items()
        for name, value in public(module).items()
    }


def documented():
    """Names that the reference lists."""
    found = set()
    for path in API.glob("*.rst"):
        module = None
        for line in path.read_text(encoding="utf-8").splitlines():
            match = re.match(r"\.\. (\w+):: (\S+)$", line)
            if match and match[1] == "automodule":
                module = match[2]
                found.add(module)
            elif match and match[1] in (
                "autoclass",
                "autoexception",
                "autofunction",
                "data",
            ):
                found.add(f"{module}.{match[2]}")
    return found


def test_every_public_symbol_is_in_the_reference():
    listed = documented()
    assert set(namespaces()) <= listed
    names = symbols()
    # One name of an object that has several is enough.
    known = {id(names[name]) for name in listed if callable(names.get(name))}
    missing = [
        name
        for name, value in names.items()
        if name not in listed and id(value) not in known
    ]
    assert missing == [], "add these to docs/api"
    gone = listed - set(names) - set(namespaces())
    assert gone == set(), "docs/api lists what is not public"


def test_every_public_symbol_has_a_docstring():
    lacking = [
        name
        for name, value in symbols().items()
        if callable(value) and not value.__doc__
    ]
    assert lacking == []


# Links and code --------------------------------------------------------------


def prose(path):
    """The text of a page without its code."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^(```+).*?^\1", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path):
    """Headings of a page as the hosts of Markdown spell their anchors."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.M):
        kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(kept.replace(" ", "-"))
    return found


def links(path):
    for target in re.findall(r"\]\(([^()\s]+)\)", prose(path)):
        if not urllib.parse.urlsplit(target).scheme:
            yield target


def broken(path):
    bad = []
    for target in links(path):
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        inside = file.is_relative_to(ROOT)
        if not inside or not file.exists():
            bad.append(target)
        elif anchor and anchor not in anchors(file):
            bad.append(target)
    return bad


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_images_of_a_page(path):
    assert broken(path) == []


def test_the_link_checker_can_fail(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# A heading: here\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-heading-here) ![c](no.png)\n"
        "[d](there.md#nowhere) `[e](code.md)` [f](https://host/x)\n"
        "```text\n[g](fenced.md)\n```\n[h](../outside.md)\n"
    )
    assert broken(page) == ["no.png", "there.md#nowhere", "../outside.md"]


# Notebooks -------------------------------------------------------------------

TUTORIALS = sorted(path.stem for path in (DOCS / "tutorials").glob("*.md"))


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("notebooks")


@pytest.mark.parametrize("name", ["quickstart", *TUTORIALS])
def test_a_notebook_is_its_page(notebooks, name):
    """If not: `python docs/notebooks.py`."""
    text = notebooks.path(name).read_text(encoding="utf-8")
    written = json.loads(text)
    code = [c for c in written["cells"] if c["cell_type"] == "code"]
    assert written == notebooks.content(name, [c["outputs"] for c in code])
    page = notebooks.PAGES[name].read_text(encoding="utf-8")
    assert len(code) > 3 and all("".join(c["source"]) in page for c in code)


@pytest.mark.parametrize("name", TUTORIALS)
def test_what_a_notebook_shows(notebooks, name):
    """Its page has its pictures; it is small, and from nobody's machine.

    If not: `python docs/notebooks.py --run NAME`.
    """
    page = notebooks.PAGES[name]
    pictures = notebooks.pictures(notebooks.stored(name))
    shown = [t for t in links(page) if t.endswith(".png")]
    assert len(shown) == len(pictures) > 0
    for target, picture in zip(shown, pictures):
        assert (page.parent / target).read_bytes() == picture
    text = notebooks.path(name).read_text(encoding="utf-8")
    assert len(text) < 100_000
    for word in ("site-packages", "WARNING", "Traceback", "/home/", "/tmp"):
        assert word not in text


def test_every_page_is_named_in_the_contents():
    """Those of docs/ in index.md, proofs in proofs/index.md."""
    contents = (DOCS / "index.md").read_text(encoding="utf-8").splitlines()
    assert {f"tutorials/{name}" for name in TUTORIALS} <= set(contents)
    for folder, index in ((DOCS, "index.md"), (DOCS / "proofs", "index.md")):
        lines = (folder / index).read_text(encoding="utf-8").splitlines()
        for path in folder.glob("*.md"):
            assert path.name == index or path.stem in lines, path


# Tables of numbers -----------------------------------------------------------


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("number_tables")


WITH_TABLES = [p for p in PAGES if "```{numbers}" in p.read_text("utf-8")]


@pytest.mark.parametrize("path", WITH_TABLES, ids=lambda p: p.stem)
def test_the_tables_of_a_page_are_made(tables, path):
    """Files, fields, rows and columns are there; the page links the files."""
    text = path.read_text(encoding="utf-8")
    found = tables.directives(text)
    assert len(found) == text.count("```{numbers}")
    assert "```{numbers}" not in tables.expand(text, path.parent)
    for _, argument, _ in found:
        assert {n for n in argument.split() if "*" not in n} <= {*links(path)}


@pytest.fixture
def numbers(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("page_numbers")


@pytest.mark.parametrize(
    "path",
    sorted((DOCS / "results").glob("*.md")),
    ids=lambda p: p.stem,
)
def test_numbers_of_results_are_not_typed(path):
    """A table names a file instead: docs/number_tables.py."""
    rows = re.findall(r"^\|.*\|$", prose(path), re.M)
    assert [r for r in rows if re.search(r"\d\.\d|±", r)] == []


def test_no_page_has_a_typed_measurement(numbers):
    """`python docs/page_numbers.py` counts both kinds."""
    found = {str(p): numbers.typed(p) for p in numbers.PAGES}
    assert {page: v for page, v in found.items() if v} == {}


def test_a_typed_measurement_is_found(numbers, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "It reaches 97.7 % (`98.1 %`) or 8.5 % at epsilon 0.5 on Python 3.12, "
        "ahead by 3 points,\nin 0.7 ms; [20 % of](x93.1.md) version 0.11.2."
    )
    assert numbers.typed(page) == ["97.7", "8.5", "3", "0.7"]


def test_the_numbers_of_the_readme(numbers):
    """It is read where nothing makes tables."""
    readme = (ROOT / "README.md").read_text("utf-8")
    rows = [*numbers.readme_rows()]
    assert len(rows) == 4
    for method, cells in rows:
        assert f"{' / '.join(cells)} %" in readme, method


def rivals_of(path):
    """Settings of DP-SGD in a stored file of comparisons, tables or
    experiments; small CNNs have a search of their own."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content = content.get("notes", []) + content.get("rows", [])
    for row in content:
        if row.get("series") == "dp_sgd":
            yield row
        elif re.match("(?i)dp.(sgd|adam)", row.get("method", "")):
            yield row["settings"]


def test_stored_rivals_follow_the_one_rule():
    """docs/dp_sgd.md says it; an older grid once made our lead."""
    results = DOCS / "results"
    paths = [results / "tables.json", *results.rglob("summary.json")]
    found = [(p, s) for p in paths for s in rivals_of(p)]
    assert len({p for p, _ in found}) > 10
    for path, settings in found:
        assert settings.get("steps") in rival.STEPS, path
        assert settings.get("momentum", 0.9) == 0.9, path
        factor = math.log(settings["learning_rate"], 4)
        assert settings.get("optimizer") == "adam" or factor == round(factor)


@pytest.fixture
def stored(tmp_path):
    rows = [
        {"way": way, "epsilon": float(epsilon), "hits": hits}
        for way, epsilon, hits in [
            ("a", 1, [0.5, 0.75]),
            ("a", 2.5, [0.875]),
            ("b", 1, [0.25]),
        ]
    ]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    nested = {"x y": {"n": 1200, "ms": 3}, "z": {"n": 2, "ms": 4}}
    (tmp_path / "nested.json").write_text(json.dumps(nested))
    return tmp_path


def test_a_table_is_made_of_stored_numbers(tables, stored):
    page = """
A
```{numbers} list.json
head: way
rows: way
columns: epsilon = 1, 2.5
value: percent(hits)
bold: most

b: the *other*
a
```
B
```{numbers} nested.json
records: [{"what": key, **value}
  for key, value in file.items()]
where: n > 1
rows: what
n = n[0]
ms, times two = number(2 * ms, digits=2)
```
"""
    assert (
        tables.expand(page, stored)
        == """
A
| way | 1 | 2.5 |
| --- | --- | --- |
| the *other* | 25.0 | - |
| a | **62.5\u00a0±\u00a017.7** | **87.5** |
B
|  | n | ms, times two |
| --- | --- | --- |
| x y | 1,200 | 6.00 |
| z | 2 | 8.00 |
"""
    )


@pytest.mark.parametrize(
    "file, text, said",
    [
        ("no.json", "rows: way\nx = number(hits)", "no file 'no.json'"),
        ("list.json", "rows: wayy\nx = number(hits)", "'wayy' is not defined"),
        ("list.json", "rows: way\nx = number(hit)", "'hit' is not defined"),
        ("list.json", "rows: way\nx = number(hits)\n\nc: d", "row 'c'"),
        (
            "list.json",
            "rows: way\ncolumns: epsilon = 1, 2\nvalue: number(hits)",
            "column '2'",
        ),
        ("list.json", "rows: way\nhits", "Neither an option"),
    ],
)
def test_a_table_of_what_is_not_there_is_an_error(
    tables, stored, file, text, said
):
    with pytest.raises((ValueError, NameError), match=said):
        tables.table(file, text, stored)


# Sentences -------------------------------------------------------------------


@pytest.fixture
def page_words(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("page_words")


def test_sentences_are_short(page_words):
    """22 words on average; `python docs/page_words.py` lists them."""
    page = "# A heading\n\nOne two. `code of four words` [a b](c.md).\n"
    page += "\n| a | table |\n\n* Three\n  words here\n* Two words\n"
    page += "\n```python\nno_sentence = 1\n```\n"
    assert page_words.sentences(page) == [2, 3, 3, 2]
    for path in page_words.PAGES:
        found = page_words.sentences(path.read_text("utf-8"))
        assert sum(found) <= 22 * len(found), path


# Docstrings as pages ---------------------------------------------------------


@pytest.fixture
def translate(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("markdown_docstrings").translate


@pytest.mark.parametrize(
    "markdown, expected",
    [
        (["`x` and `y z`."], ["``x`` and ``y z``."]),
        (["Several `Bound`s."], [r"Several ``Bound``\ s."]),
        (["``x`` stays."], ["``x`` stays."]),
        (["`a` over", "`two", "lines`."], ["``a`` over", "``two lines``."]),
        (["|x| is `|x|`"], [r"\|x\| is ``|x|``"]),
        (
            ["    a, b,", "        c: what."],
            ["    a, b, c: what."],
        ),
        (
            ["```python", "f(`x`)", "", "y", "```", "`z`"],
            ["", ".. code-block:: python", "", "   f(`x`)", "", "   y", ""]
            + ["``z``"],
        ),
        ([">>> `x|`", "|1|", "", "|x|"], [">>> `x|`", "|1|", "", r"\|x\|"]),
    ],
)
def test_docstrings_are_translated(translate, markdown, expected):
    assert translate(markdown) == expected


# With Sphinx -----------------------------------------------------------------


@pytest.mark.full
def test_the_site_is_built_without_a_warning(tmp_path):
    for package in ("sphinx", "myst_parser", "furo", "sphinx-mathjax-offline"):
        pytest.importorskip(package)
    source = tmp_path / "copy" / "docs"
    shutil.copytree(ROOT, source.parent, ignore=_left_out)
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"]
        + [str(source), str(tmp_path / "site")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    site = tmp_path / "site"
    # Mathematics is handed to MathJax, which is part of the site.
    proof = (site / "proofs" / "cross_entropy.html").read_text("utf-8")
    assert proof.count('class="math') > 50 and "$h" not in proof
    (script,) = re.findall(r'src="([^"]*mathjax[^"]*\.js)[^"]*"', proof)
    assert (site / "proofs" / script).exists()
    layers = (site / "api" / "layers.html").read_text("utf-8")
    assert 'id="keras_fm.layers.PrivateDense"' in layers
    assert "feature_bound" in layers and "*args" not in layers


def _left_out(folder, names):
    """What the site is not made of."""
    if pathlib.Path(folder) != ROOT:
        return {"__pycache__", "_build"} & set(names)
    kept = {"docs", "keras_fm", "examples"}
    return {n for n in names if n not in kept and not n.endswith(".md")}
