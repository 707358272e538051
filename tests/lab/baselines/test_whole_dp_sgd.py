"""DP-SGD of the library that goes with the backend, as one release.

Seeds are fixed: coins, samples and noise. An audit without a fault is above
the claim in at most one of a hundred.
"""

import importlib.util

import broken_dp_sgd
import keras
import pytest

from keras_fm.lab.baselines import DPSGDClassifier, JaxDPSGDClassifier

pytestmark = [pytest.mark.full, pytest.mark.backend]

# Library, its package and class, by backend.
LIBRARIES = {
    "tensorflow": ("tensorflow_privacy", DPSGDClassifier),
    "jax": ("jax_privacy", JaxDPSGDClassifier),
}
# Canaries of one fit, each with a feature of its own: jax-privacy has the
# gradient of every record, of as many numbers.
LANES = 512 if keras.backend.backend() == "jax" else 2048


@pytest.fixture(scope="module")
def library():
    package, library = LIBRARIES.get(keras.backend.backend(), ("none", None))
    if importlib.util.find_spec(package) is None:
        pytest.skip("needs a library of DP-SGD for this backend")
    return library


def test_the_whole_comes_near_epsilon_and_stays_below(library):
    found = broken_dp_sgd.bound(library, 1, lanes=LANES)
    assert found.epsilon == pytest.approx(1.0, rel=1e-3)
    assert 0.5 < found.share <= 1
    assert found.reach == pytest.approx(1, rel=1e-6)


def test_so_does_that_of_samples(library):
    found = broken_dp_sgd.audit_dp_sgd(
        library,
        broken_dp_sgd.BUDGET,
        steps=8,
        runs=8192,
        lanes=LANES,
        sampling_rate=0.5,
        seed=1,
    )
    assert 0.4 < found.share <= 1
    assert found.reach == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("fault", broken_dp_sgd.FAULTS)
def test_faults_are_caught(library, fault):
    broken = broken_dp_sgd.with_fault(library, fault)
    assert broken_dp_sgd.bound(broken, 1, lanes=LANES).share > 1
