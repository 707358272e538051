"""DeepPrivateAutoencoder as a user meets it: build, train, decode, save."""

import functools

import keras
import numpy as np
import pytest
from pretrained_rooms import compiled

import keras_fm as fm
from keras_fm.models import DeepPrivateAutoencoder

D = 8
# Whose steps are many: compiled, see `untraced`.
TRACED = "learns_digits"
pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]


@functools.cache
def _records(n):
    """Two hidden factors, values in [0, 1], three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    factors = rng.normal(size=(n, 2)) / 6
    factors += np.array([[0.6, 0], [-0.3, 0.5], [-0.3, -0.5]])[y]
    directions = np.linalg.qr(rng.normal(size=(D, 2)))[0].T
    return np.clip(0.5 + factors @ directions, 0, 1).astype("float32"), y


def records(n=400):
    x, y = _records(n)
    return x.copy(), y.copy()


def array(x):
    return keras.ops.convert_to_numpy(x)


def proven(data, epsilon=1e5, **kwargs):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, 0.0), data=data, **kwargs
    )


def published(m, data, epsilon, **kwargs):
    return fm.callbacks.PrivateModel(
        epsilon, 0.0, data=data, guarantee=m.guarantee(), **kwargs
    )


def adam():
    return keras.optimizers.Adam(1e-2)


def twin(hidden, **kwargs):
    return DeepPrivateAutoencoder(
        (D,), hidden, guarantee="published", unprotected=True, **kwargs
    )


def released(hidden=(4,), **kwargs):
    """An unlabelled model with hardly any noise."""
    x, _ = records()
    kwargs = {"input_bound": D**0.5} | kwargs
    m = DeepPrivateAutoencoder((D,), hidden, **kwargs)
    m.pretrain(x, proven(x, epsilon=1e6))
    return m


def error(m, x):
    return np.mean((m.reconstruct(x) - x) ** 2)


# What it is built of --------------------


@pytest.mark.parametrize(
    "kwargs",
    [
        {"hidden": (5, (7, 3)), "units": 3, "visible": (1, 4)},
        {"hidden": (4,), "source": "random", "rounds": 2},
        {
            "hidden": (4,),
            "guarantee": fm.models.PublishedDPA(noise_on="hidden"),
        },
        {"hidden": (4,), "bounds": ([-1.0] * D, [2.0] * D)},
        {"hidden": (5, 4), "units": 3, "unprotected": True},
    ],
)
def test_config_and_file(kwargs, tmp_path):
    m = DeepPrivateAutoencoder((D,), name="dpa", **{"hidden": (4,), **kwargs})
    twin = DeepPrivateAutoencoder.from_config(m.get_config())
    assert twin.get_config() == m.get_config() and twin.name == "dpa"
    m.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert type(loaded) is DeepPrivateAutoencoder
    x, _ = records(20)
    np.testing.assert_array_equal(m.predict(x, verbose=0),
                                  loaded.predict(x, verbose=0))  # fmt: skip
    np.testing.assert_array_equal(m.reconstruct(x), loaded.reconstruct(x))
    assert len(loaded.trainable_weights) == len(m.trainable_weights)
    for layer in loaded.encoders:
        assert layer.unprotected == bool(kwargs.get("unprotected"))


# The view of its encoders --------------------


def test_loss_of_a_view_is_the_reconstruction_of_what_the_top_reads():
    x, _ = records(50)
    for depth in (1, 2):
        m = twin((5, 4))
        stage = m.autoencoder(depth)
        stage.compile(
            keras.optimizers.SGD(0.0), fm.losses.PerturbedReconstruction()
        )
        v = x
        if depth == 2:
            below = keras.Model(m.inputs, m.get_layer("normalization_1").output)
            v = below.predict(x, batch_size=50, verbose=0)
        z = array(stage(x))
        wanted = np.mean(np.sum(np.log(2) + (0.5 - v) * z + z**2 / 8, axis=1))
        history = stage.fit(
            x, batch_size=50, validation_data=(x,), verbose=0
        ).history
        assert set(history) == {"loss", "val_loss"}
        assert history["loss"][0] == pytest.approx(wanted, rel=1e-4)
        assert history["val_loss"][0] == pytest.approx(wanted, rel=1e-4)
        found = stage.evaluate(x, batch_size=50, verbose=0)
        assert found == pytest.approx(wanted, rel=1e-4)


# Decoding --------------------


@pytest.mark.parametrize("source", ["moments", "random"])
def test_decoding_two_layers_inverts_the_scaling_between_them(source):
    x, _ = records()
    one = error(released((6,), source=source), x)
    two = error(released((6, 6), source=source), x)
    # Two factors: one layer is nearly exact; the second adds little.
    assert one < 0.05 * np.var(x)
    assert one < two < 0.15 * np.var(x)


def test_reconstruction_is_decode_of_encode_in_public_bounds():
    x, _ = records()
    low, high = np.linspace(-3, -1, D), np.linspace(1, 2, D)
    wide = (low + x * (high - low)).astype("float32")
    m = released((4,))
    w = DeepPrivateAutoencoder(
        (D,), (4,), bounds=(low, high), input_bound=D**0.5
    )
    w.pretrain(wide, proven(wide))
    found = w.reconstruct(wide)
    np.testing.assert_array_equal(found, w.decode(w.encode(wide)))
    np.testing.assert_allclose(
        (found - low) / (high - low), m.reconstruct(x), atol=0.05
    )
    assert np.mean((found - wide) ** 2) < 0.05 * np.var(wide)
    # Any code gives a record within the bounds.
    far = w.decode(np.random.default_rng(0).normal(0, 50, (30, 4)))
    assert np.all(far >= low - 1e-5) and np.all(far <= high + 1e-5)
    assert far.min() < low.max() and far.max() > high.min()


@pytest.mark.once
def test_mixtures_of_directions_tell_classes_apart():
    """And keep a reconstruction. Three noise seeds, fixed in advance."""
    x, y = records()
    found = []
    for seed in range(3):
        keras.utils.set_random_seed(seed)
        m = compiled(
            DeepPrivateAutoencoder(
                (D,), ((30, 2),), units=3, input_bound=D**0.5
            )
        )
        p = fm.callbacks.PrivateModel(
            fm.PrivacyBudget(8.0, 1e-5), data=(x, y), reproducible_noise=seed
        )
        m.fit(x, y, batch_size=200, callbacks=[p], verbose=0)
        found.append(np.mean(m.predict(x, verbose=0).argmax(1) == y))
        assert error(m, x) < 0.7 * np.var(x)
    assert np.mean(found) > 0.8, found


# Pre-training --------------------


def test_the_twin_learns_digits():
    """TdA: 85 % asked; a constant guess has 10 %."""
    (x, y), (xt, yt) = fm.datasets.load("digits")
    keras.utils.set_random_seed(0)
    m = DeepPrivateAutoencoder(
        (8, 8, 1), (40,), units=10, guarantee="published", unprotected=True
    )
    m.pretrain(x, epochs=10, batch_size=100, optimizer=adam())
    assert error(m, xt) < np.mean(xt.var(axis=0))
    compiled(m, adam())
    m.fit(x, y, epochs=40, batch_size=100, verbose=0)
    # Its layers are normalised by the batch, so it predicts all at once.
    labels = m.predict(xt, batch_size=len(xt), verbose=0).argmax(1)
    assert np.mean(labels == yt) > 0.85


# Published noise in training --------------------


def reconstruction_noise(layer):
    noise = {k: array(v) for k, v in layer._hidden.variables.items()}
    start, stop = layer.visible_range
    w = array(layer.kernel)[start:stop]
    return np.sum(noise["linear_noise"] * w.T) + np.einsum(
        "ji,jik,jk->", w, noise["quadratic_noise"], w
    )


def test_the_perturbed_reconstruction_is_what_pretraining_minimises():
    x, _ = records(50)
    keras.utils.set_random_seed(0)
    m = DeepPrivateAutoencoder((D,), (5, 4), guarantee="published")
    p = published(m, x, 2.0, reproducible_noise=0)
    still = keras.optimizers.SGD(0.0)
    plain = []
    for depth in (1, 2):
        stage = m.autoencoder(depth)
        stage.compile(still, fm.losses.PerturbedReconstruction())
        plain.append(stage.evaluate(x, batch_size=50, verbose=0))
    histories = m.pretrain(x, p, epochs=1, batch_size=50, optimizer=still)
    for history, value, encoder in zip(histories, plain, m.encoders):
        added = reconstruction_noise(encoder)
        assert abs(added) > 0.01
        assert history.history["loss"][0] == pytest.approx(
            value + added, rel=1e-3, abs=1e-3
        )


def test_fine_tuning_has_noise_on_the_output_layers_coefficients_only():
    x, y = records(50)
    # No draw may come close to 0, nor weights that hide one.
    keras.utils.set_random_seed(0)
    m = DeepPrivateAutoencoder((D,), (5, 4), units=3, guarantee="published")
    p = published(m, (x, y), 2.0, reproducible_noise=0)
    m.pretrain(x, p, epochs=1, batch_size=50)
    compiled(m, keras.optimizers.SGD(0.0))
    plain = m.evaluate(x, y, batch_size=50, verbose=0)[0]
    history = m.fit(x, y, batch_size=50, callbacks=[p], verbose=0).history
    head = m.get_layer("output")
    w = head.get_weights()[0]
    noise = {k: array(v) for k, v in head._hidden.variables.items()}
    added = np.sum(noise["linear_noise"] * w) + np.einsum(
        "ik,kij,jk->", w, noise["quadratic_noise"], w
    )
    assert abs(added) > 1e-3
    assert history["loss"][0] == pytest.approx(plain + added, rel=1e-3)
    assert all(abs(reconstruction_noise(e)) > 1e-2 for e in m.encoders)


@pytest.mark.parametrize("noise_on", ["coefficients", "hidden"])
def test_little_noise_is_the_twin_and_much_noise_is_not(noise_on):
    x, _ = records(200)
    found = []
    for epsilon in (None, 1e6, 0.01):
        keras.utils.set_random_seed(0)
        m = DeepPrivateAutoencoder(
            (D,),
            (5,),
            guarantee=fm.models.PublishedDPA(noise_on=noise_on),
            unprotected=epsilon is None,
        )
        p = None
        if epsilon:
            p = published(m, x, epsilon, reproducible_noise=0)
        m.pretrain(x, p, epochs=3, batch_size=100, optimizer=adam())
        found.append(m.encoders[0].get_weights()[0])
    np.testing.assert_allclose(found[1], found[0], atol=5e-3)
    assert np.abs(found[2] - found[0]).max() > 0.05


@pytest.mark.once
def test_pretraining_leaves_the_output_layer_its_share():
    """It once spent the whole budget on the encoders of a labelled model."""
    (x, y), _ = fm.datasets.load("digits")
    model = DeepPrivateAutoencoder(x.shape[1:], hidden=(20, 10), units=10)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(8.0, 1e-5), data=(x, y)
    )
    plan = private.plan(model)
    first = private.plan(model.autoencoder(1)).splitlines()[2]
    assert first in plan.splitlines()
    model.pretrain(x, private)
    assert private.ledger.epsilon() < 8.0
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    model.fit(x, y, batch_size=512, callbacks=[private], verbose=0)
    names = [entry.name for entry in private.ledger.entries]
    assert names == ["encoder_1 (moments)", "encoder_2 (moments)", "output"]
    assert 7.9 < private.ledger.epsilon() <= 8.0
