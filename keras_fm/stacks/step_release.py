"""What a fit by noisy steps costs: its thresholds, and every step.

Layers below that learn from a release (`DPPCA`) and, with `clip="histogram"`,
the norms of the coefficients are released first. The noise of the steps is
what these leave of the budget; all steps are charged before the first.
"""

import dataclasses

import numpy as np

from keras_fm.datasets.poisson_batches import PoissonBatches
from keras_fm.kernel import mechanisms
from keras_fm.kernel.ledger.ledger_entry import FLOATING_POINT, LedgerEntry
from keras_fm.kernel.reads import sampling
from keras_fm.parts import replicas
from keras_fm.parts.step import Step
from keras_fm.stacks.norm_histogram import NormHistogramQuery

_SHUFFLED_REASON = (
    "none. Batches of a fixed size from a shuffled data set are accounted as "
    "if every record joined each of them by itself (Poisson samples); see "
    "docs/guarantees.md"
)

# Of the budget, for the histograms from which clip thresholds are read.
THRESHOLD_SHARE = 0.05


def top_shares(model, left):
    """Shares of a model's releases, of what is left of the budget."""
    if model.learns_thresholds:
        return [THRESHOLD_SHARE * left, (1 - THRESHOLD_SHARE) * left]
    return [left]


def steps(model, reading):
    """The releases of a model, as `Step`s; all its steps are the last.

    Args:
        model: a `CoefficientModel`.
        reading: a `keras_fm.training.proven_plan.ProvenPlan`.

    Raises:
        ValueError: if batches are not sampled as the guarantee needs.
    """
    _check(model, reading)
    *first, last = model.release_names()
    found = [_threshold_step(model, reading, name) for name in first]
    multiplier = model.planned_noise
    if model.is_perturbed:
        # The ledger's, not the file's.
        multiplier = paid_entry(model, reading).mechanism["noise_multiplier"]
    samples = samples_of(model, reading)

    def carry_out(step, *, entry, ledger, noise, **_):
        ledger.charge([entry])
        seed = None
        if noise.reproducible:
            seed = int(noise.generator().integers(2**31))
        model.fix_steps(
            mechanism=entry.build_mechanism(),
            expected_batch_size=samples.expected_batch_size,
            steps=model.steps_taken + ledger.steps_left(entry),
            seed=seed,
            ledger_json=ledger.to_json(),
            published=reading.published,
        )

    found.append(
        Step(
            name=last,
            query=model.step_query(grouped=reading.owners is not None),
            learn=lambda release: None,
            samples=samples,
            noise_multiplier=multiplier,
            entry=lambda entry: _entry(model, reading, entry),
            carry_out=carry_out,
        )
    )
    return found


def paid_entry(model, reading):
    """The entry that pays for the steps of a model that has noise: of its
    name and, if there is one, its noise, the last.

    Raises:
        ValueError: if it holds none.
    """
    name = model.release_names()[-1]
    paid = [e for e in reading.ledger.entries if e.name == name and e.steps]
    if not paid:
        raise ValueError(
            f"'{model.name}' was trained under noise that is not in this "
            "ledger. Go on with the callback it was trained with, or continue "
            "its ledger: `PrivateModel(Ledger.open(path))`."
        )
    alike = [
        entry
        for entry in paid
        if entry.mechanism.get("noise_multiplier") == model.noise_multiplier
    ]
    return (alike or paid)[-1]


def samples_of(model, reading):
    """The samples of the planned steps, a `SamplingPlan`."""
    batches, budget = reading.batches, reading.ledger.budget
    _check_owners(reading.owners, getattr(batches, "owners", None))
    shared = {
        "steps": reading.planned_steps,
        "delta": budget.delta,
        "epsilon": budget.epsilon,
    }
    # Subclasses may hand out anything.
    if type(batches) is PoissonBatches:
        return batches.plan(**shared)
    if not reading.published:
        raise ValueError(
            f"A proven {type(model).__name__} is trained on Poisson samples: "
            "`fit` it on `keras_fm.datasets.PoissonBatches(x, y, "
            "batch_size=...)` itself, not on a subclass. No proof covers "
            "batches of a fixed size from a shuffled data set. Received: "
            f"{type(batches).__name__}"
        )
    if reading.data is None:
        raise ValueError(
            "The sampling rate of the published form is lot size over "
            "number of records: pass PrivateModel the records, "
            "`data=(x, y)`."
        )
    return sampling.plan(
        reading.n, sampling="shuffled", batch_size=reading.lot, **shared
    )


def _check_owners(promised, sampled):
    """Refuses batches whose unit is not the one that the promise is about."""
    if promised is None and sampled is None:
        return
    if sampled is None:
        raise ValueError(
            "The privacy unit is an owner, so a batch must take all records "
            "of an owner or none: `PoissonBatches(x, y, ..., owners=ids, "
            "rows_per_owner=...)` with the ids of `Unit(owners=ids)`."
        )
    if promised is None or not np.array_equal(promised, sampled):
        raise ValueError(
            "`owners` of PoissonBatches and of the guarantee must be the "
            "same ids: `Proven(unit=Unit(owners=ids))`. A record's weight "
            "depends on its owner's other records, so no other unit is "
            "covered."
        )


def check_parts(model, batches):
    """Refuses batches whose rows are not the records of the model, and those
    that the devices cannot share equally: Keras would stop at the first, after
    all were paid for."""
    given = getattr(batches, "views", 1)
    if given != model.views:
        raise ValueError(
            "A record that is several rows of a batch counts once only if the "
            f"model takes them together: {type(model).__name__} takes "
            f"{model.views}, and the batches give {given}. Build "
            "`GradientNet(..., views=K)` and `PoissonBatches(..., augment=..., "
            "views=K)`."
        )
    parts = replicas.parts_of_batch(model)
    rows = getattr(batches, "capacity", 0)
    if rows % parts:
        raise ValueError(
            f"Keras divides every batch among {parts} devices, so its "
            "rows must be a multiple of that: pass PoissonBatches "
            f"`capacity={rows + -rows % parts}`. Received: "
            f"capacity={rows}"
        )


def _check(model, reading):
    if model.thresholds_ledger is not None:
        reading.check_known(model.name, model.thresholds_ledger)
    reading.check_reach(f"a {type(model).__name__}")
    if reading.owners is not None and model.learns_thresholds:
        raise ValueError(
            '`clip="histogram"` counts records one by one, so it is not '
            "supported for `owners`. Give thresholds."
        )
    if not reading.n_public:
        raise ValueError(
            f"The sampling rate of a {type(model).__name__} is batch size over "
            "number of records, which must be public: `n_public=True`."
        )
    reading.check_delta(f"The steps of a {type(model).__name__}")
    below, batches = model.feature_model.layers[1:], reading.batches
    poisson = isinstance(batches, PoissonBatches)
    if (
        below
        and not model.needs_labels
        and poisson
        and not isinstance(batches.data, tuple)
    ):
        raise ValueError(
            "Without `y` the targets of these PoissonBatches are the "
            "records themselves, but the first trained layer reads what "
            f"'{below[-1].name}' makes of them. Pass the targets: "
            "`PoissonBatches(x, y, ...)`."
        )


def _threshold_step(model, reading, name):
    def read():
        for x, y, rows in reading.placed():
            norms = model.coefficient_norms(x, y)[rows]
            # A record without a norm counts for nothing in a step, and is in
            # the last bin here.
            yield (np.where(norms >= 0, norms, np.inf),)

    def learn(release):
        model.learn_thresholds(
            release.quantiles(model.clip_quantile),
            reading.ledger.to_json(),
        )

    return Step(
        name=name,
        query=NormHistogramQuery(num_columns=len(model.partitions)),
        read=read,
        learn=learn,
        done=model.has_thresholds,
    )


def _entry(model, reading, entry):
    """The steps' entry as the guarantee and the samples have it."""
    seeded = getattr(reading.batches, "reproducible", False)
    views = ()
    if model.views > 1:
        views = (f"of each record the mean over {model.views} views of it",)
    entry = dataclasses.replace(
        entry,
        private=entry.private and not seeded,
        # The model draws it while it trains.
        noise=FLOATING_POINT,
        notes=(*entry.notes, "the expected batch size is public", *views),
    )
    if not reading.published:
        return entry
    # What the steps add to the proven releases below, by the accountant
    # of Poisson samples.
    below, budget = reading.other_mechanisms(), reading.ledger.budget
    alone, whole = (
        mechanisms.compose_epsilon(found, budget.delta, scale=budget.epsilon)
        for found in (below, [*below, entry.build_mechanism()])
    )
    return LedgerEntry(
        name=entry.name,
        guarantee="claimed",
        neighbours=entry.neighbours,
        mechanism={**entry.mechanism, "claimed_epsilon": whole - alone},
        reads=entry.reads,
        proof=_SHUFFLED_REASON,
        private=entry.private,
        noise=FLOATING_POINT,
        notes=entry.notes,
    )
