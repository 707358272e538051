"""A batch in pieces, for JAX on one processor."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.public.pieces import in_pieces


@pytest.mark.parametrize(("n", "size"), [(6, 1), (6, 3), (6, 4), (6, 6)])
def test_pieces_give_what_the_batch_gives(n, size):
    seen = []

    def map_(x):
        seen.append(x.shape[0])
        return ops.cumsum(ops.square(x), axis=1)[:, :, None]

    x = np.random.default_rng(0).random((n, 5), np.float32)
    found = ops.convert_to_numpy(
        in_pieces(map_, ops.convert_to_tensor(x), size)
    )
    np.testing.assert_allclose(found[..., 0], np.cumsum(x * x, 1), atol=1e-6)
    jax = keras.backend.backend() == "jax"
    alone = jax and len(keras.distribution.list_devices()) == 1
    on_processor = alone and keras.distribution.list_devices("cpu")
    assert set(seen) == {size if on_processor and n % size == 0 else n}
