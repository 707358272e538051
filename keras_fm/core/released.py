"""The release of a private part, and the weights that it describes."""

import dataclasses
import hashlib
import json

import numpy as np

_DIGEST_BYTES = 32


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Released:
    """A release with the weights that are functions of it, and its cost.

    Attributes:
        ledger_json: str, the ledger that was charged for it.
        digest: bytes, a digest of the weights that it describes.
        steps: int, training steps on the released objective until then.
        published: whether it has no proof.
    """

    ledger_json: str
    digest: bytes
    steps: int = 0
    published: bool = False

    def __repr__(self):
        return f"<Released, {len(self.ledger_json)} characters of ledger>"


class Claims:
    """The ledgers whose claimed noise weights were trained under.

    No file holds the noise, but a file notes that it was there. Weights from
    a file keep the claims that they were trained under.
    """

    def __init__(self, texts=()):
        self._texts = {}
        self.add(texts)

    def __repr__(self):
        return f"<Claims of {len(self._texts)} ledgers>"

    def __contains__(self, ledger):
        return ledger.id in self._texts

    def __bool__(self):
        return bool(self._texts)

    @property
    def texts(self):
        """The ledgers as JSON."""
        return tuple(self._texts.values())

    def add(self, texts):
        """Notes ledgers, each with its longest known list of entries."""
        for text in texts:
            found = json.loads(text)
            known = json.loads(self._texts.get(found["id"], "{}"))
            if len(found["entries"]) >= len(known.get("entries", ())):
                self._texts[found["id"]] = text

    def store(self, store):
        """Writes them into what a layer saves; nothing if there are none."""
        if self._texts:
            found = json.dumps(self.texts).encode()
            store["claims"] = np.frombuffer(found, np.uint8)

    @classmethod
    def stored(cls, store):
        """The claims of a saved layer.

        Raises:
            ValueError: if they are not ledgers; call this before anything is
                set.
        """
        if "claims" not in store.keys():
            return cls()
        found = bytes(np.asarray(store["claims"])).decode(errors="replace")
        try:
            return cls(json.loads(found))
        except (KeyError, RecursionError, TypeError, ValueError) as e:
            raise ValueError(
                f"The claims in the file are not ledgers: {e}"
            ) from e


def digest(values):
    """A digest of arrays, their shapes and types, in order."""
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
        ValueError: if it is not JSON; call this before anything is set.
    """
    if "ledger" not in store.keys():
        return None
    ledger_json = bytes(np.asarray(store["ledger"])).decode()
    try:
        json.loads(ledger_json)
    except (RecursionError, ValueError) as e:
        raise ValueError(f"The ledger in the file is not valid: {e}") from e
    return ledger_json


def stored_steps(store):
    """The steps that a saved layer took on its release, or `None`.

    Raises:
        ValueError: if it is not a number; call this before anything is set.
    """
    if "steps" not in store.keys():
        return None
    steps = np.asarray(store["steps"])
    if steps.shape or steps.dtype.kind not in "iu" or steps < 0:
        raise ValueError(
            "The number of steps in the file is not valid: "
            f"shape={steps.shape}, dtype={steps.dtype}"
        )
    return int(steps)


def stored_arrays(name, store, shapes):
    """Arrays of a saved layer.

    Args:
        name: of the layer.
        store: what it saved.
        shapes: dict from names to shapes.

    Raises:
        ValueError: if one is missing or of another shape.
    """
    known, found = set(store.keys()), {}
    for key, shape in shapes.items():
        found[key] = np.asarray(store[key]) if key in known else None
        given = None if found[key] is None else found[key].shape
        if given != tuple(shape):
            raise ValueError(
                f"Layer '{name}' expected an array {key!r} of shape "
                f"{tuple(shape)} in the file. Received: {given}"
            )
    return found


def check_paid(ledger, releases):
    """Refuses a ledger that was not charged for releases.

    Args:
        ledger: a `Ledger`.
        releases: `Release` objects, each of an entry of its own.

    Raises:
        ValueError: saying what to pass.
    """
    paid = [(e.uses, e.mechanism, e.neighbours) for e in ledger.entries]
    for release in releases:
        one = (
            release.query.uses,
            release.mechanism.config(),
            release.neighbours,
        )
        if one not in paid:
            raise ValueError(
                "The ledger has no entry of this release, so its statement "
                "would leave out a cost. Pass the ledger that was charged for "
                f"the release. Received: {ledger!r}"
            )
        paid.remove(one)
