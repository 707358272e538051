"""Entries of ledgers, and texts of ledgers as others have them."""

import json

from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.kernel.mechanisms import LaplaceMechanism


def entry(mechanism=0.25, neighbours="add_remove", **changes):
    """Of a mechanism, its config, or the epsilon of Laplace noise."""
    if isinstance(mechanism, float):
        mechanism = LaplaceMechanism(sensitivity=1.0, epsilon=mechanism)
    if not isinstance(mechanism, dict):
        mechanism = mechanism.config()
    return LedgerEntry(
        **{
            "name": "head",
            "guarantee": "proven",
            "neighbours": neighbours,
            "mechanism": mechanism,
            "uses": "A and S",
            "proof": "docs/proofs/cross_entropy.md",
            **changes,
        }
    )


def unknown(text, number=1):
    """The text of a ledger as this process has not seen it."""
    return json.dumps({**json.loads(text), "id": f"{number:032x}"})
