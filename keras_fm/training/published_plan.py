"""The noise that the papers add to a fit: claimed, never proven."""

from keras_fm.core.private_part import parts_of
from keras_fm.kernel import records
from keras_fm.kernel.ledger.ledger_entry import LedgerEntry
from keras_fm.training import model_check


class PublishedPlan:
    """AdLM's Algorithm 1, ILM, dPA or pCDBN, depending on the model's layers.

    Every part defines its noise (`claims`), from the input upwards, the output
    layer last. A model that pre-trains a part fixes the noise of its topmost
    layer only. The fit of the whole model then fixes that of all others.

    Args:
        model: a built model.
        data: the private records, or `None`.
        ledger: the `Ledger` that is charged.
        noise: a `NoiseSource`.
        guarantee: a `Published`.

    Raises:
        ValueError: if the model has no published form.
    """

    def __init__(self, model, *, data, ledger, noise, guarantee):
        self.model, self.data = model, data
        self.ledger, self.noise, self.guarantee = ledger, noise, guarantee
        self.lot = guarantee.lot
        if self.lot == "data":
            self.lot = records.number(data)
        stack = getattr(model, "stack", None)
        whole = getattr(model, "part_of", None) or getattr(
            model, "encoding_model", model
        )
        model_check.check_functional(whole)
        self._whole = whole
        if len(whole.inputs) != 1:
            raise ValueError(
                'guarantee="published" needs a model with one input. Received '
                f"a model with {len(whole.inputs)} inputs"
            )
        parts = [part for part in parts_of(whole) if hasattr(part, "claims")]
        if stack is None and model_check.output_part(whole) is None:
            model_check.place_of_parts(whole)
            raise ValueError(
                "The last layer of a published model must be "
                "`keras_fm.layers.PrivateDense`."
            )
        for part in parts:
            if part.unprotected:
                model_check.check_parts(whole, parts)
            if hasattr(part, "check_published"):
                part.check_published()
        self._papers = set()
        self._claims = [(part, part.claims(self)) for part in parts]
        given = guarantee.settings
        if given is not None and type(given) not in self._papers:
            raise ValueError(
                "`settings` must be those of a paper of the model, one of "
                f"{sorted(kind.__name__ for kind in self._papers)}. Received: "
                f"settings={given}"
            )
        names = [c.name for _, claims in self._claims for c in claims]
        shares = guarantee.shares or self._default_shares(parts, names)
        if len(shares) != len(names):
            raise ValueError(
                "`shares` must hold one share for each of the perturbations "
                f"{names}. Received: shares={shares}"
            )
        self.epsilons = dict(
            zip(names, (s * ledger.budget.epsilon for s in shares))
        )
        # For a model that pre-trains, its topmost layer; else all parts.
        self._own = parts if stack is None else [stack[-1]]

    @property
    def known_units(self):
        """The number of records, if known without iterating over the data."""
        return records.number(self.data)

    def _default_shares(self, parts, names):
        for part in parts:
            found = getattr(part, "published_shares", lambda names: None)(names)
            if found is not None:
                return found
        return [1 / len(names)] * len(names)

    # Facts for the parts -------------------------------------------------

    @property
    def neighbours(self):
        """The neighbouring relation of the papers' sensitivities."""
        return self.ledger.neighbours

    @property
    def orders(self):
        """The coefficients of the loss that get noise."""
        return self.guarantee.orders

    def settings(self, kind):
        """The settings of a paper, see `Published`."""
        self._papers.add(kind)
        return self.guarantee.settings_of(self._whole, kind)

    def batches(self):
        """Every record once, without its label."""
        for x, _ in records.batches(self.data):
            yield x

    # The ledger ----------------------------------------------------------

    @property
    def perturbed(self):
        """The part that shows whether the noise was fixed."""
        return self._own[-1]

    def _open(self):
        """Parts without noise so far, with their claims."""
        return [
            (part, claim)
            for part, claims in self._claims
            if part in self._own and not part.is_perturbed
            for claim in claims
        ]

    def entries(self):
        """The ledger entries of the plan, all claimed."""
        return [self._entry(claim) for _, claim in self._open()]

    def _scale(self, claim, found=None):
        sensitivity = claim.sensitivity
        if callable(sensitivity):
            sensitivity = sensitivity(found)
        if sensitivity is None:
            return None
        return sensitivity / self.epsilons[claim.name]

    def _entry(self, claim, found=None):
        mechanism = {"claimed_epsilon": self.epsilons[claim.name]}
        scale = self._scale(claim, found)
        if scale is not None:
            mechanism["laplace_scale"] = scale
        if claim.per_lot:
            mechanism["lot_size"] = self.lot
        return LedgerEntry(
            name=claim.name,
            guarantee="claimed",
            neighbours=str(self.ledger.neighbours),
            mechanism=mechanism,
            uses=claim.uses,
            proof=claim.reason,
            private=not self.noise.reproducible,
        )

    # Carrying out --------------------------------------------------------

    def check(self):
        """Refuses budgets already spent."""
        self.ledger.check(self.entries())

    def check_pretrained(self):
        """Refuses parts that a fit would train without their noise."""
        for part, _ in self._claims:
            late = part in self._own and hasattr(part, "noise_shapes")
            if late and not part.is_perturbed and part is not self._own[-1]:
                raise ValueError(
                    f"{type(part).__name__} '{part.name}' would be trained "
                    "on the records without its noise. Pre-train it with "
                    "this callback first: "
                    f"{part.how_to_pretrain(self._whole)}."
                )

    def carry_out(self):
        """Charges the ledger and fixes all noise."""
        asked = self._open()
        # Before this, `check` refused budgets already spent.
        found = [c.read and c.read() for _, c in asked]
        entries = [self._entry(c, f) for (_, c), f in zip(asked, found)]
        self.ledger.charge(entries)
        for (part, claim), given, entry in zip(asked, found, entries):
            scale = entry.mechanism.get("laplace_scale")
            if claim.per_lot:
                scale = scale / self.lot
            read = [] if claim.read is None else [given]
            claim.fix(scale, self._laplace, *read)
            part.claims_made.add([self.ledger.to_json()])
        for part, _ in self._claims:
            # Each part saves the ledger with all claims.
            if self.ledger in part.claims_made:
                part.claims_made.add([self.ledger.to_json()])

    def _laplace(self, scale, shape):
        return self.noise.generator().laplace(0.0, scale, shape)
