import dataclasses
import math
import os
import warnings
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
    """Trains a model of private layers with differential privacy in `fit`.

    `guarantee=Proven()` (default): the records are used once, when training
    begins: the coefficients of the output layer's Taylor cross-entropy get
    noise (a *release*). After that every step minimises the released objective
    and gets zeros instead of records, so other data would lead to the same
    weights. The logs hold `loss`, which is the released objective, and metrics
    of `validation_data`, nothing else. That does not depend on `compile` or on
    the order of callbacks. Later fits on the same model reuse the release and
    cost nothing.

    Each private layer has its own releases. Those of a `PrivateEncoder` (dPA),
    a `ChebyshevCRBM` (pCDBN) and a `DPPCA` come before the output layer, from
    the input upwards. A `RelevanceScaling` (AdLM) releases a first model and
    the relevance of its features. An output layer with `rounds` uses the
    records R times. `plan(model)` lists all releases before any record is used
    or budget spent, and refuses the models that `fit` would refuse.

    A `make_private` model, a `GradientNet` and a `DPMAC` use records at every
    step instead. Each step takes a noisy sum over a sample that `fit` draws.
    They need no `data`, and all steps are charged before the first. A
    `FunctionalNet` uses the records once in each of its rounds, when training
    begins.

    `guarantee=Published(lot=...)`: the papers' algorithms as printed. The
    ledger marks their epsilon as *claimed*; the proven epsilon is infinite.

    Args:
        epsilon: number in (0, 1e6]; or a `PrivacyBudget`; or a `Ledger` to
            continue, whose budget, neighbours and unit then apply.
        delta: number in [0, 1), far below one over the number of records; `0`
            is a pure epsilon. Needed if `epsilon` is a number, and only then.
        data: the private records `(x, y)`: arrays, a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a `DataLoader` of PyTorch, or a function
            that returns an iterator of batches. Pass x alone for a model
            without labels. x is one array, or a list or dict of arrays as the
            model takes them.
        guarantee: `Proven(...)`, `Published(lot=...)`, or `"proven"` for
            `Proven()`.
        ledger: `None`, or the path of a file for the ledger, the record of
            all releases (`keras_fm.Ledger.open`). The file is created, or
            continued if it exists; several processes may share it. A run
            that is killed has then still spent its budget. An existing file
            must have the same budget, neighbours and unit.
        notes: further public facts for the report.
        reproducible_noise: `None`, or an int seed. A seeded run is labelled
            "not private".

    Attributes:
        new_release: set it to `True` and the next fit draws a new release,
            and is charged, although the model has one already; see
            `Proven(releases=...)`.
        release: the last `Release` of the output layer, or `None`.
        releases: dict of the last fit's releases by layer name.

    Raises:
        ValueError: at once if an argument is outside its range. In `fit`,
            before any record is used or budget spent, if arguments do not fit
            together or no statement could cover the fit.
        OSError: if the file of the ledger cannot be written. No noise was
            drawn then.
        BudgetExceededError: before any record is used.

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
        # Whether only this callback uses the ledger.
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
        """A copy for another fit, as in a search: same ledger, own noise."""
        return PrivateModel(
            self._ledger,
            data=self.data,
            guarantee=self.guarantee,
            notes=self.notes,
            reproducible_noise=self._seed,
        )

    # Statements and plans ------------------------------------------------

    @property
    def ledger(self):
        """The `Ledger` of everything this callback released."""
        return self._ledger

    @property
    def relevance(self):
        """Relevance of features, or `None`: an array of the shape of one record
        at the scaled or perturbed layer. For a proven model it holds released
        relevance shares (mean 1), for a published one the noisy average."""
        found = (getattr(part, "relevance", None) for part in self._parts)
        return next((v for v in found if v is not None), None)

    def epsilon(self, delta=None):
        """Proven epsilon of all releases of the model so far, composed from
        its ledger, at `delta` (`None`: the budget's).

        Raises:
            ValueError: if `delta` is not in [0, 1), or if the model has
                releases from several ledgers, see `report`.
        """
        return model_check.epsilon_of(self.model, self._ledger, delta)

    def report(self):
        """The privacy statement, as text: of this ledger, and of any other
        ledger with releases of the model."""
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
        """Writes the statement to a JSON file, with a digest of the weights
        and all ledger entries. `keras-fm verify mine.keras statement.json`
        checks on any machine that model and statement belong together.

        Args:
            path: a new file, or an earlier statement, which is replaced. Not
                the file of the ledger.

        Raises:
            ValueError: if the weights changed since the private fit, or if the
                file holds something else.
            OSError: if it cannot be written.
        """
        saved_statement.save(path, self.model, self._ledger)

    def _claimed_epsilon(self):
        """The sum of all claimed epsilons that the model was trained under."""
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
        """Lists the releases of a fit of `model` in a text table. Uses no
        records and spends no budget.

        Args:
            model: the model.
            batches, epochs, batch_size, class_weight, participation: the
                arguments of `fit`, for models that use records at every
                step. `batches` is x, or just the number of records.

        Raises:
            ValueError: if `fit` would refuse the model.
            BudgetExceededError: if the budget does not allow the fit.
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
        fit_contract.check_loss(model, model.loss)
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
            lines.append(f"    uses {e.uses}")
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
                if self._parts
                else f"'{model.name}' has no private layer. Train all of its "
                "layers with noisy steps, `keras_fm.make_private(model)`, or "
                "let it end in a `PrivateDense` and pass `data=(x, y)`."
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
        """Refuses models that every fit would refuse."""
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

    # Private models look for this attribute among the callbacks of a fit.
    makes_private = True

    @property
    def known_seed(self):
        """`None`, or the seed of reproducible noise. Such noise protects no
        record."""
        return self._seed

    def protect(self, owners):
        """Makes owners the privacy unit, for a fit with ids of owners.

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
        self._steps = None
        plan = self._make_plan(hidden=arguments is None)
        arguments = arguments or {}
        fit_contract.check(arguments, self, plan.data, plan.model)
        if self._first_epoch(arguments) >= self.params.get("epochs", 1):
            # A backup of a fit that was interrupted after its last epoch.
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
            # Unlike `sys.stdout.write` it works in a process without output.
            print(self._summary())

    # Proven --------------------------------------------------------------

    def _begin_proven(self, plan, arguments):
        """Releases if needed. Returns whether noise was drawn."""
        # The plan has it. After a refusal, later fits cost nothing again.
        self.new_release = False
        self._check_before(plan)
        if plan.is_done and not plan.redo:
            if self.data is not None and not self._ledger.entries:
                warnings.warn(
                    f"'{self.model.name}' was released before: this fit uses "
                    "no records. For another release set `new_release = True`.",
                    stacklevel=2,
                )
            if plan.published and not plan.top.published:
                self._refuse_proven(self.model.name)
            self._seal(plan)
            return False
        model_check.check_one_process(self.model)
        self._carry_out(plan)
        self.releases, self.release = plan.releases, plan.release
        plan.install(self.guarantee.start)
        self._seal(plan)
        return True

    def _seal(self, plan):
        """Keeps records out of all later steps and their logs."""
        if not plan.published:
            fresh = not sealed.is_sealed(self.model)
            sealed.seal(self.model, plan.sealed_parts)
            if fresh:
                # A step traced before would use the records.
                self.model.make_train_function(force=True)
            sealed.watch(self.model, plan.sealed_parts)

    def _below_of(self, data):
        """`None`, or the plan of releases of lower layers that a network with
        private steps makes before its first step."""
        below = getattr(self.model, "feature_model", None)
        parts = [] if below is None else model_check.parts_below(below, None)
        parts = [part for part in parts if not part.is_released]
        if not parts:
            return None
        shares = model_check.default_shares(parts)
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
        """The first epoch of the fit; that of a backup comes first."""
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
        """Charges the ledger and releases. Warns about delta as soon as the
        number of records is known; for a stream that is afterwards."""
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
                "keras_fm: this fit reused the model's release and used no "
                "record. See the statement of that release."
            )
        return (
            f"keras_fm: proven (epsilon = {spent}, "
            f"delta = {self._ledger.budget.delta:g}), {self._ledger.neighbours}"
            + (", NOT PRIVATE (seed)" if self._noise.reproducible else "")
            + ". See report()."
        )
