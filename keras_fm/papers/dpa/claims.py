"""dPA's own noise scale of an auto-encoder: claimed, never proven."""

import dataclasses

import keras

from keras_fm.core.guarantee import PaperSettings
from keras_fm.core.planned_release import replace_one_factor
from keras_fm.kernel import checks

RECONSTRUCTION_REASON = (
    "none. The codes depend on the encoder's weights, so the coefficients "
    "change at every step, and every step uses the exact coefficients of its "
    "batch; see docs/guarantees.md"
)


@keras.saving.register_keras_serializable(package="keras_fm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedDPA(PaperSettings):
    """Settings of the published dPA, whose epsilon is claimed, not proven.

    Pass them to `keras_fm.models.DeepPrivateAutoencoder(guarantee=...)`, or
    for a model of your own to `keras_fm.Published(lot=..., settings=...)`.

    Args:
        noise_on: `"coefficients"`: noise on the coefficients of the
            reconstruction, as printed. `"hidden"`: noise on the codes, as in
            the authors' code.

    Raises:
        ValueError: if a value is unknown.

    Example:

    >>> PublishedDPA().noise_on
    'coefficients'
    """

    noise_on: str = "coefficients"

    def __post_init__(self):
        checks.one_of("noise_on", self.noise_on, ("coefficients", "hidden"))


def reconstruction_sensitivity(visible, units, *, neighbours):
    """Delta = d (b + b^2 / 4) of an auto-encoder's coefficients.

    It is an L1 norm, for codes in [0, 1]^b and visible units in [0, 1]^d, as
    printed (dPA Lemma 2). Half for add_remove.

    Example:

    >>> reconstruction_sensitivity(784, 100, neighbours="replace_one")
    2038400.0
    """
    full = float(visible * (units + units**2 / 4))
    return full * replace_one_factor(neighbours)
