import keras
import numpy as np
import pytest
from keras import ops

import keras_fm as fm
from keras_fm.public.quadratic_features import QuadraticFeatures


def run(layer, x):
    return ops.convert_to_numpy(layer(np.asarray(x, "float32")))


def records(n, d):
    x = np.random.default_rng(0).normal(size=(n, d))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype("float32")


@pytest.mark.parametrize("leading", [1, 3, 8, 20])
def test_products_of_outputs_are_a_kernel(leading):
    """Linear in the features, quadratic in the cosine of the leading ones."""
    x = records(12, 8)
    y = run(QuadraticFeatures(leading, share=0.3), x)
    k = min(leading, 8)
    assert y.shape == (12, 8 + k * (k + 1) // 2)
    g = x[:, :k] / np.linalg.norm(x[:, :k], axis=1, keepdims=True)
    wanted = 0.7 * x @ x.T + 0.3 * (g @ g.T) ** 2
    np.testing.assert_allclose(y @ y.T, wanted, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, atol=1e-6)


def test_order_of_the_entries():
    y = run(QuadraticFeatures(2, share=0.5), [[0.6, 0.8, 0.0]])
    wanted = [0.6, 0.8, 0, 0.36, 2**0.5 * 0.48, 0.64]
    np.testing.assert_allclose(y[0], np.array(wanted) * 0.5**0.5, atol=1e-6)


def test_shorter_records_stay_shorter_than_one():
    x = records(5, 6) * [[1], [0.5], [1e-3], [1e-12], [0]]
    y = run(QuadraticFeatures(4), x)
    assert np.isfinite(y).all()
    assert np.linalg.norm(y, axis=1).max() <= 1 + 1e-6
    assert not y[-1].any()


def test_half_precision_multiplies_in_full():
    x = records(5, 6)
    half = QuadraticFeatures(6, dtype="mixed_float16")
    made = ops.convert_to_numpy(half(x * 1e-3))
    assert made.dtype == "float16"
    np.testing.assert_allclose(
        made[:, 6:], run(QuadraticFeatures(6), x)[:, 6:], atol=1e-3
    )


def test_saved_and_read(tmp_path):
    model = keras.Sequential([keras.Input((7,)), QuadraticFeatures(3, 0.2)])
    path = str(tmp_path / "m.keras")
    model.save(path)
    again = keras.saving.load_model(path)
    x = records(4, 7)
    assert again.output_shape == model.output_shape == (None, 13)
    np.testing.assert_array_equal(run(again, x), run(model, x))


@pytest.mark.parametrize("leading, share", [(0, 0.4), (5, 0.0), (5, 1.0)])
def test_bad_arguments(leading, share):
    with pytest.raises(ValueError, match="Received"):
        QuadraticFeatures(leading, share)


def test_rounds_learn_what_no_plane_divides():
    """Whether two numbers have the same sign; guessing is right in half."""
    x = records(3000, 4)
    y = (x[:, 0] * x[:, 1] > 0).astype("int64")
    found = []
    for layers in ([], [QuadraticFeatures(2, share=0.8)]):
        keras.utils.set_random_seed(0)
        head = fm.layers.PrivateDense(2, use_bias=False, rounds=20)
        model = keras.Sequential([keras.Input((4,)), *layers, head])
        model.compile("sgd", fm.losses.TaylorCrossEntropy())
        private = fm.callbacks.PrivateModel(
            epsilon=20.0, delta=1e-5, data=(x, y)
        )
        model.fit(x[:64], y[:64], callbacks=[private], verbose=0)
        found.append(np.mean(run(model, x).argmax(axis=1) == y))
        assert private.ledger.epsilon() <= 20
    # Right answers of a guess deviate by 0.01 in 3,000.
    assert found[0] < 0.6 and found[1] > 0.9
