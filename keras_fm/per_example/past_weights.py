"""What is known in this process of where weights are from."""

import gc
import hashlib
import weakref

import keras
import numpy as np
from keras import ops

# The ids of ledgers that plain models were trained under, and those of
# weights, by their digest: copies and files of a model have them, too.
_OF_MODELS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_LEARNED: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_OF_DIGESTS: dict = {}


def note_charge(model, ledger):
    """Keeps under which ledger a model is trained, and which weights."""
    _LEARNED.setdefault(model, []).extend(model.trainable_variables)
    _OF_MODELS.setdefault(model, set()).add(ledger.id)


def note_weights(model):
    """Keeps which weights a private fit led to. Returns their digest."""
    found = digest(model)
    _OF_DIGESTS.setdefault(found, set()).update(_OF_MODELS[model])
    return found


def check(model, ledger, public, known):
    """Refuses weights that no ledger knows, or another one.

    Args:
        model: a Keras model.
        ledger: the `Ledger` of the fit that is to begin.
        public: whether its first weights are public by declaration.
        known: `None`, or the digest that a private fit led to.

    Raises:
        ValueError: naming what it was trained by.
    """
    found = digest(model)
    ledgers = _OF_MODELS.get(model, set()) | _OF_DIGESTS.get(found, set())
    if ledgers - {ledger.id}:
        raise ValueError(
            f"'{model.name}' was trained with privacy under another ledger, "
            "and what that spent is not in this one. Go on with the same "
            "`PrivateModel`, or build the model anew."
        )
    if ledger.id in _OF_DIGESTS.get(found, ()):
        return
    if known is not None:
        raise ValueError(
            f"'{model.name}' has other weights than its private fit led to, "
            "and no ledger knows on what they were trained. Build the model "
            "anew, or say where they are from: `make_private(model, "
            'public="...")`.'
        )
    if not public:
        check_untrained(model)
        _check_copied(model, ledger)


def check_untrained(model):
    """Refuses a model that took steps."""
    steps = steps_of(getattr(model, "optimizer", None))
    if steps:
        raise ValueError(
            f"'{model.name}' was trained before, for {steps} steps, and no "
            "ledger knows on what. Build it anew, or, if it was trained on "
            'public data, say on which: `make_private(model, public="...")`.'
        )


def _check_copied(model, ledger):
    """Refuses weights that are those of a model that was fitted here."""
    found = copied_from(model, ledger.id)
    if found is not None:
        path, name = found
        raise ValueError(
            f"`{path}` of '{model.name}' is a weight of '{name}', which was "
            "trained in this process. Build the model anew, or, if that was "
            "on public data, say on which: `make_private(model, "
            'public="...")`.'
        )


def copied_from(model, known=None):
    """`None`, or a weight of a model that is that of another one that was
    fitted here: its path, and the name of the other.

    Args:
        model: a Keras model.
        known: `None`, or the id of a ledger; what it knows of may be copied.
    """
    mine = {}
    for weight in model.weights:
        value = ops.convert_to_numpy(weight)
        # What starts as zeros or ones says nothing.
        if value.size > 1 and value.dtype.kind == "f" and np.ptp(value) > 0:
            mine.setdefault(value.shape, []).append((weight.path, value))
    for other in gc.get_objects():
        if not issubclass(type(other), keras.Model) or other is model:
            continue
        for weight in _moved(other, known):
            for path, value in mine.get(tuple(weight.shape), ()):
                if np.array_equal(value, ops.convert_to_numpy(weight)):
                    return path, other.name
    return None


def _moved(model, known):
    """The weights of a model that training moved, but for what a ledger
    knows of."""
    private = getattr(model, "makes_private_steps", False)
    if private and not getattr(model, "unprotected", False):
        # Those of its plain model.
        return ()
    if _OF_MODELS.get(model, set()) - {known}:
        return _LEARNED[model]
    optimizer = getattr(model, "optimizer", None)
    if not steps_of(optimizer):
        return ()
    # What is frozen is not there.
    return getattr(optimizer, "_trainable_variables", None) or model.weights


def steps_of(optimizer):
    """How many steps an optimizer took."""
    if optimizer is None or not optimizer.built:
        return 0
    return int(ops.convert_to_numpy(optimizer.iterations))


def digest(model):
    """Of all weights, in their order."""
    found = hashlib.sha256()
    for weight in model.weights:
        found.update(np.ascontiguousarray(ops.convert_to_numpy(weight)))
    return found.hexdigest()
