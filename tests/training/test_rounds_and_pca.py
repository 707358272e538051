"""What a fit promises whose output layer takes many reads, with and without
a DPPCA layer below it."""

import dataclasses
import functools
import math

import keras
import numpy as np
import pytest
from pretrained_rooms import compiled

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.core.second_moment import SecondMomentRelease
from keras_fm.heads.gradient_query import WeightsRelease

EPSILON, DELTA, N, D = 3.0, 1e-5, 300, 6
FULL = fm.Rounds(rounds=8, learning_rate=4.0, loss="squared_hinge")
POISSON = fm.Rounds(
    rounds=8, batch_size=60, learning_rate=4.0, loss="squared_hinge"
)
BOTH = pytest.mark.parametrize("rounds", [FULL, POISSON], ids=["full", "some"])
pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]


@functools.cache
def _records(n, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, D)).astype("float32")
    x[np.arange(n), y] += 2
    return x, y


def records(n=N, seed=0):
    x, y = _records(n, seed)
    return x.copy(), y.copy()


def of(*layers, optimizer="adam"):
    return compiled(keras.Sequential([keras.Input((D,)), *layers]), optimizer)


def model(rounds=FULL, pca=None, units=3, optimizer="adam", **kwargs):
    keras.utils.set_random_seed(1)
    normalized = fm.layers.NormalizationLayer
    below = []
    if pca is not None:
        below = [normalized(), fm.layers.DPPCA(name="pca", **pca)]
    return of(
        *below,
        normalized(),
        fm.layers.PrivateDense(units, rounds=rounds, name="output", **kwargs),
        optimizer=optimizer,
    )


def private(data, epsilon=EPSILON, delta=DELTA, seed=None, **proven):
    return PrivateModel(
        fm.PrivacyBudget(epsilon, delta),
        data=data,
        guarantee=fm.Proven(**proven),
        reproducible_noise=seed,
    )


def fitted(m=None, data=None, epochs=1, **kwargs):
    data = data or records()
    m, p = m or model(), private(data, **kwargs)
    fit(m, p, epochs=epochs)
    return m, p


def fit(m, p=None, x=None, **kwargs):
    """One step an epoch: only what is released matters here."""
    given, y = records()
    m.fit(
        given if x is None else x,
        y,
        batch_size=N,
        shuffle=False,
        callbacks=[p] if p else None,
        verbose=0,
        **kwargs,
    )


def weights(m):
    return np.concatenate([w.ravel() for w in m.get_weights()])


def array(x):
    return keras.ops.convert_to_numpy(x)


# What is spent --------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("pca", [None, {"units": 4, "whitening": 0.5}])
@pytest.mark.once
def test_it_ends_just_below_the_budget(rounds, pca):
    m, p = fitted(model(rounds, pca))
    entries = p.ledger.entries
    assert [e.name for e in entries] == (
        ["output"] if pca is None else ["pca (second moment)", "output"]
    )
    assert 0.999 * EPSILON < p.ledger.epsilon() <= EPSILON
    reads = entries[-1].mechanism
    assert reads["steps"] == 8 and entries[-1].guarantee == "proven"
    assert reads["sampling_rate"] == (1 if rounds is FULL else 60 / N)
    assert isinstance(p.release, WeightsRelease)
    assert p.releases["output"] is p.release
    assert "n is public" in p.report()
    if pca is not None:
        assert isinstance(p.releases["pca"], SecondMomentRelease)
        assert "weights of layer 'pca': from its own release" in p.report()


@pytest.mark.once
def test_a_dp_pca_may_have_its_own_noise():
    """What it costs is charged, and what is left is the output layer's."""
    given = {"units": 4, "noise_multiplier": 30.0}
    m, p = fitted(model(FULL, given), neighbours="replace_one")
    first, _ = p.ledger.entries
    assert first.mechanism["noise_multiplier"] == 30.0
    # Of records in the unit ball, one in the place of another.
    assert first.mechanism["sensitivity"] == pytest.approx(math.sqrt(2))
    assert 0.999 * EPSILON < p.ledger.epsilon() <= EPSILON
    too_little = model(FULL, given | {"noise_multiplier": 0.1})
    data = records()
    before = weights(too_little)
    with pytest.raises(ValueError, match="budget|epsilon"):
        fit(too_little, private(data))
    np.testing.assert_array_equal(weights(too_little), before)
    with pytest.raises(ValueError, match="`noise_multiplier` must be"):
        fm.layers.DPPCA(2, noise_multiplier=0.0)


def test_a_released_dp_pca_is_free_under_another_output_layer():
    m, p = fitted(model(FULL, {"units": 4}), releases=2)
    kernel = array(m.get_layer("pca").kernel)

    def other(name):
        head = fm.layers.PrivateDense(3, rounds=FULL, name=name)
        return of(*m.layers[:-1], head)

    # What is left of the budget pays for the other output layer.
    ledger = fm.Ledger.from_json(p.ledger.to_json())
    again = PrivateModel(
        ledger, data=records(), guarantee=fm.Proven(releases=2)
    )
    fit(other("second"), again)
    names = [e.name for e in ledger.entries]
    assert names == ["pca (second moment)", "output", "second"]
    assert 0.9 * EPSILON < ledger.epsilon() < EPSILON
    np.testing.assert_array_equal(array(m.get_layer("pca").kernel), kernel)
    unknown = private(records(), releases=2)
    with pytest.raises(ValueError, match="released by another PrivateModel"):
        fit(other("third"), unknown)
    assert not unknown.ledger.entries


# What is learned ------------------------------------------------------------


def test_without_noise_it_is_the_descent_on_exact_sums():
    """At epsilon 10^6 the noise of a sum is below 10^-3 of a record."""
    m, p = fitted(epsilon=1e6)
    objective = p.release.query
    x, y = records()
    h = x / np.linalg.norm(x, axis=1, keepdims=True)
    h = m.layers[-1].augment(h)
    rows, targets = objective.check_records(h, y)
    wanted = FULL.descend(
        lambda w: objective.total(rows, targets, w), np.zeros((D + 1, 3)), N
    )
    made = p.release.statistics["weights"]
    assert np.abs(wanted).max() > 0.3
    np.testing.assert_allclose(made, wanted, atol=1e-3)
    kernel, bias = m.layers[-1].get_weights()
    np.testing.assert_allclose(kernel, made[:-1], atol=1e-6)
    np.testing.assert_allclose(
        bias, made[-1] * m.layers[-1].bias_feature, atol=1e-4
    )


@pytest.mark.parametrize("bias", [True, False])
@BOTH
def test_binary_labels(rounds, bias):
    x, y = records()
    keep = y < 2
    x, y = x[keep], y[keep]
    rounds = fm.Rounds(
        rounds=20, batch_size=rounds.batch_size, learning_rate=8.0
    )
    m = model(rounds, units=1, use_bias=bias)
    p = private((x, y), epsilon=8.0, seed=0)
    m.fit(x, y, 200, callbacks=[p], verbose=0)
    assert p.release.statistics["weights"].shape == (D + bias, 1)
    assert np.mean((m.predict(x, verbose=0)[:, 0] > 0) == y) > 0.8


def test_integer_features_keep_their_constant_entry():
    """Small whole numbers straight under the private layer."""
    x = np.eye(D, dtype="int32")[np.arange(N) % D]
    y = np.full(N, 1)
    for dtype in ("int32", "float32"):
        m = of(fm.layers.PrivateDense(3, rounds=FULL, bias_feature=1.0))
        p = private((x.astype(dtype), y), epsilon=1e5)
        m.fit(x.astype(dtype), y, N, callbacks=[p], verbose=0)
        bias = m.layers[-1].get_weights()[1]
        assert bias[1] > 0.5 and max(bias[0], bias[2]) < -0.5


# After the release, no record moves a weight --------------------------------


def test_the_released_objective_is_the_distance_to_the_weights():
    m = model(optimizer=keras.optimizers.SGD(0.1))
    before = [w.astype("float64") for w in m.get_weights()]
    p = private(records(), start="current")
    x, y = records()
    history = m.fit(x, y, batch_size=N, callbacks=[p], verbose=0).history
    made = p.release.statistics["weights"].copy()
    # The bias is the weight of a constant feature; distances are its own.
    made[-1] *= m.layers[-1].bias_feature
    gap = np.concatenate([before[0], before[1][None]]) - made
    assert set(history) == {"loss"}, "a metric of private records was logged"
    np.testing.assert_allclose(
        history["loss"], 3 * math.log(2) + np.sum(gap**2) / 8, rtol=1e-4
    )
    kernel, bias = m.get_weights()
    np.testing.assert_allclose(
        kernel, before[0] - 0.1 * gap[:-1] / 4, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        bias, before[1] - 0.1 * gap[-1] / 4, rtol=1e-4, atol=1e-5
    )


# Components -----------------------------------------------------------------


@pytest.mark.parametrize("center", [False, True])
def test_components_at_negligible_noise(center):
    """At epsilon 10^6 the noise on A is below 0.01 of 300 records."""
    m, p = fitted(
        model(None, {"units": 4, "whitening": 0.5, "center": center}),
        epsilon=1e6,
    )
    x, _ = records()
    v = x / np.linalg.norm(x, axis=1, keepdims=True)
    mean = v.mean(axis=0) if center else np.zeros(D)
    _, vectors = np.linalg.eigh((v - mean).T @ (v - mean))
    kernel = array(m.get_layer("pca").kernel)
    lengths = np.linalg.norm(kernel, axis=0)
    found = np.abs((kernel / lengths).T @ vectors[:, ::-1][:, :4])
    np.testing.assert_allclose(found, np.eye(4), atol=0.025)
    outputs = array(m.get_layer("pca")(v.astype("float32")))
    sizes = np.mean(outputs**2, axis=0)
    np.testing.assert_allclose(sizes, sizes[0], rtol=0.025)
    if center:
        np.testing.assert_allclose(outputs.mean(axis=0), 0, atol=0.005)


def test_two_dp_pca_layers_learn_from_the_input_upwards():
    """The second reads what the first gives after its release."""
    m = of(
        fm.layers.NormalizationLayer(),
        fm.layers.DPPCA(5, name="a"),
        fm.layers.DPPCA(2, name="b"),
        fm.layers.NormalizationLayer(),
        fm.layers.PrivateDense(3, rounds=FULL, name="output"),
    )
    m, p = fitted(m, epsilon=1e6)
    assert [e.name for e in p.ledger.entries] == [
        "a (second moment)", "b (second moment)", "output",
    ]  # fmt: skip
    # Of components in order the second keeps the first two.
    kernel = np.abs(array(m.get_layer("b").kernel))
    np.testing.assert_allclose(kernel, np.eye(5)[:, :2], atol=1e-2)


@BOTH
@pytest.mark.once
def test_owners_may_own_several_rows_under_rounds(rounds):
    """The unit is an owner: in the statement, in the count that rates and
    divisors come from, and in the samples."""
    owners = np.random.default_rng(0).permutation(np.arange(N) // 3)
    unit = fm.Unit(owners=owners)
    m, p = fitted(model(rounds), unit=unit)
    (entry,) = p.ledger.entries
    assert "the sum of each owner's clipped" in entry.uses
    assert "one owner with all its rows" in p.report()
    assert "and that of owners" in p.report()
    expected = 1.0 if rounds is FULL else rounds.batch_size / (N // 3)
    assert entry.mechanism["sampling_rate"] == pytest.approx(expected)
    assert p.release.query.grouped and m.get_layer("output").is_released
    assert p.ledger.epsilon() <= EPSILON * (1 + 1e-9)


@pytest.mark.once
def test_an_owner_of_many_records_counts_as_one():
    """Thrice the records of every owner, one owner each: without a clip that
    reaches them they count three times, with it once."""
    x, y = records()
    thrice = np.tile(x, (3, 1)), np.tile(y, 3)
    small = dataclasses.replace(FULL, clip=1e-3)
    found = []
    for data, owners in (
        ((x, y), np.arange(N)),
        (thrice, np.tile(np.arange(N), 3)),
    ):
        p = private(data, epsilon=1e6, unit=fm.Unit(owners=owners), seed=1)
        m = model(small)
        m.fit(x, y, batch_size=N, callbacks=[p], verbose=0)
        found.append(weights(m))
    # All coefficients are longer than the clip, but for records that are
    # beyond the margin.
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_without_an_output_layer_and_without_labels():
    m = keras.Sequential(
        [
            keras.Input((D,)),
            fm.layers.NormalizationLayer(),
            fm.layers.DPPCA(4, name="pca"),
        ]
    )
    m.compile("sgd", "mse")
    x, _ = records()
    p = private(x)
    before = array(m.get_layer("pca").kernel)
    m.fit(x, np.zeros((N, 4)), N, callbacks=[p], verbose=0)
    assert [e.name for e in p.ledger.entries] == ["pca (second moment)"]
    assert 0.999 * EPSILON < p.ledger.epsilon() <= EPSILON
    assert np.abs(array(m.get_layer("pca").kernel) - before).max() > 0.1


# Refusals, all before anything is spent -------------------------------------


def test_replace_one():
    _, p = fitted(model(FULL, {"units": 4}), neighbours="replace_one")
    assert 0.999 * EPSILON < p.ledger.epsilon() <= EPSILON
    entry = p.ledger.entries[-1]
    assert entry.mechanism["sensitivity"] == pytest.approx(2 * FULL.clip)


TOO_MANY = fm.Rounds(rounds=3, batch_size=N + 1, learning_rate=1.0)


@pytest.mark.parametrize("pca", [None, {"units": 4}])
@pytest.mark.parametrize(
    "rounds, match, given",
    [
        (POISSON, "add_remove", {"neighbours": "replace_one"}),
        (FULL, "needs delta > 0", {"delta": 0.0}),
        (FULL, "must be public", {"n_public": False}),
        (FULL, "`reach` is not", {"unit": fm.Unit(reach=2)}),
        (TOO_MANY, "must not exceed the number of records", {}),
    ],
)
@pytest.mark.once
def test_what_no_proof_covers_is_refused(rounds, match, given, pca):
    p = private(records(), **given)
    with pytest.raises(ValueError, match=match):
        p.plan(model(rounds, pca))
    assert not p.ledger.entries
