"""Derivatives by the backend's own differentiation: of what stands between two
layers with weights, and of a convolution by its kernel.

Where a function treats records one by one, what comes back to a record is a
function of that record alone.
"""

import keras


def pull_back(function, at):
    """`function(at)`, and what takes derivatives by it to derivatives by `at`.

    In a compiled step, what is not used of the two is not computed.

    Args:
        function: of a tensor or a list of them, to a tensor and what else it
            met, which nothing is differentiated through.
        at: tensor, or a list of them.

    Returns:
        the two, and a function of a tensor like the first that may be called
        once.
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
