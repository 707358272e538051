"""A FunctionalNet under PrivateModel: rounds, budget, both guarantees."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.kernel import mechanisms
from keras_fm.papers.functional_net import claims

pytestmark = pytest.mark.full

INPUTS, CLASSES, N, DELTA = 6, 3, 400, 1e-5


def records(seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, N)
    x = rng.normal(size=(N, INPUTS)) + 4 * np.eye(CLASSES, INPUTS)[y]
    return x.astype("float32"), y


@pytest.fixture
def data():
    return records()


def build(
    units=(5,),
    rounds=3,
    below=None,
    name="net",
    activation="tanh",
    **arguments,
):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(u, activation=activation) for u in units]
    layers.append(
        keras.layers.Dense(
            CLASSES,
            activation="sigmoid" if "loss" in arguments else None,
        )
    )
    if below is None:
        below = [fm.layers.NormalizationLayer(), keras.layers.Rescaling(4.0)]
    model = fm.models.FunctionalNet(
        (INPUTS,), layers, rounds=rounds, below=below, name=name, **arguments
    )
    model.compile(keras.optimizers.SGD(1.0), metrics=["accuracy"])
    return model


def printed(**arguments):
    """A model that Theorem 6 is about: sigmoid units, inputs in [0, 1]."""
    below = [fm.layers.NormalizationLayer((-8.0, 8.0), "linf")]
    return build(**{"activation": "sigmoid", "below": below} | arguments)


def private_model(data, epsilon=4.0, delta=DELTA, seed=None, **proven):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, delta),
        data=data,
        guarantee=fm.Proven(**proven),
        reproducible_noise=seed,
    )


def published_model(data, epsilon=4.0, seed=None, settings=None):
    return fm.callbacks.PrivateModel(
        epsilon,
        0.0,
        data=data,
        guarantee=fm.Published(lot="data", settings=settings),
        reproducible_noise=seed,
    )


def fit(model, data, private, epochs=1, **arguments):
    return model.fit(
        *data, epochs=epochs, callbacks=[private], verbose=0, **arguments
    ).history


# Proven --------------------------------------------------------------------


@pytest.mark.parametrize("delta", [DELTA, 0.0])
@pytest.mark.once
def test_rounds_share_the_budget_and_it_is_spent(data, delta):
    model, private = build(), private_model(data, delta=delta)
    plan = private.plan(model)
    assert not private.ledger.entries and not model.is_released
    history = fit(model, data, private, validation_data=records(seed=1))
    entries = private.ledger.entries
    assert [e.name for e in entries] == [
        f"net (round {r} of 3)" for r in (1, 2, 3)
    ]
    assert all(entry.name in plan for entry in entries)
    assert all(entry.guarantee == "proven" for entry in entries)
    assert 3.98 < private.ledger.epsilon() <= 4.0
    kinds = {entry.mechanism["mechanism"] for entry in entries}
    if delta:
        assert kinds == {"GaussianMechanism"}
        assert "L2 norm" in entries[0].uses
    else:
        assert kinds == {"LaplaceMechanism"}
        assert "L1 norm" in entries[0].uses
    assert all(e.mechanism["sensitivity"] == 1.0 for e in entries)
    # What is trained is released; metrics of the records are gone.
    assert set(history) == {"loss", "val_loss", "val_accuracy"}
    assert model.is_released and not model.published
    assert private.release is private.releases["net"]


@pytest.mark.once
def test_replace_one_doubles_the_sensitivity(data):
    model = build()
    private = private_model(data, neighbours="replace_one")
    fit(model, data, private)
    assert {e.mechanism["sensitivity"] for e in private.ledger.entries} == {2.0}


def test_every_round_expands_about_the_minimum_of_the_one_before(data):
    """Replayed by hand from the noisy sums, with the rule of the model."""
    model = build(units=(), rounds=3)
    private = private_model(data, seed=7)
    start = model.augmented_weights()
    points = []
    factors = model.factors

    def watched(x, y=None):
        points.append(model.augmented_weights())
        return factors(x, y)

    model.__dict__["factors"] = watched
    fit(model, data, private)
    del model.__dict__["factors"]
    # As many batches in each round, at the same weights.
    assert len(points) % 3 == 0
    for a, b in zip(points, points[1 : len(points) // 3]):
        np.testing.assert_array_equal(a[0], b[0])
    points = points[:: len(points) // 3]
    noise = mechanisms.NoiseSource(7)
    weights, move = start, [0.0]
    for r, entry in enumerate(private.ledger.entries):
        np.testing.assert_allclose(points[r][0], weights[0], atol=1e-5)
        model.set_augmented_weights(weights)
        objective = model.objective()
        statistics = objective.accumulate(objective.zero(), factors(*data))
        mechanism = entry.build_mechanism()
        noisy = mechanism.perturb(
            objective.pack(statistics, "l2"),
            noise,
            error=objective.rounding_error("l2"),
        )
        g, h = objective.unpack(noisy, "l2")
        shape = objective.shapes_of_layers[0]
        g, h = g.reshape(shape), h.reshape(shape)
        stddev = mechanism.stddev / objective.curvature_weight
        h = np.maximum(h, 0) + 0.1 * max(h.mean(), 0) + stddev
        move = [0.8 * move[0] - g / h]
        weights = [weights[0] + move[0]]
    model.set_weights_from_minimiser()
    np.testing.assert_allclose(
        model.augmented_weights()[0], weights[0], rtol=1e-3, atol=1e-4
    )


def test_layers_below_are_released_first(data):
    model = build(
        below=[fm.layers.NormalizationLayer(), fm.layers.DPPCA(4)], rounds=2
    )
    private = private_model(data)
    fit(model, data, private)
    names = [e.name for e in private.ledger.entries]
    assert names[1:] == ["net (round 1 of 2)", "net (round 2 of 2)"]
    assert "second moment" in names[0]
    assert 3.9 < private.ledger.epsilon() <= 4.0


@pytest.mark.once
def test_a_crash_leaves_what_was_charged_and_the_weights_that_were_there(data):
    model, private = build(), private_model(data)
    start, factors = model.get_weights(), model.factors

    def crash(x, y=None):
        if len(private.ledger.entries) == 2:
            raise KeyboardInterrupt
        return factors(x, y)

    model.__dict__["factors"] = crash
    with pytest.raises(KeyboardInterrupt):
        fit(model, data, private)
    assert [e.name for e in private.ledger.entries] == [
        "net (round 1 of 3)", "net (round 2 of 3)",
    ]  # fmt: skip
    # Weights of a round would belong to a ledger that may be lost.
    for a, b in zip(model.get_weights(), start):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    del model.__dict__["factors"]
    with pytest.raises(fm.BudgetExceededError):
        fit(model, data, private)


# Published -----------------------------------------------------------------


@pytest.mark.once
def test_the_published_form_is_claimed(data):
    model = printed()
    private = published_model(data)
    plan = private.plan(model)
    fit(model, data, private)
    entries = private.ledger.entries
    assert len(entries) == 3
    assert {e.guarantee for e in entries} == {"claimed"}
    assert private.ledger.claimed_epsilon() == pytest.approx(4.0)
    assert private.ledger.epsilon() == float("inf")
    stated = claims.network_expansion_sensitivity(
        [5, 3], neighbours="replace_one"
    )
    assert entries[0].mechanism["laplace_scale"] == pytest.approx(
        stated / (4.0 / 3)
    )
    assert "Theorem 6" in entries[0].proof
    assert "claimed" in plan and model.published


def test_published_noise_is_that_of_theorem_6(data):
    """The released coefficients minus the exact ones have the mean absolute
    value of Laplace noise: 6 fits of 42 numbers, within five standard errors
    (a false alarm in 10^6)."""
    scales, count = [], 0
    for seed in range(6):
        model = printed(units=(), rounds=1)
        private = published_model(data, seed=seed)
        exact = model.objective("l1", clipped=False)
        sums = exact.accumulate(exact.zero(), model.factors(*data, "diagonal"))
        g, h = exact.unpack(exact.pack(sums, "l1"), "l1")
        fit(model, data, private)
        found = private.release.statistics
        missed = np.r_[found["gradient"] - g, found["curvature"] - h]
        # float32 factors, summed in another order.
        scales.append(np.abs(missed).mean())
        count += len(missed)
    expected = (
        claims.network_expansion_sensitivity([3], neighbours="replace_one")
        / 4.0
    )
    assert abs(np.mean(scales) / expected - 1) < 5 / np.sqrt(count)


def test_the_published_step_is_the_printed_one(data):
    """It was damped, ridged and short, unless somebody said otherwise. The
    noise is far below what is compared."""
    model = printed(units=(), rounds=1)
    start = model.augmented_weights()[0]
    exact = model.objective(clipped=False)
    g, h = exact.accumulate(exact.zero(), model.factors(*data, "diagonal"))
    fit(model, data, published_model(data, epsilon=1e6))
    model.set_weights_from_minimiser()
    moved = model.augmented_weights()[0] - start
    np.testing.assert_allclose(
        moved, -(g / h).reshape(moved.shape), rtol=1e-3, atol=1e-5
    )


def test_a_weight_without_a_minimum_stays(data):
    """Noise makes curvatures negative, along which the printed quadratic has
    no minimum."""
    model = printed(units=(), rounds=1)
    start = model.augmented_weights()[0]
    private = published_model(data, epsilon=0.02, seed=1)
    fit(model, data, private)
    model.set_weights_from_minimiser()
    moved = model.augmented_weights()[0] - start
    found = private.release.statistics
    h = found["curvature"].reshape(moved.shape)
    g = found["gradient"].reshape(moved.shape)
    assert 0 < np.sum(h <= 0) < h.size
    np.testing.assert_allclose(moved[h <= 0], 0.0, atol=1e-6)
    some = (h > 1).nonzero()
    np.testing.assert_allclose(moved[some], -(g / h)[some], rtol=1e-3)


def test_sums_are_clipped_as_printed(data):
    # Of all layers together, not of each by itself.
    model = printed(rounds=1)
    exact = model.objective("l1", clipped=False)
    sums = exact.accumulate(exact.zero(), model.factors(*data, "diagonal"))
    sums = exact.unpack(exact.pack(sums, "l1"), "l1")
    settings = fm.models.PublishedFunctionalNet(sum_clip=2.0)
    private = published_model(data, epsilon=1e6, settings=settings)
    fit(model, data, private)
    for name, values in zip(("gradient", "curvature"), sums):
        assert np.linalg.norm(values) > 10
        np.testing.assert_allclose(
            private.release.statistics[name],
            values / (np.sum(values**2) / 2.0),
            atol=2e-3,
        )


def test_published_and_proven_do_not_mix(data):
    model = printed()
    fit(model, data, published_model(data))
    with pytest.raises(ValueError, match="published"):
        fit(model, data, private_model(data))
    other = printed()
    fit(other, data, private_model(data))
    with pytest.raises(ValueError, match="proven"):
        fit(other, data, published_model(data))
