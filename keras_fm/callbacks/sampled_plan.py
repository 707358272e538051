"""What a fit of a `DPMAC` model costs: what is below it, and every step."""

import dataclasses
import math

from keras_fm import (
    claims,
    domain,
    mechanisms,
    records,
    replicas,
    sampling,
)
from keras_fm import release as release_lib
from keras_fm.callbacks import model_check
from keras_fm.callbacks.proven_plan import ProvenPlan
from keras_fm.callbacks.step import Step
from keras_fm.datasets.poisson_batches import PoissonBatches
from keras_fm.ledger import BudgetExceededError
from keras_fm.ledger_entry import FLOATING_POINT, LedgerEntry
from keras_fm.objectives import (
    LayerCoefficientsObjective,
    NormHistogramObjective,
)

# Of the budget, for the histograms from which clip thresholds are read.
THRESHOLD_SHARE = 0.05


class SampledPlan(ProvenPlan):
    """The releases under a `DPMAC` model, then all its steps, in one budget.

    Layers below that learn from a release (`DPPCA`) and, with
    `clip="histogram"`, the norms of the coefficients are released first. The
    noise of the steps is what these leave of the budget; all steps are
    charged before the first.

    Args:
        model: a `DPMAC`.
        batches: what `fit` trains on.
        planned_steps: int, how many steps are paid for.
        guarantee: `"proven"` or `"published"`.
        batch_size: the lot size of the published form.
        noise_multiplier: `None`, or the noise of the steps; the budget then
            is a limit that may be left unspent.
        data: `None` for the records of `batches`; see `ProvenPlan`.
        **shared: see `ProvenPlan`.

    Raises:
        ValueError: if batches are not sampled as the guarantee needs.
    """

    def __init__(
        self,
        model,
        *,
        batches,
        planned_steps,
        guarantee,
        batch_size,
        noise_multiplier,
        data,
        ledger,
        **shared,
    ):
        self.trained = model
        self.batches, self.planned_steps = batches, planned_steps
        self.published = guarantee == "published"
        self.batch_size = batch_size
        self.noise_multiplier = noise_multiplier
        if data is None and isinstance(batches, PoissonBatches):
            data = batches.data
        super().__init__(
            model.feature_model, data=data, ledger=ledger, **shared
        )
        if self.owners is not None or self.reach:
            raise ValueError(
                "`owners` and `reach` are not supported for a DPMAC, whose "
                "coefficients are clipped record by record."
            )
        if not self.n_public:
            raise ValueError(
                "The sampling rate of a DPMAC is batch size over number of "
                "records, which must be public: `n_public=True`."
            )
        self._check_delta("The steps of a DPMAC")
        below = model.feature_model.layers[1:]
        if below and not model.needs_labels and self._targets_are_inputs:
            raise ValueError(
                "Without `y` the targets of these PoissonBatches are the "
                "records themselves, but the first trained layer reads what "
                f"'{below[-1].name}' makes of them. Pass the targets: "
                "`PoissonBatches(x, y, ...)`."
            )

    @property
    def _targets_are_inputs(self):
        batches = self.batches
        poisson = isinstance(batches, PoissonBatches)
        return poisson and not isinstance(batches.data, tuple)

    # Names and shares ----------------------------------------------------

    def _top_names(self, model):
        name = self.trained.name
        steps = f"{name} (steps)"
        if self.trained.learns_thresholds:
            return [f"{name} (thresholds)", steps]
        return [steps]

    def _top_shares(self, left):
        if self.trained.learns_thresholds:
            return [THRESHOLD_SHARE * left, (1 - THRESHOLD_SHARE) * left]
        return [left]

    # What is read --------------------------------------------------------

    @property
    def is_done(self):
        """Whether releases below are made and noise is fixed."""
        return self.trained.is_perturbed and super().is_done

    @property
    def in_training(self):
        """The model: its noisy objective takes part in training."""
        return [self.trained]

    def _all_steps(self):
        """Also what is released already: its noise counts."""
        found = super()._all_steps()
        *first, _ = self._top_names(self.model)
        if first and self.trained.has_thresholds:
            found.insert(-1, self._threshold_step(*first))
        return found

    def _top_steps(self):
        *first, last = self._top_names(self.model)
        found = []
        if first and not self.trained.has_thresholds:
            found.append(self._threshold_step(*first))
        found.append(
            Step(
                name=last,
                objective=LayerCoefficientsObjective(
                    thresholds=self._thresholds()
                ),
                share=self.shares[last],
                learn=lambda release: None,
                samples=self.samples,
                sample=self._perturb,
            )
        )
        return found

    def _thresholds(self):
        # Before they are learned, their number is what counts.
        return tuple(t or 1.0 for _, _, t in self.trained.partitions)

    def _threshold_step(self, name):
        model = self.trained
        objective = NormHistogramObjective(num_columns=len(model.partitions))

        def read():
            labelled = model.needs_labels
            for x, y in records.batches(self.data, labelled=labelled):
                yield (model.coefficient_norms(x, y),)

        def learn(release):
            model.learn_thresholds(release.quantiles(model.clip_quantile))

        return Step(
            name=name,
            objective=objective,
            share=self.shares[name],
            read=read,
            learn=learn,
        )

    @property
    def samples(self):
        """The samples of the planned steps, a `SamplingPlan`."""
        batches, budget = self.batches, self.ledger.budget
        shared = {
            "steps": self.planned_steps,
            "delta": budget.delta,
            "epsilon": budget.epsilon,
        }
        if isinstance(batches, PoissonBatches):
            return batches.plan(**shared)
        if not self.published:
            raise ValueError(
                "A proven DPMAC is trained on Poisson samples: `fit` it on "
                "`keras_fm.datasets.PoissonBatches(x, y, batch_size=...)`. "
                "Batches of a fixed size from a shuffled data set have no "
                'such proof; `guarantee="published"` reports their epsilon '
                f"as claimed. Received: {type(batches).__name__}"
            )
        if self.data is None:
            raise ValueError(
                "The sampling rate of the published form is lot size over "
                "number of records: pass PrivateModel the records, "
                "`data=(x, y)`."
            )
        return sampling.plan(
            self._n, sampling="shuffled", batch_size=self.batch_size, **shared
        )

    def _check_parts(self):
        """Refuses batches that the devices cannot share equally: Keras would
        stop at the first, after all were paid for."""
        parts = replicas.parts_of_batch(self.trained)
        rows = getattr(self.batches, "capacity", 0)
        if rows % parts:
            raise ValueError(
                f"Keras divides every batch among {parts} devices, so its "
                "rows must be a multiple of that: pass PoissonBatches "
                f"`capacity={rows + -rows % parts}`. Received: "
                f"capacity={rows}"
            )

    @property
    def private(self):
        """Whether neither noise nor samples come from a known seed."""
        seeded = getattr(self.batches, "reproducible", False)
        return not (seeded or self.noise.reproducible)

    def check(self):
        super().check()
        self._check_parts()
        # One pass, before anything is spent: inside a step there is no error.
        if self.trained.needs_labels and self.data is not None:
            for _, y in records.batches(self.data):
                domain.check_labels(y, self.trained.output_shape[-1])

    # Noise ---------------------------------------------------------------

    def _noise_multiplier(self, step):
        if self.trained.is_perturbed:
            return self.trained.noise_multiplier
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        return super()._noise_multiplier(step)

    def entries(self):
        found = super().entries()
        return [*found[:-1], self._own(found[-1])]

    def _own(self, entry):
        """The steps' entry as the guarantee and the samples have it."""
        entry = dataclasses.replace(
            entry,
            private=self.private,
            notes=(*entry.notes, "the expected batch size is public"),
        )
        if not self.published:
            return entry
        # What the steps add to the proven releases below, by the accountant
        # of Poisson samples.
        below = [self._mechanism(s) for s in self._all_steps()[:-1]]
        budget = self.ledger.budget
        alone, whole = (
            mechanisms.compose_epsilon(
                found, budget.delta, scale=budget.epsilon
            )
            for found in (below, [*below, entry.build_mechanism()])
        )
        return LedgerEntry(
            name=entry.name,
            guarantee="claimed",
            neighbours=entry.neighbours,
            mechanism={**entry.mechanism, "claimed_epsilon": whole - alone},
            reads=entry.reads,
            proof=claims.SHUFFLED_REASON,
            private=entry.private,
            notes=entry.notes,
        )

    def _perturb(self, mechanism, ledger, name, noise, notes, clip):
        """Charges all steps and fixes their noise."""
        model = self.trained
        entry = self._own(
            release_lib.planned_entry(
                LayerCoefficientsObjective(thresholds=self._thresholds()),
                mechanism,
                ledger=ledger,
                name=name,
                noise=noise,
                notes=notes,
                # The model draws it while it trains.
                drawn=FLOATING_POINT,
            )
        )
        ledger.charge([entry])
        seed = None
        if noise.reproducible:
            seed = int(noise.generator().integers(2**31))
        model.perturb(
            noise_multiplier=mechanism.noise_multiplier,
            expected_batch_size=self.samples.expected_batch_size,
            steps=model.steps_taken + mechanism.steps,
            seed=seed,
            ledger_json=ledger.to_json(),
        )

    def install(self, start):
        """Nothing: the noise is where the steps are."""

    # Going on ------------------------------------------------------------

    def resume(self, steps):
        """Goes on under the noise that was fixed, for `steps` more steps.

        Steps that were paid for and not taken are used first; more of them
        are charged.

        Raises:
            BudgetExceededError: if the budget does not allow more steps.
            ValueError: if the model's ledger is unknown, or samples are
                drawn in another way than was paid for.
        """
        model = self.trained
        model_check.check_one_process(model)
        self._check_parts()
        self._check_known(model.name, model.ledger_json)
        paid = [e for e in self.ledger.entries if e.name == self._name]
        samples = self.samples
        known = paid[-1].mechanism if paid else {}
        if (
            not math.isclose(
                known.get("sampling_rate", 0.0), samples.sampling_rate
            )
            or model.expected_batch_size != samples.expected_batch_size
        ):
            raise ValueError(
                "The steps of this model were paid for with a sampling rate "
                f"of {known.get('sampling_rate')} and batches of "
                f"{model.expected_batch_size:g}. Received: "
                f"{samples.sampling_rate:g}, {samples.expected_batch_size}"
            )
        more = steps - (model.steps_allowed - model.steps_taken)
        if more > 0:
            self.planned_steps = more
            step = self._top_steps()[-1]
            try:
                self.carry_out_one(step)
            except BudgetExceededError as error:
                raise BudgetExceededError(
                    f"This fit asks for {steps} steps, {more} more than were "
                    f"paid for. {error} Pay for all steps before the first "
                    "fit: `PrivateModel(..., planned_steps=...)`."
                ) from None
        else:
            model.perturb(
                noise_multiplier=model.noise_multiplier,
                expected_batch_size=model.expected_batch_size,
                steps=model.steps_allowed,
            )

    @property
    def _name(self):
        return self._top_names(self.model)[-1]
