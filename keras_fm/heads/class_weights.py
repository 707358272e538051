"""Weights of classes in the objective of an output layer.

A record's part of a sum is multiplied by the weight of its class, in [0, 1],
after every bound: no part becomes longer, so no sensitivity moves
(docs/proofs/cross_entropy.md, proposition 5).
"""

import numpy as np

from keras_fm.kernel import checks

# From counts that a fit releases first: the name of that release, and its
# share of the budget.
BALANCED = "balanced"
NAME, SHARE = "counts of classes", 0.05


def checked(name, value, classes):
    """Weights, the largest 1, one of each class.

    Args:
        value: `None`, `"balanced"`, a dict from classes to numbers (1 where
            it has none), or a number of each class.
        classes: `None` if what is predicted is no class, or how many.

    Returns:
        `None`, `"balanced"` or a tuple of floats.
    """
    if value is None:
        return None
    if classes is None:
        checks.refuse(name, value, "None where no classes are predicted")
    if isinstance(value, str) and value == BALANCED:
        return value
    if isinstance(value, dict) and set(value) <= set(range(classes)):
        value = [value.get(k, 1.0) for k in range(classes)]
    if not isinstance(value, list | tuple) or len(value) != classes:
        wanted = f"classes, 0 to {classes - 1}, to public numbers"
        checks.refuse(name, value, f'"{BALANCED}", or a dict from {wanted}')
    found = [checks.nonnegative(f"a number of `{name}`", w) for w in value]
    most = checks.norm_bound(f"the largest of `{name}`", max(found))
    return tuple(w / most for w in found)


def check_field(query):
    """Refuses weights of a query that are not in [0, 1], or of no classes."""
    held, classes = query.class_weights, max(2, query.num_outputs)
    none = query.independent or getattr(query, "target_bounds", None)
    if held is None:
        return
    if none or len(held) != classes or not all(0 <= w <= 1 for w in held):
        checks.refuse("class_weights", held, "in [0, 1], one of each class")
    object.__setattr__(query, "class_weights", tuple(held))


def of_records(weights, targets):
    """Weights of records `(n, 1)`, by targets `(n, M)` that are larger in the
    column of a record's class; of one column, above 0 for the second."""
    if targets.shape[1] == 1:
        return np.where(targets > 0, weights[1], weights[0])
    return np.array(weights)[targets.argmax(axis=1)][:, None]


def in_words(weights):
    """For what is read."""
    if weights is None:
        return ""
    of = ", ".join(f"{w:.4g}" for w in weights)
    return f"; each record times the weight of its class ({of})"
