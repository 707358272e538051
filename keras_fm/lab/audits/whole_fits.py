"""A whole fit, told from the fit of a neighbour by all that it releases.

A fit runs on D. Then it runs on a neighbour D', where every noisy sum is
answered as on D: both fits have the same past, as the adversary sees it, and
what the two would have added noise to is what a record changes, release by
release, however much a later one depends on those before. Two things follow:

* a fit that is a function of its releases alone ends with the same weights;
* the noise of its own mechanisms, drawn as a fit draws it, hides no more than
  the best test of these differences leaves (`releases_epsilon`), which is
  compared with the epsilon that the fit's own ledger composes.

What is read here are exact statistics: of records that were made up for the
audit, never of others.
"""

import contextlib
import dataclasses
import math
from unittest import mock

import numpy as np

from keras_fm.kernel import mechanisms as mechanisms_lib
from keras_fm.kernel import noise_mechanisms
from keras_fm.lab.auditing.objective import ObjectiveAudit, composed
from keras_fm.lab.auditing.white_box import releases_epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class Differences:
    """What one record changes in a fit, by releases.

    Attributes:
        releases: list of `(mechanism, difference)`, the vectors of D minus
            those of D' where both have the same past.
        same: whether both fits ended with the same weights.
        ledger: of the fit on D.
    """

    releases: list
    same: bool
    ledger: object

    @property
    def reaches(self):
        """List of distances over sensitivities: 1 for a worst pair."""
        return [
            float(np.linalg.norm(difference, 1 if m.norm == "l1" else 2))
            / m.sensitivity
            for m, difference in self.releases
        ]

    @property
    def distance(self):
        """Of the Gaussian test that all releases are together."""
        return math.sqrt(
            sum(
                (reach / m.noise_multiplier) ** 2
                for reach, (m, _) in zip(self.reaches, self.releases)
            )
        )

    def audit(self, *, noise, runs=None):
        """Lower bound on the epsilon of the whole, an `ObjectiveAudit`;
        `reach` is the least of `reaches`.

        Args:
            noise, runs: see
                `auditing.white_box.releases_epsilon`.
        """
        budget = self.ledger.budget
        return ObjectiveAudit(
            epsilon=composed(self.ledger),
            delta=budget.delta,
            bound=releases_epsilon(
                self.releases,
                noise=noise,
                delta=budget.delta,
                runs=runs,
            ),
            reach=min(self.reaches),
        )


def differences(fit, data, neighbour):
    """What the neighbours differ by in each release of a fit.

    Args:
        fit: function from arrays to `(model, ledger)`; called twice, it must
            begin with the same weights.
        data, neighbour: tuples of arrays.

    Returns:
        A `Differences`.

    Raises:
        ValueError: if both fits do not release as often, by the same
            mechanisms.
    """
    with _heard([], None) as heard:
        model, ledger = fit(*data)
    weights = [np.array(w) for w in model.get_weights()]
    with _heard([], heard) as again:
        model, _ = fit(*neighbour)
    if len(heard) != len(again):
        raise ValueError(
            "Both fits must make equally many releases, or their number would "
            f"tell them apart. Received: {len(heard)} and {len(again)} "
            "releases"
        )
    others = [np.array(w) for w in model.get_weights()]
    return Differences(
        releases=[
            (_one_round(one.mechanism), (one.exact - other.exact).ravel())
            for one, other in zip(heard, again)
        ],
        same=all(map(np.array_equal, weights, others)),
        ledger=ledger,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Heard:
    mechanism: object
    exact: np.ndarray
    noisy: np.ndarray


def _one_round(mechanism):
    """The mechanism of one round."""
    if not isinstance(mechanism, mechanisms_lib.SampledGaussianMechanism):
        return mechanism
    if mechanism.sampling_rate < 1:
        raise ValueError(
            "Rounds on samples cannot be compared one by one: each has "
            "another sample. See `whole_rounds`."
        )
    return mechanisms_lib.GaussianMechanism(
        sensitivity=mechanism.sensitivity,
        noise_multiplier=mechanism.noise_multiplier,
    )


@contextlib.contextmanager
def _heard(found, answers):
    """Keeps what noise is added to; with `answers` says what was said then."""
    perturb = noise_mechanisms.Mechanism.perturb

    def heard(self, exact, source, **kwargs):
        exact = np.array(exact, np.float64)
        if answers is None:
            noisy = perturb(self, exact, source, **kwargs)
        else:
            noisy = _answer(answers, len(found), self, exact)
        found.append(_Heard(mechanism=self, exact=exact, noisy=noisy))
        return noisy.copy()

    with mock.patch.object(noise_mechanisms.Mechanism, "perturb", heard):
        yield found


def _answer(answers, place, mechanism, exact):
    if place < len(answers):
        said = answers[place]
        if said.mechanism == mechanism and said.exact.shape == exact.shape:
            return said.noisy
    raise ValueError(
        f"Release {place + 1} of the neighbour has another mechanism or "
        f"shape than that of the data, or there is none. Received: {mechanism}"
    )
