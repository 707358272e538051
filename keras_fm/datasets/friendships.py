"""Who counts as whose friend, by public rules on a graph."""

import numpy as np

from keras_fm.kernel import checks


def counted_friendships(friendships, users, max_friends):
    """Chooses friendships so that nobody has more than `max_friends`.

    A fixed rule on the public graph: friendships are gone through by the
    number of friends of the two together, then by the two ids, and kept
    while both have room. A kept friendship counts both ways, so a user
    counts at most `max_friends` friends and is counted by at most so many.

    Args:
        friendships: int `(E, 2)`.
        users: int, number of users.
        max_friends: positive int.

    Returns:
        bool `(E,)`, which are kept.
    """
    max_friends = checks.count("max_friends", max_friends)
    ends = np.sort(np.asarray(friendships).reshape(-1, 2), axis=1)
    degree = np.bincount(ends.ravel(), minlength=users)
    order = np.lexsort((ends[:, 1], ends[:, 0], degree[ends].sum(axis=1)))
    room = [max_friends] * users
    keep = np.zeros(len(ends), bool)
    for e in order:
        a, b = ends[e]
        if room[a] and room[b]:
            room[a] -= 1
            room[b] -= 1
            keep[e] = True
    return keep


def symmetrised(nominations):
    """Friendships from directed nominations: friends if either named one.

    Args:
        nominations: `(users, users)` or `(waves, users, users)`, nonzero
            where the row's user named the column's (in any wave). The
            diagonal is ignored.

    Returns:
        int64 `(E, 2)`, each friendship once, smaller id first.

    Raises:
        ValueError: if the last two dimensions differ.
    """
    named = np.asarray(nominations) != 0
    if named.ndim not in (2, 3) or named.shape[-1] != named.shape[-2]:
        raise ValueError(
            "`nominations` must have shape (users, users) or (waves, users, "
            f"users). Received: shape={named.shape}"
        )
    if named.ndim == 3:
        named = named.any(axis=0)
    return np.argwhere(np.triu(named | named.T, k=1)).astype(np.int64)
