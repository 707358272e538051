"""`keras-fm compare`: one model, every way of training it."""

import logging
import os
import shlex
import sys

from keras_fm.core import settings_file
from keras_fm.lab import known
from keras_fm.lab.commands import command_line

NAME = "compare"
SUMMARY = "train one model in every way, side by side"

WORDS = """Trains one model in every way that fits it and prints one table.

  keras-fm compare
      the digits embedded in scikit-learn, offline; 1 to 4 minutes on two
      cores
  keras-fm compare --model=mine.py:build --dataset=people.csv \\
      --columns=schema.toml --target=income
      your Keras model, built by `def build(shape, classes)` of mine.py, and
      your table; `keras-fm schema people.csv` writes a schema to fill in
  keras-fm compare --dataset=mnist --features=scattering --hidden=0
      public features of images
  keras-fm compare --epsilons=0.5 --delta=0 --methods=one_release
      pure differential privacy

How to read the tables (of many methods the second has the marked ones alone;
table.txt has all):
  first       test accuracy, +- standard deviation of several --seeds; * is
              the best proven of its column
  claimed     the epsilon that a paper asserts (not a guarantee)
  proven      the epsilon composed from the ledger; inf: no valid proof
  seconds     median time of one training, features and tuning excluded
  MiB         peak memory above the start of the training

Rate and steps of all methods with steps are chosen for each epsilon on a fifth
of the training part, and no epsilon covers that choice. Noise is fresh in
every run. Finished runs are kept: the same command goes on.
"""


# Flags that are fields of a `Comparison`.
_SETTINGS = (
    *("dataset", "model", "columns", "target", "test"),
    *("features", "hidden", "methods", "epsilons", "delta"),
    *("neighbours", "seeds", "epochs", "batch_size", "train_records"),
)


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.string(
        "dataset",
        "digits",
        f"{', '.join(known.IMAGES)}; the path of an .npz file with x_train, "
        "y_train, x_test, y_test; or of a .csv or .parquet table. The folder "
        "KERAS_FM_DATA is looked into first.",
    )
    flag.string(
        "model",
        "",
        "path/to/script.py:function, which builds a model of yours.",
    )
    flag.string("columns", "", "Of a table: the path of its public schema.")
    flag.string(
        "target", "", "Of a table: the column of labels; may be left out."
    )
    flag.string(
        "test",
        "",
        "Of a table: one to test on; without, a fifth of the rows is held out.",
    )
    flag.string(
        "features",
        "pixels",
        "Public features: pixels (or columns), scattering, "
        "scattering_strokes, patches, scattering_patches; auto follows from "
        "the shape of a record.",
    )
    flag.integer(
        "hidden",
        64,
        "Units of the layer between features and output; 0 leaves it out.",
    )
    flag.list(
        "methods",
        None,
        f"Comma-separated: all, or some of {', '.join(known.methods())}. "
        "Default: those that take minutes.",
    )
    flag.list(
        "epsilons",
        ["1", "8"],
        "Privacy budgets, from 1e-4 to 100.",
    )
    flag.float(
        "delta",
        1e-5,
        "Failure probability, far below one over the number of records; 0 "
        "asks for pure differential privacy.",
    )
    flag.enum(
        "neighbours",
        "add_remove",
        ["add_remove", "replace_one"],
        "Neighbouring relation of the proven form and of DP-SGD.",
    )
    flag.integer("seeds", 1, "Repetitions.")
    flag.integer(
        "epochs",
        0,
        "Epochs of the other methods; 0 is 40, or a thousand steps.",
    )
    flag.integer("batch_size", 64, "Their batch size.")
    flag.integer(
        "train_records",
        0,
        "Use only the first so many training records; 0 for all.",
    )
    flag.string(
        "out",
        "runs/compare",
        "Folder for table.txt, runs.csv, summary.json, accuracy.png and "
        "tensorboard/. Empty writes nothing.",
    )
    flag.string(
        "spec",
        None,
        "A .toml or .json file with settings named as these flags (and "
        "learning_rate, dp_sgd). Flags that are given win.",
    )
    flag.integer(
        "processes",
        min(4, os.cpu_count() or 1),
        "Runs that train side by side; 0 trains in this process. Seconds "
        "are comparable only within one such number.",
    )
    flag.bool(
        "isolated",
        False,
        "Give every run a process of its own: exact memory, slower.",
    )
    flag.bool(
        "fresh",
        False,
        "Train again, instead of reading finished runs from runs/ of --out.",
    )
    flag.string(
        "jax_python",
        None,
        "Python interpreter of an environment with jax, jax-privacy and "
        "keras-fm, for the jax_privacy methods.",
    )
    flag.string(
        "torch_python",
        None,
        "The same with torch and opacus, for the opacus methods.",
    )
    flag.bool("progress", True, "Print what runs now.")


def _config(values):
    """Settings that the flags, or a file and flags, give."""
    given = {
        name: values[name].value for name in _SETTINGS if values[name].present
    }
    if "epsilons" in given:
        given["epsilons"] = command_line.numbers("epsilons", given["epsilons"])
    if not values.spec:
        return given
    return {**settings_file.load(values.spec), **given}


def run(values, rest):
    """Runs the command; returns the exit status."""
    del rest
    # Every run builds its own model, which TensorFlow reports as retracing.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # Heavy imports only once the command line is right.
    from keras_fm.lab import compare as experiments

    try:
        outcomes = experiments.run(
            experiments.Comparison.from_config(_config(values)),
            out=values.out or None,
            progress=values.progress,
            processes=values.processes,
            isolated=values.isolated,
            fresh=values.fresh,
            jax_python=values.jax_python,
            torch_python=values.torch_python,
            command=command_line.of(NAME, values),
        )
    except experiments.RunFailedError as e:
        sys.stderr.write(f"keras-fm {NAME}: {e}\n")
        return 1
    whole = values.out and os.path.join(values.out, "table.txt")
    sys.stdout.write("\n" + experiments.table(outcomes, whole) + "\n")
    if values.out:
        board = os.path.join(values.out, "tensorboard")
        # Without TensorFlow there is none.
        shown = f"`tensorboard --logdir={shlex.quote(board)}`; "
        sys.stdout.write(
            f"\nWritten to {values.out}: table.txt, runs.csv, summary.json, "
            f"accuracy.png; {shown * os.path.isdir(board)}"
            f"`keras-fm report {shlex.quote(values.out)}` makes one page of "
            "it.\n"
        )
    return 0
