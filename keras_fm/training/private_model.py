import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_fm.core import (
    first_weights,
    fit_contract,
    fit_frame,
    model_inputs,
    sealed,
    statement_facts,
)
from keras_fm.core.guarantee import Proven, Published, promise_of
from keras_fm.core.private_part import PrivatePart, parts_of
from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import mechanisms, records
from keras_fm.kernel.ledger import statement
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_text import shown_unit
from keras_fm.training import (
    ledger_of_callback,
    model_check,
    public_constants,
    saved_statement,
)
from keras_fm.training.proven_plan import ProvenPlan
from keras_fm.training.published_plan import PublishedPlan


class PrivateModel(keras.callbacks.Callback):
    """Makes `fit` private: fixes the noise once, before the first step.

    `guarantee=Proven()` (default): the records are read once, when training
    begins, as the perturbed coefficients of the output layer's Taylor
    cross-entropy. After that every step minimises the released objective and
    sees zeros in the place of records: the same fit gives the same weights
    with other data. `loss` in the logs is the released objective, and beside
    metrics of `validation_data` it is all that is logged, whatever was
    compiled and wherever this callback stands in the list. Later fits on the
    same model reuse the release and cost nothing.

    Every private part of a model says what it releases: a `PrivateEncoder`
    (dPA), a `ChebyshevCRBM` (pCDBN) and a `DPPCA` before the output layer,
    from the input upwards; a `RelevanceScaling` (AdLM) a first model and the
    relevance of its features; an output layer with `rounds` is read R times.
    `plan(model)` prints it before anything is read or spent, and refuses what
    `fit` would refuse.

    A `make_private` model, a `GradientNet` and a `DPMAC` read records at every
    step instead, each step a noisy sum over a sample that their `fit` draws:
    they need no `data`, and all steps are charged before the first. A
    `FunctionalNet` is read once for each of its rounds when training begins.

    `guarantee=Published(lot=...)`: the papers' algorithms as printed. The
    ledger says *claimed*; the proven epsilon is infinite.

    Args:
        epsilon: number in (0, 1e6]; or a `PrivacyBudget`, or a `Ledger` that
            is continued (its budget, neighbours and unit then hold).
        delta: number in [0, 1), far below one over the number of records;
            `0` is pure. Needed beside a number, and only there.
        data: the private records `(x, y)`: arrays, a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a `DataLoader` of PyTorch, or a function
            returning an iterator of batches; or x alone for a model without
            labels. x is one array, or a list or dict of them as the model
            takes them.
        guarantee: `Proven(...)`, `Published(lot=...)`, or `"proven"` for
            `Proven()`.
        ledger: `None`, or the path of a file that the ledger lives in
            (`keras_fm.Ledger.open`): begun if there is none, else continued,
            by this process and any other. A run that is killed then cannot
            be repeated on a budget that it spent. An existing file must be
            of the same budget, neighbours and unit.
        notes: further public facts for the report.
        reproducible_noise: `None`, or an int seed. A seeded run is labelled
            "not private".

    Attributes:
        new_release: set it to `True` to have the next fit draw (and be
            charged) again although the model carries a release; see
            `Proven(releases=...)`.
        release: the last `Release` of the output layer, or `None`.
        releases: dict of the last fit's releases by layer name.

    Raises:
        ValueError: on arguments outside their range (at once), or what does
            not belong together or no statement could cover (before anything
            is read or spent).
        OSError: if the file of the ledger cannot be written; no noise was
            drawn then.
        BudgetExceededError: before anything is read.

    Example:

    ```python
    private = PrivateModel(epsilon=1.0, delta=1e-5, data=(x, y))
    model.compile("adam", loss=TaylorCrossEntropy(), metrics=["accuracy"])
    model.fit(x, y, epochs=20, callbacks=[private])
    print(private.report())
    ```
    """

    def __init__(
        self,
        epsilon: float | budget_lib.PrivacyBudget | Ledger,
        delta: float | None = None,
        *,
        data: Any = None,
        guarantee: Proven | Published | str = "proven",
        ledger: str | os.PathLike | None = None,
        notes: Sequence[str] = (),
        reproducible_noise: int | None = None,
    ) -> None:
        super().__init__()
        budget = ledger_of_callback.budget_of(epsilon, delta)
        promise: Any = promise_of(guarantee)
        self.new_release = False
        model_inputs.refuse_text_labels(data)
        by_number = getattr(promise, "lot", None) == "data"
        if by_number and records.number(data) is None:
            raise ValueError(
                '`lot="data"` divides the noise by the number of records: '
                "pass `data` as arrays."
            )
        self._ledger: Any = ledger_of_callback.opened(budget, promise, ledger)
        # Whether nobody else knows the ledger.
        self._own = ledger is None and self._ledger is not budget
        self.data = data
        self.guarantee = promise
        self.notes = statement_facts.declared(notes)
        self.releases: dict[str, Any] = {}
        self.release = None
        self._parts: list[PrivatePart] = []
        self._steps: Any = None
        self._seed = reproducible_noise
        self._noise = mechanisms.NoiseSource(reproducible_noise)

    def __deepcopy__(self, memo):
        """For another fit, as searches do: one ledger, noise of its own."""
        return PrivateModel(
            self._ledger,
            data=self.data,
            guarantee=self.guarantee,
            notes=self.notes,
            reproducible_noise=self._seed,
        )

    # What a user asks ----------------------------------------------------

    @property
    def ledger(self):
        """The `Ledger` of everything this callback released."""
        return self._ledger

    @property
    def relevance(self):
        """`None`, or an array of the shape of one record at the scaled or
        perturbed layer: the released relevance shares (mean 1) of a proven
        model, the noisy average of a published one."""
        found = (getattr(part, "relevance", None) for part in self._parts)
        return next((v for v in found if v is not None), None)

    def epsilon(self, delta=None):
        """Proven epsilon at `delta` (`None`: the budget's) of what the model
        was released under so far, composed from its ledger.

        Raises:
            ValueError: if `delta` is not in [0, 1), or the model was released
                under several ledgers, see `report`.
        """
        return model_check.epsilon_of(self.model, self._ledger, delta)

    def report(self):
        """The privacy statement of the ledger, and of others which the model
        was released under."""
        ledgers = model_check.ledgers_of(self.model, self._ledger)
        texts = [ledger.statement() for ledger in ledgers]
        if len(ledgers) > 1 and self.guarantee.kind == "published":
            delta = math.fsum(ledger.budget.delta for ledger in ledgers)
            texts.insert(
                0,
                f"Claims of {len(ledgers)} ledgers, all of this model\n"
                f"claimed:    (epsilon = {self._claimed_epsilon():.6g}, delta "
                f"= {delta:g})   (their sum; not a guarantee)",
            )
        line = getattr(self.model, "statement_line", None)
        return "\n\n".join([*texts, *([line] if line else [])])

    def save_statement(self, path):
        """Writes the statement to a JSON file, with the digest of the weights
        and all ledger entries: `keras-fm verify mine.keras statement.json`
        checks on any machine that they belong together.

        Args:
            path: a new file, or an earlier statement, which is replaced; not
                the file of the ledger.

        Raises:
            ValueError: if the weights are not those that the private fit led
                to, or the file holds something else.
            OSError: if it cannot be written.
        """
        saved_statement.save(path, self.model, self._ledger)

    def _claimed_epsilon(self):
        """The sum of all claims that the model was trained under."""
        ledgers = model_check.ledgers_of(self.model, self._ledger)
        return math.fsum(ledger.claimed_epsilon() for ledger in ledgers)

    def plan(
        self,
        model,
        batches=None,
        epochs=1,
        batch_size=None,
        class_weight=None,
        participation=None,
    ):
        """A table, in text, of what a fit of `model` would release, before
        anything is read or spent.

        Args:
            model: the model.
            batches, epochs, batch_size, class_weight, participation: of
                models that read records at every step, what `fit` will be
                given; or the number of records.

        Raises:
            ValueError: whatever `fit` would refuse of the model.
            BudgetExceededError: if the budget does not allow it.
        """
        self.set_model(model)
        if hasattr(model, "plan_private_fit"):
            below = self._below_of(batches)
            first = [] if below is None else below.entries()
            text = model.plan_private_fit(
                self,
                batches,
                batch_size,
                epochs,
                first,
                class_weight,
                participation,
            )
            return first_weights.noted(text, model.model)
        fit_contract.check_loss(model)
        plan = self._make_plan()
        self._check_before(plan)
        entries = plan.entries()
        budget, times = self._ledger.budget, getattr(plan, "times", 1)
        again = f", {times} times within the budget" if times > 1 else ""
        lines = [
            f"Privacy plan: budget (epsilon = {budget.epsilon:g}, delta = "
            f"{budget.delta:g}), {self._ledger.neighbours}, {len(entries)} "
            f"release{'s' * (len(entries) != 1)}{again}",
            f"  unit: {shown_unit(self._ledger.unit)}",
            *(f"  {line}" for line in getattr(plan, "how_computed", ())),
        ]
        for e in entries:
            lines.append(f"  {e.name} ({e.guarantee}): {e.describe()}")
            lines.append(f"    uses {e.reads}")
        together = self._ledger.epsilon(entries)
        sampled = any("sampling_rate" in e.mechanism for e in entries)
        if sampled and math.isfinite(together):
            lines.append(
                f"  together: epsilon = {together:.6g} by privacy loss "
                "distributions"
            )
        return first_weights.noted("\n".join(lines), model)

    def _make_plan(self, hidden=False):
        model = self.model
        model_check.check_built(model)
        self._parts = parts_of(getattr(model, "part_of", None) or model)
        top = model if isinstance(model, PrivatePart) else None
        data = self.data
        shared = {
            "data": data,
            "ledger": self._ledger,
            "noise": self._noise,
            "guarantee": self.guarantee,
        }
        by_steps = self.guarantee.kind == "proven" or top is not None
        if by_steps and data is None:
            raise ValueError(
                'guarantee="proven" needs the private records, and so does '
                "every FunctionalNet: pass `data=(x, y)`."
            )
        if not by_steps:
            return PublishedPlan(model, **shared)
        lot = getattr(self.guarantee, "lot", None)
        if top is not None and lot not in (None, "data"):
            raise ValueError(
                f"A {type(top).__name__} has no lots: its sums are over all "
                'records. Pass `lot="data"`.'
            )
        return ProvenPlan(
            model,
            redo=self.new_release,
            notes=[*self.notes, *[fit_contract.NOT_CHECKED] * hidden],
            **shared,
        )

    def _check_before(self, plan):
        """Refuses what a fit of the model would, whatever it is given."""
        if isinstance(plan, PublishedPlan):
            if not plan.perturbed.is_perturbed:
                plan.check()
            return
        if plan.is_done and not plan.redo:
            if not plan.published:
                plan.check_model(spends=False)
            return
        plan.check_model()
        model_check.check_start(self.model, plan.top, self.guarantee)
        plan.check()

    # Keras' hooks --------------------------------------------------------

    # What a fit looks for among its callbacks.
    makes_private = True

    @property
    def known_seed(self):
        """`None`, or the seed of reproducible noise, which protects nobody."""
        return self._seed

    def protect(self, owners):
        """Makes owners the privacy unit, for a fit that is given their ids.

        Raises:
            ValueError: if the ledger protects rows.
        """
        self._ledger, self.guarantee = ledger_of_callback.of_owners(
            self._ledger, self.guarantee, owners, self._own
        )

    def on_train_begin(self, logs=None):
        if hasattr(self.model, "begin_private_fit"):
            if self.model.declared_public is None:
                public_constants.check(self.model.model._flatten_layers())
            self._steps = self.model.begin_private_fit(self, self._below_of)
            return
        arguments = fit_frame.arguments(self.model)
        hidden = arguments is None
        arguments = {} if hidden else arguments
        self._steps = None
        plan = self._make_plan(hidden)
        fit_contract.check(arguments, self, plan.data, plan.model)
        if self._first_epoch(arguments) >= self.params.get("epochs", 1):
            # A backup of a fit that was cut off after its last epoch.
            return
        if isinstance(plan, PublishedPlan):
            drawn = self._begin_published(plan, arguments)
        else:
            drawn = self._begin_proven(plan, arguments)
        if drawn:
            # A step traced before the noise was fixed would not contain it.
            self.model.make_train_function(force=True)

    def on_train_batch_end(self, batch, logs=None):
        if self._steps is not None:
            self._steps.end_batches()

    def on_train_end(self, logs=None):
        self._steps = None
        if self.params.get("verbose"):
            # Unlike `sys.stdout.write` it bears a process without an output.
            print(self._summary())

    # Proven --------------------------------------------------------------

    def _begin_proven(self, plan, arguments):
        """Releases if needed. Returns whether something was drawn."""
        # The plan knows. After a refusal, later fits are free ones again.
        self.new_release = False
        self._check_before(plan)
        if plan.is_done and not plan.redo:
            if plan.published and not plan.top.published:
                self._refuse_proven(self.model.name)
            self._seal(plan)
            return False
        model_check.check_one_process(self.model)
        self._carry_out(plan)
        self.releases, self.release = plan.releases, plan.release
        plan.install(getattr(self.guarantee, "start", "minimiser"))
        self._seal(plan)
        return True

    def _seal(self, plan):
        """From now on no record enters a step, and none leaves it."""
        if not plan.published:
            fresh = not sealed.is_sealed(self.model)
            sealed.seal(self.model, plan.sealed_parts)
            if fresh:
                # What was traced before would see the records.
                self.model.make_train_function(force=True)
            sealed.watch(self.model, plan.sealed_parts)

    def _below_of(self, data):
        """`None`, or a plan of what a network all of whose layers learn
        releases of layers below, before its steps."""
        below = getattr(self.model, "feature_model", None)
        parts = [] if below is None else model_check.parts_below(below, None)
        parts = [part for part in parts if not part.is_released]
        if not parts:
            return None
        kinds = [type(part) for part in parts]
        shares = [
            share
            for part in parts
            for share in part.default_shares(kinds.count(type(part)))
        ]
        promise, share = self.guarantee, min(math.fsum(shares), 0.5)
        if promise.kind != "proven":
            promise = Proven(neighbours=str(self._ledger.neighbours))
        promise = dataclasses.replace(promise, spends=promise.spends * share)
        return ProvenPlan(
            below,
            data=data,
            ledger=self._ledger,
            noise=self._noise,
            guarantee=promise,
            notes=self.notes,
        )

    def _first_epoch(self, arguments):
        """The epoch that the fit begins with; Keras prefers a backup's."""
        restored = getattr(self.model, "_initial_epoch", None)
        return restored or arguments.get("initial_epoch") or 0

    # Published -----------------------------------------------------------

    def _begin_published(self, plan, arguments):
        y = arguments.get("y")
        if hasattr(plan.perturbed, "check_labels") and hasattr(y, "shape"):
            plan.perturbed.check_labels(np.asarray(y), len(y))
        if plan.perturbed.is_released:
            self._refuse_proven(plan.perturbed.name)
        if plan.perturbed.is_perturbed:
            return False
        model_check.check_one_process(self.model)
        plan.check_pretrained()
        plan.check()
        self._carry_out(plan)
        return True

    def _refuse_proven(self, name):
        raise ValueError(
            f"'{name}' carries a proven release. Build a new model for "
            'guarantee="published".'
        )

    def _carry_out(self, plan):
        """Pays and reads; what a delta is worth is said as soon as the number
        of records is known, of a stream after it was read."""
        known = plan.known_units
        budget_lib.warn_of_delta(self._ledger.budget.delta, known)
        plan.carry_out()
        if known is None:
            budget_lib.warn_of_delta(
                self._ledger.budget.delta, plan.known_units
            )

    def _summary(self):
        spent = statement.rounded_up(self._ledger.epsilon())
        if self.guarantee.kind == "published":
            return (
                f"keras_fm: claimed epsilon "
                f"{self._claimed_epsilon():.4g} (published form), "
                f"proven epsilon {spent}, "
                f"{self._ledger.neighbours}. See report()."
            )
        if not self._ledger.entries:
            return (
                "keras_fm: this fit reused the model's release and read no "
                "record. See the statement it was released with."
            )
        return (
            f"keras_fm: proven (epsilon = {spent}, "
            f"delta = {self._ledger.budget.delta:g}), {self._ledger.neighbours}"
            + (", NOT PRIVATE (seed)" if self._noise.reproducible else "")
            + ". See report()."
        )
