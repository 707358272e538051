"""The base class of the private estimators for tables."""

import abc
from typing import Any

import keras
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from keras_fm.core.guarantee import Proven, Unit
from keras_fm.estimators import given_table, public_map
from keras_fm.estimators.shared_ledger import SharedLedger
from keras_fm.estimators.table_columns import TableColumns
from keras_fm.evaluation import parts_by_hash
from keras_fm.evaluation.evaluation_query import IN_SAMPLE, Evaluation
from keras_fm.evaluation.private_evaluation import private_evaluate
from keras_fm.kernel import checks
from keras_fm.kernel.budget import Neighbours, PrivacyBudget, check_delta_given
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger
from keras_fm.training.private_model import PrivateModel

_READ = 1024
_HELD_OUT = "held out of the training by a public hash of each"


class PrivateEstimator(BaseEstimator, abc.ABC):
    """A private output layer on public features, for scikit-learn.

    Parameters are stored as they are given; `fit` checks them.
    """

    def _keep(self, given):
        """Stores the parameters in the `locals()` of `__init__`."""
        vars(self).update({k: v for k, v in given.items() if v is not self})

    # One ledger for all copies -------------------------------------------

    _shared: SharedLedger
    _range: tuple | None = None

    def __new__(cls, *args, **kwargs):
        # Made before anything can copy the estimator. Not in `__init__`,
        # which may only set parameters.
        made = super().__new__(cls)
        made._shared = SharedLedger()
        return made

    def __sklearn_clone__(self):
        made: Any = super().__sklearn_clone__()
        made._shared = self._shared
        return made

    @property
    def ledger_(self) -> Ledger:
        check_is_fitted(self, "model_")
        return self._shared.ledger

    # Fitting -------------------------------------------------------------

    @abc.abstractmethod
    def _learned(self, y, known):
        """The output layer and the loss that learn the labels.

        Args:
            y: `(n,)`.
            known: public facts about features, as arguments of the output
                layer.

        Returns:
            tuple `(targets, head, loss, facts)`: targets as the output layer
            `head` takes them, the loss, and a dict of facts about the labels,
            which become attributes of the fitted estimator.
        """

    def _found(self, head, release, n):
        """What predictions need of the release of `n` records, as
        attributes."""
        return {}

    def _notes(self, facts):
        """Lines of the statement about a fit, from the facts of `_learned`."""
        return ()

    def fit(self, X: Any, y: Any, owners: Any = None) -> "PrivateEstimator":
        """Releases and trains a new model, and charges the ledger.

        Args:
            X: array or data frame `(n, d)` of finite numbers. With `columns`
                also text and missing values; of a frame only the named
                columns are used, in any order.
            y: `(n,)`.
            owners: `None`, or `(n,)` ids of the rows' owners. The guarantee
                then protects an owner with all rows: their sum is scaled back
                to what one row may add. With `cross_val_score` pass
                `params={"owners": ids}` and folds by owner.

        Returns:
            self.

        Raises:
            BudgetExceededError: if the budget does not allow another fit. No
                record was used then.
            ValueError: if an argument, a shape, a value or a label is not
                as above. No budget was spent then.
        """
        budget = self._budget()
        kept = checks.number("evaluation", self.evaluation, at_least=0, below=1)
        unit, held_out = Unit(owners=owners), None
        if self.held_out is not None:
            terms = self._of_columns(X), y, self.held_out, owners
            held_out = parts_by_hash.is_held_out(*terms)
        x, y = self._checked(X, y)
        y, head, loss, facts = self._learned(y, self._known_of_features())
        ledger = self._shared.take(
            self.ledger, budget, self.neighbours, unit.name
        )
        columns = self._map_of_columns(x.shape[1], ledger.neighbours)
        model = keras.Sequential([keras.Input((x.shape[1],)), *columns, head])
        # The release sets the weights before the only step; it keeps them.
        model.compile("sgd", loss, run_eagerly=True)
        notes = [*self._notes(facts)]
        if held_out is not None:
            if ledger.neighbours.replaces:
                raise ValueError(
                    '`held_out` needs neighbours="add_remove": a record that '
                    "is replaced may leave one part and enter the other. "
                    f"Received: neighbours={str(ledger.neighbours)!r}"
                )
            share = f"{self.held_out:g} of rows"
            notes.append(f"held out by a public hash: {share}")
            x, y = x[~held_out], y[~held_out]
            if owners is not None:
                unit = Unit(owners=unit.owners[~held_out])
        private = PrivateModel(
            ledger,
            data=(x, y),
            guarantee=Proven(
                releases=checks.count("fits", self.fits),
                spends=1 - kept,
                unit=unit,
            ),
            notes=notes,
            reproducible_noise=self.reproducible_noise,
        )
        spent = False
        try:
            model.fit(x, y, steps_per_epoch=1, verbose=0, callbacks=[private])
        except BudgetExceededError:
            spent = True
        if spent:
            # Outside of `except`: scikit-learn prints chained errors, too.
            raise BudgetExceededError(
                f"The budget of this {type(self).__name__}, its clones and "
                "its `ledger` does not allow this fit: epsilon = "
                f"{ledger.epsilon():.4g} of {budget.epsilon:g} is spent. Write "
                f"`fits=k` for k equal parts. Received: fits={self.fits}"
            )
        self.model_, self._shared.ledger = model, ledger
        facts |= self._found(head, private.release, len(x))
        self.__dict__.update(facts, held_out_=self.held_out)
        return self

    # How good it is ------------------------------------------------------

    @abc.abstractmethod
    def _asked(self, metrics):
        """Arguments of `private_evaluate` for `private_score`, from its
        `metrics`."""

    def private_score(
        self,
        X: Any,
        y: Any,
        owners: Any = None,
        *,
        share: float | str | None = None,
        metrics: Any = None,
        bins: int = 10,
    ) -> Evaluation:
        """Measures the fitted estimator with privacy, charged to its ledger.

        Pass the table that `fit` got. With `held_out` only the rows that were
        kept from training are used. Without it all rows are used, and the
        result is marked *in sample*.

        Args:
            X, y, owners: as `fit` got them. One random row of each owner is
                used.
            share: of the ledger's budget. `None` is the share `evaluation`,
                or `"rest"` without one.
            metrics, bins: see `keras_fm.evaluation.private_evaluate`. `None`
                is all metrics; fewer metrics have less noise. A regressor of
                the numbers 0 and 1 has the metrics of two classes, too.

        Returns:
            A `keras_fm.evaluation.Evaluation`: print it.

        Raises:
            ValueError, BudgetExceededError: see `private_evaluate`.
        """
        check_is_fitted(self, "model_")
        if share is None and not self.evaluation:
            raise ValueError(
                "Nothing was kept for a measurement. Build it with "
                f"`{type(self).__name__}(..., evaluation=0.1)`."
            )
        rows = IN_SAMPLE
        if self.held_out_ is not None:
            terms = self._of_columns(X), y, self.held_out_, owners
            _, (X, y, *ids) = parts_by_hash.part_by_hash(*terms)
            owners = ids[0] if ids else None
            rows = _HELD_OUT
        given = self._asked(metrics)
        if owners is not None:
            X, y = parts_by_hash.one_row_of_each(X, y, owners)
            rows += ", one row of each owner"
            given["unit"] = self.ledger_.unit
        return private_evaluate(
            self,
            (X, y),
            ledger=self.ledger_,
            share=self.evaluation if share is None else share,
            bins=bins,
            rows=rows,
            name="score",
            reproducible_noise=self.reproducible_noise,
            **given,
        )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.reproducible_noise is None
        tags.input_tags.allow_nan = self._takes_missing()
        return tags

    # Public facts about the columns --------------------------------------

    @property
    def _table(self):
        if self.columns is None:
            return None
        if self.bounds is not None:
            raise ValueError(
                "`columns` has the range of every column: leave out `bounds`. "
                f"Received: bounds={self.bounds!r}"
            )
        return TableColumns(self.columns)

    def _of_columns(self, X):
        """A data frame without the columns that are not used."""
        if not isinstance(self.columns, dict) or not hasattr(X, "columns"):
            return X
        return X[[name for name in X.columns if name in self.columns]]

    def _map_of_columns(self, width, neighbours):
        table = self._table
        if table is not None and self.features is None:
            return [keras.layers.Rescaling(table.scale)]
        labels = neighbours is Neighbours.REPLACE_LABEL
        released = not (labels or self.rounds)
        return public_map.layers(self.features, self.bounds, width, released)

    def _known_of_features(self):
        """An L1 bound for encoded columns, which are sparse. After `features`
        layers it is unknown; `rounds` do not use it."""
        if self.columns is None or self.features is not None or self.rounds:
            return {}
        return {"feature_l1_bound": self._table.l1_bound}

    def _takes_missing(self):
        if self.columns is not None:
            return True
        return public_map.takes_missing(self.features, self.bounds)

    def _budget(self):
        if self.epsilon is None:
            if self.delta is not None:
                raise ValueError(
                    "`delta` belongs to an epsilon; a ledger has its own. "
                    f"Received: epsilon=None and delta={self.delta!r}"
                )
            return None
        call = f"{type(self).__name__}(epsilon={{}}, delta={{}}, ...)"
        check_delta_given(self.epsilon, self.delta, call)
        return PrivacyBudget(self.epsilon, self.delta)

    def report(self) -> str:
        """The privacy statement, as text: all fits that were charged to the
        ledger so far, those of clones included."""
        return self.ledger_.statement()

    # Predicting ----------------------------------------------------------

    def _outputs(self, X):
        check_is_fitted(self, "model_")
        x = self._checked(X)
        # Batches of one shape: a record's bits do not depend on the others.
        padded = np.pad(x, ((0, -len(x) % _READ), (0, 0)))
        found = [
            self.model_.predict_on_batch(padded[i : i + _READ])
            for i in range(0, len(padded), _READ)
        ]
        return self._meant(np.concatenate(found)[: len(x)].astype(np.float64))

    def _as_keras(self):
        """For private evaluation: the Keras model, the functions from a table
        to its inputs and from its outputs to what they mean, and the range of
        its predictions or `None`."""
        check_is_fitted(self, "model_")
        return self.model_, self._checked, self._meant, self._range

    def _checked(self, X, *y):
        table = self._table
        # Always float64: otherwise one fraction in the table would change how
        # whole numbers of 2^53 and more are rounded.
        kinds = [np.float64, np.float32]
        wanted: dict = {"dtype": kinds, "reset": bool(y)}
        if table is not None:
            X = table.select(X)
            wanted |= {"dtype": None, "ensure_all_finite": False}
        elif self._takes_missing():
            wanted["ensure_all_finite"] = "allow-nan"
        for name, given in zip("Xy", (X, *y)):
            given_table.refuse_dates(name, given)
        # scikit-learn converts whole tables with pandas' own types to floats.
        X, *y = [given_table.with_nan(v) for v in (X, *y)]
        found = _without_records(_validated, self, X, *y, **wanted)
        x, *y = found if y else [found]
        if table is not None:
            x = table.encode(x)
        else:
            with np.errstate(over="ignore"):
                x = x.astype(np.float32)
        if np.any(np.isinf(x)):
            raise ValueError(
                "Input X contains infinity or a value too large for "
                "dtype('float32')."
            )
        return (x, *y) if y else x


# Errors of NumPy and scikit-learn that show records or mislead, and the words
# that replace them.
_SHOWING = {
    "could not convert": "`X` must hold numbers, and at least one column holds "
    "text. Give the public range or words of each column, `columns={name: "
    "(low, high) or a list of words}`, or encode it by public categories "
    "first; see docs/tutorials/tables.md.",
    # Shows no record, but recommends an imputer, which no ledger records.
    "does not accept missing values": "Input X contains NaN. Give the public "
    "range or words of each column, `columns={name: (low, high) or a list of "
    "words}`: missing values then become zeros. Or leave out `bounds`, and "
    '`features=PrivateNormalization(bounds, missing="mean")` replaces '
    "them under the ledger. Do not use an imputer that learns from the "
    "records: no ledger counts it. See docs/tutorials/tables.md.",
    "Complex data not supported": "Complex data not supported: `X` and `y` "
    "must hold real numbers.",
    "Reshape your data": "Expected 2D array: `X` must have shape (n, d). "
    "Reshape your data.",
    "too large to convert": "`X` must hold numbers in the range of a float. "
    "At least one is too large.",
}


def _without_records(function, *args, **kwargs):
    """Calls a function; its errors are raised in words that show no record."""
    words = None
    try:
        return function(*args, **kwargs)
    except (ValueError, OverflowError) as e:
        words = _other_words(e)
        if words is None:
            raise
    # Outside of `except`, which would chain the first error.
    raise ValueError(words)


def _other_words(error):
    """Other words for an error, or `None` if neither the error nor its causes
    show a record."""
    texts, inner = [str(error)], error
    # pandas and scikit-learn chain their own errors to NumPy's.
    while inner := inner.__cause__ or inner.__context__:
        texts.append(str(inner))
    for sign, words in _SHOWING.items():
        if any(sign in text for text in texts):
            return words
    return texts[0] if len(texts) > 1 else None


def _validated(estimator, *arrays, **wanted):
    """`validate_data`, which was a method before scikit-learn 1.6."""
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:
        if "ensure_all_finite" in wanted:
            wanted["force_all_finite"] = wanted.pop("ensure_all_finite")
        return estimator._validate_data(*arrays, **wanted)
    return validate_data(estimator, *arrays, **wanted)
