"""The non-private twin of a model."""

import keras

from keras_fm.core.private_part import PrivatePart


def unprotected_twin(model):
    """A new model like this one that trains on records without protection.

    Use it for comparisons, and for the pre-training from which published AdLM
    takes its relevances. All its private parts have `unprotected=True`. Its
    weights are new, and no statement covers what is trained.

    Args:
        model: a Keras model, compiled or not.

    Returns:
        a model of the same kind, not compiled.

    Example:

    ```python
    twin = fm.models.unprotected_twin(model)
    twin.compile("adam", fm.losses.TaylorCrossEntropy())
    twin.fit(x, y, epochs=5)
    ```
    """
    config = model.get_config()
    if "unprotected" in config:
        return type(model).from_config(_unprotected(config))

    def twin(layer):
        config = layer.get_config()
        if isinstance(layer, PrivatePart) and "unprotected" in config:
            config["unprotected"] = True
        return type(layer).from_config(config)

    nested = any(isinstance(layer, keras.Model) for layer in model.layers)
    return keras.models.clone_model(
        model, clone_function=twin, recursive=nested
    )


def _unprotected(config):
    """A configuration, and those of layers in it, with `unprotected=True`."""
    if isinstance(config, dict):
        made = {key: _unprotected(value) for key, value in config.items()}
        if "unprotected" in made:
            made["unprotected"] = True
        return made
    if isinstance(config, (list, tuple)):
        return type(config)(map(_unprotected, config))
    return config
