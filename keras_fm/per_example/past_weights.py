"""Which weights in this process were trained with privacy, and by which
ledger."""

import hashlib
import weakref

import keras
import numpy as np
from keras import ops

# The ids of ledgers that charged the training of models, and of weights by
# their digest, so that copies and files of a model are known too.
_OF_MODELS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_OF_DIGESTS: dict = {}


def note_charge(model, ledger):
    """Notes the ledger that is charged for training a model."""
    _OF_MODELS.setdefault(model, set()).add(ledger.id)


def note_weights(model):
    """Notes the weights that came out of a private fit. Returns their
    digest."""
    found = digest(model)
    for one in (found, *_digests(model.trainable_variables)):
        _OF_DIGESTS.setdefault(one, set()).update(_OF_MODELS[model])
    return found


def check(model, ledger, public, known):
    """Refuses trained weights that this ledger was not charged for.

    Args:
        model: a Keras model.
        ledger: the `Ledger` of the fit that begins.
        public: bool, whether its first weights are declared public.
        known: `None`, or the digest of the weights from a private fit.

    Raises:
        ValueError: names the training.
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
            f"'{model.name}' no longer has the weights of its private fit, "
            "and no ledger counts the training of the new ones. Build a new "
            "model, or name the source of its weights: `make_private(model, "
            'public="...")`.'
        )
    if not public:
        check_untrained(model)


def ledgers_of(model):
    """The ids of ledgers that were charged for a model or one of its
    weights."""
    found = [_OF_DIGESTS.get(one, set()) for one in _digests(model.weights)]
    return _OF_MODELS.get(model, set()).union(*found)


def check_untrained(model):
    """Refuses a model that took training steps, or that contains one."""
    for held in model._flatten_layers():
        if steps := steps_of(getattr(held, "optimizer", None)):
            raise ValueError(
                f"'{held.name}' was trained before, for {steps} steps, and no "
                "ledger counts that training. Build a new model or, if the "
                "data were public, name them: `make_private(model, "
                'public="...")`.'
            )


def steps_of(optimizer):
    """The number of steps an optimizer took."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return 0
    return int(ops.convert_to_numpy(optimizer.iterations))


def digest(model):
    """Digest of all weights, their shapes and types, in order."""
    found = hashlib.sha256()
    for weight in model.weights:
        value = ops.convert_to_numpy(weight)
        found.update(f"{value.shape}{value.dtype}".encode() + value.tobytes())
    return found.hexdigest()


def _digests(weights):
    """Digest of each weight, without those that may be untrained: all zeros,
    all ones, or a single number."""
    values = [ops.convert_to_numpy(ops.cast(w, "float32")) for w in weights]
    return {
        hashlib.sha256(np.ascontiguousarray(value)).hexdigest()
        for value in values
        if value.size > 1 and np.ptp(value) > 0
    }
