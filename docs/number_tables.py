"""Tables of numbers are made from stored JSON when the site is built.

In the place of a table a page says which files, rows and columns it shows:

    ```{numbers} digits/summary.json
    rows: method
    columns: epsilon = 0.5, 2, 8
    value: percent(accuracy, spread)
    bold: most

    rounds_proven: 80 rounds
    proven: one release
    ```

* The files are relative to the page; `*` stands for any name.
* `records:` makes a list of dicts of the content, `file`. Left out: the content
  if it is a list, or what it holds under "rows" or "points".
* `where:` is what a record must fulfil.
* `rows:` is what tells the rows apart. Below an empty line stand its values,
  with their labels, in their order; without these all values are shown.
  `head:` is the title of the first column.
* `columns:` is what tells the columns apart, then its values, and `value:` is
  what a cell shows. A row whose records have no such value shows the same in
  all columns. Lines `title = expression` are further columns, of all records
  of a row.
* `bold: most` (or `least`) marks the best cell of a column, `among:` those
  records.

Expressions are Python. In `where`, `rows` and `columns` a field is its value in
one record, `row`. In cells it is an array of all values of the cell's records;
a list in a record is several values. `field(name)` is that of a field whose
name is not a word, `these` are the records. `source` is a record's file.
"""

import json
import pathlib
import re

import numpy as np

_FENCE = re.compile(r"^( *)```\{numbers\} (.*?)\n(.*?)^\1```$", re.M | re.S)
_OPTIONS = "records where rows head columns value bold among".split()
_OPTION = re.compile(rf"({'|'.join(_OPTIONS)}): (.*)", re.S)

NOTHING = "-"


def number(values, spread=None, digits=1):
    """A mean, with its standard deviation (n - 1) if there are several.

    No-break spaces keep both on one line of a narrow screen."""
    values = np.asarray(values, float).ravel()
    if not values.size:
        return NOTHING
    if spread is None and values.size > 1:
        spread = values.std(ddof=1)
    off = 0.0 if spread is None else np.max(spread)
    mean = f"{values.mean():,.{digits}f}"
    return f"{mean}\u00a0±\u00a0{off:.{digits}f}" if off else mean


def percent(values, spread=None, digits=1):
    """The same of shares, in %."""
    off = None if spread is None else 100 * np.asarray(spread, float)
    return number(100 * np.asarray(values, float), off, digits)


def median(values, digits=1):
    """The middle value."""
    return f"{np.median(values):,.{digits}f}" if len(values) else NOTHING


def span(values, digits=1):
    """The least and the largest value."""
    if not len(values):
        return NOTHING
    least, most = (f"{f(values):,.{digits}f}" for f in (np.min, np.max))
    return least if least == most else f"{least} to {most}"


def strong(text, when):
    """The text, bold if all of that holds."""
    return f"**{text}**" if np.all(when) else text


_HELPERS = {f.__name__: f for f in (number, percent, median, span, strong)}
_HELPERS["np"] = np


def files(argument, folder):
    """The JSON files that a table is made of."""
    found = [p for name in argument.split() for p in _named(folder, name)]
    return list(dict.fromkeys(found))


def _named(folder, name):
    found = sorted(pathlib.Path(folder).glob(name))
    if not found:
        raise ValueError(f"There is no file {name!r} in {str(folder)!r}.")
    return found


def table(argument, text, folder):
    """One table, in Markdown."""
    options, columns, labels = _parse(text)
    records = []
    for path in files(argument, folder):
        source = path.relative_to(folder).as_posix()
        for record in _records(path, options.get("records")):
            records.append({"source": source, **record})
    empty = dict.fromkeys(name for record in records for name in record)
    where, rows = options.get("where", "True"), options["rows"]
    by, _, values = options.get("columns", "None").partition(" = ")
    values = [value for value in values.split(", ") if value]
    cells = {}
    for record in records:
        names = {**_HELPERS, **empty, **record, "row": record}
        if eval(where, names):
            key, part = (_key(eval(e, names)) for e in (rows, by))
            for column in [part, *columns]:
                cells.setdefault((key, column), []).append(record)
    for key in {key for key, _ in cells}:
        if not any((key, value) in cells for value in values):
            same = cells.get((key, "None"))
            cells |= {(key, value): same for value in values if same}
    columns = {**dict.fromkeys(values, options.get("value")), **columns}
    if not labels:
        labels = {key: key for key, column in cells if column in columns}
    for key in labels:
        if not any((key, column) in cells for column in columns):
            raise ValueError(f"No record is in the row {key!r}.")
    for column in columns:
        if not any((key, column) in cells for key in labels):
            raise ValueError(f"No record is in the column {column!r}.")
    shown = {
        (key, column): _cell(columns[column], cells.get((key, column)), empty)
        for key in labels
        for column in columns
    }
    if "bold" in options:
        _mark(shown, cells, labels, columns, options)
    lines = [[options.get("head", ""), *columns], ["---"] * (len(columns) + 1)]
    for key, label in labels.items():
        lines.append([label, *(shown[key, column] for column in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _parse(text):
    """Options, expressions of columns by their titles, labels by values."""
    head, _, body = text.partition("\n\n")
    options, columns = {}, {}
    for line in re.sub(r"\n +", " ", head.strip("\n")).splitlines():
        if option := _OPTION.fullmatch(line):
            options[option[1]] = option[2]
        else:
            title, is_column, expression = line.partition(" = ")
            if not is_column:
                raise ValueError(f"Neither an option nor a column: {line!r}")
            columns[title] = expression
    labels = {}
    for line in body.splitlines():
        key, has_label, label = line.partition(": ")
        labels[key] = label if has_label else key
    return options, columns, labels


def _records(path, expression):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        content = [json.loads(line) for line in text.splitlines()]
    else:
        content = json.loads(text)
    if expression:
        return eval(expression, {**_HELPERS, "file": content})
    if isinstance(content, dict):
        return content.get("rows") or content.get("points") or [content]
    return content


def _key(value):
    """A value as a page writes it: 2, not 2.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(expression, records, names):
    if not records:
        return NOTHING

    def field(name):
        found = [r[name] for r in records if r.get(name) is not None]
        if found and isinstance(found[0], list):
            found = [value for values in found for value in values]
        return np.array(found)

    fields = {name: field(name) for name in names}
    given = {**_HELPERS, **fields, "field": field, "these": records}
    value = eval(expression, given)
    return value if isinstance(value, str) else f"{value:,}"


def _mark(shown, cells, labels, columns, options):
    """Bold: the best of a column, and what reads the same."""
    best = {"most": max, "least": min}[options["bold"]]
    among = options.get("among", "True")
    for column in columns:
        found = {}
        for key in labels:
            text = re.match(r"-?[\d,.]+", shown[key, column])
            record = cells.get((key, column), [{}])[0]
            if text and eval(among, {**_HELPERS, **record, "row": record}):
                found[key] = float(text[0].replace(",", ""))
        for key in found:
            if found[key] == best(found.values()):
                shown[key, column] = f"**{shown[key, column]}**"


def directives(text):
    """What a page shows tables of: `[(line, files, text)]`."""
    return [
        (text.count("\n", 0, found.start()) + 1, found[2], found[3])
        for found in _FENCE.finditer(text)
    ]


def expand(text, folder):
    """A page with its tables; `folder` is the page's."""
    return _FENCE.sub(lambda found: table(found[2], found[3], folder), text)


def _read(app, page, source):
    folder = pathlib.Path(app.env.doc2path(page)).parent
    for _, argument, _ in directives(source[0]):
        for path in files(argument, folder):
            app.env.note_dependency(str(path))
    source[0] = expand(source[0], folder)


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
