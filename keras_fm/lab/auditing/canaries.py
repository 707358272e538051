"""Canaries: records that a fair coin puts into the training set or changes.

A plan draws them, puts them into arrays and keeps the coins secret from the
training. Afterwards the losses of the trained model at the canaries become
scores; the sign of a score guesses the coin. Flipping one coin makes a
neighbouring data set in the audited relation:

* *swap*: every canary has a fixed place and takes one of two forms
  (replace_one, the number of records stays);
* *include*: every canary is there or not (add_remove).
"""

import dataclasses

import numpy as np
from scipy import special

from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks
from keras_fm.lab.auditing.bounds import check_trained

DESIGNS = {"swap": "replace_one", "include": "add_remove"}
KINDS = ("labels", "noise", "unit")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryPlan:
    """Settings for drawing canaries.

    Kinds of canaries:

    * `"labels"`: real records with random wrong labels (with two classes, any
      label). Needs labels.
    * `"noise"`: uniform noise inside public bounds, far from all records,
      with random labels.
    * `"unit"`: vectors of norm `bound`, the longest a clipped model admits,
      with random labels: distinct basis vectors in random order if the
      dimension has enough, else random directions.

    A *swap* canary has two forms: two random distinct labels of one record, or
    without labels two records of the kind. *Include* canaries have one form.

    Args:
        design: `"swap"` or `"include"`.
        kind: `"labels"`, `"noise"` or `"unit"`.
        canaries: int m >= 1, number of canaries.
        seed: int, fixes canaries, places and coins. The seed reveals the coins,
            so only the auditor may know it.
        low, high: public bounds of a feature (scalars or shaped like a
            record), for `"noise"`.
        bound: float > 0, for `"unit"`.

    Raises:
        ValueError: if an argument is invalid, missing, or without effect.

    Example:

    >>> x, y = np.zeros((50, 4)), np.arange(50) % 3
    >>> plan = CanaryPlan(design="swap", kind="labels", canaries=20, seed=1)
    >>> planted = plan.plant(x, y, classes=3)
    >>> planted.x.shape, planted.canary_y.shape, planted.neighbours
    ((50, 4), (20, 2), 'replace_one')
    """

    design: str = "swap"
    kind: str = "labels"
    canaries: int
    seed: int
    low: float | np.ndarray | None = None
    high: float | np.ndarray | None = None
    bound: float | None = None

    def __post_init__(self):
        checks.one_of("design", self.design, DESIGNS)
        checks.one_of("kind", self.kind, KINDS)
        checks.count("canaries", self.canaries)
        wanted = "an integer, so that the audit can be repeated"
        checks.integer("seed", self.seed, wanted=wanted)
        needed = {"noise": ("low", "high"), "unit": ("bound",)}
        for name in ("low", "high", "bound"):
            given = getattr(self, name) is not None
            wanted = name in needed.get(self.kind, ())
            if given != wanted:
                verb = "needs" if wanted else "does not use"
                raise ValueError(f'kind="{self.kind}" {verb} `{name}`.')
        if self.kind == "noise":
            bounds_lib.check_bounds(self.low, self.high)
        if self.kind == "unit":
            checks.positive("bound", self.bound)

    @property
    def neighbours(self):
        """The relation that the coins audit."""
        return DESIGNS[self.design]

    def plant(self, x, y=None, classes=None):
        """Puts canaries into a data set.

        *Swap*: canaries replace m random records; the order of the others
        stays. *Include*: `"labels"` canaries are m random records that are
        first taken out, canaries of other kinds are additional. Those whose
        coin is 1 are put at random places.

        Args:
            x: `(n, ...)` features.
            y: `(n,)` classes, `(n, classes)` one-hot, or `None`.
            classes: int M >= 2, public, if there are labels.

        Returns:
            `PlantedCanaries`.

        Raises:
            ValueError: if the arrays do not fit each other or the plan.
        """
        x = np.asarray(x)
        if len(x) < self.canaries and (
            self.design == "swap" or self.kind == "labels"
        ):
            raise ValueError(
                f"{self.canaries} canaries take the places of as many "
                f"records, but there are only {len(x)}."
            )
        if x.dtype.kind != "f" and self.kind != "labels":
            raise ValueError(
                f'kind="{self.kind}" draws fractions: `x` must be floating '
                f"point. Received: dtype={x.dtype}"
            )
        labels = None if y is None else _class_labels(y, len(x), classes)
        if labels is None and self.kind == "labels":
            raise ValueError('kind="labels" needs `y` and `classes`.')
        # Coins have their own generator, so the canaries reveal nothing about
        # them.
        drawing, flipping = np.random.SeedSequence(self.seed).spawn(2)
        rng = np.random.default_rng(drawing)
        coins = np.random.default_rng(flipping).integers(0, 2, self.canaries)
        rows = None
        if self.design == "swap" or self.kind == "labels":
            rows = rng.choice(len(x), self.canaries, replace=False)
        forms = 2 if self.design == "swap" else 1
        canary_x, canary_y = self._draw(x, labels, rows, classes, forms, rng)
        if self.design == "swap":
            planted = self._swap(x, y, rows, canary_x, canary_y, coins)
        else:
            planted = self._include(x, y, rows, canary_x, canary_y, coins, rng)
        return PlantedCanaries(
            x=planted[0],
            y=planted[1],
            rows=rows,
            canary_x=canary_x,
            canary_y=canary_y,
            coins=coins,
            plan=self,
        )

    def _draw(self, x, labels, rows, classes, forms, rng):
        """Forms of the records and labels; the second axis is the form.

        Only the part that a coin decides has more than one form.
        """
        shape, m = x.shape[1:], self.canaries
        if labels is None:
            drawn = self._records(m * forms, shape, x.dtype, rng)
            return drawn.reshape((m, forms) + shape), None
        if self.kind == "labels":
            records = x[rows]
            wrong = None if classes == 2 else labels[rows]
        else:
            records = self._records(m, shape, x.dtype, rng)
            wrong = None
        return records[:, None], _random_labels(m, forms, classes, wrong, rng)

    def _records(self, count, shape, dtype, rng):
        if self.kind == "noise":
            low, high = bounds_lib.check_bounds(self.low, self.high)
            return rng.uniform(low, high, (count, *shape)).astype(dtype)
        size = int(np.prod(shape))
        if count <= size:
            drawn = np.zeros((count, size))
            drawn[np.arange(count), rng.permutation(size)[:count]] = 1.0
        else:
            drawn = rng.standard_normal((count, size))
            drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        return (self.bound * drawn).reshape((count, *shape)).astype(dtype)

    def _swap(self, x, y, rows, canary_x, canary_y, coins):
        x, everyone = x.copy(), np.arange(len(rows))
        # One form of a record serves both labels.
        x[rows] = canary_x[everyone, coins % canary_x.shape[1]]
        if canary_y is None:
            return x, None
        y = np.array(y)
        y[rows] = _like(canary_y[everyone, coins], y)
        return x, y

    def _include(self, x, y, rows, canary_x, canary_y, coins, rng):
        kept = np.ones(len(x), bool)
        if rows is not None:
            kept[rows] = False
        present = coins == 1
        # Places of records and canaries do not depend on coins: a coin adds or
        # removes one record and keeps the order of the others.
        keys = rng.random(kept.sum() + len(coins))
        order = np.argsort(
            np.concatenate([keys[: kept.sum()], keys[kept.sum() :][present]])
        )
        x = np.concatenate([x[kept], canary_x[present, 0]])[order]
        if canary_y is None:
            return x, None
        y = np.asarray(y)
        added = _like(canary_y[present, 0], y)
        return x, np.concatenate([y[kept], added])[order]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PlantedCanaries:
    """A training set with canaries, and the auditor's secrets.

    Attributes:
        x, y: the training set; `y` in the given form, or `None`.
        canary_x: `(m, forms, ...)`: the records of the canaries. One form if
            the coin decides the label or the presence, two if the record.
        canary_y: `(m, 2)` classes (*swap*), `(m, 1)` (*include*) or `None`.
        rows: `(m,)` rows of the given arrays that were replaced (*swap*) or
            taken out; `None` if none were.
        coins: `(m,)`, 0 or 1: the form used (*swap*), or the presence
            (*include*). Keep it from the training.
        plan: the `CanaryPlan`.
    """

    x: np.ndarray
    y: np.ndarray | None
    canary_x: np.ndarray
    canary_y: np.ndarray | None
    rows: np.ndarray | None
    coins: np.ndarray
    plan: CanaryPlan

    @property
    def neighbours(self):
        """The relation that the coins audit."""
        return self.plan.neighbours

    def __repr__(self):
        return (
            f"<PlantedCanaries: {len(self.coins)} of {self.plan.kind}, "
            f"{self.plan.design}, {len(self.x)} records>"
        )


def _class_labels(y, n, classes):
    if classes is None:
        raise ValueError("Labels need `classes`, the public number of them.")
    classes = checks.integer(
        "classes", classes, at_least=2, wanted="at least 2"
    )
    return bounds_lib.class_indices(y, n, classes)


def _random_labels(m, forms, classes, wrong, rng):
    """`(m, forms)` distinct uniform classes, none of them `wrong`."""
    keys = rng.random((m, classes))
    if wrong is not None:
        keys[np.arange(m), wrong] = 2.0
    return np.argsort(keys, axis=1)[:, :forms]


def _like(labels, y):
    """Classes in the form of `y`."""
    if y.ndim == 2 and y.shape[1] > 1:
        return np.eye(y.shape[1], dtype=y.dtype)[labels]
    return labels.astype(y.dtype).reshape((-1,) + (1,) * (y.ndim - 1))


def _whole(labels):
    """Truth values as 0 and 1."""
    return labels.astype(np.int64) if labels.dtype.kind == "b" else labels


def canary_losses(logits, labels, score="loss"):
    """Losses of canaries under each of their labels.

    Args:
        logits: `(m, classes)`, or `(m, 1)` logits of class 1 of two.
        labels: `(m, forms)` classes, as `PlantedCanaries.canary_y`.
        score: `"loss"`: cross-entropy; `"margin"`: minus the log-odds of the
            label, the largest other logit against its own. It does not saturate
            if a model is sure.

    Returns:
        `(m, forms)` floats, smaller for a label that fits better.

    Raises:
        ValueError: if a label is outside the classes or a logit is not
            finite.

    Example:

    >>> canary_losses(np.array([[2.0, 0.0, 1.0]]), [[0, 1]], "margin")
    array([[-1.,  2.]])
    """
    logits = np.asarray(logits, np.float64)
    labels = _whole(np.asarray(labels))
    checks.finite("logits", logits, ". Did the training diverge?")
    checks.either("score", score, ("loss", "margin"))
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    classes = logits.shape[1]
    if not np.all((labels >= 0) & (labels < classes)):
        raise ValueError(f"`labels` must be integers in [0, {classes}).")
    own = np.take_along_axis(logits, labels, axis=1)
    if score == "loss":
        return special.logsumexp(logits, axis=1, keepdims=True) - own
    others = np.where(
        np.arange(classes) == labels[:, :, None], -np.inf, logits[:, None]
    )
    return others.max(axis=2) - own


def swap_scores(losses):
    """Scores of *swap* canaries: a positive one guesses form 1.

    Args:
        losses: `(m, 2)` losses of each canary in form 0 and in form 1.

    Returns:
        `(m,)`: loss in form 0 minus loss in form 1.

    Raises:
        ValueError: if a loss is not finite.

    Example:

    >>> swap_scores([[0.5, 2.0], [1.0, 0.25]])
    array([-1.5 ,  0.75])
    """
    losses = check_trained("losses", losses)
    return losses[:, 0] - losses[:, 1]


def include_scores(losses, reference=None):
    """Scores of *include* canaries: a positive one guesses "present".

    The median over all canaries is subtracted, since about half of them are
    present. It is a function of the output, so it needs no assumption.

    Args:
        losses: `(m,)` or `(m, 1)` losses of the trained model.
        reference: `None`, or losses of the same shape from a model that was
            trained without the canaries: how hard each one is by itself.

    Returns:
        `(m,)`: reference minus losses, minus its median.

    Raises:
        ValueError: if a loss is not finite.

    Example:

    >>> include_scores([0.1, 2.0, 3.0])
    array([ 1.9,  0. , -1. ])
    """
    losses = check_trained("losses", losses)
    fall = -losses
    if reference is not None:
        reference = check_trained("reference", reference)
        fall = reference - losses
    if fall.ndim == 2 and fall.shape[1] == 1:
        fall = fall[:, 0]
    return fall - np.median(fall)
