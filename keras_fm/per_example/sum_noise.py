"""The noise of a step, made of the ledger's entry."""

import keras
import numpy as np
from keras import ops

from keras_fm.parts import replicas


class SumNoise:
    """Adds the noise that an entry of the ledger charges to sums.

    Args:
        mechanism: the mechanism of the entry; its sensitivity is in units of
            the sums.
    """

    def __init__(self, mechanism):
        self._stddev = float(mechanism.stddev)

    def __repr__(self):
        return "<SumNoise>"

    def added_to(self, sums, keys):
        """Noisy sums, the same on all replicas.

        Args:
            sums: list of float32 tensors over the records of this replica.
            keys: `(rows, streams, 2)`, the keys of a batch; nothing else is
                drawn from the first stream.
        """
        sizes = [int(np.prod(v.shape)) for v in sums]
        noise = replicas.of_first(
            self._stddev * _normal(sum(sizes), keys[:, 0])
        )
        found, start = [], 0
        for value, size in zip(sums, sizes):
            part = ops.reshape(noise[start : start + size], value.shape)
            found.append(value + part)
            start += size
        return replicas.total(found)


def _normal(size, keys):
    """Standard normal numbers from the first keys of a batch."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        words = ops.cast(keys[0], "uint32")
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
        return jax.random.normal(key, (size,), "float32")
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.random.stateless_normal((size,), keys[0])
    # PyTorch's generator reduces a seed to 32 bits, which can be searched
    # through: NumPy's takes the words of all rows.
    words = ops.convert_to_numpy(keys).ravel().tolist()
    seed = np.random.SeedSequence(words)
    rng = np.random.Generator(np.random.Philox(seed))
    return ops.convert_to_tensor(rng.standard_normal(size, "float32"))
