"""Writes examples/quickstart.ipynb, the quickstart as a notebook.

    python docs/quickstart_notebook.py

Page and notebook are one text: tests/test_docs.py compares them.
"""

import json
import pathlib
import re

_DOCS = pathlib.Path(__file__).resolve().parent
NOTEBOOK = _DOCS.parent / "examples" / "quickstart.ipynb"


def cells():
    """The page as cells: prose, and code that runs.

    Returns:
        list of `(kind, text)`, kind `"markdown"` or `"code"`.
    """
    page = (_DOCS / "quickstart.md").read_text(encoding="utf-8")
    # From the folder of examples, pages are elsewhere.
    page = re.sub(r"\]\((?=[\w/]+\.md)", "](../docs/", page)
    parts = re.split(r"^```python\n(.*?)^```\n", page, flags=re.M | re.S)
    kinds = ["markdown", "code"] * len(parts)
    found = [(kind, part.strip()) for kind, part in zip(kinds, parts)]
    return [(kind, text) for kind, text in found if text]


def notebook():
    """The notebook as the text of its file, without outputs."""
    written = []
    for number, (kind, text) in enumerate(cells()):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        written.append(cell | {"source": text.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python"}
    content = {
        "cells": written,
        "metadata": {"kernelspec": kernel | {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return (
        json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
