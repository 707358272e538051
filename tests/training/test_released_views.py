"""Views of releases: functions of what is public, that say how much of it is
signal."""

import numpy as np

from keras_fm import queries
from keras_fm.kernel import mechanisms, release
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.training import released_views

RNG = np.random.default_rng(0)


def released(signal, n=400, m=12):
    """Of records that span two directions, and little else."""
    x = 0.02 * RNG.standard_normal((n, m))
    x[:, :2] += signal * RNG.standard_normal((n, 2))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    query = queries.CrossEntropyQuery(num_features=m, num_outputs=2)
    budget = PrivacyBudget(10.0, 1e-5)
    return release.release(
        query,
        [(x, np.arange(n) % 2)],
        mechanism=release.calibrate(query, budget, neighbours="add_remove"),
        ledger=Ledger(budget, neighbours="add_remove"),
        name="head",
        noise=NoiseSource(1),
    )


def test_the_spectrum_counts_directions_of_signal():
    values, edge = released_views.spectrum(released(0.5))
    assert (np.diff(values) <= 0).all() and edge > 0
    assert int((values > edge).sum()) == 2


def test_a_release_of_noise_has_no_signal():
    stddev, ratio = released_views.signal_to_noise(released(0.0))
    assert stddev > 0 and ratio < 1
    assert released_views.signal_to_noise(released(0.5))[1] > 1


def test_pictures_are_pictures():
    found = released(0.5)
    for content in (
        released_views.draw_spectrum(found),
        released_views.draw_ratios({"head": found}),
    ):
        assert content[:4] == b"\x89PNG" and len(content) > 3000
    assert released_views.draw_ratios({}) is None
    table = released_views.table({"head": found})
    assert "| head | " in table and "2 of 12 above the noise" in table
    assert isinstance(found.mechanism, mechanisms.Mechanism)
