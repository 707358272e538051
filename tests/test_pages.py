"""What the pages show works: their code runs, their commands are commands."""

import importlib
import importlib.metadata
import re

import keras
import pages
import pytest
from absl import flags
from pages import DOCS, PAGES, ROOT

import keras_fm as fm
from keras_fm.lab import cli, commands

SCRIPT = r"python3? ((?:benchmarks|docs|examples)/\S+?\.py)([^\n`#]*)"
WITH_CODE = [path for path in PAGES if pages.blocks(path)]
QUICKSTART = DOCS / "quickstart.md"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty folder, and figures that are drawn for nobody."""
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.setattr(pyplot, "show", lambda: None)
    monkeypatch.chdir(tmp_path)
    # A new session, as a reader has: it counts names from the start.
    keras.utils.clear_session()
    yield pyplot
    pyplot.close("all")


@pytest.mark.full
@pytest.mark.parametrize(
    "path", [p for p in WITH_CODE if p != QUICKSTART], ids=pages.name
)
def test_the_code_of_a_page_runs(path, empty, capsys):
    """All blocks, in one process and on one backend; the scripts of
    examples/ do the same on every backend."""
    given = pages.GIVEN.get(pages.name(path), pages.Given())
    for distribution in given.needs:
        try:
            importlib.metadata.distribution(distribution)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"needs {distribution}")
    left_out = pages.run(path)
    if path.parent.name == "tutorials":
        page = path.read_text(encoding="utf-8")
        assert len(empty.get_fignums()) == page.count("![")
    text, times = given.prints
    if text:
        assert capsys.readouterr().out.count(text) == times
    if left_out:
        pytest.skip(f"but for blocks that need {left_out}")


def test_what_is_given_is_given_to_a_page():
    assert set(pages.GIVEN) <= {pages.name(path) for path in WITH_CODE}
    # A tutorial is a notebook, and a notebook has nothing but itself.
    for name, given in pages.GIVEN.items():
        assert not (name.startswith("docs/tutorials") and given.before)
    assert not pages.GIVEN.get("docs/quickstart")
    assert len(pages.blocks(ROOT / "README.md")[0][1].splitlines()) <= 16


def test_code_is_found_and_fails_at_its_line(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(
        "A\n```python\nx = 1\n```\n* B\n\n  ```python\n  y = x + 1\n"
        "  z = 1 / (2 - y)\n  ```\n```bash\nkeras-fm a \\\n  --b  # c\n"
        "```\n| `keras-fm d\ne` |\n\n    keras-fm f\n"
    )
    assert pages.blocks(page) == [
        (3, "x = 1\n"),
        (8, "y = x + 1\nz = 1 / (2 - y)\n"),
    ]
    assert [a for _, a in pages.commands(page)] == [
        ["a", "--b"],
        ["d", "e"],
        ["f"],
    ]
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with pytest.raises(ZeroDivisionError) as error:
        pages.run(page)
    assert error.traceback[-1].lineno == 8
    monkeypatch.setitem(pages.GIVEN, "page", pages.Given(smaller={"no": ""}))
    page.write_text("```python\nx = 1\n```\n")
    with pytest.raises(AssertionError, match="not in the page"):
        pages.run(page)


@pytest.mark.full
def test_what_the_quickstart_prints(empty, capsys, tmp_path):
    """Its lines of output are those of its code, and a second run is refused,
    as it says."""
    pages.run(QUICKSTART)
    printed = capsys.readouterr().out
    heads = "Privacy plan|proven|budget|neighbours|unit|covered|uncovered"
    shown = re.findall(
        rf"^    ((?:{heads}):?.*?)(?: \.\.\.)?$",
        QUICKSTART.read_text("utf-8"),
        re.M,
    )
    assert len(shown) == 7
    for line in shown:
        assert line in printed
    assert (tmp_path / "digits_release.npz").exists()
    with pytest.raises(fm.BudgetExceededError):
        pages.run(QUICKSTART)


# Commands --------------------------------------------------------------------


def refused(arguments):
    """What a command says to arguments, before it does anything."""
    if not arguments or arguments[0] == "--version":
        return None
    command = commands.COMMANDS.get(arguments[0])
    if command is None:
        return f"no command {arguments[0]!r}"
    # A word in capitals stands for the reader's own.
    mine = [a for a in arguments[1:] if not a.isupper()]
    try:
        values, rest = cli._parse(command, mine)
        if hasattr(command, "check") and not values.help:
            command.check(values, rest)
    except (flags.Error, ValueError) as e:
        # The reader's own files are not here.
        return None if "no such file" in str(e) else str(e)


def test_the_commands_of_the_pages_are_commands(monkeypatch):
    monkeypatch.chdir(ROOT)
    wrong = {
        f"{pages.name(path)}:{line}": said
        for path in PAGES
        for line, arguments in pages.commands(path)
        if (said := refused(arguments))
    }
    assert wrong == {}


def test_a_wrong_command_is_found():
    assert "no command" in refused(["compar"])
    assert "seed" in refused(["compare", "--seedz=3"])
    assert "magic" in refused(["compare", "--methods=magic"])
    assert "mist" in refused(["reproduce", "adlm:mist"])
    assert refused(["compare", "--dataset=mine.npz"]) is None
    assert refused(["reproduce", "NAME"]) is None


def test_the_scripts_of_the_pages_are_scripts():
    """`python benchmarks/NAME.py --flag`: both are there."""
    found = set()
    for path in PAGES:
        page = path.read_text(encoding="utf-8").replace("\\\n", " ")
        # What was is told in the change log.
        if path.name != "CHANGELOG.md":
            found |= set(re.findall(SCRIPT, page))
    assert len(found) > 20
    for script, rest in found:
        source = (ROOT / script).read_text(encoding="utf-8")
        for flag in re.findall(r"--([\w-]+)", rest):
            spelled = re.sub("[-_]", "[-_]", flag)
            assert re.search(rf"\b{spelled}\b", source), (script, flag)
