"""Small proven models, and pairs of data sets that their releases tell apart.

Six numbers or nine pixels are enough: a sensitivity does not depend on how
many there are, and the noise of few is drawn often. Of the pairs that are
tried, `worst` keeps the one that is farthest apart in all releases together.
"""

import itertools

import keras
import numpy as np

import keras_fm as fm
from keras_fm.lab.audits import whole_fits

_WIDTH, _CLASSES = 6, 3
_PICTURE = (3, 3, 1)
# Records that all data sets have, and those of an owner.
_BASE, _OWNED = 20, 3


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


MODELS = {
    "one read": _stack,
    "three reads of Rounds": lambda: _stack(rounds=3),
    "DPPCA and head": _dp_pca,
    "PrivateNormalization and head": _normalization,
    "AdLM, three releases": _adaptive,
    "dPA, encoder and head": _auto_encoder,
    "pCDBN, patches and head": _convolutional,
    "FunctionalNet, three rounds": _functional,
}
# Which have a sum for each owner, and whose records may reach others'.
OWNED = (
    "one read",
    "three reads of Rounds",
    "AdLM, three releases",
    "dPA, encoder and head",
    "pCDBN, patches and head",
    "FunctionalNet, three rounds",
)
REACHING = ("one read", "dPA, encoder and head", "pCDBN, patches and head")


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
            (x, y),
            fm.Proven(
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
    picture = name.startswith("pCDBN")
    shape = _PICTURE if picture else (_WIDTH,)
    classes = 2 if name.startswith("FunctionalNet") else _CLASSES
    rng = np.random.default_rng(0)
    x = rng.random((_BASE, *shape))
    y = np.arange(_BASE) % classes
    each = _OWNED if owners else 1
    for record, other, reached in _records(shape, neighbours, reach):
        found = []
        for own, theirs in ((record, record), (other, reached)):
            # The unit's own records, and others' that have some of its data.
            rows = [own] * each * (own is not None) + [theirs] * reach
            both = (
                np.concatenate([x, *(r[0][None] for r in rows)]),
                np.concatenate([y, [r[1] for r in rows]]).astype(int),
            )
            both = (both[0].astype("float32"), both[1])
            if classes == 2:
                both = (both[0], both[1][:, None])
            if owners:
                ids = [np.arange(_BASE) // 2, np.full(len(rows), _BASE)]
                both = (*both, np.concatenate(ids))
            found.append(both)
        yield tuple(found)


def _records(shape, neighbours, reach):
    """Records, what stands in their place or `None`, and what stands in the
    place of those that they reach: `(x, label)`."""
    size = int(np.prod(shape))
    units = 9.0 * np.eye(size)
    # Patches whose moments are orthogonal, constant entry included.
    slanted = np.zeros(size)
    slanted[:2] = -1.0, np.sqrt(80.0)
    some = [
        (units[0], units[1]),
        (units[0], slanted),
        (units[0], units[0]),
        (units[0], -units[0]),
        (np.full(size, 9.0), np.full(size, -9.0)),
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
