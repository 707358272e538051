"""Which mechanisms a ledger or a release in a file may name."""

from keras_fm.kernel.access.permute_and_flip import PermuteAndFlip
from keras_fm.kernel.noise_mechanisms import (
    BallsInBinsMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    SampledGaussianMechanism,
)

MECHANISMS = {
    c.__name__: c
    for c in (
        BallsInBinsMechanism,
        GaussianMechanism,
        LaplaceMechanism,
        PermuteAndFlip,
        SampledGaussianMechanism,
    )
}


def from_config(config):
    """The mechanism that `Mechanism.config` describes.

    Raises:
        ValueError: if it names a mechanism that cannot vouch for its noise,
            or has other parameters than the mechanism.
    """
    config = dict(config)
    name = config.pop("mechanism", None)
    if not isinstance(name, str) or name not in MECHANISMS:
        raise ValueError(
            f"A proven entry needs one of the mechanisms {sorted(MECHANISMS)}. "
            f"Received: {name!r}"
        )
    try:
        return MECHANISMS[name](**config)
    except TypeError as e:
        raise ValueError(f"These are not parameters of a {name}: {e}") from e
