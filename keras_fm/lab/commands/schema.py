"""`keras-fm schema`: a file to fill in, of what is public of a table."""

import os
import sys

from keras_fm.lab.commands import command_line

NAME = "schema"
SUMMARY = "a file to fill in: public facts about the columns of a table"
POSITIONAL = "TABLE"

WORDS = """Writes a file of public facts about a table, for you to fill in.

  keras-fm schema people.csv
      writes schema.toml: a line for every column, without its range

TABLE is a .csv file, of which only the first line is read, or a .parquet
file, of which only names and types are. You fill in ranges, words and
classes from public knowledge: numbers computed from records are not public.

`keras-fm compare --columns=schema.toml` and
`PrivateClassifier(columns="schema.toml")` read it.
"""


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.string("out", "schema.toml", "The file to write; it must be new.")


def run(values, rest):
    """Runs the command; returns the exit status."""
    if len(rest) != 1:
        raise ValueError("name one table, such as people.csv.")
    if os.path.exists(values.out):
        raise ValueError(
            f"{values.out} exists. Name another file, --out=other.toml."
        )
    from keras_fm.lab.compare import table_file

    text = table_file.template(rest[0])
    with open(values.out, "x", encoding="utf-8") as f:
        f.write(text)
    sys.stdout.write(f"Written: {values.out}. Fill in every column.\n")
    return 0
