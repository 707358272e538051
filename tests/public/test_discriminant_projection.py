import keras
import numpy as np
import pytest
from keras import ops

from keras_fm.public.discriminant_projection import DiscriminantProjection


def public(groups=40, size=5, d=12, seed=0):
    """Groups that differ in three of `d` rotated directions."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((groups, d))
    centres[:, :3] = rng.normal(size=(groups, 3)) * [4, 3, 2]
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    names = np.repeat(np.arange(groups), size)
    noise = rng.normal(size=(groups * size, d)) * np.linspace(0.5, 1.5, d)
    return (centres[names] + noise) @ rotation + 1.0, names, rotation


def adapted(units=3, **kwargs):
    x, names, _ = public()
    layer = DiscriminantProjection(units, **kwargs)
    layer.adapt(x, names, description="made-up clusters")
    return layer, x.astype("float32"), names


def scatters(x, names):
    """Straight from the definition, one record at a time."""
    d = x.shape[1]
    within, between = np.zeros((d, d)), np.zeros((d, d))
    c = x.mean(axis=0)
    for row, name in zip(x, names):
        m = x[names == name].mean(axis=0)
        within += np.outer(row - m, row - m)
        between += np.outer(m - c, m - c)
    return within, between


@pytest.mark.parametrize("shrinkage", [0.01, 0.5])
def test_solves_the_eigenproblem(shrinkage):
    x, names, _ = public()
    layer = DiscriminantProjection(5, shrinkage=shrinkage)
    layer.adapt(x, names)
    kernel = ops.convert_to_numpy(layer.kernel).astype("float64")
    within, between = scatters(x, names)
    metric = within + shrinkage * np.trace(within) / 12 * np.eye(12)
    ratios = np.sort(np.linalg.eigvals(np.linalg.solve(metric, between)).real)
    ratios = ratios[::-1][:5]
    # The kernel is diagonal in both, with the stated weights.
    weights = len(x) * ratios / (1 + ratios)
    np.testing.assert_allclose(
        kernel.T @ metric @ kernel, np.diag(weights), atol=1e-3 * weights[0]
    )
    np.testing.assert_allclose(
        kernel.T @ between @ kernel,
        np.diag(weights * ratios),
        atol=1e-3 * weights[0] * ratios[0],
    )


def test_finds_what_differs_between_groups():
    layer, x, _ = adapted(units=3)
    rotation = public()[2]
    kernel = np.linalg.qr(ops.convert_to_numpy(layer.kernel))[0]
    # Cosines between the found and the true three directions.
    cosines = np.linalg.svd(kernel.T @ rotation[:3].T)[1]
    assert cosines.min() > 0.97


def test_subtracts_the_public_mean():
    layer, x, _ = adapted()
    y = ops.convert_to_numpy(layer(x))
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-3)
    plain, _, _ = adapted(center=False)
    z = ops.convert_to_numpy(plain(x))
    np.testing.assert_allclose(
        z, x @ ops.convert_to_numpy(layer.kernel), rtol=1e-4, atol=1e-4
    )
    assert np.abs(z.mean(axis=0)).max() > 0.1


def test_batches_in_any_order_give_the_same_map():
    layer, x, names = adapted()
    x = public()[0]
    order = np.random.default_rng(3).permutation(len(x))
    batches = (
        (x[order[i : i + 7]], names[order[i : i + 7]])
        for i in range(0, len(x), 7)
    )
    other = DiscriminantProjection(3)
    other.adapt(batches, description="made-up clusters")
    np.testing.assert_allclose(
        ops.convert_to_numpy(other.kernel),
        ops.convert_to_numpy(layer.kernel),
        rtol=1e-4,
        atol=1e-5,
    )
    assert other.public_data == layer.public_data


def test_takes_a_tf_data_set():
    tf = pytest.importorskip("tensorflow")
    layer, _, names = adapted()
    data = tf.data.Dataset.from_tensor_slices((public()[0], names)).batch(16)
    other = DiscriminantProjection(3)
    other.adapt(data)
    np.testing.assert_allclose(
        ops.convert_to_numpy(other.kernel),
        ops.convert_to_numpy(layer.kernel),
        rtol=1e-4,
        atol=1e-5,
    )


def test_chunks_do_not_matter(monkeypatch):
    layer, _, names = adapted()
    monkeypatch.setattr("keras_fm.public.discriminant_projection._ROWS", 3)
    other = DiscriminantProjection(3)
    other.adapt(public()[0], names)
    np.testing.assert_allclose(
        ops.convert_to_numpy(other.kernel),
        ops.convert_to_numpy(layer.kernel),
        rtol=1e-4,
        atol=1e-5,
    )


def test_tells_what_it_saw():
    layer, _, _ = adapted()
    assert layer.public_data == {
        "description": "made-up clusters",
        "records": 200,
        "groups": 40,
    }
    assert DiscriminantProjection(3).public_data is None


def test_nothing_is_trained():
    layer, _, _ = adapted()
    assert layer.trainable_weights == []
    assert [w.name for w in layer.weights] == ["kernel", "bias"]


def test_symbolic_shape_and_mixed_precision():
    assert DiscriminantProjection(3)(keras.Input((12,))).shape == (None, 3)
    layer, x, _ = adapted(dtype="mixed_float16")
    y = layer(x)
    assert keras.backend.standardize_dtype(y.dtype) == "float16"
    full, _, _ = adapted()
    np.testing.assert_allclose(
        ops.convert_to_numpy(y), ops.convert_to_numpy(full(x)), atol=0.1
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"units": 0},
        {"units": 1.0},
        {"shrinkage": 0},
        {"shrinkage": float("nan")},
        {"shrinkage": "0.1"},
        {"center": 1},
    ],
)
def test_bad_arguments(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        DiscriminantProjection(**{"units": 4, **arguments})


def test_bad_public_data():
    x, names, _ = public()
    layer = DiscriminantProjection(3)
    with pytest.raises(ValueError, match="must have shape"):
        layer.adapt(x, names[:-1])
    with pytest.raises(ValueError, match="at least two groups"):
        layer.adapt(x, np.zeros_like(names))
    with pytest.raises(ValueError, match="at least `units`"):
        DiscriminantProjection(13).adapt(x, names)
    assert layer.public_data is None
