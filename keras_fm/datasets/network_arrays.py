"""The arrays of a health network, as they are kept, or refused."""

import numpy as np


def names(argument, names):
    names = tuple(names)
    if not all(isinstance(n, str) and n for n in names):
        raise ValueError(f"`{argument}` must be non-empty strings.")
    if len(set(names)) < len(names):
        raise ValueError(f"`{argument}` must differ from one another.")
    return names


def friendships(friendships, users):
    pairs = rows("friendships", friendships, 2, users)[:, :2]
    if (pairs[:, 0] == pairs[:, 1]).any():
        raise ValueError("`friendships` must not pair a user with oneself.")
    if len(np.unique(np.sort(pairs, axis=1), axis=0)) < len(pairs):
        raise ValueError("`friendships` must list each friendship once.")
    return pairs


def rows(name, rows, width, users, steps=None):
    """int64 rows whose first two entries are users, the third a step."""
    rows = np.zeros((0, width), int) if rows is None else np.asarray(rows)
    if rows.size == 0:
        rows = np.zeros((0, width), int)
    widths = (width, 4) if name == "messages" else (width,)
    if rows.ndim != 2 or rows.shape[1] not in widths:
        raise ValueError(
            f"`{name}` must have shape (n, {width}). "
            f"Received: shape={rows.shape}"
        )
    if rows.dtype.kind not in "ui":
        raise ValueError(f"`{name}` must be integers. Received: {rows.dtype}")
    rows = rows.astype(np.int64)
    if ((rows[:, :2] < 0) | (rows[:, :2] >= users)).any():
        raise ValueError(f"`{name}` must name users 0 to {users - 1}.")
    if steps and ((rows[:, 2] < 0) | (rows[:, 2] >= steps)).any():
        raise ValueError(f"`{name}` must name steps 0 to {steps - 1}.")
    return rows


def unit(name, values):
    values = np.asarray(values, np.float32)
    # Also refuses NaN.
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"`{name}` must be in [0, 1].")
    return values
