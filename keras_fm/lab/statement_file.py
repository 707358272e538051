"""A privacy statement that somebody else checks."""

import json
import math
import os

from keras_fm.core import statement_facts
from keras_fm.core.private_part import parts_of
from keras_fm.kernel.ledger import locked_file, strict_json
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.per_example import past_weights
from keras_fm.training import model_check
from keras_fm.training.saved_statement import parsed

# What composition on another machine may differ by.
_ROUNDING = 1e-6


class SavedStatement:
    """A statement that was read from a file; whatever it says of its
    ledgers' epsilon is not believed.

    Args:
        path: of the file.

    Attributes:
        ledgers: list of `Ledger`.
        differs: list of str, what does not hold of the file itself.

    Raises:
        ValueError: if it is not a statement.
    """

    def __init__(self, path):
        try:
            self._read(locked_file.read_text(path))
        except strict_json.MALFORMED as e:
            raise ValueError(
                f"{os.fspath(path)!r} is not a statement that "
                f"`PrivateModel.save_statement` wrote: {_one_line(e)}"
            ) from e

    def _read(self, text):
        data = strict_json.parse(text)
        if "budget" in data and "entries" in data:
            raise ValueError(
                "it is a ledger, which names no weights. `keras-fm ledger` "
                "composes it; `callback.save_statement(path)` writes a "
                "statement"
            )
        data = parsed(text)
        self.weights, self.differs = data["weights"], []
        if not isinstance(self.weights, str) or not data["ledgers"]:
            raise ValueError("it names no weights, or holds no ledger")
        self.ledgers, self._counts = [], []
        for number, one in enumerate(data["ledgers"], start=1):
            ledger = Ledger.from_json(json.dumps(one["ledger"]))
            self.ledgers.append(ledger)
            self._counts.append(len(one["ledger"]["entries"]))
            stated, found = float(one["epsilon"]), ledger.epsilon()
            if not math.isclose(stated, found, rel_tol=_ROUNDING):
                self.differs.append(
                    f"epsilon of ledger {number}: the statement says "
                    f"{stated:.6g}, its entries compose to {found:.6g}"
                )
            if one["facts"] != statement_facts.of(ledger):
                self.differs.append(
                    f"facts of ledger {number}: the statement and its entries "
                    "differ"
                )

    def differences(self, model):
        """What does not hold of the statement and a model: list of str."""
        found, digest = list(self.differs), past_weights.digest(model)
        if digest != self.weights:
            found.append(
                f"weights: the statement describes {_one_line(self.weights)}, "
                f"the model has {digest}"
            )
        ids = {ledger.id for ledger in self.ledgers}
        held = {
            one.id
            for ledger in self.ledgers
            for one in model_check.ledgers_of(model, ledger)
        }
        # The model may bring a longer text of the same ledger.
        counts = [len(ledger.entries) for ledger in self.ledgers]
        if held - ids or counts != self._counts:
            found.append(
                "releases: the model carries some that the statement leaves out"
            )
        return found + [
            f"layer '{part.name}': its weights are not those of its release"
            for part in parts_of(model)
            if not (part.is_released or part.unproven)
        ]


def _one_line(text):
    return "".join(c for c in str(text)[:300] if c.isprintable())
