"""The page that lists what the papers print: every row shows what it says."""

import ast
import dataclasses
import functools
import json
import re
from pathlib import Path

import pytest

from keras_fm.lab import reproduce as reproductions
from keras_fm.lab.reproduce import facts

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "paper_differences.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| printed |"))
]


@functools.cache
def named_tests(path):
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


def missing(shown):
    """What a cell names in code that is neither a test nor an experiment."""
    words = re.findall("`([^`]+)`", shown)
    assert words and re.sub("`[^`]+`|[, ]", "", shown) == "", shown
    for word in words:
        path, is_test, name = word.partition("::")
        if not is_test:
            reproductions.find([word])
        elif name not in named_tests(path):
            yield word


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_says_how_and_names_what_shows_it(row):
    what, here, shown = row
    # A difference has its reason beside it.
    assert what and re.match("as printed\\b|(differs|cannot be): .", here), here
    assert list(missing(shown)) == []


def test_every_paper_and_every_experiment_has_rows():
    assert len(re.findall("^## ", PAGE, re.M)) == len(facts.papers())
    cells = " ".join(row[2] for row in ROWS)
    named = [w for w in re.findall("`([^`]+)`", cells) if "::" not in w]
    shown = {e.name for e in reproductions.find(named)}
    assert shown == {e.name for e in reproductions.EXPERIMENTS}


def test_stored_results_quote_the_papers_as_they_are_quoted_now():
    """What a run kept of a number's place went stale: most said that it is not
    recorded, and one that the paper has other batches."""
    now = {f.id: dataclasses.asdict(f) for f in facts.load()}
    paths = (ROOT / "docs" / "results" / "reproduce").glob("*/summary.json")
    kept = [f for p in paths for f in json.loads(p.read_text())["facts"]]
    assert len(kept) > 50
    for fact in kept:
        quoted = json.loads(json.dumps(now[fact["id"]]))
        assert fact == {k: v for k, v in quoted.items() if v != ""}


def test_what_does_not_exist_is_found():
    assert list(missing("`papers/test_claims.py::test_of_nothing`"))
    with pytest.raises(reproductions.UnknownExperimentError):
        list(missing("`adlm:figure-99`"))
