"""The plan of a private part: releases that are proven, or noise that is
claimed. All of them are charged and drawn in the same way."""

import collections.abc
import dataclasses

from keras_fm.kernel.access.sampling import SamplingPlan
from keras_fm.kernel.budget import Neighbours

# How often published noise is drawn.
NOISE = ("once", "per_step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """One release of a plan.

    Attributes:
        name: its purpose; its share of the budget has this name.
        query: the query that is released with noise.
        clip: whether records outside their bounds are scaled back.
        read: function from nothing to an iterator of what the query
            accumulates.
        learn: function that takes the release.
        samples: `None` for one round over all records, or the samples of
            several rounds.
        mechanism: `None` (calibrated to the share), or the mechanism.
        entry: `None`, or a function from the ledger's entry to the one that
            is charged.
        prepare: `None`, or a function that is called after the releases
            before this one were learned. It takes this planned release and
            gives the one that is carried out, of the same sensitivity.
        carry_out: `None` for one round over what `read` gives, or a function
            that takes this planned release and the other arguments of a
            charge, reads records, and returns a release.
    """

    name: str
    query: object
    clip: bool = False
    read: collections.abc.Callable | None = None
    learn: collections.abc.Callable
    samples: SamplingPlan | None = None
    mechanism: object | None = None
    entry: collections.abc.Callable | None = None
    prepare: collections.abc.Callable | None = None
    carry_out: collections.abc.Callable | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedNoise:
    """One perturbation of a published fit.

    Attributes:
        name: its purpose; its share of the budget has this name.
        sensitivity: the paper's, or a function of what `read` found.
        uses, reason: for the ledger, see `LedgerEntry`.
        fix: function of the Laplace scale and of `laplace(scale, shape)` that
            fixes the noise. With `read` it also takes what that found.
        read: `None`, or a function that reads the records once.
        per_lot: whether the noise is divided by the lot size.
    """

    name: str
    sensitivity: float | collections.abc.Callable
    uses: str
    reason: str
    fix: collections.abc.Callable
    read: collections.abc.Callable | None = None
    per_lot: bool = True


def replace_one_factor(neighbours):
    """The factor for a sensitivity that a paper states: its factor 2 belongs
    to the replace_one relation."""
    return 1.0 if Neighbours.of(neighbours).replaces else 0.5
