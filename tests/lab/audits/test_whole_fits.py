"""A fit and its neighbour's with the same past: differences and audits."""

import dataclasses

import numpy as np
import pytest

from keras_fm import queries
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import LaplaceMechanism, NoiseSource
from keras_fm.kernel.release import calibrate, release
from keras_fm.lab.audits import whole_fits, whole_models

pytestmark = [pytest.mark.once, pytest.mark.full]

BUDGET = PrivacyBudget(2.0, 1e-2)
OBJECTIVE = queries.CrossEntropyQuery(num_features=2, num_outputs=2)


def test_three_releases_of_a_fit_are_one():
    """AdLM: each difference is its sensitivity, the weights follow from what
    was released, and the noise hides all of it but epsilon."""
    found = whole_models.worst(
        "AdLM, three releases",
        BUDGET,
        neighbours="add_remove",
        reproducible_noise=1,
    )
    assert found.reaches == pytest.approx([1.0] * 3, abs=1e-3)
    assert found.same
    audit = found.audit(noise=NoiseSource(reproducible_noise=2), runs=100_000)
    assert audit.epsilon == pytest.approx(2.0, rel=1e-3)
    assert 0.7 < audit.share <= 1


@pytest.mark.parametrize(
    "name, options, place, reaches",
    [
        # The last pair: what the page of results says of owners.
        ("one release", {"owners": True}, -1, [0.8183]),
        ("one release of 200 numbers", {"owners": True}, -1, [0.9036]),
        # The second follows from noise.
        (
            "AdLM, three releases",
            {"owners": True},
            -1,
            [0.8183, 0.6386, 0.8183],
        ),
        # Both records with one label, half of the columns up.
        ("PrivateNormalization and head", {}, -2, [1.0, 1.0]),
    ],
)
def test_pairs_that_replace_come_as_far_as_they_can(
    name, options, place, reaches
):
    pairs = list(whole_models.pairs(name, neighbours="replace_one", **options))
    found = whole_models.differences(
        name,
        *pairs[place],
        BUDGET,
        neighbours="replace_one",
        reproducible_noise=1,
    )
    assert found.same
    assert found.reaches == pytest.approx(reaches, abs=1e-3)


@dataclasses.dataclass
class Fit:
    """One release, before which something may be done to the features."""

    before: object = staticmethod(lambda x: x)
    also: object = staticmethod(lambda x: 0.0)

    def __call__(self, x, y):
        ledger = Ledger(BUDGET, neighbours="add_remove")
        self.released = release(
            OBJECTIVE,
            [(self.before(x), y)],
            mechanism=calibrate(OBJECTIVE, BUDGET, neighbours="add_remove"),
            ledger=ledger,
            name="head",
            noise=NoiseSource(reproducible_noise=1),
        )
        self.weights = [self.released.linear, self.also(x)]
        return self, ledger

    def get_weights(self):
        return self.weights


def data():
    rng = np.random.default_rng(0)
    x = 0.02 * rng.normal(size=(40, 2)) + [0.5, 0.0]
    y = np.arange(40) % 2
    record = (np.array([[0.0, 1.0]]), np.array([1]))
    return tuple(map(np.concatenate, zip((x, y), record))), (x, y)


def standardised(x):
    """What a batch normalisation makes of the records, scaled to the ball."""
    x = (x - x.mean(0)) / (x.std(0) + 1e-3)
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))


def test_a_batch_normalisation_is_caught():
    """A record moves what all others are."""
    found = whole_fits.differences(Fit(), *data())
    assert found.reaches == pytest.approx([1.0]) and found.same
    found = whole_fits.differences(Fit(before=standardised), *data())
    assert found.reaches[0] > 2
    audit = found.audit(noise=NoiseSource(reproducible_noise=2), runs=20_000)
    assert audit.share > 1.3


def test_weights_that_no_release_explains_are_caught():
    found = whole_fits.differences(Fit(also=np.sum), *data())
    assert not found.same


def test_fits_that_release_otherwise_are_refused():
    class Twice(Fit):
        def __call__(self, x, y):
            if len(x) > 40:
                return super().__call__(x, y)
            LaplaceMechanism(sensitivity=1.0, epsilon=1.0).perturb(
                np.zeros(3), NoiseSource(1)
            )
            return super().__call__(x, y)

    with pytest.raises(ValueError, match="another mechanism"):
        whole_fits.differences(Twice(), *data())

    class More(Fit):
        def __call__(self, x, y):
            found = super().__call__(x, y)
            return found if len(x) > 40 else super().__call__(x, y)

    with pytest.raises(ValueError, match="there is none"):
        whole_fits.differences(More(), *data())
    both = data()
    with pytest.raises(ValueError, match="equally many releases"):
        whole_fits.differences(More(), both[1], both[0])


def test_noise_is_drawn_as_ever_afterwards():
    before = whole_fits.noise_mechanisms.Mechanism.perturb
    whole_fits.differences(Fit(), *data())
    assert whole_fits.noise_mechanisms.Mechanism.perturb is before
