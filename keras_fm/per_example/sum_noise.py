"""The noise of a step, from the ledger's entry and the keys of a batch.

Every noisy sum on a device comes from here.
"""

import functools
import math

import keras
import numpy as np

from keras_fm.core import replicas
from keras_fm.per_example import direct_ops as ops

# Key words are below 2^31, since TensorFlow's streams take signed ones.
WORD = 2**31 - 2
# Size from which JAX draws the noise of a sum separately.
_LARGE = 2**16
DTYPE = "int64" if keras.backend.backend() == "torch" else "int32"


def noisy(mechanism, sums, keys, symmetric=None):
    """Sums with the noise that an entry of the ledger charges, the same on
    all replicas.

    Args:
        mechanism: the mechanism of the entry, a `GaussianNoise`; its
            sensitivity is in the units of the sums together.
        sums: list of tensors of one dtype, over the records of this replica.
        keys: `(rows, streams, 2)` secret words, drawn for this step, of at
            least two rows; the first stream is used for nothing else. Or, for
            correlated noise, a list of pairs of a weight and such words.
        symmetric: `None`, or for each tensor whether its last two axes form a
            symmetric matrix. Its noise has independent entries of variance 1 on
            the diagonal and 1/2 above, so that the density depends on the
            Frobenius norm only.

    Returns:
        list of tensors.
    """
    sizes = [int(np.prod(v.shape)) for v in sums]
    dtype = keras.backend.standardize_dtype(sums[0].dtype)
    if not isinstance(keys, list):
        drawn = _normal(sizes, keys, dtype)
    else:
        steps = [
            [weight * part for part in _normal(sizes, own, dtype)]
            for weight, own in keys
        ]
        drawn = [sum(parts[1:], parts[0]) for parts in zip(*steps)]
    found = []
    for index, (value, part) in enumerate(zip(sums, drawn)):
        part = replicas.of_first(mechanism.device_noise(part))
        part = ops.reshape(part, value.shape)
        if symmetric is not None and symmetric[index]:
            axes = (*range(len(part.shape) - 2), -1, -2)
            axes = [axis % len(part.shape) for axis in axes]
            part = (part + ops.transpose(part, axes)) / 2
        found.append(value + part)
    return replicas.total(found)


def keys_of_steps(keys, weights):
    """Keys of the records of a batch, and those of its noise, see `noisy`.

    Args:
        keys: `(rows, streams, 2)` words of `OrderedSamples`; the last streams
            are for the noise of earlier steps, zeros if there are none.
        weights: of the `CorrelatedNoise`, one for each of these steps.
    """
    own = keys.shape[1] - len(weights) + 1
    pairs = [(weights[0], keys)]
    for place, weight in enumerate(weights[1:], own):
        past = keys[:, place : place + 1]
        there = ops.cast(ops.any(past > 0), "float32")
        pairs.append((weight * there, past))
    return keys[:, :own], pairs


def _normal(sizes, keys, dtype):
    """Vectors of standard normal numbers from the first keys of a batch. They
    have the precision of the sums, since coarser noise would show itself."""
    if keras.backend.backend() == "jax":
        return _normal_of_jax(sizes, keys, dtype)
    half = -(-sum(sizes) // 2)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Compiled, Threefry is faster; not compiled, there is none.
        eagerly = tf.config.functions_run_eagerly()
        alg = "philox" if eagerly else "threefry"
        drawn = functools.partial(
            tf.random.stateless_uniform, (2, half), dtype=dtype, alg=alg
        )
        flat = _of_two(tf.function(drawn, jit_compile=True), keys)
    else:
        import torch

        # PyTorch's generator reduces a seed to 32 bits, which an attacker can
        # search. NumPy's takes the words of several rows.
        words = ops.convert_to_numpy(keys)[:4, 0].ravel().tolist()
        seed = np.random.SeedSequence(words)
        rng = np.random.Generator(np.random.Philox(seed))
        flat = torch.from_numpy(rng.random((2, half), dtype)).to(keys.device)
    # By Box and Muller, as TensorFlow does. TensorFlow's and NumPy's own normal
    # numbers take twice as long.
    radius, angle = ops.sqrt(-2 * ops.log(1 - flat[0])), 2 * np.pi * flat[1]
    found = [radius * ops.cos(angle), radius * ops.sin(angle)]
    ends = np.cumsum([*sizes, 2 * half - sum(sizes)])[:-1]
    return ops.split(ops.concatenate(found), ends.tolist())[:-1]


def _of_two(drawn, keys):
    """Uniform numbers in [0, 1), added up from the words of two rows: the 62
    bits of one can be searched."""
    found = drawn(keys[0, 0]) + drawn(keys[-1, 0])
    return found - ops.floor(found)


def _normal_of_jax(sizes, keys, dtype):
    import jax

    # Large tensors are drawn separately, since splitting one vector takes
    # longer. Small ones share a draw, since every draw takes as long to compile
    # as a layer.
    large = [n for n in sizes if n >= _LARGE]
    small = [n for n in sizes if n < _LARGE]

    def normal(place, size):
        def drawn(words):
            words = ops.cast(words, "uint32")
            key = jax.random.wrap_key_data(words, impl="threefry2x32")
            own = jax.random.fold_in(key, place)
            return jax.random.uniform(own, (size,), dtype)

        # As JAX does, whose normal numbers take one key.
        least = np.nextafter(np.array(-1, dtype), 0)
        found = jax.numpy.maximum(2 * _of_two(drawn, keys) - 1, least)
        return math.sqrt(2) * jax.lax.erf_inv(found)

    # Two numbers of each block of Threefry; otherwise JAX takes one, so that
    # devices may share the work.
    with jax.threefry_partitionable(False):
        flat = normal(0, sum(small))
        parts = iter(ops.split(flat, np.cumsum(small).tolist()))
        others = iter([normal(i, n) for i, n in enumerate(large, 1)])
    return [next(others if n >= _LARGE else parts) for n in sizes]
