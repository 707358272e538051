"""What a run leaves in its folder."""

import csv
import json
import os

from keras_fm.lab import provenance


def write_text(folder, name, text):
    """A file that ends in one newline; the folder is made."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        f.write(text + "\n")


def write_csv(folder, name, fields, rows):
    """A line for each dict, of the named fields."""
    with open(os.path.join(folder, name), "w", newline="") as f:
        writer = csv.DictWriter(f, fields, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_json(folder, name, data):
    """JSON without infinities."""
    text = json.dumps(provenance.finite(data), indent=1, ensure_ascii=False)
    write_text(folder, name, text)


def text_table(head, rows, left=()):
    """Lines of a table of text: the head, a rule, the rows.

    Args:
        head: list of str.
        rows: list of lists of str.
        left: titles of columns that begin at the left.
    """
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = [
        "  ".join(
            cell.ljust(width) if title in left else cell.rjust(width)
            for cell, width, title in zip(row, widths, head)
        ).rstrip()
        for row in (head, *rows)
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
