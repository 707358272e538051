"""What a fit releases, in which order, and the one way it is carried out."""

import dataclasses
import functools
import warnings

from keras_fm.kernel import mechanisms, records
from keras_fm.kernel import release as release_lib
from keras_fm.kernel.planning import calibration
from keras_fm.kernel.reads import sampling
from keras_fm.parts import full_precision, sealed
from keras_fm.training import model_check
from keras_fm.training.reading import Reading

# What is left to what is above the pre-trained layers, however many.
LEAST_TOP_SHARE = 0.5


class ProvenPlan(Reading):
    """The releases of one fit.

    In order: every part of the model from the input upwards, then the part on
    top: the output layer, or the model itself. Each part says what it asks of
    the records (`steps`), by which share, and what it learns.

    Args:
        model: a built model.
        redo: whether parts that were released before are released again.
        notes: further public facts for the ledger.
        **shared: see `Reading`.

    Raises:
        ValueError: if the model is not one that a proof covers.
    """

    def __init__(self, model, *, redo=False, notes=(), **shared):
        self.whole = model
        below, top, whole = model_check.place_of_parts(model)
        super().__init__(below, top, **shared)
        self.extra_notes, self.redo = tuple(notes), redo
        self.parts = model_check.parts_below(self.model, self.top)
        self._whole_parts, self._whole_top = whole
        self.shares = self._named_shares()

    @functools.cached_property
    def _steps(self):
        # Not before they are needed: some count the records, and a fit that
        # goes on with its release reads none.
        return [(part, part.steps(self)) for part in (*self.parts, *self._tops)]

    @property
    def _tops(self):
        return [] if self.top is None else [self.top]

    # Shares --------------------------------------------------------------

    def _named_shares(self):
        shares = self.guarantee.shares
        parts = [*self._whole_parts, *self._whole_top]
        names = [name for part in parts for name in part.release_names()]
        if shares is None:
            shares = self._default_shares()
        if len(shares) != len(names):
            raise ValueError(
                "`shares` must hold one share for each of the "
                f"{len(names)} releases of this model, {names}. Received: "
                f"shares={shares}"
            )
        each = self.spends / self.times
        return {name: share * each for name, share in zip(names, shares)}

    def _default_shares(self):
        parts = self._whole_parts
        kinds = [type(part) for part in parts]
        shares = [
            share
            for part in parts
            for share in part.default_shares(kinds.count(type(part)))
        ]
        if not self._whole_top:
            return [share / sum(shares) for share in shares]
        most = 1 - LEAST_TOP_SHARE
        if sum(shares) > most:
            shares = [share * most / sum(shares) for share in shares]
        (top,) = self._whole_top
        left, count = 1 - sum(shares), len(top.release_names())
        return [*shares, *[left / count] * count]

    def share(self, name):
        """The share of the budget of a release."""
        return self.shares[name]

    @property
    def times(self):
        """How often the plan may be carried out within the budget."""
        return getattr(self.guarantee, "releases", 1)

    @property
    def spends(self):
        """The share of the ledger's budget that the plan may spend."""
        return getattr(self.guarantee, "spends", 1.0)

    # What will be read ---------------------------------------------------

    def others_than(self, part):
        """The other parts below the top."""
        return [other for other in self.parts if other is not part]

    @property
    def steps(self):
        """The releases that a fit would draw, in order."""
        return [
            step
            for part, steps in self._steps
            for step in steps
            if not step.done
            and (self.redo or part is self.top or not self._has(part))
        ]

    def _has(self, part):
        return part.is_released or (
            part.optional and not part.was_lost and self._top_is_released
        )

    @property
    def _top_is_released(self):
        return self.top is not None and self.top.is_released

    @property
    def is_done(self):
        """Whether the model carries all its releases."""
        return all(self._has(part) for part in (*self.parts, *self._tops))

    # Noise ---------------------------------------------------------------

    def mechanism(self, step):
        """The mechanism of a release."""
        if step.mechanism is not None:
            return step.mechanism
        if step.samples is None:
            return calibration.calibrate(
                step.query,
                self.ledger.budget,
                neighbours=self.ledger.neighbours,
                share=self.shares[step.name],
            )
        multiplier = step.noise_multiplier or self._noise_multiplier(step)
        return step.samples.mechanism(
            multiplier,
            step.query.sensitivity("l2", neighbours=self.ledger.neighbours),
        )

    def other_mechanisms(self):
        """Those of all releases beside sampled ones, drawn or to be drawn."""
        return [
            self.mechanism(step)
            for _, steps in self._steps
            for step in steps
            if step.samples is None
        ]

    def _noise_multiplier(self, step):
        """What the releases beside a sampled one leave to it."""
        # All planned releases together, of which this is one.
        samples = dataclasses.replace(
            step.samples, steps=step.samples.steps * self.times
        )
        return sampling.noise_multiplier(
            samples,
            self.ledger.budget,
            neighbours=self.ledger.neighbours,
            others=self.other_mechanisms() * self.times + self._left_over(),
        )

    def _left_over(self):
        """What others may spend, as one mechanism."""
        if self.spends == 1:
            return []
        multiplier = calibration.gaussian_share(
            self.ledger.budget, 1 - self.spends
        )
        return [
            mechanisms.GaussianMechanism(
                sensitivity=1.0, noise_multiplier=multiplier
            )
        ]

    def entries(self):
        """The ledger entries of the plan, nothing read."""
        found = []
        for step in self.steps:
            mechanism = self.mechanism(step)
            found.append(self._entry(step, mechanism))
        return found

    def _entry(self, step, mechanism):
        entry = release_lib.planned_entry(
            step.query,
            mechanism,
            ledger=self.ledger,
            name=step.name,
            noise=self.noise,
            notes=self._notes(),
        )
        return entry if step.entry is None else step.entry(entry)

    def _notes(self):
        facts = model_check.public_facts(self.model, self.top)
        facts += self.how_computed
        if self.n_public:
            owners = "" if self.owners is None else ", and that of owners,"
            facts.append(
                f"the number of records n{owners} is public by declaration "
                "(it sets the number of training steps)"
            )
        else:
            facts.append("the number of records n is not used")
        start = getattr(self.top, "start_fact", None)
        return (*facts, *([start] if start else []), *self.extra_notes)

    @functools.cached_property
    def how_computed(self):
        """How features are computed, if not in batches: lines for plan and
        statement."""
        if any(self._read is given for given in self.model.inputs):
            return []
        features = self.features(self._read)
        if features.unlisted is None:
            return []
        found = [f"features: record by record ({features.unlisted})"]
        if features.differs_in_batches():
            found.append("predictions in batches differ from these features")
        return found

    @property
    def _read(self):
        """The topmost tensor that is read."""
        tops = [t for t in self._tops if t in self.model.layers]
        return self.tensor_of(tops[0]) if tops else self.model.outputs[0]

    # Checks --------------------------------------------------------------

    @full_precision.scope()
    def check(self):
        """Refuses models no proof covers and budgets already spent."""
        self.check_model()
        records.check(self.data)
        self.ledger.check(self.entries())
        if len(self.how_computed) > 1:
            warnings.warn(
                "Predictions in batches differ from what is released on, the "
                f"{self.how_computed[0]}: the layer mixes the records of a "
                "batch. Predict with `batch_size=1`, or replace the layer.",
                stacklevel=2,
            )

    def check_model(self, spends=True):
        """Refuses models no proof covers; reads and spends nothing.

        Args:
            spends: whether something will be charged: what was spent before,
                in any layer, must then be in the same ledger.
        """
        sealed.check_runs_steps(self.whole)
        model_check.check_parts(self.whole, (*self.parts, *self._tops))
        for part in (*self.parts, *self._tops) if self.public_features else ():
            part.check_labels_alone()
        if self.published:
            model_check.check_built(self.model)
            return
        claimed = () if self.published else self._tops
        model_check.check_not_perturbed((*self.parts, *claimed))
        model_check.check_proven(self.model, self.top)
        if spends:
            model_check.check_bounded_above_release(self.model, self.redo)
        for part in model_check.released_parts(self.whole) if spends else ():
            # A part that is released again, too: it may begin with what its
            # first release led to, as an optimizer does.
            self.check_known(part.name, part.ledger_json)

    def check_known(self, name, ledger_json):
        """Refuses a ledger that is not part of this one."""
        if model_check.ledger_besides(self.ledger, ledger_json) is not None:
            raise ValueError(
                f"'{name}' was released by another PrivateModel, and what "
                "that spent is not in this ledger. Go on with that callback, "
                "or continue its ledger: "
                "`PrivateModel(Ledger.open(path), ...)`. Of a model that was "
                "loaded without one, write `ledger = Ledger.from_json("
                "layer.ledger_json)` and `ledger.save(path)` first."
            )

    # Carrying out --------------------------------------------------------

    @full_precision.scope()
    def carry_out(self):
        """Reads the records and charges the ledger, once for each step."""
        steps = self.steps
        if len(steps) > 1:
            # Before the first charge.
            records.check_begins_anew(self.data)
        try:
            with self.keeping_features():
                for step in steps:
                    self.carry_out_one(step)
        except BaseException:
            self.undo()
            raise
        for part in self.parts:
            # The ledger of a part says what all of them cost.
            if part.is_released:
                part.mark_released(self.ledger.to_json())

    def carry_out_one(self, step):
        """Charges the ledger for one step, reads, and lets it be learned."""
        mechanism = self.mechanism(step)
        given = {
            "mechanism": mechanism,
            "ledger": self.ledger,
            "name": step.name,
            "noise": self.noise,
            "notes": self._notes(),
        }
        if step.carry_out is None:
            release = release_lib.release(
                step.query, step.read(), clip=step.clip, **given
            )
        else:
            release = step.carry_out(
                step, entry=self._entry(step, mechanism), **given
            )
        if release is not None:
            step.learn(release)

    @property
    def release(self):
        """The release of the part on top, or `None`."""
        return None if self.top is None else self.releases.get(self.top.name)

    def install(self, start):
        """Gives the part on top its released objective."""
        if self.release is not None:
            self.top.install(self.release, self, start)

    @property
    def sealed_parts(self):
        """Parts whose released objective is what a fit trains."""
        return [part._carrier() for part in self._tops]
