"""The pages: every public symbol is there, every link leads somewhere.

All but the last tests need no Sphinx.
"""

import importlib
import inspect
import json
import os
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

API = DOCS / "api"

# Why a public name has no example of its own.
WITHOUT_EXAMPLE = {
    "made by a function that has one, and only read": {
        "keras_fm.BudgetSplit",
        "keras_fm.LedgerEntry",
        "keras_fm.Release",
        "keras_fm.auditing.AuditReport",
        "keras_fm.auditing.Claim",
        "keras_fm.auditing.CoinRunBound",
        "keras_fm.auditing.ManyRunBound",
        "keras_fm.auditing.ObjectiveAudit",
        "keras_fm.auditing.OneRunBound",
        "keras_fm.auditing.PlantedCanaries",
        "keras_fm.auditing.SeedRun",
        "keras_fm.auditing.ShuffledBound",
        "keras_fm.composition.Composed",
        "keras_fm.datasets.Windows",
        "keras_fm.evaluation.Interval",
        "keras_fm.experiments.Outcome",
        "keras_fm.html_report.Run",
        "keras_fm.models.Autoencoder",
        "keras_fm.polynomials.ErrorBounds",
        "keras_fm.polynomials.PiecewiseLinear",
        "keras_fm.polynomials.Polynomial",
        "keras_fm.reproductions.Measured",
        "keras_fm.reproductions.Outcome",
        "keras_fm.reproductions.facts.Fact",
        "keras_fm.sampling.SamplingPlan",
    },
    "an error, or a choice of few words": {
        "keras_fm.BudgetExceededError",
        "keras_fm.Neighbours",
        "keras_fm.experiments.RunFailedError",
        "keras_fm.reproductions.MissingDataError",
        "keras_fm.reproductions.UnknownExperimentError",
    },
    "the example of the module, or of the object it belongs to, shows it": {
        "keras_fm.auditing.audit_objective",
        "keras_fm.auditing.record_difference",
        "keras_fm.auditing.worst_pair",
        "keras_fm.composition.advanced",
        "keras_fm.composition.basic",
        "keras_fm.composition.check_methods",
        "keras_fm.composition.kairouz",
        "keras_fm.composition.moments",
        "keras_fm.composition.optimal",
        "keras_fm.composition.pld",
        "keras_fm.composition.plot",
        "keras_fm.composition.renyi",
        "keras_fm.composition.series",
        "keras_fm.composition.survey_advanced",
        "keras_fm.composition.survey_basic",
        "keras_fm.composition.survey_sampling",
        "keras_fm.composition.table",
        "keras_fm.composition.title",
        "keras_fm.composition.write",
        "keras_fm.experiments.run",
        "keras_fm.experiments.summarise",
        "keras_fm.experiments.table",
        "keras_fm.html_report.read",
        "keras_fm.html_report.render",
        "keras_fm.html_report.write",
        "keras_fm.models.EnergyModel",
        "keras_fm.queries.QuadraticQuery",
        "keras_fm.relevance.plot",
        "keras_fm.reproductions.catalogue_table",
        "keras_fm.reproductions.table",
    },
    "a part that others are built of": {
        "keras_fm.datasets.health_network.counted_friendships",
        "keras_fm.datasets.health_network.symmetrised",
        "keras_fm.datasets.health_simulator.SimulatorParameters",
        "keras_fm.datasets.health_simulator.to_weekly",
        "keras_fm.features.check",
        "keras_fm.features.extract",
        "keras_fm.features.scattering",
        "keras_fm.features.stroke_map",
        "keras_fm.filters.centred_moments",
        "keras_fm.filters.descend",
        "keras_fm.filters.learn",
        "keras_fm.filters.principal",
        "keras_fm.mechanisms.GaussianMechanism",
        "keras_fm.mechanisms.LaplaceMechanism",
        "keras_fm.mechanisms.Mechanism",
        "keras_fm.mechanisms.NoiseSource",
        "keras_fm.mechanisms.PermuteAndFlip",
        "keras_fm.mechanisms.PureMechanism",
        "keras_fm.mechanisms.SampledGaussianMechanism",
        "keras_fm.mechanisms.compose_epsilon",
        "keras_fm.mechanisms.epsilon_with_overflow",
        "keras_fm.mechanisms.from_config",
        "keras_fm.mechanisms.transform_error",
        "keras_fm.polynomials.softplus",
        "keras_fm.reproductions.Axis",
        "keras_fm.reproductions.Experiment",
        "keras_fm.reproductions.Job",
        "keras_fm.reproductions.Series",
        "keras_fm.reproductions.facts.check",
        "keras_fm.reproductions.facts.papers",
        "keras_fm.reproductions.facts.sources",
        "keras_fm.sampling.check_neighbours",
        "keras_fm.sampling.expected_batch_size",
        "keras_fm.sampling.overflow_bound",
        "keras_fm.sampling.poisson_sample",
    },
}
REASONED = set().union(*WITHOUT_EXAMPLE.values())


# The API reference -----------------------------------------------------------


def namespaces():
    """Public modules by name, and modules that one of them exports."""
    found = {"keras_fm": fm}
    for name in public_names.MODULES:
        # The name that `queries` had in version 0.1.
        if name != "objectives":
            found[f"keras_fm.{name}"] = getattr(fm, name)
    for module in list(found.values())[1:]:
        for name in getattr(module, "__all__", ()):
            if isinstance(value := getattr(module, name), types.ModuleType):
                inner = value.__name__.replace("lab.reproduce", "reproductions")
                found[inner] = value
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


def test_the_namespaces_are_found():
    found = namespaces()
    assert {"keras_fm", "keras_fm.layers", "keras_fm.html_report"} <= set(found)
    assert "keras_fm.datasets.pen_strokes" in found
    assert "keras_fm.mechanisms" in found
    names = symbols()
    assert {"keras_fm.audit", "keras_fm.mechanisms.from_config"} <= set(names)
    assert "keras_fm.features.np" not in names


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


def test_every_page_of_the_reference_is_in_its_contents():
    contents = (API / "index.rst").read_text(encoding="utf-8").split()
    for path in API.glob("*.rst"):
        assert path.stem == "index" or path.stem in contents, path.name


def test_every_public_symbol_has_a_docstring_and_an_example():
    lacking, stale, names = [], [], symbols()
    reasoned = {id(names[name]) for name in REASONED if name in names}
    for name, value in names.items():
        if not callable(value):
            continue
        text = inspect.getdoc(value) if value.__doc__ else None
        assert text, f"{name} has no docstring"
        shown = "Example:" in text or "\n>>> " in text
        if not shown and id(value) not in reasoned:
            lacking.append(name)
        if shown and name in REASONED:
            stale.append(name)
    assert lacking == [], "an `Example:`, or a reason in WITHOUT_EXAMPLE"
    assert stale == [], "these have an example now: remove the reason"
    assert REASONED <= set(names), "reasons for what is not public"


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


def test_the_links_are_seen():
    assert "guarantees.md" in {t for p in PAGES for t in links(p)}
    assert "docs/guarantees.md" in links(ROOT / "README.md")


def words_of(page):
    """The words of a page: no code, tables, pictures and addresses."""
    for what in (
        r"^```.*?^```",
        r"<!--.*?-->",
        r"^\|.*?$",
        r"!\[[^\]]*\]\([^)]*\)",
        r"(?<=\])\([^)]*\)",
    ):
        page = re.sub(what, "", page, flags=re.M | re.S)
    return re.findall(r"\w[\w'.%-]*", page)


def test_the_readme_is_short_and_explains_its_words():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert 150 < len(words_of(readme)) < 350
    # On the first screen, before anything else uses them.
    for word in ("**epsilon**", "**One release.**", "**functional mechanism**"):
        assert word in readme
        bare = word.strip("*.").lower()
        assert re.search(rf"\b{bare}\b", readme.lower()).start() >= (
            readme.index(word)
        )


def test_the_first_page_leads_to_each_kind_of_data():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for words in (
        "my images",
        "my table",
        "my text",
        "my time series of people",
        "check a paper's claim",
    ):
        assert words in index.split("toctree")[0]


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


@pytest.mark.full
def test_the_quickstart_runs_as_a_notebook(notebooks, tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    content = nbformat.read(notebooks.path("quickstart"), as_version=4)
    nbformat.validate(content)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(content, timeout=300, resources=resources).execute()
    printed = "".join(
        output.get("text", "")
        for cell in content.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "proven:     (epsilon = 1.99998, delta = 1e-05)" in printed


def test_every_page_is_named_in_the_contents():
    """Those of docs/ in index.md, proofs in proofs/index.md."""
    contents = (DOCS / "index.md").read_text(encoding="utf-8").splitlines()
    assert {f"tutorials/{name}" for name in TUTORIALS} <= set(contents)
    for folder, index in ((DOCS, "index.md"), (DOCS / "proofs", "index.md")):
        lines = (folder / index).read_text(encoding="utf-8").splitlines()
        for path in folder.glob("*.md"):
            assert path.name == index or path.stem in lines, path


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
