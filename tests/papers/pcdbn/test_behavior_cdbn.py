"""pCDBN on windows of a small synthetic network."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.datasets import health_simulator
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.models import BehaviorCDBN, PublishedCDBN
from keras_fm.papers.pcdbn.behavior_cdbn import WindowImage

DELTA = 1e-6
MAPS = ((4, (4, 3)), (3, (2, 2)))
pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]


@pytest.fixture(scope="module")
def parts():
    network = health_simulator.simulate("daily", seed=0, users=100, steps=50)
    return network.windows(history=5, social="public").split(0.8)


def array(x):
    return keras.ops.convert_to_numpy(x)


def model(windows, **kwargs):
    keras.utils.set_random_seed(0)
    return BehaviorCDBN.of(windows, **({"maps": MAPS} | kwargs))


# Windows as images --------------------


def test_a_window_is_an_image_of_attributes_over_time():
    """Row a, column s: attribute a, S - 1 - s steps before the present."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(7, 20)).astype("float32")
    columns = {"history": (4, 16), "present": (0, 4), "events": (16, 20)}
    layer = WindowImage(columns)
    found = array(layer(x))
    assert found.shape == (7, 4, 4, 1)
    assert layer.compute_output_shape((None, 20)) == (None, 4, 4, 1)
    for n in range(7):
        for a in range(4):
            for back in range(4):
                # The history holds one step before first.
                value = x[n, a] if back == 0 else x[n, 4 * back + a]
                assert found[n, a, 3 - back, 0] == value
    twin = WindowImage.from_config(layer.get_config())
    np.testing.assert_array_equal(array(twin(x)), found)
    alone = array(WindowImage({"present": (16, 20)})(x))
    np.testing.assert_array_equal(alone, x[:, 16:, None, None])


def test_the_image_follows_the_networks_own_names(parts):
    """Against attributes looked up in the network, user by user."""
    network = health_simulator.simulate("daily", seed=0, users=100, steps=50)
    windows = network.windows(history=5, social="public")
    rows = [0, 17, 2000, len(windows) - 1]
    m = model(windows)
    image = keras.Model(m.inputs[0], m.get_layer("image").output)
    found = image.predict(windows.x[rows], verbose=0)
    low, high = network.bounds.T
    for row, image in zip(rows, found):
        user, step = windows.users[row], windows.steps[row]
        values = network.attributes[user, step - 5 : step + 1].T
        values = np.clip((values - low[:, None]) / (high - low)[:, None], 0, 1)
        np.testing.assert_allclose(image[..., 0], values, atol=1e-5)


# The published form --------------------


@pytest.mark.once
def test_the_published_defaults_are_printed():
    """Ten bases of 12 attributes x 4 steps and 6 x 2, dropout of a half."""
    windows = health_simulator.simulate("daily", seed=0, users=9, steps=9)
    windows = windows.windows(history=3)
    kwargs = {"guarantee": "published", "unprotected": True}
    m = BehaviorCDBN.of(windows, **kwargs)
    found = [(rbm.filters, rbm.kernel_size) for rbm in m.rbms]
    assert found == [(10, (12, 4)), (10, (6, 2))]
    assert m.get_layer("dropout").rate == 0.5
    assert BehaviorCDBN.from_config(m.get_config()).get_layer("dropout")
    kwargs["guarantee"] = PublishedCDBN(dropout=0)
    none = BehaviorCDBN.of(windows, **kwargs)
    assert all(layer.name != "dropout" for layer in none.layers)
    images = fm.models.PrivateCDBN((16, 16, 1), guarantee="published")
    assert all(layer.name != "dropout" for layer in images.layers)
    proven = BehaviorCDBN.of(windows)
    assert [rbm.kernel_size for rbm in proven.rbms] == [(4, 12), (2, 6)]


def test_conditions_are_dynamic_biases_in_the_published_form(parts):
    train, _ = parts
    m = model(train, guarantee="published", units=None, unprotected=True)
    first = m.rbms[0]
    maps = keras.Model(m.inputs[0], first.output)
    x = train.x[:50]
    changed, past = x.copy(), x.copy()
    event = train.columns["events"].start
    changed[:, event] = 1 - changed[:, event]

    def moved(other):
        found = maps.predict(x, verbose=0) - maps.predict(other, verbose=0)
        return np.abs(found).max()

    # Weights of the conditions begin at zero.
    assert moved(changed) == 0
    m.pretrain(x, epochs=2, optimizer=keras.optimizers.Adam(0.01))
    assert moved(changed) > 1e-3
    for weight in (first.condition_kernel, first.visible_condition_kernel):
        assert np.abs(array(weight)).max() > 1e-3
    # By one value for each map, wherever it is: x + B^T conditions.
    below = m.energy_model(1).below
    shift = array(first.preactivation(below(changed))) - array(
        first.preactivation(below(x))
    )
    wanted = (
        array(first.condition_kernel)[1]
        * (changed[:, event] - x[:, event])[:, None]
    )
    np.testing.assert_allclose(
        shift, np.broadcast_to(wanted[:, None, None], shift.shape), atol=1e-5
    )
    # And a weight of the visible units, in what they are given back as.
    assert m.reconstruct(x).shape == (50, 30, 6)
    assert np.abs(m.reconstruct(x) - m.reconstruct(changed)).max() > 1e-3
    past[:, train.columns["history"]] = train.low[train.columns["history"]]
    assert moved(past) > 1e-3


def test_reconstructions_that_it_learns_are_images_in_public_bounds(parts):
    """They once were scaled by the bounds of the wrong axis."""
    train, test = parts
    m = model(
        train, guarantee="published", units=None, maps=MAPS[:1],
        unprotected=True,
    )  # fmt: skip
    m.pretrain(train.x[:600], epochs=10, batch_size=100,
               optimizer=keras.optimizers.Adam(0.02))  # fmt: skip
    found = m.reconstruct(test.x)
    low, high = (b[:30][:, None] for b in (train.low, train.high))
    assert np.all(found >= low - 1e-4) and np.all(found <= high * (1 + 1e-5))
    seen = test.x[:, : 30 * 6].reshape(-1, 6, 30)[:, ::-1].swapaxes(1, 2)
    error = np.mean(((found - seen) / (high - low)) ** 2)
    assert error < np.mean(((seen - (low + high) / 2) / (high - low)) ** 2)


# The proven form --------------------


def test_the_output_layer_reads_the_conditions_in_the_proven_form(parts):
    train, _ = parts
    x, y = train.x[:500], train.y[:500]
    m = model(train)
    m.compile("sgd", TaylorCrossEntropy())
    p = PrivateModel(fm.PrivacyBudget(8.0, DELTA), data=(x, y))
    m.fit(x, y, callbacks=[p], verbose=0)
    changed = x[:50].copy()
    event = train.columns["events"].start
    changed[:, event] = 1 - changed[:, event]
    maps = keras.Model(m.inputs[0], m.rbms[1].output)
    np.testing.assert_array_equal(
        maps.predict(changed, verbose=0), maps.predict(x[:50], verbose=0)
    )
    moved = m.predict(changed, verbose=0) - m.predict(x[:50], verbose=0)
    assert np.abs(moved).min() > 0
    below = keras.Model(m.inputs[0], m.get_layer("unit_both").output)
    lengths = np.linalg.norm(below.predict(x, verbose=0), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-5)


@pytest.mark.parametrize("guarantee", ["proven", "published"])
def test_saving_keeps_columns_and_bounds(tmp_path, parts, guarantee):
    train, test = parts
    x, y = train.x[:300], train.y[:300]
    form = PublishedCDBN(fine_tune=True)
    m = model(train, guarantee=form if guarantee == "published" else guarantee)
    m.compile("adam", TaylorCrossEntropy())
    lot = {"lot": 150} if guarantee == "published" else {}
    p = PrivateModel(
        fm.PrivacyBudget(8.0, DELTA), data=(x, y), guarantee=m.guarantee(**lot)
    )
    if guarantee == "published":
        m.pretrain(x, p, epochs=1, batch_size=150)
    m.fit(x, y, batch_size=150, callbacks=[p], verbose=0)
    m.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert isinstance(loaded, BehaviorCDBN)
    np.testing.assert_array_equal(
        loaded.predict(test.x[:64], verbose=0),
        m.predict(test.x[:64], verbose=0),
    )
    # A release is in the file, noise is not.
    if guarantee == "published":
        with pytest.raises(ValueError, match="'crbm_1' has no release"):
            loaded.fit(x, y, batch_size=150, verbose=0)
    else:
        loaded.fit(x, y, batch_size=150, verbose=0)
    np.testing.assert_array_equal(
        loaded.reconstruct(test.x[:64]), m.reconstruct(test.x[:64])
    )
