"""Tables in files, read with a public schema, and templates of one."""

import csv
import importlib
import json
import os

import numpy as np

from keras_fm.estimators import given_table, table_schema
from keras_fm.estimators.table_columns import TableColumns

_WORDS = """# What is publicly known of the columns of {name}. Write what a code
# book, a law or common sense says; take nothing from the records.
#   age = {{numbers = [18, 90]}}            a range; more numbers are knots
#   work = {{words = ["farm", "office"]}}   all words that there may be
#   income = {{classes = ["low", "high"]}}  what is to be predicted
# A column that is left out is not used.

"""
_NUMBERS = ("int", "uint", "float", "double", "decimal")
_KINDS = (".csv", ".parquet")
_GAPS = ("", "NA", "NaN", "nan", "?")


def is_table(path):
    """Whether a name is that of a table in a file."""
    return str(path).endswith(_KINDS)


def read(path, schema, target=""):
    """The records and labels of a table.

    Args:
        path: of a `.csv` or `.parquet` file.
        schema: path of a schema, see `keras_fm.estimators.table_schema`.
        target: the column of labels; "" if the schema has one only.

    Returns:
        x, y and the list of classes.

    Raises:
        ValueError: if the table does not have the columns, or a value is not
            as the schema says; no message shows one.
    """
    if not schema:
        raise ValueError(
            f"`columns` must be the path of a public schema of {path!r}. "
            f"`keras-fm schema {path}` writes one to fill in."
        )
    known = table_schema.load(schema)
    target = known.target(target)
    columns = {k: v for k, v in known.columns.items() if k != target}
    is_text = path.endswith(".csv")
    cells = (_csv if is_text else _parquet)(path, [*columns, target])
    for i, (name, known_of) in enumerate(columns.items()) if is_text else ():
        if isinstance(known_of, list):
            # Words are what they are called.
            columns[name] = [str(word) for word in known_of]
        else:
            gaps = np.isin(cells[:, i].astype(str), _GAPS)
            cells[gaps, i] = None
    x = TableColumns(columns).encode(cells[:, :-1])
    return x, cells[:, -1], known.classes[target]


def encoded(table, columns):
    """A table in memory as numbers, by `columns` or the path of a schema."""
    made = TableColumns(columns)
    found = made.select(table)
    return made.encode(np.asarray(found, dtype=object))


def _csv(path, names):
    """Text, each cell by itself: what a cell is taken for depends on no other
    row."""
    with open(path, newline="", encoding="utf-8-sig") as f:
        rows = csv.reader(f, skipinitialspace=True)
        places = _places(path, next(rows, []), names)
        found = []
        for row in rows:
            if not row:
                continue
            if len(row) <= max(places):
                raise ValueError(
                    f"{path!r} must have a value for every column in each "
                    "line. At least one line is shorter."
                )
            found.append([row[i].strip() for i in places])
    cells = np.empty((len(found), len(names)), object)
    for i, row in enumerate(found):
        cells[i] = row
    return cells


def _parquet(path, names):
    pandas = _needed("pandas")
    _needed("pyarrow")
    return np.asarray(pandas.read_parquet(path, columns=names), dtype=object)


def _needed(module):
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise ImportError(
            "Parquet needs two packages: pip install pandas pyarrow. "
            f"Received: {e}"
        ) from e


def _places(path, head, names):
    """Where the columns of these names are.

    Raises:
        ValueError: naming those that are missing, or there twice.
    """
    head = [text.strip() for text in head]
    wrong = [n for n in names if head.count(n) != 1]
    if wrong:
        raise ValueError(
            f"{path!r} must have the columns of the schema once. Missing, or "
            f"several: {wrong}"
        )
    return [head.index(n) for n in names]


# A schema to fill in ---------------------------------------------------------


def template(table):
    """The text of a schema to fill in: names and types alone. Of a file only
    its head is read, of a data frame no value.

    Args:
        table: path of a `.csv` or `.parquet` file, or a data frame.
    """
    name = "a data frame"
    names, kinds = given_table.names(table), given_table.dtypes(table)
    if names is None:
        name = os.path.basename(table)
        if name.endswith(".parquet"):
            found = _needed("pyarrow.parquet").read_schema(table)
            names, kinds = found.names, found.types
        else:
            with open(table, newline="", encoding="utf-8-sig") as f:
                names = next(csv.reader(f, skipinitialspace=True), [])
            kinds = [""] * len(names)
    lines = [
        f"{json.dumps(str(n).strip())} = {_blank(str(kind))}\n"
        for n, kind in zip(names, kinds)
    ]
    return _WORDS.format(name=name) + "".join(lines)


def _blank(kind):
    if not kind:
        return "{}"
    fact = "numbers" if kind.lower().startswith(_NUMBERS) else "words"
    return f"{{{fact} = []}}  # {kind}"
