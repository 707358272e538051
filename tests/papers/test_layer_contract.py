"""What every layer of a paper keeps: it trains under protection alone, its
release lasts as long as its weights, and its noise is nowhere."""

import numpy as np
import pytest
from layer_checks import (
    check_noise_is_nowhere,
    check_pretrained,
    check_promise,
)

from keras_fm.layers import (
    ChebyshevCRBM,
    PerturbedAffine,
    PerturbedConv2D,
    PrivateEncoder,
)

pytestmark = [pytest.mark.full, pytest.mark.backend]

RNG = np.random.default_rng(0)
ROWS = RNG.random((5, 7)).astype("float32")
IMAGES = RNG.random((3, 5, 4, 2)).astype("float32")


def published(kind, *args):
    return lambda **k: kind(*args, guarantee="published", **k)


# How it is made, what it reads, and the shapes of its noise.
PERTURBED = {
    "affine": (
        lambda **k: PerturbedAffine(4, **k),
        ROWS,
        {"input_noise": (7,), "bias_noise": (4,)},
    ),
    "convolution": (
        lambda **k: PerturbedConv2D(4, 3, **k),
        IMAGES,
        {"input_noise": (5, 4, 2), "bias_noise": (4,)},
    ),
    "encoder": (
        published(PrivateEncoder, 3),
        ROWS,
        {"linear_noise": (3, 7), "quadratic_noise": (7, 3, 3)},
    ),
    "encoder, hidden": (
        published(PrivateEncoder, 3),
        ROWS,
        {"hidden_noise": (3,)},
    ),
    "crbm": (
        published(ChebyshevCRBM, 3, 3),
        IMAGES,
        {"coefficient_noise": (8, 3)},
    ),
}
RELEASED = {
    "encoder": (lambda **k: PrivateEncoder(3, **k), ROWS),
    "crbm": (lambda **k: ChebyshevCRBM(3, 3, **k), IMAGES),
}


@pytest.mark.parametrize("name", PERTURBED)
def test_it_does_not_train_unprotected(name, tmp_path):
    make, inputs, _ = PERTURBED[name]
    check_promise(make, inputs, tmp_path)


@pytest.mark.parametrize("name", PERTURBED)
def test_noise_is_in_no_file_config_or_repr(name, tmp_path):
    make, inputs, shapes = PERTURBED[name]
    layer = make()
    layer.build((None, *inputs.shape[1:]))
    noise = {
        k: np.random.default_rng(1).normal(size=shape)
        for k, shape in shapes.items()
    }
    check_noise_is_nowhere(layer, noise, inputs, tmp_path)


@pytest.mark.parametrize("name", RELEASED)
def test_a_release_lasts_as_long_as_its_weights(name, tmp_path):
    check_pretrained(*RELEASED[name], tmp_path)


@pytest.mark.parametrize("name", RELEASED)
def test_the_proven_form_does_not_train_unprotected(name, tmp_path):
    check_promise(*RELEASED[name], tmp_path, trainable_fit=False)
