"""RelevanceScaling: public scales from released relevance."""

import keras
import numpy as np
import pytest
from layer_checks import check_layer, check_saved

from keras_fm.papers.adlm.relevance_scaling import RelevanceScaling

X = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
IMAGES = np.random.default_rng(1).normal(size=(3, 4, 5, 2)).astype("float32")
SHARES = np.array([2.5, 1.0, 0.4, 0.1])


def array(x):
    return keras.ops.convert_to_numpy(x)


def built(shape=(4,), **kwargs):
    layer = RelevanceScaling(**kwargs)
    layer.build((None, *shape))
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: RelevanceScaling(**k),
        lambda **k: RelevanceScaling(power=0.5, shrink=False, **k),
    ],
)
@pytest.mark.parametrize("inputs", [X, IMAGES])
def test_layer_is_a_keras_citizen(make, inputs, tmp_path):
    check_layer(make, inputs)
    check_saved(make(), inputs, tmp_path / "m.keras")


@pytest.mark.parametrize("inputs", [X, IMAGES])
def test_scales_are_one_until_shares_are_set(inputs):
    layer = RelevanceScaling(power=2.0)
    for training in (False, True):
        np.testing.assert_array_equal(
            array(layer(inputs, training=training)), inputs
        )
    (scale,) = layer.get_weights()
    assert scale.shape == inputs.shape[1:] and np.all(scale == 1)
    assert not layer.trainable_weights


@pytest.mark.parametrize(
    "power, signal_share, scales",
    [
        (1.0, 1.0, [2.5, 1.0, 0.4, 0.1]),
        (2.0, 1.0, [6.25, 1.0, 0.16, 0.01]),
        (0.5, 1.0, np.sqrt([2.5, 1.0, 0.4, 0.1])),
        (0.0, 1.0, [1.0, 1.0, 1.0, 1.0]),
        # Half way to 1, before the power.
        (1.0, 0.5, [1.75, 1.0, 0.7, 0.55]),
        (2.0, 0.5, [3.0625, 1.0, 0.49, 0.3025]),
        # A first model of noise alone changes nothing.
        (3.0, 0.0, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_power_and_signal_share(power, signal_share, scales):
    layer = built(power=power)
    layer.set_shares(SHARES, signal_share)
    np.testing.assert_allclose(layer.get_weights()[0], scales, rtol=1e-6)
    for training in (False, True):
        made = array(layer(X, training=training))
        np.testing.assert_allclose(made, X * scales, rtol=1e-5)
    # Without shrinking the share of signal is not used.
    whole = built(power=power, shrink=False)
    whole.set_shares(SHARES, signal_share)
    np.testing.assert_allclose(whole.get_weights()[0], SHARES**power, rtol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_scales_stay_in_full_precision(policy):
    layer = built(dtype=policy)
    layer.set_shares(np.array([1.001, 0.999, 1.0, 1.0]))
    np.testing.assert_allclose(
        layer.get_weights()[0], [1.001, 0.999, 1, 1], rtol=1e-6
    )
