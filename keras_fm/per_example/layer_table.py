"""A table of how each layer of a model would be trained with privacy."""

import keras
from keras import ops

from keras_fm.per_example import (
    ghost_layers,
    mended,
    product_weights,
    recurrent_map,
)
from keras_fm.per_example.record_map import shaped

FAST, ALONE, CHANGE = "fast", "record by record", "must change"


def _shown(holder):
    """The layers in a layer, in order, without those that only hold others."""
    for layer in holder._layers:
        if type(layer) in (keras.layers.InputLayer, *recurrent_map.CELLS):
            continue
        inner = list(_shown(layer))
        own = [v for v in layer._trainable_variables if v.trainable]
        yield from [layer, *inner] if own or not inner else inner


def _fast(model, layers):
    """The layers with a map. Of a model with inputs of known shape also those
    whose matrices a record only multiplies."""
    found = [v for v in layers if ghost_layers.may_be_ghost(v)]
    given = getattr(model, "inputs", None) or []
    if not given or any(
        None in v.shape[1:] or v.dtype == "string" for v in given
    ):
        return found

    sequential = isinstance(model, keras.Sequential)

    def run(mapping=()):
        x = keras.tree.map_structure(
            lambda v: ops.zeros((1, *v.shape[1:]), v.dtype),
            given[0] if sequential else model.input,
        )
        held = [(v, v.value) for v in model.variables]
        with keras.StatelessScope([*held, *mapping], collect_losses=True):
            # Private layers that learn first refuse to train here.
            return model(x, training=False)

    # JAX would not call the same function again.
    used = ghost_layers.found_in(model, lambda _: shaped(lambda: run()))
    used = {id(ghost.layer) for ghost in used}
    fast, others = ([v for v in layers if (id(v) in used) == k] for k in (1, 0))
    if ghost_layers.has_loops(model):
        return fast
    matrices = [
        v
        for layer in others
        for v in layer.trainable_weights
        if len(v.shape) > 1
    ]
    uses = product_weights.found_in(
        lambda values: run(zip(matrices, values)),
        [ops.convert_to_tensor(v) for v in matrices],
    )
    formed = {id(v) for v, found in zip(matrices, uses) if not found}
    return fast + [
        layer
        for layer in others
        if formed.isdisjoint(map(id, layer.trainable_weights))
    ]


def check(model):
    """Shows how `keras_fm.make_private` trains each layer of a model.

    This uses no data and no budget. A layer is *fast* if its gradient norms are
    computed without forming the gradients; so is a layer of your own whose
    matrices are only factors of products (seen only if the model has inputs of
    known shape). It is *record by record* if the gradient of each record is
    formed. On TensorFlow, if the model has a recurrent layer and any layer is
    not fast, this holds for all layers. It *must change* if it mixes the
    records of a batch, or changes weights in a call.

    Args:
        model: a built Keras model, or the result of `make_private`.

    Returns:
        str, a table with a row for each layer, and what to write for layers
        that must change.

    Raises:
        ValueError: if `model` is not a built Keras model.

    Example:

    >>> import keras
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> print(check(model).splitlines()[0])
    layer  kind   trained
    """
    if getattr(model, "makes_private_steps", False):
        model = getattr(model, "model", model)
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(
            "`model` must be a built `keras.Model`: give it an `Input`, or "
            "call it on one batch. Received: model="
            f"{type(model).__name__}"
        )
    must = mended.must_change(model)
    layers = list(dict.fromkeys(_shown(model)))
    fast = {id(v) for v in _fast(model, layers)}
    fast |= {id(v) for v in layers if not v.trainable_weights}
    alone = ghost_layers.has_loops(model) and len(fast) < len(layers)
    rows = [("layer", "kind", "trained")]
    for layer in layers:
        if any(layer is other for other in must):
            how = CHANGE
        elif alone or id(layer) not in fast:
            how = ALONE
        else:
            how = FAST
        rows.append((layer.name, type(layer).__name__, how))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    lines = [
        f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {how}"
        for name, kind, how in rows
    ]
    return "\n".join([*lines, *mended.advice(model)])
