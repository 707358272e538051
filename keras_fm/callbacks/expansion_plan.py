"""What a fit of a `FunctionalNet` releases: its expansion, round by round."""

import functools

import numpy as np

from keras_fm import claims, domain
from keras_fm import release as release_lib
from keras_fm.callbacks import model_check
from keras_fm.callbacks.proven_plan import ProvenPlan
from keras_fm.callbacks.step import Step
from keras_fm.ledger_entry import LedgerEntry
from keras_fm.mechanisms import LaplaceMechanism
from keras_fm.models.expansion_descent import ExpansionDescent


class ExpansionPlan(ProvenPlan):
    """The releases under a `FunctionalNet`, then its rounds.

    Each round reads every record once: the coefficients of the expansion
    about the weights that the round before led to.

    Args:
        model: a `FunctionalNet`.
        guarantee: `"proven"` or `"published"`.
        **shared: see `ProvenPlan`.

    Raises:
        ValueError: if the model was released under the other guarantee, or
            with `owners`, `reach`, or layers below that the published form
            does not know.
    """

    def __init__(self, model, *, guarantee, **shared):
        self.trained = model
        self.published = guarantee == "published"
        if model.is_released and model.published != self.published:
            raise ValueError(
                f"'{model.name}' was released with guarantee="
                f"{('proven', 'published')[model.published]!r}. Build a new "
                f"model for guarantee={guarantee!r}."
            )
        super().__init__(model.feature_model, **shared)
        if self.owners is not None or self.reach:
            raise ValueError(
                "`owners` and `reach` are not supported for a FunctionalNet, "
                "whose coefficients are clipped record by record."
            )
        if self.published and self.pretrained:
            raise ValueError(
                "The published FunctionalNet has no private layers below. "
                f"Received: '{self.pretrained[0][0].name}'"
            )
        self._descent = ExpansionDescent(model, self.ridge_factor)

    # Names and shares ----------------------------------------------------

    def _top_names(self, model):
        name, rounds = self.trained.name, self.trained.rounds
        return [f"{name} (round {r + 1} of {rounds})" for r in range(rounds)]

    def _top_shares(self, left):
        return [left / self.trained.rounds] * self.trained.rounds

    # What is read --------------------------------------------------------

    @property
    def is_done(self):
        return self.trained.is_released and super().is_done

    @property
    def was_trained_on_release(self):
        return self.trained.is_released

    @property
    def in_training(self):
        """The model: its released objective is what is trained."""
        return [self.trained]

    @property
    def labelled(self):
        if self.trained.needs_labels:
            return True
        # Records alone are the targets too.
        data = getattr(self.data, "element_spec", self.data)
        if isinstance(data, tuple | list):
            return len(data) > 1
        return callable(data) or hasattr(data, "num_batches")

    @functools.cached_property
    def _objective(self):
        norm = "l2" if self.ledger.budget.delta > 0 else "l1"
        return self.trained.objective(norm, clipped=not self.published)

    def _top_steps(self):
        names = self._top_names(self.model)
        return [
            Step(
                name=name,
                objective=self._objective,
                share=self.shares[name],
                read=self._read,
                learn=functools.partial(self._learn, last=name == names[-1]),
            )
            for name in names
        ]

    def check_labels(self, y, n):
        if y is None:
            return
        if self.trained.needs_labels:
            domain.check_labels(y, self.trained.output_shape[-1])
        elif not np.all(np.isfinite(y)):
            raise ValueError("Targets must be finite. At least one is not.")

    def _read(self):
        """Factors of every record at the current weights."""
        count = 0
        for x, y, rows in self._placed():
            self.check_labels(None if y is None else y[rows], len(rows))
            count += len(rows)
            found = self.trained.factors(x, y)
            yield ([tuple(part[rows] for part in layer) for layer in found],)
        if not count:
            raise ValueError(
                "`data` held no record in this round. A function must return "
                "a new iterator at every call."
            )

    # What is learned -----------------------------------------------------

    def _learn(self, release, last):
        """A step to the minimum of the released quadratic."""
        # Where the last one leads, `install` decides.
        self._descent.learn(release, move=not last)
        if last:
            self.release = release

    def carry_out(self):
        before = self.trained.augmented_weights()
        try:
            super().carry_out()
        except BaseException:
            # Weights between rounds are known to no ledger but this one.
            self.trained.set_augmented_weights(before)
            raise
        self.releases = {
            **self._pretrained_releases,
            self.trained.name: self.release,
        }

    def install(self, start):
        """Gives the model the quadratic of the last round."""
        self._descent.install(self.ledger.to_json(), self.published)
        if start == "minimiser":
            self.trained.set_weights_from_minimiser()

    # The published form --------------------------------------------------

    def entries(self):
        if not self.published:
            return super().entries()
        return [self._claim(step) for step in self.steps]

    def _mechanism(self, step):
        if not self.published:
            return super()._mechanism(step)
        sizes = [units for _, units in self._objective.shapes_of_layers]
        return LaplaceMechanism(
            sensitivity=claims.network_expansion_sensitivity(
                sizes, neighbours=self.ledger.neighbours
            ),
            epsilon=self.ledger.budget.epsilon * step.share,
        )

    def _claim(self, step):
        mechanism = self._mechanism(step)
        return LedgerEntry(
            name=step.name,
            guarantee="claimed",
            neighbours=str(self.ledger.neighbours),
            mechanism={
                "claimed_epsilon": mechanism.epsilon,
                "laplace_scale": mechanism.sensitivity / mechanism.epsilon,
            },
            reads=step.objective.reads,
            proof=claims.EXPANSION_REASON,
            private=not self.noise.reproducible,
        )

    def carry_out_one(self, step):
        if not self.published or step.objective is not self._objective:
            super().carry_out_one(step)
            return
        entry = self._claim(step)
        self.ledger.check([entry])
        objective, mechanism = step.objective, self._mechanism(step)
        statistics = objective.zero()
        for batch in step.read():
            statistics = objective.accumulate(statistics, *batch)
        sums = objective.unpack(objective.pack(statistics, "l1"), "l1")
        sums = [self._clipped_sum(values) for values in sums]
        self.ledger.charge([entry])
        generator = self.noise.generator()
        scale = mechanism.sensitivity / mechanism.epsilon
        noisy = [v + generator.laplace(0.0, scale, v.shape) for v in sums]
        step.learn(
            release_lib.NetworkExpansionRelease(
                statistics=dict(zip(objective.names, noisy)),
                objective=objective,
                mechanism=mechanism,
                neighbours=str(self.ledger.neighbours),
                private=False,
            )
        )

    def _clipped_sum(self, values):
        """`g / max(1, ||g||^2 / C)` of each layer's sum, as printed."""
        bound = self.trained.sum_clip
        if bound is None:
            return values
        found = []
        for part in self._objective.layers(values):
            found.append(part.ravel() / max(1.0, np.sum(part**2) / bound))
        return np.concatenate(found)

    def _notes(self):
        own = f"initial weights of '{self.trained.name}': public by declaration"
        return (*super()._notes(), own)

    def check(self):
        """Refuses models no proof covers and budgets already spent."""
        if self.trained.was_trained_on_records:
            raise ValueError(
                f"'{self.trained.name}' was trained on records before its "
                "first release, which expands about its weights. Build a new "
                "model."
            )
        if self.published:
            self.ledger.check(self.entries())
            model_check.check_built(self.model)
        else:
            super().check()

    def _check_ledgers(self):
        super()._check_ledgers()
        if self.trained.is_released:
            self._check_known(self.trained.name, self.trained.ledger_json)
