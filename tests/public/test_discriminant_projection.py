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
