"""Ledgers whose numbers nobody vouches for: an error, or an answer, soon.

A ledger is text that anybody can write. Whatever its numbers are, it is
refused with a ValueError or says its epsilon, in seconds; it raises nothing
else.
"""

import itertools
import json
import math
import warnings

import numpy as np
import pytest

import keras_fm as fm
from keras_fm.kernel import compose, mechanisms

pytestmark = [
    pytest.mark.once,
    pytest.mark.backend,
    pytest.mark.optimised,
    pytest.mark.full,
]

NUMBERS = [
    *(0, -1, 1, 2, 1.5, 7.0, 1000, 10**6, 2**21 + 1, 10**9, 10**12, 10**13),
    *(10**400, -(10**400), 2**64, 5e-324, 1e-320, 1e-300, 1e-100, 1e-50),
    *(1e-20, 1e-9, 1e-5, 1e-3, 0.01, 0.1, 0.3, 0.999, 1 - 2**-53, 1 + 2**-52),
    *(1e3, 1e6, 1e8, 1e20, 1e50, 1e100, 1e300, 1.7e308, -0.0, -1e-5),
    *(True, False, None, "1", "", [], {}, [1], "NaN"),
]
MECHANISMS = [
    mechanisms.GaussianMechanism(sensitivity=1.0, noise_multiplier=2.0),
    mechanisms.LaplaceMechanism(sensitivity=1.0, epsilon=0.1),
    mechanisms.SampledGaussianMechanism(
        sensitivity=1.0,
        noise_multiplier=2.0,
        sampling_rate=0.01,
        steps=100,
        overflow_probability=1e-12,
    ),
]
PARAMETERS = [
    (m, name) for m in MECHANISMS for name in m.config() if name != "mechanism"
]
_ids = itertools.count(2**64)


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """The same ways through the code, in less time."""
    monkeypatch.setattr(compose, "_POINTS", 2e3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    compose._compose_epsilon.cache_clear()


def ledger(*configs, epsilon=1.0, delta=1e-5, **more):
    """The text of a ledger with such mechanisms, that is known to nobody."""
    entries = [
        {
            "name": f"entry {number if len(configs) > 100 else number % 3}",
            "guarantee": "claimed" if "claimed_epsilon" in c else "proven",
            "neighbours": "add_remove",
            "mechanism": c,
            "uses": "A and S",
            "proof": "none.",
            "private": True,
            "noise": "lattice",
            "notes": [],
            "when": "2026-01-01T00:00:00+00:00",
        }
        for number, c in enumerate(configs)
    ]
    return json.dumps(
        {
            "format": 1,
            "id": f"{next(_ids):032x}",
            "budget": {"epsilon": epsilon, "delta": delta},
            "neighbours": "add_remove",
            "unit": "one record",
            "entries": entries,
            "audits": [],
            **more,
        }
    )


def is_answered(text):
    """Whether a text is taken; if so, all that it can be asked is answered."""
    try:
        found = fm.Ledger.from_json(text)
    except ValueError as e:
        assert str(e)
        return False
    numbers = found.epsilon(), found.claimed_epsilon(), found.remaining()
    assert all(n >= 0 for n in numbers), numbers
    assert found.remaining() <= found.budget.epsilon
    assert "Privacy statement" in found.statement() and repr(found)
    assert fm.Ledger.from_json(found.to_json()).epsilon() == found.epsilon()
    # Of a ledger with such entries.
    found._is_text = False
    try:
        found.check([])
    except fm.BudgetExceededError as e:
        assert "nan" not in str(e)
    return True


# One number ------------------------------------------------------------------


@pytest.mark.parametrize(
    "mechanism, name",
    PARAMETERS,
    ids=[f"{type(m).__name__} {name}" for m, name in PARAMETERS],
)
def test_any_number_in_the_place_of_a_parameter(mechanism, name):
    taken = [
        is_answered(ledger({**mechanism.config(), name: value}, delta=delta))
        for value in NUMBERS
        for delta in (0.0, 1e-5)
    ]
    assert any(taken) and not all(taken)


@pytest.mark.parametrize("name", ["epsilon", "delta"])
@pytest.mark.parametrize(
    "mechanism", MECHANISMS, ids=lambda m: type(m).__name__
)
def test_any_number_in_the_place_of_the_budget(mechanism, name):
    texts = (ledger(mechanism.config(), **{name: v}) for v in NUMBERS)
    taken = [is_answered(text) for text in texts]
    assert any(taken) and not all(taken)


@pytest.mark.parametrize(
    "name", ["claimed_epsilon", "steps", "sampling_rate", "other"]
)
def test_any_number_in_a_claim(name):
    config = {"claimed_epsilon": 0.5, **MECHANISMS[2].config()}
    taken = [is_answered(ledger({**config, name: v})) for v in NUMBERS]
    assert any(taken) and not all(taken)


def test_a_billion_steps_are_answered(monkeypatch):
    """They never were: an integer was taken to the power of them."""
    monkeypatch.undo()
    config = {**MECHANISMS[2].config(), "overflow_probability": 0.0}
    found = [
        fm.Ledger.from_json(ledger({**config, "steps": n})).epsilon()
        for n in (10**5, 10**6, 10**9, 10**12)
    ]
    assert found[0] < found[1] < found[2] == math.inf == found[3]


def test_too_many_entries_are_refused():
    text = ledger(*[MECHANISMS[0].config()] * 10_001)
    with pytest.raises(ValueError, match="more than 10,000 entries"):
        fm.Ledger.from_json(text)


@pytest.mark.parametrize("noise", [1e-320, 1e-200, 10**400])
def test_noise_whose_square_is_no_float_is_refused(noise):
    """`epsilon` raised an OverflowError."""
    for mechanism in (MECHANISMS[0], MECHANISMS[2]):
        config = {**mechanism.config(), "noise_multiplier": noise}
        with pytest.raises(ValueError, match="`noise_multiplier`"):
            fm.Ledger.from_json(ledger(config))


def test_noise_that_protects_nothing_is_said_to():
    config = {**MECHANISMS[0].config(), "noise_multiplier": 1e-50}
    found = fm.Ledger.from_json(ledger(config))
    assert found.epsilon() == math.inf and found.remaining() == 0
    found._is_text = False
    with pytest.raises(fm.BudgetExceededError):
        found.check([])


@pytest.mark.parametrize("claim", [10**400, 1e308, 1e51, True, "1"])
def test_a_claim_is_a_number_that_adds_up(claim):
    """Thousands of 1e308 were an overflow of their sum."""
    with pytest.raises(ValueError, match="`claimed_epsilon`"):
        fm.Ledger.from_json(ledger({"claimed_epsilon": claim}))
    text = ledger(*[{"claimed_epsilon": 1e50}] * 3000)
    total = fm.Ledger.from_json(text).claimed_epsilon()
    assert total == pytest.approx(3e53)


# Many entries ----------------------------------------------------------------


@pytest.mark.parametrize("kind", range(len(MECHANISMS)))
@pytest.mark.parametrize("spread", [0.0, 1e-4, 3.0])
def test_thousands_of_entries(kind, spread):
    config = MECHANISMS[kind].config()
    name = "epsilon" if kind == 1 else "noise_multiplier"
    text = ledger(
        *(
            {**config, name: config[name] * (1 + spread * number / 2000)}
            for number in range(2000)
        )
    )
    assert is_answered(text)


def test_thousands_of_entries_of_all_kinds():
    configs = [m.config() for m in MECHANISMS] * 700
    assert is_answered(ledger(*configs))
    assert is_answered(ledger(*configs, {"claimed_epsilon": 0.5}))
    extreme = [
        {**MECHANISMS[2].config(), "steps": 10**12, "noise_multiplier": 1e-50},
        {**MECHANISMS[1].config(), "epsilon": 1e50},
        {**MECHANISMS[0].config(), "noise_multiplier": 1e-50},
    ]
    assert is_answered(ledger(*extreme * 500))


# By chance -------------------------------------------------------------------


def by_chance(rng):
    """A text whose numbers are of all magnitudes, and may be none."""
    configs = []
    for _ in range(rng.choice([1, 1, 2, 3, 8])):
        config = dict(MECHANISMS[rng.integers(3)].config())
        for name in list(config)[1:]:
            if rng.random() < 0.5:
                config[name] = number_by_chance(rng, name)
        if rng.random() < 0.1:
            config["claimed_epsilon"] = number_by_chance(rng, "epsilon")
        configs.append(config)
    return ledger(
        *configs,
        epsilon=number_by_chance(rng, "epsilon"),
        delta=float(rng.choice([0, 5e-324, 1e-30, 1e-9, 1e-5, 0.5, 1 - 1e-9])),
    )


def number_by_chance(rng, name):
    if rng.random() < 0.05:
        return NUMBERS[rng.integers(len(NUMBERS))]
    if name == "steps":
        return int(10 ** rng.uniform(0, 12))
    if name in ("sampling_rate", "overflow_probability"):
        return float(10 ** rng.uniform(-15, 0))
    return float(
        10 ** rng.uniform(*((-6, 6) if rng.random() < 0.8 else (-50, 50)))
    )


def test_numbers_by_chance():
    rng = np.random.default_rng(20)
    taken = [is_answered(by_chance(rng)) for _ in range(300)]
    assert 100 < sum(taken) < 300
