"""PerturbedReconstruction against its formula and the authors' form."""

import math

import keras
import numpy as np
import pytest

from keras_fm.losses import PerturbedReconstruction
from keras_fm.papers.dpa.perturbed_reconstruction import FORMS
from keras_fm.papers.dpa.reconstruction import ReconstructionQuery

RNG = np.random.default_rng(0)
V = RNG.uniform(size=(6, 5)).astype("float32")
Z = RNG.normal(size=(6, 5)).astype("float32")


def formula(v, z, form="cross_entropy"):
    if form == "squared_error":
        return np.sum((v - z) ** 2, axis=1) / 2
    return np.sum(np.log(2) + (0.5 - v) * z + z**2 / 8, axis=1)


def authors_form(v, z):
    terms = np.maximum(z, 0) - v * z + np.log(2) - np.abs(z) / 2 + z**2 / 8
    return terms.sum(axis=1)


def value(v, z, *args, **kwargs):
    loss = PerturbedReconstruction(*args, **kwargs)(v, z)
    return np.asarray(keras.ops.convert_to_numpy(loss))


@pytest.mark.parametrize("form", FORMS)
def test_formula_and_reductions(form):
    expected = formula(V, Z, form)
    for reduction, reduced in (
        (None, expected),
        ("none", expected),
        ("sum", expected.sum()),
        ("sum_over_batch_size", expected.mean()),
        ("mean", expected.mean()),
    ):
        made = value(V, Z, form, reduction=reduction)
        assert made.shape == np.shape(reduced)
        np.testing.assert_allclose(made, reduced, rtol=1e-5)
    np.testing.assert_allclose(value(V, Z, form), expected.mean(), rtol=1e-5)


def test_it_equals_the_form_of_the_authors_code():
    z = np.concatenate([Z, -8 * Z, np.zeros_like(Z)])
    v = np.concatenate([V, V, np.round(V)])
    made = value(v, z, reduction=None)
    np.testing.assert_allclose(made, authors_form(v, z), rtol=1e-5)


def test_distance_to_the_exact_cross_entropy():
    """At most 0.004886 a unit, attained at the ends; never below it."""
    z = np.linspace(-1, 1, 101, dtype="float32")[:, None]
    bound = 1 / 8 - math.log(math.cosh(0.5))
    for unit in (0.0, 0.25, 1.0):
        v = np.full_like(z, unit)
        exact = np.logaddexp(0, z.astype(float)) - unit * z
        error = value(v, z, reduction=None) - exact[:, 0]
        # float32 rounding of a loss of about 1.
        assert error.min() > -3e-7
        assert error.max() == pytest.approx(bound, abs=3e-7)
        assert abs(z[error.argmax(), 0]) > 0.99
    assert bound < 0.004886


def test_units_add_up():
    one_by_one = sum(value(V[:, [j]], Z[:, [j]]) for j in range(5))
    np.testing.assert_allclose(value(V, Z), one_by_one, rtol=1e-5)


def test_sample_weight():
    weight = np.array([1, 0, 0, 0, 0, 2], "float32")
    loss = PerturbedReconstruction()(V, Z, sample_weight=weight)
    expected = np.sum(weight * formula(V, Z)) / 6
    made = float(keras.ops.convert_to_numpy(loss))
    assert made == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_outputs_are_summed_in_float32(form, dtype):
    rounded = keras.ops.cast(Z, dtype)
    exact = keras.ops.convert_to_numpy(keras.ops.cast(rounded, "float32"))
    made = value(V, rounded, form, reduction=None, dtype="float32")
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, formula(V, exact, form), rtol=1e-5)


def test_whole_number_pixels_are_taken():
    pixels = (V > 0.5).astype("uint8")
    np.testing.assert_allclose(
        value(pixels, Z), formula(pixels.astype(float), Z).mean(), rtol=1e-5
    )


@pytest.mark.parametrize("form", FORMS)
def test_gradient(form):
    """By training one step of size one: the weights move by minus it."""
    slope = {"cross_entropy": 0.5 - V + Z / 4, "squared_error": Z - V}[form]
    layer = keras.layers.Dense(5, use_bias=False)
    model = keras.Sequential([keras.Input((6,)), layer])
    # The inputs pick one row of the kernel each, so the outputs are Z.
    layer.set_weights([Z])
    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=PerturbedReconstruction(form, reduction="sum"),
    )
    model.train_on_batch(np.eye(6, dtype="float32"), V)
    moved = layer.get_weights()[0] - Z
    np.testing.assert_allclose(-moved, slope, atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_training_finds_the_least_squares_decoder(policy):
    """docs/proofs/reconstruction.md: values are read as 1/2 + z/4."""
    rng = np.random.default_rng(1)
    h = rng.normal(size=(64, 3)).astype("float32")
    v = (0.5 + 0.1 * h @ rng.normal(size=(3, 4))).astype("float32")
    layer = keras.layers.Dense(4, use_bias=False, dtype=policy)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile(
        optimizer=keras.optimizers.SGD(2.0), loss=PerturbedReconstruction()
    )
    model.fit(h, v, epochs=60, batch_size=64, verbose=0)
    expected = 4 * np.linalg.lstsq(h, v - 0.5, rcond=None)[0]
    tolerance = 1e-4 if policy == "float32" else 0.03
    np.testing.assert_allclose(layer.get_weights()[0], expected, atol=tolerance)


@pytest.mark.parametrize(
    "v, z",
    [
        (np.zeros((6, 4)), Z),
        (np.zeros((6, 1)), Z),
        (np.zeros(6), Z),
        (np.zeros((6, 5, 1)), Z),
    ],
)
def test_wrong_shapes_are_refused_not_broadcast(v, z):
    with pytest.raises(ValueError, match="one value for each visible unit"):
        PerturbedReconstruction()(v.astype("float32"), z)


@pytest.mark.parametrize("form", ["absolute", None, 2])
def test_an_unknown_form_is_refused(form):
    with pytest.raises(ValueError, match="`form` must be one of"):
        PerturbedReconstruction(form)


@pytest.mark.parametrize("form", FORMS)
def test_serialization(form):
    loss = PerturbedReconstruction(form, reduction="sum", name="mine")
    config = keras.saving.serialize_keras_object(loss)
    assert config["registered_name"] == "keras_fm>PerturbedReconstruction"
    twin = keras.saving.deserialize_keras_object(config)
    assert type(twin) is PerturbedReconstruction
    assert twin.get_config() == loss.get_config()
    assert twin.get_config()["form"] == form
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(twin(V, Z)),
        keras.ops.convert_to_numpy(loss(V, Z)),
    )


def test_a_compiled_model_is_saved_with_it(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5)])
    model.compile("sgd", PerturbedReconstruction("squared_error"))
    x = RNG.normal(size=(6, 3)).astype("float32")
    path = tmp_path / "model.keras"
    model.save(path)
    twin = keras.models.load_model(path)
    assert twin.loss.form == "squared_error"
    np.testing.assert_allclose(
        twin.evaluate(x, V, verbose=0),
        model.evaluate(x, V, verbose=0),
        rtol=1e-6,
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_querys_value_is_the_summed_loss(form):
    """Of its statistics, but for what weights of zero have."""
    query = ReconstructionQuery(
        num_features=4, num_visible=5, visible_bound=4.0, form=form
    )
    h = RNG.uniform(-0.5, 0.5, size=(6, 4))
    # The squared error of the loss is not centred.
    v = V.astype("float64") - query.centre * (form != FORMS[0])
    centred = v - query.centre if form == FORMS[0] else v
    a, s = h.T @ h, h.T @ centred
    weights = RNG.normal(size=(4, 5))
    made, zero = (
        float(value(v.astype("float32"), z, form, reduction="sum"))
        for z in ((h @ weights).astype("float32"), 0 * V)
    )
    wanted = query.value(weights, (a, s))
    assert made - zero == pytest.approx(wanted, rel=1e-4)
