"""FunctionalNet's own noise scale: claimed, never proven."""

import dataclasses
import functools
import math

import keras

from keras_fm.core.guarantee import PaperSettings
from keras_fm.core.planned_release import replace_one_factor
from keras_fm.kernel import checks

EXPANSION_REASON = (
    "none. Theorem 6 leaves out the sum over incoming units, and records "
    "exceed it; sums are clipped, not records; see docs/guarantees.md"
)


@keras.saving.register_keras_serializable(package="keras_fm")
@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedFunctionalNet(PaperSettings):
    """Settings of the published FunctionalNet.

    Its epsilon is claimed by the paper, not proven. Pass them to
    `keras_fm.Published(lot="data", settings=...)`. The noise is that of
    Theorem 6. (Lemma 1 scales the noise by the largest change that one record
    makes to the coefficients of the given records. That change is private
    itself: neighbouring data sets would get different noise.)

    Args:
        sum_clip: `None`, or C > 0: the sums of all layers are divided by
            `max(1, ||g||^2 / C)`, as printed.

    Raises:
        ValueError: if a value is outside its range.

    Example:

    >>> PublishedFunctionalNet(sum_clip=10).sum_clip
    10.0
    """

    sum_clip: float | None = None

    def __post_init__(self):
        checks.fields(
            self, sum_clip=functools.partial(checks.optional, checks.norm_bound)
        )


def network_expansion_sensitivity(sizes, *, neighbours):
    """S of FunctionalNet's Theorem 6: `2 (0.25^m P + P (0.1^m + 0.001625 m))`.

    P is the product of the sizes of the m layers above the inputs. As
    printed, for replace_one; half for add_remove. It is not a bound: with
    five inputs and one output in [0, 1], S is 0.70 and two records reach 1.63
    (docs/proofs/network_expansion.md).

    Args:
        sizes: units of every layer.
        neighbours: `"add_remove"` or `"replace_one"`.

    Example:

    >>> round(network_expansion_sensitivity([1], neighbours="replace_one"), 5)
    0.70325
    """
    m, product = len(sizes), math.prod(sizes)
    full = 2 * (0.25**m * product + product * (0.1**m + 0.001625 * m))
    return full * replace_one_factor(neighbours)
