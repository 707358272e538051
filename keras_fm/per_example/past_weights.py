"""What is known in this process of where weights are from."""

import hashlib
import weakref

import keras
import numpy as np
from keras import ops

# The ids of ledgers that plain models were trained under, and those of
# weights, by their digest: copies and files of a model have them, too.
_OF_MODELS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_OF_DIGESTS: dict = {}


def note_charge(model, ledger):
    """Keeps under which ledger a model is trained."""
    _OF_MODELS.setdefault(model, set()).add(ledger.id)


def note_weights(model):
    """Keeps which weights a private fit led to. Returns their digest."""
    found = digest(model)
    for one in (found, *_digests(model.trainable_variables)):
        _OF_DIGESTS.setdefault(one, set()).update(_OF_MODELS[model])
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
    if ledgers_of(model) - {ledger.id}:
        raise ValueError(
            f"'{model.name}' was trained with privacy under another ledger, "
            "and this ledger does not count what that spent. Use the same "
            "`PrivateModel` again, or build a new model."
        )
    if ledger.id in _OF_DIGESTS.get(digest(model), ()):
        return
    if known is not None:
        raise ValueError(
            f"'{model.name}' no longer has the weights of its private fit, and "
            "no ledger says what the new ones were trained on. Build a new "
            "model, or say where its weights are from: `make_private(model, "
            'public="...")`.'
        )
    if not public:
        check_untrained(model)


def ledgers_of(model):
    """The ids of ledgers that a model, or one of its weights, was trained
    under with privacy."""
    found = [_OF_DIGESTS.get(one, set()) for one in _digests(model.weights)]
    return _OF_MODELS.get(model, set()).union(*found)


def check_untrained(model):
    """Refuses a model that took steps, or holds one that did."""
    for held in model._flatten_layers():
        if steps := steps_of(getattr(held, "optimizer", None)):
            raise ValueError(
                f"'{held.name}' was trained before, for {steps} steps, and no "
                "ledger says on what. Build a new model or, if the data were "
                'public, name them: `make_private(model, public="...")`.'
            )


def steps_of(optimizer):
    """How many steps an optimizer took."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return 0
    return int(ops.convert_to_numpy(optimizer.iterations))


def digest(model):
    """Of all weights, their shapes and types, in their order."""
    found = hashlib.sha256()
    for weight in model.weights:
        value = ops.convert_to_numpy(weight)
        found.update(f"{value.shape}{value.dtype}".encode() + value.tobytes())
    return found.hexdigest()


def _digests(weights):
    """Of each, but of those that may have had their numbers from the start:
    zeros, ones, and one number alone."""
    values = [ops.convert_to_numpy(ops.cast(w, "float32")) for w in weights]
    return {
        hashlib.sha256(np.ascontiguousarray(value)).hexdigest()
        for value in values
        if value.size > 1 and np.ptp(value) > 0
    }
