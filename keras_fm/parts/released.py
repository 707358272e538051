"""What a part was released with, and which weights that describes."""

import dataclasses
import hashlib
import json

import numpy as np

_DIGEST_BYTES = 32


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Released:
    """A release that weights are functions of, and what it cost.

    Attributes:
        ledger_json: str, the ledger that was charged for it.
        digest: bytes, of the weights that it describes.
        steps: int, training steps on the released objective until then.
        published: whether it has no proof.
    """

    ledger_json: str
    digest: bytes
    steps: int = 0
    published: bool = False

    def __repr__(self):
        return f"<Released, {len(self.ledger_json)} characters of ledger>"


def digest(values):
    """Of arrays, their shapes and types, in order."""
    found = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for value in values:
        value = np.ascontiguousarray(value)
        found.update(f"{value.shape}{value.dtype}".encode())
        found.update(value.tobytes())
    return found.digest()


def store_ledger(store, ledger_json):
    """Writes a ledger into what a layer saves; nothing for `None`."""
    if ledger_json is not None:
        store["ledger"] = np.frombuffer(ledger_json.encode(), np.uint8)


def stored_ledger(store):
    """The ledger of a saved layer, or `None`.

    Raises:
        ValueError: if it is not JSON; read it before anything is set.
    """
    if "ledger" not in store.keys():
        return None
    ledger_json = bytes(np.asarray(store["ledger"])).decode()
    try:
        json.loads(ledger_json)
    except (RecursionError, ValueError) as e:
        raise ValueError(f"The file holds a ledger that is none: {e}") from e
    return ledger_json


def stored_steps(store):
    """The steps that a saved layer took on its release, or `None`.

    Raises:
        ValueError: if they are no number; read them before anything is set.
    """
    if "steps" not in store.keys():
        return None
    steps = np.asarray(store["steps"])
    if steps.shape or steps.dtype.kind not in "iu" or steps < 0:
        raise ValueError(
            "The file holds a number of steps that is none: "
            f"shape={steps.shape}, dtype={steps.dtype}"
        )
    return int(steps)
