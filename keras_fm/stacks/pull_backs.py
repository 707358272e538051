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
        function: of one tensor, to one.
        at: tensor.

    Returns:
        a tensor, and a function of a tensor like it that may be called once.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(at)
            value = function(at)
        return value, lambda delta: tape.gradient(value, at, delta)
    if backend == "jax":
        import jax

        value, back = jax.vjp(function, at)
        return value, lambda delta: back(delta)[0]
    import torch

    with torch.enable_grad():
        at = at.detach().requires_grad_()
        value = function(at)
    return (
        value.detach(),
        lambda delta: torch.autograd.grad(value, at, delta.detach())[0],
    )
