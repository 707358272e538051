"""Rows that belong to several people: which of them are used.

Who owns which row is public. The proof is in docs/proofs/record_alone.md,
"Several owners of a row".
"""

import numpy as np


def chosen_rows(owners):
    """Rows of which every owner has at most one, a function of `owners`.

    Rows whose owners have few rows come first, in a mixed order that is
    always the same. A row is kept if none of its owners has one yet.

    Args:
        owners: `(n, k)` ids. Rows with fewer owners are filled up with -1, or
            text with "".

    Returns:
        int array of row numbers, in ascending order.

    Raises:
        ValueError: if a row has no owner.

    Example:

    >>> chosen_rows(np.array([[1, 2], [2, 3], [3, -1], [4, -1]])).tolist()
    [0, 2, 3]

    Source: Ganesh, McKenna, McMahan, Smith and Wu, "It's My Data Too: Private
    ML for Datasets with Multi-User Training Examples", 2025.
    """
    first = owners.flat[0] if owners.size else -1
    nobody = type(first)() if isinstance(first, str | bytes) else -1
    there = owners != nobody
    if not there.any(axis=1).all():
        raise ValueError(
            "Each row of `owners` must name at least one owner. The values -1 "
            "and '' only fill up rows with fewer owners than others. Give "
            "each row without an owner an id of its own."
        )
    _, codes, counts = np.unique(
        owners, return_inverse=True, return_counts=True
    )
    codes = codes.reshape(owners.shape)
    shared = np.sum(counts[codes], axis=1, where=there)
    mixed = np.random.default_rng(0).permutation(len(owners))
    used, chosen = np.zeros(len(counts), bool), []
    for row in mixed[np.argsort(shared[mixed], kind="stable")]:
        own = codes[row, there[row]]
        if not used[own].any():
            used[own] = True
            chosen.append(row)
    return np.sort(chosen)
