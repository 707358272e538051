import numpy as np
import pytest
from keras import ops

from keras_fm.public.principal_projection import PrincipalProjection


def public(n=300, d=12, seed=0):
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(d, d)) * np.linspace(3, 0.3, d)[:, None]
    return rng.normal(size=(n, d)) @ mixing + 5.0


def adapted(units=4, x=None, **kwargs):
    layer = PrincipalProjection(units, **kwargs)
    layer.adapt(public() if x is None else x, description="made-up numbers")
    return layer


def run(layer, x):
    return ops.convert_to_numpy(layer(x.astype("float32")))


@pytest.mark.parametrize("power", [0, -0.25, -0.5])
def test_outputs_have_the_stated_variance(power):
    x = public()
    y = run(adapted(5, power=power), x)
    variance = np.linalg.eigvalsh(np.cov((x / x.std(axis=0)).T, bias=True))
    expected = variance[::-1][:5] ** (1 + 2 * power)
    np.testing.assert_allclose(
        np.cov(y.T, bias=True),
        np.diag(expected),
        atol=1e-3 * expected.max(),
    )
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=2e-3)


def test_fewer_records_than_features():
    """The matrix of records has the same directions."""
    x = public(n=30, d=50)
    y = run(adapted(6, x), x)
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    left, values, _ = np.linalg.svd(standard, full_matrices=False)
    variance = values[:6] ** 2 / 30
    expected = left[:, :6] * values[:6] * variance**-0.25
    np.testing.assert_allclose(np.abs(y), np.abs(expected), atol=5e-3)


def test_all_mixtures_of_the_records_are_the_records():
    """Orthonormal combinations, as many as records, have their covariance;
    fewer of them have its leading directions nearly."""
    x = public(n=60, d=90)
    y = run(adapted(6, x), x)
    np.testing.assert_allclose(
        np.abs(run(adapted(6, x, mixtures=60), x)), np.abs(y), atol=1e-6
    )
    nearly_all = run(adapted(6, x, mixtures=59, seed=1), x)
    np.testing.assert_allclose(
        np.square(nearly_all).sum(), np.square(y).sum(), rtol=0.1
    )
    left, _, _ = np.linalg.svd(y, full_matrices=False)
    other, _, _ = np.linalg.svd(nearly_all, full_matrices=False)
    # Cosines of the angles between both spaces: five are nearly shared.
    assert np.linalg.svd(left.T @ other)[1][4] > 0.99


def test_mixtures_are_their_own_principal_components():
    """Standardised, orthonormal, scaled: computed here in another way."""
    x = public(n=80, d=120)
    layer = adapted(5, x, mixtures=20, seed=3, power=0)
    random = np.random.default_rng(3).standard_normal((80, 20), np.float32)
    mixed = np.linalg.qr(random)[0].T @ ((x - x.mean(0)) / x.std(0))
    _, values, rows = np.linalg.svd(mixed, full_matrices=False)
    expected = rows[:5] / x.std(0)
    found = ops.convert_to_numpy(layer.kernel).T
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-5)
    scaled = ops.convert_to_numpy(adapted(5, x, mixtures=20, seed=3).kernel)
    variance = np.square(values[:5]) / 80
    expected = np.abs(expected) * variance[:, None] ** -0.25
    np.testing.assert_allclose(np.abs(scaled.T), expected, 1e-3, 1e-5)


def test_chunks_do_not_matter(monkeypatch):
    wide = public(n=30, d=50)
    cases = [(public(), None), (wide, None), (wide, 9)]
    first = [run(adapted(4, x, mixtures=k), x) for x, k in cases]
    monkeypatch.setattr("keras_fm.public.principal_projection._ROWS", 7)
    for y, (x, k) in zip(first, cases):
        again = run(adapted(4, x, mixtures=k), x)
        np.testing.assert_allclose(again, y, atol=1e-3)


def test_constant_features_do_not_count():
    x = np.concatenate([public(), np.full((300, 1), 7.0)], axis=1)
    y = run(adapted(4, x), x)
    np.testing.assert_allclose(y, run(adapted(4), public()), atol=1e-3)


def test_bad_public_data():
    x = public()
    layer = PrincipalProjection(4)
    with pytest.raises(ValueError, match="at least `units`"):
        layer.adapt(x[:, :3])
    with pytest.raises(ValueError, match="differ in 2. Received: units=4"):
        layer.adapt(np.repeat(x[:3], 5, axis=0))
    with pytest.raises(ValueError, match="differ in 0"):
        layer.adapt(np.ones((9, 12)))
    assert layer.public_data is None
