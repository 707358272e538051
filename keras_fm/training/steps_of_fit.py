"""Steps that read the records: what the ledger lets the running fit take.

The ledger alone decides: the noise is that of its entry, and every epoch's
steps are reserved in it before they run and confirmed after, so no copy of a
model takes them a second time.
"""

import math

from keras_fm.datasets.poisson_batches import PoissonBatches
from keras_fm.kernel import records
from keras_fm.kernel.ledger.ledger import BudgetExceededError
from keras_fm.kernel.reads import columns
from keras_fm.parts import model_inputs
from keras_fm.parts.record_alone import FeatureMap
from keras_fm.training.proven_plan import READ_BATCH


class StepsOfFit:
    """The steps of one fit.

    Args:
        callback: the `PrivateModel` of the fit.
        model: a part that reads at every step.
        paid: the entry of its ledger that such steps were paid for with.
        ledger: its ledger.
        epoch_steps: int, steps of an epoch.
    """

    def __init__(self, callback, model, paid, ledger, epoch_steps):
        self._callback, self._model = callback, model
        self._ledger, self._paid = ledger, paid
        self._epoch_steps = epoch_steps
        self._reserved = self._begun = 0
        model._carrier().arm(callback)

    def _begin_epoch(self):
        """Reserves the steps of an epoch, and lets them be taken."""
        # On JAX, reading `model` brings the state back before it is changed.
        _ = self._callback.model
        self._ledger.reserve(self._paid, self._epoch_steps)
        self._reserved, self._begun = self._epoch_steps, 0
        self._model._carrier().allow(self._reserved)

    def begin_batches(self):
        """Counts the steps that are run next. Here: what a model holds, any
        callback may set."""
        if not self._reserved:
            self._begin_epoch()
        self._begun += int(self._model.steps_per_execution)

    def end_epoch(self):
        """Confirms what was taken of them."""
        if not self._reserved:
            return
        taken = min(self._begun, self._reserved)
        self._model._carrier().allow(0)
        self._ledger.confirm(self._paid, self._reserved, taken)
        self._reserved = 0

    def end(self):
        """Ends the fit: no step is taken until the next."""
        self.end_epoch()
        self._model._carrier().note_optimizer()
        self._model._carrier().disarm()
        self._model._carrier().mark_released(
            self._ledger.to_json(), self._model.published
        )


def check(plan):
    """Refuses batches that the devices cannot share, and wrong records and
    labels: inside a step there is no error."""
    plan.top.check_batches(plan.batches)
    if isinstance(plan.data, PoissonBatches):
        raise ValueError(
            "`data` must be left out for steps on `PoissonBatches`, which "
            "`fit` is given, or be `(x, y)`. Received: data=PoissonBatches"
        )
    check_records(plan)


def check_records(plan):
    """Refuses records that a step would stop at, and labels that no output is
    for: what can be known of them before they are paid for."""
    below, batches = FeatureMap(plan.top.feature_model), plan.batches
    if isinstance(batches, PoissonBatches):
        # What the steps read, whatever the releases below do.
        labelled = isinstance(batches.data, tuple)
        found = (
            (model_inputs.checked(plan.model, x), y)
            for x, y in records.batches(
                batches.data, READ_BATCH, labelled=labelled
            )
        )
    else:
        found = plan.checked() if plan.data is not None else ()
    for x, y, *_ in found:
        plan.check_labels(y, columns.count(x))
        if len(below.model.layers) > 1:
            below(x)


def check_paid(plan):
    """Refuses to go on under another ledger, or with other samples than were
    paid for.

    Returns:
        the entry of the ledger that steps like these were paid for with.

    Raises:
        ValueError: saying what differs.
    """
    model = plan.top
    entry = model.paid_entry(plan)
    paid = entry.mechanism
    if ("claimed_epsilon" in paid) != plan.published:
        kinds = ["proven", "published"]
        raise ValueError(
            f"The steps of '{model.name}' were paid for with guarantee="
            f'"{kinds[not plan.published]}", and another one samples in '
            "another way. Go on with that, or build a new model."
        )
    if not model.is_released:
        raise ValueError(
            f"'{model.name}' has other weights than its noisy steps led to. "
            "Load the model that was saved, or build a new one."
        )
    plan.check_model()
    samples = model.samples_of(plan)
    if (
        not math.isclose(paid.get("sampling_rate", 0.0), samples.sampling_rate)
        or model.expected_batch_size != samples.expected_batch_size
    ):
        raise ValueError(
            "The steps of this model were paid for with a sampling rate "
            f"of {paid.get('sampling_rate')} and batches of "
            f"{model.expected_batch_size:g}. Received: "
            f"{samples.sampling_rate:g}, {samples.expected_batch_size}"
        )
    if entry.private and getattr(plan.batches, "reproducible", False):
        raise ValueError(
            "The steps of this model were paid for with samples that nobody "
            "knows, and those of these batches follow from a seed. Go on "
            "with `PoissonBatches` without `seed`."
        )
    overflow = samples.overflow_probability / samples.steps
    if overflow * entry.steps > paid.get("overflow_probability", 0.0) * (
        1 + 1e-9
    ):
        raise ValueError(
            "The steps of this model were paid for with batches that samples "
            "exceed less often. Go on with `PoissonBatches` of the same "
            f"capacity. Received: capacity={plan.batches.capacity}"
        )
    moves = model.step_query().sensitivity(
        "l2", neighbours=plan.ledger.neighbours
    )
    if not math.isclose(
        paid["noise_multiplier"], model.noise_multiplier
    ) or paid["sensitivity"] < moves * (1 - 1e-9):
        raise ValueError(
            f"The file of '{model.name}' says other noise than its ledger: a "
            f"multiplier of {model.noise_multiplier:g} in place of "
            f"{paid['noise_multiplier']:g}. Load the model that was saved."
        )
    return entry


def resume(plan, steps):
    """Goes on under the noise that was paid for, for `steps` more steps.

    Steps that were paid for and not taken are used first; more of them are
    charged.

    Returns:
        the entry that steps like these were paid for with.

    Raises:
        BudgetExceededError: if the budget does not allow more steps.
        ValueError: if the model's ledger is unknown, or samples are drawn in
            another way than was paid for.
    """
    model = plan.top
    model.check_batches(plan.batches)
    paid = check_paid(plan)
    check_records(plan)
    model._carrier().begin_optimizer()
    left = plan.ledger.steps_left(paid)
    if steps > left:
        more = type(plan)(
            plan.whole,
            data=plan.data,
            ledger=plan.ledger,
            noise=plan.noise,
            guarantee=plan.guarantee,
            notes=plan.extra_notes,
            batches=plan.batches,
            planned_steps=steps - left,
        )
        try:
            planned = more.entries()
            if planned[-1].kind != paid.kind:
                raise ValueError(
                    f"Steps of '{model.name}' are not those that were paid "
                    "for, and more are asked for than are left. Load the "
                    "model that was saved, or build a new one."
                )
            more.ledger.check(planned)
            more.carry_out_one(more.steps[-1])
        except BudgetExceededError as error:
            raise BudgetExceededError(
                f"This fit asks for {steps} steps, {steps - left} more than "
                f"were paid for and are left. {error} Pay for all steps "
                f"before the first fit: `{type(model).__name__}(..., "
                "planned_steps=...)`."
            ) from None
        return paid
    model.fix_steps(
        mechanism=paid.build_mechanism(),
        expected_batch_size=model.expected_batch_size,
        steps=model.steps_taken + left,
        ledger_json=plan.ledger.to_json(),
        published=plan.published,
    )
    return paid
