"""What an epsilon promises, in one sentence for somebody who decides."""

import math

from keras_fm.kernel import checks
from keras_fm.kernel.budget import Neighbours
from keras_fm.kernel.ledger.statement import rounded_up

# The rounding of sums, as in a ledger; beyond it, nothing is rounded down.
_SUMS = 1e-9


def sentence(epsilon, delta, neighbours, unit="record"):
    """What a proven epsilon promises, for somebody who decides.

    Args:
        epsilon, delta: float; what is proven.
        neighbours: a `Neighbours` or its name.
        unit: str, what one of is hidden.

    Returns:
        str, one sentence.

    Raises:
        ValueError: if the epsilon is not finite: then nothing is promised.
    """
    if not math.isfinite(epsilon):
        checks.refuse("epsilon", epsilon, "finite")
    change = {
        Neighbours.ADD_REMOVE: f"Adding or removing any one {unit}",
        Neighbours.REPLACE_ONE: f"Replacing any one {unit} by another",
        Neighbours.REPLACE_LABEL: f"Changing the label of any one {unit}",
    }[Neighbours.of(neighbours)]
    also = ""
    if delta:
        chance = math.floor(1 / delta * (1 + _SUMS))
        also = f", apart from a probability of at most 1 in {chance:,}"
    factor = math.exp(min(epsilon, 700.0))
    times = rounded_up(factor, 3)
    if 100 <= factor < 1e9:
        times = f"{math.ceil(factor * (1 - _SUMS)):,}"
    elif epsilon > 700:
        times = f"10^{math.ceil(epsilon / math.log(10)):,}"
    return (
        f"{change} makes a released result, or anything computed from it, "
        f"at most {times} times as probable{also}."
    )
