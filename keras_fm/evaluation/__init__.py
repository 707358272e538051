"""Private evaluation: how good a model is, and which of several is best.

It is charged to the ledger that training is charged to; see docs/evaluation.md.
Names are loaded when they are used: queries and intervals need no Keras.
"""

import importlib

_HOMES = {
    "Choice": "choice_query",
    "Evaluation": "evaluation_query",
    "part_by_hash": "parts_by_hash",
    "private_choice": "private_evaluation",
    "private_evaluate": "private_evaluation",
}
__all__ = list(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(found, name)
