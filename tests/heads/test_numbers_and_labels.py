"""Output layers that predict numbers, or several labels."""

import math

import keras
import numpy as np
import pytest
from layer_checks import check_layer, check_saved

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.heads.private_dense import PrivateDense
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.release import calibrate, release_statistics

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]

N, BOUNDS = 600, ((-10.0, 30.0), (0.0, 4.0))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 5)).astype("float32")
UNIT = X / np.linalg.norm(X, axis=1, keepdims=True)
Y = np.array([10, 2]) + UNIT @ RNG.normal(size=(5, 2)) * [6, 0.5]
Y = (Y + RNG.normal(size=(N, 2)) * [0.5, 0.05]).astype("float32")
LABELS = (UNIT @ RNG.normal(size=(5, 3)) > 0).astype("float32")


def head(units=2, **kwargs):
    defaults = {"loss": "squared_error", "target_bounds": BOUNDS}
    return PrivateDense(units, **({"name": "head"} | defaults | kwargs))


def model(*body, layer=None, loss="mse", **kwargs):
    made = keras.Sequential(
        [
            keras.Input((5,)),
            *body,
            fm.layers.NormalizationLayer(),
            layer or head(**kwargs),
        ]
    )
    made.compile(keras.optimizers.SGD(0.1), loss, metrics=["mae"])
    return made


def private(epsilon=1.0, data=(X, Y), delta=1e-6, **kwargs):
    return PrivateModel(fm.PrivacyBudget(epsilon, delta), data=data, **kwargs)


def array(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize(
    "make, dtype",
    [
        (head, "variable_dtype"),
        (lambda **k: head(1, target_bounds=(0, 1), **k), "variable_dtype"),
        (
            lambda **k: PrivateDense(3, loss="binary_cross_entropy", **k),
            "compute_dtype",
        ),
    ],
)
def test_they_are_keras_citizens(make, dtype, tmp_path):
    check_layer(make, X, private=True, dtype=dtype)
    check_saved(make(), X, tmp_path / "m.keras")


@pytest.mark.parametrize("rounds", [None, fm.Rounds(rounds=60, clip=0.5)])
def test_it_learns_and_errors_are_in_the_unit_of_the_targets(rounds):
    made = model(rounds=rounds)
    history = made.fit(
        X[:500], Y[:500], epochs=2, verbose=0,
        callbacks=[private(30.0, (X[:500], Y[:500]), reproducible_noise=0)],
        validation_data=(X[500:], Y[500:]),
    ).history  # fmt: skip
    missed = np.abs(made.predict(X[500:], verbose=0) - Y[500:])
    assert history["val_mae"][-1] == pytest.approx(missed.mean(), rel=1e-4)
    spread = np.abs(Y - Y.mean(axis=0)).mean(axis=0)
    assert np.all(missed.mean(axis=0) < 0.6 * spread)


@pytest.mark.parametrize("rounds", [None, 3])
def test_training_begins_at_the_minimum_and_stays_there(rounds):
    """The bias is a weight times `bias_feature`: a rounding of that way back
    was a gradient, which steps in its steep direction made infinite."""
    made = model(rounds=rounds, bias_feature=0.007)
    callback = private(0.5)
    made.fit(X, Y, verbose=0, callbacks=[callback])
    layer = made.layers[-1]
    before = [array(w).copy() for w in layer.weights]
    made.fit(X, Y, batch_size=10, epochs=3, verbose=0)
    for weight, kept in zip(layer.weights, before):
        np.testing.assert_allclose(array(weight), kept, rtol=1e-4, atol=1e-4)


def test_the_loss_of_a_fit_is_the_released_objective():
    """Without noise: half the squared error, and what targets lack to the
    length of a corner."""
    made = model()
    callback = private(1e6, guarantee=fm.Proven(ridge_factor=0.0))
    loss = made.fit(X, Y, verbose=0, callbacks=[callback]).history["loss"][-1]
    low, high = np.array(callback.release.query.target_bounds).T
    half, own = (high - low) / 2, np.array([20, 2])
    wrong = (made.predict(X, verbose=0) - Y) / own
    wanted = np.mean(np.sum(wrong**2, axis=1)) / 2
    t = (Y - (low + high) / 2) / half
    wanted += np.sum((half / own) ** 2 * (1 - np.mean(t**2, axis=0))) / 2
    assert loss == pytest.approx(wanted, abs=0.02)


def test_relevance_of_numbers():
    callback = private(4.0)
    made = model(fm.layers.RelevanceScaling(name="scaling"))
    made.fit(X, Y, verbose=0, callbacks=[callback])
    assert len(callback.ledger.entries) == 4


def test_a_release_from_elsewhere():
    """The sums of two machines, by the layer's own objective."""
    layer = head()
    model(layer=layer)
    objective = layer.objective()
    parts = []
    for rows in (slice(0, 200), slice(200, N)):
        part = PartialStatistics(objective)
        part.add(layer.augment(UNIT[rows] * 0.999), Y[rows])
        parts.append(part)
    parts[0].merge(PartialStatistics.from_bytes(parts[1].to_bytes(), objective))
    ledger = fm.Ledger(fm.PrivacyBudget(5.0, 1e-6), neighbours="add_remove")
    released = release_statistics(
        parts[0],
        mechanism=calibrate(
            objective, ledger.budget, neighbours=ledger.neighbours
        ),
        ledger=ledger,
        name="head",
        noise=NoiseSource(0),
    )
    layer.learn(released, ledger)
    layer.learn(released, ledger, start=np.zeros((6, 2)))
    assert layer.is_released and not array(layer.kernel).any()
    other = head(bias_feature=0.3)
    other.build((None, 5))
    with pytest.raises(ValueError, match="not one of layer"):
        other.learn(released, ledger)


def test_labels_are_learned_each_by_its_own():
    wanted = 0.5 + np.abs(LABELS.mean(axis=0) - 0.5)
    for rounds in (None, 40, fm.Rounds(rounds=40, loss="cross_entropy")):
        layer = PrivateDense(3, loss="binary_cross_entropy", rounds=rounds)
        made = model(layer=layer, loss=fm.losses.TaylorCrossEntropy())
        callback = private(10.0, (X, LABELS), reproducible_noise=0)
        made.fit(X, LABELS, verbose=0, callbacks=[callback])
        found = (made.predict(X, verbose=0) > 0) == LABELS
        assert np.all(found.mean(axis=0) > wanted + 0.2)


def test_the_published_form_is_of_classes():
    made = model()
    with pytest.raises(ValueError, match='belongs to\n? ?guarantee="proven"'):
        made.fit(
            X, Y, verbose=0,
            callbacks=[private(guarantee=fm.Published(lot="data"))],
        )  # fmt: skip


# The window of one release ---------------------------------------------------


def narrow(epsilon, y, bounds=(0, 1000), **kwargs):
    made = model(units=1, target_bounds=bounds, clip=True, **kwargs)
    callback = private(epsilon, data=(X, y))
    made.fit(X, y, verbose=0, callbacks=[callback])
    return made, callback


def test_numbers_far_from_the_middle_of_wide_bounds_are_found():
    """Bounds a hundred times as wide as the numbers. Its error at epsilon 5 is
    a tenth of what noise for the whole bounds leaves."""
    y = 100 + Y[:, :1]
    made, callback = narrow(5.0, y)
    low, high = callback.release.query.target_bounds[0]
    assert low < y.mean() < high and high - low < 500
    found = made.predict(X, verbose=0)
    assert np.abs(found - y).mean() < 20
    moments, sums = callback.ledger.entries
    assert moments.name == "head (targets)" and sums.name == "head"
    shares = [e.mechanism["noise_multiplier"] ** -2 for e in (moments, sums)]
    assert shares[0] / sum(shares) == pytest.approx(0.2, rel=0.02)
    assert callback.ledger.epsilon() <= 5


def test_the_window_is_all_of_the_bounds_with_noise_alone():
    _, callback = narrow(1e-3, 100 + Y[:, :1])
    low, high = callback.release.query.target_bounds[0]
    assert high - low > 800


def test_without_much_noise_no_number_is_cut_off():
    """Skewed counts keep their mean."""
    y = np.minimum(np.random.default_rng(0).gamma(0.2, 50, (N, 1)), 1000)
    made, callback = narrow(1e5, y)
    assert callback.release.query.target_bounds[0][1] >= y.max()
    assert made.predict(X, verbose=0).mean() == pytest.approx(
        y.mean(), rel=0.02
    )


def test_a_wrong_record_fails_before_the_first_charge():
    for x, y in ((X, Y * np.inf), (X, Y * 100), (X * np.nan, Y)):
        callback = private(1.0, data=(x, y))
        with pytest.raises(ValueError):
            model().fit(X, Y, verbose=0, callbacks=[callback])
        assert not callback.ledger.entries


@pytest.mark.parametrize("neighbours", ["replace_one", "replace_label"])
def test_the_window_is_released_under_other_relations(neighbours):
    ledger = fm.Ledger(fm.PrivacyBudget(50.0, 1e-6), neighbours=neighbours)
    made = model()
    made.fit(X, Y, verbose=0, callbacks=[PrivateModel(ledger, data=(X, Y))])
    assert [e.name for e in ledger.entries] == ["head (targets)", "head"]
    assert {str(e.neighbours) for e in ledger.entries} == {neighbours}
    assert np.abs(made.predict(X, verbose=0) - Y)[:, 0].mean() < 5


@pytest.mark.parametrize(
    "neighbours", ["add_remove", "replace_one", "replace_label"]
)
def test_the_noise_of_the_moments_is_the_noise_charged(neighbours):
    """Of 800 numbers in the middle of their bounds, whose sums are noise alone;
    15 % off less than once in a million runs."""
    ledger = fm.Ledger(fm.PrivacyBudget(1.0, 1e-6), neighbours=neighbours)
    y = np.zeros((N, 800), "float32")
    callback = PrivateModel(ledger, data=(X, y))
    made = model(units=800, target_bounds=(-1, 1))
    made.fit(X, y, verbose=0, callbacks=[callback])
    moments = callback.releases["head (targets)"]
    entry, sums = ledger.entries
    assert moments.statistics["sums"].std() == pytest.approx(
        entry.build_mechanism().stddev, rel=0.15
    )
    change = math.sqrt(3 * 800 + 1) / 2**0.5
    if neighbours != "add_remove":
        change = 2 * math.sqrt(800)
    assert entry.mechanism["sensitivity"] == pytest.approx(change)
    assert sums.name == "head"
