"""Entries of ledgers, and texts of ledgers as others have them."""

import json

from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.kernel.mechanisms import (
    LaplaceMechanism,
    SampledGaussianMechanism,
)


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
            "reads": "A and S",
            "proof": "docs/proofs/cross_entropy.md",
            **changes,
        }
    )


def steps(count, name="net", **changes):
    """Of so many steps on samples."""
    mechanism = SampledGaussianMechanism(
        sensitivity=1.0, noise_multiplier=50.0, sampling_rate=0.01, steps=count
    )
    return entry(**{"mechanism": mechanism, "name": name, **changes})


def unknown(text, number=1):
    """The text of a ledger as this process has not seen it."""
    return json.dumps({**json.loads(text), "id": f"{number:032x}"})
