"""Layers that a private step cannot train, and their replacements."""

import keras

_BATCH = keras.layers.BatchNormalization
_SPECTRAL = keras.layers.SpectralNormalization
_ADVICE = {
    _BATCH: "Batch normalization mixes the records of a batch: {}. Write "
    "`keras.layers.GroupNormalization(groups=-1)` or `keras.layers."
    "LayerNormalization()`, freeze it (`layer.trainable = False`) if it was "
    "pretrained on public data,",
    _SPECTRAL: "Spectral normalization changes weights during a call, and a "
    "private step does not keep such changes: {}. Use the wrapped layer by "
    "itself,",
}
_MENDED = "or let `keras_fm.make_private(model, fix=True)` train a mended copy."


def must_change(model):
    """The layers of a model that learn from a whole batch, or that assign
    weights in training, which a step would lose."""
    return [layer for kind in _ADVICE for layer in _trained(model, kind)]


def _trained(model, kind):
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, kind) and layer.trainable
    ]


def advice(model):
    """Lines of text: what to write instead of layers that must change."""
    found = {kind: _trained(model, kind) for kind in _ADVICE}
    return [
        _ADVICE[kind].format(", ".join(f"'{v.name}'" for v in layers))
        + f" {_MENDED}"
        for kind, layers in found.items()
        if layers
    ]


def check(model):
    """Refuses layers that must change, and anything but a Keras model.

    Raises:
        ValueError: names them all.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            "`model` must be a `keras.Model`. Received: model="
            f"{type(model).__name__}"
        )
    for layer in model._flatten_layers():
        if type(layer).__name__ == "TorchModuleWrapper":
            raise ValueError(
                f"'{layer.name}' (TorchModuleWrapper) has trainable weights, "
                "and gradients of single records cannot be computed for them. "
                "Write the module as Keras layers."
            )
        states = keras.tree.flatten(getattr(layer, "states", None) or ())
        if getattr(layer, "stateful", False) and any(
            state.shape[0] != 1 for state in states
        ):
            raise ValueError(
                f"'{layer.name}' keeps a state from batch to batch, but a "
                "private step treats each record by itself. Leave out "
                "`stateful=True` and `batch_shape=`."
            )
    lines = advice(model)
    if lines:
        raise ValueError("\n".join(lines))


def copy_of(model):
    """A copy of a sequential or functional model with replaced layers.

    Returns:
        the copy, and a list of str, the changes.
    """
    changes = []
    sources = {}

    def cloned(layer):
        if isinstance(layer, _BATCH) and layer.trainable:
            config = layer.get_config()
            shape = (layer.get_build_config() or {}).get("input_shape", ())
            # With one number a channel, as after `Dense`, it would become 0.
            axis = config["axis"] % max(len(shape), 1)
            alone = all(n == 1 for n in (*shape[1:axis], *shape[axis + 1 :]))
            groups = 1 if alone else -1
            changes.append(
                f"'{layer.name}': BatchNormalization became "
                f"GroupNormalization(groups={groups})"
            )
            kept = ("axis", "epsilon", "center", "scale", "name")
            return keras.layers.GroupNormalization(
                groups=groups, **{name: config[name] for name in kept}
            )
        if isinstance(layer, _SPECTRAL) and layer.trainable:
            changes.append(
                f"'{layer.name}': SpectralNormalization became the layer that "
                "it wraps"
            )
            layer = layer.layer
        elif getattr(layer, "built", True) and not getattr(
            layer, "variables", ()
        ):
            # Operations, `Lambda` and the like: some have no config.
            return layer
        made = type(layer).from_config(layer.get_config())
        sources[id(made)] = (made, layer)
        return made

    def called(layer, *args, **kwargs):
        if isinstance(layer, keras.layers.GroupNormalization):
            # An argument that the graph passes to BatchNormalization.
            kwargs.pop("mask", None)
        return layer(*args, **kwargs)

    sequential = isinstance(model, keras.Sequential)
    try:
        made = keras.models.clone_model(
            model,
            clone_function=cloned,
            call_function=None if sequential else called,
            recursive=True,
        )
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ValueError(_own_work(model)) from error
    for copy, layer in sources.values():
        if layer.built and layer.variables:
            if not copy.built:
                copy.build_from_config(layer.get_build_config())
            copy.set_weights(layer.get_weights())
    if must_change(made):
        raise ValueError(_own_work(made))
    return made, changes


def _own_work(model):
    """The advice for models that cannot be copied."""
    lines = [
        f"self.{layer.name} = keras.layers.GroupNormalization(groups=-1)"
        for layer in _trained(model, _BATCH)
    ]
    return (
        "`fix=True` is for sequential and functional models of layers that "
        "have a `get_config`, and does not change layers inside other layers. "
        f"In {type(model).__name__}, replace each BatchNormalization by hand: "
        + "; ".join(lines)
    )
