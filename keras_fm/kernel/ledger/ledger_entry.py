"""One line of a ledger: what was used, by which mechanism, and its proof.

An entry is *proven* (a mechanism whose proof is in docs/proofs) or *claimed*
(an epsilon that a paper asserts).
"""

import dataclasses

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel.ledger import known_mechanisms

FLOATING_POINT = "floating point"
LATTICE = "lattice"
# A larger claim means nothing; up to here, sums of claims stay finite.
_LARGEST_CLAIM = 1e50


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A line of a ledger: one use of the private records.

    Attributes:
        name: the layer or query that it served.
        guarantee: `"proven"`, or `"claimed"` (a paper asserts the epsilon).
        neighbours: the relation that the numbers refer to.
        mechanism: dict, the mechanism's name and public parameters
            (proven), or `{"claimed_epsilon": ...}`.
        uses: what was used, in words.
        proof: where the proof is, or why there is none.
        private: `False` if the noise was reproducible; then no guarantee holds.
        noise: `"lattice"` for exact discrete noise on a power-of-two lattice,
            `"floating point"` for noise whose low-order bits no proof covers.
        notes: further public facts (n declared public, public data used).
        when: UTC time, ISO 8601.

    Example:

    ```python
    for entry in private.ledger.entries:
        print(entry.name, entry.guarantee, entry.proof)
    ```
    """

    name: str
    guarantee: str
    neighbours: str
    mechanism: dict
    uses: str
    proof: str
    private: bool = True
    noise: str = FLOATING_POINT
    notes: tuple = ()
    when: str = ""

    def __post_init__(self):
        self._check_texts()
        checks.either("guarantee", self.guarantee, ("proven", "claimed"))
        checks.boolean("private", self.private)
        checks.either("noise", self.noise, (FLOATING_POINT, LATTICE))
        if self.guarantee == "claimed":
            claim = self.mechanism.get("claimed_epsilon")
            if not checks.is_number(claim) or not 0 < claim <= _LARGEST_CLAIM:
                raise ValueError(
                    "A claimed entry needs a positive `claimed_epsilon` of "
                    f"at most {_LARGEST_CLAIM:g}. Received: mechanism="
                    f"{self.mechanism}"
                )
        elif getattr(self.build_mechanism(), "sampling_rate", 1) < 1 and (
            self.neighbours != str(budget_lib.Neighbours.ADD_REMOVE)
        ):
            raise ValueError(
                "A proven entry of a sampled mechanism must refer to "
                '"add_remove", the relation its analysis is for. Received: '
                f"neighbours={self.neighbours!r}"
            )

    def _check_texts(self):
        checks.instance("notes", self.notes, tuple, "a tuple of texts")
        checks.instance("mechanism", self.mechanism, dict, "a dict")
        for name in ("name", "uses", "proof", "when"):
            check_line(f"`{name}` of a ledger entry", getattr(self, name))
        for note in self.notes:
            check_line("A note of a ledger entry", note)
        for key, value in self.mechanism.items():
            check_line("A name in `mechanism` of a ledger entry", key)
            if isinstance(value, str):
                check_line(f"`{key}` of a ledger entry", value)
            elif isinstance(value, (int, float)) and not checks.is_finite(
                value
            ):
                raise ValueError(
                    f"`{key}` of a ledger entry must be finite. Received: "
                    f"{key}={value}"
                )

    def build_mechanism(self):
        """The `Mechanism` of a proven entry, or of claimed steps. It draws
        the noise that was charged."""
        config = dict(self.mechanism)
        if self.guarantee == "claimed":
            config.pop("claimed_epsilon", None)
        return known_mechanisms.from_config(config)

    def describe(self):
        """The mechanism in a line: its name and public parameters."""
        return ", ".join(
            str(value)
            if key == "mechanism"
            else f"{key} {value:.6g}"
            if isinstance(value, float)
            else f"{key} {value}"
            for key, value in self.mechanism.items()
            if isinstance(value, (int, float, str))
        )


def check_line(what, text):
    """Refuses text that could look like other lines of a statement."""
    if not isinstance(text, str) or not (text.isprintable() or not text):
        raise ValueError(
            f"{what} must be one line of printable text. Received: {text!r}"
        )
