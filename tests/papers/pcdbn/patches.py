"""Queries of patches, and patches within their bound."""

import math

import numpy as np

from keras_fm.papers.pcdbn.patch_moments import PatchMomentQuery

ORDERS = (2, 3, 4)
ROOT = math.sqrt(2.0)


def make(p=4, order=4, bound=ROOT, constant=1.0, **kwargs):
    return PatchMomentQuery(
        num_features=p,
        order=order,
        feature_bound=bound,
        constant=constant,
        **kwargs,
    )


def to_ball(objective, v):
    """`(positions, d)` patches within their bound, the constant added."""
    v = np.atleast_2d(v)
    lengths = np.linalg.norm(v, axis=1, keepdims=True)
    v = v / np.maximum(1.0, lengths / (objective.patch_bound * (1 - 1e-12)))
    constant = np.full((len(v), 1), objective.constant)
    return np.concatenate([v, constant], axis=1)


def some_patches(objective, n=7, positions=5, seed=0):
    rng = np.random.default_rng(seed)
    d = objective.num_features - 1
    return np.stack(
        [to_ball(objective, rng.normal(size=(positions, d))) for _ in range(n)]
    )
