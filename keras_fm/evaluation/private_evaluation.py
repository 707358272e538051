"""Private evaluation under the ledger: check, charge, release.

`private_evaluate` measures how good a model is, `private_choice` finds the best
of several. Both use the records once, with the same code as all other releases,
and add an entry to the same ledger.

A model's output for a record must depend on that record alone: a Keras model is
called by a `FeatureMap`, any other with one record at a time. The model itself
must not depend on the private records except through this ledger.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from scipy import special

from keras_fm.core import model_inputs, statement_facts
from keras_fm.core.private_part import parts_of
from keras_fm.core.record_alone import FeatureMap, runs_its_graph
from keras_fm.evaluation.choice_query import Choice, ChoiceQuery
from keras_fm.evaluation.evaluation_query import (
    LEAST_PROBABILITY,
    MEANS,
    Evaluation,
    EvaluationQuery,
)
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks, records
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel import release as release_lib
from keras_fm.kernel.access import columns, fixed_rows, sampling
from keras_fm.kernel.ledger import statement
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_entry import check_line
from keras_fm.kernel.ledger.ledger_text import ONE_RECORD, declared_words
from keras_fm.kernel.planning import calibration
from keras_fm.kernel.query import REACHES
from keras_fm.training import model_check
from keras_fm.training.proven_plan import PLACES, READ_BATCH

# Largest distance of a sum of probabilities from 1.
_SUM_TOLERANCE = 1e-2
NUMBERS = ("mean_absolute_error", "mean_squared_error", "r2")
# Metrics that need probabilities, not classes alone.
_OF_PROBABILITIES = {"log_loss", "calibration", "auc"}

REST = "rest"


def private_evaluate(
    model: Any,
    data: Any,
    *,
    ledger: Ledger,
    metrics: str | Sequence[str] = ("accuracy",),
    share: float | str | None = None,
    epsilon: float | None = None,
    public: str | None = None,
    classes: int | Sequence | None = None,
    bins: int = 10,
    bounds: tuple[float, float] | None = None,
    from_logits: bool | None = None,
    clip: bool = False,
    unit: str | None = None,
    reach: int = 0,
    rows: str = "",
    name: str = "evaluation",
    notes: Sequence[str] = (),
    reproducible_noise: int | None = None,
) -> Evaluation:
    """Measures a model on private records, charged to a ledger.

    The records are used once. Each adds one count to every metric, and only
    the counts with noise are released. Values and intervals are computed from
    these, as often as you like. Fewer metrics have less noise. The noise is
    Gaussian if the ledger has delta > 0, else Laplace.

    You may evaluate a model on the records that it was trained on, under the
    same ledger: the ledger adds up both costs, however the model was chosen.
    Intervals for these records then hold. Intervals for the population do
    not, as for any metric on training records.

    Args:
        model: a Keras model or an estimator of this package (private and
            released under this ledger, or `public`), a scikit-learn
            estimator, a function from a batch `(n, ...)` to outputs
            `(n, ...)`, or `None` with data `(outputs, y)`. Outputs are
            classes (indices or labels), a number for each class, one number
            for two classes, or the predicted numbers. A model that is not a
            Keras model is called with one record at a time, and must not
            store it.
        data: the private records `(x, y)`, as `PrivateModel` takes them. For
            an estimator, y holds the labels that it was fitted with; for one
            of this package, x is the table that it takes.
        ledger: the `Ledger` that is charged.
        metrics: `"accuracy"`, `"log_loss"`, `"confusion_matrix"` (gives
            recall, precision and balanced accuracy), `"calibration"`,
            `"auc"` (two classes); or, for numbers, `"mean_absolute_error"`,
            `"mean_squared_error"`, `"r2"`.
        share: share of the ledger's budget, in (0, 1], see
            `PrivacyBudget.split`; `"rest"` for all that is left. Pass either
            this or `epsilon`.
        epsilon: the cost of the evaluation alone, at the ledger's delta.
        public: `None`, or words that explain where the model comes from, and
            why it depends on the records only through this ledger, or not at
            all. The statement repeats them.
        classes: the number of classes, or their labels in the order of the
            outputs, if the model does not know them. (An estimator keeps
            the order of its own `classes_`.)
        bins: int, for calibration: bins of the largest probability. An AUC
            has five times as many bins of the second class's probability.
        bounds: public `(low, high)` on the numbers; predictions are clipped
            to them. `None`: the `target_bounds` of a `PrivateRegressor`.
        from_logits: whether outputs are logits. `None`: they are if the model
            ends with a `PrivateDense` that does not predict numbers.
        clip: whether numbers of `y` outside `bounds` are clipped instead of
            refused.
        unit: if the ledger protects a unit other than one record, repeat that
            unit here. You declare that each unit has at most one row.
        reach: see `keras_fm.Unit`.
        rows: words that describe these records, which the statement repeats;
            `"in sample"` if the model was trained on them.
        name: name of the ledger's entry.
        notes: further public facts for it.
        reproducible_noise: `None`, or an int seed: not private.

    Returns:
        An `Evaluation`.

    Raises:
        ValueError: if the model may depend on the records in a way that
            the ledger does not record, or if a record is invalid. No budget
            is spent then.
        BudgetExceededError: before any record is used.

    Example:

    ```python
    found = private_evaluate(
        model, (x, y), ledger=private.ledger, share=0.2,
        metrics=("accuracy", "calibration"),
    )
    print(found)
    print(found.mean("accuracy", of="population"))
    ```
    """
    facts = _unit_facts(ledger, unit, reach)
    asked = AskedModel(model, ledger, public=public)
    facts += asked.facts
    records.check(data)
    if rows:
        check_line("`rows`", checks.text("rows", rows, "words on one line"))
    # The query checks the names and sorts them.
    metrics = EvaluationQuery(metrics=metrics).asked
    if set(metrics) & set(NUMBERS) and set(metrics) - set(NUMBERS):
        checks.refuse("metrics", metrics, "of classes, or of numbers")
    shape = _shape(metrics, [asked], classes, bounds) | {"rows": rows}
    paid = {
        "ledger": ledger,
        "share": share,
        "epsilon": epsilon,
        "name": name,
        "seed": reproducible_noise,
    }
    n = None
    query = EvaluationQuery(
        metrics=metrics, bins=bins, records=0, reach=reach, **shape
    )
    if ledger.neighbours.replaces:
        facts.append("the number of records n is the same for all neighbours")
        # Any number will do here: the budget is checked before counting.
        query = dataclasses.replace(query, records=1)
        release_lib.checked_entry(
            query, notes=(), **_known(query, calibration.calibrate, **paid)
        )
        n = _count(data)
        query = dataclasses.replace(query, records=n)
    logits = asked.gives_logits if from_logits is None else from_logits

    def read():
        given = translated(data, [asked])
        for x, y, rows in placed(given, n):
            x = input_of(x, 0, [asked])
            outputs = asked.outputs(x, rows, numbers="low" in shape)
            yield _compared(query, outputs, y[rows], logits, clip)

    return release_lib.release(
        query,
        read(),
        notes=(*facts, *statement_facts.declared(notes)),
        **_known(query, calibration.calibrate, **paid),
    )


def private_choice(
    models: Sequence[Any],
    data: Any,
    *,
    ledger: Ledger,
    metric: str = "accuracy",
    share: float | None = None,
    epsilon: float | None = None,
    public: str | None = None,
    classes: int | Sequence | None = None,
    bounds: tuple[float, float] | None = None,
    from_logits: bool | None = None,
    clip: bool = False,
    unit: str | None = None,
    reach: int = 0,
    name: str = "choice",
    notes: Sequence[str] = (),
    reproducible_noise: int | None = None,
) -> Choice:
    """Finds the best of several models on private records, with privacy.

    The records are used once. Every record gives each model at most one
    point, and one model is drawn at random: more points make it more likely
    (permute-and-flip). Its index is released, not its points; for these use
    `private_evaluate`. Among k models, the drawn one is worse than the best by
    more than `log(k / p) / epsilon` points (twice that under replace_one) with
    probability at most p. The cost is a pure epsilon, whatever the delta.

    Args:
        models: two or more, see `private_evaluate`.
        metric: `"accuracy"` (one point for a correct answer), or
            `"mean_absolute_error"`, `"mean_squared_error"` (one point less
            the error over the largest error).
        data, ledger, public, classes, bounds, from_logits, clip, unit,
            reach, name, notes, reproducible_noise: see `private_evaluate`.
        share: share of the ledger's budget, see `PrivacyBudget.split`. Pass
            either this or `epsilon`.
        epsilon: pure epsilon that the choice alone costs.

    Returns:
        A `Choice`.

    Raises:
        ValueError, BudgetExceededError: see `private_evaluate`.

    Example:

    ```python
    best = private_choice(models, (x, y), ledger=ledger, share=0.1)
    model = models[best.index]
    ```
    """
    if isinstance(models, (str, dict)) or not hasattr(models, "__len__"):
        checks.refuse("models", models, "a list of two or more models")
    facts = _unit_facts(ledger, unit, reach)
    all_asked = [AskedModel(model, ledger, public=public) for model in models]
    if len(all_asked) < 2:
        checks.refuse("models", models, "a list of two or more models")
    if any(asked.model is None for asked in all_asked):
        raise ValueError("Each of `models` must be a model. Received: None")
    records.check(data)
    checks.one_of("metric", metric, MEANS)
    shape = _shape((metric,), all_asked, classes, bounds)
    count = shape.pop("classes", 2)
    query = ChoiceQuery(
        candidates=len(all_asked), metric=metric, reach=reach, **shape
    )
    one = EvaluationQuery(metrics=metric, classes=count, **shape)
    # Without duplicates, in order.
    own = dict.fromkeys(fact for asked in all_asked for fact in asked.facts)

    def points(index, x, y, rows):
        asked = all_asked[index]
        x = input_of(x, index, all_asked)
        logits = asked.gives_logits if from_logits is None else from_logits
        outputs = asked.outputs(x, rows, numbers=metric in NUMBERS)
        shares, _ = _compared(one, outputs, y[rows], logits, clip)
        return shares[:, 0]

    def read():
        given = translated(data, all_asked)
        for x, y, rows in placed(given):
            found = [
                points(index, x, y, rows) for index in range(len(all_asked))
            ]
            yield (np.stack(found, axis=1),)

    def calibrate(query, budget, *, neighbours, share=1.0):
        if epsilon is None:
            return calibration.calibrate_choice(
                query, budget, neighbours=neighbours, share=share
            )
        return mechanisms_lib.PermuteAndFlip(
            sensitivity=query.sensitivity("range", neighbours=neighbours),
            epsilon=budget.epsilon,
        )

    known = _known(
        query,
        calibrate,
        ledger=ledger,
        share=share,
        epsilon=epsilon,
        name=name,
        seed=reproducible_noise,
    )
    notes = (*facts, *own, *statement_facts.declared(notes))
    return release_lib.release(query, read(), notes=notes, **known)


# Query and mechanism ----------------------------------------------------------


def _known(query, calibrate, *, ledger, share, epsilon, name, seed):
    """Arguments of the release, apart from the records."""
    if (share is None) == (epsilon is None):
        raise ValueError(
            "Pass either `share`, of the ledger's budget, or `epsilon`. "
            f"Received: share={share}, epsilon={epsilon}"
        )
    budget = ledger.budget
    if share == REST and calibrate is calibration.calibrate:
        mechanism = _rest(query, ledger)
    else:
        if share is None:
            budget = budget_lib.PrivacyBudget(epsilon, budget.delta)
            share = 1.0
        checks.number("share", share, above=0, at_most=1)
        mechanism = calibrate(
            query, budget, neighbours=ledger.neighbours, share=share
        )
    return {
        "mechanism": mechanism,
        "ledger": ledger,
        "name": name,
        "noise": mechanisms_lib.NoiseSource(seed),
    }


def _rest(query, ledger):
    """The mechanism that spends the rest of the ledger's budget."""
    left, budget = ledger.remaining(), ledger.budget
    if left > 0 and budget.delta == 0:
        # A little below the rest, because sums are rounded.
        given = budget_lib.PrivacyBudget(left * (1 - 1e-12), 0.0)
        return calibration.calibrate(query, given, neighbours=ledger.neighbours)
    others = [entry.build_mechanism() for entry in ledger.entries]
    multiplier = None
    # The rest may be a rounding error, too small for any noise.
    with contextlib.suppress(ValueError):
        if left > 0:
            multiplier = sampling.noise_multiplier(
                (1.0, 1), budget, neighbours=ledger.neighbours, others=others
            )
    if multiplier is None:
        raise ValueError(
            "Nothing is left of the ledger's budget: epsilon = "
            f"{statement.rounded_up(ledger.epsilon())} of "
            f"{budget.epsilon:.6g} is spent. Plan a share for each use from "
            "the start, `PrivacyBudget(...).split(training=..., "
            "evaluation=...)`. Received: share='rest'"
        )
    return mechanisms_lib.GaussianMechanism(
        sensitivity=query.sensitivity("l2", neighbours=ledger.neighbours),
        noise_multiplier=multiplier,
    )


def _unit_facts(ledger, unit, reach):
    checks.instance("ledger", ledger, Ledger, "a keras_fm.Ledger")
    reaching = [e.name for e in ledger.entries if REACHES in e.uses]
    if not checks.natural("reach", reach) and reaching:
        raise ValueError(
            f"{reaching[0]!r} of the ledger was released for records that "
            "hold data of other units. Pass `reach=`: the number of other "
            "units whose records one unit's data may enter. Received: "
            f"reach={reach}"
        )
    if unit is None and ledger.unit == ONE_RECORD:
        return []
    if unit is None or unit not in (ledger.unit, declared_words(ledger.unit)):
        raise ValueError(
            f"The privacy unit of the ledger is {ledger.unit!r}, but an "
            "evaluation counts rows. If no unit has several of these rows, "
            "repeat its words as `unit=`. Otherwise keep one row of each "
            f"unit. Received: unit={unit!r}"
        )
    return [f"by declaration no unit ({unit}) has more than one row"]


def _shape(metrics, models, classes, bounds):
    """Arguments of the query about classes or numbers."""
    if set(metrics) & set(NUMBERS):
        bounds = models[0].range if bounds is None else bounds
        if np.shape(bounds) != (2,):
            checks.refuse("bounds", bounds, "(low, high), public constants")
        for asked in models:
            # Predictions and `y` are numbers, not labels.
            asked.labels = None
        return {"low": bounds[0], "high": bounds[1]}
    if bounds is not None:
        checks.refuse("bounds", bounds, "None if `metrics` has no error")
    found = {asked.classes(classes) for asked in models}
    first, *others = (asked.labels for asked in models)
    if len(found) > 1 or any(np.any(first != other) for other in others):
        raise ValueError(
            "All models must have the same classes in the same order. Pass "
            "`classes=[...]` for a model without. Received: models "
            f"of {sorted(found)} classes"
        )
    return {"classes": found.pop()}


def _compared(query, outputs, y, logits, clip):
    """Shares and cells of records, see `EvaluationQuery.accumulate`."""
    if set(query.asked) & set(NUMBERS):
        of = agreement(outputs, y, query.low, query.high, clip)
        if "r2" in query.asked and np.size(y) != len(y):
            one = "without r2 if a record has several numbers"
            checks.refuse("metrics", query.metrics, one)
        shares = np.stack([of[name] for name in query.means], axis=1)
        return shares, np.zeros((len(shares), 0), int)
    # True and False are classes 1 and 0.
    y = y.astype(int) if y.dtype.kind == "b" else y
    truth = bounds_lib.class_indices(y, len(outputs), query.classes)
    sure = bool(set(query.asked) & _OF_PROBABILITIES)
    said, probabilities = decided(outputs, query.classes, logits, sure)
    right = truth == said
    cells = []
    for name in query.tables:
        if name == "confusion_matrix":
            cells.append(truth * query.classes + said)
        elif name == "calibration":
            bin_ = _bins(probabilities.max(axis=1), query.bins)
            cells.append(2 * bin_ + ~right)
        else:
            # Narrow bins near 0 and 1, where the scores of a rare class lie.
            angle = np.arcsin(np.sqrt(np.clip(probabilities[:, 1], 0, 1)))
            bin_ = _bins(angle * 2 / np.pi, 5 * query.bins)
            cells.append(truth * 5 * query.bins + bin_)
    of = {"accuracy": right}
    if "log_loss" in query.means:
        own = np.take_along_axis(probabilities, truth[:, None], 1)[:, 0]
        own = np.clip(own, LEAST_PROBABILITY, 1.0)
        of["log_loss"] = 1 - np.log(own) / np.log(LEAST_PROBABILITY)
    found = [of[name] for name in query.means]
    shares = np.array(found, float).reshape(len(found), len(right)).T
    return shares, np.array(cells, int).reshape(len(cells), len(right)).T


def _bins(values, bins):
    return np.minimum((values * bins).astype(int), bins - 1)


# The models -------------------------------------------------------------------


class AskedModel:
    """A model that is evaluated on private records.

    Args:
        model: a Keras model, a scikit-learn estimator (for one of this
            package its Keras model is used), a function from a batch of
            records to outputs, or `None` if the records are outputs already.
        ledger: the `Ledger` that the evaluation will be charged to.
        public: `None`, or words: why the model depends on the records only
            through that ledger.

    Raises:
        ValueError: if the model may depend on the records in another way.
    """

    def __init__(self, model, ledger, *, public=None):
        self.facts = []
        # For an estimator: its labels in order, the functions from a table to
        # inputs and of outputs, and the range of its predictions.
        labels = getattr(model, "classes_", None)
        # A model of several outputs has a list of them.
        several = labels is None or isinstance(labels, list)
        self.labels = None if several else np.asarray(labels)
        self.inputs = self._meant = self.range = None
        if hasattr(model, "_as_keras"):
            model, self.inputs, *more = model._as_keras()
            self._meant, self.range = more
        self.model = model
        # For a Keras model, the function that is called.
        self._map = None
        if public is not None:
            checks.text("public", public, "the source of the model in one line")
            check_line("`public`", public)
            self.facts.append(
                f"public by declaration: the evaluated model: {public}"
            )
        if isinstance(model, keras.Model):
            self._check_keras(ledger, public)
        elif public is None:
            raise ValueError(
                "`public` must name the source of the model, because its "
                "outputs may reveal the records that trained it: other "
                "records (`public='trained on ...'`), or releases of this "
                "ledger (`public='from the releases of this ledger'`). "
                f"Received: {type(model).__name__}"
            )
        if model is None:
            self.facts.append(
                "declared: each of the given predictions depends on its own "
                "record alone"
            )
        elif self._map is None:
            self.facts.append(
                "declared: the evaluated model stores nothing of a record"
            )
        elif self._map.unlisted is not None:
            self.facts.append(
                f"evaluated record by record ({self._map.unlisted})"
            )

    # Checks of the model -------------------------------------------------

    def _check_keras(self, ledger, public):
        model = self.model
        model_check.check_built(model)
        if public is None:
            self._check_released(ledger)
        if len(getattr(model, "outputs", None) or ()) > 1:
            model_check.check_functional(model)
        if runs_its_graph(model):
            given = model_inputs.single(list(model.inputs))
            model = keras.Model(given, model.outputs[0])
        self._map = FeatureMap(model)

    def _check_released(self, ledger):
        """Refuses weights that may depend on the records but come from no
        release in this ledger."""
        model, parts = self.model, parts_of(self.model)
        named = "; or name its source: `public='trained on ...'`"
        if not parts:
            raise ValueError(
                f"The model '{model.name}' has no private part, so nothing "
                "shows which records trained its weights. If others did, name "
                "them: `public='trained on ...'`"
            )
        for part in parts:
            if not part.is_released:
                raise ValueError(
                    f"{type(part).__name__} '{part.name}' has no release, so "
                    f"no ledger counts its training. Release it first{named}"
                )
            if model_check.ledger_besides(ledger, part.ledger_json) is not None:
                raise ValueError(
                    f"'{part.name}' was released under another ledger. Pass "
                    "that one, `private.ledger`, if the records are "
                    f"the same{named}"
                )
        ours = {id(v) for part in parts for v in part.weights}
        for layer in model._flatten_layers(include_self=False):
            own = [v for v in layer.weights if v.trainable]
            if any(id(v) not in ours for v in own):
                raise ValueError(
                    f"Layer '{layer.name}' has trainable weights without a "
                    "release: they may have been trained on the records. Set "
                    f"`trainable = False` if they are public{named}"
                )
        self.facts.append(
            f"the evaluated model: '{model.name}', by the releases of this "
            "ledger"
        )
        self.facts += model_check.public_facts(model, self._top)

    @property
    def gives_logits(self):
        """Whether the last layer is known to give logits."""
        top = self._top
        return isinstance(top, PrivateDense) and top.predicts != "numbers"

    @property
    def _top(self):
        if not getattr(self.model, "outputs", None):
            return None
        return model_check.output_part(self.model)

    def classes(self, given):
        """The number of classes: `given`, or the model's own number.

        Args:
            given: `None`, an int, or the labels in the order of the outputs.
        """
        known = None
        if given is not None and not checks.is_number(given):
            labels = np.asarray(given)
            if labels.ndim != 1 or len(set(given)) < len(labels):
                raise ValueError(
                    "`classes` must be a number, or a list of different "
                    f"labels. Received: classes={given}"
                )
            if self.labels is None:
                self.labels = labels
            elif set(given) != set(self.labels.tolist()):
                raise ValueError(
                    f"The model has the classes {self.labels.tolist()}. "
                    f"Received: classes={given}"
                )
            given = len(labels)
        if getattr(self.model, "outputs", None):
            known = max(2, self.model.outputs[0].shape[-1] or 0)
        elif self.labels is not None:
            known = len(self.labels)
        if given is None and known is None:
            raise ValueError(
                "`classes` must be the number of classes, because it is never "
                "counted from private labels. Received: classes=None"
            )
        if None not in (given, known) and given != known:
            raise ValueError(
                f"The model has {known} classes. Received: classes={given}"
            )
        return known if given is None else given

    # Outputs -------------------------------------------------------------

    def outputs(self, x, rows, numbers=False):
        """The model's outputs for the records in `rows` of a placed batch,
        float64 or integers `(records, ...)`."""
        model = self.model
        if model is None:
            given = columns.taken(x, rows)
            return _checked(self._numbered(given), len(rows))
        if self._map is not None:
            if getattr(model, "inputs", None):
                x = model_inputs.checked(model, x)
            found = self._map(x)
            if self._meant is not None:
                found = self._meant(found)
            return _checked(found[rows], len(rows))
        call = model
        if hasattr(model, "predict"):
            call = getattr(model, "predict_proba", model.predict)
            call = model.predict if numbers else call
        alone = (columns.taken(x, slice(row, row + 1)) for row in rows)
        return np.concatenate(
            [_checked(self._numbered(_array(call(v))), 1) for v in alone]
        )

    def _numbered(self, found):
        """Predicted labels as their indices. Floats are outputs, not
        labels."""
        if getattr(found, "dtype", np.dtype(object)).kind == "f":
            return found
        return numbered(found, self.labels, "Predictions")


def _array(value):
    if hasattr(value, "__array__") and not hasattr(value, "detach"):
        return np.asarray(value)
    return keras.ops.convert_to_numpy(value)


def _checked(found, rows):
    found = np.asarray(found)
    if found.ndim == 0 or len(found) != rows or found.dtype.kind not in "biuf":
        raise ValueError(
            "The model must give a row of numbers for each record. Received: "
            f"shape={found.shape}, dtype={found.dtype}"
        )
    if not np.all(np.isfinite(found)):
        raise ValueError(
            "The model's output is NaN or infinite for at least one record; "
            "nothing was spent."
        )
    return found if found.dtype.kind in "biu" else found.astype(np.float64)


# Records ----------------------------------------------------------------------


def translated(data, models):
    """The records as numbers, for all models.

    Labels become indices among those of the models. If a model is an estimator
    of this package, x is a list of the input of each model.

    Raises:
        ValueError: if a record is invalid.
    """
    pair = isinstance(data, tuple | list) and len(data) == 2
    if pair:
        data = data[0], numbered(data[1], models[0].labels, "`y`")
    if all(asked.inputs is None for asked in models):
        return data

    def inputs(x):
        return [x if m.inputs is None else m.inputs(x) for m in models]

    if pair:
        return inputs(data[0]), data[1]
    return lambda: (
        (inputs(x), y) for x, y in records.batches(data, READ_BATCH)
    )


def input_of(x, index, models):
    """The input of one model, from the records that `translated` returned."""
    return x if all(m.inputs is None for m in models) else x[index]


def numbered(values, labels, what):
    """Indices among `labels`. If values are numbers and labels are not, the
    values are indices already, or a number for each class.

    Args:
        values: array or column.
        labels: array, or `None`, which leaves all values as they are.
        what: name of the values, for the error, which shows no value.

    Raises:
        ValueError: if one is not among the labels.
    """
    if labels is None:
        return values
    found = columns.one_array(values)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    is_number = found.dtype.kind in "biuf"
    if found.ndim > 1 or is_number and labels.dtype.kind not in "biuf":
        return values
    index = {label: i for i, label in enumerate(labels.tolist())}
    try:
        places = [index.get(value, -1) for value in found.tolist()]
    except TypeError:
        places = [-1]
    if -1 in places:
        raise ValueError(
            f"{what} must hold labels among {list(index)}. At least one is "
            "not among them."
        )
    return np.array(places, int)


def placed(data, n=None):
    """Batches `(x, y, rows)` in which a record's row depends on it alone. x has
    the structure of the data, which must hold `n` records if n is given."""
    form, passes = [], records.Passes(n)

    def arrays():
        for x, y in passes.over(records.batches(data, READ_BATCH)):
            form[:] = [x]
            yield [array for _, array in columns.flatten(x)], y

    for found, y, rows in fixed_rows.placed(arrays(), PLACES):
        given = iter(found)
        x = columns.transform(lambda *_, given=given: next(given), form[0])
        yield x, y, rows


def _count(data):
    """The number of records."""
    known = records.number(data)
    if known is not None:
        return known
    return sum(columns.count(x) for x, _ in records.batches(data, READ_BATCH))


# Comparison with labels -------------------------------------------------------


def decided(outputs, classes, from_logits, confident=False):
    """The predicted classes, and the probabilities of all classes.

    Args:
        outputs: integers `(n,)`: the classes; floats `(n, classes)`; or
            `(n,)` or `(n, 1)` for two classes.
        classes: int.
        from_logits: whether floats are logits; probabilities otherwise.
        confident: whether to return probabilities.

    Returns:
        tuple `(classes, probabilities)`, `(n,)` and `(n, classes)`; the
        latter `None` unless `confident`.

    Raises:
        ValueError: if the outputs are of another kind.
    """
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        outputs = outputs[:, 0]
    if outputs.dtype.kind in "biu" and outputs.ndim == 1:
        if confident:
            raise ValueError(
                "Calibration, log-loss and AUC need probabilities or logits. "
                "The model gives classes."
            )
        return bounds_lib.class_indices(outputs, len(outputs), classes), None
    binary = outputs.ndim == 1 and classes == 2
    if not binary and outputs.shape[1:] != (classes,):
        raise ValueError(
            f"The model must give {classes} numbers for each record, one for "
            f"each class. Received: shape={outputs.shape}"
        )
    if from_logits:
        zeros = np.zeros_like(outputs)
        logits = np.stack([zeros, outputs], axis=1) if binary else outputs
        outputs = special.softmax(logits, axis=1)
    elif binary or confident:
        both = np.stack([1 - outputs, outputs], axis=1) if binary else outputs
        sums = both.sum(axis=1)
        if both.min(initial=0.0) < 0 or np.any(abs(sums - 1) > _SUM_TOLERANCE):
            raise ValueError(
                "Probabilities must be in [0, 1] and add up to 1. At least "
                "one record's do not: pass `from_logits=True` for a model "
                "without softmax or sigmoid."
            )
        outputs = both
    return outputs.argmax(axis=1), outputs if confident else None


def agreement(outputs, y, low, high, clip):
    """The share of each record in every metric of numbers, dict of `(n,)`.

    A record's share is 1 less its error over the largest error, averaged over
    the numbers predicted for the record. Targets are scaled to [0, 1]; the
    squared target is the squared distance from the middle.

    Raises:
        ValueError: if numbers are outside their public bounds.
    """
    y = np.asarray(y, np.float64)
    outputs = np.asarray(outputs, np.float64).reshape(len(y), -1)
    if y.reshape(len(y), -1).shape != outputs.shape:
        raise ValueError(
            "The model must give a number for each number of `y`. Received: "
            f"outputs of shape {outputs.shape}, y of shape {y.shape}"
        )
    y = checks.finite("y", y.reshape(outputs.shape), "; nothing was spent.")
    if not clip and not np.all((y >= low) & (y <= high)):
        raise ValueError(
            f"At least one number of `y` is outside the public bounds "
            f"({low:g}, {high:g}). Pass wider ones, or `clip=True`."
        )
    y = np.clip(y, low, high)
    apart = np.abs(np.clip(outputs, low, high) - y) / (high - low)
    apart = np.clip(apart, 0.0, 1.0)
    target = np.clip((y - low) / (high - low), 0.0, 1.0)
    return {
        "mean_absolute_error": 1 - apart.mean(axis=1),
        "mean_squared_error": 1 - np.square(apart).mean(axis=1),
        "target": target.mean(axis=1),
        "squared_target": np.square(2 * target - 1).mean(axis=1),
    }
