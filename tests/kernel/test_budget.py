"""What a budget accepts."""

import math

import pytest

from keras_fm.kernel import budget


@pytest.mark.parametrize("epsilon", [1e-6, 1, 0.5, 1e6])
@pytest.mark.parametrize("delta", [0, 1e-12, 0.5])
def test_accepts_the_whole_range(epsilon, delta):
    made = budget.PrivacyBudget(epsilon, delta)
    assert (made.epsilon, made.delta) == (epsilon, delta)
    assert type(made.epsilon) is float and type(made.delta) is float


@pytest.mark.parametrize(
    "epsilon", [0, -1, 1.1e6, math.inf, math.nan, None, "much", "1", True, [1]]
)
def test_refuses_an_epsilon_outside_its_range(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        budget.PrivacyBudget(epsilon, 0.0)


@pytest.mark.parametrize(
    "delta",
    [-1e-9, 1, 2, math.inf, math.nan, None, "little", "0", False, 10**400],
)
def test_refuses_a_delta_outside_its_range(delta):
    with pytest.raises(ValueError, match="delta"):
        budget.PrivacyBudget(1.0, delta)


@pytest.mark.parametrize("given", [(2.0,), (2.0, None)])
def test_an_epsilon_alone_is_refused(given):
    """A forgotten delta meant delta = 0, and the noise of it."""
    with pytest.raises(ValueError, match="`delta` must be given") as e:
        budget.PrivacyBudget(*given)
    for code in (
        "`PrivacyBudget(2, delta=1e-5)`",
        "`PrivacyBudget(2, delta=0)`",
    ):
        assert code in str(e.value)


def test_what_is_no_number_is_not_shown():
    """Records stand where a number was meant: `PrivateModel(1.0, (x, y))`."""
    with pytest.raises(ValueError, match="Received: list") as e:
        budget.PrivacyBudget(1.0, [57913])
    assert "57913" not in str(e.value)


def test_shares_sum_to_one():
    parts = budget.shares([1, 3, 0.5])
    assert math.fsum(parts) == pytest.approx(1.0, abs=1e-15)
    assert parts[1] == pytest.approx(3 * parts[0])


@pytest.mark.parametrize(
    "weights", [[], [0], [1, -1], [math.nan], [math.inf, 1], ["x"], [True]]
)
def test_refuses_weights_that_are_no_shares(weights):
    with pytest.raises(ValueError, match="share"):
        budget.shares(weights)
