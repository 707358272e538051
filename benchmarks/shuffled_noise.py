"""The noise of a published `DPMAC` on shuffled batches for its claim."""

from keras_fm.kernel import sampling
from keras_fm.kernel.budget import PrivacyBudget

_SIZE = 1000


def multiplier(batches, epochs, epsilon, delta):
    """Its noise multiplier, for batches of 1,000."""
    reads = sampling.plan(
        _SIZE * batches,
        sampling="shuffled",
        batch_size=_SIZE,
        steps=batches * epochs,
        delta=delta,
    )
    return sampling.noise_multiplier(
        reads, PrivacyBudget(epsilon, delta), neighbours="add_remove"
    )
