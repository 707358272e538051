"""Refusals come before reading, errors before charging, noise comes last.

Kolmogorov-Smirnov tests accept at p > 1e-4 (a fresh seed would fail by
chance once in 10,000 runs) and reject 2/3 and 3/2 of the scale at p < 1e-6.
"""

import json
import math
import tracemalloc

import numpy as np
import pytest
from made_release import make_release
from scipy import stats

from keras_fm import queries
from keras_fm.kernel import mechanisms
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import Ledger
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.release import calibrate
from keras_fm.public import polynomials

DELTA = 1e-5


def make_objective(m=4, outputs=3, **kwargs):
    return queries.CrossEntropyQuery(
        num_features=m, num_outputs=outputs, **kwargs
    )


def make_records(m=4, outputs=3, n=500, seed=0):
    """Records whose features tell something about their labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, max(outputs, 2), size=n)
    h = rng.normal(size=(n, m))
    h[np.arange(n), y % m] += 1.0
    return h / np.linalg.norm(h, axis=1, keepdims=True), y


def exact_statistics(objective, h, y):
    a, s = objective.accumulate(objective.zero(), h, y)
    return np.triu(a) + np.triu(a, 1).T, s


class SilentNoise(NoiseSource):
    """Fails the test if any noise is drawn."""

    def words(self, count):
        pytest.fail("noise was drawn")

    generator = words


class Noiseless(mechanisms.GaussianMechanism):
    """Shows what the release adds noise to."""

    def perturb(self, exact, source, **kwargs):
        return np.array(exact, np.float64)

    def config(self):
        return {**super().config(), "mechanism": "GaussianMechanism"}


def without_noise(objective, batches, **kwargs):
    mechanism = Noiseless(
        sensitivity=objective.sensitivity("l2", neighbours="add_remove"),
        noise_multiplier=mechanisms.gaussian_multiplier(1.0, DELTA),
    )
    return make_release(
        objective, batches, mechanism=mechanism, noise=SilentNoise(1), **kwargs
    )


def untouched():
    pytest.fail("the records were read")
    yield


# Calibration ----------------------------------------------------------------


# Order of events ------------------------------------------------------------


def bad_batches():
    h, y = make_records(n=5)
    secret = h.copy()
    secret[3, 0] = 7.234511
    yield "outside", (secret, y), "outside the public"
    for name, value in (("nan", math.nan), ("inf", -math.inf)):
        broken = h.copy()
        broken[2, 1] = value
        yield name, (broken, y), "finite"
    yield "label", (h, y + 7234511), r"in \[0, 3\)"
    yield "fraction", (h, y + 0.7234511), "whole numbers"
    yield "columns", (h[:, :3], y), "shape"
    yield "rows", (h, y[:4]), "same number"
    yield "one-hot", (h, np.full((5, 3), 0.7234511)), "one-hot"


@pytest.mark.parametrize(
    "batch, message",
    [pytest.param(b, m, id=name) for name, b, m in bad_batches()],
)
def test_invalid_records_are_refused_before_charge_and_noise(batch, message):
    ledger = Ledger(PrivacyBudget(1.0, DELTA), neighbours="add_remove")
    # The record comes in the second batch: the first is forgotten.
    with pytest.raises(ValueError, match=message) as caught:
        make_release(
            make_objective(),
            [make_records(), batch],
            ledger=ledger,
            noise=SilentNoise(1),
        )
    assert ledger.entries == () and ledger.epsilon() == 0.0
    assert "234511" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_charge_comes_before_the_noise():
    """A release that fails after the charge stays charged."""

    class Broken(NoiseSource):
        def words(self, count):
            raise RuntimeError("no entropy")

    ledger = Ledger(PrivacyBudget(1.0, DELTA), neighbours="add_remove")
    with pytest.raises(RuntimeError, match="entropy"):
        make_release(
            make_objective(), [make_records()], ledger=ledger, noise=Broken()
        )
    assert len(ledger.entries) == 1


def test_releases_draw_words_alone_and_say_so():
    """Noise of the lattice, not of the statistical generator."""

    class Wordy(NoiseSource):
        def generator(self):
            pytest.fail("the statistical generator was asked")

    for delta in (0.0, DELTA):
        budget = PrivacyBudget(1.0, delta)
        ledger = Ledger(budget, neighbours="add_remove")
        objective = make_objective()
        made = make_release(
            objective,
            [make_records()],
            delta=delta,
            ledger=ledger,
            noise=Wordy(),
        )
        assert ledger.entries[0].noise == "lattice"
        assert "floating-point" not in ledger.statement()
        # All numbers that were released are on the lattice.
        error = objective.rounding_error(made.mechanism.norm)
        lattice = made.mechanism.lattice_release(objective.size, error).lattice
        np.testing.assert_array_equal(made.linear % lattice.step, 0)


def test_the_noise_covers_the_error_of_the_sum(monkeypatch):
    """What `perturb` is told is the objective's bound."""
    told = []
    perturb = mechanisms.Mechanism.perturb

    def watched(self, exact, source, **kwargs):
        told.append(kwargs)
        return perturb(self, exact, source, **kwargs)

    monkeypatch.setattr(mechanisms.Mechanism, "perturb", watched)
    objective = make_objective()
    make_release(objective, [make_records()])
    assert told == [{"error": objective.rounding_error("l2")}]
    assert told[0]["error"] > 1e-4 * objective.sensitivity(
        "l2", neighbours="add_remove"
    )


def test_more_records_than_the_bound_is_for_are_refused(monkeypatch):
    monkeypatch.setattr("keras_fm.kernel.sums.MOST_RECORDS", 900)
    ledger = Ledger(PrivacyBudget(1.0, DELTA), neighbours="add_remove")
    with pytest.raises(ValueError, match="at most 900 records"):
        make_release(
            make_objective(), [make_records(), make_records()], ledger=ledger
        )
    assert ledger.entries == ()
    make_release(make_objective(), [make_records(n=900)], ledger=ledger)


def test_a_lattice_that_cannot_be_is_refused_before_reading():
    ledger = Ledger(PrivacyBudget(1e-9, 0.0), neighbours="add_remove")
    with pytest.raises(ValueError, match="steps of the lattice"):
        make_release(
            make_objective(60, 40),
            untouched(),
            epsilon=1e-9,
            delta=0.0,
            ledger=ledger,
        )
    assert ledger.entries == ()


# One streaming pass ---------------------------------------------------------


def test_memory_does_not_grow_with_the_records():
    objective = make_objective(m=64)
    h, y = make_records(m=64, n=256)

    def peak(count):
        tracemalloc.start()
        make_release(objective, ((h.copy(), y) for _ in range(count)))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(2)  # The first call also fills caches.
    few, many = peak(10), peak(1000)
    # At the peak one batch is summed. Another thread may have three more in
    # its hands: a copy that waits, the next one, and its copy.
    ahead = 3 * (h.nbytes + y.nbytes)
    assert many <= few + ahead
    # And the meter would have seen the records.
    assert 990 * h.nbytes > few + ahead


# The noise ------------------------------------------------------------------


def noise_of(delta, m=60, outputs=40):
    """The mechanism and its noise: diagonal and rest of A / alpha, S."""
    objective = make_objective(m, outputs, quadratic_scale=2.0)
    h, y = make_records(m, outputs, n=50)
    made = make_release(objective, [(h, y)], delta=delta, seed=12)
    a, s = exact_statistics(objective, h, y)
    noise = made.quadratic - a
    np.testing.assert_array_equal(made.quadratic, made.quadratic.T)
    upper = np.triu_indices(m, 1)
    # A was released as A / 2.
    return (
        made.mechanism,
        np.diag(noise) / 2,
        noise[upper] / 2,
        (made.linear - s).ravel(),
    )


def assert_scale(sample, distribution, scale):
    accepted = stats.kstest(sample, distribution(scale=scale).cdf)
    assert accepted.pvalue > 1e-4
    for factor in (2 / 3, 3 / 2):
        wrong = stats.kstest(sample, distribution(scale=factor * scale).cdf)
        assert wrong.pvalue < 1e-6, factor


def test_gaussian_noise_has_the_stated_covariance():
    mechanism, diagonal, off_diagonal, linear = noise_of(DELTA)
    sigma = mechanism.stddev
    assert_scale(off_diagonal, stats.norm, sigma / math.sqrt(2))
    assert_scale(linear, stats.norm, sigma)
    # 60 entries are too few to reject at 1e-6; the next test has more.
    accepted = stats.kstest(diagonal / sigma, stats.norm.cdf)
    assert accepted.pvalue > 1e-4
    # Independent: no correlation beyond 4.5 standard errors.
    pairs = off_diagonal[: 2 * (len(off_diagonal) // 2)].reshape(-1, 2)
    correlation = np.corrcoef(pairs.T)[0, 1]
    assert abs(correlation) < 4.5 / math.sqrt(len(pairs))


def test_the_diagonal_has_twice_the_variance_of_the_rest():
    objective, draws = make_objective(m=3), []
    mechanism = calibrate(
        objective, PrivacyBudget(1.0, DELTA), neighbours="add_remove"
    )
    source = NoiseSource(13)
    for _ in range(3000):
        a, s = objective.unpack(
            mechanism.perturb(np.zeros(objective.size), source), "l2"
        )
        draws.append(np.concatenate([a[np.triu_indices(3)], s.ravel()]))
    covariance = np.cov(np.transpose(draws)) / mechanism.stddev**2
    # The upper triangle of a 3 x 3 matrix, then S.
    expected = np.diag([1, 0.5, 0.5, 1, 0.5, 1] + [1.0] * 9)
    # Five standard errors of an entry (at most sqrt(2 / 3000)).
    np.testing.assert_allclose(covariance, expected, atol=0.13)


def test_pure_noise_has_the_stated_scale():
    mechanism, diagonal, off_diagonal, linear = noise_of(0.0)
    assert isinstance(mechanism, mechanisms.LaplaceMechanism)
    # L1 coordinates: every entry of the upper triangle counts once.
    assert_scale(off_diagonal, stats.laplace, mechanism.scale)
    assert_scale(linear, stats.laplace, mechanism.scale)
    accepted = stats.kstest(diagonal / mechanism.scale, stats.laplace.cdf)
    assert accepted.pvalue > 1e-4


def test_the_edge_bounds_the_spectrum_of_the_noise():
    made = make_release(
        make_objective(m=80, outputs=2), [], noise=NoiseSource(14)
    )
    values = np.linalg.eigvalsh(made.quadratic)
    assert values.max() == pytest.approx(made.noise_edge(), rel=0.12)
    assert values.min() == pytest.approx(-made.noise_edge(), rel=0.12)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("delta", [0.0, DELTA])
def test_a_large_epsilon_tends_to_the_noiseless_optimum(delta, outputs):
    objective = make_objective(outputs=outputs)
    h, y = make_records(outputs=outputs)
    a, s = exact_statistics(objective, h, y)
    best = -4 * np.linalg.solve(a, objective.linear_coefficients(s))
    errors = []
    for epsilon in (1e2, 1e4, 1e6):
        made = make_release(objective, [(h, y)], epsilon, delta)
        _, minimiser = made.minimise()
        errors.append(np.abs(minimiser - best).max())
    assert errors[0] > 5 * errors[1] > 25 * errors[2]
    assert errors[2] < 1e-3 * np.abs(best).max()


# Post-processing ------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 3], ids=["binary", "one-hot"])
def made(request):
    objective = make_objective(m=12, outputs=request.param)
    data = make_records(m=12, outputs=request.param, n=40)
    return make_release(objective, [data], epsilon=0.5)


def test_the_minimiser_is_the_minimum_of_a_convex_objective(made):
    # The noise must make A indefinite, or the projection is not tested.
    assert np.linalg.eigvalsh(made.quadratic).min() < 0
    hessian, minimiser = made.minimise()
    np.testing.assert_array_equal(hessian, hessian.T)
    ridge = 0.5 * made.noise_edge()
    assert np.linalg.eigvalsh(hessian).min() >= ridge * (1 - 1e-9)
    linear = made.query.linear_coefficients(made.linear)
    gradient = linear + hessian @ minimiser / 4
    assert np.abs(gradient).max() < 1e-11 * np.abs(linear).max()
    # By value too, through the objective's own formula.
    best = made.query.value(minimiser, (hessian, made.linear))
    rng = np.random.default_rng(0)
    for size in (1e-3, 1.0):
        step = size * rng.normal(size=minimiser.shape)
        value = made.query.value(minimiser + step, (hessian, made.linear))
        rise = np.vdot(step, hessian @ step) / 8
        assert value > best
        assert value - best == pytest.approx(rise, rel=1e-5)


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_the_hessian_is_the_projection_plus_the_ridge(made, factor):
    hessian, _ = made.minimise(factor)
    values, vectors = np.linalg.eigh(made.quadratic)
    kept = np.maximum(values, 0) + factor * made.noise_edge()
    np.testing.assert_allclose(
        hessian, vectors @ np.diag(kept) @ vectors.T, atol=1e-10
    )


def test_pseudo_records_have_the_gradient_of_the_objective(made):
    hessian, _ = made.minimise()
    x, t = made.pseudo_records()
    m, outputs = made.linear.shape
    assert x.shape == (m, m) and t.shape == (m, outputs)
    slope = polynomials.taylor("softplus", 2).coefficients
    rng = np.random.default_rng(1)
    linear = made.query.linear_coefficients(made.linear)
    for _ in range(3):
        weights = rng.normal(size=(m, outputs))
        # Derivative of the Taylor cross-entropy by its logits.
        logits = x @ weights
        by_records = x.T @ (slope[1] - t + 2 * slope[2] * logits)
        np.testing.assert_allclose(
            by_records, linear + hessian @ weights / 4, atol=1e-9
        )


# Files ----------------------------------------------------------------------


def test_a_file_holds_only_the_release(tmp_path):
    make_release(make_objective(), [make_records()]).save(tmp_path / "r")
    with np.load(tmp_path / "r", allow_pickle=False) as data:
        assert set(data.files) == {"quadratic", "linear", "public"}
        public = json.loads(bytes(data["public"]))
    assert set(public) == {
        "kind",
        "query",
        "mechanism",
        "neighbours",
        "private",
    }
