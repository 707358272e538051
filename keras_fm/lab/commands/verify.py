"""`keras-fm verify`: whether weights and a statement belong together."""

import os
import sys

from keras_fm.lab.commands import command_line

NAME = "verify"
SUMMARY = "whether a model's weights and a privacy statement belong together"
POSITIONAL = "MODEL STATEMENT"

WORDS = """Checks a model in a file against its privacy statement.

  keras-fm verify mine.keras statement.json
      whether the statement describes these weights, and whether its epsilon
      follows from the entries of its ledger, which are composed anew
  keras-fm verify mine.keras statement.json --import=mine.py
      a model with layers of your own, which mine.py registers

MODEL is what `model.save("mine.keras")` wrote, STATEMENT what
`callback.save_statement("statement.json")` of its `PrivateModel` wrote. Neither
is changed. Exit status 0 if they belong together, 1 if not, 2 if a file
cannot be read.

A file is not authenticated: anybody could have written it. *proven* facts
follow from the entries, if none is missing; *declared* facts are stated by
the person who trained.
"""


def define(values):
    """Defines the flags in `values`."""
    flag = command_line.makers(values)
    flag.string(
        "import",
        None,
        "The script that defines the model's own layers. It is run: name only "
        "one that you trust.",
    )


def run(values, rest):
    """Runs the command; returns the exit status."""
    if len(rest) != 2:
        raise ValueError(
            "name a model and its statement: `keras-fm verify mine.keras "
            "statement.json`."
        )
    from keras_fm.core import statement_facts
    from keras_fm.kernel.ledger.statement import rounded_up
    from keras_fm.lab import script_functions, statement_file

    path, other = rest
    script = values["import"].value
    if script and not os.path.isfile(script):
        raise ValueError(
            "`--import` must be the script that defines the model's layers, as "
            f"path/to/mine.py. Received: {script!r}, which is not a file"
        )
    if script:
        script_functions.imported(os.path.abspath(script))
    found = statement_file.SavedStatement(other)
    model = _loaded(path)
    differences = found.differences(model)
    if differences:
        lines = [f"{path} and {other} do not belong together:"]
        sys.stdout.write("\n  ".join([*lines, *differences]) + "\n")
        return 1
    lines = [
        f"{path} and {other} belong together.",
        f"  weights        sha256 {found.weights}: the same",
    ]
    for ledger in found.ledgers:
        lines += [
            f"  epsilon        {rounded_up(ledger.epsilon())} at delta "
            f"{ledger.budget.delta:g}, {ledger.neighbours}: composed anew "
            "from the entries, as stated",
            *(
                f"  {name:<14} {standing:<9} {words}"
                for name, words, standing in statement_facts.of(ledger)
            ),
        ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _loaded(path):
    import keras

    # Keras needs it to know the layers.
    import keras_fm  # noqa: F401

    with open(path, "rb"):
        pass
    try:
        return keras.saving.load_model(path, compile=False)
    # A file that anybody wrote raises whatever it likes.
    except Exception as e:
        words = " ".join(str(e).split())[:300]
        raise ValueError(
            f"{path!r} is not a model that Keras can load. If it has layers of "
            "your own: register them in a script, by "
            "`@keras.saving.register_keras_serializable()`, and name that, "
            "`--import=mine.py`. Keras says: "
            f"{''.join(c for c in words if c.isprintable())}"
        ) from e
