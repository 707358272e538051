"""The papers' printed numbers."""

import pytest

from keras_fm import claims


@pytest.mark.parametrize(
    "units, inputs, full", [(32, 784, 50176.0), (1, 1, 2.0), (25, 49, 2450.0)]
)
def test_affine_sensitivity(units, inputs, full):
    made = claims.affine_sensitivity(units, inputs, neighbours="replace_one")
    assert made == full
    half = claims.affine_sensitivity(units, inputs, neighbours="add_remove")
    assert half == full / 2


@pytest.mark.parametrize(
    "features, outputs, full",
    [(25, 10, 1812.5), (30, 10, 2550.0), (1, 1, 1.25), (3, 1, 5.25)],
)
def test_cross_entropy_sensitivity(features, outputs, full):
    made = claims.cross_entropy_sensitivity(
        features, outputs, neighbours="replace_one"
    )
    assert made == full
    half = claims.cross_entropy_sensitivity(
        features, outputs, neighbours="add_remove"
    )
    assert half == full / 2


@pytest.mark.parametrize(
    "function",
    [claims.affine_sensitivity, claims.cross_entropy_sensitivity],
)
def test_the_relation_must_be_named(function):
    with pytest.raises(TypeError):
        function(3, 2)
    with pytest.raises(ValueError, match="neighbours"):
        function(3, 2, neighbours="other")


def test_reasons_say_that_there_is_no_proof():
    for reason in (claims.AFFINE_REASON, claims.CROSS_ENTROPY_REASON):
        assert reason.startswith("none.")
