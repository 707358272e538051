"""Two papers whose layers learn from releases before the output layer does:
their models and records, for the tests that both must pass."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

EPSILON, DELTA = 3.0, 1e-5


def array(x):
    return keras.ops.convert_to_numpy(x)


def compiled(m, optimizer="adam"):
    m.compile(optimizer, fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    return m


def assert_equal(first, second):
    assert len(first) == len(second) > 0
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


def private(data, epsilon=EPSILON, delta=0.0, seed=None, notes=(), **proven):
    # Pure epsilons add up in no time; privacy losses take a while.
    return PrivateModel(
        fm.PrivacyBudget(epsilon, delta),
        data=data,
        guarantee=fm.Proven(**proven),
        notes=notes,
        reproducible_noise=seed,
    )


def planned(p):
    """The entries of a plan that was made."""
    return p._make_plan().entries()


def hidden_of(layer):
    """The noise of a published layer."""
    return {k: array(v) for k, v in layer._hidden.variables.items()}


@dataclasses.dataclass(frozen=True)
class Room:
    """One paper: `build` makes its model, `part` one of its layers."""

    kind: str
    build: Callable
    part: Callable
    # All records and labels, of a number and a seed.
    made: Callable
    number: int
    # What its layers are called in a model, and the model without its output.
    parts: Callable
    view: Callable
    # One layer and two, without others between these and the output.
    one: Mapping
    two: Mapping
    # The releases of a layer, as a plan has them.
    uses: str
    published: Mapping
    lot: int | str = "data"
    # Layers above one of its own, to an output layer.
    body: tuple = ()

    def records(self, n=None, seed=0):
        x, y = self.made(n or self.number, seed)
        return x.copy(), y.copy()

    def model(self, units=3, optimizer="adam", **kwargs):
        keras.utils.set_random_seed(1)
        m = self.build(units, **kwargs)
        return compiled(m, optimizer) if units else m

    def by_hand(self, part, body=(), units=3):
        """A layer and an output layer in an ordinary sequential model."""
        keras.utils.set_random_seed(1)
        shape = self.records(1)[0].shape[1:]
        above = [make() for make in self.body]
        top = [fm.layers.NormalizationLayer()]
        top.append(fm.layers.PrivateDense(units, name="output"))
        return compiled(
            keras.Sequential([keras.Input(shape), part, *body, *above, *top])
        )

    def fit(self, m, data, p, epochs=1, **kwargs):
        """One fit: of the model, or of its parts if it has no labels."""
        x, y = data
        if getattr(m, "_arguments", {}).get("units", 3) is None:
            return m.pretrain(x, p)
        kwargs = {"batch_size": self.number // 2, "verbose": 0} | kwargs
        return m.fit(x, y, epochs=epochs, callbacks=[p], **kwargs)

    def refused(self, match, m, data=None, fitted_on=None, **kwargs):
        """A proven fit, before anything is charged."""
        p = private(self.records() if data is None else data, **kwargs)
        with pytest.raises(ValueError, match=match):
            self.fit(m, fitted_on or self.records(), p)
        assert not p.ledger.entries, "something was charged"
        for layer in m._flatten_layers():
            assert not getattr(layer, "is_released", False)

    def fitted(self, epsilon=EPSILON, callback=None, **kwargs):
        data = self.records()
        m, p = self.model(**kwargs), private(data, epsilon, **(callback or {}))
        self.fit(m, data, p)
        return m, p

    def published_model(self, **kwargs):
        return self.model(**{**self.published, **kwargs})

    def published_private(self, m, data, epsilon=2.0, seed=3, **fields):
        promise = m.guarantee(**{"lot": self.lot} | fields)
        return PrivateModel(
            epsilon, 0.0, data=data, guarantee=promise, reproducible_noise=seed
        )

    def train(self, m, data, p, pretrain=True, fit=True):
        """A published fit."""
        size = {} if self.lot == "data" else {"batch_size": self.lot}
        if pretrain:
            m.pretrain(data[0], p, epochs=1, **size)
        if fit:
            m.fit(*data, callbacks=[p], verbose=0, **size)


@functools.cache
def _columns(n, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.uniform(0, 0.3, size=(n, 6)).astype("float32")
    x[np.arange(n), y] += 0.7
    x[:, 3] = x[:, 0]
    return x, y


@functools.cache
def _bars(n, seed, side=6):
    """Horizontal, vertical and diagonal bars on a noisy ground."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.uniform(0, 0.2, size=(n, side, side, 1)).astype("float32")
    steps = np.arange(side)
    for image, label in zip(x, y):
        at = rng.integers(side)
        if label == 0:
            image[at] += 0.8
        elif label == 1:
            image[:, at] += 0.8
        else:
            image[steps, (steps + at) % side] += 0.8
    return x, y


def _autoencoder(units, hidden=(4,), **kwargs):
    if kwargs.get("guarantee", "proven") == "proven":
        kwargs = {"input_bound": 1.5} | kwargs
    return fm.models.DeepPrivateAutoencoder((6,), hidden, units, **kwargs)


def _encoder(units=4, **kwargs):
    kwargs = {"input_bound": 1.5, "name": "part"} | kwargs
    return fm.layers.PrivateEncoder(units, **kwargs)


def _cdbn(units, **kwargs):
    kwargs = {"maps": ((5, 3), (4, 2)), "dense": 6} | kwargs
    return fm.models.PrivateCDBN((6, 6, 1), units, **kwargs)


def _crbm(filters=4, kernel=3, **kwargs):
    return fm.layers.ChebyshevCRBM(
        filters, kernel, **{"gain": 5.0, "name": "part"} | kwargs
    )


DPA = Room(
    kind="PrivateEncoder",
    build=_autoencoder,
    part=_encoder,
    made=_columns,
    number=300,
    parts=lambda m: m.encoders,
    view=lambda m: m.autoencoder(),
    one={},
    two={"hidden": (4, 3)},
    uses="moments",
    published={"hidden": (5, 4), "guarantee": "published"},
)
PCDBN = Room(
    kind="ChebyshevCRBM",
    build=_cdbn,
    part=_crbm,
    made=_bars,
    number=120,
    parts=lambda m: m.rbms,
    view=lambda m: m.energy_model(),
    one={"maps": ((5, 3),), "dense": 0},
    two={"dense": 0},
    uses="patch moments",
    published={"guarantee": "published"},
    lot=60,
    body=(keras.layers.Flatten,),
)
ROOMS = {"dpa": DPA, "pcdbn": PCDBN}
