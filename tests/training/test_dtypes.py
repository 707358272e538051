"""Float64 policies, truth values as labels, data that are not dense."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.core import model_inputs
from keras_fm.layers import DPPCA, NormalizationLayer, PrivateDense
from keras_fm.losses import TaylorCrossEntropy

pytestmark = [pytest.mark.full, pytest.mark.backend]

N = 200
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 4))
Y = RANDOM.integers(0, 2, N)


@pytest.fixture
def float64():
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


def model_of(*body, head=None, dtype=None, bounds=None):
    norm = NormalizationLayer(bounds, dtype=dtype)
    layers = [keras.Input((4,)), *body, norm]
    model = keras.Sequential([*layers, head or PrivateDense(2, dtype=dtype)])
    model.compile("adam", TaylorCrossEntropy())
    return model


def private_of(data, seed=None):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(1.0, 1e-6), data=data, reproducible_noise=seed
    )


MODELS = {
    "one release": lambda: model_of(),
    "rounds": lambda: model_of(head=PrivateDense(2, rounds=2)),
    "DPPCA": lambda: model_of(NormalizationLayer(), DPPCA(3)),
    "box": lambda: model_of(NormalizationLayer(bounds=(-9.0, 9.0))),
}


def check_fit(model, tmp_path):
    private = private_of((X, Y))
    model.fit(X, Y, epochs=1, verbose=0, callbacks=[private])
    found = model.predict(X, verbose=0)
    # JAX has no float64 unless its process was told so.
    wanted = "float32" if keras.backend.backend() == "jax" else "float64"
    assert found.dtype == wanted
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), found)


@pytest.mark.parametrize("kind", MODELS)
def test_a_policy_of_float64(kind, float64, tmp_path):
    """Normalised in float32, features were outside a bound that float64
    must meet to 1e-9."""
    check_fit(MODELS[kind](), tmp_path)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("guarantee", [fm.Proven(), fm.Published(lot=50)])
def test_truth_values_are_labels(units, guarantee):
    found = []
    for y in (Y, Y.astype(bool), Y.astype(object)):
        keras.utils.set_random_seed(1)
        model = model_of(head=PrivateDense(units), bounds=(0, 1))
        private = fm.callbacks.PrivateModel(
            fm.PrivacyBudget(1.0, 1e-6),
            data=(X, y),
            guarantee=guarantee,
            reproducible_noise=3,
        )
        given = Y if y.dtype == object else y
        model.fit(
            X, given, batch_size=50, shuffle=False, verbose=0,
            callbacks=[private],
        )  # fmt: skip
        found.append(model.get_weights()[0])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def refused(data, match):
    private = private_of(data)
    with pytest.raises(ValueError, match=match) as e:
        model_of().fit(X, Y, verbose=0, callbacks=[private])
    assert not private.ledger.entries
    return str(e.value)


def test_a_sparse_fit_is_refused_before_anything_is_spent():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(X.astype("float32"))
    refused((matrix, Y), "is sparse")


def test_tensors_of_tensorflow_that_are_not_dense():
    tf = pytest.importorskip("tensorflow")
    sparse = tf.sparse.from_dense(X)
    ragged = tf.ragged.constant([[1.0] * (1 + i % 3) for i in range(N)])
    slices = tf.data.Dataset.from_tensor_slices
    for values, match in ((sparse, "is sparse"), (ragged, "is ragged")):
        for data in ((values, Y), slices((values, Y)).batch(9)):
            refused(data, match)


BODIES = {
    "PrivateDense": lambda: [],
    "moments": lambda: [fm.layers.PrivateEncoder(3, input_bound=2, centre=0.5)],
    "random": lambda: [
        fm.layers.PrivateEncoder(
            3, input_bound=2, centre=0.5, source="random", rounds=2
        )
    ],
    "DPPCA": lambda: [fm.layers.DPPCA(2, input_bound=2)],
    "PrivateNormalization": lambda: [
        fm.layers.PrivateNormalization(bounds=(-1, 2))
    ],
    "RelevanceScaling": lambda: [
        fm.layers.RelevanceScaling(),
        fm.layers.NormalizationLayer(),
    ],
}


@pytest.mark.parametrize("body", BODIES)
def test_whole_numbers_are_read_as_floats_are(body):
    """One fraction in a list makes floats of the numbers of all records."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (40, 4))
    y = rng.integers(0, 2, 40)
    found = []
    for data in (x.astype("float64"), x, x.astype("uint8"), x.tolist(), x > 0):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((4,)), *BODIES[body]()]
        top = fm.layers.PrivateDense(2, clip=True)
        model = keras.Sequential([*layers, top])
        model.compile("sgd", fm.losses.TaylorCrossEntropy())
        private = private_of((data, y), seed=0)
        shown = x.astype("float32")
        model.fit(shown, y, verbose=0, callbacks=[private])
        found.append(model.get_weights())
    for weights in found[1:]:
        for one, other in zip(found[0], weights):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_large_whole_numbers_are_those_of_floats(kind):
    """On JAX, too, which has whole numbers and floats of 32 bits."""
    inputs = keras.Input((1,), dtype=kind)
    model = keras.Model(inputs, inputs * 1)
    least = 2**24 + 1 if kind == "int32" else 2**40
    x = np.array([[least], [3], [-least]])
    for array in (x, x.astype("float64")):
        given = model_inputs.checked(model, array)
        found = model_inputs.predicted(model, given)
        np.testing.assert_array_equal(found, x.astype(kind))
