"""The charge of a private fit, computed before it uses the records."""

import dataclasses
import functools
import math

import numpy as np

from keras_fm.kernel import checks, mechanisms
from keras_fm.kernel.access import sampling
from keras_fm.kernel.ledger.ledger import BudgetExceededError
from keras_fm.kernel.ledger.ledger_entry import FLOATING_POINT, LedgerEntry
from keras_fm.kernel.ledger.ledger_text import shown_unit
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.noise_mechanisms import GaussianMechanism
from keras_fm.kernel.planning import calibration
from keras_fm.per_example import layer_table
from keras_fm.per_example.balanced_classes import BalancedClasses
from keras_fm.per_example.given_records import GivenRecords
from keras_fm.per_example.participation import (
    BallsInBins,
    BinsPlan,
    Participation,
)
from keras_fm.per_example.record_map import HELD

_SHUFFLED = (
    "none. The steps use batches of a fixed size from shuffled records, but "
    "the accounting assumes that each record joins each batch independently "
    "(Poisson samples); see docs/guarantees.md"
)
_GRAPH = (
    "which owner has which row is public by declaration; neighbours differ in "
    "the contents of one owner's rows, or lack that owner (add_remove)"
)
_PLACES = (
    "the place of each record in the order is public by declaration; a record "
    "that is left out leaves its place empty"
)


class FitCharge:
    """The samples of a fit, and the noise that its budget requires.

    Args:
        network: a `PrivateNetwork`.
        callback: the `PrivateModel` of the fit.
        n: int, number of records.
        batch_size: int, at most n.
        epochs: int, number of epochs still to train.
        steps_per_epoch: int, or `None` for `ceil(n / batch_size)`.
        classes: `None`, or int: the number of classes to balance.
        participation: `None` (Poisson samples), a `Participation`, or
            `BallsInBins()`.

    Attributes:
        plan: the `keras_fm.kernel.access.sampling.SamplingPlan`.
        correlated: `None`, or the `CorrelatedNoise`.
        first: list of the fit's own releases before its steps.
        others: list of the mechanisms of other releases before the steps.
        per_epoch: int, steps of an epoch.

    Raises:
        ValueError: if noisy steps cannot give the guarantee.
    """

    def __init__(
        self,
        network,
        callback,
        n,
        batch_size,
        epochs,
        steps_per_epoch=None,
        classes=None,
        participation=None,
    ):
        self._network, self._callback = network, callback
        ledger, self.others = callback.ledger, []
        self._published = callback.guarantee.kind == "published"
        lot = getattr(callback.guarantee, "lot", batch_size)
        if lot != batch_size:
            raise ValueError(
                "`lot` must be the `batch_size` of `fit`: the published noise "
                f"is divided by it. Received: lot={lot}, batch_size="
                f"{batch_size}"
            )
        if ledger.budget.delta <= 0:
            raise ValueError(
                "Noisy steps need delta > 0, far below one over the number of "
                "records: `PrivateModel(epsilon=2.0, delta=1e-5)`. Received: "
                f"delta={ledger.budget.delta:g}"
            )
        full = batch_size == n
        if participation is not None:
            self._check_passes(participation, steps_per_epoch)
        ordered = isinstance(participation, Participation)
        self.bins = isinstance(participation, BallsInBins) and not full
        if not (full or ordered) and str(ledger.neighbours) != "add_remove":
            raise ValueError(
                'Random samples have a proof for neighbours="add_remove" '
                f"only. Leave `neighbours` out, or give `fit` batch_size={n}, "
                "all records in every step, or "
                "`participation=keras_fm.Participation()`. Received: "
                f"neighbours={ledger.neighbours}"
            )
        self.per_epoch = steps_per_epoch or max(1, math.ceil(n / batch_size))
        drawn = "shuffled" if self._published or ordered else "poisson"
        self.plan = sampling.plan(
            n,
            sampling="full" if full else drawn,
            batch_size=None if full else batch_size,
            steps=epochs * self.per_epoch,
            delta=ledger.budget.delta,
            epsilon=ledger.budget.epsilon,
        )
        if self.bins:
            self.plan = BinsPlan(**dataclasses.asdict(self.plan))
        self.correlated = None
        if ordered:
            self.correlated = participation.noise(
                self.per_epoch, self.plan.steps
            )
        guarantee = callback.guarantee
        owners, self.first = owners_of(guarantee), []
        self._owned = owners is not None
        self._chosen = ""
        if (rows := chosen_of(guarantee)) is not None:
            self._chosen = (
                f"; at most one row of each owner, {len(rows):,} of "
                f"{len(guarantee.unit.owners):,} rows"
            )
        self._spends = getattr(guarantee, "spends", 1.0)
        if classes is not None:
            self.first.append(
                BalancedClasses(classes, owners, ledger, self._spends)
            )
        self.first += network.released_first(ledger, self._spends)

    def _check_passes(self, participation, steps_per_epoch):
        checks.instance(
            "participation",
            participation,
            (Participation, BallsInBins),
            "keras_fm.Participation() or keras_fm.BallsInBins()",
        )
        if self._published or not self._network.correlates:
            raise ValueError(
                "`participation` is for the proven steps of `make_private` "
                "and `GradientNet`. Leave it out."
            )
        if steps_per_epoch is not None:
            raise ValueError(
                "`steps_per_epoch` must be left out with `participation`: an "
                "epoch uses every record once, in `ceil(n / batch_size)` "
                f"steps. Received: steps_per_epoch={steps_per_epoch}"
            )

    def released_first(self, noise):
        """Entries of `first`."""
        return [one.entry(noise) for one in self.first]

    @functools.cached_property
    def mechanism(self):
        """The mechanism of all steps together, in units of the clip."""
        ledger, spends = self._callback.ledger, self._spends
        spent = [e.build_mechanism() for e in ledger.entries]
        multiplier = 0.0
        if spends < 1:
            # At most its share, even if more is left.
            left = calibration.gaussian_share(ledger.budget, 1 - spends)
            rest = GaussianMechanism(sensitivity=1.0, noise_multiplier=left)
            multiplier = self._multiplier([rest])
        if spent or not multiplier:
            try:
                multiplier = max(multiplier, self._multiplier(spent))
            except ValueError:
                if not spent:
                    raise
                raise BudgetExceededError(
                    "The ledger has too little budget left for another fit: "
                    f"epsilon = {ledger.epsilon():.4g} of "
                    f"{ledger.budget.epsilon:g} is spent. To fit several "
                    "times, let each fit spend a part: "
                    "`guarantee=Proven(spends=0.5)`."
                ) from None
        one = self._network.step_query.sensitivity(
            "l2", neighbours=ledger.neighbours
        )
        if self.correlated is None:
            return self.plan.mechanism(multiplier, one)
        return GaussianMechanism(
            sensitivity=one * self.correlated.sensitivity,
            noise_multiplier=multiplier,
        )

    def _multiplier(self, others):
        first = [one.mechanism for one in self.first]
        others = [*others, *self.others, *first]
        return sampling.noise_multiplier(
            self.plan if self.correlated is None else (1.0, 1),
            self._callback.ledger.budget,
            neighbours=self._callback.ledger.neighbours,
            others=others,
        )

    def entry(self, notes=(), shuffle=True):
        """The ledger's entry for all steps of the fit.

        Args:
            notes: further public facts.
            shuffle: bool, whether the order of a `Participation` is drawn.
        """
        uses, unit = self._network.step_uses, "records n"
        if self._owned:
            unit = "owners"
            uses += (
                "; an owner counts as one record, the mean of at most "
                f"{self._network.rows_per_owner} of its rows"
            )
        if self._chosen:
            notes = [_GRAPH, *notes]
            uses += self._chosen
        start = self._network.declared_public
        mechanism, guarantee = self.mechanism.config(), "proven"
        proof = self._network.step_proof
        if self.bins:
            uses += f"; {self._order}"
            proof += ", docs/proofs/balls_in_bins.md"
        if self.correlated is not None:
            uses += f"; {self._order}"
            proof += ", docs/proofs/correlated_noise.md"
            if not shuffle:
                notes = [_PLACES, *notes]
        if self._published:
            guarantee, proof = "claimed", _SHUFFLED
            mechanism["claimed_epsilon"] = self._claimed()
        return LedgerEntry(
            name=f"{self._network.model.name} (steps)",
            guarantee=guarantee,
            neighbours=str(self._callback.ledger.neighbours),
            mechanism=mechanism,
            uses=uses,
            proof=proof,
            private=self._callback.known_seed is None,
            noise=FLOATING_POINT,
            notes=(
                f"the number of {unit} is public by declaration",
                "first weights: random, by declaration"
                if start is None
                else f"first weights: public by declaration: {start}",
                *notes,
                *self._callback.notes,
            ),
        )

    @property
    def _order(self):
        """The order in which steps use the records, in words."""
        found = f"each record in one step of {self.per_epoch:,}, "
        if self.bins:
            return f"{found}drawn anew in every epoch"
        return (
            f"{found}in an order that stays; noise correlated over "
            f"{self.correlated.bands} step(s)"
        )

    def _claimed(self):
        """The claimed cost of the steps, by the accountant of Poisson samples,
        on top of the releases below."""
        budget = self._callback.ledger.budget
        others = [*self.others, *(one.mechanism for one in self.first)]
        alone, whole = (
            mechanisms.compose_epsilon(
                found, budget.delta, scale=budget.epsilon
            )
            for found in (others, [*others, self.mechanism])
        )
        return whole - alone

    def table(self, first=()):
        """The cost and the signal of the fit, as text.

        Args:
            first: entries of releases before the steps.

        Raises:
            BudgetExceededError: if the budget does not allow it.
        """
        ledger, plan, model = self._callback.ledger, self.plan, self._network
        self.others += [entry.build_mechanism() for entry in first]
        first = [*first, *self.released_first(NoiseSource())]
        entries = [*first, self.entry()]
        ledger.check(entries)
        budget, noise = ledger.budget, self.mechanism
        size = sum(math.prod(v.shape) for v in model.model.trainable_variables)
        held = min(plan.capacity, model.physical or max(HELD // size, 1))
        batch = f"{plan.expected_batch_size:,} of {plan.n:,} records"
        if self.correlated is None:
            batch += f" expected, at most {plan.capacity:,}"
        if self.correlated is not None or self.bins:
            batch += f"; {self._order}"
        batch += self._chosen
        signal = plan.expected_batch_size / (noise.stddev * math.sqrt(size))
        return "\n".join(
            [
                f"Privacy plan: budget (epsilon = {budget.epsilon:g}, delta = "
                f"{budget.delta:g}), {ledger.neighbours}, "
                f"{plan.steps:,} step(s)",
                f"  unit: {shown_unit(ledger.unit)}",
                *(f"  first: {e.name}, {e.describe()}" for e in first),
                f"  charged: epsilon = {ledger.epsilon(entries):.4g} in all, "
                "before the first step",
                f"  batch: {batch}",
                f"  noise: multiplier {noise.noise_multiplier:.4g}, "
                f"{noise.stddev:.4g} clips for each of {size:,} weights",
                f"  signal to noise of a step: at most {signal:.3g} (length of "
                "the sum if all gradients agree, divided by the length of the "
                "noise)",
                f"  memory: gradients of up to {held:,} records at a time, "
                f"{4 * size * (held + 2) / 2**20:,.0f} MiB at most",
                "",
                layer_table.check(model.model),
            ]
        )


def owners_of(guarantee):
    """The ids of owners of several rows that a guarantee protects, or `None`;
    also `None` if rows have several owners, each with one used row."""
    if chosen_of(guarantee) is not None:
        return None
    return getattr(getattr(guarantee, "unit", None), "owners", None)


def chosen_of(guarantee):
    """The used rows if rows have several owners, else `None`."""
    return getattr(getattr(guarantee, "unit", None), "chosen", None)


def number_of_records(x, callback, batch_size):
    """The number of records of a fit of x, and its batch size."""
    owners = owners_of(callback.guarantee)
    if isinstance(x, (int, np.integer)):
        n = int(x)
    else:
        given = GivenRecords(x, batch_size=batch_size)
        n, batch_size = given.n, given.batch_size
    if owners is not None:
        n = len(np.unique(owners))
    if (chosen := chosen_of(callback.guarantee)) is not None:
        n = len(chosen)
    return n, min(batch_size or 32, n)


def number_of_classes(network):
    """The number of classes of the outputs of a `PrivateNetwork`."""
    if network.classes is not None:
        return len(network.classes)
    outputs = getattr(network.model, "outputs", None) or ()
    if len(outputs) != 1:
        raise ValueError(
            '`class_weight="balanced"` needs the public list of classes: '
            "`make_private(model, classes=[0, 1, 2])`."
        )
    return max(int(outputs[0].shape[-1]), 2)
