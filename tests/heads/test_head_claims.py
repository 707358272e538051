"""The printed sensitivity of the loss of an output layer, to the last digit."""

from fractions import Fraction

import pytest
from rationals import agrees

from keras_fm.heads import claims


@pytest.mark.parametrize(
    "features, outputs, full",
    [
        # M (b + b^2 / 4): 25 hidden features for MNIST, 30 for CIFAR-10.
        (25, 10, Fraction(3625, 2)),
        (30, 10, Fraction(2550)),
        # With the constant entry of the bias.
        (26, 10, Fraction(1950)),
        (31, 10, Fraction(5425, 2)),
        (7, 3, Fraction(231, 4)),
        (1, 1, Fraction(5, 4)),
    ],
)
def test_loss_noise_scale(features, outputs, full):
    epsilon = Fraction("0.15")
    assert full == outputs * (features + Fraction(features**2, 4))
    for neighbours, part in (("replace_one", 1), ("add_remove", 2)):
        made = claims.cross_entropy_sensitivity(
            features, outputs, neighbours=neighbours
        )
        assert agrees(made, full / part)
        assert agrees(made / float(epsilon), full / part / epsilon)


def test_it_needs_its_relation_and_has_no_proof():
    with pytest.raises(TypeError):
        claims.cross_entropy_sensitivity(3, 2)
    with pytest.raises(ValueError, match="neighbours"):
        claims.cross_entropy_sensitivity(3, 2, neighbours="other")
    for reason in (claims.CROSS_ENTROPY_REASON,):
        assert reason.startswith("none. The ")
        assert reason.endswith("; see docs/guarantees.md")
