"""Audits a training: plants canaries, trains once, guesses their coins."""

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_fm.kernel import budget as budget_lib
from keras_fm.kernel import checks
from keras_fm.kernel.access import columns
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.lab.auditing import (
    canary_scores,
    claimed,
    gaussian_bounds,
    one_run,
)
from keras_fm.lab.auditing.canaries import DESIGNS, CanaryPlan
from keras_fm.lab.auditing.one_run import CURVES
from keras_fm.lab.auditing.report import (
    CONFIDENCE,
    GUARANTEES,
    AuditReport,
    SeedRun,
)
from keras_fm.lab.engine.progress import Progress

_MOST_CANARIES = 1000
# Tolerance of a bound converted between relations.
_TOLERANCE = 1e-4


def audit(
    fit: Callable[..., Any],
    data: Any,
    claim: Any = None,
    *,
    control: Callable[..., Any] | None = None,
    neighbours: str | budget_lib.Neighbours | None = None,
    guarantee: str | None = None,
    classes: int | None = None,
    design: str = "swap",
    kind: str = "labels",
    canaries: Any = None,
    low: float | None = None,
    high: float | None = None,
    bound: float | None = None,
    score: Any = "loss",
    curve: str | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    progress: bool = True,
) -> AuditReport:
    """Attacks a training and computes a lower bound on its epsilon.

    For each seed, m canaries (made-up or relabelled records) are planted into
    the records, each decided by a fair coin (`CanaryPlan`). `fit` trains once
    on the result, and the coins are guessed from the trained model's outputs
    for the canaries. Many right guesses prove that epsilon is at least some
    bound (`one_run_best`). `control` trains on the same arrays without privacy:
    an attack that fails against it is too weak to test `fit`.

    Neither `fit` nor `control` gets a seed or a coin. The model that they
    return counts as released, but not the metrics of its training.

    Args:
        fit: function `(x, y)` (or `(x)` without labels) that trains once,
            privately, from new initial weights, and returns a Keras model
            with logits as outputs or a function from x to logits; or a pair
            of that and the `Ledger` of the training. For probabilities of a
            softmax the logarithm is used; a single sigmoid output weakens the
            attack.
        data: `(x, y)`, or x alone: arrays of records, and classes or
            one-hot rows.
        claim: the statement to audit: a `PrivacyBudget`, a charged `Ledger`, a
            `Claim`, or `None` for the ledger that `fit` returns (over several
            seeds, the largest).
        control: like `fit`, with the same architecture but without privacy.
            Required.
        neighbours: required with a `PrivacyBudget`, its relation:
            `"replace_one"`, `"replace_label"` or `"add_remove"`.
        guarantee: `"claimed"` or `"proven"`, for the report; `None` takes it
            from the ledger; without a ledger it is `"claimed"`.
        classes: int, the public number of classes, if there are labels.
        design: `"swap"`: a coin chooses one of two forms of a canary; the
            number of records is fixed. It audits replace_one, replace_label
            (the forms are two labels), and add_remove with half the bound.
            `"include"`: canaries are in or out. It audits add_remove only.
        kind, low, high, bound: settings of canaries, see `CanaryPlan`.
        canaries: int m, or `None`: half of the records, at most 1000.
        score: `"loss"`, `"margin"` (see `canary_losses`), `"gradient"`
            (white-box, `gradient_losses`: `fit` and `control` must return
            Keras models, not functions), or a function `(model, x, labels)`
            to `(m,)` losses (labels `None` without y), such as a
            reconstruction error.
        curve: `None` tests (epsilon, delta) itself. `"gaussian"` is for
            trainings with Gaussian noise on sums over all records. It tests
            whether the training is as private as a Gaussian mechanism with this
            pair, at all deltas, and needs fewer canaries
            (`one_run_gaussian_epsilon`).
        seeds: distinct ints, one training each. Their bounds are combined with
            a Bonferroni correction.
        progress: bool, whether to write progress to standard error.

    Returns:
        An `AuditReport`.

    Raises:
        ValueError: if an argument is invalid (before any training), or `fit` or
            `control` returns no logits or no claim.

    Example:

    ```python
    def fit(x, y):
        model = build()
        private = fm.callbacks.PrivateModel(
            epsilon=1.0, delta=1e-5,
            data=(x, y),
            guarantee=fm.Proven(neighbours="replace_one"),
        )
        model.compile("adam", loss=fm.losses.TaylorCrossEntropy())
        model.fit(x, y, callbacks=[private])
        return model, private.ledger


    def control(x, y):
        model = build()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
        model.fit(x, y, epochs=500)
        return model


    report = fm.audit(fit, (x, y), control=control, classes=10)
    print(report.text())
    ```
    """
    _check_functions(fit, control)
    x, y = _split(data)
    seeds = _check_seeds(seeds)
    name = canary_scores.checked_score(score, y)
    design_relation = DESIGNS.get(design)
    checks.optional(checks.one_of, "guarantee", guarantee, choices=GUARANTEES)
    given = claimed.given_claim(claim, neighbours, guarantee)
    checks.either("curve", curve, CURVES)
    if canaries is None:
        canaries = max(1, min(_MOST_CANARIES, len(x) // 2))
    plans = [
        CanaryPlan(
            design=design,
            kind=kind,
            canaries=canaries,
            seed=_plan_seed(seed),
            low=low,
            high=high,
            bound=bound,
        )
        for seed in seeds
    ]
    if given is not None:
        claimed.check_relation(given, design_relation, y is not None)
        claimed.check_curve(given, curve)
    # Arrays that do not fit fail here, before any training.
    plans[0].plant(x, y, classes)

    measured, ledgers = [], []
    bar = Progress("trainings", str, None if progress else "")
    bar.start(2 * len(seeds), 0)
    try:
        for seed, plan in zip(seeds, plans):
            planted = plan.plant(x, y, classes)
            found: list[Any] = [seed]
            for which, function in (("private", fit), ("control", control)):
                bar.began(f"seed {seed}, {which}")
                begin = time.perf_counter()
                model, ledger = _train(function, planted)
                seconds = time.perf_counter() - begin
                if which == "private":
                    ledgers.append(ledger)
                    if given is None:
                        found_claim = claimed.ledger_claim(ledger)
                        claimed.check_relation(
                            found_claim, design_relation, y is not None
                        )
                        claimed.check_curve(found_claim, curve)
                scores, diverged = canary_scores.score_canaries(
                    model, planted, score
                )
                found.append((scores, diverged, seconds))
                bar.done()
            measured.append((found, planted.coins))
    finally:
        bar.end()
    stated, notes = claimed.final_claim(given, ledgers, guarantee)
    return _report(
        stated,
        measured,
        notes,
        design=design,
        kind=kind,
        score=name,
        curve=curve,
        records=len(x) + _added(design, kind, canaries),
    )


def _report(claim, measured, notes, *, design, kind, score, curve, records):
    corrected = 1 - (1 - CONFIDENCE) / len(measured)

    def lower(scores, coins, confidence):
        return _lower_bound(scores, coins, claim, design, confidence, curve)

    runs = []
    for (seed, private, control), coins in measured:
        runs.append(
            SeedRun(
                seed=seed,
                bound=lower(private[0], coins, CONFIDENCE),
                control=lower(control[0], coins, CONFIDENCE),
                corrected=lower(private[0], coins, corrected),
                control_corrected=lower(control[0], coins, corrected),
                seconds=private[2],
                control_seconds=control[2],
                diverged=private[1],
                control_diverged=control[1],
            )
        )
    right = np.ones(len(measured[0][1]))
    return AuditReport(
        claim=claim,
        design=design,
        kind=kind,
        canaries=len(right),
        score=score,
        records=records,
        ceiling=lower(right, right, corrected).epsilon,
        runs=tuple(runs),
        notes=tuple(notes),
    )


# Bounds ------------------------------------------------------------------


def _lower_bound(scores, coins, claim, design, confidence, curve):
    """`one_run_best` in the relation of the claim."""

    def at(delta):
        return one_run.one_run_best(
            scores, coins, delta=delta, confidence=confidence, curve=curve
        )

    # Swapped labels audit replace_label, too.
    if claim.neighbours in (DESIGNS[design], "replace_label"):
        return at(claim.delta)
    if curve:
        # mu under add_remove is 2 mu under replace_one.
        found = at(claim.delta)
        return dataclasses.replace(
            found,
            epsilon=gaussian_bounds.halved(found.epsilon, claim.delta),
            ceiling=gaussian_bounds.halved(found.ceiling, claim.delta),
        )
    # (e, delta) under add_remove is (2 e, (1 + exp(e)) delta) under
    # replace_one. An e is refuted if the swap bound at that delta is 2 e or
    # more, and with it every smaller one; docs/audit.md.
    found = at(min(2 * claim.delta, 0.5))
    low, high = 0.0, found.epsilon / 2
    if claim.delta == 0:
        low = high
    while high - low > _TOLERANCE:
        middle = (low + high) / 2
        delta = (1 + math.exp(middle)) * claim.delta
        tried = at(delta) if delta < 1 else None
        if tried is not None and tried.epsilon >= 2 * middle:
            low, found = middle, tried
        else:
            high = middle
    return dataclasses.replace(
        found, epsilon=low, ceiling=found.ceiling / 2, delta=claim.delta
    )


def _train(function, planted):
    """The model, and the ledger if the function returned one."""
    # Copies: a function may change its arrays.
    arrays = [planted.x.copy()]
    if planted.y is not None:
        arrays.append(planted.y.copy())
    returned = function(*arrays)
    if isinstance(returned, tuple):
        if len(returned) != 2 or not isinstance(returned[1], Ledger):
            raise ValueError(
                "`fit` must return a model or a pair (model, ledger). "
                f"Received a tuple of {[type(r).__name__ for r in returned]}"
            )
        return returned
    if returned is None:
        raise ValueError(
            "`fit` and `control` must return the trained model. Received: None"
        )
    return returned, None


# Arguments ---------------------------------------------------------------


def _check_functions(fit, control):
    if control is None:
        raise ValueError(
            "`control` must be a function like `fit` that trains the same "
            "architecture without privacy. Without it nothing shows that the "
            "attack can find anything, and there is no verdict."
        )
    for name, function in (("fit", fit), ("control", control)):
        if not callable(function):
            wanted = "a function (x, y) that trains and returns the model"
            checks.refuse(name, function, wanted)
    if control is fit:
        raise ValueError("`control` must be another function than `fit`.")


def _split(data):
    x, y = data if isinstance(data, (tuple, list)) else (data, None)
    x = columns.as_numbers(x, "data")
    if x.ndim < 2:
        raise ValueError(
            f"`data` must hold records, (n, ...). Received: shape={x.shape}"
        )
    checks.finite("data", x)
    return x, None if y is None else np.asarray(y)


def _check_seeds(seeds):
    seeds = (seeds,) if checks.is_integer(seeds) else tuple(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        checks.refuse("seeds", seeds, "distinct integers")
    return seeds


def _plan_seed(seed):
    """A seed that differs from `seed`: a training that uses `seed` cannot draw
    these coins."""
    digest = hashlib.sha256(f"keras_fm canaries {seed}".encode()).digest()
    return int.from_bytes(digest[:16], "big")


def _added(design, kind, canaries):
    alone = design == "include" and kind != "labels"
    return checks.count("canaries", canaries) if alone else 0
