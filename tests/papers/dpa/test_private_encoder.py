"""PrivateEncoder by itself: a Keras layer, its read-outs and its noise."""

import keras
import numpy as np
import pytest
from layer_checks import (
    POLICIES,
    check_layer,
    check_saved,
)

from keras_fm.papers.dpa.private_encoder import PrivateEncoder
from keras_fm.queries import ReconstructionQuery

pytestmark = [pytest.mark.full, pytest.mark.backend]

X = np.random.default_rng(0).random((5, 7)).astype("float32")


def array(x):
    return keras.ops.convert_to_numpy(x)


def built(units=3, inputs=7, **kwargs):
    layer = PrivateEncoder(units, **kwargs)
    layer.build((None, inputs))
    return layer


def published(units=3, inputs=7, **kwargs):
    return built(units, inputs, guarantee="published", **kwargs)


@pytest.mark.parametrize(
    "kwargs, fit",
    [
        ({}, False),
        ({"activation": "linear", "components": 2, "clip": True}, False),
        ({"source": "random", "rounds": 2, "seed": 5, "gain": 2.0}, False),
        ({"source": "random", "visible": (1, 4), "centre": 0.5}, False),
        ({"guarantee": "published"}, True),
        ({"guarantee": "published", "visible": (2, 7)}, True),
    ],
)
def test_it_is_a_keras_citizen(kwargs, fit, tmp_path):
    def make(**more):
        return PrivateEncoder(4, **kwargs, **more)

    check_layer(make, X, trainable_fit=fit, private=True)
    check_saved(make(), X, tmp_path / "m.keras")
    layer = make()
    assert layer.compute_output_shape((None, 7)) == (None, 4)
    loaded = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert loaded.get_config() == layer.get_config()
    assert loaded.trainable == fit


@pytest.mark.parametrize("activation", ["sigmoid", "linear"])
def test_output_is_an_affine_map_and_its_activation(activation):
    layer = built(activation=activation, centre=0.25, unprotected=True)
    kernel = array(layer.kernel)
    layer.bias.assign(np.array([0.1, -0.2, 0.3]))
    logits = (X - 0.25) @ kernel + [0.1, -0.2, 0.3]
    wanted = logits if activation == "linear" else 1 / (1 + np.exp(-logits))
    for training in (False, True):
        made = array(layer(X, training=training))
        np.testing.assert_allclose(made, wanted, atol=1e-5)


# Arguments --------------------


def test_code_scale_is_half_the_gain_and_at_most_one():
    assert built(gain=0.3).code_scale == pytest.approx(0.15)
    assert built(gain=3.0).code_scale == 1.0
    assert built(gain=3.0, activation="linear").code_scale == 3.0
    # One unit for each direction is nearly linear, mixtures saturate.
    assert built(3).code_scale < 1
    assert built(3, components=3).code_scale == built(3).code_scale
    assert built(3, components=2).code_scale == 1.0
    assert built(8).code_scale == 1.0
    # |2 sigmoid(u) - 1| <= min(1, |u| / 2).
    u = np.random.default_rng(0).normal(0, 0.3, 100_000)
    size = np.sqrt(np.mean((2 / (1 + np.exp(-u)) - 1) ** 2))
    assert 0.9 * 0.15 < size < 0.15


# Decoding --------------------


@pytest.mark.parametrize("visible", [None, (2, 5)])
@pytest.mark.parametrize("form", ["squared_error", "cross_entropy", None])
def test_decode_by_form(form, visible):
    tied = form is None
    if tied:
        layer, form = published(visible=visible), "cross_entropy"
    else:
        layer = built(form=form, visible=visible)
    d = layer.visible_dim
    layer.decoder_bias.assign(np.linspace(-1, 1, d))
    kernel = array(layer.kernel)[slice(*layer.visible_range)].T
    if not tied:
        kernel = array(layer.decoder_kernel)
    code = np.random.default_rng(0).random((4, 3)).astype("float32")
    z = code @ kernel + np.linspace(-1, 1, d)
    np.testing.assert_allclose(
        array(layer.decode(code, logits=True)), z, atol=1e-5
    )
    wanted = z
    if form == "cross_entropy":
        wanted = 1 / (1 + np.exp(-z)) if tied else 0.5 + z / 4
    np.testing.assert_allclose(array(layer.decode(code)), wanted, atol=1e-5)
    assert layer.decode(code).shape == (4, d)


# Weights from moments --------------------


def low_rank(rank, n=400, d=7, seed=0, low=-1.0):
    """Records of an exact rank, their moments and directions."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, rank)) * np.arange(rank, 0, -1)
    x = x @ np.linalg.qr(rng.normal(size=(d, rank)))[0].T / 4 + low
    mean = x.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    return x.astype("float32"), mean, vectors[:, ::-1], values[::-1]


def reconstruction_error(layer, x):
    start, stop = layer.visible_range
    found = array(layer.decode(layer(x)))
    return np.mean((found - x[:, start:stop]) ** 2) / np.mean(x.var(axis=0))


def set_principal(layer, x, mean, vectors, values, above=7):
    values = np.maximum(values, 1e-9 * values.max())
    layer.set_principal(mean - layer.centre, vectors, values, above)
    return reconstruction_error(layer, x)


@pytest.mark.parametrize(
    "visible, form", [(None, "squared_error"), ((1, 4), "cross_entropy")]
)
@pytest.mark.parametrize(
    "kwargs, most",
    [
        ({"units": 3, "activation": "linear"}, 1e-8),
        ({"units": 3, "gain": 0.01}, 1e-6),
        ({"units": 5, "gain": 0.01}, 1e-6),
        ({"units": 3}, 5e-3),  # each direction through a bent sigmoid
        # Random mixtures of all directions.
        ({"units": 5, "components": 3, "activation": "linear"}, 1e-8),
        ({"units": 5, "components": 3, "gain": 0.01}, 1e-6),
        ({"units": 60, "components": 3}, 2e-2),
        ({"units": 60}, 2e-2),
    ],
)
def test_low_rank_records_are_recovered(kwargs, most, visible, form):
    x, *moments = low_rank(3)
    kwargs = {"centre": 0.25, "visible": visible, "form": form} | kwargs
    layer = built(**kwargs)
    assert set_principal(layer, x, *moments, above=3) < most


def test_fewer_directions_leave_the_smallest_variances():
    x, mean, vectors, values = low_rank(3)
    layer = built(2, gain=0.001)
    error = set_principal(layer, x, mean, vectors, values)
    wanted = values[2] / values[:3].sum()
    assert error == pytest.approx(wanted, rel=0.02)


def test_gain_is_the_standard_deviation_of_the_logits():
    x, *moments = low_rank(3)
    layer = built(3, activation="linear", gain=0.7)
    set_principal(layer, x, *moments)
    deviations = array(layer(x)).std(axis=0)
    variances = moments[2][:3]
    wanted = 0.7 * np.sqrt(variances / variances[0])
    np.testing.assert_allclose(deviations, wanted, rtol=1e-3)
    mixed = built(300, activation="linear", gain=0.7, seed=3)
    set_principal(mixed, x, *moments, above=3)
    # The offset is a constant of each unit; 300 units, 3 directions.
    assert array(mixed(x)).std(axis=0).mean() == pytest.approx(0.7, rel=0.2)


def test_mixtures_keep_what_is_above_the_noise():
    x, *moments = low_rank(3)
    for above, rank in ((2, 2), (0, 1), (7, 7)):
        layer = built(20, activation="linear")
        set_principal(layer, x, *moments, above=above)
        assert np.linalg.matrix_rank(array(layer.kernel), 1e-3) == rank
    # As many directions as were asked for, whatever the noise.
    layer = built(20, components=4, activation="linear")
    set_principal(layer, x, *moments, above=1)
    assert np.linalg.matrix_rank(array(layer.kernel), 1e-3) == 4


# Weights from a released decoder --------------------


@pytest.mark.parametrize("kwargs", [
    {"gain": 0.01, "source": "random"},
    {"activation": "linear", "components": 2},
    {"units": 20},
])  # fmt: skip
def test_code_features_stay_in_the_unit_ball(kwargs):
    layer = built(**kwargs)
    rng = np.random.default_rng(0)
    for code in (
        rng.random((50, layer.units)),
        np.ones((2, layer.units), "float32"),
        1 + 1e-3 * rng.random((5, layer.units)),  # outside by rounding
        -1e-6 * np.ones((2, layer.units), "float32"),
        1e20 * rng.normal(size=(5, layer.units)),
    ):
        h = layer.code_features(code)
        assert h.dtype == np.float64 and h.shape == (len(code), layer.units + 1)
        assert np.linalg.norm(h[:, :-1], axis=1).max() <= 1
        assert np.linalg.norm(h, axis=1).max() <= layer.code_bound
        assert np.unique(h[:, -1]).size == 1 and h[0, -1] > 0


@pytest.mark.parametrize("visible", [None, (1, 4)])
@pytest.mark.parametrize("form", ["squared_error", "cross_entropy"])
@pytest.mark.parametrize("activation", ["sigmoid", "linear"])
def test_set_decoder_is_least_squares(activation, form, visible):
    rng = np.random.default_rng(0)
    x = rng.random((300, 7)).astype("float32")
    layer = built(
        4, source="random", activation=activation, form=form, visible=visible,
        gain=0.1, input_bound=7.0, seed=2,
    )  # fmt: skip
    code = array(layer(x))
    h = layer.code_features(code).astype(np.float64)
    start, stop = layer.visible_range
    centre = 0.5 if form == "cross_entropy" else 0.1
    targets = x[:, start:stop] - centre
    objective = ReconstructionQuery(
        num_features=5, num_visible=stop - start, visible_bound=7.0,
        centre=centre, form=form,
    )  # fmt: skip
    # The objective's own minimiser, A^-1 S / (2 k), predicts the targets.
    minimiser = np.linalg.solve(h.T @ h, h.T @ targets)
    minimiser /= 2 * objective.curvature
    if form == "cross_entropy":
        minimiser /= 4  # logits z; values are 1/2 + z/4
    layer.set_decoder(minimiser, centre)
    rows = np.concatenate([code, np.ones((300, 1))], axis=1)
    best = rows @ np.linalg.lstsq(rows, x[:, start:stop], rcond=None)[0]
    np.testing.assert_allclose(array(layer.decode(code)), best, atol=2e-4)


def test_tie_encoder_takes_the_decoders_directions():
    layer = built(4, source="random", rounds=2, input_bound=2.0, gain=0.6)
    rng = np.random.default_rng(0)
    decoder = rng.normal(size=(4, 7)) * [[1], [10], [0.1], [0]]
    layer.decoder_kernel.assign(decoder)
    layer.bias.assign(np.ones(4))
    layer.tie_encoder()
    kernel, bias = array(layer.kernel), array(layer.bias)
    assert not bias.any()
    lengths = np.linalg.norm(kernel, axis=0)
    # One length for all directions, in proportion to gain / input_bound.
    np.testing.assert_allclose(lengths[:3], lengths[0], rtol=1e-5)
    assert lengths[3] == 0
    np.testing.assert_allclose(
        kernel[:, :3] / lengths[0],
        decoder[:3].T / np.linalg.norm(decoder[:3], axis=1),
        atol=1e-5,
    )
    other = built(4, source="random", rounds=2, input_bound=4.0, gain=1.2)
    other.decoder_kernel.assign(decoder)
    other.tie_encoder()
    np.testing.assert_allclose(array(other.kernel), kernel, rtol=1e-5)


# Published noise --------------------


def noise_for(layer, seed=0):
    rng = np.random.default_rng(seed)
    units, visible = layer.units, layer.visible_dim
    return {
        "linear_noise": rng.normal(size=(units, visible)),
        "quadratic_noise": rng.normal(size=(visible, units, units)),
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("visible", [None, (2, 5)])
def test_noise_loss_is_that_of_the_perturbed_coefficients(visible, policy):
    layer = published(visible=visible, dtype=policy)
    assert layer.noise_loss() is None and not layer.is_perturbed
    noise = noise_for(layer)
    layer.fix_noise(
        linear_noise=noise["linear_noise"],
        quadratic_noise=layer.kept_noise(
            "quadratic_noise", noise["quadratic_noise"]
        ),
    )
    assert layer.is_perturbed
    decoder = array(layer.kernel)[slice(*layer.visible_range)]
    wanted = np.sum(noise["linear_noise"] * decoder.T)
    for j, w in enumerate(decoder):
        wanted += w @ noise["quadratic_noise"][j] @ w
    loss = layer.noise_loss()
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    np.testing.assert_allclose(float(array(loss)), wanted, rtol=1e-4)
    # Nothing of it in the code: it belongs to the reconstruction.
    layer(keras.ops.convert_to_tensor(X), training=True)
    assert not layer.losses


@pytest.mark.parametrize("policy", POLICIES)
def test_hidden_noise_is_one_vector_for_all_records_while_training(policy):
    layer = published(dtype=policy)
    noise = {"hidden_noise": np.random.default_rng(0).normal(size=3)}
    layer.fix_noise(**noise)
    x = keras.ops.convert_to_tensor(X)
    clean = array(keras.ops.cast(layer(x), "float32"))
    noisy = array(keras.ops.cast(layer(x, training=True), "float32"))
    assert not layer.losses
    atol = 1e-6 if policy == "float32" else 3e-2
    np.testing.assert_allclose(
        noisy - clean, np.tile(noise["hidden_noise"], (5, 1)), atol=atol
    )
    assert layer.noise_loss() is None
