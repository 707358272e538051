"""A model that is asked about private records, each of them on its own.

What it says of a record depends on that record alone: a Keras model goes
through a `FeatureMap`, anything else is called with one record at a time. It
must not itself be a function of the records that no ledger knows.
"""

import keras
import numpy as np

from keras_fm.heads.private_dense import PrivateDense
from keras_fm.kernel import bounds as bounds_lib
from keras_fm.kernel import checks, records
from keras_fm.kernel.ledger.ledger_entry import check_line
from keras_fm.kernel.reads import columns, placed_records
from keras_fm.kernel.reads.passes import Passes
from keras_fm.parts import model_inputs
from keras_fm.parts.private_part import parts_of
from keras_fm.parts.record_alone import FeatureMap, runs_its_graph
from keras_fm.training import model_check
from keras_fm.training.proven_plan import PLACES, READ_BATCH

# How far probabilities may be from adding up to 1.
_SUM_TOLERANCE = 1e-2
NUMBERS = ("mean_absolute_error", "mean_squared_error")


class AskedModel:
    """What a model says of private records.

    Args:
        model: a Keras model, a scikit-learn estimator (one of this package
            is its Keras model), a function from a batch of records to
            outputs, or `None` where the records are outputs already.
        ledger: the `Ledger` that the question will be charged to.
        public: `None`, or words: why the model is no function of the
            records but through that ledger.

    Raises:
        ValueError: if the model may be more than it says.
    """

    def __init__(self, model, ledger, *, public=None):
        self.facts = []
        # Of an estimator: its labels in their order, what makes inputs of a
        # table, and the range of its predictions.
        self.labels = _labels_of(model)
        self.inputs = self._range = None
        if hasattr(model, "_as_keras"):
            model, self.inputs, self._range = model._as_keras()
        self.model = model
        # Of a model of Keras, what is called.
        self._map = None
        if public is not None:
            checks.text("public", public, "words on one line: where from")
            check_line("`public`", public)
            self.facts.append(
                f"public by declaration: the model that is asked: {public}"
            )
        if isinstance(model, keras.Model):
            self._check_keras(ledger, public)
        elif public is None:
            raise ValueError(
                "`public` must say where the model comes from, since what it "
                "says of private records is a function of all that shaped "
                "it: other records (`public='trained on ...'`), or releases "
                "of this ledger (`public='from the releases of this "
                f"ledger'`). Received: {type(model).__name__}"
            )
        elif not (model is None or callable(model) or _predicts(model)):
            raise ValueError(
                "`model` must be a Keras model, a scikit-learn estimator, a "
                "function of a batch of records, or None where the data are "
                f"(predictions, y). Received: {type(model).__name__}"
            )
        if model is None:
            self.facts.append(
                "declared to be of one record each: predictions that were "
                "computed before"
            )
        elif self._map is None:
            self.facts.append(
                "declared to keep nothing of a record: the model that is asked"
            )
        elif self._map.unlisted is not None:
            self.facts.append(f"asked record by record ({self._map.unlisted})")

    # What it is ----------------------------------------------------------

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
        """Refuses weights that may be of the records and of no release in
        this ledger."""
        model, parts = self.model, parts_of(self.model)
        named = "; or say where it is from: `public='trained on ...'`"
        if not parts:
            raise ValueError(
                f"The model '{model.name}' has no private part, so it cannot "
                "be seen what its weights were trained on. Say why they are "
                "no function of these records: `public='trained on ...'`"
            )
        for part in parts:
            if not part.is_released:
                raise ValueError(
                    f"{type(part).__name__} '{part.name}' has no release, so "
                    "what its weights were trained on is in no ledger. "
                    f"Release it first{named}"
                )
            if model_check.ledger_besides(ledger, part.ledger_json) is not None:
                raise ValueError(
                    f"'{part.name}' was released under another ledger. Ask "
                    "under that one, `private.ledger`, if the records are "
                    f"the same{named}"
                )
        ours = {id(v) for part in parts for v in part.weights}
        for layer in model._flatten_layers(include_self=False):
            own = [v for v in layer.weights if v.trainable]
            if any(id(v) not in ours for v in own):
                raise ValueError(
                    f"Layer '{layer.name}' has trainable weights that are of "
                    "no release: they may have been trained on the records. "
                    f"Set `trainable = False` if they are public{named}"
                )
        self.facts.append(
            f"the model that is asked: '{model.name}', by the releases of "
            "this ledger"
        )
        self.facts += model_check.public_facts(model, self._top)

    @property
    def gives_logits(self):
        """Whether it ends with a layer that is known to give logits."""
        return isinstance(self._top, PrivateDense)

    @property
    def _top(self):
        if not getattr(self.model, "outputs", None):
            return None
        return model_check.output_part(self.model)

    def classes(self, given):
        """The number of classes: `given`, or what the model says.

        Args:
            given: `None`, an int, or the labels in the order of the outputs.
        """
        predicts = getattr(self._top, "predicts", "classes")
        if predicts != "classes":
            raise ValueError(
                f"'{self._top.name}' predicts {predicts}, not one class for "
                f"each record. Numbers have the metrics {', '.join(NUMBERS)}."
            )
        known = None
        if given is not None and not checks.is_number(given):
            self.labels = _given_labels(given, self.labels)
            given = len(self.labels)
        if getattr(self.model, "outputs", None):
            known = max(2, self.model.outputs[0].shape[-1] or 0)
        elif self.labels is not None:
            known = len(self.labels)
        if given is None and known is None:
            raise ValueError(
                "`classes` must say how many classes there are; it is not "
                "read from private labels. Received: classes=None"
            )
        if None not in (given, known) and given != known:
            raise ValueError(
                f"The model has {known} classes. Received: classes={given}"
            )
        return known if given is None else given

    def predict_numbers(self):
        """Has predictions and `y` compared as the numbers that they are."""
        if self.inputs is not None and self.labels is not None:
            raise ValueError(
                "A classifier predicts labels, not numbers. Labels have the "
                "metrics accuracy, confusion_matrix, calibration."
            )
        self.labels = None

    # What it says --------------------------------------------------------

    def outputs(self, x, rows, numbers=False):
        """What it says of the records that are in `rows` of a placed batch,
        float64 or integers `(records, ...)`."""
        model = self.model
        if model is None:
            given = columns.taken(x, rows)
            return _checked(self._numbered(given), len(rows))
        if self._map is not None:
            if getattr(model, "inputs", None):
                x = model_inputs.checked(model, x)
            found = self._map(x)
            if self._range is not None:
                found = np.clip(found, *self._range)
            return _checked(found[rows], len(rows))
        call = model
        if _predicts(model):
            call = getattr(model, "predict_proba", model.predict)
            call = model.predict if numbers else call
        alone = (columns.taken(x, slice(row, row + 1)) for row in rows)
        return np.concatenate(
            [_checked(self._numbered(_array(call(v))), 1) for v in alone]
        )

    def _numbered(self, found):
        """Predictions that are labels as places among them; those that are
        numbers for two classes are none."""
        if getattr(found, "dtype", np.dtype(object)).kind == "f":
            return found
        return numbered(found, self.labels, "Predictions")


def _predicts(model):
    return hasattr(model, "predict") and not isinstance(model, keras.Model)


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


# What is read -----------------------------------------------------------------


def _labels_of(model):
    found = getattr(model, "classes_", None)
    if found is None or isinstance(found, list):  # of several outputs
        return None
    return np.asarray(found)


def _given_labels(given, own):
    found = np.asarray(given)
    if found.ndim != 1 or len(set(found.tolist())) < len(found):
        checks.refuse(
            "classes",
            given,
            "how many classes there are, or all labels, each once, in the "
            "order of the model's outputs",
        )
    if own is None:
        return found
    if set(own.tolist()) != set(found.tolist()):
        raise ValueError(
            f"`classes` must be those of the model, {own.tolist()}. Received: "
            f"classes={given!r}"
        )
    return own


def check_same_labels(models):
    """Refuses models of which one's label is not another's place.

    Raises:
        ValueError: saying what to pass.
    """
    found = [asked.labels for asked in models]
    if all(labels is None for labels in found):
        return
    for labels in found:
        # Without labels a model speaks of places.
        one, other = (
            list(range(max(len(v) for v in found if v is not None)))
            if v is None
            else np.asarray(v).tolist()
            for v in (labels, found[0])
        )
        if one != other:
            raise ValueError(
                "All models must have the same labels in the same order; of "
                "a model that has none, say them, `classes=[...]`. Received: "
                f"{one} and {other}"
            )


def translated(data, models):
    """The records in numbers, for all models that are asked.

    Labels become places among those of the models. Where a model is an
    estimator of this package, x is a list of what each model takes.

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
    """What a model takes of the records that `translated` gave."""
    return x if all(m.inputs is None for m in models) else x[index]


def numbered(values, labels, what):
    """Places among `labels` of values that are labels; what are numbers where
    labels are none are places already, or a number for each class.

    Args:
        values: array or column.
        labels: array, or `None`: then all values are as they were.
        what: holds the values, for the error, which shows none.

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
    places = None
    try:
        places = [index.get(value, -1) for value in found.tolist()]
    except TypeError:
        pass
    if places is None or -1 in places:
        raise ValueError(
            f"{what} must hold labels among {list(index)}. At least one is "
            "none of them."
        )
    return np.array(places, int)


def placed(data, n=None):
    """Batches `(x, y, rows)` in which a record has its row by itself; x has
    the structure of the data, which must hold `n` records if that is known."""
    form, passes = [], Passes(n, n_public=True)

    def arrays():
        for x, y in passes.over(records.batches(data, READ_BATCH)):
            form[:] = [x]
            yield [array for _, array in columns.flatten(x)], y

    for found, y, rows in placed_records.placed(arrays(), PLACES):
        given = iter(found)
        yield _filled_in(form[0], given), y, rows


def _filled_in(form, given):
    return columns.transform(lambda *_: next(given), form)


def count(data):
    """The number of records."""
    known = records.number(data)
    if known is not None:
        return known
    return sum(columns.count(x) for x, _ in records.batches(data, READ_BATCH))


# What it is compared with -----------------------------------------------------


def decided(outputs, classes, from_logits, confident=False):
    """Classes that a model decides for, and how sure it is.

    Args:
        outputs: integers `(n,)`: the classes; floats `(n, classes)`; or
            `(n,)` or `(n, 1)` for two classes.
        classes: int.
        from_logits: whether floats are logits; probabilities otherwise.
        confident: whether probabilities are asked for.

    Returns:
        tuple `(classes, probabilities)`, `(n,)` each; the latter `None` if
        not asked for.

    Raises:
        ValueError: if the outputs are something else.
    """
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        outputs = outputs[:, 0]
    if outputs.dtype.kind in "biu" and outputs.ndim == 1:
        if confident:
            raise ValueError(
                "Calibration needs probabilities or logits. The model gives "
                "classes."
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
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        outputs = powers / powers.sum(axis=1, keepdims=True)
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
    found = outputs.argmax(axis=1)
    return found, outputs.max(axis=1) if confident else None


def errors(outputs, y, low, high, clip):
    """Absolute errors as shares of the largest one, `(n,)`, a mean over what
    is predicted of each record, and the same of their squares.

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
    apart = np.clip(outputs, low, high) - np.clip(y, low, high)
    apart = np.clip(np.abs(apart) / (high - low), 0.0, 1.0)
    return apart.mean(axis=1), np.square(apart).mean(axis=1)
