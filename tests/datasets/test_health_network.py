"""The health network: exact sizes, windows by brute force, whom data reaches,
CSV files and their errors, and whether behaviour can be learned at all."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest

from keras_fm import datasets
from keras_fm.datasets import health_network, health_simulator
from keras_fm.datasets.health_network import HealthNetwork, load_csv

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "health_network.md"


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
    nominations = np.zeros((3, 5, 5), int)
    nominations[0, 0, 1] = nominations[1, 1, 0] = 1
    nominations[2, 2, 1] = nominations[0, 3, 3] = 1
    content = {
        "attributes": attributes,
        "attribute_names": ("sport", "alcohol", "smoke"),
        "groups": {"behaviours": ["sport"], "drugs": ["alcohol", "smoke"]},
        "bounds": [[1, 2], [1, 5], [1, 3]],
        "activity": "sport",
        "active_threshold": 1.5,
        "resolution": "yearly",
        "friendships": health_network.symmetrised(nominations),
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
    assert network.messages.shape == (2766, 4)
    assert network.competitions.shape == (11458, 3)
    assert network.influence.shape == (steps, 2 * 1383)
    assert [len(g) for g in network.groups.values()] == [5, 20, 5]
    assert network.resolution == name and network.synthetic
    assert repr(network) == (
        f"<HealthNetwork synthetic {name}: 254 users, {steps} steps, 30 "
        "attributes, 1383 friendships, 2766 messages, 11458 competitions>"
    )


def test_other_sizes_are_exact_too():
    network = health_simulator.simulate(
        "weekly",
        users=15,
        steps=4,
        friendships=30,
        messages=7,
        # As many as there can be: every friendship on every day.
        competitions=30 * 28,
    )
    assert network.attributes.shape[:2] == (15, 4)
    assert len(network.friendships) == 30
    assert len(network.messages) == 7
    assert len(network.competitions) == 840


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


def test_the_graph_is_simple_homophilous_and_uneven(daily):
    pairs = daily.friendships
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert len({frozenset(p) for p in pairs.tolist()}) == 1383
    degree = np.bincount(pairs.ravel(), minlength=254)
    assert degree.min() >= 1
    assert degree.max() > 4 * degree.mean()
    steps = daily.attributes[
        ..., daily.attribute_names.index("average_steps")
    ].mean(axis=1)
    between_friends = np.abs(steps[pairs[:, 0]] - steps[pairs[:, 1]]).mean()
    a, b = np.triu_indices(254, k=1)
    assert between_friends < 0.95 * np.abs(steps[a] - steps[b]).mean()


def test_messages_and_competitions_agree_with_the_attributes(daily):
    counts = np.zeros((254, 300, 20))
    _, to, step, topic = daily.messages.T
    np.add.at(counts, (to, step, topic), 1)
    first = daily.attribute_names.index(f"messages_{daily.topics[0]}")
    np.testing.assert_array_equal(
        counts, daily.attributes[..., first : first + 20]
    )
    joined = np.zeros((254, 300))
    for end in daily.competitions[:, :2].T:
        np.add.at(joined, (end, daily.competitions[:, 2]), 1)
    np.testing.assert_array_equal(joined, daily.attributes[..., 0])
    friends = {frozenset(p) for p in daily.friendships.tolist()}
    for rows in (daily.messages, daily.competitions):
        assert {frozenset(p) for p in rows[:, :2].tolist()} <= friends
    keys = [(frozenset(c[:2]), c[2]) for c in daily.competitions.tolist()]
    assert len(set(keys)) == len(keys)


def test_weeks_are_the_days_aggregated(weekly):
    days = health_simulator.simulate(
        steps=336, messages=2766, competitions=11458
    )
    same(health_simulator.to_weekly(days), weekly)
    index = days.attribute_names.index
    week = days.attributes[:, 14:21]
    for name, expected in (
        ("exercising_days", week[..., index("exercising_days")].sum(axis=1)),
        ("average_steps", week[..., index("average_steps")].mean(axis=1)),
        ("bmi", week[:, 6, index("bmi")]),
    ):
        np.testing.assert_allclose(
            weekly.attributes[:, 2, index(name)], expected, rtol=1e-6
        )
    # The slope of a week is the change since the week before.
    bmi = weekly.attributes[..., index("bmi")]
    np.testing.assert_allclose(
        weekly.attributes[:, 1:, index("bmi_slope")],
        np.diff(bmi, axis=1),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        weekly.influence[2], days.influence[14:21].mean(axis=0), rtol=1e-6
    )
    assert weekly.event_names == days.event_names[1:]
    np.testing.assert_allclose(
        weekly.events[2], days.events[14:21, 1:].mean(axis=0), rtol=1e-6
    )
    np.testing.assert_array_equal(
        weekly.messages[:, 2], days.messages[:, 2] // 7
    )
    # An unfinished week is left out with what happened in it.
    short = health_simulator.simulate(users=10, steps=9, competitions=90)
    week = health_simulator.to_weekly(short)
    assert week.steps == 1
    assert len(week.competitions) == (short.competitions[:, 2] < 7).sum() < 90


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"resolution": "hourly"}, '"daily" or "weekly"'),
        ({"users": 0}, "`users` must be a positive integer"),
        ({"users": 1}, "friendships"),
        ({"users": 5, "friendships": 4}, "between 5"),
        ({"users": 5, "friendships": 11}, "and 10 friendships"),
        ({"users": 5, "messages": -1}, "`messages` must be an integer"),
        ({"users": 5, "steps": 2, "competitions": 99}, "at most one"),
    ],
)
def test_impossible_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        health_simulator.simulate(**arguments)


@pytest.mark.parametrize(
    "changes",
    [
        {"spell_memory": 1.0},
        {"contagion": float("nan")},
        {"communities": 0},
        {"campaign_days": 0.5},
    ],
)
def test_bad_parameters(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        health_simulator.SimulatorParameters(**changes)


def test_only_simulated_days_become_weeks(weekly):
    for network in (weekly, tiny()):
        with pytest.raises(ValueError, match="simulated daily network"):
            health_simulator.to_weekly(network)


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
        friendships=None,
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


def test_a_value_is_in_as_many_rows_as_the_note_says(small):
    for history, stride, rows in ((3, 1, 5), (0, 1, 2), (2, 3, 2)):
        arguments = {"history": history, "stride": stride, "social": "none"}
        before = small.windows(**arguments)
        assert f"in up to {rows} rows of that user" in before.note
        most = 0
        for step in range(small.steps):
            changed = small.attributes.copy()
            changed[0, step] = small.bounds.sum(axis=1) - changed[0, step]
            after = dataclasses.replace(small, attributes=changed).windows(
                **arguments
            )
            moved = (after.x != before.x).any(axis=1) | (after.y != before.y)
            most = max(most, moved.sum())
        # A label need not move; everything else does.
        assert rows - 1 <= most <= rows


def test_the_note_says_what_is_read(small):
    assert "public input" in small.windows().note
    assert "No row reads" in small.windows(social="none").note
    note = small.windows(social="friends", max_friends=4).note
    assert "at most 4 other users" in note


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


def test_by_user_orders_rows(small):
    windows = small.windows()
    ordered = windows.by_user()
    keys = list(zip(ordered.users, ordered.steps))
    assert keys == sorted(keys) and len(keys) == len(windows)
    at = windows.users == 7
    np.testing.assert_array_equal(ordered.x[ordered.users == 7], windows.x[at])
    np.testing.assert_array_equal(ordered.y[ordered.users == 7], windows.y[at])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"target": "sleep"}, "`target` must be one of"),
        ({"social": "all"}, "`social` must be one of"),
        ({"history": -1}, "`history` must be an integer"),
        ({"history": 1.0}, "`history` must be an integer"),
        ({"history": 2}, "needs 4 steps"),
        ({"stride": 0}, "`stride` must be a positive integer"),
        ({"social": "friends"}, "set `max_friends`"),
        ({"social": "friends", "max_friends": 0}, "`max_friends` must be"),
        ({"max_friends": 2}, '`max_friends` is for social="friends"'),
    ],
)
def test_bad_windows(arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny().windows(**{"history": 1, **arguments})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attributes": np.zeros((5, 3))}, "`attributes` must have shape"),
        ({"attributes": np.zeros((0, 3, 3))}, "needs a user"),
        ({"attributes": np.full((5, 3, 3), np.nan)}, "must be finite"),
        ({"attribute_names": ("a", "a", "b")}, "differ"),
        ({"groups": {"all": ["sport"]}}, "every attribute once"),
        ({"bounds": [[1, 2]]}, "`bounds` must have shape"),
        ({"bounds": [[1, 2], [1, 1], [0, 1]]}, "lower bound"),
        ({"activity": "swimming"}, "`activity` must be one of"),
        ({"active_threshold": np.inf}, "`active_threshold` must be finite"),
        ({"resolution": ""}, "`resolution` must be"),
        ({"synthetic": 1}, "`synthetic` must be"),
        ({"friendships": [[0, 0]]}, "with oneself"),
        ({"friendships": [[0, 1], [1, 0]]}, "each friendship once"),
        ({"friendships": [[0, 5]]}, "must name users 0 to 4"),
        ({"friendships": [[0.0, 1.0]]}, "must be integers"),
        ({"friendships": [[0, 1, 2]]}, r"must have shape \(n, 2\)"),
        ({"influence": [0.5]}, "`influence` holds"),
        ({"influence": [0.5, 0.5, 1.5, 0]}, r"must be in \[0, 1\]"),
        ({"events": np.zeros((3, 1))}, "`events` must have shape"),
        (
            {"events": [[2], [0], [0]], "event_names": ["x"]},
            r"must be in \[0, 1\]",
        ),
        ({"messages": [[0, 1, 3]]}, "must name steps 0 to 2"),
        ({"messages": [[0, 1, 1, 0]]}, "index into `topics`"),
        ({"competitions": [[0, 9, 1]]}, "must name users"),
        ({"user_names": ["a"]}, "must hold 5 names"),
    ],
)
def test_bad_networks(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_a_network_cannot_be_changed_from_outside():
    attributes = np.ones((5, 3, 3), np.float32)
    network = tiny(attributes=attributes)
    attributes[:] = np.nan
    assert np.isfinite(network.attributes).all()
    with pytest.raises(ValueError, match="read-only"):
        network.attributes[0] = 0


# A tiny network, and CSV files -------------------------------------------


def test_nominations_become_friendships():
    np.testing.assert_array_equal(tiny().friendships, [[0, 1], [1, 2]])
    once = health_network.symmetrised([[0, 0, 1], [0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(once, [[0, 2]])
    with pytest.raises(ValueError, match="`nominations` must have shape"):
        health_network.symmetrised(np.zeros((2, 3)))


def test_a_tiny_network_predicts_the_next_wave(tmp_path):
    network = tiny(user_names=["ann", "bob", "cy", "dee", "eve"])
    network.save_csv(tmp_path)
    loaded = load_csv(tmp_path)
    same(network, loaded)
    assert "synthetic" not in repr(loaded) and not loaded.synthetic
    windows = loaded.windows(history=0, target="active", social="public")
    assert windows.x.shape == (10, 4)
    # By default every friend counts in full; dee and eve have none.
    np.testing.assert_array_equal(windows.x[:5, 3], [1, 1, 1, 0, 0])
    np.testing.assert_array_equal(
        windows.y[:5], network.attributes[:, 1, 0] > 1
    )
    friends = loaded.windows(history=0, social="friends", max_friends=2)
    sport = network.attributes[:, 0, 0] - 1
    np.testing.assert_allclose(
        friends.x[:5, 3],
        [sport[1], (sport[0] + sport[2]) / 2, sport[1], 0, 0],
    )


@pytest.mark.parametrize("static", [False, True])
def test_csv_round_trip(small, tmp_path, static):
    names = [f"Ünal, {u}" for u in range(20)]
    network = dataclasses.replace(small, user_names=names)
    if static:
        network = dataclasses.replace(network, influence=small.influence[0])
    network.save_csv(tmp_path / "new" / "folder")
    same(network, load_csv(tmp_path / "new" / "folder"))


@pytest.fixture
def folder(tmp_path):
    """A good network in CSV; a test then breaks one thing."""
    (tmp_path / "schema.json").write_text(
        json.dumps(
            {
                "attributes": [
                    {"name": "sport", "group": "a", "bounds": [0, 9]},
                    {"name": "sleep", "group": "b", "bounds": [0, 9]},
                ],
                "activity": "sport",
                "active_threshold": 3,
                "resolution": "daily",
                "topics": ["fitness"],
            }
        )
    )
    rows = ["user,step,sport,sleep"]
    rows += [f"{u},{s},4.125,8.625" for u in "xyz" for s in range(3)]
    write(tmp_path, "attributes", rows)
    write(tmp_path, "friendships", ["user,friend", "x,y", "z,y"])
    write(tmp_path, "messages", ["sender,receiver,step,topic", "x,y,0,fitness"])
    write(tmp_path, "competitions", ["challenger,opponent,step", "x,y,2"])
    write(tmp_path, "events", ["step,rain", "0,0.5", "1,1", "2,0"])
    write(
        tmp_path,
        "influence",
        ["step,source,target,probability", ",x,y,0.25", "1,x,y,0.75"],
    )
    return tmp_path


def write(folder, name, rows):
    (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")


def edit(folder, name, row, text):
    """Replaces row `row` (the header is 1); `None` removes it."""
    path = folder / f"{name}.csv"
    rows = path.read_text().splitlines()
    rows[row - 1 : row] = [] if text is None else [text]
    write(folder, name, rows)


def test_a_good_folder_is_read(folder):
    network = load_csv(folder)
    assert network.user_names == ("x", "y", "z")
    # (x, y), (z, y), (y, x), (y, z); what is not listed has the default.
    usual = health_network.DEFAULT_INFLUENCE
    np.testing.assert_array_equal(
        network.influence,
        [[p, usual, usual, usual] for p in (0.25, 0.75, 0.25)],
    )
    assert network.event_names == ("rain",)
    np.testing.assert_array_equal(network.messages, [[0, 1, 0, 0]])
    np.testing.assert_array_equal(network.competitions, [[0, 1, 2]])


def test_what_is_optional_may_be_absent(folder):
    for name in ("messages", "competitions", "events", "influence"):
        (folder / f"{name}.csv").unlink()
    network = load_csv(folder)
    assert not len(network.messages) and not len(network.competitions)
    assert network.events.shape == (3, 0)
    assert (network.influence == health_network.DEFAULT_INFLUENCE).all()
    # A blank line, a byte order mark, another column, another order.
    (folder / "friendships.csv").write_text(
        "\ufeffsince,friend,user\n\n2010,y,x\n", encoding="utf-8"
    )
    np.testing.assert_array_equal(load_csv(folder).friendships, [[0, 1]])


BAD_ROWS = [
    ("attributes", 1, "user,step,sport", "attributes.csv lacks .*'sleep'"),
    ("attributes", 1, "user,step,sport,sport", "lacks the column 'sleep'"),
    ("attributes", 3, "x,1,4.125", "row 3: expected 4 cells, found 3"),
    ("attributes", 3, "x,1,nan,8.625", "row 3, column 'sport': .*finite"),
    ("attributes", 3, "x,1,4.125,inf", "row 3, column 'sleep': .*finite"),
    ("attributes", 3, "x,1,4.125,1e99", "row 3, column 'sleep': .*finite"),
    ("attributes", 3, "x,1,4.125,", "row 3, column 'sleep': .*a number"),
    ("attributes", 3, "x,1,8.625 h,4", "row 3, column 'sport': .*a number"),
    ("attributes", 3, ",1,4.125,8.625", "row 3, column 'user': .*a name"),
    ("attributes", 3, "x,-1,4.125,8.625", "row 3, column 'step': .*from 0"),
    ("attributes", 3, "x,1.5,4.125,8.625", "row 3, column 'step': .*integer"),
    ("attributes", 3, "x,0,4.125,8.625", "row 3: .*also in row 2"),
    ("attributes", 6, None, "the user of row 5 has no row for step 1"),
    ("attributes", 10, "z,10000000,4,8", "from 0 to 10000000; the user"),
    ("friendships", 1, "user,name", "friendships.csv lacks .*'friend'"),
    ("friendships", 1, "user,friend,friend", "'friend' twice"),
    ("friendships", 2, "x,w", "row 2, column 'friend': expected a user"),
    ("friendships", 2, "x,x", "row 2, column 'friend': .*not oneself"),
    ("friendships", 3, "y,x", "row 3: .*once; this one is also in row 2"),
    ("messages", 2, "w,y,0,fitness", "row 2, column 'sender': .*a user"),
    ("messages", 2, "x,w,0,fitness", "row 2, column 'receiver': .*a user"),
    ("messages", 2, "x,y,3,fitness", "row 2, column 'step': .*from 0 to 2"),
    ("messages", 2, "x,y,0,golf", "row 2, column 'topic': .*`topics`"),
    ("messages", 1, "sender,to,step,topic", "lacks .*'receiver'"),
    ("competitions", 2, "x,w,0", "row 2, column 'opponent': .*a user"),
    ("competitions", 2, "x,y,9", "row 2, column 'step': .*from 0 to 2"),
    ("events", 2, "0,1.5", r"row 2, column 'rain': .*in \[0, 1\]"),
    ("events", 2, "0,wet", r"row 2, column 'rain': .*in \[0, 1\]"),
    ("events", 2, "1,1", "events.csv, row 3: .*also in row 2"),
    ("events", 2, "7,1", "row 2, column 'step': .*from 0 to 2"),
    ("events", 3, None, "step 1 has no row"),
    ("events", 1, "step,", "column names that differ"),
    ("influence", 2, ",x,y,1.5", r"'probability': .*in \[0, 1\]"),
    ("influence", 2, ",x,y,nan", r"'probability': .*in \[0, 1\]"),
    ("influence", 2, ",x,z,0.5", "row 2, column 'target': .*a friend"),
    ("influence", 2, ",w,y,0.5", "row 2, column 'source': .*a user"),
    ("influence", 2, "3,x,y,0.5", "row 2, column 'step': .*from 0 to 2"),
    ("influence", 2, "1,x,y,0.5", "row 3: .*once; these are also in row 2"),
]


@pytest.mark.parametrize("name, row, text, message", BAD_ROWS)
def test_bad_rows(folder, name, row, text, message):
    edit(folder, name, row, text)
    with pytest.raises(ValueError, match=message) as error:
        load_csv(folder)
    assert f"{name}.csv" in str(error.value)
    # Logs keep messages and their causes: neither may quote a cell.
    seen, exception = "", error.value
    while exception is not None:
        seen += str(exception)
        context = not exception.__suppress_context__
        exception = exception.__cause__ or (
            exception.__context__ if context else None
        )
    for secret in ("4.125", "8.625", "1e99", "golf", "wet"):
        assert secret not in seen


@pytest.mark.parametrize(
    "name", ["schema.json", "attributes.csv", "friendships.csv"]
)
def test_missing_files(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is missing in"):
        load_csv(folder)


def test_unreadable_files(folder):
    header = "user,friend\n"
    for content in (b"\xff\xfe\x00", header.encode() + b'"x,y\n'):
        (folder / "friendships.csv").write_bytes(content)
        with pytest.raises(ValueError, match="friendships.csv cannot be read"):
            load_csv(folder)
    (folder / "friendships.csv").write_text("")
    with pytest.raises(ValueError, match="lacks the column 'user'"):
        load_csv(folder)
    write(folder, "attributes", ["user,step,sport,sleep"])
    with pytest.raises(ValueError, match="attributes.csv holds no row"):
        load_csv(folder)
    (folder / "schema.json").write_text("{")
    with pytest.raises(ValueError, match="schema.json cannot be read as JSON"):
        load_csv(folder)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attributes": []}, "'attributes': expected a list"),
        ({"attributes": [{"name": ""}]}, r"'attributes\[0\].name'"),
        ({"attributes": [{"name": "a"}]}, r"'attributes\[0\].group'"),
        ({"bounds": [9, 0]}, r"'attributes\[0\].bounds': .*low < high"),
        ({"bounds": [0, float("inf")]}, r"'attributes\[0\].bounds'"),
        ({"bounds": ["0", 9]}, r"'attributes\[0\].bounds'"),
        ({"bounds": None}, r"'attributes\[0\].bounds'"),
        ({"name": "sleep"}, ".*names that differ"),
        ({"name": "user"}, ".*names that differ"),
        ({"activity": "golf"}, "'activity': expected the name of"),
        ({"active_threshold": "high"}, "'active_threshold': .*finite"),
        ({"resolution": 1}, "'resolution': expected a name"),
        ({"steps": 0}, "'steps': expected a positive integer"),
        ({"topics": ["a", "a"]}, "'topics': expected a list"),
        ({"synthetic": "no"}, "'synthetic': expected true or false"),
    ],
)
def test_bad_schemas(folder, changes, message):
    path = folder / "schema.json"
    schema = json.loads(path.read_text())
    for key, value in changes.items():
        inside = key in ("bounds", "name")
        (schema["attributes"][0] if inside else schema)[key] = value
    path.write_text(json.dumps(schema))
    with pytest.raises(ValueError, match=f"schema.json, {message}"):
        load_csv(folder)


def test_steps_of_the_schema_are_held_to(folder):
    path = folder / "schema.json"
    for steps, message in (
        (2, "attributes.csv, row 4, column 'step': .*from 0 to 1"),
        (4, "the user of row 2 has no row for step 3"),
    ):
        schema = {**json.loads(path.read_text()), "steps": steps}
        path.write_text(json.dumps(schema))
        with pytest.raises(ValueError, match=message):
            load_csv(folder)


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
    name, target, above_majority, own, social, events, request
):
    """The function in the docs, at the fixed seed; nothing is drawn anew."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (source,) = (b for b in blocks if "def ablation" in b)
    names = {}
    exec(source, names)
    network = request.getfixturevalue(name)
    rate = 0.2 if name == "daily" else 1.0
    accuracy = names["ablation"](network, rate, target=target)
    every = accuracy["without nothing"]
    assert every - accuracy["majority"] > above_majority
    assert every < 90
    for part, loss in (("own", own), ("social", social), ("events", events)):
        assert every - accuracy[f"without {part}"] > loss, part
