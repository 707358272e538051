"""Frozen layers that still have their random initial weights."""

import numpy as np
from keras import ops

from keras_fm.core.private_part import PrivatePart

_NAMED = 4


def noted(plan, model):
    """The text of a plan, and a line that names those layers, if any.

    An initializer without a seed draws one when it is made, and gives the
    same numbers at every call. So in the process that built a layer this is
    exact. Layers from a file are not named.
    """
    names = [
        f"'{layer.name}'"
        for layer in model._flatten_layers(include_self=False)
        if _is_random(layer)
    ]
    if not names:
        return plan
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"{plan}\n  note: frozen with their random initial weights: "
        f"{', '.join(names[:_NAMED])}{more}. Load pretrained weights, unless "
        "you want random features"
    )


def _is_random(layer):
    kernel = getattr(layer, "kernel", None)
    draw = getattr(layer, "kernel_initializer", None)
    if kernel is None or not isinstance(getattr(draw, "seed", None), int):
        return False
    if isinstance(layer, PrivatePart) or any(
        v.trainable for v in layer.weights
    ):
        return False
    drawn = draw(kernel.shape, dtype=kernel.dtype)
    return np.array_equal(
        ops.convert_to_numpy(drawn), ops.convert_to_numpy(kernel)
    )
