"""Whether lookups and normalisations hold the constants they were built from.

What `adapt` learned, and what was set or loaded later, leaves no sign that
could be told from private data. So one rule: the layer that its configuration
describes must be the layer that is there.
"""

import functools
import inspect

import keras
import numpy as np

# Mean and variance of a `Normalization` that was never adapted, and of the
# bodies trained on ImageNet that hold one, with either reading of the second.
_PUBLISHED = (
    ((0.0,), (1.0,)),
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ((0.485, 0.456, 0.406), (0.229**2, 0.224**2, 0.225**2)),
)
_LOOKUPS = (
    keras.layers.IntegerLookup,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


def check(layers):
    """Refuses layers whose constants do not count as public.

    Args:
        layers: the layers of a model, flattened.

    Raises:
        ValueError: naming the layer and what to write instead.
    """
    parts = _parts(layers)
    for layer in layers:
        found = None if id(layer) in parts else problem(layer)
        if found:
            raise ValueError(
                f"Layer '{layer.name}' ({type(layer).__name__}) {found}."
            )


def check_maps(data):
    """Refuses a `tf.data.Dataset` that maps its records through a layer, or a
    `keras.utils.FeatureSpace`, whose constants do not count as public.

    Functions that are mapped are looked into as far as they name layers.

    Args:
        data: the private records, in any form.

    Raises:
        ValueError: see `check`.
    """
    if not hasattr(data, "_inputs"):
        return
    for source in data._inputs():
        check_maps(source)
    function = getattr(getattr(data, "_map_func", None), "_func", None)
    for value in _named_by(function):
        if isinstance(value, keras.layers.Layer):
            if isinstance(value, keras.utils.FeatureSpace):
                check(list(value.preprocessors.values()))
            else:
                check(value._flatten_layers())


def _named_by(function):
    """What a function is or refers to: its own variables and globals."""
    while isinstance(function, functools.partial):
        function = function.func
    found = [function, getattr(function, "__self__", None)]
    try:
        known = inspect.getclosurevars(function)
    except TypeError:
        return found
    return [*found, *known.nonlocals.values(), *known.globals.values()]


def problem(layer):
    """Why the constants of a layer do not count as public, or `None`.

    Args:
        layer: any layer; those that cannot be adapted have no problem.

    Returns:
        `None`, or str: what it holds, and what to write instead.

    Example:

    >>> problem(keras.layers.Normalization(mean=5.0, variance=2.0))
    >>> problem(keras.layers.Normalization())
    'has no `mean` and `variance` from its constructor, so what it holds ...'
    """
    if not hasattr(layer, "adapt") or hasattr(layer, "public_data"):
        return None
    names = _constants(layer)
    if not names and type(layer).__module__.startswith("keras_fm."):
        return None
    if not names:
        return _ADAPTED.format("no constants that could be looked at", "")
    wanted = ", ".join(f"{name}=..." for name in names)
    instead = f" (for example `keras.layers.{type(layer).__name__}({wanted})`)"
    config = layer.get_config()
    given = all(config.get(name) is not None for name in names)
    # Discretization writes what it learned beside how many it learned.
    if not given and _is_as_published(layer):
        return None
    if not given or config.get("num_bins") is not None:
        named = " and ".join(f"`{name}`" for name in names)
        return _ADAPTED.format(f"no {named} from its constructor", instead)
    if not _is_as_configured(layer, config):
        return (
            f"holds other constants ({', '.join(names)}) than it was built "
            "with: what was set or loaded later is in no ledger. Build it "
            f"from the public constants{instead}"
        )
    return None


_ADAPTED = (
    "has {}, so what it holds was adapted to data that the ledger does not "
    "know, set later, or read from a file. Build it from public constants{}"
)


def _constants(layer):
    """Names of the arguments that a layer could learn by `adapt` as well."""
    if isinstance(layer, keras.layers.Normalization):
        return ("mean", "variance")
    if isinstance(layer, keras.layers.Discretization):
        return ("bin_boundaries",)
    if not isinstance(layer, _LOOKUPS):
        return ()
    if getattr(_lookup(layer), "output_mode", None) == "tf_idf":
        return ("vocabulary", "idf_weights")
    return ("vocabulary",)


def facts(layers):
    """What a statement repeats of the constants of layers, by their ids."""
    parts = _parts(layers)
    found = {}
    for layer in layers:
        names = _constants(layer)
        if names and id(layer) not in parts:
            found[id(layer)] = (
                f"public by declaration: {' and '.join(names)} of layer "
                f"'{layer.name}' ({type(layer).__name__})"
            )
    return found


def _parts(layers):
    """Ids of lookups that are a part of another layer among these."""
    return {id(layer._lookup_layer) for layer in layers if _has_lookup(layer)}


def _has_lookup(layer):
    return isinstance(layer, keras.layers.TextVectorization)


def _lookup(layer):
    return layer._lookup_layer if _has_lookup(layer) else layer


def _is_as_configured(layer, config):
    twin = type(layer).from_config(config)
    if isinstance(layer, keras.layers.Normalization) and layer.built:
        twin.build_from_config(layer.get_build_config())
    try:
        held, made = _held(layer), _held(twin)
    except NotImplementedError:
        # Built while TensorFlow traced a map: then it knows what it was given.
        return True
    return len(held) == len(made) and all(map(np.array_equal, held, made))


def _held(layer):
    """What a layer computes with, as arrays."""
    if isinstance(layer, keras.layers.Normalization):
        found = [layer.mean, layer.variance] if layer.built else []
    elif isinstance(layer, keras.layers.Discretization):
        found = [layer.bin_boundaries]
    else:
        lookup = _lookup(layer)
        weights = getattr(lookup, "idf_weights_const", None)
        found = [lookup.get_vocabulary()]
        found += [] if weights is None else [weights]
    return [_array(value) for value in found]


def _is_as_published(layer):
    """Whether a `Normalization` was never adapted, or holds what bodies that
    were trained on ImageNet hold."""
    if not isinstance(layer, keras.layers.Normalization) or not layer.built:
        return False
    found = [
        np.ravel(_array(v)) for v in (layer.adapt_mean, layer.adapt_variance)
    ]
    return any(
        all(
            len(value) in (1, len(v))
            and np.array_equal(v, np.broadcast_to(np.float32(value), v.shape))
            for v, value in zip(found, known)
        )
        for known in _PUBLISHED
    )


def _array(value):
    if hasattr(value, "numpy"):
        # Lookups are TensorFlow's on every backend.
        return np.asarray(value.numpy())
    if keras.ops.is_tensor(value):
        return keras.ops.convert_to_numpy(value)
    return np.asarray(value)
