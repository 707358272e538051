"""The noise of a step, of the keys of its batch and the ledger's entry."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy import stats

from keras_fm.kernel.noise_mechanisms import GaussianMechanism
from keras_fm.per_example import sum_noise

pytestmark = [pytest.mark.full, pytest.mark.backend]

BACKEND = keras.backend.backend()


def drawn(keys, shape=(50, 40), mechanism=None, symmetric=None, value=0.0):
    mechanism = mechanism or GaussianMechanism(
        sensitivity=1.0, noise_multiplier=1.0
    )
    keys = np.reshape(keys, (-1, 1, 2)).astype(sum_noise.DTYPE)
    sums = [ops.full(shape, value)]
    (found,) = sum_noise.noisy(
        mechanism, sums, ops.convert_to_tensor(keys), symmetric
    )
    return ops.convert_to_numpy(found)


@pytest.mark.parametrize("keys", [[5, 6], [5, 6, 7, 8]])
@pytest.mark.parametrize("sensitivity", [0.5, 2 * 2**0.5])
def test_mean_and_variance(sensitivity, keys):
    """The noise is that of the mechanism, whatever its sensitivity is. Fixed
    keys: the test cannot fail by chance; a scale off by 10 % is rejected."""
    mechanism = GaussianMechanism(sensitivity=sensitivity, noise_multiplier=3.0)
    found = drawn(keys, (100, 200), mechanism, value=7.0)
    for scale, passes in ((1.0, True), (0.9, False), (1.1, False)):
        normal = stats.norm(7, scale * 3.0 * sensitivity)
        pvalue = stats.kstest(found.ravel(), normal.cdf).pvalue
        assert (pvalue > 1e-3) == passes


def test_symmetric_noise_has_the_density_of_the_frobenius_norm():
    # Fixed keys; 20000 draws, so a variance is off by 5 % in one of 1e6.
    found = drawn([1, 2], (20000, 3, 3), symmetric=[True])
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))
    entries = found[:, [0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
    wanted = np.diag([1, 1, 1, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(np.cov(entries.T), wanted, atol=0.05)


def test_every_word_of_the_key_counts_and_tensors_have_their_own():
    keys = [11, 500], [12, 500], [11, 900], [500, 11]
    # Words of one row could be searched: 62 bits.
    more = [[*k, 7, 8] for k in keys] + [[11, 500, 7, 9], [11, 500, 6, 8]]
    found = [drawn(k) for k in [*keys, *more]]
    found += list(drawn([7, 8], (2, 50, 40)))
    for i, first in enumerate(found):
        assert len(np.unique(first)) > 1900
        for second in found[:i]:
            # 2000 pairs: beyond 0.15 by chance in one of 1e10.
            assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.15
    np.testing.assert_array_equal(found[4], drawn([11, 500, 7, 8]))


def test_large_and_small_sums_have_their_own():
    """On JAX large ones have a draw each, and small ones one together. Fixed
    keys; 2000 pairs: beyond 0.15 by chance in one of 1e10."""
    mechanism = GaussianMechanism(sensitivity=1.0, noise_multiplier=1.0)
    keys = ops.convert_to_tensor(np.array([[[3, 4]]], sum_noise.DTYPE))
    sizes = [2000, 2**17, 2000, 2**16, 2000]
    sums = [ops.zeros((size,)) for size in sizes]
    found = [
        ops.convert_to_numpy(v) for v in sum_noise.noisy(mechanism, sums, keys)
    ]
    assert [len(v) for v in found] == sizes
    for i, first in enumerate(found):
        pvalue = stats.kstest(first, stats.norm(0, 1).cdf).pvalue
        assert pvalue > 1e-3
        for second in found[:i]:
            pairs = first[:2000], second[:2000]
            assert abs(np.corrcoef(*pairs)[0, 1]) < 0.15


@pytest.mark.skipif(BACKEND == "jax", reason="float64 in another process")
def test_noise_is_as_fine_as_what_it_hides():
    """float32 noise on float64 sums told which of two sums it was: what is
    left without the right one has 24 bits."""
    mechanism = GaussianMechanism(sensitivity=1.0, noise_multiplier=3.0)
    keys = np.array([[[3, 4]]]).astype(sum_noise.DTYPE)
    sums = [ops.full((40,), 0.1, dtype="float64")]
    (made,) = sum_noise.noisy(mechanism, sums, ops.convert_to_tensor(keys))
    assert keras.backend.standardize_dtype(made.dtype) == "float64"
    found = (ops.convert_to_numpy(made) - 0.1) / 3.0
    off = abs(found.astype("float32") - found) / abs(found)
    assert np.median(off) > 1e-9
