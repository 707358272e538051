"""What a plan hands to parts that release: records, features, facts."""

import contextlib
import functools
import math

import keras
import numpy as np

from keras_fm.kernel import records
from keras_fm.kernel.budget import Neighbours
from keras_fm.kernel.ledger.noisy_statistics import RELEASES
from keras_fm.kernel.reads import columns, placed_records, sampling
from keras_fm.kernel.reads.gradient_reads import GradientReads
from keras_fm.parts import model_graph, model_inputs
from keras_fm.parts.record_alone import FeatureMap, unlisted
from keras_fm.training import model_check
from keras_fm.training.kept_features import KeptFeatures

# Rows of a batch as it is read, and of one in which records have places: of few
# rows, none is idle for long (docs/results/speed.md).
READ_BATCH = 1024
PLACES = 64


class Reading:
    """How the parts of one model read the records.

    Args:
        model: what the records go through: the model, or what is below one
            that is a private part itself.
        top: `None`, or the part that is released last; it knows the labels.
        data: the private records.
        ledger: the `Ledger` that is charged.
        noise: a `NoiseSource`.
        guarantee: `Proven` or `Published`.
    """

    def __init__(
        self,
        model,
        top,
        *,
        data,
        ledger,
        noise,
        guarantee,
    ):
        self.model, self.top = model, top
        self.data, self.ledger, self.noise = data, ledger, noise
        self.guarantee = guarantee
        self.published = guarantee.kind == "published"
        self.releases = {}
        self._undo = []
        # While the plan is carried out: features for the parts above.
        self._kept = None

    # Facts ---------------------------------------------------------------

    @property
    def _unit(self):
        return getattr(self.guarantee, "unit", None)

    @property
    def owners(self):
        """Ids of the records' owners, or `None`."""
        return getattr(self._unit, "owners", None)

    @property
    def reach(self):
        """How many other units' records one unit's data enters."""
        return getattr(self._unit, "reach", 0)

    @property
    def privacy_unit(self):
        """What objectives must know of the privacy unit."""
        return {"grouped": self.owners is not None, "reach": self.reach}

    @property
    def public_features(self):
        """Whether labels alone are secret."""
        return self.ledger.neighbours is Neighbours.REPLACE_LABEL

    @property
    def n_public(self):
        """Whether the number of records is public."""
        return getattr(self.guarantee, "n_public", True)

    @property
    def ridge_factor(self):
        """Ridge in units of the noise's spectral edge."""
        return getattr(self.guarantee, "ridge_factor", 0.5)

    @property
    def lot(self):
        """What published noise is divided by."""
        return self.guarantee.lot

    @functools.cached_property
    def n(self):
        """The number of records, public by declaration."""
        for _ in self._passes.over(self._whole_pass()):
            pass
        return self._passes.n

    @property
    def _passes(self):
        """What the passes over the records have in common."""
        data, passes = self.__dict__.get("_counted", (None, None))
        if passes is None or data is not self.data:
            # Arrays in memory do not change.
            stream = records.number(data) is None
            passes = records.Passes(n_public=self.n_public, compared=stream)
            self._counted = self.data, passes
        return passes

    @property
    def units(self):
        """The number of privacy units, records or owners, public by
        declaration."""
        return self.n if self.owners is None else len(np.unique(self.owners))

    @property
    def known_units(self):
        """`units`, if they are public and known without a pass."""
        if not self.n_public:
            return None
        if self.owners is not None:
            return self.units
        return self._passes.n or records.number(self.data)

    def samples(self, rounds):
        """The samples of several reads, of any size: a `SamplingPlan`."""
        kind = "full" if rounds.batch_size is None else "poisson"
        n = self.units
        size = sampling.expected_batch_size(n, kind, rounds.batch_size)
        return sampling.SamplingPlan(
            n=n,
            sampling=kind,
            expected_batch_size=size,
            capacity=n,
            sampling_rate=size / n,
            steps=rounds.reads,
        )

    # Refusals ------------------------------------------------------------

    def check_delta(self, reads):
        """Refuses Gaussian noise without a delta."""
        if self.ledger.budget.delta == 0:
            raise ValueError(
                f"{reads} have Gaussian noise, which needs delta > 0: give "
                "the budget a delta far below one over the number of records."
            )

    def check_by_record(self, what):
        """Refuses another privacy unit than one record."""
        if self.owners is not None or self.reach:
            raise ValueError(
                "`owners` and `reach` are not supported for "
                f"{what}, which is read record by record."
            )

    def check_reach(self, what):
        """Refuses other units' records that one unit's data enters."""
        if self.reach:
            raise ValueError(f"`reach` is not supported for {what}.")

    def check_rounds(self, rounds):
        """Refuses what several reads of an output layer do not cover."""
        self.check_delta(rounds)
        if not self.n_public:
            raise ValueError(
                f"{rounds} divide by the number of records (or of owners), "
                "which must be public: `n_public=True`, or `rounds=None`."
            )
        self.check_reach(rounds)

    def check_labels(self, y, n):
        """Refuses labels that the part on top has no output for."""
        if self.top is not None:
            self.top.check_labels(y, n)

    # Features ------------------------------------------------------------

    def features(self, tensor):
        """Function from a batch of records to a tensor of the model, of each
        record alone.

        One compiled map for every read: what layers learn in between are
        variables.
        """
        known = self.__dict__.setdefault("_maps", {})
        if id(tensor) not in known:
            known[id(tensor)] = (tensor, self._map(tensor))
        return known[id(tensor)][1]

    def _map(self, tensor):
        several = len(self.model.inputs) > 1
        for place, given in enumerate(self.model.inputs):
            if tensor is given:
                return lambda x: columns.floats(x[place] if several else x)
        return FeatureMap(self.extractor(tensor))

    def extractor(self, tensor):
        """The model from records to a tensor, or `None` for an input."""
        if any(tensor is given for given in self.model.inputs):
            return None
        known = self.__dict__.setdefault("_extractors", {})
        if id(tensor) not in known:
            given = model_inputs.single(list(self.model.inputs))
            known[id(tensor)] = keras.Model(given, tensor)
        return known[id(tensor)]

    def tensor_of(self, part):
        """The symbolic tensor that a part of the model reads."""
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
        """Whether the records have labels that are read."""
        if self.top is None:
            return False
        if getattr(self.top, "needs_labels", True):
            return True
        # Records alone are the targets too.
        data = getattr(self.data, "element_spec", self.data)
        if isinstance(data, tuple | list):
            return len(data) > 1
        return callable(data) or hasattr(data, "num_batches")

    def placed(self):
        """Batches of one shape, `(x, y, rows[, owners])`: `rows` are those in
        which records are. The row of a record depends on that record alone,
        but with owners, whose records come together."""
        if self.owners is None:
            yield from placed_records.placed(
                self.checked(), PLACES, by_labels=not self.public_features
            )
            return
        for x, y, owners in self.checked():
            free = -len(owners) % READ_BATCH
            if free:
                x = _extended(x, free)
                y = None if y is None else _extended(y, free)
            yield x, y, np.arange(len(owners)), owners

    def checked(self):
        """Batches `(x, y[, owners])` as they are read."""
        for x, y, *owners in self._passes.over(self._whole_pass()):
            yield model_inputs.checked(self.model, x), y, *owners

    def _whole_pass(self):
        labelled = self.labelled_data
        if self.owners is None:
            return records.batches(self.data, READ_BATCH, labelled=labelled)
        return records.batches_by_owner(
            self.data, self.owners, READ_BATCH, labelled=labelled
        )

    def read(self, tensor, keep=False):
        """Batches `(features, y, rows[, owners])` of one shape, of a tensor of
        the model.

        Args:
            tensor: of the model.
            keep: whether parts above the tensor may go on from what is read
                here. No weight below it may change then before they have.
        """
        kept = self._kept
        onwards = kept and kept.map_to(tensor)
        if onwards:
            batches = kept.batches
        else:
            onwards, batches = self.features(tensor), self.placed()
        found = ((onwards(x), *more) for x, *more in batches)
        # Records are there already; arrays are in memory, so may be what is
        # made of them.
        if (
            keep
            and kept
            and _is_work(self.extractor(tensor))
            and isinstance(self.data, (tuple, list, np.ndarray))
        ):
            x = self.data if isinstance(self.data, np.ndarray) else self.data[0]
            found = kept.keeping(tensor, found, columns.count(x))
        yield from found

    def unlabelled(self, part):
        """Batches `(inputs, rows[, owners])` of one shape, of a layer that
        learns without labels; `rows` are those in which records are."""
        tensor = self.single_tensor_of(part)
        for x, y, rows, *owners in self.read(tensor, keep=True):
            # A wrong label is an error before the first charge, not after the
            # layers below were paid for.
            self.check_labels(None if y is None else y[rows], len(rows))
            yield x, rows, *owners

    def in_pieces(self, part):
        """Function from `pieces(inputs, chunks=)`, which makes something of
        each record of a part's inputs, whichever others are there, a few
        records at a time, to `(piece[, owners])`."""

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
        """`(features, labels[, owners])` of an output layer, its constant
        entry included."""
        tensor = self.single_tensor_of(part)
        for x, y, rows, *owners in self.read(tensor):
            yield part.augment(x[rows]), y[rows], *owners

    def from_above(self, part, function):
        """`(found, rows[, owners])`: `function` of the model from the inputs
        of a part upwards, and of records there."""
        tensor = self.tensor_of(part)
        above = keras.Model(tensor, self.model.outputs[0])
        for x, _, rows, *owners in self.read(tensor):
            if unlisted(above) is None:
                found = function(above, x)
            else:
                alone = [x[i : i + 1] for i in range(len(x))]
                found = np.concatenate([function(above, one) for one in alone])
            yield found, rows, *owners

    def descend(self, part, step, *, entry, **arguments):
        """The reads of an output layer with `rounds`, a `Release`."""
        query, rounds = step.query, part.rounds
        mechanism = arguments["mechanism"]
        reads = GradientReads(
            query,
            step.read,
            # Arrays are in memory already, so their features may be.
            keep=isinstance(self.data, (tuple, list)),
            clip=step.clip,
            **arguments,
        )
        if self._kept:
            self._kept.forget()
        weights = rounds.descend(
            reads,
            np.zeros(query.shapes[0]),
            step.samples.expected_batch_size,
            math.sqrt(mechanism.coordinate_variance(query.size)),
            query.steepest,
        )
        return reads.finish(weights)

    def release_of(self, step, statistics):
        """A `Release` of statistics that carry claimed noise."""
        return RELEASES[type(step.query)](
            statistics=statistics,
            query=step.query,
            mechanism=step.mechanism,
            neighbours=str(self.ledger.neighbours),
            private=False,
        )

    # What is learned -----------------------------------------------------

    def keep(self, part, release):
        """Keeps the release of a part; of a layer below, marks it."""
        self.releases[part.name] = release
        if part is not self.top:
            part.mark_released(self.ledger.to_json())

    def keep_top(self, release):
        """Keeps the release of the part on top."""
        self.keep(self.top, release)

    def on_failure(self, undo):
        """Has `undo` called if a release fails midway."""
        self._undo.append(undo)

    @contextlib.contextmanager
    def keeping_features(self):
        """What a part reads in here is kept for the parts above it."""
        self._kept = KeptFeatures()
        try:
            yield
        finally:
            # An error's traceback may hold it for longer.
            self._kept.forget()
            self._kept = None

    def undo(self):
        """Undoes what failed midway."""
        for undo in self._undo:
            undo()


def _is_work(extractor):
    """Whether what is made of records takes longer than a copy of them: not
    one layer that weighs nothing and gives as many numbers."""
    if extractor is None:
        return False
    _, *layers = extractor.layers
    return (
        len(layers) > 1
        or bool(extractor.weights)
        or extractor.input_shape != extractor.output_shape
    )


def _together(batches):
    """The records of batches `(inputs, rows[, owners])`, more at a time: sums
    of large statistics cost as much for few."""
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
        lambda array, _: np.concatenate([array, columns.filled(array, rows)]),
        x,
    )
