"""Sums on a device: the integers of NumPy's path, and what is not summed.

A processor of JAX, PyTorch or TensorFlow runs the code of a card."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.core import device_sums
from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.queries import (
    CrossEntropyQuery,
    SecondMomentQuery,
    SquaredErrorQuery,
)

RNG = np.random.default_rng(0)


def rows(n, m, dtype="float32"):
    """Unit rows, as a network gives them: norms are 1 but for rounding."""
    h = RNG.normal(size=(n, m))
    h *= RNG.random((n, m)) < 0.7
    h /= np.maximum(np.linalg.norm(h, axis=1, keepdims=True), 1e-3)
    return h.astype(dtype)


def edges(m):
    """One-hot rows, zeros, norms of 1 exactly, short rows and tiny numbers."""
    h = np.zeros((6, m))
    h[0, 0] = h[2, 1:5] = 0.5
    h[1, 3] = 1.0
    h[3] = -0.01
    h[4, :2] = 1e-300, 2.0**-21
    return h.astype("float64")


PRICES = RNG.uniform(0, 50, (9000, 2))
CLASSES = RNG.integers(3, size=9000)
LONG = rows(300, 7, "float64") * RNG.uniform(0.1, 1e6, (300, 1))
CASES = {
    "numbers": (
        SquaredErrorQuery(num_features=7, num_outputs=2, target_bounds=(0, 50)),
        [(rows(9000, 7), PRICES)],
        False,
    ),
    "classes, in batches": (
        CrossEntropyQuery(num_features=40, num_outputs=3, feature_bound=1.0),
        [
            (rows(64, 40), CLASSES[:64]),
            (edges(40), CLASSES[:6]),
            (rows(70, 40, "float16"), CLASSES[:70]),
            (rows(0, 40), CLASSES[:0]),
        ],
        False,
    ),
    "nonnegative": (
        CrossEntropyQuery(num_features=9, num_outputs=1, nonnegative=True),
        [(np.abs(rows(50, 9)), CLASSES[:50] % 2)],
        False,
    ),
    "clipped": (
        SecondMomentQuery(num_features=7, feature_bound=3.0),
        [(LONG,), (edges(7) * 1e100,)],
        True,
    ),
}


def integers(partial):
    return [one.integers() for one in partial._sums]


def on_host(query, batches, clip=False):
    found = PartialStatistics(query, clip)
    for batch in batches:
        found.add(*batch)
    found.statistics()
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_integers_are_those_of_the_host(name):
    query, batches, clip = CASES[name]
    found = device_sums.summed(query, batches, clip)
    found.statistics()
    expected = on_host(query, batches, clip)
    for one, other in zip(integers(found), integers(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_few_rows_go_through_the_host(monkeypatch):
    """Else nothing is gained: of unit rows every one is scaled back."""
    counted, add = [], PartialStatistics.add
    monkeypatch.setattr(
        PartialStatistics,
        "add",
        lambda self, h, *y: counted.append(len(h)) or add(self, h, *y),
    )
    query = SecondMomentQuery(num_features=300)
    device_sums.summed(query, [(rows(2000, 300),)])
    assert sum(counted) < 20


@pytest.mark.parametrize("wrong", [1.0, -8.0, 2.0**40, np.nan])
@pytest.mark.parametrize("entry", [(0, 0), (4, 2), (3, 8)])
def test_a_wrong_product_is_not_released(monkeypatch, wrong, entry):
    """In one entry. A right one is never refused; a wrong one passes with a
    probability of 2^-64 for an odd difference, 2^-24 for 2^40."""
    addend = np.zeros((8, 9))
    addend[entry] = wrong
    query = SquaredErrorQuery(num_features=8, target_bounds=(0, 1))
    h, y = rows(20, 8), RNG.random(20)
    monkeypatch.setattr(
        device_sums,
        "_product",
        lambda a, b: a @ b + keras.ops.convert_to_tensor(addend, "float64"),
    )
    device_sums._once.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="random check"):
            device_sums.summed(query, [(h, y)])
    finally:
        device_sums._once.cache_clear()


def test_a_product_of_fewer_digits_is_not_released(monkeypatch):
    """As TensorFloat-32 or float32 would give it."""

    def single(a, b):
        a, b = (keras.ops.cast(v, "float32") for v in (a, b))
        return keras.ops.cast(a @ b, "float64")

    monkeypatch.setattr(device_sums, "_product", single)
    device_sums._once.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="random check"):
            device_sums.summed(
                SecondMomentQuery(num_features=8), [(rows(100, 8),)]
            )
    finally:
        device_sums._once.cache_clear()


ROUNDS = {
    "classes": {"num_outputs": 3},
    "hinge": {"num_outputs": 3, "loss": "squared_hinge"},
    "weights of classes": {
        "num_outputs": 3,
        "class_weights": (1.0, 0.5, 0.1),
    },
    "one output": {"num_outputs": 1},
    "labels": {"num_outputs": 3, "independent": True},
    "margins": {"num_outputs": 12, "loss": "crammer_singer"},
    "numbers": {
        "num_outputs": 2,
        "loss": "squared_error",
        "target_bounds": ((0, 50), (0, 50)),
    },
}


def of_round(name, n):
    """A query, and records of it."""
    query = fm.queries.GradientQuery(num_features=9, clip=0.1, **ROUNDS[name])
    y = CLASSES[:n] % max(2, query.num_outputs)
    if name == "numbers":
        y = PRICES[:n]
    elif name == "labels":
        y = (CLASSES[:n, None] == np.arange(3)).astype(int)
    return query, query.check_records(0.9 * rows(n, 9), y)


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_have_the_sums_of_the_host(name):
    query, (narrow, targets) = of_round(name, 5000)
    lengths = query.lengths(narrow)
    held = device_sums.DeviceRows(narrow, targets, lengths)
    for part in (
        np.full(5000, True),
        RNG.random(5000) < 0.3,
        np.arange(5000) < 0,
    ):
        weights = RNG.normal(size=query.shapes[0]) * 10.0 ** RNG.integers(-5, 5)
        given = targets[part], weights
        np.testing.assert_array_equal(
            query.total(held[part], *given, lengths=lengths[part]),
            query.total(narrow[part], *given, lengths=lengths[part]),
        )


def test_few_records_of_a_round_are_left_to_the_host():
    """Else nothing is gained. Those of a first round may be: of two classes
    all logits are 0, and residuals stand on the grid."""
    for name in ROUNDS:
        query, (narrow, targets) = of_round(name, 5000)
        held = device_sums.DeviceRows(narrow, targets, query.lengths(narrow))
        weights = RNG.normal(size=query.shapes[0])
        given = query._grid.weights(weights)
        _, left, rows_left = held.sums(query, targets, *given)
        assert len(left) < 25
        np.testing.assert_array_equal(rows_left, narrow[left])


@pytest.mark.parametrize("weights", [0.0, 1e-300, 1e3, 1e200, 1e305])
def test_records_at_the_edges_have_the_sums_of_the_host(weights):
    """Residuals on the grid, ties, and logits that overflow."""
    for name in ROUNDS:
        query, (narrow, targets) = of_round(name, 300)
        narrow[::7] = 0
        narrow[1::7] = 16384 * np.eye(9)[3]
        lengths = query.lengths(narrow)
        held = device_sums.DeviceRows(narrow, targets, lengths)
        given = targets, np.full(query.shapes[0], weights)
        np.testing.assert_array_equal(
            query.total(held, *given, lengths=lengths),
            query.total(narrow, *given, lengths=lengths),
        )


@pytest.mark.parametrize("form", ["logits", "sums"])
def test_a_wrong_product_of_a_round_ends_it(monkeypatch, form):
    def product(a, b):
        wrong = a.shape[0] == (4096 if form == "logits" else 9)
        return a @ b + (1 if wrong else 0)

    query, (narrow, targets) = of_round("classes", 50)
    lengths = query.lengths(narrow)
    held = device_sums.DeviceRows(narrow, targets, lengths)
    monkeypatch.setattr(device_sums, "_product", product)
    device_sums._round.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="random check"):
            query.total(held, targets, np.ones((9, 3)), lengths=lengths)
    finally:
        device_sums._round.cache_clear()


def fitted(x, y, **layer):
    keras.utils.set_random_seed(0)
    head = fm.layers.PrivateDense(3, **layer)
    model = keras.Sequential([keras.Input((6,)), head])
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        1.0, 1e-5, data=(x, y), reproducible_noise=1
    )
    error = None
    try:
        model.fit(x, y, verbose=0, callbacks=[private])
    except ValueError as found:
        error = str(found)
    return private, error


@pytest.fixture
def on_a_card(monkeypatch):
    monkeypatch.setattr(device_sums, "available", lambda: True)


def test_a_fit_releases_the_same(monkeypatch):
    x, y = 0.9 * rows(100, 6), CLASSES[:100]
    expected, _ = fitted(x, y)
    monkeypatch.setattr(device_sums, "available", lambda: True)
    called, summed = [], device_sums.summed
    monkeypatch.setattr(
        device_sums, "summed", lambda *a: called.append(1) or summed(*a)
    )
    found, _ = fitted(x, y)
    assert called and len(found.ledger.entries) == 1
    for name in ("quadratic", "linear"):
        np.testing.assert_array_equal(
            found.release.statistics[name], expected.release.statistics[name]
        )


def test_a_fit_in_rounds_ends_at_the_same_weights(monkeypatch):
    x, y = 0.9 * rows(100, 6), CLASSES[:100]
    expected, _ = fitted(x, y, rounds=3)
    monkeypatch.setattr(device_sums, "available", lambda: True)
    called, sums = [], device_sums.DeviceRows.sums
    monkeypatch.setattr(
        device_sums.DeviceRows, "sums", lambda *a: called.append(1) or sums(*a)
    )
    found, error = fitted(x, y, rounds=3)
    assert error is None and len(called) == 3
    np.testing.assert_array_equal(
        found.release.statistics["weights"],
        expected.release.statistics["weights"],
    )


BAD = {
    "NaN": (lambda x: x * np.where(np.arange(6) == 2, np.nan, 1), "finite"),
    "infinite": (lambda x: x * np.inf, "finite"),
    "out of bounds": (lambda x: 3 * x, "outside the public L2 bound"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_outside_its_bounds_is_refused_before_the_charge(
    on_a_card, name
):
    change, match = BAD[name]
    x = 0.9 * rows(100, 6)
    x[70:71] = change(np.full((1, 6), 0.4))
    private, error = fitted(x, CLASSES[:100])
    assert match in error
    assert not private.ledger.entries


def test_negative_features_are_refused_before_the_charge(on_a_card):
    x = 0.9 * np.abs(rows(50, 6))
    x[3, 2] = -1e-3
    private, error = fitted(x, CLASSES[:50], nonnegative=True)
    assert "negative" in error and not private.ledger.entries


def test_owners_and_weights_stay_on_the_host(on_a_card):
    assert device_sums.takes(SecondMomentQuery(num_features=2))
    for query in (
        SecondMomentQuery(num_features=2, grouped=True),
        SecondMomentQuery(num_features=2, feature_l1_bound=1.2),
        CrossEntropyQuery(
            num_features=2, num_outputs=2, class_weights=(1.0, 0.5)
        ),
        fm.queries.GradientQuery(num_features=2, num_outputs=2),
    ):
        assert not device_sums.takes(query)


def test_a_processor_keeps_its_path():
    assert not device_sums.available()
