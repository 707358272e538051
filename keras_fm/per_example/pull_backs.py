"""Derivatives by the backend: of the functions between two layers with weights,
and of a convolution by its kernel.

If a function treats records one by one, the derivative at a record depends on
that record alone.
"""

import keras


def pull_back(function, at):
    """`function(at)`, and the map from derivatives by it to derivatives by
    `at`.

    In a compiled step, an unused result is not computed.

    Args:
        function: of a tensor or a list of them; returns a tensor, and further
            results that are not differentiated.
        at: tensor, or a list of them.

    Returns:
        the two results, and a function of a tensor like the first, which may be
        called once.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(at)
            value, met = function(at)
        return (value, met), lambda delta: tape.gradient(value, at, delta)
    if backend == "jax":
        import jax

        value, back, met = jax.vjp(function, at, has_aux=True)
        return (value, met), lambda delta: back(delta)[0]
    import torch

    def watched(tensor):
        return tensor.detach().requires_grad_()

    with torch.enable_grad():
        at = keras.tree.map_structure(watched, at)
        value, met = function(at)

    def back(delta):
        flat = keras.tree.flatten(at)
        found = torch.autograd.grad(value, flat, delta.detach())
        return keras.tree.pack_sequence_as(at, list(found))

    def detached(tensor):
        return None if tensor is None else tensor.detach()

    met = keras.tree.map_structure(detached, met)
    return (value.detach(), met), back
