"""`keras-fm ledger`: the privacy statement of a ledger in a file."""

import sys

NAME = "ledger"
SUMMARY = "what was spent under the ledger of a file, and what is left"
POSITIONAL = "FILE [FILE ...]"
ALONE = True

WORDS = """Prints the privacy statement of a ledger, composed anew.

  keras-fm ledger privacy.json
      what was used and released, by which mechanism, with which proof; the
      epsilon that it adds up to, and what is left of the budget

A FILE is what `PrivateModel(..., ledger="privacy.json")`, `Ledger.open` or
`Ledger.save` wrote. It is not changed. A file is not authenticated: anybody
could have written it.

Several ledgers are several budgets. For the same records, add up their
epsilons.
"""


def define(values):
    """There are no flags."""
    del values


def run(values, rest):
    """Runs the command; returns the exit status."""
    del values
    if not rest:
        raise ValueError("name the file of a ledger, such as privacy.json.")
    from keras_fm.kernel.ledger.ledger import Ledger

    parts = []
    for path in rest:
        try:
            ledger = Ledger.load(path)
        except ValueError as e:
            raise ValueError(f"{path}: {e}") from e
        parts.append(
            f"{path}\n\n{ledger.statement()}\n\nleft:       epsilon = "
            f"{ledger.remaining():.6g} of {ledger.budget.epsilon:g} at delta "
            f"{ledger.budget.delta:g}\n"
        )
        # Of one id, each file speaks for itself.
        del ledger
    sys.stdout.write("\n".join(parts))
    return 0
