"""How many devices and processes train together, and sums over devices.

Under `tf.distribute.MirroredStrategy` every replica runs the step by itself,
on its part of the batch. Sums over all records are reduced here. JAX
(`keras.distribution.DataParallel`) has one program for all devices, whose sums
already are over the whole batch.
"""

import contextlib

import keras
from keras import ops


def processes(model):
    """How many processes train this model together."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        strategy = getattr(model, "distribute_strategy", None)
        resolver = getattr(strategy, "cluster_resolver", None)
        if resolver is None:
            return 1
        jobs = resolver.cluster_spec().as_dict()
        return sum(len(jobs.get(job, ())) for job in ("chief", "worker"))
    if backend == "jax":
        import jax

        return jax.process_count()
    if backend == "torch":
        import torch

        together = torch.distributed
        if together.is_available() and together.is_initialized():
            return together.get_world_size()
    return 1


def of_strategy(model):
    """How many replicas a fit of this model has, and whether they are those
    of a MirroredStrategy.

    Returns:
        tuple `(count, mirrored)`.
    """
    strategy = getattr(model, "distribute_strategy", None)
    count = getattr(strategy, "num_replicas_in_sync", 1)
    if count == 1:
        return 1, False
    import tensorflow as tf

    return count, isinstance(strategy, tf.distribute.MirroredStrategy)


def scope(model):
    """The scope for variables that are the same on every replica."""
    if of_strategy(model)[0] == 1:
        return contextlib.nullcontext()
    return model.distribute_strategy.scope()


def parts_of_batch(model):
    """Into how many equal parts a fit of this model divides a batch."""
    if keras.backend.backend() == "jax":
        distribution = keras.distribution.distribution()
        if distribution is None:
            return 1
        mesh = distribution.device_mesh
        return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]
    return of_strategy(model)[0]


def in_step():
    """How many replicas run the step that calls this, each by itself."""
    context = _context()
    return 1 if context is None else context.num_replicas_in_sync


def sharing_means():
    """The divisor that Keras has for means over a batch: the number of
    replicas that have a part of it."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def total(tensors):
    """Sums over the replicas of the running step, the same on each.

    Args:
        tensors: list of tensors; of one shape on all replicas.

    Returns:
        list of tensors; the given ones if there is one replica.
    """
    context = _context()
    if context is None or not tensors:
        return list(tensors)
    return list(context.all_reduce("SUM", list(tensors)))


def share(loss):
    """This replica's part of a loss that is the same on all of them.

    Gradients are added up over replicas, and Keras multiplies its logs by
    their number.
    """
    count = in_step()
    return loss if count == 1 else loss / count


def of_first(tensor):
    """A tensor on the first replica, zeros on all others."""
    context = _context()
    if context is None:
        return tensor
    first = ops.equal(context.replica_id_in_sync_group, 0)
    return ops.where(first, tensor, ops.zeros_like(tensor))


def _context():
    """TensorFlow's replica context, if several replicas run a step."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    found = tf.distribute.get_replica_context()
    if found is None or found.num_replicas_in_sync == 1:
        return None
    return found
