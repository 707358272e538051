"""Questions about private records, under the ledger: check, charge, answer.

How good a model is (`private_evaluate`), and which of several is best
(`private_choice`). Both read the records once, through the one door that
everything else goes through, and are entries of the same ledger.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_fm.asking.choice_query import Choice, ChoiceQuery
from keras_fm.asking.evaluation_query import (
    MEANS,
    Evaluation,
    EvaluationQuery,
)
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks, records
from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel import release as release_lib
from keras_fm.kernel.ledger import statement
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.ledger.ledger_text import ONE_RECORD, declared_words
from keras_fm.kernel.planning import calibration
from keras_fm.kernel.query import REACHES
from keras_fm.kernel.reads import sampling
from keras_fm.training import asked_model
from keras_fm.training.asked_model import NUMBERS, AskedModel

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
    name: str = "evaluation",
    notes: Sequence[str] = (),
    reproducible_noise: int | None = None,
) -> Evaluation:
    """How good a model is on private records, charged to a ledger.

    The records are read once. Of each, one count is added to every metric
    that is asked for; the counts with their noise are all that is released,
    and values and intervals are computed from them as often as wanted. The
    fewer metrics, the less noise. Gaussian noise for a ledger with delta > 0,
    Laplace noise otherwise.

    A model that was trained on the same records under the same ledger is an
    earlier release of it: the ledger composes both, whatever the model was
    chosen by. Its intervals for these records hold; those for the population
    do not, as those of any metric on training records.

    Args:
        model: a Keras model (its last layer private and released under this
            ledger, or `public`), an estimator of this package (the same), one
            of scikit-learn, a function from a batch `(n, ...)` to outputs
            `(n, ...)`, or `None` with data `(outputs, y)`. Outputs are
            classes (places in their order, or labels), a number for each
            class, one number for two classes, or the predicted numbers. What
            is no Keras model is called with one record at a time, and must
            keep nothing of it.
        data: the private records `(x, y)`, as `PrivateModel` takes them; of
            an estimator with labels of its own in these labels, and of one
            of this package the table that it takes.
        ledger: the `Ledger` that is charged.
        metrics: `"accuracy"`, `"confusion_matrix"`, `"calibration"`; or, for
            numbers, `"mean_absolute_error"`, `"mean_squared_error"`.
        share: of the ledger's budget, in (0, 1], see `PrivacyBudget.split`;
            `"rest"` for all that is left of it. Either this or `epsilon`.
        epsilon: what the evaluation alone may cost, at the ledger's delta.
        public: `None`, or where the model comes from, in words: why it is no
            function of the records but through this ledger. The statement
            repeats it.
        classes: where the model does not say it: how many classes there
            are, or their labels in the order of its outputs.
        bins: int, of calibration: bins of the largest probability.
        bounds: `(low, high)` on the numbers, public; predictions are clipped
            to them.
        from_logits: whether outputs are logits; `None`: if the model ends
            with a `PrivateDense`.
        clip: whether numbers of `y` outside `bounds` are clipped; else they
            are an error.
        unit: if the ledger's unit is not one record: that unit, repeated, to
            declare that each has at most one row of the data.
        reach: see `keras_fm.Unit`.
        name: of the ledger's entry.
        notes: further public facts for it.
        reproducible_noise: `None`, or an int seed: not private.

    Returns:
        An `Evaluation`.

    Raises:
        ValueError: if the model may be a function of the records
            that the ledger does not know, or a record is invalid; before
            anything is spent.
        BudgetExceededError: before anything is read.

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
    metrics = _metrics(metrics)
    shape = _shape(metrics, [asked], classes, bounds)
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
        # Of any number: nothing is counted that cannot be paid for.
        query = dataclasses.replace(query, records=1)
        release_lib.checked_entry(
            query, notes=(), **_known(query, calibration.calibrate, **paid)
        )
        n = asked_model.count(data)
        query = dataclasses.replace(query, records=n)
    logits = asked.gives_logits if from_logits is None else from_logits

    def read():
        given = asked_model.translated(data, [asked])
        for x, y, rows in asked_model.placed(given, n):
            x = asked_model.input_of(x, 0, [asked])
            outputs = asked.outputs(x, rows, numbers="low" in shape)
            yield _compared(query, outputs, y[rows], logits, clip)

    return _ask(
        query,
        read,
        calibration.calibrate,
        notes=(*facts, *_as_notes(notes)),
        **paid,
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
    """Which of several models is best on private records, charged.

    The records are read once; every record gives each model at most one
    point, and one model is drawn, the likelier the more points it has
    (permute-and-flip). Which one is released, not its points: ask
    `private_evaluate` for these. Losing to the best by more than
    `log(k / p) / epsilon` points (twice that under replace_one) has a
    probability of at most p among k models. Pure epsilon, whatever delta.

    Args:
        models: two or more, see `private_evaluate`.
        metric: `"accuracy"` (a point for a right answer), or
            `"mean_absolute_error"`, `"mean_squared_error"` (a point less the
            error's share of the largest).
        data, ledger, public, classes, bounds, from_logits, clip, unit,
            reach, name, notes, reproducible_noise: see `private_evaluate`.
        share: of the ledger's budget, see `PrivacyBudget.split`. Either this
            or `epsilon`.
        epsilon: pure epsilon of the choice alone.

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
    # Each once.
    own = dict.fromkeys(fact for asked in all_asked for fact in asked.facts)

    def points(index, x, y, rows):
        asked = all_asked[index]
        x = asked_model.input_of(x, index, all_asked)
        logits = asked.gives_logits if from_logits is None else from_logits
        outputs = asked.outputs(x, rows, numbers=metric in NUMBERS)
        shares, _ = _compared(one, outputs, y[rows], logits, clip)
        return shares[:, 0]

    def read():
        given = asked_model.translated(data, all_asked)
        for x, y, rows in asked_model.placed(given):
            columns = [
                points(index, x, y, rows) for index in range(len(all_asked))
            ]
            yield (np.stack(columns, axis=1),)

    def calibrate(query, budget, *, neighbours, share=1.0):
        if epsilon is None:
            return calibration.calibrate_choice(
                query, budget, neighbours=neighbours, share=share
            )
        return mechanisms_lib.PermuteAndFlip(
            sensitivity=query.sensitivity("range", neighbours=neighbours),
            epsilon=budget.epsilon,
        )

    return _ask(
        query,
        read,
        calibrate,
        ledger=ledger,
        share=share,
        epsilon=epsilon,
        name=name,
        notes=(*facts, *own, *_as_notes(notes)),
        seed=reproducible_noise,
    )


# Asking -----------------------------------------------------------------------


def _ask(query, read, calibrate, *, notes, **paid):
    return release_lib.release(
        query,
        read(),
        notes=notes,
        **_known(query, calibrate, **paid),
    )


def _known(query, calibrate, *, ledger, share, epsilon, name, seed):
    """What a release of a question must know beside the records."""
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
    """The mechanism that spends what the ledger has left."""
    left, budget = ledger.remaining(), ledger.budget
    if left <= 0:
        raise _nothing_left(ledger)
    if budget.delta == 0:
        # Below what the ledger allows, by what sums are rounded.
        given = budget_lib.PrivacyBudget(left * (1 - 1e-12), 0.0)
        return calibration.calibrate(query, given, neighbours=ledger.neighbours)
    others = [entry.build_mechanism() for entry in ledger.entries]
    try:
        multiplier = sampling.noise_multiplier(
            (1.0, 1), budget, neighbours=ledger.neighbours, others=others
        )
    except ValueError as e:
        # What is left is rounding, which no noise meets.
        raise _nothing_left(ledger) from e
    return mechanisms_lib.GaussianMechanism(
        sensitivity=query.sensitivity("l2", neighbours=ledger.neighbours),
        noise_multiplier=multiplier,
    )


def _nothing_left(ledger):
    return ValueError(
        "Nothing is left of the ledger's budget: epsilon = "
        f"{statement.rounded_up(ledger.epsilon())} of "
        f"{ledger.budget.epsilon:.6g} is spent. Plan "
        "a share for each use from the start, "
        "`PrivacyBudget(...).split(training=..., evaluation=...)`. Received: "
        "share='rest'"
    )


def _unit_facts(ledger, unit, reach):
    checks.instance("ledger", ledger, Ledger, "a keras_fm.Ledger")
    reaching = [e.name for e in ledger.entries if REACHES in e.reads]
    if not checks.natural("reach", reach) and reaching:
        raise ValueError(
            f"{reaching[0]!r} of the ledger was released for records that "
            "hold other units' data. Pass `reach=`, how many others' records "
            f"one unit's data may enter. Received: reach={reach}"
        )
    if unit is None and ledger.unit == ONE_RECORD:
        return []
    if unit is None or unit not in (ledger.unit, declared_words(ledger.unit)):
        raise ValueError(
            f"The privacy unit of the ledger is {ledger.unit!r}, and a "
            "question counts rows. If no unit has more than one row of these "
            "data, say so: repeat it as `unit=`. Else keep one row of each. "
            f"Received: unit={unit!r}"
        )
    return [f"by declaration no unit ({unit}) has more than one row"]


def _metrics(metrics):
    # The query's own words of refusal, and order.
    found = EvaluationQuery(metrics=metrics).asked
    if set(found) & set(NUMBERS) and set(found) - set(NUMBERS):
        checks.refuse("metrics", metrics, "of classes, or of numbers")
    return found


def _shape(metrics, models, classes, bounds):
    """What a query must know of classes or numbers."""
    if set(metrics) & set(NUMBERS):
        if bounds is None or np.shape(bounds) != (2,):
            checks.refuse("bounds", bounds, "(low, high), public constants")
        for asked in models:
            asked.predict_numbers()
        return {"low": bounds[0], "high": bounds[1]}
    if bounds is not None:
        checks.refuse("bounds", bounds, "None where no errors are asked")
    found = {asked.classes(classes) for asked in models}
    asked_model.check_same_labels(models)
    if len(found) > 1:
        raise ValueError(
            "All models must have the same classes. Received: models of "
            f"{sorted(found)} classes"
        )
    return {"classes": found.pop()}


def _compared(query, outputs, y, logits, clip):
    """Shares and cells of records, see `EvaluationQuery.accumulate`."""
    if set(query.asked) & set(NUMBERS):
        of = dict(
            zip(
                NUMBERS,
                asked_model.errors(outputs, y, query.low, query.high, clip),
            )
        )
        shares = np.stack([1 - of[name] for name in query.means], axis=1)
        return shares, np.zeros((len(shares), 0), int)
    # True and False are classes, too.
    y = y.astype(int) if y.dtype.kind == "b" else y
    truth = bounds_lib.class_indices(y, len(outputs), query.classes)
    said, confidence = asked_model.decided(
        outputs, query.classes, logits, "calibration" in query.asked
    )
    right = truth == said
    cells = []
    for name in query.tables:
        if name == "confusion_matrix":
            cells.append(truth * query.classes + said)
        else:
            bin_ = np.minimum(
                (confidence * query.bins).astype(int), query.bins - 1
            )
            cells.append(2 * bin_ + ~right)
    shares = right[:, None].astype(float)[:, : len(query.means)]
    return shares, np.array(cells, int).reshape(len(cells), len(right)).T


def _as_notes(notes):
    return (notes,) if isinstance(notes, str) else tuple(notes)
