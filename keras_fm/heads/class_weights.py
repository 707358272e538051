"""Weights of classes in the objective of an output layer.

Bounds apply first; then the part that a record adds to a sum is multiplied by
the weight of its class, in [0, 1]. No part becomes longer, so no sensitivity
changes (docs/proofs/cross_entropy.md, proposition 5).
"""

import numpy as np

from keras_fm.kernel import checks

# Weights from counts that a fit releases first: the name of that release, and
# its share of the budget.
BALANCED = "balanced"
NAME, SHARE = "counts of classes", 0.05


def checked(name, value, classes):
    """Returns one weight for each class, scaled so that the largest is 1.

    Args:
        value: `None`, `"balanced"`, a dict from classes to numbers (1 for a
            class that is left out), or a number for each class.
        classes: the number of classes; `None` if the layer predicts none.

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
    """Refuses weights outside [0, 1], or on a query without classes."""
    held, classes = query.class_weights, max(2, query.num_outputs)
    none = query.independent or getattr(query, "target_bounds", None)
    if held is None:
        return
    if none or len(held) != classes or not all(0 <= w <= 1 for w in held):
        checks.refuse("class_weights", held, "in [0, 1], one of each class")
    object.__setattr__(query, "class_weights", tuple(held))


def of_records(weights, targets):
    """Weights of records `(n, 1)`. Targets `(n, M)` are largest in the column
    of a record's class; a single column is above 0 for the second class."""
    if targets.shape[1] == 1:
        return np.where(targets > 0, weights[1], weights[0])
    return np.array(weights)[targets.argmax(axis=1)][:, None]


def in_words(weights):
    """The weights as text for a statement."""
    if weights is None:
        return ""
    of = ", ".join(f"{w:.4g}" for w in weights)
    return f"; each record times the weight of its class ({of})"
