"""The rules that arguments are held to, and what they say."""

import functools
import math

import numpy as np
import pytest

from keras_fm.kernel import checks

NAN, INF, HUGE = math.nan, math.inf, 10**400
above = functools.partial(checks.number, above=0)
share = functools.partial(checks.number, above=0, at_most=1)
rate = functools.partial(checks.number, at_least=0, below=1)
closed = functools.partial(checks.number, at_least=0, at_most=1)
choice = functools.partial(checks.one_of, choices=("a", "b"))
either = functools.partial(checks.either, choices=("a", "b"))
small = functools.partial(checks.integer, at_least=0, at_most=2)
any_size = functools.partial(checks.number, finite=False)

# Rule, what passes, what does not, what is said of it.
NOT_NUMBERS = (NAN, "1", None, True, np.bool_(True), [1.0], HUGE, -HUGE)
NOT_INTEGERS = (*NOT_NUMBERS[:-2], 1.0, INF, np.float32(2))
RULES = (
    (
        above,
        (1, 0.5, np.float32(0.5), np.array(2.0)),
        (0, -1, INF, *NOT_NUMBERS),
        "a finite number greater than 0",
    ),
    (
        checks.nonnegative,
        (0, 0.5),
        (-1e-9, INF, *NOT_NUMBERS),
        "a finite number of at least 0",
    ),
    (any_size, (INF, -INF, 0), NOT_NUMBERS, "a number"),
    (share, (1, 0.1), (0, 1.1, INF, *NOT_NUMBERS), "in (0, 1]"),
    (rate, (0, 0.9), (1, -0.1, INF, *NOT_NUMBERS), "in [0, 1)"),
    (closed, (0, 1), (-0.1, 1.1, *NOT_NUMBERS), "a number between 0 and 1"),
    (
        checks.norm_bound,
        (1e-30, 1e30),
        (0, 1e-31, 1e31, INF, *NOT_NUMBERS),
        "a finite number greater than 0 (between 1e-30 and 1e30)",
    ),
    (
        checks.count,
        (1, np.int64(7)),
        (0, -1, *NOT_INTEGERS),
        "a positive integer",
    ),
    (
        checks.natural,
        (0, 3),
        (-1, *NOT_INTEGERS),
        "a positive integer or 0",
    ),
    (small, (0, 2), (-1, 3, HUGE, *NOT_INTEGERS), "an integer between 0 and 2"),
    (checks.integer, (-3, HUGE), NOT_INTEGERS, "an integer"),
    (checks.boolean, (True, False), (1, 0, None, "True"), "True or False"),
    (choice, ("a", "b"), ("c", None, 1, ["a"]), "one of 'a', 'b'"),
    (either, ("a",), ("c", True), '"a" or "b"'),
)


@pytest.mark.parametrize("rule, good, bad, words", RULES)
def test_a_rule(rule, good, bad, words):
    for value in good:
        kept = rule("x", value)
        assert kept == value and type(kept) in (int, float, bool, str)
    for value in bad:
        with pytest.raises(ValueError) as caught:
            rule("x", value)
        said = f"`x` must be {words}. Received: x={value!r}"
        assert str(caught.value) == said


def test_an_array_is_refused_without_its_numbers():
    with pytest.raises(ValueError, match="Received: n=<class 'numpy.ndarray'>"):
        checks.count("n", np.array([123.0, 4.0]))
    checks.finite("x", np.ones(3))
    for value in (NAN, INF):
        with pytest.raises(ValueError) as caught:
            checks.finite("x", np.array([123.0, value]))
        assert str(caught.value) == "`x` must be finite."
