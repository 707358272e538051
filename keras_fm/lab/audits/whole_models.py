"""Small proven models, and pairs of data sets that their releases tell apart.

Six numbers or nine pixels are enough where a sensitivity does not depend on how
many there are. Of the pairs that are tried, `worst` keeps the one that is
farthest apart in all releases together.
"""

import itertools
import math

import keras
import numpy as np

import keras_fm as fm
from keras_fm.lab.audits import whole_fits

_WIDTH, _WIDE, _CLASSES = 6, 200, 3
_PICTURE = (3, 3, 1)
# Records that all data sets have, and those of an owner.
_BASE, _OWNED = 20, 3
# The same where noisy means shape what comes after; and their mean, at which
# records of 0 and 1 with opposite entries come to an inner product of -1/2,
# where an output layer's statistics are farthest apart.
_MANY, _MEAN = 4000, 0.215


def _stack(*layers, shape=(_WIDTH,), **kwargs):
    return keras.Sequential(
        [
            keras.Input(shape),
            *layers,
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(_CLASSES, name="head", **kwargs),
        ]
    )


def _dp_pca():
    return _stack(
        fm.layers.NormalizationLayer(), fm.layers.DPPCA(4, name="pca")
    )


def _normalization():
    return _stack(fm.layers.PrivateNormalization((0, 1), name="columns"))


def _auto_encoder():
    return fm.models.DeepPrivateAutoencoder(
        (_WIDTH,), hidden=(4,), units=_CLASSES
    )


def _adaptive():
    return fm.models.AdaptiveLaplace((_WIDTH,), _CLASSES)


def _convolutional():
    """Nine pixels are one patch, of which nothing is averaged."""
    return _stack(
        fm.layers.ChebyshevCRBM(4, 3, padding="valid", gain=8.0, name="crbm"),
        keras.layers.Flatten(),
        shape=_PICTURE,
    )


def _functional():
    """One output: under both labels of a record its gradients are opposite,
    and a threshold that all of them reach."""
    return fm.models.FunctionalNet(
        (_WIDTH,),
        [keras.layers.Dense(4, activation="sigmoid"), keras.layers.Dense(1)],
        rounds=3,
        clip=0.1,
        name="net",
    )


# The best squared cosine between such records and the way they lean, beside a
# bias entry of 1/10.
_LEANING = {_WIDTH: 0.32, _WIDE: 0.118}
MODELS = {
    "one release": _stack,
    "one release of 200 numbers": lambda: _stack(shape=(_WIDE,)),
    "three rounds of Rounds": lambda: _stack(rounds=3),
    "DPPCA and head": _dp_pca,
    "PrivateNormalization and head": _normalization,
    "AdLM, three releases": _adaptive,
    "dPA, encoder and head": _auto_encoder,
    "pCDBN, patches and head": _convolutional,
    "FunctionalNet, three rounds": _functional,
}
# Which have a sum for each owner, and whose records may reach others'.
OWNED = (
    "one release",
    "one release of 200 numbers",
    "three rounds of Rounds",
    "AdLM, three releases",
    "dPA, encoder and head",
    "pCDBN, patches and head",
    "FunctionalNet, three rounds",
)
# Whose output layers see records as they are, but for their length.
_LEANS = ("one release", "one release of 200 numbers", "AdLM, three releases")
REACHING = ("one release", "dPA, encoder and head", "pCDBN, patches and head")


def differences(
    name, data, neighbour, budget, *, neighbours, reach=0, **kwargs
):
    """`whole_fits.differences` of one of `MODELS`.

    Args:
        name: of the model.
        data, neighbour: tuples `(x, y)`, or `(x, y, owners)`.
        budget: the `PrivacyBudget` of a fit.
        neighbours, reach: of the guarantee.
        **kwargs: of `PrivateModel`.
    """

    def fit(x, y, owners=None):
        keras.utils.set_random_seed(1)
        model = MODELS[name]()
        taylor = isinstance(model, fm.models.FunctionalNet)
        loss = None if taylor else fm.losses.TaylorCrossEntropy()
        model.compile(keras.optimizers.SGD(0.1), loss)
        private = fm.callbacks.PrivateModel(
            budget,
            data=(x, y),
            guarantee=fm.Proven(
                neighbours=neighbours, unit=fm.Unit(owners=owners, reach=reach)
            ),
            **kwargs,
        )
        model.fit(x, y, epochs=1, callbacks=[private], verbose=0)
        return model, private.ledger

    return whole_fits.differences(fit, data, neighbour)


def pairs(name, *, neighbours, owners=False, reach=0):
    """Neighbouring data sets worth a try, as `(D, D')`.

    Yields:
        pairs of tuples `(x, y)`, or with `owners` `(x, y, owners)`.
    """
    shape = (_WIDE,) if "numbers" in name else (_WIDTH,)
    if name.startswith("pCDBN"):
        shape = _PICTURE
    classes = 2 if name.startswith("FunctionalNet") else _CLASSES
    rng = np.random.default_rng(0)
    if name.startswith("PrivateNormalization"):
        x = (rng.random((_MANY, *shape)) < _MEAN).astype(float)
    else:
        x = rng.random((_BASE, *shape))
    y = np.arange(len(x)) % classes
    each = _OWNED if owners else 1
    units = [
        # The unit's own records, and others' that have some of its data.
        tuple(
            [own] * each * (own is not None) + [theirs] * reach
            for own, theirs in ((record, record), (other, reached))
        )
        for record, other, reached in _records(shape, neighbours, reach)
    ]
    if owners and neighbours == "replace_one" and name in _LEANS:
        units.append(tuple(_leaning(*shape, sign) for sign in (1, -1)))
    for unit in units:
        found = []
        for rows in unit:
            both = (
                np.concatenate([x, *(r[0][None] for r in rows)]),
                np.concatenate([y, [r[1] for r in rows]]).astype(int),
            )
            both = (both[0].astype("float32"), both[1])
            if classes == 2:
                both = (both[0], both[1][:, None])
            if owners:
                ids = [np.arange(len(x)) // 2, np.full(len(rows), len(x))]
                both = (*both, np.concatenate(ids))
            found.append(both)
        yield tuple(found)


def _leaning(size, sign):
    """An owner's records of one label that lean one way or the other, and
    besides point everywhere in one half of the other directions: their sums
    of squares have little in common, and little length beside the sum of
    first order (docs/proofs/audit.md, owners)."""
    share = _LEANING[size]
    lean = math.sqrt(share) * sign * np.eye(size)[0]
    apart = math.sqrt(1 - share) * np.eye(size)
    middle = 1 + (size - 1) // 2
    apart = apart[1:middle] if sign > 0 else apart[middle:]
    return [(9.0 * (lean + w), 0) for w in np.concatenate([apart, -apart])]


def _records(shape, neighbours, reach):
    """Records, what stands in their place or `None`, and what stands in the
    place of those that they reach: `(x, label)`."""
    size = int(np.prod(shape))
    units = 9.0 * np.eye(size)
    # Patches whose moments are orthogonal, constant entry included.
    slanted = np.zeros(size)
    slanted[:2] = -1.0, np.sqrt(80.0)
    # All columns change from end to end, half of them up.
    halves = np.repeat([9.0, -9.0], [size // 2, size - size // 2])
    some = [
        (units[0], units[1]),
        (units[0], slanted),
        (units[0], units[0]),
        (units[0], -units[0]),
        (np.full(size, 9.0), np.full(size, -9.0)),
        (halves, -halves),
    ]
    one = units[0].reshape(shape), 0
    if neighbours == "add_remove" and not reach:
        yield one, None, None
        return
    for (a, b), label in itertools.product(some, (0, 1)):
        if a is b and not label:
            continue
        one, two = (a.reshape(shape), 0), (b.reshape(shape), label)
        yield one, None if neighbours == "add_remove" else two, two


def worst(name, budget, *, neighbours, owners=False, reach=0, **kwargs):
    """The `Differences` of the pair that is farthest apart in all releases.

    Args:
        name, budget, neighbours, reach: see `differences`.
        owners: whether the unit is an owner of several records.
    """
    tried = (
        differences(
            name,
            *pair,
            budget,
            neighbours=neighbours,
            reach=reach,
            **kwargs,
        )
        for pair in pairs(
            name, neighbours=neighbours, owners=owners, reach=reach
        )
    )
    return max(tried, key=lambda found: found.distance)
