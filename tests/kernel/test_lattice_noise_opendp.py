"""OpenDP's samplers as an oracle: another library, the same laws.

Needs the extra `test-opendp`. OpenDP's noise has no seed, so every run is
fresh: a two-sample test rejects at p < 1e-8, by chance once in 10^8 runs each
(14 tests: a false alarm once in seven million runs of this file).
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from keras_fm.kernel.discrete_noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    OSWords,
)
from keras_fm.kernel.lattice_noise import gaussian_release, laplace_release

dp = pytest.importorskip("opendp.prelude")
dp.enable_features("contrib")

BY_CHANCE = 1e-8
SAMPLES = 20_000
DRAWN = {
    "laplace": (dp.l1_distance, dp.m.make_laplace),
    "gaussian": (dp.l2_distance, dp.m.make_gaussian),
}
# Their tables: single values, then blocks; OpenDP takes floats.
SCALES = [0.4, 1.0, 9.5, 700.25, 3.0e6]


def theirs(law, scale, k=None):
    """Fresh samples: integers, or floats that are multiples of 2^k."""
    metric, make = DRAWN[law]
    zero, atoms = 0, dp.atom_domain(T=int)
    if k is not None:
        zero, atoms = 0.0, dp.atom_domain(T=float, nan=False)
    domain = dp.vector_domain(atoms, size=SAMPLES)
    mechanism = make(domain, metric(T=float), scale, k=k)
    return np.array(mechanism([zero] * SAMPLES))


def ours(law, scale):
    if law == "laplace":
        return DiscreteLaplace(scale)
    return DiscreteGaussian(Fraction(scale) ** 2)


def two_samples(one, two, cells=40):
    """p-value of a chi-square test in cells of about equal frequency."""
    both = np.concatenate([one, two])
    edges = np.unique(np.quantile(both, np.linspace(0, 1, cells + 1)[1:-1]))
    table = np.array(
        [
            np.bincount(np.searchsorted(edges, v), minlength=len(edges) + 1)
            for v in (one, two)
        ]
    )
    table = table[:, table.sum(axis=0) >= 10]
    return stats.chi2_contingency(table).pvalue


@pytest.mark.parametrize("law", DRAWN)
@pytest.mark.parametrize("scale", SCALES)
def test_the_same_law(law, scale):
    drawn = ours(law, scale).sample(SAMPLES, OSWords())
    assert two_samples(theirs(law, scale), drawn) > BY_CHANCE
    # The same test tells another scale from it.
    wrong = ours(law, 1.15 * scale).sample(SAMPLES, OSWords())
    assert two_samples(theirs(law, scale), wrong) < BY_CHANCE


@pytest.mark.parametrize("law", DRAWN)
def test_the_same_probabilities(law):
    """Value by value about 0, with the tails as one cell each."""
    one = theirs(law, 2.5)
    two = ours(law, 2.5).sample(SAMPLES, OSWords())
    table = [
        np.bincount(np.clip(v, -8, 8) + 8, minlength=17) for v in (one, two)
    ]
    assert stats.chi2_contingency(table).pvalue > BY_CHANCE


@pytest.mark.parametrize("law", DRAWN)
def test_the_same_noise_on_a_lattice_of_floats(law):
    """A release next to OpenDP's own on floats, in steps of 2^k: its noise
    has the scale of ours before the sensitivity pays for rounding."""
    if law == "laplace":
        release = laplace_release(sensitivity=2.0, epsilon=0.5, dimension=3)
        scale = float(release.sampler.scale)
    else:
        release = gaussian_release(
            sensitivity=2.0, noise_multiplier=2.0, dimension=3
        )
        scale = math.sqrt(release.sampler.variance_parameter)
    step = release.lattice.step
    assert 4 < scale * step < 4 * (1 + 2**-13)
    noisy = release(np.zeros(SAMPLES), OSWords())
    other = theirs(law, scale * step, k=release.lattice.exponent)
    np.testing.assert_array_equal(other % step, 0)
    assert two_samples(noisy, other) > BY_CHANCE
