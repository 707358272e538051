"""PerturbedConv2D, and noise that is drawn again at every step."""

import re

import keras
import numpy as np
import pytest
from layer_checks import (
    check_layer,
    check_saved,
    everything_saved,
)
from scipy import stats

from keras_fm.papers.adlm.perturbed_layers import (
    PerturbedAffine,
    PerturbedConv2D,
)

pytestmark = [pytest.mark.full, pytest.mark.backend]

X = np.random.default_rng(0).normal(size=(5, 7)).astype("float32")
IMAGES = np.random.default_rng(1).normal(size=(3, 7, 6, 2)).astype("float32")


def array(x):
    return keras.ops.convert_to_numpy(x)


def built(layer, shape):
    layer.build((None, *shape))
    return layer


@pytest.mark.parametrize(
    "make, inputs",
    [
        (lambda **k: PerturbedConv2D(4, 3, activation="relu", **k), IMAGES),
        (
            lambda **k: PerturbedConv2D(
                3, (3, 2), strides=2, padding="valid", use_bias=False, **k
            ),
            IMAGES,
        ),
        (lambda **k: PerturbedAffine(4, kernel_initializer="zeros", **k), X),
        (lambda **k: PerturbedAffine(4, activation="tanh", **k), IMAGES),
    ],
)
def test_layers_are_keras_citizens(make, inputs, tmp_path):
    check_layer(make, inputs, private=True)
    check_saved(make(), inputs, tmp_path / "m.keras")


# PerturbedConv2D is Conv2D --------------------


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("strides", [1, 2, (2, 3)])
@pytest.mark.parametrize("kernel_size", [1, 3, (5, 2)])
def test_conv_equals_keras_without_noise(padding, strides, kernel_size):
    kwargs = {"strides": strides, "padding": padding, "activation": "relu"}
    layer = PerturbedConv2D(4, kernel_size, unprotected=True, **kwargs)
    built(layer, (7, 6, 2))
    conv = built(keras.layers.Conv2D(4, kernel_size, **kwargs), (7, 6, 2))
    bias = np.linspace(-1, 1, 4)
    layer.set_weights([layer.get_weights()[0], bias])
    conv.set_weights(layer.get_weights())
    wanted = array(conv(IMAGES))
    for training in (False, True):
        made = array(layer(IMAGES, training=training))
        np.testing.assert_allclose(made, wanted, atol=1e-5)
    assert layer.compute_output_shape(IMAGES.shape) == wanted.shape
    assert layer.compute_output_shape((None, None, None, 2)) == (
        None, None, None, 4,
    )  # fmt: skip


def test_conv_noise_shifts_every_pixel_and_every_filter():
    layer = built(PerturbedConv2D(4, 3, activation="tanh"), (7, 6, 2))
    conv = built(keras.layers.Conv2D(4, 3, padding="same"), (7, 6, 2))
    conv.set_weights(layer.get_weights())
    rng = np.random.default_rng(0)
    nx, nb = rng.normal(size=(7, 6, 2)), rng.normal(size=4)
    layer.fix_noise(input_noise=nx, bias_noise=nb)
    shifted = np.tanh(array(conv((IMAGES + nx).astype("float32"))) + nb)
    made = array(layer(IMAGES, training=True))
    np.testing.assert_allclose(made, shifted, atol=1e-5)
    np.testing.assert_allclose(
        array(layer(IMAGES)), np.tanh(array(conv(IMAGES))), atol=1e-6
    )


# Noise at every step --------------------


def per_step(kind, scales, bias_scale, **kwargs):
    """A layer whose output is its input plus its bias, one unit for each
    input feature."""
    size = scales.size
    if kind == "affine":
        layer, shape, bias = PerturbedAffine(size, **kwargs), (size,), size
        kernel = np.eye(size)
    else:
        layer, shape, bias = PerturbedConv2D(1, 1), (size, 1, 1), 1
        kernel = np.ones((1, 1, 1, 1))
    built(layer, shape)
    layer.set_weights([kernel, np.zeros(bias)])
    layer.fix_noise(
        per_step=True,
        input_noise=scales.reshape(shape),
        bias_noise=np.full(bias, bias_scale),
    )
    return layer


def zeros(kind, size, rows=2):
    shape = (rows, size) if kind == "affine" else (rows, size, 1, 1)
    return np.zeros(shape, "float32")


@pytest.mark.parametrize("kind", ["affine", "conv"])
def test_per_step_noise_has_the_given_scales(kind, fixed_seed):
    # Fixed seed. False alarm 1e-3; 2/3 and 3/2 of the scales are rejected.
    size, steps = 400, 5
    scales = np.geomspace(0.01, 100, size)
    layer = per_step(kind, scales, 0.0)
    x = zeros(kind, size)
    drawn = [array(layer(x, training=True)) for _ in range(steps)]
    for draw in drawn:
        np.testing.assert_array_equal(draw[0], draw[1])
    drawn = np.stack([draw[0].ravel() for draw in drawn])
    # Of 24-bit uniforms a pair agrees now and then.
    assert np.unique(drawn).size > drawn.size - 10
    standard = (drawn / scales).ravel()
    assert stats.kstest(standard, stats.laplace.cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        cdf = stats.laplace(scale=wrong).cdf
        assert stats.kstest(standard, cdf).pvalue < 1e-6
    # Steps are independent of each other: |r| < 5 / sqrt(400), false alarm
    # 6e-7 for each of the ten pairs.
    correlation = np.corrcoef(np.arcsinh(drawn / scales))
    assert np.abs(correlation - np.eye(steps)).max() < 0.25


def test_per_step_bias_noise_has_the_given_scale(fixed_seed):
    # Fixed seed. False alarm 1e-3; 2/3 and 3/2 of the scale are rejected.
    layer = per_step("affine", np.zeros(400), 3.0)
    x = zeros("affine", 400)
    drawn = [array(layer(x, training=True))[0] for _ in range(5)]
    # Of 24-bit uniforms a pair agrees now and then.
    assert np.unique(np.stack(drawn)).size > 1990
    drawn = np.concatenate(drawn)
    assert stats.kstest(drawn, stats.laplace(scale=3).cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        cdf = stats.laplace(scale=3 * wrong).cdf
        assert stats.kstest(drawn, cdf).pvalue < 1e-6


def test_input_and_bias_are_not_shifted_by_the_same_draw(fixed_seed):
    # Fixed seed, false alarm 1e-3. One draw for both would give Laplace(2);
    # two give a sum S with P(|S| > t) = (1 + t/2) exp(-t).
    layer = per_step("affine", np.ones(400), 1.0)
    x = zeros("affine", 400)
    total = np.abs([array(layer(x, training=True))[0] for _ in range(12)])
    tail = 1 - (1 + total / 2) * np.exp(-total)
    assert stats.kstest(tail.ravel(), "uniform").pvalue > 1e-3
    same = 1 - np.exp(-total / 2)
    assert stats.kstest(same.ravel(), "uniform").pvalue < 1e-6


@pytest.mark.parametrize("kind", ["affine", "conv"])
@pytest.mark.parametrize("jit", [False, "auto"])
def test_compiled_steps_draw_again(kind, jit):
    layer = per_step(kind, np.full(4, 2.0), 0.0)
    x = zeros(kind, 4, rows=8)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    model.compile(
        keras.optimizers.SGD(0.0),
        lambda target, made: keras.ops.mean(made),
        jit_compile=jit,
    )
    # One step an epoch: its loss is the mean of the step's four draws.
    losses = []
    for _ in range(2):
        fit = model.fit(x, np.zeros_like(x), batch_size=8, epochs=4, verbose=0)
        losses += fit.history["loss"]
    assert len(set(losses)) == 8 and np.all(np.isfinite(losses))
    # Steps of one epoch: the running mean over two equal steps would stay.
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])
    )
    model.fit(x, np.zeros_like(x), batch_size=2, callbacks=[watch], verbose=0)
    assert len(set(seen)) == 4
    assert np.all(model.predict(x, verbose=0) == 0)


# Nobody can read the noise --------------------


@pytest.mark.parametrize("kind", ["affine", "conv"])
def test_scales_and_seed_stay_in_memory(kind, fixed_seed, tmp_path):
    layer = per_step(kind, np.full(4, 777.25), 555.5)
    shape = zeros(kind, 4).shape[1:]
    model = keras.Sequential([keras.Input(shape), layer])
    hidden = {k: array(v) for k, v in layer._hidden.variables.items()}
    assert sorted(hidden) == ["bias_noise", "input_noise", "seed_state"]
    assert hidden["seed_state"].ravel()[0] == 20170
    secrets = [777.25, 555.5, 20170]

    assert len(layer.weights) == len(layer.get_weights()) == 2
    # On JAX they are the state of its steps.
    state = 3 if keras.backend.backend() == "jax" else 0
    assert len(layer.variables) == 2 + state
    assert not any(np.isin(w, secrets).any() for w in model.get_weights())
    arrays, content = everything_saved(model, tmp_path)
    assert arrays.size >= 2 and not np.isin(arrays, secrets).any()
    text = repr(layer) + repr(layer.__dict__) + str(layer.get_config())
    text += repr(layer.variables) + str(layer.variables) + repr(model.variables)
    text += "".join(str(v) for v in layer._hidden.variables.values())
    # Whole numbers only: digits inside a weight occur by chance.
    for secret in (r"777\.25", r"555\.5", "20170"):
        assert not re.search(rf"(?<![\d.]){secret}(?!\d)", text)
    for secret in (b"777.25", b"555.5", b"20170"):
        assert secret not in content


# Half precision --------------------


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_per_step_noise_under_a_half_policy(policy):
    layer = per_step("affine", np.ones(400), 0.0, dtype=policy)
    made = layer(zeros("affine", 400), training=True)
    assert keras.backend.standardize_dtype(made.dtype) == policy[6:]
    made = array(keras.ops.cast(made, "float32"))
    # Drawn in full precision: half-precision uniforms have few values near
    # zero. Mean of 400 |Laplace(1)| is 1 +- 0.05; false alarm below 1e-6.
    assert np.all(np.isfinite(made)) and abs(np.abs(made[0]).mean() - 1) < 0.25
    assert layer._hidden.variables["input_noise"].dtype == "float32"
