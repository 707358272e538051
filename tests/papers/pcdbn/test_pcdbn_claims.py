"""The printed sensitivity of a convolutional RBM's polynomial energy."""

from fractions import Fraction

import numpy as np
import pytest
from rationals import agrees

from keras_fm.papers.pcdbn import claims


def energy_delta(**kwargs):
    return claims.energy_sensitivity(
        kwargs.pop("coefficients", (0.5, 0.25)),
        **{
            "form": "paper",
            "positions": 196,
            "patch": 25,
            "bound": 1.0,
            "visible": 784.0,
            "normalization": None,
            "neighbours": "replace_one",
            **kwargs,
        },
    )


@pytest.mark.parametrize(
    "kwargs, full",
    [
        # 2 (positions s sum |alpha| + inputs bound), s = patch bound + 1.
        ({}, 2 * (196 * 26 * Fraction(3, 4) + 784)),
        # The published polynomial: 16 + 35 + 35 + 21 + 5 over 32.
        (
            {"coefficients": [a / 32 for a in (16, 35, 0, -35, 0, 21, 0, -5)]},
            2 * (196 * 26 * Fraction(112, 32) + 784),
        ),
        (
            {"bound": 0.5, "visible": 392},
            2 * (196 * Fraction(27, 2) * Fraction(3, 4) + 392),
        ),
        # As the code counts, whatever the polynomial.
        ({"form": "code"}, 2 * (196 + 784)),
        ({"form": "code", "coefficients": (9.0, -9.0)}, 2 * (196 + 784)),
        ({"form": "code", "visible": 392}, 2 * (196 + 392)),
        # Z: one map, (q + a s^2)^(1/2) = 5 at s = 4.
        (
            {
                "coefficients": (0.5, -0.25, 0.125),
                "positions": 10,
                "patch": 3,
                "visible": 12,
                "normalization": (9.0, 1.0, 0.5),
            },
            2
            * (
                10
                * 4
                * (
                    Fraction(1, 2)
                    + Fraction(1, 4) * Fraction(4, 5)
                    + Fraction(1, 8) * Fraction(16, 25)
                )
                + 12
            ),
        ),
        # The paper's constants leave X = 1 to large responses.
        (
            {"normalization": (2.0, 1e-4, 0.75)},
            2 * (196 * 26 * Fraction(3, 4) + 784),
        ),
    ],
)
def test_energy_sensitivity(kwargs, full):
    for neighbours, part in (("replace_one", 1), ("add_remove", 2)):
        made = energy_delta(neighbours=neighbours, **kwargs)
        assert agrees(made, Fraction(full) / part)


def test_energy_sensitivity_covers_every_record_and_is_attained():
    # One map, images of 5 x 5 x 2, patches of 3 x 3: 9 positions.
    coefficients = (0.5, 0.3, -0.1, 0.05)
    given = {
        "coefficients": coefficients,
        "positions": 9,
        "patch": 18,
        "bound": 0.7,
        "visible": 35.0,
        "neighbours": "add_remove",
    }
    allowed = energy_delta(**given)
    local = energy_delta(normalization=(2.0, 1e-4, 0.75), **given)
    rng = np.random.default_rng(0)

    def norm(v, kernel, bias, z):
        patches = np.lib.stride_tricks.sliding_window_view(
            v, (3, 3), axis=(0, 1)
        )
        x = np.einsum("ijcab,abc->ij", patches, kernel) + bias
        powers = [
            np.sum(np.abs(a * x * (x / z(x)) ** p))
            for p, a in enumerate(coefficients)
        ]
        return sum(powers) + np.abs(v).sum()

    def largest(x):
        return np.abs(x).max()

    def response(x):
        return np.maximum(np.abs(x), (2 + 1e-4 * x**2) ** 0.75)

    for _ in range(200):
        size = rng.random() ** 0.2
        v = rng.choice([-0.7, 0.7], (5, 5, 2)) * size
        kernel = np.sign(rng.normal(rng.normal(), 1, (3, 3, 2)))
        bias = rng.uniform(-1, 1)
        assert norm(v, kernel, bias, largest) <= allowed
        assert norm(v, kernel, bias, response) <= local
    full = np.full((5, 5, 2), 0.7), np.ones((3, 3, 2)), 1.0
    for z, bound in ((largest, allowed), (response, local)):
        assert norm(*full, z) == pytest.approx(bound, rel=1e-12)


def test_energy_sensitivity_needs_its_relation():
    with pytest.raises(ValueError, match="neighbours"):
        energy_delta(neighbours="other")
    assert claims.ENERGY_REASON.startswith("none. The ")
    assert claims.ENERGY_REASON.endswith("; see docs/guarantees.md")
