"""What the pages show works: their code runs, their commands are commands."""

import ast
import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import re

import keras
import pages
import pytest
from absl import flags
from pages import DOCS, PAGES, ROOT
from test_docs import symbols

import keras_fm as fm
from keras_fm.lab import cli, commands

pytestmark = [
    pytest.mark.once,
    pytest.mark.optimised,
    pytest.mark.tensorflow,
]

SCRIPT = r"python3? ((?:benchmarks|docs|examples)/\S+?\.py)([^\n`#]*)"
FOLDERS = (
    "keras_fm|tests|benchmarks|examples|kernel|papers|training|core|lab|heads"
    "|per_example|preprocessing"
)
public = functools.cache(symbols)
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
    heads = (
        "Privacy plan|proven|means|budget|neighbours|unit|record|covered|"
        "uncovered"
    )
    shown = re.findall(
        rf"^    ((?:{heads}):?.*?)(?: \.\.\.)?$",
        QUICKSTART.read_text("utf-8"),
        re.M,
    )
    assert len(shown) == 9
    for line in shown:
        assert line in printed
    assert (tmp_path / "digits_release.npz").exists()
    with pytest.raises(fm.BudgetExceededError):
        pages.run(QUICKSTART)


# Names within a line ---------------------------------------------------------


def spans(text):
    """Code within lines: `[words]`."""
    text = re.sub(r"^( *)```[^\n`]*\n.*?^\1```", "", text, flags=re.M | re.S)
    found = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    return [" ".join(span.split()) for span in found]


def wrong_name(span):
    """What a span names and is not there: a file, a name, an argument."""
    for file in re.findall(rf"^((?:{FOLDERS})/[\w./-]+)$", span):
        if not any((top / file).exists() for top in (ROOT, ROOT / "keras_fm")):
            return file
    for dotted in re.findall(r"^(?:keras_fm|fm)((?:\.\w+)+)(?:$|\()", span):
        try:
            pkgutil.resolve_name(f"keras_fm{dotted}")
        except (AttributeError, ImportError):
            if not in_an_extra(dotted):
                return dotted
    try:
        return wrong_argument(re.sub(r"\.\.\.,? ?", "", span))
    except SyntaxError:
        return None


def in_an_extra(dotted):
    """Whether a file that cannot be imported without its extra defines it."""
    *folders, name = dotted.strip(".").split(".")
    file = ROOT.joinpath("keras_fm", *folders).with_suffix(".py")
    return file.exists() and any(
        getattr(node, "name", None) == name
        for node in ast.parse(file.read_text(encoding="utf-8")).body
    )


def wrong_argument(code):
    """The first argument that a public callable does not have."""
    for call in ast.walk(ast.parse(code)):
        if isinstance(call, ast.Call):
            given = {k.arg for k in call.keywords} - {None}
            called = ast.unparse(call.func)
            name = called.rpartition(".")[2]
            # Whose method another name is cannot be told.
            if not (name[:1].isupper() or called.startswith("fm.")):
                continue
            if given and not any(given <= of for of in arguments(name)):
                return f"{name}: {given}"


@functools.cache
def arguments(name):
    """Names of arguments, of each public callable of that name."""
    found = [v for k, v in public().items() if k.endswith(f".{name}")]
    return [_arguments(v) for v in found if callable(v)] or [Everything()]


def _arguments(called):
    if not inspect.isclass(called):
        return set(inspect.signature(called).parameters)
    # What a class hands on to those that it derives from, too.
    makers = [
        vars(c)["__init__"] for c in called.__mro__ if "__init__" in vars(c)
    ]
    return set().union(*(inspect.signature(m).parameters for m in makers))


class Everything(set):
    """Of what is not ours nothing is known."""

    def __ge__(self, other):
        return True


def test_what_a_line_names_is_there():
    wrong = {
        f"{pages.name(path)}: {span}": found
        for path in PAGES
        if path.name != "CHANGELOG.md"
        for span in spans(path.read_text(encoding="utf-8"))
        if (found := wrong_name(span))
    }
    assert wrong == {}


def test_a_wrong_name_is_found():
    assert wrong_name("keras_fm/lab/nothing.py")
    assert wrong_name("fm.layers.PrivateDens(10)")
    assert wrong_name("keras_fm.beam.Sum")
    assert not wrong_name("keras_fm.beam.SumStatistics")
    assert wrong_name("PrivateDense(10, round=fm.Rounds(rounds=8))")
    assert wrong_name("fm.Rounds(read=8)")
    assert not wrong_name("PrivateDense(10, rounds=fm.Rounds(rounds=8), ...)")
    assert not wrong_name("keras.layers.Dense(10, anything=3)")


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
        cli._parse(command, mine)
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
