"""The health network: exact sizes, windows by brute force, whom data reaches,
and whether behaviour can be learned at all."""

import dataclasses
import pathlib
import runpy

import numpy as np
import pytest

from keras_fm import datasets
from keras_fm.datasets import health_network, health_simulator
from keras_fm.datasets.health_network import HealthNetwork

pytestmark = [pytest.mark.once, pytest.mark.full]

BENCHMARK = pathlib.Path(__file__).parents[2] / "benchmarks/health_network.py"


@pytest.fixture(scope="module")
def daily():
    return datasets.load("health_network")


@pytest.fixture(scope="module")
def weekly():
    return datasets.load("health_network_weekly")


@pytest.fixture(scope="module")
def small():
    return health_simulator.simulate(users=20, steps=12, seed=3)


def tiny(**changes):
    """Three attributes and three steps, as a school class asked thrice."""
    attributes = np.random.default_rng(0).integers(1, 3, (5, 3, 3))
    content = {
        "attributes": attributes,
        "attribute_names": ("sport", "alcohol", "smoke"),
        "groups": {"behaviours": ["sport"], "drugs": ["alcohol", "smoke"]},
        "bounds": [[1, 2], [1, 5], [1, 3]],
        "activity": "sport",
        "active_threshold": 1.5,
        "resolution": "yearly",
        "friendships": [[0, 1], [1, 2]],
        "synthetic": False,
    }
    return HealthNetwork(**{**content, **changes})


def same(first, second):
    for field in dataclasses.fields(first):
        a, b = (getattr(n, field.name) for n in (first, second))
        if isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        else:
            assert a == b, field.name


# The simulator -----------------------------------------------------------


@pytest.mark.parametrize("name, steps", [("daily", 300), ("weekly", 48)])
def test_published_sizes(name, steps, request):
    network = request.getfixturevalue(name)
    assert network.attributes.shape == (254, steps, 30)
    assert network.attributes.dtype == np.float32
    assert network.friendships.shape == (1383, 2)
    assert network.influence.shape == (steps, 2 * 1383)
    assert [len(g) for g in network.groups.values()] == [5, 20, 5]
    assert network.resolution == name and network.synthetic
    assert repr(network) == (
        f"<HealthNetwork synthetic {name}: 254 users, {steps} steps, 30 "
        "attributes, 1383 friendships>"
    )


def test_the_seed_decides():
    first, again, other = (
        health_simulator.simulate(users=20, steps=9, seed=s) for s in (1, 1, 2)
    )
    same(first, again)
    for name in ("attributes", "friendships", "influence", "events"):
        a, b = getattr(first, name), getattr(other, name)
        assert not np.array_equal(a, b), name


@pytest.mark.parametrize("name", ["daily", "weekly"])
def test_attributes_keep_to_their_bounds(name, request):
    network = request.getfixturevalue(name)
    outside = (network.attributes < network.bounds[:, 0]) | (
        network.attributes > network.bounds[:, 1]
    )
    # Counts may exceed what the public bounds allow for, rarely.
    assert outside.mean(axis=(0, 1)).max() < 0.005
    counts = [a == "competitions_joined" for a in network.attribute_names]
    counts = np.array(counts) | np.char.startswith(
        network.attribute_names, "messages_"
    )
    assert not outside[..., ~counts].any()
    windows = network.windows()
    assert (windows.x >= windows.low).all()
    assert (windows.x <= windows.high).all()
    # No bound is idle: every attribute uses a fair part of its range.
    spread = np.ptp(network.attributes, axis=(0, 1))
    assert (spread > 0.2 * np.ptp(network.bounds, axis=1)).all()


# Windows -----------------------------------------------------------------


def brute_force(network, history, target, social, max_friends, stride):
    """Row by row, from the definition."""
    low, high = network.bounds.astype(np.float32).T
    column = network.attribute_names.index(network.activity)
    keep = np.ones(len(network.friendships), bool)
    if social == "friends":
        keep = health_network.counted_friendships(
            network.friendships, network.users, max_friends
        )
    x, y, rows = [], [], []
    for t in range(history, network.steps - 1, stride):
        for u in range(network.users):
            row = []
            for k in range(history + 1):
                row += list(np.clip(network.attributes[u, t - k], low, high))
            terms = []
            for e, (v, target_user) in enumerate(network.directed_friendships):
                if target_user != u or not keep[e % len(keep)]:
                    continue
                term = network.influence[t, e]
                if social == "friends":
                    a = np.clip(network.attributes[v, t], low, high)[column]
                    term *= (a - low[column]) / (high[column] - low[column])
                terms.append(term)
            if social != "none":
                row.append(np.mean(terms) if terms else 0)
            row += list(network.events[t + 1])
            now, then = (
                np.clip(network.attributes[u, s], low, high)[column]
                for s in (t, t + 1)
            )
            level = now if target == "increase" else network.active_threshold
            x.append(row)
            y.append(int(then > level))
            rows.append((u, t))
    return np.array(x), np.array(y), np.array(rows)


@pytest.mark.parametrize(
    "arguments",
    [
        (3, "increase", "public", None, 1),
        (2, "active", "friends", 3, 2),
        (0, "increase", "none", None, 4),
        (1, "increase", "friends", 100, 1),
    ],
)
def test_windows_equal_their_definition(small, arguments):
    names = ("history", "target", "social", "max_friends", "stride")
    windows = small.windows(**dict(zip(names, arguments)))
    x, y, rows = brute_force(small, *arguments)
    np.testing.assert_allclose(windows.x, x, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(windows.y, y)
    np.testing.assert_array_equal(windows.users, rows[:, 0])
    np.testing.assert_array_equal(windows.steps, rows[:, 1])
    assert windows.x.dtype == np.float32 and windows.y.dtype == np.int64
    features = windows.x.shape[1]
    assert len(windows.names) == len(set(windows.names)) == features
    assert windows.low.shape == windows.high.shape == (features,)
    history, _, social, _, _ = arguments
    widths = {k: s.stop - s.start for k, s in windows.columns.items()}
    assert widths == {
        "present": 30,
        "history": 30 * history,
        "social": int(social != "none"),
        "events": 5,
    }
    for part, suffix in (("present", "[t]"), ("events", "[t+1]")):
        for name in windows.names[windows.columns[part]]:
            assert name.endswith(suffix)
    if history:
        most_recent = windows.names[windows.columns["history"]][0]
        assert most_recent == "competitions_joined[t-1]"


def test_values_outside_the_bounds_are_clipped():
    attributes = np.array([[[0.0], [9.0], [12.0]]])
    network = tiny(
        attributes=attributes,
        attribute_names=("sport",),
        groups={"all": ["sport"]},
        bounds=[[1, 8]],
        friendships=np.zeros((0, 2), int),
    )
    windows = network.windows(history=0, social="none")
    np.testing.assert_array_equal(windows.x[:, 0], [1, 8])
    # 12 exceeds 9 only outside the public bounds.
    np.testing.assert_array_equal(windows.y, [1, 0])


@pytest.mark.parametrize("social", ["public", "friends"])
def test_no_look_ahead(small, social):
    most = 4 if social == "friends" else None

    def rows(attributes, t):
        network = dataclasses.replace(small, attributes=attributes)
        windows = network.windows(social=social, max_friends=most)
        at = windows.steps == t
        return windows.x[at], windows.y[at]

    t = 5
    x, y = rows(small.attributes, t)
    later = small.attributes.copy()
    later[:, t + 2 :] = small.bounds[:, 1]
    for a, b in zip(rows(later, t), (x, y)):
        np.testing.assert_array_equal(a, b)
    later = small.attributes.copy()
    later[:, t + 1] = small.bounds[:, 1]
    x_next, y_next = rows(later, t)
    np.testing.assert_array_equal(x_next, x)
    assert y_next.all() and not y.all()
    # The present does enter.
    now = small.attributes.copy()
    now[:, t] = small.bounds[:, 1]
    assert not np.array_equal(rows(now, t)[0], x)


@pytest.mark.parametrize(
    "social, max_friends", [("none", None), ("public", None), ("friends", 3)]
)
def test_reach_is_true(small, social, max_friends):
    """Over all users, with a change at every attribute and step."""
    arguments = {"social": social, "max_friends": max_friends}
    before = small.windows(**arguments)
    assert before.reach == (max_friends or 0)
    met = []
    for u in range(small.users):
        changed = small.attributes.copy()
        changed[u] = small.bounds.sum(axis=1) - changed[u]
        after = dataclasses.replace(small, attributes=changed).windows(
            **arguments
        )
        moved = (after.x != before.x).any(axis=1) | (after.y != before.y)
        others = set(before.users[moved]) - {u}
        assert u in set(before.users[moved])
        met.append(len(others))
        # Another user's row changes by its social number alone.
        other_rows = moved & (before.users != u)
        columns = (after.x != before.x)[other_rows].any(axis=0)
        columns[before.columns["social"]] = False
        assert not columns.any()
        assert (after.y == before.y)[other_rows].all()
    # Attained, so the bound is not idle.
    assert max(met) == before.reach


@pytest.mark.parametrize("most", [1, 3, 10, 100])
def test_counted_friendships_bound_both_ways(daily, most):
    keep = health_network.counted_friendships(daily.friendships, 254, most)
    kept = np.bincount(daily.friendships[keep].ravel(), minlength=254)
    assert kept.max() == min(most, 62)
    # Maximal: what was left out had no room at one end.
    for a, b in daily.friendships[~keep]:
        assert kept[a] == most or kept[b] == most
    # A rule on the graph, however it is listed.
    order = np.random.default_rng(0).permutation(len(keep))
    shuffled = daily.friendships[order][:, ::-1]
    np.testing.assert_array_equal(
        health_network.counted_friendships(shuffled, 254, most), keep[order]
    )


def test_split_is_by_time(small):
    windows = small.windows()
    train, test = windows.split(0.8)
    assert train.steps.max() < test.steps.min()
    assert len(np.unique(train.steps)) == round(0.8 * 8)
    np.testing.assert_array_equal(np.concatenate([train.x, test.x]), windows.x)
    np.testing.assert_array_equal(np.concatenate([train.y, test.y]), windows.y)
    assert train.names == windows.names and train.note == windows.note
    # Two steps: one for each part, whatever the share.
    for part in tiny().windows(history=0).split(0.99):
        assert len(part) == 5
    with pytest.raises(ValueError, match="single step"):
        tiny().windows(history=1).split()
    with pytest.raises(ValueError, match="`train` must be"):
        windows.split(1.0)


def test_sample_draws_rows_once(small):
    windows = small.windows()
    part = windows.sample(0.25, seed=5)
    assert len(part) == round(0.25 * len(windows))
    keys = list(zip(part.steps, part.users))
    assert len(set(keys)) == len(keys) and keys == sorted(keys)
    for row in range(len(part)):
        at = (windows.users == part.users[row]) & (
            windows.steps == part.steps[row]
        )
        np.testing.assert_array_equal(windows.x[at][0], part.x[row])
        assert windows.y[at][0] == part.y[row]
    np.testing.assert_array_equal(part.x, windows.sample(0.25, seed=5).x)
    assert not np.array_equal(part.x, windows.sample(0.25, seed=6).x)
    np.testing.assert_array_equal(windows.sample(1).x, windows.x)
    with pytest.raises(ValueError, match="`rate` must be"):
        windows.sample(0)


# Learnability ------------------------------------------------------------


@pytest.mark.parametrize(
    "name, target, above_majority, own, social, events",
    [
        ("daily", "increase", 22, 15, 1.5, 1.5),
        ("daily", "active", 18, 5, 1.5, 1.5),
        ("weekly", "increase", 12, 8, 1.5, 2),
        ("weekly", "active", 18, 5, 0.5, 2),
    ],
)
def test_behaviour_can_be_learned(
    name, target, above_majority, own, social, events, request, monkeypatch
):
    """The benchmark's function, at the fixed seed; nothing is drawn anew."""
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    names = runpy.run_path(str(BENCHMARK))
    network = request.getfixturevalue(name)
    rate = 0.2 if name == "daily" else 1.0
    accuracy = names["ablation"](network, rate, target=target)
    every = accuracy["without nothing"]
    assert every - accuracy["majority"] > above_majority
    assert every < 90
    for part, loss in (("own", own), ("social", social), ("events", events)):
        assert every - accuracy[f"without {part}"] > loss, part
