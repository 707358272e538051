"""Layers that mix the records of a batch, and what to put in their place."""

import keras

ADVICE = (
    "Write `keras.layers.GroupNormalization(groups=-1)` or "
    "`keras.layers.LayerNormalization()`, freeze it (`layer.trainable = "
    "False`) if it was pretrained on public data, or let "
    "`keras_fm.make_private(model, fix=True)` train a mended copy."
)


def must_change(model):
    """The layers of a model that learn from a whole batch."""
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
    ]


def check(model):
    """Refuses what is no Keras model, and layers that must change.

    Raises:
        ValueError: naming them all.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            "`model` must be a `keras.Model`. Received: model="
            f"{type(model).__name__}"
        )
    for layer in model._flatten_layers():
        if type(layer).__name__ == "TorchModuleWrapper":
            raise ValueError(
                f"'{layer.name}' (TorchModuleWrapper) trains weights of its "
                "own, which no gradient of a record reaches. Write the module "
                "as Keras layers."
            )
    found = must_change(model)
    if found:
        names = ", ".join(f"'{layer.name}'" for layer in found)
        raise ValueError(
            f"Batch normalization mixes the records of a batch: {names}. "
            + ADVICE
        )


def copy_of(model):
    """A copy of a sequential or functional model without such layers.

    Returns:
        the copy, and a list of str, what was changed.
    """
    changes = []
    sources = {}

    def cloned(layer):
        config = layer.get_config()
        if (
            isinstance(layer, keras.layers.BatchNormalization)
            and layer.trainable
        ):
            changes.append(
                f"'{layer.name}': BatchNormalization became "
                "GroupNormalization(groups=-1)"
            )
            return keras.layers.GroupNormalization(
                groups=-1,
                axis=config["axis"],
                epsilon=config["epsilon"],
                center=config["center"],
                scale=config["scale"],
                name=layer.name,
            )
        made = type(layer).from_config(config)
        sources[id(made)] = (made, layer)
        return made

    try:
        made = keras.models.clone_model(
            model, clone_function=cloned, recursive=True
        )
    except ValueError:
        lines = [
            f"self.{layer.name} = keras.layers.GroupNormalization(groups=-1)"
            for layer in must_change(model)
        ]
        raise ValueError(
            "`fix=True` is for sequential and functional models. In "
            f"{type(model).__name__} write in the place of each "
            "BatchNormalization: " + "; ".join(lines)
        ) from None
    for copy, layer in sources.values():
        if layer.built and copy.built:
            copy.set_weights(layer.get_weights())
    return made, changes
