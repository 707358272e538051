"""A layer whose config is what it was made with."""

import dataclasses
import inspect

import keras


class ConfiguredLayer(keras.layers.Layer):
    """Keeps each argument of its constructor in an attribute of the same
    name, and `get_config` writes them."""

    def get_config(self):
        names = dict.fromkeys(
            name
            for kind in type(self).__mro__
            if issubclass(kind, ConfiguredLayer) and "__init__" in vars(kind)
            for name, given in inspect.signature(
                kind.__init__
            ).parameters.items()
            if given.kind is given.POSITIONAL_OR_KEYWORD and name != "self"
        )
        own = {n: _plain(getattr(self, n)) for n in names if hasattr(self, n)}
        return {**super().get_config(), **own}


def _plain(value):
    """A value as Keras writes it."""
    if isinstance(value, keras.initializers.Initializer):
        return keras.initializers.serialize(value)
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return dict(value)
    return keras.activations.serialize(value) if callable(value) else value
