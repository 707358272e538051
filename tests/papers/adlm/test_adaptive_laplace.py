"""AdaptiveLaplace as a user meets it: compile, fit, save, refuse."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.models import AdaptiveLaplace, PublishedAdLM

pytestmark = pytest.mark.full


def records(n=4000, d=12, useful=3, seed=0):
    """Only the first features tell the classes apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, d))
    x[np.arange(n), y % useful] += 2.5
    return np.clip(x, -4, 4).astype("float32"), y


def proven(data, epsilon=1.0, delta=1e-6, reproducible_noise=None, **kwargs):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, delta),
        data=data,
        guarantee=fm.Proven(**kwargs),
        reproducible_noise=reproducible_noise,
    )


def fitted(data, callback, **kwargs):
    model = AdaptiveLaplace(data[0].shape[1:], 3, bounds=(-4.0, 4.0), **kwargs)
    model.compile("adam", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    model.fit(*data, batch_size=500, callbacks=[callback], verbose=0)
    return model


def accuracy(model, data):
    x, y = data
    return np.mean(model.predict(x, verbose=0).argmax(1) == y)


# Proven --------------------


@pytest.mark.parametrize("delta", [1e-6, 0.0])
@pytest.mark.once
def test_three_releases_compose_to_the_budget(delta):
    data = records()
    p = proven(data, delta=delta)
    model = fitted(data, p)
    entries = p.ledger.entries
    assert [e.name for e in entries] == [
        "scaling (first model)",
        "scaling (relevance)",
        "output",
    ]
    assert all(e.guarantee == "proven" for e in entries)
    assert [e.proof for e in entries] == [
        "docs/proofs/cross_entropy.md",
        "docs/proofs/relevance.md",
        "docs/proofs/cross_entropy.md",
    ]
    assert 0.999 < p.ledger.epsilon() <= 1
    assert accuracy(model, data) > 0.6


def test_useful_features_are_scaled_up_and_others_down():
    data = records()
    p = proven(data, epsilon=8.0)
    model = fitted(data, p)
    scale = keras.ops.convert_to_numpy(model.get_layer("scaling").scale)
    assert scale[:3].min() > 1 > scale[3:].max()
    assert p.relevance.shape == (12,)
    np.testing.assert_allclose(p.relevance.mean(), 1)
    # Nearly all of the first model is signal here, so shares rule.
    np.testing.assert_allclose(scale, p.relevance, atol=0.2)


@pytest.mark.once
def test_shares_shrink_to_one_where_the_first_model_is_noise():
    data = records(60)
    scales = []
    for shrink in (True, False):
        model = AdaptiveLaplace((12,), 3, bounds=(-4.0, 4.0))
        model.get_layer("scaling").shrink = shrink
        model.compile("adam", fm.losses.TaylorCrossEntropy())
        p = proven(data, epsilon=0.1, reproducible_noise=4)
        model.fit(*data, callbacks=[p], verbose=0)
        scales.append(
            keras.ops.convert_to_numpy(model.get_layer("scaling").scale)
        )
    assert np.abs(scales[0] - 1).max() < 0.5 * np.abs(scales[1] - 1).max()


@pytest.mark.once
def test_adaptation_gains_where_few_features_matter():
    """Two fixed noise seeds."""
    data, test = records(4000, 40), records(4000, 40, seed=1)
    gains = []
    for seed in range(2):
        by = [
            accuracy(
                fitted(
                    data,
                    proven(data, epsilon=0.25, reproducible_noise=seed),
                    adaptive=adaptive,
                ),
                test,
            )
            for adaptive in (True, False)
        ]
        gains.append(by[0] - by[1])
    print(gains)
    assert np.mean(gains) > 0.02


def test_images_public_features_and_a_layer_on_top(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.random((200, 6, 6, 1)).astype("float32")
    y = (x.mean((1, 2, 3)) > 0.5).astype(int)
    features = keras.Sequential(
        [keras.Input((6, 6, 1)), keras.layers.AveragePooling2D(2),
         keras.layers.Flatten()], name="pooled",
    )  # fmt: skip
    top = keras.Sequential(
        [keras.Input((9,)), keras.layers.Dense(5, trainable=False),
         keras.layers.UnitNormalization()], name="top",
    )  # fmt: skip
    for kwargs in (
        {"features": features, "top": top},
        {"features": "pixels", "hidden": 8},
        {"units": 1},
    ):
        model = AdaptiveLaplace((6, 6, 1), **{"units": 2, **kwargs})
        model.compile("adam", fm.losses.TaylorCrossEntropy())
        p = proven((x, y))
        model.fit(x, y, callbacks=[p], verbose=0)
        assert len(p.ledger.entries) == 3
        model.save(tmp_path / "m.keras")
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        assert type(loaded) is AdaptiveLaplace
        np.testing.assert_array_equal(
            loaded.predict(x, verbose=0), model.predict(x, verbose=0)
        )
        assert loaded.get_layer("output").is_released


# Published --------------------


@pytest.mark.parametrize("form", ["paper", "code"])
@pytest.mark.parametrize("architecture", ["dense", "mnist", "cifar10"])
def test_published_architectures_train_and_are_only_claimed(
    architecture, form, tmp_path
):
    shape = (10, 10, 1)
    rng = np.random.default_rng(0)
    x = rng.random((60, *shape)).astype("float32")
    y = np.arange(60) % 3

    model = AdaptiveLaplace(
        shape,
        3,
        guarantee=PublishedAdLM(
            form=form, architecture=architecture, width=0.05
        ),
        hidden=6 if architecture == "dense" else 0,
    )
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    twin = fm.models.unprotected_twin(model)
    twin.compile("adam", fm.losses.TaylorCrossEntropy())
    twin.fit(x, y, batch_size=30, verbose=0)
    guarantee = model.guarantee(lot=30, relevance_of=twin)
    p = fm.callbacks.PrivateModel(2.0, 0.0, data=(x, y), guarantee=guarantee)
    model.fit(x, y, batch_size=30, callbacks=[p], verbose=0)
    assert p.ledger.epsilon() == np.inf
    assert p.ledger.claimed_epsilon() == pytest.approx(2.0)
    report = p.report()
    assert "no valid proof" in report and "docs/guarantees.md" in report
    assert "(epsilon = 2" in report
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(
        loaded.predict(x, batch_size=60, verbose=0),
        model.predict(x, batch_size=60, verbose=0),
        atol=1e-5,
    )
    # Noise is in no file.
    assert not loaded.get_layer("perturbed").is_perturbed
    with pytest.raises(ValueError, match="'perturbed' has no release"):
        loaded.fit(x, y, batch_size=30, verbose=0)


@pytest.mark.once
def test_golden_scales_of_the_papers_sizes():
    """MNIST and CIFAR-10 at the paper's size, by hand from its formulas."""
    mnist = AdaptiveLaplace(
        (28, 28, 1), 10, PublishedAdLM(architecture="mnist", form="code")
    )
    first, head = mnist.get_layer("perturbed"), mnist.get_layer("output")
    assert (
        first.claimed_sensitivity("replace_one", mnist.published_settings)
        == 2 * 14 * 14 * 25
    )
    assert head.num_features == 25
    p = fm.callbacks.PrivateModel(
        0.3, 0.0, data=(0, 0), guarantee=mnist.guarantee(lot=1800)
    )
    p.set_model(mnist)
    plan = p._make_plan()
    assert list(plan.epsilons.values()) == pytest.approx([0.075, 0.075, 0.15])
    claims = {claim.name: claim for _, claim in plan._open()}
    assert list(claims) == ["perturbed (relevance)", "perturbed", "output"]
    assert plan._scale(claims["output"]) == pytest.approx(
        1812.5 / 0.15, rel=1e-15
    )
    # 2 d / (n eps1) for 60,000 records of 784 pixels.
    assert plan._scale(
        claims["perturbed (relevance)"], (None, 60_000)
    ) == pytest.approx(2 * 784 / (60_000 * 0.075), rel=1e-15)
    assert not claims["perturbed (relevance)"].per_lot
    relevance = np.zeros(784)
    relevance[:3] = 0.5, -0.25, 0.25
    first.relevance = relevance.reshape(28, 28, 1)
    kept = []
    first.fix_noise = lambda per_step, **noise: kept.extend(noise.values())
    # Scales, not draws: the authors' noise is drawn at every step.
    claims["perturbed"].fix(plan._scale(claims["perturbed"]) / 1800, None)
    scales = kept[0].ravel()
    total = 1.0 + 781 * 1e-5
    np.testing.assert_allclose(
        scales[:4],
        [
            9800 * total / (784 * size * 0.075) / 1800
            for size in (0.5, 0.25, 0.25, 1e-5)
        ],
        rtol=1e-13,
    )
    cifar = AdaptiveLaplace(
        (20, 20, 3), 10, PublishedAdLM(architecture="cifar10", form="code")
    )
    first = cifar.get_layer("perturbed")
    assert (
        first.claimed_sensitivity("replace_one", cifar.published_settings)
        == 3 * 2 * 10 * 10 * 9
    )


# Arguments --------------------


@pytest.mark.parametrize("form", ["paper", "code"])
def test_published_predictions_are_normalised_by_their_own_batch(form):
    model = AdaptiveLaplace(
        (6,), 3, PublishedAdLM(form=form), hidden=5, unprotected=True
    )
    x = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
    before = model.get_weights()
    predicted = model.predict(x, batch_size=40, verbose=0)
    while_training = model(x, training=True)
    np.testing.assert_allclose(
        predicted, keras.ops.convert_to_numpy(while_training), atol=1e-5
    )
    # Predicting learns nothing, and depends on the batch.
    hidden = keras.Model(model.inputs, model.get_layer("output").input)
    values = keras.ops.convert_to_numpy(hidden(x))
    assert values.min() >= 0 and values.max() <= 1
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)
    assert np.abs(predicted - model.predict(x[:5], verbose=0)[0]).max() > 1e-3
