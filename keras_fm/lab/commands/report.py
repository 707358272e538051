"""`keras-fm report`: one HTML page of what a command or a fit wrote."""

import os
import sys

from keras_fm.lab.commands import command_line

NAME = "report"
SUMMARY = "one self-contained HTML page of a command's run, or of your fit"
POSITIONAL = "RUN [RUN ...]"
ALONE = True

WORDS = """Makes one self-contained HTML page of what a command or a fit wrote.

  keras-fm report runs/compare
      writes runs/compare/report.html: tables, plot, privacy statements, how
      to reproduce; any browser opens it, nothing is loaded from elsewhere
  keras-fm report runs/compare runs/audit runs/compose --out=report.html
      several runs on one page, with a table of contents

  keras-fm report runs/first
      your own fit: the TensorBoard folder of its PrivacyTensorBoard; budget,
      releases, curves, spectra, statement
  keras-fm report privacy.json
      the same without curves: a ledger, or what `save_statement` wrote

A RUN is a folder that `keras-fm compare`, `audit`, `compose`, `reproduce` or a
PrivacyTensorBoard wrote, or the file of a ledger or statement.

How to read the page:
  proven                composed from a ledger of all releases
  claimed, not proven   a paper asserts it; its proven column says "no valid
                        proof"
  no privacy            trained on the records without protection
Click on a column's head to sort a table.
"""


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.string(
        "out",
        None,
        "The page. Default: report.html in the folder of the run or beside "
        "its file; required with several runs.",
    )


def run(values, rest):
    """Runs the command; returns the exit status."""
    if not rest:
        raise ValueError(
            "name the folder of at least one run, such as runs/compare."
        )
    if len(rest) > 1 and not values.out:
        raise ValueError("several runs need --out, the name of their page.")
    from keras_fm.lab import report as html_report

    folder = rest[0] if os.path.isdir(rest[0]) else os.path.dirname(rest[0])
    out = values.out or os.path.join(folder, "report.html")
    html_report.write([html_report.read(folder) for folder in rest], out)
    sys.stdout.write(f"Written: {out}\n")
    return 0
