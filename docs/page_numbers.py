"""Counts the numbers of the pages: made of stored files, or typed.

    python docs/page_numbers.py

*Stored* are those in the cells of tables that are made of files which a page's
command writes (number_tables.py); a test compares the README's with such a
table. *Typed* are all other numbers that look measured: a decimal
number with a unit, two digits before a point, or a number of points. Such a
number cannot be printed again by reading the page's files; none is allowed.
"""

import re

import number_tables
from page_words import PAGES

_CODE = re.compile(r"(?ms)^( *)```.*?^\1```\s*$|`[^`]*`|\]\([^)]*\)")
_MEASURED = re.compile(
    r"(?<![\w.,])-?(?:\d+\.\d+(?=\s(?:%|ms|s|seconds|MiB|GB)(?!\w))"
    r"|\d[\d.,]*(?=\spoints?\b)|\d\d\.\d+(?![\w.]))"
)
_NUMBER = re.compile(r"\d[\d.,]*")
_DOCS = PAGES[0].parent / "docs"


_README = (
    "side_by_side/usps_heads/summary.json",
    """rows: method
columns: epsilon = 0.25, 1, 8
value: percent(accuracy, 0)
""",
)


def readme_rows():
    """Rows of the README's table, which nothing makes there: names of methods
    and numbers."""
    made = number_tables.table(*_README, _DOCS / "results")
    for row in made.splitlines()[2:]:
        _, method, *cells, _ = row.split("|")
        yield method.strip(), [cell.strip() for cell in cells]


def typed(path):
    """Numbers of a page that look measured and come from no file."""
    text = _CODE.sub("", path.read_text(encoding="utf-8"))
    known = []
    if path.name == "README.md" and path.parent == _DOCS.parent:
        known = [number for _, row in readme_rows() for number in row]
    return [n for n in _MEASURED.findall(text) if n not in known]


def stored(path):
    """Numbers in the tables that a page makes of files."""
    text = path.read_text(encoding="utf-8")
    return [
        number
        for _, files, table in number_tables.directives(text)
        for row in number_tables.table(files, table, path.parent).split("\n")
        for cell in row.split("|")[2:]
        for number in _NUMBER.findall(cell)
    ]


def main():
    counts = {p: (len(stored(p)), len(typed(p))) for p in PAGES}
    for path, (files, hand) in counts.items():
        if files or hand:
            name = path.relative_to(_DOCS.parent).as_posix()
            print(f"{name:36} {files:6,} {hand:4}")
    print(f"{'':36} {sum(n for n, _ in counts.values()):6,}", end="")
    print(f" {sum(n for _, n in counts.values()):4}")


if __name__ == "__main__":
    main()
