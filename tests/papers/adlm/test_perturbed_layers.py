"""PerturbedConv2D, and noise that is drawn again at every step."""

import re
import zipfile

import keras
import numpy as np
import pytest
from layer_checks import (
    check_layer,
    check_promise,
    check_refuses,
    check_saved,
    everything_saved,
)
from scipy import stats

from keras_fm.papers.adlm.perturbed_affine import PerturbedAffine
from keras_fm.papers.adlm.perturbed_conv2d import PerturbedConv2D

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
        (
            lambda **k: PerturbedConv2D(
                2,
                5,
                sensitivity="patch",
                feature_map=(3, 3),
                adaptive=True,
                noise="per_step",
                input_bound=10,
                kernel_initializer="he_normal",
                **k,
            ),
            IMAGES,
        ),
        (lambda **k: PerturbedAffine(4, noise="per_step", **k), X),
        (
            lambda **k: PerturbedAffine(
                4, adaptive=True, input_bound=0.5, activation="tanh", **k
            ),
            IMAGES,
        ),
    ],
)
def test_layers_are_keras_citizens(make, inputs, tmp_path):
    check_layer(make, inputs, private=True)
    check_saved(make(), inputs, tmp_path / "m.keras")


def test_a_convolution_does_not_train_unprotected(tmp_path):
    check_promise(lambda **k: PerturbedConv2D(4, 3, **k), IMAGES, tmp_path)


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
    layer.fix_noise(nx, nb)
    shifted = np.tanh(array(conv((IMAGES + nx).astype("float32"))) + nb)
    made = array(layer(IMAGES, training=True))
    np.testing.assert_allclose(made, shifted, atol=1e-5)
    np.testing.assert_allclose(
        array(layer(IMAGES)), np.tanh(array(conv(IMAGES))), atol=1e-6
    )
    with pytest.raises(ValueError, match="fixed already"):
        layer.fix_noise(nx, nb)


def test_conv_noise_shapes():
    layer = built(PerturbedConv2D(4, 3), (7, 6, 2))
    for shapes in (((7, 6), 4), ((7, 6, 2), 5), ((6, 7, 2), 4)):
        with pytest.raises(ValueError, match="Noise must have shapes"):
            layer.fix_noise(*(np.zeros(shape) for shape in shapes))
    with pytest.raises(ValueError, match="`bias_noise` must be finite"):
        layer.fix_noise(np.zeros((7, 6, 2)), np.array([0.0, np.nan, 0.0, 0.0]))
    assert not layer.is_perturbed


@pytest.mark.parametrize(
    "kwargs, shape, wanted",
    [
        # MNIST and CIFAR-10 as the authors count: the map after pooling.
        ((32, 5, "patch", 14), (28, 28, 1), 9800.0),
        ((128, 3, "patch", 10), (32, 32, 3), 5400.0),
        # Without `feature_map` the positions of the layer's own output.
        ((32, 5, "patch", None), (28, 28, 1), 2.0 * 28 * 28 * 25),
        ((32, 5, "paper", None), (28, 28, 1), 2.0 * 32 * 784 * 784),
        ((32, 5, "paper", (14, 14)), (28, 28, 1), 2.0 * 32 * 196 * 784),
    ],
)
def test_conv_claimed_sensitivity(kwargs, shape, wanted):
    filters, size, form, feature_map = kwargs
    layer = PerturbedConv2D(
        filters, size, sensitivity=form, feature_map=feature_map
    )
    built(layer, shape)
    assert layer.claimed_sensitivity("replace_one") == wanted
    assert layer.claimed_sensitivity("add_remove") == wanted / 2


def test_conv_positions_follow_stride_and_padding():
    layer = PerturbedConv2D(
        8, 5, strides=2, padding="valid", sensitivity="patch"
    )
    built(layer, (28, 28, 1))
    assert layer.claimed_sensitivity("replace_one") == 2.0 * 12 * 12 * 25


# Noise at every step --------------------


def per_step(kind, scales, bias_scale, **kwargs):
    """A layer whose output is its input plus its bias, one unit for each
    input feature."""
    size = scales.size
    if kind == "affine":
        layer = PerturbedAffine(size, noise="per_step", **kwargs)
        built(layer, (size,))
        layer.set_weights([np.eye(size), np.zeros(size)])
        layer.fix_noise(scales, np.full(size, bias_scale))
        return layer
    layer = PerturbedConv2D(1, 1, noise="per_step", **kwargs)
    built(layer, (size, 1, 1))
    layer.set_weights([np.ones((1, 1, 1, 1)), np.zeros(1)])
    layer.fix_noise(scales.reshape(size, 1, 1), np.full(1, bias_scale))
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
def test_per_step_noise_is_absent_at_inference(kind):
    layer = per_step(kind, np.full(9, 5.0), 7.0)
    x = zeros(kind, 9)
    assert np.abs(array(layer(x, training=True))).min() > 0
    assert np.all(array(layer(x, training=False)) == 0)
    assert np.all(array(layer(x)) == 0)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    model.compile("sgd", "mse")
    assert np.all(model.predict(x, verbose=0) == 0)
    assert model.evaluate(x, x.reshape(2, -1) if kind == "affine" else x,
                          verbose=0) == 0  # fmt: skip


def test_two_layers_draw_apart():
    # False alarm 5e-6: 81 pairs of 24-bit uniforms.
    a, b = (per_step("affine", np.ones(9), 0.0) for _ in range(2))
    x = zeros("affine", 9)
    first, second = (array(layer(x, training=True)) for layer in (a, b))
    assert not np.isin(first, second).any()


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


def test_once_means_once_in_compiled_steps():
    layer = built(PerturbedAffine(4), (4,))
    layer.fix_noise(np.full(4, 2.0), np.full(4, 3.0))
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(
        keras.optimizers.SGD(0.0), lambda target, made: keras.ops.mean(made)
    )
    x = zeros("affine", 4, rows=8)
    fit = model.fit(x, x, batch_size=8, epochs=4, verbose=0)
    assert len(set(fit.history["loss"])) == 1
    assert fit.history["loss"][0] != 0


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


def test_a_loaded_or_cloned_layer_carries_no_noise(tmp_path):
    layer = per_step("affine", np.full(4, 2.0), 3.0)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    clone = keras.models.clone_model(model)
    for other in (loaded, clone):
        assert other.layers[0].noise == "per_step"
        assert not other.layers[0].is_perturbed
        # Noise is in no file and no copy: what it protected rests.
        check_refuses(other, zeros("affine", 4))


# Bound of perturbed inputs --------------------


@pytest.mark.parametrize("kind", ["affine", "conv"])
def test_input_bound_clips_only_perturbed_training(kind):
    x = zeros(kind, 400) + 25
    layer = per_step(kind, np.full(400, 100.0), 0.0, input_bound=10)
    made = array(layer(x, training=True))
    assert np.abs(made).max() == 10 and np.unique(made).size > 2
    assert {-10.0, 10.0} <= set(np.unique(made))
    assert np.all(array(layer(x)) == 25)
    # A bound without noise changes nothing.
    plain = PerturbedAffine(400, input_bound=10, unprotected=True)
    built(plain, (400,))
    plain.set_weights([np.eye(400), np.zeros(400)])
    x = zeros("affine", 400) + 25
    assert np.all(array(plain(x, training=True)) == 25)


def test_input_bound_leaves_the_bias_noise_alone():
    layer = built(PerturbedAffine(3, input_bound=2.0), (3,))
    layer.set_weights([np.eye(3), np.zeros(3)])
    layer.fix_noise(np.array([5.0, -5.0, 0.5]), np.full(3, 100.0))
    made = array(layer(zeros("affine", 3), training=True))
    np.testing.assert_allclose(made[0], [102.0, 98.0, 100.5], rtol=1e-6)


# Relevance --------------------


def test_the_other_network_is_no_part_of_the_layer(tmp_path):
    other = keras.Sequential([keras.Input((7,)), keras.layers.Dense(50)])
    layer = PerturbedAffine(
        4, adaptive=True, relevance_form="code", relevance_floor=1e-3
    )
    model = keras.Sequential([keras.Input((7,)), layer])
    layer.relevance_of(other)
    assert len(model.weights) == 2
    model.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert "Dense" not in archive.read("config.json").decode()
    loaded = keras.saving.load_model(tmp_path / "m.keras").layers[0]
    assert loaded.relevance_form == "code" and loaded.relevance_floor == 1e-3
    assert loaded.relevance is None and len(loaded.weights) == 2


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


# Arguments --------------------


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"noise": "twice"}, "`noise` must be one of .*noise='twice'"),
        ({"noise": None}, "`noise` must be one of"),
        ({"input_bound": 0}, "`input_bound` must be None or.*input_bound=0"),
        ({"input_bound": -1.0}, "`input_bound` must be"),
        ({"input_bound": float("nan")}, "`input_bound` must be"),
        ({"input_bound": float("inf")}, "`input_bound` must be"),
        ({"relevance_form": "mean"}, "`relevance_form` must be one of.*'mean'"),
        ({"relevance_floor": 0.0}, "`relevance_floor` must be a finite.*0.0"),
        ({"relevance_floor": float("nan")}, "`relevance_floor` must be"),
        ({"relevance_floor": float("inf")}, "`relevance_floor` must be"),
    ],
)
def test_bad_arguments_of_both(kwargs, match):
    with pytest.raises(ValueError, match=match):
        PerturbedAffine(3, **kwargs)
    with pytest.raises(ValueError, match=match):
        PerturbedConv2D(3, 3, **kwargs)


@pytest.mark.parametrize("units", [0, -2, 2.0, "4"])
def test_bad_units(units):
    with pytest.raises(ValueError, match="`units`, expected a positive int"):
        PerturbedAffine(units)


@pytest.mark.parametrize(
    "kwargs, match",
    [
        ({"filters": 0}, "`filters`, expected a positive.*filters=0"),
        ({"filters": 2.0}, "`filters`"),
        ({"filters": True}, "`filters`"),
        ({"kernel_size": 0}, "`kernel_size`"),
        ({"kernel_size": (3, -1)}, "`kernel_size`"),
        ({"kernel_size": (3, 3, 3)}, "an integer or a pair of them"),
        ({"strides": 0}, "`strides`"),
        ({"strides": (1, 1.5)}, "`strides`"),
        ({"padding": "causal"}, "`padding` must be.*padding='causal'"),
        ({"sensitivity": "authors"}, "`sensitivity` must be one of"),
        ({"feature_map": (14, 0)}, "`feature_map`"),
        ({"feature_map": (1, 2, 3)}, "`feature_map`"),
    ],
)
def test_bad_arguments_of_conv(kwargs, match):
    with pytest.raises(ValueError, match=match):
        PerturbedConv2D(**({"filters": 2, "kernel_size": 3} | kwargs))


@pytest.mark.parametrize(
    "shape", [(None, 7, 6), (None, None, 6, 2), (None, 7, None, 2)]
)
def test_conv_needs_a_known_shape(shape):
    with pytest.raises(ValueError, match="of a known shape"):
        PerturbedConv2D(2, 3)(keras.Input(shape[1:]))
