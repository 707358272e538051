"""`keras-fm reproduce`: figures and tables of the five papers."""

import sys

from keras_fm.lab import known
from keras_fm.lab.commands import command_line

NAME = "reproduce"
SUMMARY = "figures and tables of the five papers, ours beside theirs"
POSITIONAL = "[PAPER[:FIGURE] ...]"

WORDS = """Figures and tables of the five papers, ours beside theirs.

  keras-fm reproduce --list
      the catalogue: every experiment, its data, minutes, printed numbers
  keras-fm reproduce dpmac:accounting
      one experiment, in a small form for two CPU cores
  keras-fm reproduce adlm
      all experiments of one paper
  keras-fm reproduce dpa:figure-3
      by the paper's own numbers, where they are known
  keras-fm reproduce --full pcdbn:mnist
      the paper's size: hours on a GPU
  keras-fm reproduce --data=digits dpmac:mnist
      other data, always there, without the paper's numbers

How to read the table:
  guarantee   claimed: the epsilon is what the paper asserts, no proof covers
              it; proven: composed from the ledger of all releases
  paper       the number that the paper prints, at an epsilon that it claims
  difference  ours minus the paper's
In figures solid is proven, dotted only claimed, dashed without privacy; open
markers are the paper's numbers.

A run that was interrupted goes on: every point is on disk once measured.
Nothing is chosen on test records; docs/reproduce.md names every deviation.
"""


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.bool("full", False, "The paper's size, for a GPU.")
    flag.list(
        "epsilons",
        None,
        "Budgets instead of the experiment's own.",
    )
    flag.integer("seeds", None, "Repetitions.")
    flag.string(
        "data",
        None,
        f"Another data set: {', '.join(known.IMAGES + known.NETWORKS)}, or "
        "the path of an .npz file. "
        "Files are looked up in the folder KERAS_FM_DATA first.",
    )
    flag.string(
        "out",
        "runs/reproduce",
        "Folder; every experiment has a folder of its own in it, with "
        "points.jsonl, points.csv, figure.png, summary.json and table.txt. "
        "Empty writes nothing.",
    )
    flag.bool("progress", True, "Print what runs now.")
    flag.bool(
        "list",
        False,
        "Print the catalogue, as the command does without a name.",
    )


def run(values, rest):
    """Runs the command; returns the exit status."""
    # Heavy imports only once the command line is right.
    from keras_fm.lab import reproduce as reproductions

    if values.list or not rest:
        sys.stdout.write(reproductions.catalogue_table() + "\n")
        return 0
    epsilons = values.epsilons
    if epsilons is not None:
        epsilons = command_line.numbers("epsilons", epsilons)
    found = reproductions.find(rest)
    # A choice that one of them has not is an error before the first trains.
    for experiment in found:
        experiment.settings(
            full=values.full,
            epsilons=epsilons,
            seeds=values.seeds,
            data=values.data,
        )
    for experiment in found:
        outcome = reproductions.run(
            experiment,
            full=values.full,
            epsilons=epsilons,
            seeds=values.seeds,
            data=values.data,
            out=values.out or None,
            progress=values.progress,
        )
        sys.stdout.write("\n" + reproductions.table(outcome) + "\n")
        if outcome.folder:
            sys.stdout.write(
                f"\nWritten to {outcome.folder}: figure.png, points.csv, "
                "summary.json, table.txt\n"
            )
        sys.stdout.flush()
    return 0
