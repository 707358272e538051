"""The minimiser of a perturbed loss: its densities on neighbours, the minimum
that a machine finds, its noise, and the layer that asks for it
(docs/proofs/perturbed_loss.md)."""

import math

import keras
import numpy as np
import pytest
from scipy import optimize, special, stats

import keras_fm as fm
from keras_fm.estimators import PrivateClassifier
from keras_fm.heads import exact_minimum
from keras_fm.heads.exact_minimum import Records
from keras_fm.heads.perturbed_loss import PerturbedLossQuery
from keras_fm.kernel.discrete_noise import DiscreteLaplace
from keras_fm.kernel.mechanisms import LaplaceMechanism, NoiseSource
from keras_fm.kernel.release import calibrate

pytestmark = pytest.mark.once

RNG = np.random.default_rng(5)
M = 3


def made(outputs, **fields):
    given = {"num_features": M, "feature_bound": 1.5, "feature_l1_bound": 2.0}
    return PerturbedLossQuery(num_outputs=outputs, **given | fields)


def mechanism(query, epsilon, neighbours="add_remove"):
    budget = fm.PrivacyBudget(epsilon, 0.0)
    return calibrate(query, budget, neighbours=neighbours)


def held(query, rows, labels):
    records = Records(query)
    records.add(np.array(rows, float), np.array(labels))
    return records


# Densities -------------------------------------------------------------------


def derivatives(query, weights, h, y):
    """Gradient and Hessian of the sum of losses, in the usual form."""
    outputs = query.num_outputs
    z = h @ weights
    if outputs == 1:
        p, target = special.expit(z), np.reshape(y, (-1, 1))
    else:
        p, target = special.softmax(z, axis=1), np.eye(outputs)[y]
    share = np.ones(len(h))
    if query.class_weights:
        share = np.array(query.class_weights)[y]
    curved = np.zeros((weights.size, weights.size))
    for one, q, s in zip(h, p, share):
        # Of p (1 - p) for one output.
        of_outputs = np.diag(q) - np.outer(q, q)
        curved += s * np.kron(np.outer(one, one), of_outputs)
    return h.T @ (share[:, None] * (p - target)), curved


def log_density(query, terms, weights, h, y):
    """Of the exact minimiser at some weights, but for a constant."""
    epsilon, ridge, _ = terms
    gradient, curved = derivatives(query, weights, h, y)
    b = gradient + ridge * weights
    longest = query.sensitivity("l1", neighbours="add_remove")
    _, log_det = np.linalg.slogdet(curved + ridge * np.eye(weights.size))
    return log_det - np.abs(b).sum() * epsilon / longest


def inside(query, v):
    v = v * min(1, query.feature_bound / np.linalg.norm(v))
    return v * min(1, query.feature_l1_bound / np.abs(v).sum())


def largest_loss(query, neighbours, epsilon, start):
    """The largest log ratio of two neighbours' densities that is found."""
    terms = query.terms(mechanism(query, epsilon, neighbours))
    size, records = M * query.num_outputs, 3

    def loss(v):
        weights = v[:size].reshape(M, -1)
        h = v[size:].reshape(records, M)
        h = np.array([inside(query, one) for one in h])
        y = start["labels"]
        ends = [log_density(query, terms, weights, h[:1], y[:1])]
        for more in ([0, 1], [0, 2]):
            found = log_density(query, terms, weights, h[more], y[more])
            ends.append(found)
        none, one, other = ends
        if neighbours == "add_remove":
            return -abs(one - none)
        return -abs(one - other)

    found = optimize.minimize(
        loss, start["at"], method="Powell", options={"maxiter": 1}
    )
    return -min(found.fun, loss(start["at"]))


@pytest.mark.parametrize(
    "neighbours, epsilon", [("add_remove", 0.2), ("replace_one", 3.0)]
)
@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_no_record_moves_a_density_by_more_than_epsilon(
    outputs, neighbours, epsilon
):
    query, worst = made(outputs), 0.0
    for scale in (0.3, 30.0):
        start = {
            "labels": RNG.integers(0, max(2, outputs), 3),
            "at": np.r_[
                scale * RNG.normal(size=M * outputs), RNG.normal(size=3 * M)
            ],
        }
        found = largest_loss(query, neighbours, epsilon, start)
        worst = max(worst, found)
        assert found <= epsilon * (1 - 2**-7)
    assert worst > 0.3 * epsilon


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_bound_is_attained_far_on_the_wrong_side(outputs):
    """Where the proof says: the record's class has no probability."""
    query, epsilon = made(outputs, feature_bound=2.0), 0.7
    terms = query.terms(mechanism(query, epsilon))
    h, y = np.array([[2.0, 0.0, 0.0]]), np.array([0])
    columns = [1.0] if outputs == 1 else [-1.0, 1.0, -1.0]
    weights = 60 * np.array([[1.0], [1.0], [1.0]]) * columns
    empty = np.zeros((0, M)), np.zeros(0, int)
    ratio = log_density(query, terms, weights, *empty)
    ratio -= log_density(query, terms, weights, h, y)
    assert ratio == pytest.approx(terms[0], rel=1e-3)
    assert terms[0] > 0.85 * epsilon


def test_weights_of_classes_move_no_bound():
    query = made(2, class_weights=(1.0, 0.3))
    start = {"labels": np.array([0, 1, 1]), "at": RNG.normal(size=6 + 9) * 4}
    assert largest_loss(query, "replace_one", 1.0, start) < 1.0
    assert query.terms(mechanism(query, 1.0)) == made(2).terms(
        mechanism(query, 1.0)
    )


# The machine -----------------------------------------------------------------


def test_discrete_noise_is_next_to_continuous_noise():
    """Lemma 1, on the tails of both laws."""
    for scale in (0.5, 3.0, 200.0):
        r = math.exp(-1 / scale)
        k = np.arange(1, 40)
        tail = r**k / (1 + r)
        at = stats.laplace(scale=scale).isf(tail)
        assert np.all((k - 0.5 <= at + 1e-9) & (at <= k + 1e-9))
    drawn = DiscreteLaplace(3).sample(20_000, NoiseSource(0))
    r = math.exp(-1 / 3)
    assert np.mean(drawn >= 2) == pytest.approx(r**2 / (1 + r), abs=0.01)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("ridge", [2.0**-6, 8.0])
def test_the_gradient_at_the_minimum_is_within_the_tolerance(outputs, ridge):
    """Of a sum in digits of its own, with long weights too."""
    query = made(outputs, class_weights=(1.0,) * max(2, outputs))
    rows = np.array([inside(query, v) for v in RNG.normal(size=(300, M))])
    labels = RNG.integers(0, max(2, outputs), 300)
    records = held(query, rows, labels)
    for size in (1.0, 600 * ridge):
        linear = size * RNG.normal(size=(M, outputs))
        weights = records.minimum(linear, ridge)
        step = records._grid.feature_step
        narrow = np.trunc(rows / step) * step
        gradient, _ = derivatives(query, weights, narrow, labels)
        rest = np.linalg.norm(gradient + linear + ridge * weights)
        # float64 rounds the terms of this line.
        assert rest <= records.tolerance + 1e-14 * np.linalg.norm(linear)
        moved = weights + 2 * records.tolerance
        gradient, _ = derivatives(query, moved, narrow, labels)
        rest = np.linalg.norm(gradient + linear + ridge * moved)
        assert rest > records.tolerance * ridge


def test_a_tilted_sum_of_nothing_shows_its_noise():
    """Of a record of zeros the minimiser is -b over the ridge."""
    query = PerturbedLossQuery(num_features=800, num_outputs=2)
    one = mechanism(query, 0.5)
    epsilon, ridge, _ = query.terms(one)
    records = held(query, np.zeros((1, 800)), [0])
    drawn = query.minimise(records, one, NoiseSource(3)) * ridge
    scale = 2 * math.sqrt(800) / epsilon
    for factor, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
        law = stats.laplace(scale=factor * scale)
        assert (stats.kstest(drawn.ravel(), law.cdf).pvalue > 1e-3) == fits


def test_weights_have_noise_of_their_own(monkeypatch):
    query, perturbed = made(1), []
    perturb = LaplaceMechanism.perturb

    def watched(self, exact, *more, **named):
        perturbed.append((self, exact))
        return perturb(self, exact, *more, **named)

    monkeypatch.setattr(LaplaceMechanism, "perturb", watched)
    one = mechanism(query, 1.0)
    records = held(query, [[0.5, 0.1, 0.0]], [1])
    found = query.minimise(records, one, NoiseSource())
    ((cover, exact),) = perturbed
    _, ridge, left = query.terms(one)
    assert left / 2 == cover.epsilon
    assert cover.sensitivity >= math.sqrt(M) * records.tolerance / ridge
    assert 0 < np.abs(found.ravel() - exact).max() < 0.01


# The layer -------------------------------------------------------------------

X = RNG.uniform(-1, 1, (400, 2))
Y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")


def classifier(delta=0.0, **settings):
    return PrivateClassifier(
        8.0, delta, bounds=(-1, 1), classes=["no", "yes"], **settings
    )


def asked(model):
    return [entry.proof for entry in model.ledger_.entries]


PERTURBED = [PerturbedLossQuery.proof]


def test_a_pure_classifier_minimises_the_loss_itself(tmp_path):
    model = classifier().fit(X, Y)
    assert asked(model)[1:] == PERTURBED
    assert model.score(X, Y) > 0.9
    assert model.ledger_.epsilon() == 8.0
    assert np.mean(model.predict_proba(X).max(axis=1)) > 0.7
    model.model_.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict(X[:9], verbose=0), model.model_.predict(X[:9], verbose=0)
    )


def test_weights_and_other_relations_are_covered():
    model = classifier(neighbours="replace_one", class_weight="balanced")
    model.fit(X, Y)
    assert asked(model)[2:] == PERTURBED
    assert model.score(X, Y) > 0.8
    spent = sum(e.mechanism["epsilon"] for e in model.ledger_.entries)
    assert spent == pytest.approx(8.0)


@pytest.mark.parametrize(
    "settings",
    [{"delta": 1e-6}, {"neighbours": "replace_label"}, {"owners": True}],
    ids=lambda s: next(iter(s)),
)
def test_elsewhere_the_sums_are_released(settings):
    owners = np.arange(400) // 2 if settings.pop("owners", None) else None
    model = classifier(**settings).fit(X, Y, owners=owners)
    assert PERTURBED[0] not in asked(model)


def test_a_release_is_kept_in_a_file(tmp_path):
    query = made(3)
    ledger = fm.Ledger(fm.PrivacyBudget(1.0, 0.0), neighbours="add_remove")
    layer = fm.layers.PrivateDense(3, name="head", perturbed_loss=True)
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(ledger, data=(X / 2, Y == "yes"))
    model.fit(X, Y == "yes", verbose=0, callbacks=[private])
    private.release.save(tmp_path / "head.npz")
    loaded = fm.Release.load(tmp_path / "head.npz")
    assert type(loaded.query) is type(query)
    again = fm.layers.PrivateDense.from_config(layer.get_config())
    again.build((None, 2))
    again.learn(loaded, ledger)
    np.testing.assert_array_equal(again.kernel, layer.kernel)


def test_what_cannot_be_is_refused_before_a_charge(monkeypatch):
    with pytest.raises(ValueError, match="perturbed_loss=True"):
        fm.layers.PrivateDense(2, rounds=3, perturbed_loss=True)
    with pytest.raises(ValueError, match="perturbed_loss=True"):
        fm.layers.PrivateDense(
            1, loss="squared_error", target_bounds=(0, 1), perturbed_loss=True
        )
    with pytest.raises(ValueError, match='"l1", since delta is 0'):
        made(1).sensitivity("l2", neighbours="add_remove")
    monkeypatch.setattr(exact_minimum, "MOST_RECORDS", 100)
    ledger = fm.Ledger(fm.PrivacyBudget(1.0, 0.0), neighbours="add_remove")
    model = PrivateClassifier(
        ledger=ledger, bounds=(-1, 1), classes=["no", "yes"]
    )
    with pytest.raises(ValueError, match="at most 100 records"):
        model.fit(X, Y)
    assert not ledger.entries
