"""Noise for a vector of statistics, and what mechanisms cost together.

A mechanism adds noise to a flat float64 vector. The noise is proportional to
the vector's sensitivity: how far one record can move it. The noise is exact,
on the lattice of `keras_fm.kernel.lattice_noise`. dp_accounting composes
mechanisms by their privacy loss distributions (`keras_fm.kernel.compose`).
"""

from keras_fm.kernel.access.permute_and_flip import PermuteAndFlip
from keras_fm.kernel.compose import (
    compose_epsilon,
    epsilon_with_overflow,
    transform_error,
)
from keras_fm.kernel.ledger.known_mechanisms import from_config
from keras_fm.kernel.noise_mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    Mechanism,
    NoiseSource,
    SampledGaussianMechanism,
)
from keras_fm.kernel.planning.calibration import gaussian_multiplier

__all__ = [
    "NoiseSource",
    "SampledGaussianMechanism",
    "gaussian_multiplier",
]
