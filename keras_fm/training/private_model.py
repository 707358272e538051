import math
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_fm import budget as budget_lib
from keras_fm import domain, mechanisms, sampling
from keras_fm.callbacks import fit_arguments, model_check, same_data
from keras_fm.callbacks.expansion_plan import ExpansionPlan
from keras_fm.callbacks.proven_plan import ProvenPlan
from keras_fm.callbacks.published_plan import (
    ORDERS,
    RELEVANCE_FORMS,
    PublishedPlan,
)
from keras_fm.callbacks.published_pretraining import PublishedPretraining
from keras_fm.callbacks.sampled_plan import SampledPlan
from keras_fm.ledger import ONE_RECORD, Ledger
from keras_fm.models.dpmac import DPMAC
from keras_fm.models.functional_net import FunctionalNet

_GUARANTEES = ("proven", "published")
LOTS = ("batch", "data")
ONE_OWNER = "one owner with all its rows (ids given as `owners`)"


class PrivateModel(keras.callbacks.Callback):
    """Makes `fit` private: fixes the noise once, before the first step.

    `guarantee="proven"` (default): the records are read once, when training
    begins, as the perturbed coefficients of the output layer's Taylor
    cross-entropy. After that every step minimises the released objective and
    uses no record: the same fit gives the same weights with the data
    replaced by zeros. `loss` in the logs is the released objective (none in
    a fit without an output layer); metrics of the private records are
    removed from the logs (metrics on `validation_data` stay). Later fits on
    the same model reuse the release and cost nothing.

    A model with a `RelevanceScaling` layer is read three times within the
    same budget: a first model, the relevance of its features, and the model
    that is kept, in features scaled by their relevance (AdLM). Every
    `PrivateEncoder` (dPA), `ChebyshevCRBM` (pCDBN) and `DPPCA` of a model is
    released before the output layer, from the input upwards; a model of the
    first two alone needs no labels. An output layer with `rounds` is read R
    times.

    A `DPMAC` is trained on the records at every step instead, each step a
    noisy sum of clipped coefficients: `fit` it on
    `keras_fm.datasets.PoissonBatches`. All its steps are charged before the
    first; metrics of the private records are removed from the logs here,
    too. With `guarantee="published"` it takes shuffled batches, whose epsilon
    is claimed.

    A `FunctionalNet` is read once for each of its rounds when training
    begins, with both guarantees; the fit then reads nothing.

    `guarantee="published"`: the papers' minibatch training with noise on
    the first layer (`PerturbedAffine`, `PerturbedConv2D`) and on the
    coefficients of the loss. The ledger says *claimed*; the proven epsilon
    is infinite.

    Args:
        budget: a `PrivacyBudget`, an epsilon, or a `Ledger` that is
            continued (its budget, neighbours and unit then hold).
        data: the private records `(x, y)`: arrays, a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, or a function returning an iterator of
            batches; or x alone for a model without labels. Needed for
            `"proven"`, unless a `DPMAC` is fitted on `PoissonBatches`, which
            hold the records.
        guarantee: `"proven"` or `"published"`.
        neighbours: `"add_remove"` or `"replace_one"`. Default
            `"add_remove"` (proven) and the papers' `"replace_one"`
            (published).
        shares: `None`, or how the budget is split, greater than 0, summing
            to 1: for a proven model with `RelevanceScaling` (first model,
            relevance, kept model), default (0.2, 0.1, 0.7); for published
            AdLM (relevance eps1, first layer eps2, loss eps3), default
            (0.25, 0.25, 0.5); for other published models one for each
            perturbed layer and the loss, default equal. For a proven model
            with `PrivateEncoder` or `ChebyshevCRBM` layers, one for each
            release in the order of `plan`, default 0.05 for each
            `ChebyshevCRBM`, 0.3 for the encoders together and the rest for
            the output layer; published: one for each of these layers and one
            for the output layer, default equal.
        planned_releases: int >= 1, how many releases may be drawn within
            the budget; each gets an equal share.
        new_release: whether the next fit draws (and is charged) again
            although the model carries a release.
        start: `"minimiser"` (default) moves the output layer to the
            released optimum in closed form before the first step;
            `"current"` leaves the weights where they are, which must be
            those that the layer was built with.
        ridge_factor: float >= 0, ridge in units of the noise's spectral
            edge. A rule fixed in advance.
        n_public: whether the number of records is public. If `False`, `fit`
            must be given `steps_per_epoch`, since otherwise the number of
            steps tells n.
        batch_size: int, the lot size |L| of the published form.
        published_orders: which coefficients of the loss the published form
            perturbs: `("linear", "quadratic")` as printed in the papers.
        lot: what the published noise is divided by: `"batch"`, the lot
            size (AdLM), or `"data"`, the number of records in `data`, which
            then is public (dPA).
        owners: proven form: `None`, or `(n,)` ids of the records' owners.
            The privacy unit then is an owner with all its records, whose sum
            is scaled back to what one record may add. `data` must be arrays.
        unit: what the privacy unit is, in words, for the report.
        reach: proven form: how many *other* units' records one unit's data
            may enter (friends' behaviour among the features), counted in
            privacy units: users with `owners`, rows without. The
            sensitivity grows with it. Who may enter whose records must be
            public.
        notes: further public facts for the report.
        pretrained: for published AdLM (a layer with `adaptive=True`), the
            network whose relevance is used: a trained clone of the model,
            or any model with the same inputs.
        relevance_form: published AdLM: `"paper"` min-max normalises every
            record's relevance and averages (Eq. 7); `"code"` averages
            first, normalises the average and takes its fourth power, as the
            authors' code does.
        planned_steps: of a `DPMAC`: `None`, or how many steps are paid for
            at its first fit, if that fit is not to be the last.
        noise_multiplier: of a `DPMAC`: `None` for the noise that spends the
            budget, or the noise of its steps, in units of the sensitivity.
        relevance_floor: published AdLM: smallest noisy relevance, so that
            no noise scale is infinite (1e-5 in the authors' code).
        reproducible_noise: `None`, or an int seed. A seeded run is labelled
            "not private".
        ledger: `None`, or the path of a file that the ledger lives in
            (`keras_fm.Ledger.open`): begun if there is none, else continued,
            by this process and any other. A run that is killed then cannot
            be repeated on a budget that it spent. An existing file must be
            of the same budget, neighbours and unit.

    Attributes:
        release: the last `Release` of the output layer, or `None`.
        releases: dict of the last fit's releases by layer name, encoders
            included.
        relevance: `None`, or an array of the shape of one record at the
            scaled or perturbed layer: the released relevance shares (mean
            1) of a proven model, the noisy average of a published one.

    Raises:
        ValueError: on arguments outside their range (at once), or a model,
            data or fit arguments that do not belong together or that no
            statement could cover (before anything is read or spent).
        OSError: if the file of the ledger cannot be written; no noise was
            drawn then.
        BudgetExceededError: before anything is read.

    Example:

    ```python
    private = PrivateModel(PrivacyBudget(1.0, 1e-5), data=(x, y))
    model.compile("adam", loss=TaylorCrossEntropy(), metrics=["accuracy"])
    model.fit(x, y, epochs=20, callbacks=[private])
    print(private.report())
    ```
    """

    def __init__(
        self,
        budget: budget_lib.PrivacyBudget | Ledger | float,
        data: Any = None,
        guarantee: str = "proven",
        neighbours: str | budget_lib.Neighbours | None = None,
        shares: Sequence[float] | None = None,
        planned_releases: int = 1,
        new_release: bool = False,
        start: str = "minimiser",
        ridge_factor: float = 0.5,
        n_public: bool = True,
        batch_size: int | None = None,
        published_orders: Sequence[str] = ORDERS,
        lot: str = "batch",
        owners: Any = None,
        unit: str | None = None,
        reach: int = 0,
        notes: Sequence[str] = (),
        pretrained: Any = None,
        relevance_form: str = "paper",
        relevance_floor: float = 1e-5,
        planned_steps: int | None = None,
        noise_multiplier: float | None = None,
        reproducible_noise: int | None = None,
        ledger: str | os.PathLike | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(budget, (budget_lib.PrivacyBudget, Ledger)):
            budget = budget_lib.PrivacyBudget(budget)
        if guarantee not in _GUARANTEES:
            raise ValueError(
                f"`guarantee` must be one of {_GUARANTEES}. Received: "
                f"guarantee={guarantee!r}"
            )
        if start not in ("minimiser", "current"):
            raise ValueError(
                '`start` must be "minimiser" or "current". Received: '
                f"start={start!r}"
            )
        if not isinstance(planned_releases, int) or planned_releases < 1:
            raise ValueError(
                "`planned_releases` must be a positive integer. Received: "
                f"planned_releases={planned_releases}"
            )
        if not (math.isfinite(ridge_factor) and ridge_factor >= 0):
            raise ValueError(
                "`ridge_factor` must be a finite number of at least 0. "
                f"Received: ridge_factor={ridge_factor}"
            )
        if planned_steps is not None:
            planned_steps = domain.check_count("planned_steps", planned_steps)
        if noise_multiplier is not None:
            noise_multiplier = domain.check_norm_bound(
                "noise_multiplier", noise_multiplier
            )
        if lot not in LOTS:
            raise ValueError(
                f"`lot` must be one of {LOTS}. Received: lot={lot!r}"
            )
        if lot == "data" and not hasattr(_inputs_of(data), "__len__"):
            raise ValueError(
                '`lot="data"` divides the noise by the number of records: '
                "pass `data` as arrays."
            )
        by_batch = guarantee == "published" and lot == "batch"
        if by_batch and not (isinstance(batch_size, int) and batch_size > 0):
            raise ValueError(
                'guarantee="published" divides its noise by the lot size: '
                "pass the `batch_size` of fit. Received: "
                f"batch_size={batch_size}"
            )
        if set(published_orders) - set(ORDERS) or not published_orders:
            raise ValueError(
                f"`published_orders` must name some of {ORDERS}. Received: "
                f"published_orders={published_orders}"
            )
        if shares is not None:
            shares = tuple(float(share) for share in shares)
            if not all(share > 0 for share in shares) or not (
                abs(math.fsum(shares) - 1) < 1e-9
            ):
                raise ValueError(
                    "`shares` must be greater than 0 and sum to 1. Received: "
                    f"shares={shares}"
                )
        if relevance_form not in RELEVANCE_FORMS:
            raise ValueError(
                f"`relevance_form` must be one of {RELEVANCE_FORMS}. "
                f"Received: relevance_form={relevance_form!r}"
            )
        if not (math.isfinite(relevance_floor) and relevance_floor > 0):
            raise ValueError(
                "`relevance_floor` must be a finite number greater than 0. "
                f"Received: relevance_floor={relevance_floor}"
            )
        if owners is not None or reach:
            if guarantee != "proven":
                raise ValueError(
                    '`owners` and `reach` belong to guarantee="proven".'
                )
            if owners is not None:
                owners = np.array(owners)
            if reach:
                reach = domain.check_count("reach", reach)
        ledger = self._open_ledger(
            budget, neighbours, guarantee, owners, unit, ledger
        )
        if guarantee == "proven":
            # Keras waits for the metrics of every step if this hook is
            # there, so it is only where it is needed.
            self.on_train_batch_end = self._end_batch
        self.data = data
        self.guarantee = guarantee
        self.shares = shares
        self.planned_releases = planned_releases
        self.new_release = new_release
        self.start = start
        self.ridge_factor = ridge_factor
        self.n_public = n_public
        self.batch_size = batch_size
        self.published_orders = tuple(published_orders)
        self.lot = lot
        self.owners = owners
        self.reach = reach
        self.notes = (notes,) if isinstance(notes, str) else tuple(notes)
        self.planned_steps = planned_steps
        self.noise_multiplier = noise_multiplier
        self.pretrained = pretrained
        self.relevance_form = relevance_form
        self.relevance_floor = relevance_floor
        self.release = None
        self.relevance = None
        self.releases: dict[str, Any] = {}
        self._ledger: Any = ledger
        self._noise = mechanisms.NoiseSource(reproducible_noise)
        self._fingerprint = same_data.Fingerprint()

    @staticmethod
    def _open_ledger(budget, neighbours, guarantee, owners, unit, path):
        if isinstance(path, Ledger):
            raise ValueError(
                "`ledger` is the path of a file. Pass a Ledger that is "
                "continued in the place of the budget."
            )
        if isinstance(budget, Ledger):
            if path is not None:
                raise ValueError(
                    "`ledger` names the file of a new ledger, and the budget "
                    "is a Ledger already. Open that one as a file, "
                    "`keras_fm.Ledger.open(path, ...)`."
                )
            for name, given, own in (
                ("neighbours", neighbours, str(budget.neighbours)),
                ("unit", unit, budget.unit),
            ):
                if given is not None and given != own:
                    raise ValueError(
                        f"`{name}` is that of the ledger that is continued, "
                        f"{own!r}. Received: {name}={given!r}"
                    )
            # What protects a record does not protect an owner, nor the other
            # way round where an owner only gains or changes a record.
            by_record = budget.unit == ONE_RECORD
            if owners is None:
                mixed = not by_record and unit is None
            else:
                mixed = by_record
            if mixed:
                raise ValueError(
                    "The privacy unit of the ledger that is continued is "
                    f"{budget.unit!r}. Pass `owners` if that is an owner of "
                    "several records; repeat `unit` if it is one record, in "
                    "these words. Records and owners do not add up in one "
                    "ledger."
                )
            return budget
        if neighbours is None:
            neighbours = (
                "add_remove" if guarantee == "proven" else "replace_one"
            )
        if unit is None:
            unit = ONE_RECORD if owners is None else ONE_OWNER
        if path is None:
            return Ledger(budget, neighbours=neighbours, unit=unit)
        return Ledger.open(
            path, budget=budget, neighbours=neighbours, unit=unit
        )

    # What a user asks ----------------------------------------------------

    @property
    def ledger(self):
        """The `Ledger` of everything this callback released."""
        return self._ledger

    def report(self):
        """The privacy statement, composed from the ledger."""
        return self._ledger.statement()

    def plan(self, model, batches=None, epochs=1):
        """A table of what a fit of `model` would release, before anything
        is read or spent.

        Args:
            model: the model.
            batches, epochs: of a `DPMAC`: what `fit` will be given.

        Returns:
            str.
        """
        self.set_model(model)
        arguments = {"x": batches}
        if batches is not None:
            arguments["steps"] = epochs * batches.num_batches
        entries = self._make_plan(arguments).entries()
        budget = self._ledger.budget
        lines = [
            f"Privacy plan: budget (epsilon = {budget.epsilon:g}, delta = "
            f"{budget.delta:g}), {self._ledger.neighbours}, "
            f"{self.planned_releases} planned release(s)"
        ]
        for entry in entries:
            lines.append(
                f"  {entry.name} ({entry.guarantee}): {entry.describe()}"
            )
            lines.append(f"    reads {entry.reads}")
        together = self._ledger.epsilon(entries)
        sampled = any("sampling_rate" in e.mechanism for e in entries)
        if sampled and math.isfinite(together):
            everything = (*self._ledger.entries, *entries)
            renyi = sampling.rdp_epsilon(
                [entry.build_mechanism() for entry in everything], budget.delta
            )
            lines.append(
                f"  together: epsilon = {together:.6g} by privacy loss "
                f"distributions (by Renyi divergences {renyi:.4g})"
            )
        return "\n".join(lines)

    def _make_plan(self, arguments=None):
        arguments = arguments or {}
        shared = {
            "ledger": self._ledger,
            "noise": self._noise,
            "shares": self.shares,
        }
        proven = {
            "data": self.data,
            "planned_releases": self.planned_releases,
            "n_public": self.n_public,
            "ridge_factor": self.ridge_factor,
            "owners": self.owners,
            "reach": self.reach,
            "notes": self.notes,
            "redo": self.new_release,
        }
        if isinstance(self.model, DPMAC):
            return SampledPlan(
                self.model,
                batches=arguments.get("x"),
                planned_steps=self.planned_steps or arguments.get("steps"),
                guarantee=self.guarantee,
                batch_size=self.batch_size,
                noise_multiplier=self.noise_multiplier,
                **proven,
                **shared,
            )
        if self.planned_steps is not None or self.noise_multiplier is not None:
            raise ValueError(
                "`planned_steps` and `noise_multiplier` belong to a DPMAC. "
                f"Received a {type(self.model).__name__}"
            )
        if self.data is None and (
            self.guarantee == "proven" or isinstance(self.model, FunctionalNet)
        ):
            raise ValueError(
                'guarantee="proven" needs the private records, and so does '
                "every FunctionalNet: pass `data=(x, y)`."
            )
        if isinstance(self.model, FunctionalNet):
            if self.guarantee == "published" and self.lot != "data":
                raise ValueError(
                    "A FunctionalNet has no lots: its sums are over all "
                    'records. Pass `lot="data"`.'
                )
            return ExpansionPlan(
                self.model, guarantee=self.guarantee, **proven, **shared
            )
        if self.guarantee == "proven":
            return ProvenPlan(self.model, **proven, **shared)
        lot_size = self.batch_size
        if self.lot == "data":
            lot_size = len(_inputs_of(self.data))
        if hasattr(self.model, "encoding_model"):
            return PublishedPretraining(self.model, lot_size=lot_size, **shared)
        return PublishedPlan(
            self.model,
            batch_size=lot_size,
            orders=self.published_orders,
            relevance_form=self.relevance_form,
            relevance_floor=self.relevance_floor,
            **shared,
        )

    # Keras' hooks --------------------------------------------------------

    def on_train_begin(self, logs=None):
        arguments = fit_arguments.of_running_fit(self.model) or {}
        arguments["steps"] = self._steps_of_fit(arguments)
        plan = self._make_plan(arguments)
        fit_arguments.check(arguments, self)
        model_check.check_loss(self.model, arguments.get("y"))
        if self._first_epoch(arguments) >= self.params.get("epochs", 1):
            # A backup of a fit that was cut off after its last epoch.
            self._perturbed = []
            return
        if isinstance(plan, SampledPlan):
            drawn = self._begin_sampled(plan, arguments)
        elif isinstance(plan, ProvenPlan):
            drawn = self._begin_proven(plan, arguments)
        else:
            drawn = self._begin_published(plan, arguments)
        if drawn:
            # A step traced before the noise was fixed would not contain it.
            self.model.make_train_function(force=True)
        self._perturbed = plan.in_training
        for layer in self._perturbed:
            layer.objective_in_use = layer.objective_in_use and not drawn

    def _end_batch(self, batch, logs=None):
        self._hide_private_metrics(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._hide_private_metrics(logs)

    def on_train_end(self, logs=None):
        self._hide_private_metrics(logs)
        for layer in self._perturbed:
            if not layer.objective_in_use:
                raise RuntimeError(
                    f"The perturbed objective of layer '{layer.name}' took "
                    "no part in training. Train with `model.fit`; a custom "
                    "training step must add `model.losses` and call the "
                    "model with `training=True`."
                )
        if self.params.get("verbose"):
            sys.stdout.write(self._summary() + "\n")

    # Proven --------------------------------------------------------------

    def _begin_proven(self, plan, arguments):
        """Releases if needed. Returns whether something was drawn."""
        head = plan.head
        if head is not None and head.is_perturbed:
            raise ValueError(
                f"Layer '{head.name}' carries published noise and was "
                "trained on the records without a proof. Build a new model "
                'for guarantee="proven".'
            )
        if plan.is_done and not self.new_release:
            if self.guarantee == "proven":
                model_check.check_proven(plan.model, head)
            elif not self._ledger.entries:
                raise ValueError(
                    f"'{self.model.name}' carries the release of another "
                    "PrivateModel, whose ledger holds the claim. Go on with "
                    "that callback, or build a new model."
                )
            self._check_same_data(arguments)
            return False
        if not plan.was_trained_on_release:
            self._check_untrained()
        if head is not None:
            head.check_start(self.start)
        model_check.check_one_process(self.model)
        plan.check()
        self._warn_about_delta()
        plan.carry_out()
        self.release = plan.release
        self.releases = plan.releases
        self.relevance = plan.relevance
        self._fingerprint.take(self.data)
        self.new_release = False
        plan.install(self.start)
        return True

    # Sampled -------------------------------------------------------------

    def _steps_of_fit(self, arguments):
        """How many steps the running fit takes, or `None` if unknown."""
        steps = self.params.get("steps")
        if not steps:
            return None
        epochs = self.params.get("epochs", 1)
        return steps * max(1, epochs - self._first_epoch(arguments))

    def _first_epoch(self, arguments):
        """The epoch that the fit begins with; Keras prefers a backup's."""
        restored = getattr(self.model, "_initial_epoch", None)
        return restored or arguments.get("initial_epoch") or 0

    def _begin_sampled(self, plan, arguments):
        """Pays for the steps of a DPMAC. Returns whether noise was fixed."""
        model, steps = self.model, arguments["steps"]
        if steps is None:
            raise ValueError(
                "The number of steps must be known before the first: pass "
                "`steps_per_epoch` to fit."
            )
        records = plan.data
        if model.is_perturbed:
            if self._fingerprint.differs(records):
                raise ValueError(
                    "The data changed since the steps of this model were "
                    "paid for. Go on with the same records, or build a new "
                    "model."
                )
            plan.resume(steps)
            return True
        if self.planned_steps is not None and steps > self.planned_steps:
            raise ValueError(
                "This fit takes more steps than are planned. Received: "
                f"planned_steps={self.planned_steps}, steps of fit={steps}"
            )
        self._check_untrained()
        model_check.check_one_process(self.model)
        plan.check()
        self._warn_about_delta()
        plan.carry_out()
        self.releases = plan.releases
        self._fingerprint.take(records)
        return True

    def _check_untrained(self):
        """Refuses weights and optimizer state of an unprotected fit."""
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is None:
            return
        if int(keras.ops.convert_to_numpy(optimizer.iterations)) > 0:
            raise ValueError(
                "The model was trained before its first release, so its "
                "weights and optimizer state may carry private records that "
                "no ledger knows. Build and compile a new model, and give "
                "its first fit the PrivateModel callback."
            )

    # Published -----------------------------------------------------------

    def _begin_published(self, plan, arguments):
        head = plan.perturbed
        if head.is_released:
            raise ValueError(
                f"Layer '{head.name}' carries a proven release. Build a new "
                'model for guarantee="published".'
            )
        if head.is_perturbed:
            if not self._ledger.entries:
                raise ValueError(
                    f"Layer '{head.name}' carries the noise of another "
                    "PrivateModel, whose ledger holds the claim. Go on with "
                    "that callback, or build a new model."
                )
            return False
        if self.lot == "batch":
            fit_arguments.check_lot(arguments, self.batch_size)
        if plan.adaptive and (self.pretrained is None or self.data is None):
            raise ValueError(
                f"Layer '{plan.adaptive.name}' has `adaptive=True`: its noise "
                "follows the relevance of a network that was trained before. "
                "Train a clone (`keras.models.clone_model(model)`) and give "
                "PrivateModel `pretrained=clone, data=(x, y)`."
            )
        if plan.adaptive:
            plan.check_pretrained(self.pretrained)
        model_check.check_one_process(self.model)
        found = plan.carry_out(self.pretrained, self.data)
        if found is not None:
            self.relevance = found.reshape(plan.adaptive.record_shape)
        return True

    # What a fit shows -----------------------------------------------------

    def _hide_private_metrics(self, logs):
        if self.guarantee != "proven" or not logs:
            return
        # Where no released objective is trained, the loss is the records'.
        kept = {"loss"} if self._perturbed else set()
        for key in list(logs):
            if key not in kept and not key.startswith("val_"):
                del logs[key]

    def _warn_about_delta(self):
        delta = self._ledger.budget.delta
        n = None
        if self.n_public and self.owners is not None:
            n = len(np.unique(self.owners))
        elif self.n_public and isinstance(self.data, (tuple, list, np.ndarray)):
            n = len(_inputs_of(self.data))
        if n and delta >= 1 / n:
            warnings.warn(
                f"delta = {delta:g} is not below one over the number of "
                f"records ({n}): it permits publishing a whole record. Take "
                "it far smaller.",
                stacklevel=2,
            )

    # The same data on a second fit ---------------------------------------

    def _check_same_data(self, arguments):
        given = [self.data]
        x, y = arguments.get("x"), arguments.get("y")
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
            given.append((x, y))
        if isinstance(x, np.ndarray) and isinstance(self.data, np.ndarray):
            given.append(x)
        if any(map(self._fingerprint.differs, given)):
            raise ValueError(
                "The data changed since the release that this model trains "
                "on. Fit with the same data (free), fit without this "
                "callback (free: the release stays in force), or draw a new "
                "release with `PrivateModel(..., planned_releases=k, "
                "new_release=True)`, which is charged."
            )

    def _summary(self):
        delta = self._ledger.budget.delta
        if self.guarantee == "published":
            return (
                f"keras_fm: claimed epsilon "
                f"{self._ledger.claimed_epsilon():.4g} (published form), "
                f"proven epsilon {self._ledger.epsilon():g}, "
                f"{self._ledger.neighbours}. See report()."
            )
        if not self._ledger.entries:
            return (
                "keras_fm: this fit reused the model's release and read no "
                "record. See the statement it was released with."
            )
        return (
            f"keras_fm: proven (epsilon = {self._ledger.epsilon():.4g}, "
            f"delta = {delta:g}), {self._ledger.neighbours}"
            + (", NOT PRIVATE (seed)" if self._noise.reproducible else "")
            + ". See report()."
        )


def _inputs_of(data):
    """x of `(x, y)`, or x itself."""
    return data[0] if isinstance(data, (tuple, list)) else data
