"""Layers are after a fit what they were before, but for their weights."""

import contextlib


@contextlib.contextmanager
def kept(network):
    """Gives every layer its attributes back: a layer may keep what it was
    called with."""
    layers = list(network._flatten_layers())
    before = [dict(vars(layer)) for layer in layers]
    try:
        yield
    finally:
        for layer, kept in zip(layers, before):
            held = vars(layer)
            for name in set(held) - set(kept):
                del held[name]
            for name, value in kept.items():
                if held.get(name) is not value:
                    held[name] = value
