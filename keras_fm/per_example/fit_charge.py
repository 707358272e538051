"""What a private fit is charged, before anything is read."""

import functools
import math

import keras
import numpy as np

from keras_fm.kernel.ledger.ledger import BudgetExceededError
from keras_fm.kernel.ledger.ledger_entry import FLOATING_POINT, LedgerEntry
from keras_fm.kernel.ledger.ledger_text import shown_unit
from keras_fm.kernel.noise_mechanisms import GaussianMechanism
from keras_fm.kernel.planning import calibration
from keras_fm.kernel.reads import sampling
from keras_fm.per_example import layer_table
from keras_fm.per_example.balanced_classes import BalancedClasses
from keras_fm.per_example.given_records import GivenRecords
from keras_fm.stacks.layer_coefficients import LayerCoefficientsQuery

# Numbers that the gradients of records are held in at a time.
HELD = 2**25


class FitCharge:
    """The samples of a fit, and the noise that its budget asks for.

    Args:
        network: a `PrivateNetwork`.
        callback: the `PrivateModel` of the fit.
        n: int, how many records.
        batch_size: int, at most n.
        epochs: int, how many there are to go.
        classes: `None`, or int: how many classes are to be balanced.

    Attributes:
        plan: the `keras_fm.sampling.SamplingPlan`.
        balanced: `None`, or the `BalancedClasses`.

    Raises:
        ValueError: if the guarantee is not one of noisy steps.
    """

    def __init__(self, network, callback, n, batch_size, epochs, classes=None):
        self._network, self._callback = network, callback
        ledger = callback.ledger
        if ledger.budget.delta <= 0:
            raise ValueError(
                "Noisy steps need delta > 0, far below one over the number of "
                "records: `PrivateModel(epsilon=2.0, delta=1e-5)`. Received: "
                f"delta={ledger.budget.delta:g}"
            )
        full = batch_size == n
        if not full and str(ledger.neighbours) != "add_remove":
            raise ValueError(
                'Samples are accounted for neighbours="add_remove" only. '
                f"Give `fit` batch_size={n}, all records, or leave "
                f"`neighbours` out. Received: neighbours={ledger.neighbours}"
            )
        self.plan = sampling.plan(
            n,
            sampling="full" if full else "poisson",
            batch_size=None if full else batch_size,
            steps=epochs * max(1, math.ceil(n / batch_size)),
            delta=ledger.budget.delta,
            epsilon=ledger.budget.epsilon,
        )
        self._owned = callback.guarantee.unit.owners is not None
        self.balanced = None
        if classes is not None:
            self.balanced = BalancedClasses(
                classes, self._owned, ledger, callback.guarantee.spends
            )

    @functools.cached_property
    def mechanism(self):
        """The mechanism of all steps together, in units of the clip."""
        ledger, spends = self._callback.ledger, self._callback.guarantee.spends
        spent = [e.build_mechanism() for e in ledger.entries]
        multiplier = 0.0
        if spends < 1:
            # No more than its share, whatever is left.
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
                    "The ledger has too little left for another fit: of "
                    f"epsilon = {ledger.budget.epsilon:g} "
                    f"{ledger.epsilon():.4g} are spent. Leave a part to later "
                    "fits, `guarantee=Proven(spends=0.5)`."
                ) from None
        return self.plan.mechanism(
            multiplier,
            self._query.sensitivity("l2", neighbours=ledger.neighbours),
        )

    def _multiplier(self, others):
        if self.balanced is not None:
            others = [*others, self.balanced.mechanism]
        return sampling.noise_multiplier(
            self.plan,
            self._callback.ledger.budget,
            neighbours=self._callback.ledger.neighbours,
            others=others,
        )

    @property
    def _query(self):
        return LayerCoefficientsQuery(
            thresholds=(self._network.clip or 1.0,), joint=True
        )

    def entry(self, notes=()):
        """What all steps of the fit are charged as."""
        reads, unit = self._query.reads, "records n"
        if self._network.clip is None:
            reads = "gradients of records, each divided by its norm"
        if self._owned:
            unit = "owners"
            reads += (
                "; a record is an owner, with the mean over at most "
                f"{self._network.rows_per_owner} of its rows"
            )
        start = self._network.declared_public
        return LedgerEntry(
            name=f"{self._network.model.name} (steps)",
            guarantee="proven",
            neighbours=str(self._callback.ledger.neighbours),
            mechanism=self.mechanism.config(),
            reads=reads,
            proof="docs/proofs/record_alone.md, docs/proofs/mechanisms.md",
            private=self._callback.known_seed is None,
            noise=FLOATING_POINT,
            used=self.plan.steps,
            notes=(
                f"the number of {unit} is public by declaration",
                "first weights: random, by declaration"
                if start is None
                else f"first weights: public by declaration: {start}",
                *notes,
            ),
        )

    def table(self):
        """What the fit would cost and be worth, as text.

        Raises:
            BudgetExceededError: if the budget does not allow it.
        """
        ledger, plan, model = self._callback.ledger, self.plan, self._network
        entries = [self.entry()]
        ledger.check(entries)
        budget, noise = ledger.budget, self.mechanism
        size = sum(math.prod(v.shape) for v in model.model.trainable_variables)
        held = min(plan.capacity, model.physical or max(HELD // size, 1))
        signal = plan.expected_batch_size / (noise.stddev * math.sqrt(size))
        return "\n".join(
            [
                f"Privacy plan: budget (epsilon = {budget.epsilon:g}, delta = "
                f"{budget.delta:g}), {ledger.neighbours}, "
                f"{plan.steps:,} step(s)",
                f"  unit: {shown_unit(ledger.unit)}",
                f"  charged: epsilon = {ledger.epsilon(entries):.4g} in all, "
                "before the first step",
                f"  batch: {plan.expected_batch_size:,} of {plan.n:,} records "
                f"expected, at most {plan.capacity:,}",
                f"  noise: multiplier {noise.noise_multiplier:.4g}, "
                f"{noise.stddev:.4g} clips for each of {size:,} weights",
                f"  signal to noise of a step: at most {signal:.3g} (the "
                "length of the sum if all gradients agree, over that of the "
                "noise)",
                f"  memory: gradients of up to {held:,} records at a time, "
                f"{4 * size * (held + 2) / 2**20:,.0f} MiB at most",
                "",
                layer_table.check(model.model),
            ]
        )


def number_of_records(x, callback, batch_size):
    """How many records a fit of x has, and its batch size."""
    owners = callback.guarantee.unit.owners
    if isinstance(x, (int, np.integer)):
        n = int(x)
    else:
        given = GivenRecords(x, batch_size=batch_size)
        n, batch_size = given.n, given.batch_size
    if owners is not None:
        n = len(np.unique(owners))
    return n, min(batch_size or 32, n)


def number_of_classes(network, x):
    """How many classes the outputs of a model are for.

    Args:
        network: a `PrivateNetwork`.
        x: made-up records.
    """
    if network.classes is not None:
        return len(network.classes)
    outputs = keras.tree.flatten(
        network.model(keras.tree.map_structure(lambda v: v[:1], x))
    )
    if len(outputs) != 1:
        raise ValueError(
            '`class_weight="balanced"` is for a model of one output. '
            f"Received: {len(outputs)} outputs"
        )
    return max(int(outputs[0].shape[-1]), 2)
