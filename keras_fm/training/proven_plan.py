"""The releases of a proven fit, their order, and how they are carried out."""

import dataclasses
import functools
import math

import keras
import numpy as np

from keras_fm.core import device_sums, full_precision, model_graph, model_inputs
from keras_fm.core.planned_release import PlannedRelease
from keras_fm.core.record_alone import FeatureMap, unlisted
from keras_fm.heads import class_weights
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import mechanisms, records
from keras_fm.kernel import release as release_lib
from keras_fm.kernel.access import columns, fixed_rows, sampling
from keras_fm.kernel.access.gradient_rounds import GradientRounds
from keras_fm.kernel.budget import Neighbours
from keras_fm.kernel.ledger.noisy_statistics import RELEASES
from keras_fm.kernel.planning import calibration
from keras_fm.per_example import balanced_classes
from keras_fm.training import model_check, read_records
from keras_fm.training.memo import Memo

# Rows of a batch from the data, and of a batch in which each record's row is
# set by its values: a small one has few empty rows.
READ_BATCH = 1024
PLACES = 64
# Least share of the budget for the parts above the pre-trained layers.
LEAST_TOP_SHARE = 0.5


class ProvenPlan:
    """The releases of one fit.

    The parts of the model are released from the input upwards, then the part
    on top: the output layer, or the model itself. Each part defines its
    releases (`planned_releases`), their shares of the budget, and what it
    learns from them. The plan gives it records, features and facts.

    Args:
        model: a built model.
        data: the private records.
        ledger: the `Ledger` that is charged.
        noise: a `NoiseSource`.
        guarantee: `Proven` or `Published`.
        redo: whether parts that were released before are released again.
        notes: further public facts for the ledger.

    Attributes:
        model: the model that processes the records. If the model is a private
            part itself, the layers below it.
        top: `None`, or the part that is released last and uses the labels.

    Raises:
        ValueError: if no proof covers the model.
    """

    def __init__(
        self, model, *, data, ledger, noise, guarantee, redo=False, notes=()
    ):
        self.whole = model
        self.model, self.top, whole = model_check.place_of_parts(model)
        self.data, self.ledger, self.noise = data, ledger, noise
        self.guarantee = guarantee
        self.published = guarantee.kind == "published"
        self.n_public = guarantee.n_public
        self.ridge_factor = guarantee.ridge_factor
        self.releases = {}
        self._undo = []
        # Features for the parts above, while the plan is carried out.
        self._kept = None
        self.extra_notes, self.redo = tuple(notes), redo
        self.parts = model_check.parts_below(self.model, self.top)
        self._whole_parts, self._whole_top = whole
        self.shares = self._named_shares()
        # Made once for each tensor: layers that learn in between change
        # variables only.
        self.features = functools.cache(self._features)
        self.extractor = functools.cache(self._extractor)

    # Facts ---------------------------------------------------------------

    @property
    def owners(self):
        """Ids of the records' owners, or `None`."""
        found = self.guarantee.unit.owners
        if np.ndim(found) > 1:
            raise ValueError(
                "Rows with several owners are supported in the steps of "
                "`make_private` only. Everything else needs one id for each "
                f"row, `(n,)`. Received: owners.shape={found.shape}"
            )
        return found

    @property
    def reach(self):
        """How many other units' records may depend on one unit's data."""
        return self.guarantee.unit.reach

    @property
    def privacy_unit(self):
        """Arguments of queries about the privacy unit."""
        return {"grouped": self.owners is not None, "reach": self.reach}

    @property
    def public_features(self):
        """Whether only the labels are secret."""
        return self.ledger.neighbours is Neighbours.REPLACE_LABEL

    @functools.cached_property
    def n(self):
        """The number of records, public by declaration."""
        for _ in self._passes.over(self._whole_pass()):
            pass
        return self._passes.n

    @property
    def _passes(self):
        """Checks that every iteration over the data gives the same records."""
        found = self.__dict__.get("_counted")
        if found is None or found[0] is not self.data:
            # Arrays in memory do not change.
            stream = records.number(self.data) is None
            found = self._counted = self.data, records.Passes(compared=stream)
        return found[1]

    @property
    def units(self):
        """The number of privacy units, records or owners, public by
        declaration."""
        return self.n if self.owners is None else len(np.unique(self.owners))

    @property
    def known_units(self):
        """`units`, if public and known without iterating over the data."""
        if not self.n_public:
            return None
        if self.owners is not None:
            return self.units
        return self._passes.n or records.number(self.data)

    def samples(self, rounds):
        """The samples of several rounds, of any size: a `SamplingPlan`."""
        kind = "full" if rounds.batch_size is None else "poisson"
        n = self.units
        size = sampling.expected_batch_size(n, kind, rounds.batch_size)
        return sampling.SamplingPlan(
            n=n,
            sampling=kind,
            expected_batch_size=size,
            capacity=n,
            sampling_rate=size / n,
            steps=rounds.rounds,
        )

    # Refusals ------------------------------------------------------------

    def check_reach(self, what):
        """Refuses data in which other units' records depend on one unit."""
        if self.reach:
            raise ValueError(f"`reach` is not supported for {what}.")

    def check_rounds(self, rounds):
        """Refuses settings that `rounds` of an output layer do not cover."""
        if self.ledger.budget.delta == 0:
            raise ValueError(
                f"{rounds} have Gaussian noise, which needs delta > 0: give "
                "the budget a delta far below one over the number of records."
            )
        if not self.n_public:
            raise ValueError(
                f"{rounds} divide by the number of records (or of owners), "
                "which must be public: `n_public=True`, or `rounds=None`."
            )
        self.check_reach(rounds)

    def check_labels(self, y, n):
        """Refuses labels without an output in the part on top."""
        if self.top is not None:
            self.top.check_labels(y, n)

    # Features ------------------------------------------------------------

    def _features(self, tensor):
        """Function from a batch of records to a tensor of the model, in which
        each row depends on its own record alone."""
        several = len(self.model.inputs) > 1
        for place, given in enumerate(self.model.inputs):
            if tensor is given:
                return lambda x: columns.floats(x[place] if several else x)
        return FeatureMap(self.extractor(tensor))

    def _extractor(self, tensor):
        """The model from records to a tensor, or `None` for an input."""
        if any(tensor is given for given in self.model.inputs):
            return None
        given = model_inputs.single(list(self.model.inputs))
        return keras.Model(given, tensor)

    def tensor_of(self, part):
        """The symbolic input of a part of the model."""
        if part is self.top and part in self.model.layers:
            return model_check.head_inputs(self.model)
        found = model_graph.layer_inputs(self.model, part.name)
        return found[0] if len(found) == 1 else found

    def single_tensor_of(self, part):
        """`tensor_of` a part that has one input."""
        tensor = self.tensor_of(part)
        if isinstance(tensor, list):
            raise ValueError(
                f"'{part.name}' must have one input to be released. Received: "
                f"{len(tensor)}"
            )
        return tensor

    # Records -------------------------------------------------------------

    @property
    def labelled_data(self):
        """Whether the records have labels that a release uses."""
        if self.top is None:
            return False
        if getattr(self.top, "needs_labels", True):
            return True
        # Without labels the records are the targets, too.
        data = getattr(self.data, "element_spec", self.data)
        if isinstance(data, tuple | list):
            return len(data) > 1
        return callable(data) or hasattr(data, "num_batches")

    def placed(self, anywhere=False):
        """Batches of one shape, `(x, y, rows[, owners])`. The records are in
        `rows`. A record's row depends on that record alone, except with
        owners, whose records stay together. If records may be `anywhere`,
        batches are as they come."""
        if self.owners is None and not anywhere:
            yield from fixed_rows.placed(
                self.checked(), PLACES, by_labels=not self.public_features
            )
            return
        for x, y, *owners in self.checked():
            count = columns.count(x)
            free = 0 if anywhere else -count % READ_BATCH
            if free:
                x = _extended(x, free)
                y = None if y is None else _extended(y, free)
            yield x, y, np.arange(count), *owners

    def checked(self):
        """Batches `(x, y[, owners])` of the data, checked."""
        for x, y, *owners in self._passes.over(self._whole_pass()):
            yield model_inputs.checked(self.model, x), y, *owners

    def _whole_pass(self):
        labelled = self.labelled_data
        if self.owners is None:
            return records.batches(self.data, READ_BATCH, labelled=labelled)
        return read_records.batches_by_owner(
            self.data, self.owners, READ_BATCH, labelled=labelled
        )

    def read(self, tensor, keep=False, anywhere=False):
        """Batches `(features, y, rows[, owners])` of one shape, with features
        at a tensor of the model.

        Args:
            tensor: a tensor of the model.
            keep: whether parts above the tensor may start from these
                features. No weight below may then change before they did.
            anywhere: whether no network computes something from the batches
                any more. Inputs of the model then need no row of their own.
        """
        kept = self._kept
        onwards = kept and kept.map_to(tensor)
        if onwards:
            batches = kept.batches
        else:
            anywhere &= self.extractor(tensor) is None
            onwards, batches = self.features(tensor), self.placed(anywhere)
        found = ((onwards(x), *more) for x, *more in batches)
        # Keep features only if they take work. Arrays are in memory already,
        # so their features may be, too.
        if (
            keep
            and kept
            and _is_work(self.extractor(tensor))
            and isinstance(self.data, (tuple, list, np.ndarray))
        ):
            found = kept.keeping(tensor, found)
        yield from found

    def unlabelled(self, part, anywhere=False):
        """Batches `(inputs, rows[, owners])` of one shape, for a layer that
        learns without labels. The records are in `rows`."""
        tensor = self.single_tensor_of(part)
        for x, y, rows, *owners in self.read(tensor, True, anywhere):
            # A wrong label must fail before the first charge, not after the
            # layers below were paid for.
            self.check_labels(None if y is None else y[rows], len(rows))
            yield x, rows, *owners

    def in_pieces(self, part):
        """Function from `pieces(inputs, chunks=)` to `(piece[, owners])`.
        `pieces` computes something for each record of a part's inputs by
        itself, a few records at a time."""

        def read(pieces):
            for inputs, *owners in _together(self.unlabelled(part)):
                first = 0
                # An owner's records must come in one piece.
                for piece in pieces(inputs, chunks=not owners):
                    last = first + len(piece)
                    yield piece, *(o[first:last] for o in owners)
                    first = last

        return read

    def labelled(self, part):
        """`(features, labels[, owners])` for an output layer, with the
        constant entry."""
        tensor = self.single_tensor_of(part)
        for x, y, rows, *owners in self.read(tensor, anywhere=True):
            yield part.augment(x[rows]), y[rows], *owners

    def counts_of_classes(self, outputs, learn):
        """The planned release of the counts of classes. `learn` gets the
        resulting weights, a tuple."""
        classes = max(2, outputs)

        def read():
            for _, y, *owners in self.checked():
                found = bounds_lib.class_indices(y, len(y), classes, outputs)
                yield balanced_classes.places(found, classes), None, *owners

        return PlannedRelease(
            name=class_weights.NAME,
            query=balanced_classes.query(classes, **self.privacy_unit),
            read=read,
            learn=lambda found: learn(balanced_classes.weights(found)),
        )

    def from_above(self, part, function):
        """Yields `(found, rows[, owners])`. `function` gets the model above
        the inputs of a part, and the records at these inputs."""
        tensor = self.tensor_of(part)
        above = keras.Model(tensor, self.model.outputs[0])
        for x, _, rows, *owners in self.read(tensor):
            if unlisted(above) is None:
                found = function(above, x)
            else:
                alone = [x[i : i + 1] for i in range(len(x))]
                found = np.concatenate([function(above, one) for one in alone])
            yield found, rows, *owners

    def descend(self, descent, planned, *, entry, **arguments):
        """Carries out the `rounds` of an output layer; returns a `Release`.

        Args:
            descent: function from the rounds, the expected number of records
                in one, and the noise's standard deviation, to weights.
        """
        query = planned.query
        mechanism = arguments["mechanism"]
        rounds = GradientRounds(
            query,
            planned.read,
            # Arrays are in memory already, so their features may be.
            keep=isinstance(self.data, (tuple, list)),
            hold=device_sums.DeviceRows if device_sums.available() else None,
            clip=planned.clip,
            **arguments,
        )
        if self._kept:
            self._kept.forget()
        weights = descent(
            rounds,
            planned.samples.expected_batch_size,
            math.sqrt(mechanism.coordinate_variance(query.size)),
        )
        return rounds.finish(weights)

    def minimise(self, planned, *, entry, notes, **arguments):
        """The `Release` of a `PerturbedLossQuery`: its weights."""
        query, ledger = planned.query, arguments["ledger"]
        release_lib.checked_entry(query, notes=notes, **arguments)
        records = query.records(planned.read(), planned.clip)
        ledger.charge([entry])
        mechanism, noise = arguments["mechanism"], arguments["noise"]
        weights = query.minimise(records, mechanism, noise)
        return release_lib.as_release(
            {"weights": weights}, query, mechanism, ledger, noise
        )

    def release_of(self, planned, statistics):
        """A `Release` of statistics with claimed noise."""
        return RELEASES[type(planned.query)](
            statistics=statistics,
            query=planned.query,
            mechanism=planned.mechanism,
            neighbours=str(self.ledger.neighbours),
            private=False,
        )

    # Results -------------------------------------------------------------

    def keep(self, part, release):
        """Keeps the release of a part, and marks a layer below as released."""
        self.releases[part.name] = release
        if part is not self.top:
            part.mark_released(self.ledger.to_json())

    def on_failure(self, undo):
        """Registers `undo`, called if a release fails midway."""
        self._undo.append(undo)

    # The releases --------------------------------------------------------

    @functools.cached_property
    def _planned(self):
        # Planned when first needed: some plans count the records, and a fit
        # that reuses its release must use none.
        return [(part, part.planned_releases(self)) for part in self._every]

    @property
    def _tops(self):
        return [] if self.top is None else [self.top]

    @property
    def _every(self):
        return [*self.parts, *self._tops]

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
        each = self.guarantee.spends / self.times
        return {name: share * each for name, share in zip(names, shares)}

    def _default_shares(self):
        shares = model_check.default_shares(self._whole_parts)
        if not self._whole_top:
            return [share / sum(shares) for share in shares]
        most = 1 - LEAST_TOP_SHARE
        if sum(shares) > most:
            shares = [share * most / sum(shares) for share in shares]
        (top,) = self._whole_top
        left = 1 - sum(shares)
        return [*shares, *(left * share for share in top.split_share())]

    def one_release(self, name):
        """The noise multiplier (standard deviation over sensitivity) if the
        share of a release were spent on one Gaussian release."""
        multiplier = calibration.gaussian_share(
            self.ledger.budget, self.shares[name]
        )
        return multiplier * (2 if self.ledger.neighbours.replaces else 1)

    @property
    def times(self):
        """How often the plan may be carried out within the budget."""
        return self.guarantee.releases

    # Planned releases ----------------------------------------------------

    @property
    def to_release(self):
        """The releases that a fit would draw, in order."""
        return [
            planned
            for part, releases in self._planned
            for planned in releases
            if self.redo or part is self.top or not part.is_released
        ]

    @property
    def is_done(self):
        """Whether the model carries all its releases."""
        return all(part.is_released for part in self._every)

    # Noise ---------------------------------------------------------------

    def mechanism(self, planned):
        """The mechanism of a release."""
        if planned.mechanism is not None:
            return planned.mechanism
        if planned.samples is None:
            return calibration.calibrate(
                planned.query,
                self.ledger.budget,
                neighbours=self.ledger.neighbours,
                share=self.shares[planned.name],
            )
        return planned.samples.mechanism(
            self._noise_multiplier(planned),
            planned.query.sensitivity("l2", neighbours=self.ledger.neighbours),
        )

    def _noise_multiplier(self, planned):
        """Noise multiplier of a sampled release, given all the others."""
        # The plan may be carried out several times: all samples together.
        samples = dataclasses.replace(
            planned.samples, steps=planned.samples.steps * self.times
        )
        # All releases that do not sample, drawn or not.
        others = self.times * [
            self.mechanism(other)
            for _, releases in self._planned
            for other in releases
            if other.samples is None
        ]
        if left := 1 - self.guarantee.spends:
            # The budget that other plans may spend, as one mechanism.
            multiplier = calibration.gaussian_share(self.ledger.budget, left)
            others.append(
                mechanisms.GaussianMechanism(
                    sensitivity=1.0, noise_multiplier=multiplier
                )
            )
        return sampling.noise_multiplier(
            samples,
            self.ledger.budget,
            neighbours=self.ledger.neighbours,
            others=others,
        )

    def entries(self):
        """The ledger entries of the plan. Uses no records."""
        return [
            self._entry(planned, self.mechanism(planned))
            for planned in self.to_release
        ]

    def _entry(self, planned, mechanism):
        entry = release_lib.planned_entry(
            planned.query,
            mechanism,
            ledger=self.ledger,
            name=planned.name,
            noise=self.noise,
            notes=self._notes(),
        )
        return entry if planned.entry is None else planned.entry(entry)

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
        """Lines for plan and statement on how features are computed, if not in
        batches."""
        if any(self._read is given for given in self.model.inputs):
            return []
        features = self.features(self._read)
        if features.unlisted is None:
            return []
        features.check_repeats()
        return [f"features: record by record ({features.unlisted})"]

    @property
    def _read(self):
        """The topmost tensor whose features a release uses."""
        tops = [t for t in self._tops if t in self.model.layers]
        return self.tensor_of(tops[0]) if tops else self.model.outputs[0]

    # Checks --------------------------------------------------------------

    @full_precision.scope()
    def check(self):
        """Refuses models without a proof, and budgets already spent."""
        self.check_model()
        records.check(self.data)
        self.ledger.check(self.entries())

    def check_model(self, spends=True):
        """Refuses models without a proof. Uses no records and no budget.

        Args:
            spends: whether the ledger will be charged. Earlier releases of
                all layers must then be in the same ledger.
        """
        model_check.check_parts(self.whole, self._every)
        for part in self._every if self.public_features else ():
            part.check_labels_alone()
        if self.published:
            model_check.check_built(self.model)
            return
        model_check.check_not_perturbed(self._every)
        model_check.check_proven(self.model, self.top)
        for part in model_check.released_parts(self.whole) if spends else ():
            # Also for a part that is released again: it may start from the
            # result of its first release, as an optimizer does.
            self.check_known(part.name, part.ledger_json)

    def check_known(self, name, ledger_json):
        """Refuses a ledger whose entries are not in this one."""
        if model_check.ledger_besides(self.ledger, ledger_json) is not None:
            raise ValueError(
                f"'{name}' was released by another PrivateModel, and this "
                "ledger does not count what that spent. Use that callback "
                "again, or continue its ledger: "
                "`PrivateModel(Ledger.open(path), ...)`. If a model was loaded "
                "and its ledger has no file, first write `ledger = "
                "Ledger.from_json(layer.ledger_json)` and `ledger.save(path)`."
            )

    # Carrying out --------------------------------------------------------

    @full_precision.scope()
    def carry_out(self):
        """Charges the ledger and uses the records, once for each release."""
        releases = self.to_release
        if len(releases) > 1:
            # Before the first charge.
            read_records.check_begins_anew(self.data)
        self._kept = Memo()
        try:
            for planned in releases:
                self.carry_out_one(planned)
        except BaseException:
            for undo in self._undo:
                undo()
            raise
        finally:
            # The traceback of an error may keep the object alive.
            self._kept.forget()
            self._kept = None
        for part in self.parts:
            # Each part saves the ledger with all releases.
            if part.is_released:
                part.mark_released(self.ledger.to_json())

    def carry_out_one(self, planned):
        """Charges the ledger for one release, computes it, and learns it."""
        mechanism = self.mechanism(planned)
        if planned.prepare is not None:
            planned = planned.prepare(planned)
        given = {
            "mechanism": mechanism,
            "ledger": self.ledger,
            "name": planned.name,
            "noise": self.noise,
            "notes": self._notes(),
        }
        if planned.carry_out is None and device_sums.takes(planned.query):
            # Before any record is used.
            release_lib.checked_entry(planned.query, **given)
            partial = device_sums.summed(
                planned.query, planned.read(), planned.clip
            )
            release = release_lib.release_statistics(partial, **given)
        elif planned.carry_out is None:
            release = release_lib.release(
                planned.query, planned.read(), clip=planned.clip, **given
            )
        else:
            release = planned.carry_out(
                planned, entry=self._entry(planned, mechanism), **given
            )
        planned.learn(release)

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
        """The parts whose released objective a fit trains."""
        return [part._carrier() for part in self._tops]


def _is_work(extractor):
    """Whether features take longer to compute than to copy. A single layer
    without weights and with as many outputs as inputs does not."""
    if extractor is None:
        return False
    _, *layers = extractor.layers
    return (
        len(layers) > 1
        or bool(extractor.weights)
        or extractor.input_shape != extractor.output_shape
    )


def _together(batches):
    """The records of batches `(inputs, rows[, owners])`, in larger batches:
    summing large statistics costs as much for a few records."""
    waiting, count = [], 0
    for inputs, rows, *owners in batches:
        if owners:
            yield inputs[rows], *owners
            continue
        waiting.append(inputs[rows])
        count += len(rows)
        if count >= READ_BATCH - PLACES:
            yield (np.concatenate(waiting),)
            waiting, count = [], 0
    if waiting:
        yield (np.concatenate(waiting),)


def _extended(x, rows):
    return columns.transform(
        lambda array, _: np.concatenate([array, columns.filled(array, rows)]), x
    )
