"""Symmetric tensors, with every entry held once.

Indices i_0 <= i_1 <= ... are in colexicographic order: sorted by the last
one, then by the one before. The tuples whose last index is l are then the
first C(l + m - 1, m - 1) tuples of one order less, with l appended.
"""

import functools
import math

import numpy as np


def monomials(u, order):
    """Products of entries of `u` `(p, count)`, `(C(p + order - 1, order),
    count)`."""
    if order == 1:
        return u
    lower = monomials(u, order - 1)
    made = np.empty((math.comb(len(u) + order - 1, order), u.shape[1]))
    start = 0
    for last in range(len(u)):
        count = math.comb(last + order - 1, order - 1)
        np.multiply(lower[:count], u[last], out=made[start : start + count])
        start += count
    return made


@functools.lru_cache(maxsize=16)
def indices(p, order):
    """Index tuples of the unique entries, one per row."""
    if order == 1:
        return np.arange(p, dtype=np.int32)[:, None]
    lower, blocks = indices(p, order - 1), []
    for last in range(p):
        head = lower[: math.comb(last + order - 1, order - 1)]
        tail = np.full((len(head), 1), last, np.int32)
        blocks.append(np.hstack([head, tail]))
    return np.concatenate(blocks)


def rank(indices):
    """Positions of index tuples `(..., order)` in ascending order."""
    total, factor = 0, 1
    for k in range(indices.shape[-1]):
        i = indices[..., k].astype(np.int64)
        # C(i + k, k + 1)
        rising, factor = i.copy(), factor * (k + 1)
        for step in range(1, k + 1):
            rising *= i + step
        total = total + rising // factor
    return total


@functools.lru_cache(maxsize=8)
def pairs(p):
    """Positions of `(i, j)` among pairs, `(p, p)`."""
    i, j = np.indices((p, p))
    return rank(np.stack([np.minimum(i, j), np.maximum(i, j)], axis=-1))


@functools.lru_cache(maxsize=4)
def flattening(p, order):
    """Positions of the products of two monomials among the unique entries,
    for a matrix of monomials of half the order by the same."""
    left, right = indices(p, order - order // 2), indices(p, order // 2)
    shape = len(left), len(right)
    both = np.concatenate(
        [
            np.broadcast_to(left[:, None], (*shape, left.shape[1])),
            np.broadcast_to(right[None], (*shape, right.shape[1])),
        ],
        axis=-1,
    )
    both.sort(axis=-1)
    return rank(both)


@functools.lru_cache(maxsize=8)
def multiplicities(p, order):
    """Number of entries of the whole tensor equal to each unique entry."""
    unique = indices(p, order)
    # m! over the factorials of the runs, computed run by run.
    run, product = np.ones(len(unique)), np.ones(len(unique))
    for k in range(1, order):
        run = np.where(unique[:, k] == unique[:, k - 1], run + 1, 1.0)
        product *= run
    return math.factorial(order) / product


def spread(p, order):
    """Sum over unique entries of 1 / multiplicity.

    It is the coefficient of t^m in (sum_k k! t^k)^p, over m!.
    """
    factorials = [math.factorial(k) for k in range(order + 1)]
    power = [1] + [0] * order
    for _ in range(p):
        power = [
            sum(power[i] * factorials[k - i] for i in range(k + 1))
            for k in range(order + 1)
        ]
    return power[order] / math.factorial(order)
