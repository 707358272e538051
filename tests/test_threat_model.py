"""The threat model's table: every row says what happens and who holds it.

A row whose test was renamed or deleted, or whose message nobody prints any
more, promises what nobody looks after.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "threat_model.md").read_text()
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
QUOTED = re.compile(r'(?<!`)"([^"]+)"(?!`)')


def rows_of(page):
    """Cells of every row of the table of mistakes, but its head."""
    table = page.split("\n## Ordinary mistakes\n")[1].split("\n## ")[0]
    lines = [v for v in table.splitlines() if v.startswith("|")]
    return [[cell.strip() for cell in v.split("|")[1:-1]] for v in lines[2:]]


@functools.cache
def names_in(path):
    """Names of the tests of a file, which is read and not run."""
    if not path.is_file():
        return frozenset()
    found = ast.parse(path.read_text()).body
    return frozenset(v.name for v in found if isinstance(v, ast.FunctionDef))


@functools.cache
def texts_of_the_package():
    """Every text that the package may print, in one."""
    found = []
    for path in sorted((ROOT / "keras_fm").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def faults_of(row):
    """What is wrong with a row, in words."""
    if len(row) != 3 or not all(row):
        return ["three cells are needed"]
    named = NAMED.findall(row[2])
    faults = [] if named else ["no test is named"]
    faults += [
        f"{file} has no {test}"
        for file, test in named
        if test not in names_in(TESTS / file)
    ]
    if NAMED.sub("", row[2]).strip():
        faults.append("the last cell holds more than tests")
    return faults + [
        f"no message has {words!r}"
        for words in QUOTED.findall(row[1])
        if words not in texts_of_the_package()
    ]


ROWS = rows_of(PAGE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_whole(row):
    assert not faults_of(row)


def test_mistakes_are_named_once():
    assert len(ROWS) > 30
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_a_broken_row_is_found():
    mistake, what, test = ROWS[0]
    assert faults_of([mistake, what])
    assert faults_of([mistake, "", test])
    for other in ("by hand", "`test_docs.py`", test.replace("must", "may")):
        assert faults_of([mistake, what, other])
    assert faults_of([mistake, 'refused: "in words that nobody wrote"', test])
