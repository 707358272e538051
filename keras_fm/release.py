"""The only code that reads private records: plan, check, read, charge, noise.

`release` makes one streaming pass, charges the ledger and returns a
`Release`: statistics with their noise already added, safe to save, publish
and train on for ever.
"""

import dataclasses
import json
import math

import numpy as np

from keras_fm import budget as budget_lib
from keras_fm import (
    discrete_noise,
    objectives,
    records,
    stored_arrays,
    summation,
)
from keras_fm import mechanisms as mechanisms_lib
from keras_fm.ledger_entry import LATTICE, LedgerEntry
from keras_fm.partial_statistics import PartialStatistics

_LARGEST_PUBLIC = 1_000_000


def planned_entry(
    objective,
    mechanism,
    *,
    ledger,
    name,
    noise,
    notes=(),
    drawn=LATTICE,
):
    """The `LedgerEntry` a release of `objective` is charged with.

    Args:
        objective, mechanism, ledger, name, noise, notes: see `release`.
        drawn: how the noise is drawn, see `LedgerEntry.noise`.
    """
    return LedgerEntry(
        name=name,
        guarantee="proven",
        neighbours=str(ledger.neighbours),
        mechanism=mechanism.config(),
        reads=objective.reads,
        proof=objective.proof,
        private=not noise.reproducible,
        noise=drawn,
        notes=tuple(notes),
    )


def calibrate(objective, budget, *, neighbours, share=1.0):
    """The mechanism that spends `share` of `budget` on `objective`.

    delta > 0: Gaussian noise. delta = 0: Laplace noise.

    Args:
        objective: what is released (gives sensitivities).
        budget: a `PrivacyBudget`.
        neighbours: the relation.
        share: this release's share in (0, 1]; shares of a plan sum to one.

    Returns:
        A `Mechanism`.
    """
    if budget.delta > 0:
        multiplier = mechanisms_lib.gaussian_multiplier(
            budget.epsilon, budget.delta
        )
        return mechanisms_lib.GaussianMechanism(
            sensitivity=objective.sensitivity("l2", neighbours=neighbours),
            noise_multiplier=multiplier / math.sqrt(share),
        )
    return mechanisms_lib.LaplaceMechanism(
        sensitivity=objective.sensitivity("l1", neighbours=neighbours),
        epsilon=budget.epsilon * share,
    )


def release(
    objective, batches, *, mechanism, ledger, name, noise, clip=False, notes=()
):
    """Reads the records once and returns their perturbed statistics.

    The order is: check the ledger (a refusal reads nothing), accumulate in
    float64, charge the ledger, draw the noise. Memory does not depend on
    the number of records. The noise covers what rounding may do to their
    sum (docs/proofs/lattice_noise.md).

    Args:
        objective: an objective of `keras_fm.objectives`.
        batches: iterable of what the objective accumulates, such as
            `(features, labels)`; consumed once, by the calling thread, while
            another one sums what was read before.
        mechanism: from `calibrate`.
        ledger: the `Ledger` to charge; its relation is the one the
            mechanism's sensitivity must refer to.
        name: what the release is for.
        noise: a `NoiseSource`.
        clip: whether records outside the bounds are scaled back instead of
            refused.
        notes: public facts for the ledger entry.

    Returns:
        A `Release`.

    Raises:
        BudgetExceededError: before anything is read.
        ValueError: if a record is invalid, or there are more than 2^30;
            nothing was charged then.
    """
    if isinstance(mechanism, mechanisms_lib.SampledGaussianMechanism):
        raise ValueError(
            "A release reads every record, so it cannot be accounted as a "
            "sample of them. Use the mechanism of `calibrate`."
        )
    entry = checked_entry(objective, mechanism, ledger, name, noise, notes)
    partial = _summed(objective, batches, clip)
    try:
        return _perturbed(partial, mechanism, ledger, entry, noise)
    finally:
        # A crash report that holds local variables must not hold these.
        del partial


def release_statistics(partial, *, mechanism, ledger, name, noise, notes=()):
    """Charges for statistics that were read elsewhere, and perturbs them.

    What several processes or a data engine have read and merged: in one
    process, once. The result is, bit for bit before the noise, that of
    `release` on the same records (see `PartialStatistics`).

    Args:
        partial: a `PartialStatistics` of all records. Forget it afterwards:
            it is not private.
        mechanism, ledger, name, noise, notes: see `release`.

    Returns:
        A `Release`.

    Raises:
        BudgetExceededError: if the ledger has too little left.
    """
    if type(partial.objective) not in RELEASES:
        raise ValueError(
            "Statistics at given weights are one read of several, which are "
            "paid for together: `keras_fm.gathered_reads.GatheredReads`. "
            f"Received: {partial!r}"
        )
    entry = checked_entry(
        partial.objective, mechanism, ledger, name, noise, notes
    )
    return _perturbed(partial, mechanism, ledger, entry, noise)


def _summed(objective, batches, clip):
    partial = PartialStatistics(objective, clip)
    records.take_while_reading(batches, partial.add)
    return partial


def _perturbed(partial, mechanism, ledger, entry, noise):
    objective = partial.objective
    exact = objective.pack(partial.statistics(), mechanism.norm)
    if not np.all(np.isfinite(exact)):
        raise ValueError("The statistics overflowed; nothing was released.")
    try:
        ledger.charge([entry])
        noisy = mechanism.perturb(
            exact, noise, error=objective.rounding_error(mechanism.norm)
        )
    finally:
        del exact, partial
    arrays = objective.unpack(noisy, mechanism.norm)
    return RELEASES[type(objective)](
        statistics=dict(zip(objective.names, arrays)),
        objective=objective,
        mechanism=mechanism,
        neighbours=str(ledger.neighbours),
        private=entry.private,
    )


def checked_entry(objective, mechanism, ledger, name, noise, notes):
    """The entry of a release that the ledger allows.

    Raises:
        BudgetExceededError: if it does not.
        ValueError: if the mechanism has less noise than its entry says, or
            no lattice holds its noise.
    """
    needed = objective.sensitivity(mechanism.norm, neighbours=ledger.neighbours)
    if mechanism.sensitivity < needed * (1 - 1e-12):
        raise ValueError(
            f"The mechanism's sensitivity {mechanism.sensitivity:g} is below "
            f"the objective's {needed:g} under {ledger.neighbours}."
        )
    entry = planned_entry(
        objective,
        mechanism,
        ledger=ledger,
        name=name,
        noise=noise,
        notes=notes,
    )
    ledger.check([entry])
    # Fails now, not after the charge.
    mechanism.lattice_release(
        objective.size, objective.rounding_error(mechanism.norm)
    )
    return entry


class GradientReads:
    """R reads of first-order coefficients, paid for together.

    Opening it checks the ledger (a refusal reads nothing), looks at every
    record once for what is invalid (nothing is charged then) and charges all
    R reads: an error midway leaves them charged. Each call is one read.
    Who takes part in a sample is decided by the words of the noise's source,
    exactly at the sampling rate.

    Args:
        objective: a `GradientObjective`.
        batches: function from nothing to an iterable of `(features, labels)`;
            consumed once for each read, or once for all with `keep`.
        keep: whether features that were looked at are kept in memory,
            `(n, m)` in float64, for all reads.
        mechanism: a `SampledGaussianMechanism`: its `steps` is R, at a
            `sampling_rate` below 1 each record joins each read by itself
            with that probability (a Poisson sample of any size).
        ledger, name, noise, clip, notes: see `release`.

    Raises:
        BudgetExceededError: before anything is read.
        ValueError: if a record is invalid; nothing was charged then.
    """

    def __init__(
        self,
        objective,
        batches,
        *,
        mechanism,
        ledger,
        name,
        noise,
        clip=False,
        notes=(),
        keep=False,
    ):
        if not isinstance(mechanism, mechanisms_lib.SampledGaussianMechanism):
            raise ValueError(
                "Several reads are accounted as a SampledGaussianMechanism. "
                f"Received: {type(mechanism).__name__}"
            )
        entry = checked_entry(objective, mechanism, ledger, name, noise, notes)

        self._error = objective.rounding_error(mechanism.norm)

        def checked():
            records = 0
            for h, y in batches():
                records += len(h)
                summation.check_count(records)
                yield objective.check_records(h, y, clip)

        kept = []
        for found in checked():
            if keep:
                kept.append(found)
        ledger.charge([entry])
        self._objective = objective
        self._checked = (lambda: kept) if keep else checked
        self._mechanism, self._noise = mechanism, noise
        self._neighbours = str(ledger.neighbours)
        self._left = mechanism.steps

    def __call__(self, weights):
        """The noisy sum of one read at `weights`, `(m, M)`.

        Raises:
            RuntimeError: after the last read that was paid for.
            ValueError: if a weight is not finite.
        """
        if not self._left:
            raise RuntimeError(
                f"All {self._mechanism.steps} reads that were paid for are "
                "used up."
            )
        # Of what is public: an error that depends on records tells of them.
        if not np.all(np.isfinite(weights)):
            raise ValueError("The weights overflowed; lower `learning_rate`.")
        self._left -= 1
        rate = self._mechanism.sampling_rate
        # As in `PartialStatistics`: the same bits in one process as in many.
        total = summation.FixedPointSum(
            self._objective.clip, self._objective.shapes[0]
        )
        for rows, targets in self._checked():
            if rate < 1:
                drawn = discrete_noise.bernoulli(rate, len(rows), self._noise)
                rows, targets = rows[drawn], targets[drawn]
            total.add(self._objective.total(rows, targets, weights))
        noisy = self._mechanism.perturb(
            total.value().ravel(), self._noise, error=self._error
        )
        return noisy.reshape(self._objective.shapes[0])

    def finish(self, weights):
        """The weights that the reads led to, as a `Release`."""
        return WeightsRelease(
            statistics={"weights": np.array(weights, np.float64)},
            objective=self._objective,
            mechanism=self._mechanism,
            neighbours=self._neighbours,
            private=not self._noise.reproducible,
        )


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Release:
    """Perturbed statistics: public from here on.

    Attributes:
        statistics: dict of arrays by the objective's names, noise added.
        objective, mechanism, neighbours: how they were made.
        private: `False` if the noise was reproducible.
    """

    statistics: dict
    objective: (
        objectives.QuadraticObjective
        | objectives.GradientObjective
        | objectives.NetworkExpansionObjective
        | objectives.NormHistogramObjective
        | objectives.PatchMomentObjective
        | objectives.RelevanceObjective
    )
    mechanism: mechanisms_lib.Mechanism
    neighbours: str
    private: bool

    def __repr__(self):
        sizes = ", ".join(
            f"{name} {array.shape}" for name, array in self.statistics.items()
        )
        return (
            f"<{type(self).__name__} of {sizes}, "
            f"{type(self.mechanism).__name__}, {self.neighbours}>"
        )

    def vector(self):
        """The statistics as the vector that the noise was added to, or
        `None` if they are a function of several.

        Every coordinate has noise of variance
        `mechanism.coordinate_variance(objective.size)`.
        """
        arrays = tuple(self.statistics.values())
        return self.objective.pack(arrays, self.mechanism.norm)

    def save(self, path):
        """Writes the release as `.npz`. It holds no noise and no raw
        statistic, only their sum."""
        public = {
            "kind": type(self.objective).__name__,
            "objective": self.objective.config(),
            "mechanism": self.mechanism.config(),
            "neighbours": self.neighbours,
            "private": self.private,
        }
        # Through a file: given a name, NumPy may append to it.
        with open(path, "wb") as f:
            np.savez_compressed(
                f,
                **self.statistics,
                public=np.frombuffer(json.dumps(public).encode(), np.uint8),
            )

    @staticmethod
    def load(path):
        """Reads what `save` wrote; executes no code from the file.

        Returns:
            A `Release` of the kind that was saved.

        Raises:
            ValueError: if the file is not a release.
        """
        try:
            with stored_arrays.opened(path) as data:
                public = data.read("public")
                if public.dtype != np.uint8 or public.size > _LARGEST_PUBLIC:
                    raise ValueError("it does not say what it holds")
                public = json.loads(bytes(public))
                mechanism = mechanisms_lib.from_config(public["mechanism"])
                objective = objectives.OBJECTIVES[public["kind"]](
                    **public["objective"]
                )
                # Shapes are compared before anything of their size is made.
                arrays = [
                    data.read(name, shape).astype(np.float64)
                    for name, shape in zip(objective.names, objective.shapes)
                ]
                if not all(np.isfinite(array).all() for array in arrays):
                    raise ValueError("it holds numbers that are not finite")
                if not isinstance(public["private"], bool):
                    raise ValueError("`private` must be true or false")
                return RELEASES[type(objective)](
                    statistics=dict(zip(objective.names, arrays)),
                    objective=objective,
                    mechanism=mechanism,
                    neighbours=str(
                        budget_lib.Neighbours.of(public["neighbours"])
                    ),
                    private=public["private"],
                )
        except (
            ArithmeticError,
            AttributeError,
            KeyError,
            RecursionError,
            TypeError,
            ValueError,
        ) as e:
            raise ValueError(f"This is not a keras_fm release: {e}") from e


class _SecondMoments(Release):
    """What releases of A share. `quadratic` `(m, m)` is A plus noise
    (symmetric, may be indefinite)."""

    @property
    def quadratic(self):
        return self.statistics["quadratic"]

    def noise_edge(self):
        """Spectral edge of the noise on A: 2 sqrt(m) times the standard
        deviation of an off-diagonal entry (Wigner's semicircle)."""
        stddev = self.objective.off_diagonal_stddev(self.mechanism)
        return 2 * math.sqrt(self.objective.num_features) * stddev


class QuadraticRelease(_SecondMoments):
    """A released objective that is quadratic in its weights: `quadratic`
    and `linear` `(m, M)`, S plus noise."""

    @property
    def linear(self):
        return self.statistics["linear"]

    def minimise(self, ridge_factor=0.5):
        """Post-processing: a convex objective and its minimiser.

        Negative eigenvalues of A are set to zero, and a ridge of
        `ridge_factor` times the noise's spectral edge is added: a rule
        fixed in advance, from public numbers only.

        Returns:
            tuple `(hessian, minimiser)`: the objective is, up to a
            constant, `k tr((W - minimiser)^T hessian (W - minimiser))`
            with k the objective's `curvature`, `hessian` `(m, m)` and
            `minimiser` `(m, M)`.
        """
        values, vectors = np.linalg.eigh(self.quadratic)
        values = np.maximum(values, 0.0) + ridge_factor * self.noise_edge()
        rotated = vectors.T @ self._scaled_linear()
        minimiser = vectors @ (_inverse(values)[:, None] * rotated)
        hessian = (vectors * values) @ vectors.T
        return (hessian + hessian.T) / 2, minimiser

    def ridge_path(self, ridge_factors):
        """The minimisers of `minimise` for many ridges, by one
        eigendecomposition.

        A sweep over released statistics reads no record. Which ridge to
        keep may be chosen on public data, or by a rule: records of the
        release are read again if they are used for it.

        Args:
            ridge_factors: `(k,)`, in units of the noise's spectral edge.

        Returns:
            `(k, m, M)` array.

        Example:

        >>> release.ridge_path([0.25, 0.5, 1.0]).shape
        (3, 65, 10)
        """
        return self.ridge_family(ridge_factors)[2]

    def ridge_family(self, ridge_factors):
        """The convex objectives of `minimise` for many ridges, which differ
        in the ridge alone.

        Args:
            ridge_factors: `(k,)`, in units of the noise's spectral edge.

        Returns:
            tuple `(positive, ridges, minimisers)`: the positive part of A
            `(m, m)`, what is added to its diagonal `(k,)`, and `(k, m, M)`.
        """
        values, vectors = np.linalg.eigh(self.quadratic)
        values = np.maximum(values, 0.0)
        positive = (vectors * values) @ vectors.T
        ridges = np.asarray(ridge_factors, np.float64) * self.noise_edge()
        rotated = vectors.T @ self._scaled_linear()
        inverse = _inverse(values + ridges[:, None])[..., None]
        minimisers = vectors @ (inverse * rotated)
        return (positive + positive.T) / 2, ridges, minimisers

    def _scaled_linear(self):
        linear = self.objective.linear_coefficients(self.linear)
        return -linear / (2 * self.objective.curvature)


def _inverse(values):
    """Of eigenvalues, along the last axis.

    With (almost) no noise the ridge vanishes; directions no record spans
    then get no weight instead of an exploding one.
    """
    largest = values.max(axis=-1, initial=0.0, keepdims=True)
    floor = np.maximum(largest * 1e-12, np.finfo(float).tiny)
    return np.where(values > floor, 1 / np.maximum(values, floor), 0.0)


class CrossEntropyRelease(QuadraticRelease):
    """A released `CrossEntropyObjective`."""

    def signal_share(self):
        """How much of the released S is signal, in [0, 1], estimated from
        the release alone: one minus the noise's expected share of the
        squared length of S (its differences between classes)."""
        linear = self.linear
        m, outputs = linear.shape
        degrees = m * outputs
        if outputs > 1:
            linear = linear - linear.mean(axis=1, keepdims=True)
            degrees = m * (outputs - 1)
        variance = self.mechanism.coordinate_variance(self.objective.size)
        length = float(np.vdot(linear, linear))
        return max(0.0, 1 - variance * degrees / length) if length else 0.0

    def estimated_records(self):
        """An estimate of n from the release alone: trace(A) / C^2, which
        assumes features at their norm bound; at least 1."""
        bound = self.objective.feature_bound
        return max(1.0, float(np.trace(self.quadratic)) / bound**2)

    def pseudo_records(self, ridge_factor=0.5):
        """The released objective as an ordinary data set.

        Returns:
            `(x, t)`: `x` `(m, m)` rows and real-valued targets `t` `(m, M)`
            such that the Taylor cross-entropy summed over these pseudo
            records is the (post-processed) released objective, up to a
            constant. Train any linear model on them for as long as you
            like.
        """
        hessian, minimiser = self.minimise(ridge_factor)
        values, vectors = np.linalg.eigh(hessian)
        x = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
        return x, 0.5 + x @ minimiser / 4


class ReconstructionRelease(QuadraticRelease):
    """A released `ReconstructionObjective`: a decoder for fixed features."""


class SecondMomentRelease(_SecondMoments):
    """A released `SecondMomentObjective` of records `[v; c]`.

    Everything here is post-processing: exact functions of the released A
    and of public constants.
    """

    def moments(self, constant):
        """Mean and covariance of the records.

        Args:
            constant: c > 0, the last entry of every vector; or `None` if
                there is no such entry.

        Returns:
            tuple `(mean, covariance, count)`: `(d,)`, `(d, d)` symmetric
            (may be indefinite), and n as the noisy A states it, at least 1.
            Without a constant the mean is taken for zero and the count for
            1: the covariance then is A, a sum over records.
        """
        if constant is None:
            return np.zeros(len(self.quadratic)), self.quadratic, 1.0
        count = max(1.0, self.quadratic[-1, -1] / constant**2)
        mean = self.quadratic[:-1, -1] / constant / count
        covariance = self.quadratic[:-1, :-1] / count - np.outer(mean, mean)
        return mean, covariance, count

    def principal(self, units, constant, ridge_factor=None):
        """The directions a linear auto-encoder of `units` units keeps.

        The `units` eigenvectors of the noisy covariance with the largest
        eigenvalues minimise the released squared error (Eckart and Young),
        noise or not: any orthonormal directions are safe to project on.
        Variances are floored at the noise's spectral edge, below which an
        eigenvalue says nothing.

        Args:
            units: int, at most d.
            constant: c, see `moments`.
            ridge_factor: `None`, or in the place of the floor a ridge, in
                units of the spectral edge, that is added to every variance.

        Returns:
            tuple `(mean, directions, variances)`: `(d,)`, orthonormal
            columns `(d, units)`, `(units,)` descending and positive.
        """
        mean, covariance, count = self.moments(constant)
        if not 1 <= units <= len(mean):
            raise ValueError(
                f"`units` must be between 1 and {len(mean)}. Received: "
                f"units={units}"
            )
        values, vectors = np.linalg.eigh(covariance)
        values, vectors = values[::-1][:units], vectors[:, ::-1][:, :units]
        # A sign that does not depend on the linear algebra library.
        largest = np.abs(vectors).argmax(axis=0)
        signs = np.sign(vectors[largest, np.arange(len(values))])
        edge = self.noise_edge() / count
        if ridge_factor is not None:
            values = np.maximum(values, 0.0) + ridge_factor * edge
            edge = 0.0
        floor = max(edge, values.max(initial=0.0) * 1e-9, np.finfo(float).tiny)
        return mean, vectors * signs, np.maximum(values, floor)

    def gaussian_records(self, n, constant, seed=0):
        """Synthetic records with the released mean and covariance.

        An ordinary data set: train any auto-encoder on it by `compile` and
        `fit`, as often as you like, at no further cost.

        Args:
            n: int, how many.
            constant: c, see `moments`.
            seed: int, public.

        Returns:
            `(n, d)` array.
        """
        mean, covariance, _ = self.moments(constant)
        values, vectors = np.linalg.eigh(covariance)
        scaled = vectors * np.sqrt(np.maximum(values, 0.0))
        draw = np.random.default_rng(seed).standard_normal((n, len(mean)))
        return mean + draw @ scaled.T


class PatchMomentRelease(Release):
    """A released `PatchMomentObjective`: moments of patches plus noise.

    Everything here is post-processing: exact functions of the released
    moments and of public constants.
    """

    def moment(self, order):
        """The moments of an order up to m, `(p,) * order`, symmetric.

        Sums over records, not divided by `count()`. The order 2 may be
        indefinite. See `PatchMomentObjective.moment`.
        """
        return self.objective.moment(self.statistics["moments"], order)

    def stddev(self, order):
        """Standard deviations of the noise on `moment(order)`, entry by
        entry."""
        stddevs = self.objective.stddevs(self.mechanism)
        return self.objective.moment(stddevs, order)

    def count(self):
        """n as the moments state it (the entry of constants alone, over
        kappa^m), at least 1; with owners, the sum of their factors."""
        constant = self.objective.constant**self.objective.order
        return max(1.0, float(self.statistics["moments"][-1]) / constant)

    def noise_edge(self):
        """Spectral edge of the noise on `moment(2)`, for large p.

        With s the standard deviation of an off-diagonal entry, 2 sqrt(p) s
        for m = 2 and 3 (Wigner's semicircle). For m = 4 in L2 coordinates
        the row of the constant has three times the variance and moves the
        edge to 3 / sqrt(2) times sqrt(p) s.
        docs/proofs/patch_moments.md, proposition 7.
        """
        p, order = self.objective.num_features, self.objective.order
        variance = self.mechanism.coordinate_variance(self.objective.size)
        ratio = 1
        if self.mechanism.norm == "l2":
            # An entry off the diagonal stands m (m - 1) times in the tensor.
            variance, ratio = variance / (order * (order - 1)), order - 1
        edge = ratio / math.sqrt(ratio - 1) if ratio > 2 else 2.0
        lower = self.objective.constant ** (order - 2)
        return edge * math.sqrt(p * variance) / lower

    def energy(self, filters, coefficients, scale):
        """The energy of the patches, per record.

        Args:
            filters: `(p, K)`, the weight of the constant entry last.
            coefficients: of the polynomial in x / scale, constant first, at
                most m.
            scale: Z > 0, public.

        Returns:
            float, `PatchMomentObjective.value` over `count()`.
        """
        total = self.objective.value(
            filters, self.statistics["moments"], coefficients, scale
        )
        return total / self.count()

    def energies(self, filters, coefficients, scale):
        """`energy` filter by filter, `(K,)`: filters of many descents at
        once."""
        values = self.objective.values(
            filters, self.statistics["moments"], coefficients, scale
        )
        return values / self.count()

    def energy_gradient(self, filters, coefficients, scale):
        """Gradient of `energy` by the filters, `(p, K)`."""
        total = self.objective.gradient(
            filters, self.statistics["moments"], coefficients, scale
        )
        return total / self.count()


class WeightsRelease(Release):
    """The weights that reads of a `GradientObjective` led to: a function of
    their noisy sums alone."""

    def vector(self):
        return None


class NormHistogramRelease(Release):
    """A released `NormHistogramObjective`: counts plus noise."""

    def quantiles(self, level):
        """The smallest bin edge of each column at or below which a share
        `level` of the (nonnegative) noisy counts lies.

        Args:
            level: float in (0, 1).

        Returns:
            `(K,)` array of edges; post-processing.

        Raises:
            ValueError: if noise hides every count of a column.
        """
        if not 0 < level < 1:
            raise ValueError(
                f"`level` must be in (0, 1). Received: level={level}"
            )
        counts = self.statistics["counts"]
        # Counts that noise alone would give count for nothing.
        stddev = math.sqrt(
            self.mechanism.coordinate_variance(self.objective.size)
        )
        counts = np.where(counts > 2 * stddev, counts, 0.0)
        totals = np.cumsum(counts, axis=1)
        if not np.all(totals[:, -1] > 0):
            raise ValueError(
                "The noise hides the histogram: no count stands out. Give "
                "thresholds as numbers, or the histogram a larger share."
            )
        reached = totals >= level * totals[:, -1:]
        return self.objective.upper_edges[reached.argmax(axis=1)]


class NetworkExpansionRelease(Release):
    """A released `NetworkExpansionObjective`: a quadratic in every weight.

    Everything here is post-processing: exact functions of the released
    coefficients and of public constants.
    """

    def quadratic(self, ridge_factor=0.5, damping=0.1):
        """The convex quadratic `sum g d + 1/2 h d^2` of every layer, d the
        weights minus those it was expanded about.

        A curvature that is not positive has no minimum. Negative ones are
        set to zero, and to all of a layer is added `damping` times their
        mean and `2 ridge_factor` standard deviations of their noise: a rule
        from the release and public numbers.

        Args:
            ridge_factor: float >= 0.
            damping: float >= 0.

        Returns:
            list of `(g, h)` for every layer, `(inputs, units)` each, h > 0.
        """
        objective = self.objective
        stddev = math.sqrt(self.mechanism.coordinate_variance(objective.size))
        ridge = 2 * ridge_factor * stddev / objective.curvature_weight
        found = []
        for g, h in zip(
            objective.layers(self.statistics["gradient"]),
            objective.layers(self.statistics["curvature"]),
        ):
            h = np.maximum(h, 0.0) + damping * max(h.mean(), 0.0) + ridge
            # Without noise a weight that no record moves stays where it is.
            floor = max(h.max() * 1e-12, np.finfo(float).tiny)
            found.append((g, np.maximum(h, floor)))
        return found


class RelevanceRelease(Release):
    """A released `RelevanceObjective`: the summed relevance plus noise."""

    def shares(self):
        """beta_j, mean 1, with the noise's standard deviation as floor:
        a rule from public numbers only.

        Returns:
            `(d,)` array, all entries greater than 0.
        """
        objective = self.objective
        floor = math.sqrt(self.mechanism.coordinate_variance(objective.size))
        return objective.shares(self.statistics["relevance"], floor)


RELEASES = {
    objectives.CrossEntropyObjective: CrossEntropyRelease,
    objectives.GradientObjective: WeightsRelease,
    objectives.NetworkExpansionObjective: NetworkExpansionRelease,
    objectives.NormHistogramObjective: NormHistogramRelease,
    objectives.PatchMomentObjective: PatchMomentRelease,
    objectives.ReconstructionObjective: ReconstructionRelease,
    objectives.RelevanceObjective: RelevanceRelease,
    objectives.SecondMomentObjective: SecondMomentRelease,
}
