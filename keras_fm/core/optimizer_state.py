"""An optimizer may only remember steps of fits that a release or a ledger
knows.

Momenta, moments, averages and counts are functions of every gradient that an
optimizer got. A custom loop may have given it gradients of records, and put the
weights back. The next steps would then follow these gradients.
"""

import keras

from keras_fm.core import replicas, variable_values
from keras_fm.core.released import digest


def left(model):
    """A digest of what the model's optimizer remembers, `None` if nothing.
    The learning rate is left out: anybody may set it."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built:
        return None
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_learning_rate", None)
    kept = [v for v in optimizer.variables if v is not rate]
    found = variable_values.values(kept, model)
    return None if found is None else digest(found)


def begin(model, known):
    """Lets an optimizer continue from the end of a fit, or begin anew.

    Args:
        model: a compiled model, of which no step is running.
        known: the result of `left` at that end, `None` if there was no fit.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or not optimizer.built or left(model) == known:
        return
    count = keras.ops.convert_to_numpy(optimizer.iterations)
    if known is None and not int(count):
        return
    with replicas.scope(model):
        fresh = type(optimizer).from_config(optimizer.get_config())
        fresh.build(model.trainable_variables)
    pairs = zip(optimizer.variables, fresh.variables, strict=True)
    for old, new in pairs:
        old.assign(keras.ops.convert_to_numpy(new))
