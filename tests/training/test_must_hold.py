"""What a proven fit promises, on whatever backend runs the tests."""

import keras
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from fit_checks import Unreadable, forms_of

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

pytestmark = pytest.mark.full

EPSILON, DELTA = 3.0, 1e-5


def records(n=300, d=6, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    x = rng.normal(size=(n, d)).astype("float32")
    x[np.arange(n), y] += 2
    return x, y


def of(*layers):
    return keras.Sequential([keras.Input((6,)), *layers])


def model(units=3, body=(), head=None, shape=(6,), optimizer="adam"):
    keras.utils.set_random_seed(1)
    m = keras.Sequential(
        [
            keras.Input(shape),
            *body,
            fm.layers.NormalizationLayer(),
            head or fm.layers.PrivateDense(units),
        ]
    )
    m.compile(optimizer, fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    return m


def private(data, epsilon=EPSILON, seed=None, **proven):
    budget = fm.PrivacyBudget(epsilon, DELTA)
    return PrivateModel(
        budget,
        data=data,
        guarantee=fm.Proven(**proven),
        reproducible_noise=seed,
    )


def weights(m):
    return np.concatenate([w.ravel() for w in m.get_weights()])


# After the release, no record moves a weight --------------------


def test_the_gradient_of_a_released_layer_is_that_of_the_release():
    x, y = records()
    m = model(optimizer=keras.optimizers.SGD(0.1))
    p = private((x, y), start="current")
    before = [w.astype(np.float64) for w in m.get_weights()]
    m.fit(x, y, batch_size=300, callbacks=[p], verbose=0)
    hessian, minimiser = p.release.minimise()
    n, c = p.release.estimated_records(), m.layers[-1].bias_feature
    full = np.concatenate([before[0], before[1][None] / c])
    slope = hessian @ (full - minimiser) / (4 * n)
    np.testing.assert_allclose(
        m.get_weights()[0], before[0] - 0.1 * slope[:-1], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        m.get_weights()[1], before[1] - 0.1 * slope[-1] / c, rtol=1e-4,
        atol=1e-5,
    )  # fmt: skip


def test_the_logged_loss_is_the_released_objective():
    x, y = records()
    m = model(optimizer=keras.optimizers.SGD(0.0))
    p = private((x, y))
    history = m.fit(x, y, epochs=2, callbacks=[p], verbose=0).history
    assert set(history) == {"loss"}, "a metric of private records was logged"
    release, n = p.release, p.release.estimated_records()
    hessian, minimiser = release.minimise()
    value = 3 * np.log(2) + (
        release.query.value(minimiser, (hessian, release.linear)) / n
    )
    np.testing.assert_allclose(history["loss"], value, rtol=1e-4)


# What is charged --------------------


@pytest.mark.once
def test_a_new_release_needs_the_ledger_of_the_first():
    """The optimizer, for one, goes on from what the first release led to."""
    x, y = records()
    m, p = model(), private((x, y), releases=2)
    m.fit(x, y, callbacks=[p], verbose=0)
    other = private(Unreadable())
    # Nothing is released here, so nothing is asked; what is said is true of
    # the weights.
    m.fit(x, y, callbacks=[other], verbose=0)
    assert other.report() == p.report()
    other.new_release = True
    with pytest.raises(ValueError, match="by another PrivateModel"):
        m.fit(x, y, callbacks=[other], verbose=0)
    assert not other.ledger.entries
    ledger = fm.Ledger.from_json(m.layers[-1].ledger_json)
    going_on = PrivateModel(
        ledger, data=(x, y), guarantee=fm.Proven(releases=2)
    )
    going_on.new_release = True
    m.fit(x, y, callbacks=[going_on], verbose=0)
    assert len(ledger.entries) == 2
    assert ledger.epsilon() <= EPSILON


# The statistics --------------------


@pytest.mark.parametrize("n", [1, 7, 1024, 1030])
def test_padding_of_the_last_batch_is_not_counted(n):
    x, y = records(n)
    m, p = model(), private((x, y), epsilon=1e6)
    with np.errstate(all="ignore"):
        m.fit(x, y, callbacks=[p], verbose=0)
    assert p.release.estimated_records() == pytest.approx(n, abs=0.5)
    counts = np.bincount(y, minlength=3) * m.layers[-1].bias_feature
    np.testing.assert_allclose(p.release.linear[-1], counts, atol=0.02)


def test_any_form_of_data_gives_the_same_release():
    x, y = records()
    found = []
    for data in ((x, y), *forms_of(x, y)):
        m, p = model(), private(data, seed=0)
        m.fit(x, y, callbacks=[p], verbose=0)
        found.append(p.release)
    for release in found[1:]:
        np.testing.assert_allclose(
            release.quadratic, found[0].quadratic, atol=1e-3
        )
        np.testing.assert_allclose(release.linear, found[0].linear, atol=1e-3)


def test_released_statistics_agree_between_backends():
    # Computed once on the TensorFlow backend by the lines below.
    x, y = records(64)
    m, p = model(), private((x, y), seed=0)
    m.fit(x, y, callbacks=[p], verbose=0)
    golden = [[19.29696, 1.40544, 1.44581], [2.2216, 13.37504, 3.37727]]
    np.testing.assert_allclose(p.release.linear[:2], golden, atol=1e-4)


# Refusals, all before anything is spent --------------------


def refused(match, m=None, data=None, fit=None, error=ValueError, **kwargs):
    x, y = records()
    m = m or model()
    p = private(data or (x, y), **kwargs)
    with pytest.raises(error, match=match):
        m.fit(*(fit or {}).pop("args", (x, y)), callbacks=[p], verbose=0,
              **(fit or {}))  # fmt: skip
    assert not p.ledger.entries, "something was charged"
    assert not m.layers or not getattr(m.layers[-1], "is_released", False)


@pytest.mark.parametrize(
    "layer, match",
    [
        (lambda: keras.layers.BatchNormalization(), "BatchNormalization"),
        (
            lambda: keras.layers.BatchNormalization(center=False, scale=False),
            "`body.trainable = False`",
        ),
        (lambda: fm.layers.NormalizationLayer(mode="batch"), "mixes records"),
        (lambda: keras.layers.Dense(4), "trainable weights"),
        (
            lambda: fm.layers.PerturbedAffine(4),
            "no proof covers one noise vector",
        ),
    ],
)
def test_unsafe_layers(layer, match):
    refused(match, model(body=[layer()]))


def test_what_was_trained_without_protection():
    x, y = records()
    m = model()
    twin = fm.models.unprotected_twin(m)
    twin.compile("adam", fm.losses.TaylorCrossEntropy())
    twin.fit(x, y, verbose=0)
    # Its weights are not begun with.
    m.set_weights(twin.get_weights())
    refused("not have the weights it was built with", m, start="current")
    p = private((x, y))
    m.fit(x, y, callbacks=[p], verbose=0)
    assert p.ledger.epsilon() <= EPSILON
    minimiser = p.release.minimise()[1]
    np.testing.assert_allclose(m.get_weights()[0], minimiser[:-1], atol=0.05)


def test_public_weights_to_start_from():
    x, y = records()
    kernel = np.full((6, 3), 0.25, "float32")
    m = model(
        head=fm.layers.PrivateDense(
            3, kernel_initializer=keras.initializers.Constant(kernel)
        ),
        optimizer=keras.optimizers.SGD(0.0),
    )
    p = private((x, y), start="current")
    m.fit(x, y, callbacks=[p], verbose=0)
    np.testing.assert_array_equal(m.get_weights()[0], kernel)
    m.fit(x, y, callbacks=[p], verbose=0)
    assert len(p.ledger.entries) == 1
    # Weights that are set over a release are not known to any ledger.
    m.set_weights([w + 1 for w in m.get_weights()])
    for callbacks in ([], [p]):
        with pytest.raises(ValueError, match="no longer those of the release"):
            m.fit(x, y, callbacks=callbacks, verbose=0)
    assert not m.layers[-1].is_released and len(p.ledger.entries) == 1


def test_records_outside_the_bound_or_of_a_wrong_sign():
    x, y = records()
    m = of(fm.layers.PrivateDense(3))
    m.compile("sgd", fm.losses.TaylorCrossEntropy())
    refused("outside the public L2 bound", m)
    clipped = of(fm.layers.PrivateDense(3, clip=True))
    clipped.compile("sgd", fm.losses.TaylorCrossEntropy())
    p = private((x, y))
    clipped.fit(x, y, callbacks=[p], verbose=0)
    assert len(p.ledger.entries) == 1
    refused(
        "at least one feature is negative|At least one feature is negative",
        model(head=fm.layers.PrivateDense(3, nonnegative=True)),
    )


def test_fit_arguments_that_reweigh_or_peek():
    x, y = records()
    refused("class_weight", fit={"class_weight": {0: 2.0}})
    refused("sample_weight", fit={"sample_weight": np.ones(300)})
    refused("validation_split", fit={"validation_split": 0.2})
    stop = keras.callbacks.EarlyStopping(monitor="accuracy")
    p, m = private((x, y)), model()
    with pytest.raises(ValueError, match="monitors 'accuracy'"):
        m.fit(x, y, callbacks=[p, stop], verbose=0)
    assert not p.ledger.entries
    stop = keras.callbacks.EarlyStopping(monitor="loss")
    m.fit(x, y, callbacks=[p, stop], verbose=0)
    assert len(p.ledger.entries) == 1


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, num_batches):
        super().__init__()
        self._pair, self._count = (x, y), num_batches

    @property
    def num_batches(self):
        return self._count

    def __getitem__(self, index):
        return self._pair


@pytest.mark.parametrize("n", [299, 300])
def test_a_secret_number_of_records_does_not_end_a_fit(n):
    """Keras ends a fit where its data end, whatever `steps_per_epoch` says:
    one record more was a step more, in the weights, in the optimizer's count
    and in every log, under a statement that n is not used."""
    x, y = (v[:n] for v in records())
    steps = {"steps_per_epoch": 20, "epochs": 2}
    ends = "stops where x ends"
    ending = [
        {"args": (x, y), "batch_size": 13},
        {"args": (x[:70], y[:70])},
        {"args": (Batches(x, y, n),)},
        {"args": ((pair for pair in [(x, y)] * 100),)},
    ]
    endless = [
        ((x, y), {}),
        ((x, y), {"batch_size": 3}),
        ((Batches(x, y, None),), {}),
    ]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
        ending.append({"args": (dataset,)})
        endless.append(((dataset.repeat(),), {}))
    for given in ending:
        refused(ends, n_public=False, fit={**given, **steps})
    for given, more in endless:
        m, p = model(), private((x, y), n_public=False)
        m.fit(*given, callbacks=[p], verbose=0, **steps, **more)
        assert int(m.optimizer.iterations) == 40
        assert "n is not used" in p.report()
    if keras.backend.backend() != "torch":
        # Which takes one step at a time, and Keras says so.
        m.compile("sgd", fm.losses.TaylorCrossEntropy(), steps_per_execution=3)
        with pytest.raises(ValueError, match=ends):
            m.fit(x, y, callbacks=[p], verbose=0, **steps)


@pytest.mark.parametrize("own", [False, True])
def test_a_secret_number_of_records_is_not_in_the_loss(tmp_path, own):
    """Keras weighs the loss of every step by the rows of its batch: of a last
    batch with few of them the loss that a fit logs told how many there were,
    to the record, under a statement that n is not used."""
    x, y = records()
    path = tmp_path / "model.keras"
    m, p = model(optimizer="sgd"), private((x, y), n_public=False)
    p.guarantee = fm.Proven(n_public=False, start="current")
    m.fit(x, y, steps_per_epoch=3, callbacks=[p], verbose=0)
    m.save(path)
    seen = []

    class Counts(keras.Model):
        def train_step(self, *given):
            seen.append(keras.tree.flatten(given[-1])[0].shape[0])
            return super().train_step(*given)

    logged = []
    for n in (65, 66, 96):
        m = keras.saving.load_model(path)
        if own:
            m = Counts(m.inputs, m.outputs)
            m.compile("sgd", fm.losses.TaylorCrossEntropy())
        fit = {"batch_size": 32, "steps_per_epoch": 3, "verbose": 0}
        p = PrivateModel(
            p.ledger, data=(x, y), guarantee=fm.Proven(n_public=False)
        )
        logged.append(m.fit(x[:n], y[:n], callbacks=[p], **fit).history)
    assert logged[0] == logged[1] == logged[2]
    assert {*seen} <= {1, None}


def ledger_of(epsilon):
    return fm.Ledger(fm.PrivacyBudget(epsilon, 0.0), neighbours="add_remove")


@pytest.mark.once
def test_a_forgotten_delta_is_asked_for():
    """`PrivateModel(2.0, data=...)` meant delta = 0: a third of the accuracy
    that the same epsilon has at delta = 1e-5."""
    for given in ((2.0,), (2.0, None)):
        with pytest.raises(ValueError, match="`delta` must be given") as e:
            PrivateModel(*given, data=records())
        for delta in ("1e-5", "0"):
            code = f"`PrivateModel(epsilon=2, delta={delta}, data=...)`"
            assert code in str(e.value)
    by_name = PrivateModel(epsilon=2.0, delta=1e-5, data=records())
    by_place = PrivateModel(2.0, 1e-5, data=records())
    whole = PrivateModel(fm.PrivacyBudget(2.0, 1e-5), data=records())
    for p in (by_name, by_place, whole):
        assert p.ledger.budget == fm.PrivacyBudget(2.0, 1e-5)
    assert PrivateModel(2, delta=0).ledger.budget == fm.PrivacyBudget(2.0, 0.0)
    ledger = ledger_of(3.0)
    assert PrivateModel(ledger, data=records()).ledger is ledger


@pytest.mark.once
def test_records_in_the_place_of_delta_are_not_shown():
    """`PrivateModel(budget, (x, y))`: data are given by name alone."""
    secret = np.full((2, 2), 57913.0)
    for given in ((secret, secret[0]), secret, [57913.0], "57913"):
        for first in (1.0, fm.PrivacyBudget(1.0, 1e-5)):
            with pytest.raises(ValueError, match=r"`data=\(x, y\)`") as e:
                PrivateModel(first, given)
            assert "57913" not in str(e.value)


def test_epsilon_at_another_delta_is_composed_from_the_ledger():
    x, y = records()
    m = model()
    p = PrivateModel(epsilon=2.0, delta=1e-5, data=(x, y))
    assert p.epsilon() == 0.0
    m.fit(x, y, callbacks=[p], verbose=0)
    assert p.epsilon() == p.ledger.epsilon() == pytest.approx(2.0, rel=1e-3)
    (entry,) = p.ledger.entries
    # One Gaussian release, by the grid of dp_accounting.
    loss = privacy_loss_distribution.from_gaussian_mechanism(
        entry.mechanism["noise_multiplier"]
    )
    for delta in (1e-9, 1e-6, 1e-3):
        alone = loss.get_epsilon_for_delta(delta)
        for found in (p.epsilon(delta=delta), p.ledger.epsilon(delta=delta)):
            assert found <= alone <= found * 1.001
    assert p.ledger.epsilon(delta=0) == np.inf
    # Of a model that was released before, its ledger answers, not an empty
    # one.
    again = PrivateModel(epsilon=9.0, delta=0, data=(x, y))
    m.fit(x, y, callbacks=[again], verbose=0)
    assert again.epsilon(delta=1e-6) == p.epsilon(delta=1e-6) > 0
    for delta in (-1e-9, 1.0, np.nan, "1e-5"):
        with pytest.raises(ValueError, match="`delta` must be a number"):
            p.epsilon(delta=delta)


# Published --------------------


def published_model():
    keras.utils.set_random_seed(0)
    m = of(
        fm.layers.NormalizationLayer((0, 1), "linf"),
        fm.layers.PerturbedAffine(4, activation="sigmoid"),
        fm.layers.PrivateDense(3),
    )
    m.compile("adam", fm.losses.TaylorCrossEntropy())
    return m


def published():
    return PrivateModel(
        2.0, 0.0, guarantee=fm.Published(lot=50), reproducible_noise=3
    )


def noises(m):
    return [
        keras.ops.convert_to_numpy(v)
        for layer in m.layers
        if hasattr(layer, "_hidden")
        for v in layer._hidden.variables.values()
    ]


def test_published_is_claimed_and_its_noise_is_fixed_once():
    x, y = records()
    m, p = published_model(), published()
    m.fit(x, y, batch_size=50, epochs=2, callbacks=[p], verbose=0)
    first = noises(m)
    m.fit(x, y, batch_size=50, callbacks=[p], verbose=0)
    for a, b in zip(first, noises(m)):
        np.testing.assert_array_equal(a, b)
    assert len(first) == 4
    assert p.ledger.claimed_epsilon() == pytest.approx(2.0)
    assert p.ledger.epsilon() == np.inf
    assert "no valid proof" in p.report() and "replace_one" in p.report()


def test_published_loss_holds_the_perturbed_coefficients():
    x, y = records(50)
    keras.utils.set_random_seed(0)
    m = of(
        fm.layers.NormalizationLayer((0, 1), "linf"), fm.layers.PrivateDense(3)
    )
    m.compile(keras.optimizers.SGD(0.0), fm.losses.TaylorCrossEntropy())
    plain = m.evaluate(x, y, verbose=0)
    loss = m.fit(x, y, batch_size=50, callbacks=[published()], verbose=0)
    head = m.layers[-1]
    noise = {
        k: keras.ops.convert_to_numpy(v)
        for k, v in head._hidden.variables.items()
    }
    w = np.concatenate([head.get_weights()[0],
                        head.get_weights()[1][None] / 0.1])  # fmt: skip
    added = np.sum(noise["linear_noise"] * w) + np.einsum(
        "ik,kij,jk->", w, noise["quadratic_noise"], w
    )
    np.testing.assert_allclose(
        loss.history["loss"][0], plain + added, rtol=1e-3
    )


def test_published_and_proven_do_not_mix():
    x, y = records()
    box = fm.layers.NormalizationLayer((0, 1), "linf")
    m = of(box, fm.layers.PrivateDense(3, clip=True))
    m.compile("sgd", fm.losses.TaylorCrossEntropy())
    m.fit(x, y, batch_size=50, callbacks=[published()], verbose=0)
    p = private((x, y))
    with pytest.raises(ValueError, match="carries published noise"):
        m.fit(x, y, callbacks=[p], verbose=0)
    # Compiled anew it counts no steps, but its weights are what they are.
    m.compile("sgd", fm.losses.TaylorCrossEntropy())
    with pytest.raises(ValueError, match="carries published noise"):
        m.fit(x, y, callbacks=[p], verbose=0)
    assert not p.ledger.entries
    m = of(box, fm.layers.PrivateDense(3, clip=True))
    m.compile("sgd", fm.losses.TaylorCrossEntropy())
    m.fit(x, y, callbacks=[private((x, y))], verbose=0)
    p = published()
    with pytest.raises(ValueError, match="carries a proven release"):
        m.fit(x, y, batch_size=50, callbacks=[p], verbose=0)
    assert not p.ledger.entries
