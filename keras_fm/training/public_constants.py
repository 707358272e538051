"""Checks that lookups and normalisations were built from public constants.
Values that `adapt` learned come from data that no ledger records."""

import keras
import numpy as np

# Mean and variance of a `Normalization` that was never adapted, and of networks
# pretrained on ImageNet that have one, with either meaning of the second.
_PUBLISHED = (
    ((0.0,), (1.0,)),
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ((0.485, 0.456, 0.406), (0.229**2, 0.224**2, 0.225**2)),
)
_CONSTANTS = {
    keras.layers.Normalization: ("mean", "variance"),
    keras.layers.Discretization: ("bin_boundaries",),
    keras.layers.IntegerLookup: ("vocabulary",),
    keras.layers.StringLookup: ("vocabulary",),
    keras.layers.TextVectorization: ("vocabulary",),
}


def check(layers):
    """Refuses layers that were adapted, or got their constants later.

    Args:
        layers: the layers of a model, flattened.

    Raises:
        ValueError: the message names the layer and shows what to write.
    """
    for layer in _whole(layers):
        found = problem(layer)
        if found:
            raise ValueError(
                f"Layer '{layer.name}' ({type(layer).__name__}) {found}."
            )


def problem(layer):
    """Why the constants of a layer do not count as public, or `None`.

    Args:
        layer: any layer. A layer without `adapt` has no problem.

    Returns:
        `None`, or str: what is missing, and what to write instead.

    Example:

    >>> problem(keras.layers.Normalization(mean=5.0, variance=2.0))
    >>> problem(keras.layers.Normalization())
    'got no `mean` and `variance` from its constructor, so it may hold ...'
    """
    own = type(layer).__module__.startswith("keras_fm.")
    if not hasattr(layer, "adapt") or hasattr(layer, "public_data") or own:
        return None
    names = _constants(layer)
    wanted = ", ".join(f"{name}=..." for name in names)
    config = layer.get_config() if names else {}
    given = names and all(config.get(name) is not None for name in names)
    # Discretization saves learned boundaries together with their number.
    if given and config.get("num_bins") is None or _is_as_published(layer):
        return None
    named = " and ".join(f"`{name}`" for name in names) or "constants"
    example = f"keras.layers.{type(layer).__name__}({wanted})"
    return (
        f"got no {named} from its constructor, so it may hold constants of "
        "private data: adapted to them, set later, or read from a file. Build "
        "it from public constants" + f" (for example `{example}`)" * bool(names)
    )


def _constants(layer):
    """Names of the arguments that a layer could also learn by `adapt`."""
    for kind, names in _CONSTANTS.items():
        if isinstance(layer, kind):
            if layer.get_config().get("output_mode") == "tf_idf":
                return (*names, "idf_weights")
            return names
    return ()


def facts(layers):
    """Facts about the constants of layers, for the statement, by layer id."""
    return {
        id(layer): "public by declaration: "
        f"{' and '.join(_constants(layer))} of layer '{layer.name}' "
        f"({type(layer).__name__})"
        for layer in _whole(layers)
        if _constants(layer)
    }


def _whole(layers):
    """The layers, without lookups that are inside another layer."""
    inner = {id(getattr(layer, "_lookup_layer", None)) for layer in layers}
    return [layer for layer in layers if id(layer) not in inner]


def _is_as_published(layer):
    """Whether a `Normalization` was never adapted, or has the constants of
    networks pretrained on ImageNet."""
    if not isinstance(layer, keras.layers.Normalization) or not layer.built:
        return False
    if layer.get_config()["mean"] is not None:
        return False
    found = [
        np.ravel(keras.ops.convert_to_numpy(v))
        for v in (layer.adapt_mean, layer.adapt_variance)
    ]
    return any(
        all(
            len(value) in (1, len(v))
            and np.array_equal(v, np.broadcast_to(np.float32(value), v.shape))
            for v, value in zip(found, known)
        )
        for known in _PUBLISHED
    )
