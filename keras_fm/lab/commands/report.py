"""`keras-fm report`: one HTML page of what another command found."""

import os
import sys

from keras_fm.lab.commands import command_line

NAME = "report"
SUMMARY = "one self-contained HTML page of what a command wrote"
POSITIONAL = "RUN [RUN ...]"
ALONE = True

WORDS = """Makes one self-contained HTML page of what a command wrote.

  keras-fm report runs/compare
      writes runs/compare/report.html: tables, plot, privacy statements, how
      to reproduce; any browser opens it, nothing is loaded from elsewhere
  keras-fm report runs/compare runs/audit runs/compose --out=report.html
      several runs on one page, with a table of contents

A RUN is a folder that `keras-fm compare`, `audit`, `compose` or `reproduce`
wrote.

How to read the page:
  proven                composed from a ledger of what was really read
  claimed, not proven   a paper's word; its proven column says "no valid
                        proof"
  no privacy            trained on the records without protection
Tables are sorted by a click on a column's head.
"""


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.string(
        "out",
        None,
        "The page. Default: report.html in the folder of the run; required "
        "with several runs.",
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

    out = values.out or os.path.join(rest[0], "report.html")
    html_report.write([html_report.read(folder) for folder in rest], out)
    sys.stdout.write(f"Written: {out}\n")
    return 0
