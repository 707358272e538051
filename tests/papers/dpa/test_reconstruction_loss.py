"""PerturbedReconstruction against its formula and the authors' form."""

import math

import keras
import numpy as np
import pytest

from keras_fm.losses import PerturbedReconstruction
from keras_fm.papers.dpa.perturbed_reconstruction import FORMS

pytestmark = [pytest.mark.full, pytest.mark.backend]

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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_outputs_are_summed_in_float32(form, dtype):
    rounded = keras.ops.cast(Z, dtype)
    exact = keras.ops.convert_to_numpy(keras.ops.cast(rounded, "float32"))
    made = value(V, rounded, form, reduction=None, dtype="float32")
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, formula(V, exact, form), rtol=1e-5)


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
