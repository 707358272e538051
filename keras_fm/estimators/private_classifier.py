import dataclasses
import os
from typing import Any

import numpy as np
from scipy import special
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from keras_fm.estimators import discriminants
from keras_fm.estimators.private_estimator import PrivateEstimator
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.heads.rounds import Rounds
from keras_fm.heads.taylor_cross_entropy import TaylorCrossEntropy
from keras_fm.kernel import checks
from keras_fm.kernel.access import columns
from keras_fm.kernel.ledger.ledger import Ledger

OBSERVED = "observed"
# The constant feature of one release, so large that noise and ridge hardly move
# the share of a rare class. Chosen with a look at docs/results/tables.md.
_CONSTANT = 0.3


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """A scikit-learn classifier with a proven epsilon. It is a
    `PrivateDense` layer on public features, trained by a `PrivateModel`.

    **One budget for everything.** `epsilon` and `delta` limit what *all* fits
    of this estimator and of its clones together may reveal. `fits` is their
    number: each gets an equal share, and a further one is refused. So
    `cross_val_score(PrivateClassifier(1.0, 1e-6, fits=5, ...), X, y, cv=5)`
    costs epsilon 1 in all. With `fits=1` it is refused at its second fold.
    A second `fit` of one estimator costs a share, too. Two estimators that you
    make yourself share nothing unless you give them one `ledger`.

    **What is public.** `bounds`, `classes`, `features` and every other
    parameter: do not compute them from X or y. A score on private records is
    not covered by epsilon; use `private_score`. Epsilon protects one row. To
    protect an owner with all rows, call `fit(X, y, owners=ids)`.

    Args:
        epsilon: number in (0, 1e6]. Needed, unless `ledger` has a budget.
        delta: number in [0, 1), far below one over the number of records.
            Needed with `epsilon`; there is no default. With 0 (pure epsilon)
            a fit releases weights instead of sums. `rounds` need more than 0.
        bounds: `(low, high)`, the public range of the columns: numbers, or
            one for each column. Values outside are clipped. One release
            scales the columns by released means and deviations, for a tenth
            of its budget. Optional with `features`; leave it out with
            `columns`.
        classes: all possible labels, a list of strings, integers or booleans.
            `"observed"` takes the labels in y: you then declare that it is
            public which labels occur, and the statement repeats it. An
            estimator around this one (`VotingClassifier`,
            `BaggingClassifier`, `StackingClassifier`) passes labels as
            numbers. If there are as many as classes, they count as the
            classes in their order, and the statement repeats that, too.
        columns: `None`, or the public facts about every column, instead of
            `bounds`: `{name: column}` for a data frame (other columns are
            ignored), or a list of columns in order. A tuple `(low, high)` is
            a range of numbers. A longer tuple holds knots: the model is
            linear between them. A list holds words: text, booleans or whole
            numbers; blanks around text are ignored. A value that is missing
            or not in the list becomes zeros. A column of floats needs a
            tuple, and so do two numbers with possible values between them.
            Dates are not numbers: pass days since a public day.
        features: `None` (linear in the columns), or public Keras layers
            between scaled columns and output layer: a layer, a list, or a
            function that returns them. Records longer than 1 after them are
            scaled back to 1. Every fit releases the layers that learn from
            records (`PrivateNormalization`, `DPPCA`), in the same budget.
        class_weight: `None`, a dict from labels to public numbers (1 for a
            label that is left out), or `"balanced"`, which releases counts of
            the labels with a twentieth of a fit's budget. Weights help to
            find a rare class. Probabilities are those of the weighted data.
        rounds: `None` for one release, a `keras_fm.Rounds`, or an int R for
            `Rounds(rounds=R)`. The default loss here is `"cross_entropy"`, so
            that a larger epsilon gives better probabilities.
        fits: int >= 1, see above.
        evaluation: number in [0, 1), the share of the budget that fits leave
            to `private_score`; 0.1 costs little accuracy.
        held_out: `None`, or the share of rows that fits leave out for
            `private_score`. A public hash of each row selects them. Only for
            `"add_remove"`.
        ledger: `None` (the first fit begins one, shared with all clones), the
            path of a file, or a `keras_fm.Ledger`, whose budget then applies.
            With `n_jobs` above 1 pass the path of a file.
        neighbours: `"add_remove"` (default), `"replace_one"` or
            `"replace_label"` (labels alone are secret).
        reproducible_noise: `None`, or an int seed. A seeded fit is labelled
            "not private".

    Attributes:
        classes_: `(M,)` the labels, sorted; 0 to M - 1 if y held these.
        model_: the Keras model, from columns to logits.
        ledger_: the `keras_fm.Ledger` that was charged.

    Raises:
        ValueError: from `fit`, if a parameter is not as above.

    Example:

    ```python
    model = PrivateClassifier(
        1.0, 1e-6, bounds=(0, 255), classes=["no", "yes"], fits=6
    )
    # Five shares of six. Scores on private records: keep them to yourself.
    print(cross_val_score(model, X, y, cv=5))
    print(model.fit(X, y).report())  # the last
    ```
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        bounds: Any = None,
        classes: Any = None,
        columns: Any = None,
        features: Any = None,
        class_weight: Any = None,
        rounds: Any = None,
        fits: int = 1,
        evaluation: float = 0.0,
        held_out: float | None = None,
        ledger: Ledger | str | os.PathLike | None = None,
        neighbours: str | None = None,
        reproducible_noise: int | None = None,
    ) -> None:
        self._keep(locals())

    # Labels --------------------------------------------------------------

    def _learned(self, y, known):
        given = None if self._observes else self._given_classes()
        found, targets = _numbered(y, given)
        units = 1 if len(found) == 2 else len(found)
        rounds = Rounds.of(self.rounds)
        if rounds is not None and rounds.loss is None:
            # The loss whose minimiser is a probability.
            rounds = dataclasses.replace(rounds, loss="cross_entropy")
        head = PrivateDense(
            units,
            rounds=rounds,
            class_weight=self._weights(found),
            perturbed_loss=rounds is None,
            clip=True,
            bias_feature=None if rounds or self.delta == 0 else _CONSTANT,
            name="private_dense",
            **known,
        )
        return targets, head, TaylorCrossEntropy(), {"classes_": found}

    @property
    def _observes(self):
        return isinstance(self.classes, str) and self.classes == OBSERVED

    def _given_classes(self):
        given = self.classes
        if given is None or isinstance(given, str) or np.ndim(given) != 1:
            raise ValueError(
                "`classes` must hold all possible labels, as public "
                f'constants. Or pass "{OBSERVED}": you then declare that the '
                f"set of labels in y is public. Received: classes={given!r}"
            )
        try:
            found = np.unique(np.asarray(given))
        except TypeError:
            checks.refuse("classes", given, "of one type, so that they sort")
        if len(found) != len(given):
            raise ValueError(
                "`classes` must hold every label once. Received: "
                f"classes={given!r}"
            )
        return found

    def _weights(self, found):
        """`class_weight` with indices in the place of labels."""
        if not isinstance(self.class_weight, dict):
            return self.class_weight
        labels, given = found.tolist(), self.class_weight
        if not set(given) <= set(labels):
            raise ValueError(
                f"`class_weight` must name labels of `classes`, {labels}. "
                f"Received: class_weight={given!r}"
            )
        return [given.get(label, 1.0) for label in labels]

    def _notes(self, facts):
        if not self._observes:
            return ()
        return (
            "public by declaration: the set of labels, taken from the records "
            f'(classes="{OBSERVED}")',
        )

    def _asked(self, metrics):
        known = ["log_loss", "confusion_matrix", "calibration"]
        known += ["auc"] * (len(self.classes_) == 2)
        return {"metrics": metrics or known}

    # Predicting ----------------------------------------------------------

    def _found(self, head, release, n):
        logits = None
        if "quadratic" in release.statistics:
            logits = discriminants.of_release(
                release, head.augmented_weights(), head.bias_feature, n
            )
        return {"_logits": logits}

    def _meant(self, outputs):
        if self._logits is None:
            return outputs
        matrix, offset = self._logits
        return outputs @ matrix + offset

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits `(n, M)`; for two classes `(n,)`, those of the second."""
        found = self._outputs(X)
        return found[:, 0] if found.shape[1] == 1 else found

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities `(n, M)` in the order of `classes_`: the sigmoid or
        softmax of the logits. They are not calibrated. Logits of one release
        are those of a linear discriminant analysis of the released sums."""
        found = self.decision_function(X)
        if found.ndim == 1:
            return np.stack([special.expit(-found), special.expit(found)], 1)
        return special.softmax(found, axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable labels `(n,)`."""
        found = self.decision_function(X)
        chosen = found > 0 if found.ndim == 1 else found.argmax(axis=1)
        return self.classes_[np.asarray(chosen, int)]


def _numbered(y, classes):
    """The classes (those in y if `None`), and the index of every label.

    Raises:
        ValueError: if there is one class only, or a label outside the classes.
            The message shows no label.
    """
    found, inside = classes, False
    try:
        found = np.unique(y) if classes is None else classes
        inside = np.isin(y, found).all()
    except (TypeError, OverflowError):
        pass
    if found is not None and columns.has_large(found):
        raise ValueError(
            "Classes that are whole numbers of 2^53 or more must be text, "
            "because one label with a fraction would round those of all "
            "records: `.astype(str)`."
        )
    if found is not None and len(found) < 2:
        raise ValueError(
            "A classifier needs at least two classes. Received only one class."
        )
    if not inside:
        wanted = (
            "of `classes`. At least one is not. Perhaps an estimator around "
            "this one replaced the labels: write `classes=[0, 1]` if it "
            "trains one class against the rest, `classes=[0, 1, 2]` if it "
            "numbers the classes"
        )
        if classes is None:
            wanted = "of one type. At least one is of another, or missing"
        raise ValueError(f"`y` must hold labels {wanted}.")
    if classes is None:
        check_classification_targets(np.array(list(y)))
    return found, np.searchsorted(found, y)
