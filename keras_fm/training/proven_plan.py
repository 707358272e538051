"""What a proven fit releases, in which order, and how the layers learn it."""

import dataclasses
import functools
import math

import keras
import numpy as np

from keras_fm import placed_records, records, sampling
from keras_fm import release as release_lib
from keras_fm import relevance as relevance_lib
from keras_fm.callbacks import (
    encoder_release,
    energy_release,
    model_check,
    pca_release,
)
from keras_fm.callbacks.step import Step
from keras_fm.layers.chebyshev_crbm import ChebyshevCRBM
from keras_fm.layers.dp_pca import DPPCA
from keras_fm.layers.expansion_state import ExpansionState
from keras_fm.layers.private_encoder import PrivateEncoder
from keras_fm.objectives import RelevanceObjective

_READ_BATCH = 1024
# Rows of a batch in which every record has its place.
_PLACES = 256
# Shares of the budget: first model, its relevance, the model that is kept.
ADAPTIVE_SHARES = (0.2, 0.1, 0.7)
# What is left to what is above the pre-trained layers, however many.
LEAST_TOP_SHARE = 0.5


class ProvenPlan:
    """The releases of one fit.

    In order: every `PrivateEncoder` of the model (its moments, or its rounds
    of reconstruction), every `ChebyshevCRBM` (the moments of its patches) and
    every `DPPCA` (its second moment), from the input upwards; then the output
    layer's objective. With `RelevanceScaling` the output layer takes three:
    the objective at scale 1, the relevance of the model it gives, and the
    objective of the scaled features. Each reads every record once; an output
    layer with `rounds` takes one release of several reads.

    Args:
        model: a built model.
        data: the private records.
        ledger: the `Ledger` that is charged.
        noise: a `NoiseSource`.
        shares: `None`, or one share for each release.
        planned_releases: how often the plan may be carried out.
        n_public: whether the number of records is public.
        ridge_factor: ridge in units of the noise's spectral edge.
        owners: `None`, or the ids of the records' owners (the privacy unit).
        reach: how many other units' records one unit's data enters.
        notes: further public facts for the ledger.
        redo: whether layers that were released before are released again.

    Raises:
        ValueError: if the model is not one that a proof covers.
    """

    def __init__(
        self,
        model,
        *,
        data,
        ledger,
        noise,
        shares,
        planned_releases,
        n_public,
        ridge_factor,
        owners=None,
        reach=0,
        notes=(),
        redo=False,
    ):
        # A view that pre-trains is planned by the model that encodes; its
        # shares are those it has in the model that it is a part of.
        self.model = getattr(model, "encoding_model", model)
        whole = getattr(model, "part_of", None) or self.model
        self.data, self.ledger, self.noise = data, ledger, noise
        self.planned_releases = planned_releases
        self.n_public, self.ridge_factor = n_public, ridge_factor
        self.owners, self.reach = owners, reach
        self.extra_notes = tuple(notes)
        self.pretrained = model_check.pretrained_layers(self.model)
        self.scaling, self.scaling_inputs = model_check.relevance_scaling(
            self.model
        )
        top = self._top_names(whole)
        self.head, self.inputs = model_check.output_layer(
            self.model, needed=not (self.pretrained or top)
        )
        if self.scaling is not None and (self.pretrained or not self.head):
            raise ValueError(
                "A model can have PrivateEncoder, ChebyshevCRBM and DPPCA "
                "layers or a RelevanceScaling layer, not both."
            )
        self.release, self.relevance, self.redo = None, None, redo
        self._pretrained_releases = {}
        names = [
            *(
                name
                for layer, _ in model_check.pretrained_layers(whole)
                for name in _kind(layer).names(layer)
            ),
            *top,
        ]
        shares = self._default_shares(whole) if shares is None else shares
        if len(shares) != len(names):
            raise ValueError(
                "`shares` must hold one share for each of the "
                f"{len(names)} releases of this model, {names}. Received: "
                f"shares={shares}"
            )
        self.shares = {
            name: share / planned_releases for name, share in zip(names, shares)
        }

    def _top_names(self, model):
        head = model_check.output_layer(model, needed=False)[0]
        if head is None:
            return []
        if self.scaling is None:
            return [head.name]
        return [
            f"{head.name} (first model)",
            f"{self.scaling.name} (relevance)",
            head.name,
        ]

    def _default_shares(self, whole):
        if self.scaling is not None:
            return ADAPTIVE_SHARES
        layers = [layer for layer, _ in model_check.pretrained_layers(whole)]
        kinds = [_kind(layer) for layer in layers]
        shares = []
        for layer, kind in zip(layers, kinds):
            total = kind.SHARE
            if kind is encoder_release:
                total /= kinds.count(kind)
            parts = len(kind.names(layer))
            shares += [total / parts] * parts
        if not self._top_names(whole):
            return [share / sum(shares) for share in shares]
        most = 1 - LEAST_TOP_SHARE
        if sum(shares) > most:
            shares = [share * most / sum(shares) for share in shares]
        return [*shares, *self._top_shares(1 - sum(shares))]

    def _top_shares(self, left):
        return [left]

    # What will be read ---------------------------------------------------

    @property
    def steps(self):
        """The releases that a fit would draw, in order."""
        found = []
        for layer, tensor in self.pretrained:
            if self.redo or not layer.is_released:
                found += _kind(layer).steps(self, layer, self.reader(tensor))
        return found + self._top_steps()

    def _all_steps(self):
        """The same, with the releases that a layer has already."""
        found = []
        for layer, _ in self.pretrained:
            found += _kind(layer).steps(self, layer, None)
        return found + self._top_steps()

    @property
    def is_done(self):
        """Whether the model carries all its releases."""
        layers = [layer for layer, _ in self.pretrained]
        if self.head is not None:
            layers.append(self.head)
        return all(layer.is_released for layer in layers)

    @property
    def was_trained_on_release(self):
        """Whether what was trained before was a released objective."""
        return self.head is not None and self.head.is_released

    @property
    def in_training(self):
        """Layers whose released objective takes part in training."""
        return [] if self.head is None else [self.head]

    @property
    def labelled(self):
        """Whether the records have labels that are read."""
        return self.head is not None

    @property
    def privacy_unit(self):
        """What objectives must know of the privacy unit."""
        return {"grouped": self.owners is not None, "reach": self.reach}

    def keep(self, layer, release):
        """Keeps the release of a pre-trained layer, and marks the layer."""
        self._pretrained_releases[layer.name] = release
        layer.mark_released(self.ledger.to_json())

    def _head_objective(self):
        return self.head.objective(**self.privacy_unit)

    def _top_steps(self):
        """The releases of what is above the pre-trained layers."""
        if self.head is None:
            return []
        objective = self._head_objective()
        self._check_supported()

        def learn(release):
            self.release = release

        def step(name, objective, read, learn, **sampled):
            return Step(
                name=name,
                objective=objective,
                share=self.shares[name],
                clip=self.head.clip,
                read=read,
                learn=learn,
                **sampled,
            )

        sampled = {}
        if self.head.rounds is not None:
            sampled["samples"] = self._samples(self.head.rounds)
            sampled["sample"] = functools.partial(self._descend, objective)
        kept = step(
            self.head.name, objective, self._read_head, learn, **sampled
        )
        if self.scaling is None:
            return [kept]
        ball = "l2" if self.ledger.budget.delta > 0 else "l1"
        relevance = RelevanceObjective(
            num_features=int(np.prod(self.scaling.scale.shape)), ball=ball
        )
        first, second = self._top_names(self.model)[:2]
        state = {}

        def read_first():
            self.scaling.reset()
            return self._read_head()

        def learn_first(release):
            state["share"] = release.signal_share()
            state["weights"] = self.head.get_weights()
            self.head.set_augmented_weights(
                release.minimise(self.ridge_factor)[1]
            )

        def read_relevance():
            try:
                yield from self._read_relevance()
            finally:
                self.head.set_weights(state["weights"])

        def learn_relevance(release):
            shape = self.scaling.scale.shape
            self.relevance = release.shares().reshape(shape)
            self.scaling.set_shares(self.relevance, state["share"])

        return [
            step(first, objective, read_first, learn_first),
            step(second, relevance, read_relevance, learn_relevance),
            kept,
        ]

    def _check_supported(self):
        other = "a RelevanceScaling layer" if self.scaling is not None else ""
        if self.head.rounds is not None:
            rounds = f"`rounds` of layer '{self.head.name}'"
            if other:
                raise ValueError(f"{rounds} and {other} exclude each other.")
            other = rounds
            self._check_delta(rounds)
            if not self.n_public:
                raise ValueError(
                    f"{rounds} divide by the number of records, which must "
                    "be public: `n_public=True`, or `rounds=None`."
                )
        if other and (self.owners is not None or self.reach):
            raise ValueError(
                f"`owners` and `reach` are not supported together with {other}."
            )

    def _check_delta(self, reads):
        if self.ledger.budget.delta == 0:
            raise ValueError(
                f"{reads} have Gaussian noise, which needs delta > 0: give "
                "the budget a delta far below one over the number of records."
            )

    # Noise ---------------------------------------------------------------

    def _mechanism(self, step):
        if step.samples is None:
            return release_lib.calibrate(
                step.objective,
                self.ledger.budget,
                neighbours=self.ledger.neighbours,
                share=step.share,
            )
        return step.samples.mechanism(
            self._noise_multiplier(step),
            step.objective.sensitivity("l2", neighbours=self.ledger.neighbours),
        )

    def _noise_multiplier(self, step):
        """What the releases beside a sampled one leave to it."""
        others = [
            self._mechanism(other)
            for other in self._all_steps()
            if other.samples is None
        ]
        # All planned releases together, of which this is one.
        samples = dataclasses.replace(
            step.samples, steps=step.samples.steps * self.planned_releases
        )
        return sampling.noise_multiplier(
            samples,
            self.ledger.budget,
            neighbours=self.ledger.neighbours,
            others=others * self.planned_releases,
        )

    def _samples(self, rounds):
        """The samples of the output layer's reads, of any size."""
        n, kind = self._n, "full" if rounds.batch_size is None else "poisson"
        size = sampling.expected_batch_size(n, kind, rounds.batch_size)
        return sampling.SamplingPlan(
            n=n,
            sampling=kind,
            expected_batch_size=size,
            capacity=n,
            sampling_rate=size / n,
            steps=rounds.reads,
        )

    @functools.cached_property
    def _n(self):
        """The number of records, public by declaration."""
        return sum(len(x) for x, _ in records.batches(self.data, _READ_BATCH))

    def entries(self):
        """The ledger entries of the plan, nothing read."""
        return [
            release_lib.planned_entry(
                step.objective,
                self._mechanism(step),
                ledger=self.ledger,
                name=step.name,
                noise=self.noise,
                notes=self._notes(),
            )
            for step in self.steps
        ]

    def _notes(self):
        facts = model_check.public_facts(self.model, self.head)
        if self.n_public:
            facts.append(
                "the number of records n is public by declaration (it sets "
                "the number of training steps)"
            )
        else:
            facts.append("the number of records n is not used")
        return (*facts, *self.extra_notes)

    # Reading -------------------------------------------------------------

    def check(self):
        """Refuses models no proof covers and budgets already spent."""
        model_check.check_proven(self.model, self.head)
        if self.head is not None and not self.head.clip:
            model_check.check_bounded_above_pca(self.model, self.head)
        self._check_ledgers()
        self.ledger.check(self.entries())
        model_input = self.model.inputs[0]
        tensor = self.inputs if self.head else self.model.outputs[0]
        model_check.check_records_independent(
            self._features if self.head else self.reader(tensor),
            model_input.shape[1:],
            str(model_input.dtype),
        )

    def _check_ledgers(self):
        """What a layer was released with must be in this ledger."""
        for layer, _ in self.pretrained:
            if layer.is_released and not self.redo:
                self._check_known(layer.name, layer.ledger_json)
        # A FunctionalNet below was made of a release, too.
        for layer in self.model._flatten_layers(include_self=False):
            if isinstance(layer, ExpansionState) and layer.is_released:
                self._check_known(layer.name, layer.ledger_json)

    def _check_known(self, name, ledger_json):
        known = [dataclasses.asdict(e) for e in self.ledger.entries]
        other = type(self.ledger).from_json(ledger_json)
        if any(dataclasses.asdict(e) not in known for e in other.entries):
            raise ValueError(
                f"'{name}' was released by another PrivateModel, and what "
                "that spent is not in this ledger. Go on with that callback, "
                "or continue its ledger: "
                "`PrivateModel(Ledger.from_json(...ledger_json), ...)`."
            )

    def carry_out(self):
        """Reads the records and charges the ledger, once for each step."""
        for step in self.steps:
            self.carry_out_one(step)
        self.releases = dict(self._pretrained_releases)
        if self.head is not None:
            self.releases[self.head.name] = self.release

    def carry_out_one(self, step):
        """Charges the ledger for one step, reads, and lets it be learned."""
        arguments = {
            "mechanism": self._mechanism(step),
            "ledger": self.ledger,
            "name": step.name,
            "noise": self.noise,
            "clip": step.clip,
            "notes": self._notes(),
        }
        if step.samples is None:
            release = release_lib.release(
                step.objective, step.read(), **arguments
            )
        else:
            release = step.sample(**arguments)
        step.learn(release)

    def unlabelled(self):
        """Batches `(x, rows[, owners])` of one shape, for layers that learn
        without labels; `rows` are those in which records are."""
        # A wrong label is an error before the first charge, not after the
        # layers below were paid for.
        for x, y, rows, *owners in self._placed():
            self.check_labels(None if y is None else y[rows], len(rows))
            yield x, rows, *owners

    def check_labels(self, y, n):
        """Refuses labels that the output layer has no class for."""
        if self.head is not None:
            self._head_objective().targets(y, n)

    def _read_head(self):
        for x, y, rows, *owners in self._placed():
            yield self.head.augment(self._features(x)[rows]), y[rows], *owners

    def _descend(self, objective, **arguments):
        """The reads of an output layer with `rounds`."""
        reads = release_lib.GradientReads(
            objective,
            self._read_head,
            # Arrays are in memory already, so their features may be.
            keep=isinstance(self.data, (tuple, list)),
            **arguments,
        )
        rounds = self.head.rounds
        weights = rounds.descend(
            reads,
            np.zeros(objective.shapes[0]),
            self._samples(rounds).expected_batch_size,
            math.sqrt(
                arguments["mechanism"].coordinate_variance(objective.size)
            ),
        )
        return reads.finish(weights)

    def _read_relevance(self):
        below = self.reader(self.scaling_inputs)
        top = keras.Model(self.scaling_inputs, self.model.outputs[0])
        for x, _, rows in self._placed():
            found = relevance_lib.layer_wise(top, below(x))
            yield (found.reshape(len(x), -1)[rows],)

    @functools.cached_property
    def _features(self):
        # One compiled map for the check and every read of the output
        # layer's objective: scales are variables.
        return self.reader(self.inputs)

    def reader(self, tensor):
        """Function from a batch of records to a tensor of the model."""
        if tensor is self.model.inputs[0]:
            return lambda x: np.asarray(x)
        extractor = keras.Model(self.model.inputs[0], tensor)
        return lambda x: np.asarray(extractor.predict_on_batch(x))

    def _placed(self):
        """Batches of one shape, `(x, y, rows[, owners])`: `rows` are those in
        which records are. The row of a record depends on that record alone,
        but with owners, whose records come together."""
        if self.owners is None:
            yield from placed_records.placed(self._checked(), _PLACES)
            return
        for x, y, owners in self._checked():
            free = -len(x) % _READ_BATCH
            if free:
                x, y = (
                    v
                    if v is None
                    else np.concatenate(
                        [v, np.zeros((free, *v.shape[1:]), v.dtype)]
                    )
                    for v in (x, y)
                )
            yield x, y, np.arange(len(owners)), owners

    def _checked(self):
        """Batches `(x, y[, owners])` as they are read."""
        expected = self.model.inputs[0].shape[1:]
        labelled = self.labelled
        if self.owners is None:
            found = records.batches(self.data, _READ_BATCH, labelled=labelled)
        else:
            found = records.batches_by_owner(
                self.data, self.owners, _READ_BATCH, labelled=labelled
            )
        for x, y, *owners in found:
            if len(x.shape[1:]) != len(expected) or any(
                e is not None and e != d for e, d in zip(expected, x.shape[1:])
            ):
                raise ValueError(
                    f"Records must have shape {tuple(expected)}, as the "
                    f"model's input. Received: {x.shape[1:]}"
                )
            if x.dtype.kind == "f" and not np.all(np.isfinite(x)):
                raise ValueError(
                    "`data` has NaN or infinite inputs. Clean the records "
                    "before the release; nothing was spent."
                )
            yield x, y, *owners

    # What the layers learn -----------------------------------------------

    def install(self, start):
        """Gives the output layer its released objective."""
        if self.head is not None:
            self.head.learn(self.release, self.ledger, self.ridge_factor, start)


# How a layer learns from a release, and its share of the budget; the layers
# of a kind with a share of their own split it.
_KINDS = {
    ChebyshevCRBM: energy_release,
    DPPCA: pca_release,
    PrivateEncoder: encoder_release,
}


def _kind(layer):
    return next(v for k, v in _KINDS.items() if isinstance(layer, k))
