"""A million spoiled ledgers, specs, plans, releases, tables and models.

Each is read or refused with a ValueError that says something, within a
second; nothing in them is run, and no ledger is charged. Seeded. What Keras
says of a model's file is Keras' own (hostile_models.py). The loaders' other
files are in test_hostile_files.py.
"""

import json
import math
import random
import sys
import time
from unittest import mock

import hostile_files
import hostile_models
import numpy as np
import pytest

from keras_fm.heads.rounds import Rounds
from keras_fm.kernel import mechanisms
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger import ledger, ledger_text, strict_json
from keras_fm.kernel.ledger.noisy_statistics import query_of_kind
from keras_fm.lab import composition
from keras_fm.queries import CrossEntropyQuery, GradientQuery, PatchMomentQuery

pytestmark = [
    pytest.mark.once,
    pytest.mark.full,
    pytest.mark.backend,
    pytest.mark.optimised,
]

# What a value of a spec becomes.
VALUES = [
    *(0, -1, 1, 2, 3, 0.5, -0.0, 1e-320, 1e308, math.inf, -math.inf, math.nan),
    *(10**12, 10**400, -(10**400), True, False, None, "", "1.0", "add_remove"),
    *("replace_one", "\x00", "../../x", "__import__('os')", "x" * 10_000),
    *([], [1, 2], [[]], {}, {"a": 1}, {"mechanism": "GaussianMechanism"}),
]
RUNS = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.mkdir"),
    *("subprocess.Popen", "pickle.find_class"),
    *("socket.connect", "ctypes.dlopen", "webbrowser.open"),
)
SEEN = []
WATCHING = [False]


def watch(event, args):
    if WATCHING[0] and event in RUNS:
        SEEN.append((event, args))


@pytest.fixture(scope="module", autouse=True)
def watched():
    # For good: an audit hook cannot be taken back.
    sys.addaudithook(watch)


def spoiled_text(raw, rng):
    """One to three changes of bytes; faster than `hostile_files.spoil`."""
    raw = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw) + 1)
        end = at + rng.randrange(20)
        kind = rng.randrange(5)
        if kind == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            raw[at:end] = rng.randbytes(end - at)
        elif kind == 2:
            raw[at:end] = hostile_files.TOKENS[
                rng.randrange(len(hostile_files.TOKENS))
            ]
        elif kind == 3:
            del raw[at:end]
        else:
            raw[at:at] = raw[at:end]
    return bytes(raw)


def spoiled_value(value, rng, values=VALUES):
    """A copy in which one value, name or item is another."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            kept = {k: v for k, v in value.items() if k != key}
            return kept if rng.random() < 0.5 else {**kept, "other": 1}
        return {**value, key: spoiled_value(value[key], rng, values)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        spoiled = spoiled_value(value[at], rng, values)
        return [*value[:at], spoiled, *value[at + 1 :]]
    return rng.choice(values)


def spoiled_config(value, rng):
    """The same with names that Keras might look up."""
    return spoiled_value(value, rng, [*VALUES, *hostile_models.CALLED])


# What reads them ----------------------------------------------------------


def mechanism_of(value):
    if not isinstance(value, dict):
        raise ValueError("not a table")
    return mechanisms.from_config(value)


def query_of(value):
    """As `Release.load` makes it, which refuses by these kinds of errors."""
    try:
        return query_of_kind(value["kind"])(**value["query"])
    except (ArithmeticError, AttributeError, KeyError, TypeError) as e:
        raise ValueError(f"no query: {e}") from e


def settings_of(value):
    """What layers and callbacks are given by keyword; names are right."""
    kind, given = value
    if not isinstance(given, dict):
        raise ValueError("not keywords")
    try:
        return {"rounds": Rounds, "budget": PrivacyBudget}[kind](**given)
    except TypeError as e:
        # Python's own, of a keyword that there is not.
        if "argument" not in str(e):
            raise
        raise ValueError(str(e)) from e


def ledger_of(value):
    return ledger_text.parse(json.dumps(value))


def ledger_of_bytes(raw):
    return ledger_text.parse(raw.decode("utf-8"))


def plan_of_bytes(raw):
    try:
        value = strict_json.parse(raw.decode("utf-8"))
    except RecursionError as e:
        # As `settings_file.load` has it.
        raise ValueError(f"nested too deeply: {e}") from e
    return composition.Plan.from_config(value)


MECHANISMS = [
    {"mechanism": "LaplaceMechanism", "sensitivity": 2.0, "epsilon": 1.0},
    {
        "mechanism": "SampledGaussianMechanism",
        "sensitivity": 0.1,
        "noise_multiplier": 1.5,
        "sampling_rate": 0.01,
        "steps": 100,
        "overflow_probability": 1e-12,
    },
]
QUERIES = [
    {"kind": type(query).__name__, "query": query.config()}
    for query in (
        CrossEntropyQuery(num_features=4, num_outputs=3),
        GradientQuery(num_features=4, num_outputs=3, clip=0.1),
        PatchMomentQuery(num_features=5, feature_bound=2.0, constant=1.0),
    )
]
SETTINGS = [
    ("rounds", Rounds(rounds=40, batch_size=100).config()),
    ("budget", {"epsilon": 1.0, "delta": 1e-5}),
]
# What reads values, valid ones, how many spoiled copies; and of bytes.
OF_VALUES = {
    "mechanisms": (mechanism_of, MECHANISMS, 397_600),
    "queries": (query_of, QUERIES, 220_000),
    "plans": (
        composition.Plan.from_config,
        [json.loads(hostile_files.PLAN_JSON)],
        100_000,
    ),
    "settings": (settings_of, SETTINGS, 200_000),
    "ledgers": (ledger_of, [json.loads(hostile_files.ledger_file())], 38_000),
}
OF_BYTES = {
    "ledger": (ledger_of_bytes, hostile_files.ledger_file, 31_500),
    "plan": (plan_of_bytes, lambda: hostile_files.PLAN_JSON, 10_000),
}
# Files, by all that a fit or a command does with them.
OF_FILES = {
    "release": 500,
}
# Saved models: whole files, configurations, what layers stored.
OF_MODELS = {"files": 60, "configs": 340, "stores": 2_000}


def test_they_are_a_million():
    counts = [row[-1] for row in (*OF_VALUES.values(), *OF_BYTES.values())]
    others = (*OF_FILES.values(), *OF_MODELS.values())
    assert sum(counts) + sum(others) == 10**6


def all_answered(read, inputs):
    """Whether each is read or refused as it should be; returns how many were
    read."""
    read_well, slowest = 0, 0.0
    SEEN.clear()
    WATCHING[0] = True
    spent = mock.patch.object(
        ledger.Ledger, "charge", side_effect=AssertionError("charged")
    )
    try:
        spent.start()
        for value in inputs:
            # Of this thread: other work on the machine does not count.
            begin = time.thread_time()
            try:
                read(value)
                read_well += 1
            except ValueError as e:
                assert str(e)
            slowest = max(slowest, time.thread_time() - begin)
    finally:
        WATCHING[0] = False
        spent.stop()
    assert slowest < 1.0
    assert not SEEN
    return read_well


def spoiled_setting(setting, rng):
    return setting[0], spoiled_value(setting[1], rng)


@pytest.mark.parametrize("name", OF_VALUES)
def test_spoiled_values(name):
    read, valid, count = OF_VALUES[name]
    for value in valid:
        read(value)
    rng = random.Random(f"values {name}")
    spoil = spoiled_setting if name == "settings" else spoiled_value
    inputs = (spoil(rng.choice(valid), rng) for _ in range(count))
    # A few still say something valid, and most do not.
    assert 0 < all_answered(read, inputs) < count / 2


@pytest.mark.parametrize("name", OF_BYTES)
def test_spoiled_bytes(name):
    read, make, count = OF_BYTES[name]
    raw, rng = make(), random.Random(f"bytes {name}")
    read(raw)
    inputs = (spoiled_text(raw, rng) for _ in range(count))
    assert 0 < all_answered(read, inputs) < count / 2


@pytest.mark.parametrize("name", OF_FILES)
def test_spoiled_files(name, tmp_path):
    make, load = hostile_files.TARGETS[name]
    raw, rng = make(), np.random.default_rng(1)
    load(raw, tmp_path)
    inputs = (hostile_files.spoiled(raw, rng) for _ in range(OF_FILES[name]))
    taken = all_answered(lambda value: load(value, tmp_path), inputs)
    assert taken < OF_FILES[name] / 2


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return hostile_models.Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", OF_MODELS)
@pytest.mark.filterwarnings("ignore")
def test_spoiled_models(name, models):
    count = OF_MODELS[name]
    inputs, read = {
        "files": (models.files, models.read_file),
        "configs": (models.configs, models.read_config),
        "stores": (models.stores, models.read_store),
    }[name]
    spoil = spoiled_text if name == "stores" else spoiled_config
    taken = all_answered(read, inputs(count, spoil))
    # What a layer is called, say, may be anything.
    assert 0 < taken < 0.9 * count


def test_an_error_of_ours_in_a_model_is_seen(models, monkeypatch):
    """What the file says of a layer is read by code that may be wrong."""
    head = type(models.model.get_layer("head"))

    def wrong(self, store):
        return self.nothing

    monkeypatch.setattr(head, "load_own_variables", wrong)
    # As if it were in the package.
    monkeypatch.setattr(hostile_models, "_OURS", __file__)
    with pytest.raises(AssertionError):
        for value in models.stores(9, spoiled_text):
            models.read_store(value)
