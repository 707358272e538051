"""Writes the notebooks of examples/ from pages: one text for both.

    python docs/notebooks.py                 all of them
    python docs/notebooks.py --run audit     and runs one, keeping what it
                                             printed and drew

A page's pictures are those that its notebook drew. tests/test_docs.py compares
pages and notebooks, and runs the code in a smaller form.
"""

import base64
import json
import pathlib
import posixpath
import re
import sys

import number_tables

_DOCS = pathlib.Path(__file__).resolve().parent
_EXAMPLES = _DOCS.parent / "examples"
PAGES = {
    "quickstart": _DOCS / "quickstart.md",
    **{p.stem: p for p in sorted((_DOCS / "tutorials").glob("*.md"))},
}


def path(name):
    """The file of a notebook."""
    return _EXAMPLES / f"{name}.ipynb"


def cells(name):
    """A page as cells: prose, and code that runs.

    Returns:
        list of `(kind, text)`, kind `"markdown"` or `"code"`.
    """
    page = PAGES[name].read_text(encoding="utf-8")
    page = number_tables.expand(page, PAGES[name].parent)
    folder = posixpath.join("../docs", PAGES[name].parent.name)
    if PAGES[name].parent == _DOCS:
        folder = "../docs"

    def moved(match):
        """From the folder of examples, pages are elsewhere."""
        return f"]({posixpath.normpath(posixpath.join(folder, match[1]))}"

    # What the code draws is below its cell: no picture of it beside that.
    page = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n\n?", "", page, flags=re.M)
    page = re.sub(r"\]\(([\w./]+\.md)", moved, page)
    parts = re.split(r"^```python\n(.*?)^```\n", page, flags=re.M | re.S)
    kinds = ["markdown", "code"] * len(parts)
    found = [(kind, part.strip()) for kind, part in zip(kinds, parts)]
    return [(kind, text) for kind, text in found if text]


def content(name, outputs=()):
    """A notebook as a dict.

    Args:
        name: a key of `PAGES`.
        outputs: what each code cell printed and drew, as nbformat has it.
    """
    outputs = iter(outputs)
    written = []
    for number, (kind, text) in enumerate(cells(name)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        if kind == "code":
            shown = next(outputs, [])
            cell |= {"execution_count": None, "outputs": shown}
        written.append(cell | {"source": text.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python"}
    return {
        "cells": written,
        "metadata": {"kernelspec": kernel | {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def run(name):
    """Runs a notebook; what its code cells printed and drew."""
    import nbclient
    import nbformat

    notebook = nbformat.reads(json.dumps(content(name)), as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(_SMALL_PICTURES))
    nbclient.NotebookClient(notebook, timeout=600).execute()
    code = [c for c in notebook.cells if c.cell_type == "code"][1:]
    return [[o for o in map(_kept, cell.outputs) if o] for cell in code]


_SMALL_PICTURES = "%config InlineBackend.rc = {'figure.dpi': 80}"


def _kept(output):
    """Output without what a machine says about itself."""
    if output.output_type == "stream":
        if output.name != "stdout":
            return None
        lines = [
            line
            for line in output.text.splitlines(keepends=True)
            if not line.startswith("WARNING:tensorflow")
        ]
        if not "".join(lines).strip():
            return None
        return {"name": "stdout", "output_type": "stream", "text": lines}
    data = {
        kind: output.data[kind]
        for kind in ("image/png", "text/plain")
        if kind in output.data
    }
    if "image/png" in data:
        data.pop("text/plain", None)
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def pictures(outputs):
    """The drawings among outputs, PNG, in their order."""
    return [
        base64.b64decode(output["data"]["image/png"])
        for cell in outputs
        for output in cell
        if "image/png" in output.get("data", ())
    ]


def write(name, outputs):
    """Writes a notebook, and the pictures that its page shows."""
    notebook = content(name, outputs)
    text = json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False)
    path(name).write_text(text + "\n", encoding="utf-8")
    for number, png in enumerate(pictures(outputs), start=1):
        suffix = f"_{number}" if number > 1 else ""
        (PAGES[name].parent / f"{name}{suffix}.png").write_bytes(png)


def stored(name):
    """Outputs of the notebook that is there; none if its code has changed."""
    if not path(name).exists():
        return []
    found = json.loads(path(name).read_text(encoding="utf-8"))["cells"]
    code = [c for c in found if c["cell_type"] == "code"]
    sources = ["".join(c["source"]) for c in code]
    if sources != [text for kind, text in cells(name) if kind == "code"]:
        return []
    return [c["outputs"] for c in code]


def main(arguments):
    """Writes all notebooks, after running those that are named."""
    again = arguments[1:] if arguments[:1] == ["--run"] else []
    for name in PAGES:
        write(name, run(name) if name in again else stored(name))


if __name__ == "__main__":
    main(sys.argv[1:])
