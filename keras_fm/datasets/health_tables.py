"""The CSV files of a health network; `health_network.load_csv` has the schema.

An error names the file, the row and the column and says what is expected; it
never shows what a cell holds, since messages end up in logs.
"""

import csv
import json
import math
import os

import numpy as np


def write(network, folder):
    """Writes what the readers below read; see `HealthNetwork.save_csv`."""
    os.makedirs(folder, exist_ok=True)
    group = {a: g for g, names in network.groups.items() for a in names}
    schema = {
        "attributes": [
            {"name": name, "group": group[name], "bounds": [low, high]}
            for name, (low, high) in zip(
                network.attribute_names, network.bounds.tolist()
            )
        ],
        "activity": network.activity,
        "active_threshold": network.active_threshold,
        "resolution": network.resolution,
        "steps": network.steps,
        "topics": list(network.topics),
        "synthetic": network.synthetic,
    }
    path = os.path.join(folder, "schema.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(schema, f, indent=2)
    user = network.user_names
    _write(
        folder,
        "attributes.csv",
        ("user", "step", *network.attribute_names),
        (
            [user[u], s, *map(_text, row)]
            for u, rows in enumerate(network.attributes)
            for s, row in enumerate(rows.tolist())
        ),
    )
    _write(
        folder,
        "friendships.csv",
        ("user", "friend"),
        ([user[a], user[b]] for a, b in network.friendships),
    )
    _write(
        folder,
        "messages.csv",
        ("sender", "receiver", "step", "topic"),
        (
            [user[a], user[b], s, network.topics[k] if k >= 0 else ""]
            for a, b, s, k in network.messages
        ),
    )
    _write(
        folder,
        "competitions.csv",
        ("challenger", "opponent", "step"),
        ([user[a], user[b], s] for a, b, s in network.competitions),
    )
    _write(
        folder,
        "events.csv",
        ("step", *network.event_names),
        (
            [s, *map(_text, row)]
            for s, row in enumerate(network.events.tolist())
        ),
    )
    static = network.influence.ndim == 1
    _write(
        folder,
        "influence.csv",
        ("step", "source", "target", "probability"),
        (
            ["" if static else s, user[a], user[b], _text(p)]
            for s, row in enumerate(np.atleast_2d(network.influence).tolist())
            for (a, b), p in zip(network.directed_friendships.tolist(), row)
        ),
    )


def _text(value):
    """The shortest usual form that reads back as the same float32."""
    return format(value, ".9g")


def _write(folder, name, header, rows):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(header)
        writer.writerows(rows)


class _Table:
    """One CSV file; turns cells into values or into a readable error."""

    def __init__(self, folder, name, required, others=()):
        self.name = name
        self.path = os.path.join(folder, name)
        if not os.path.exists(self.path):
            raise ValueError(f"{name} is missing in {folder!r}.")
        self.header = next(self._lines(), [])
        for column in required:
            if column not in self.header:
                raise ValueError(
                    f"{name} lacks the column {column!r}. Expected the "
                    f"columns {list(required)}."
                )
        for column in (*required, *others):
            if self.header.count(column) > 1:
                raise ValueError(f"{name} has the column {column!r} twice.")
        self.place = {c: i for i, c in enumerate(self.header)}

    def _lines(self):
        try:
            with open(self.path, encoding="utf-8-sig", newline="") as f:
                yield from csv.reader(f, strict=True)
        except (OSError, UnicodeDecodeError, csv.Error):
            raise ValueError(
                f"{self.name} cannot be read: expected a CSV file in UTF-8."
            ) from None

    def __iter__(self):
        """Yields `(row number, cells)`; the header is row 1."""
        for r, cells in enumerate(self._lines(), 1):
            # Blank lines are no rows, but count.
            if r == 1 or not cells:
                continue
            if len(cells) != len(self.header):
                raise ValueError(
                    f"{self.name}, row {r}: expected {len(self.header)} "
                    f"cells, found {len(cells)}."
                )
            yield r, cells

    def error(self, row, column, expected):
        return ValueError(
            f"{self.name}, row {row}, column {column!r}: expected {expected}."
        )

    def cell(self, row, cells, column, read, expected):
        # `from None`: the original message would quote the cell.
        try:
            return read(cells[self.place[column]])
        except (ValueError, KeyError):
            raise self.error(row, column, expected) from None

    def user(self, row, cells, column, users):
        expected = "a user of attributes.csv"
        return self.cell(row, cells, column, users.__getitem__, expected)

    def step(self, row, cells, steps):
        try:
            step = int(cells[self.place["step"]])
            if 0 <= step and (steps is None or step < steps):
                return step
        except ValueError:
            pass
        upto = "" if steps is None else f" to {steps - 1}"
        raise self.error(row, "step", f"an integer from 0{upto}")

    def share(self, row, cells, column):
        try:
            value = float(cells[self.place[column]])
            if 0 <= value <= 1:
                return value
        except ValueError:
            pass
        raise self.error(row, column, "a number in [0, 1]")


def _exists(folder, name):
    return os.path.exists(os.path.join(folder, name))


def _finite(value):
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def read_schema(folder):
    try:
        with open(
            os.path.join(folder, "schema.json"), encoding="utf-8-sig"
        ) as f:
            schema = json.load(f)
    except FileNotFoundError:
        raise ValueError(f"schema.json is missing in {folder!r}.") from None
    except (OSError, RecursionError, ValueError) as e:
        raise ValueError(f"schema.json cannot be read as JSON: {e}") from e

    def require(condition, key, expected):
        if not condition:
            raise ValueError(f"schema.json, {key!r}: expected {expected}.")

    def named(value):
        return isinstance(value, str) and value

    require(isinstance(schema, dict), "schema", "an object")
    attributes = schema.get("attributes")
    require(
        isinstance(attributes, list) and attributes,
        "attributes",
        'a list of {"name", "group", "bounds"}',
    )
    for i, a in enumerate(attributes):
        key = f"attributes[{i}]"
        require(isinstance(a, dict), key, 'an object {"name", ...}')
        require(named(a.get("name")), f"{key}.name", "a name")
        require(named(a.get("group")), f"{key}.group", "a name")
        bounds = a.get("bounds")
        require(
            isinstance(bounds, list)
            and len(bounds) == 2
            and all(map(_finite, bounds))
            and bounds[0] < bounds[1],
            f"{key}.bounds",
            "[low, high], finite, low < high: public constants",
        )
    names = [a["name"] for a in attributes]
    require(
        len(set(names)) == len(names) and not {"user", "step"} & set(names),
        "attributes",
        'names that differ and are not "user" or "step"',
    )
    activity = schema.get("activity")
    require(activity in names, "activity", "the name of an attribute")
    threshold = schema.get("active_threshold")
    require(_finite(threshold), "active_threshold", "a finite number")
    resolution = schema.get("resolution")
    require(named(resolution), "resolution", 'a name such as "daily"')
    steps = schema.get("steps", 1)
    whole = isinstance(steps, int) and not isinstance(steps, bool)
    require(whole and steps > 0, "steps", "a positive integer")
    topics = schema.get("topics", [])
    require(
        isinstance(topics, list)
        and all(map(named, topics))
        and len(set(topics)) == len(topics),
        "topics",
        "a list of names that differ",
    )
    synthetic = schema.get("synthetic", False)
    require(isinstance(synthetic, bool), "synthetic", "true or false")
    return schema


def read_attributes(folder, names, steps):
    """float32 `(users, steps, A)` and the users' names with their index."""
    table = _Table(folder, "attributes.csv", ("user", "step", *names))
    # Both in the order of the rows, of which `seen` holds the places.
    numbers, values = [], []
    users, seen = {}, {}
    places = [table.place[name] for name in names]
    for r, cells in table:
        name = cells[table.place["user"]]
        if not name:
            raise table.error(r, "user", "a name")
        key = users.setdefault(name, len(users)), table.step(r, cells, steps)
        if key in seen:
            raise ValueError(
                f"attributes.csv, row {r}: expected each user once at a "
                "step; this user and step are also in row "
                f"{numbers[seen[key]]}."
            )
        seen[key] = len(numbers)
        numbers.append(r)
        try:
            row = [float(cells[p]) for p in places]
        except ValueError:
            row = [
                table.cell(r, cells, column, float, "a number")
                for column in names
            ]
        with np.errstate(over="ignore"):
            row = np.array(row, np.float32)
        if not np.isfinite(row).all():
            column = names[int(np.argmin(np.isfinite(row)))]
            raise table.error(r, column, "a finite number")
        values.append(row)
    if not values:
        raise ValueError("attributes.csv holds no row.")
    if steps is None:
        steps = 1 + max(step for _, step in seen)
    if len(seen) < len(users) * steps:
        # Found before anything of the size users x steps is made.
        user, step = next(
            (u, s)
            for u in range(len(users))
            for s in range(steps)
            if (u, s) not in seen
        )
        first = numbers[min(i for (u, _), i in seen.items() if u == user)]
        raise ValueError(
            "attributes.csv: expected every user at every step from 0 to "
            f"{steps - 1}; the user of row {first} has no row for step "
            f"{step}."
        )
    order = [seen[u, s] for u in range(len(users)) for s in range(steps)]
    return np.stack(values)[order].reshape(len(users), steps, -1), users


def read_friendships(folder, users):
    table = _Table(folder, "friendships.csv", ("user", "friend"))
    pairs, seen = [], {}
    for r, cells in table:
        pair = [table.user(r, cells, c, users) for c in ("user", "friend")]
        if pair[0] == pair[1]:
            raise table.error(r, "friend", "another user, not oneself")
        row = seen.setdefault(frozenset(pair), r)
        if row != r:
            raise ValueError(
                f"friendships.csv, row {r}: expected each friendship once; "
                f"this one is also in row {row}."
            )
        pairs.append(pair)
    return np.array(pairs, np.int64).reshape(-1, 2)


def read_messages(folder, users, steps, topics):
    if not _exists(folder, "messages.csv"):
        return None
    table = _Table(
        folder, "messages.csv", ("sender", "receiver", "step"), ("topic",)
    )
    index = {"": -1, **{topic: k for k, topic in enumerate(topics)}}
    rows = []
    for r, cells in table:
        topic = -1
        if "topic" in table.place:
            topic = table.cell(
                r,
                cells,
                "topic",
                index.__getitem__,
                "one of schema.json's `topics`, or nothing",
            )
        rows.append(
            [
                table.user(r, cells, "sender", users),
                table.user(r, cells, "receiver", users),
                table.step(r, cells, steps),
                topic,
            ]
        )
    return np.array(rows, np.int64).reshape(-1, 4)


def read_competitions(folder, users, steps):
    if not _exists(folder, "competitions.csv"):
        return None
    table = _Table(
        folder, "competitions.csv", ("challenger", "opponent", "step")
    )
    rows = [
        [
            table.user(r, cells, "challenger", users),
            table.user(r, cells, "opponent", users),
            table.step(r, cells, steps),
        ]
        for r, cells in table
    ]
    return np.array(rows, np.int64).reshape(-1, 3)


def read_events(folder, steps):
    if not _exists(folder, "events.csv"):
        return None, ()
    table = _Table(folder, "events.csv", ("step",))
    names = [column for column in table.header if column != "step"]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("events.csv: expected column names that differ.")
    events, seen = np.empty((steps, len(names)), np.float32), {}
    for r, cells in table:
        step = table.step(r, cells, steps)
        row = seen.setdefault(step, r)
        if row != r:
            raise ValueError(
                f"events.csv, row {r}: expected each step once; this one is "
                f"also in row {row}."
            )
        events[step] = [table.share(r, cells, name) for name in names]
    if len(seen) < steps:
        step = next(s for s in range(steps) if s not in seen)
        raise ValueError(
            f"events.csv: expected every step from 0 to {steps - 1}; step "
            f"{step} has no row."
        )
    return events, names


def read_influence(folder, users, steps, friendships, otherwise):
    """Probabilities of directed friendships; `otherwise` where none is
    listed."""
    if not _exists(folder, "influence.csv"):
        return None
    table = _Table(
        folder, "influence.csv", ("step", "source", "target", "probability")
    )
    names = list(users)
    edges = np.concatenate([friendships, friendships[:, ::-1]])
    index = {(names[a], names[b]): e for e, (a, b) in enumerate(edges)}
    place = [table.place[c] for c in ("source", "target", "step")]
    # Row `steps` holds what is said of every step; NaN is not listed.
    values = np.full((steps + 1, len(edges)), np.nan, np.float32)
    rows = np.zeros(values.shape, int)
    for r, cells in table:
        source, target, step = (cells[p] for p in place)
        edge = index.get((source, target))
        if edge is None:
            table.user(r, cells, "source", users)
            table.user(r, cells, "target", users)
            raise table.error(
                r, "target", "a friend of the source in friendships.csv"
            )
        key = table.step(r, cells, steps) if step else steps, edge
        if rows[key]:
            raise ValueError(
                f"influence.csv, row {r}: expected each step, source and "
                f"target once; these are also in row {rows[key]}."
            )
        rows[key] = r
        values[key] = table.share(r, cells, "probability")
    usual = np.where(np.isnan(values[-1]), otherwise, values[-1])
    if not rows[:-1].any():
        return usual
    return np.where(np.isnan(values[:-1]), usual, values[:-1])
