"""Weights that do not move unless one record differs.

The noise of AdLM's and ILM's first layer is one vector that all records of a
step share. Whatever its size, there are moves of the weights that it cannot
make and a record can (docs/proofs/audit.md, proposition 7):

* `along_bias` (noise drawn once, plain descent): the row of an input that no
  record uses moves along the bias.
* `row` (what follows does not see a shift that all records share): that row
  stays.
* `below` (a batch normalisation before the output): if all records are alike
  no weight below it moves.

One record that uses the input, or is unlike the others, makes them move. The
two data sets are neighbours under replace_one, and the starting weights are
public. Sums are float64, so that rounding stays far below a record.
"""

import collections.abc
import contextlib
import dataclasses
import functools

import keras
import numpy as np

from keras_fm import models
from keras_fm.callbacks import PrivateModel
from keras_fm.core.guarantee import Proven, Published
from keras_fm.core.unprotected_twin import unprotected_twin
from keras_fm.lab.audits import affine_networks, papers
from keras_fm.lab.audits.pictures import halved
from keras_fm.lab.audits.subject import Subject
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.papers.adlm import recipe as adlm
from keras_fm.papers.adlm.claims import PublishedAdLM

# A pixel that is white in all 1,437 digits.
PIXEL = 0
_HIDDEN = 64
_STEPS = 5
_TINY = 1e-300


# Moves -----------------------------------------------------------------------


def along_bias(moves):
    """Part of the pixel's row that is not along the bias, over the largest
    row."""
    rows, bias = moves[:2]
    along = (rows[PIXEL] @ bias) / max(bias @ bias, _TINY) * bias
    rest = np.linalg.norm(rows[PIXEL] - along)
    return float(rest / max(np.linalg.norm(rows, axis=1).max(), _TINY))


def row(moves):
    """The pixel's row over the largest row."""
    lengths = np.linalg.norm(moves[0], axis=1)
    return float(lengths[PIXEL] / max(lengths.max(), _TINY))


def below(moves):
    """Largest move of the layer that carries the noise over the largest."""
    most = max(np.abs(move).max() for move in moves)
    return float(np.abs(moves[0]).max() / max(most, _TINY))


# Pairs -----------------------------------------------------------------------


def lit(x, y):
    """The records, and the same with the pixel black in one of them."""
    other = x.copy()
    other[0, PIXEL] = 1.0
    return (x, y), (other, y)


def alike(x, y):
    """Copies of one record, and the same with another in the first place."""
    same = np.repeat(x[1:2], len(x), axis=0), np.repeat(y[1:2], len(y))
    other = [part.copy() for part in same]
    other[0][0], other[1][0] = x[0], y[0]
    return same, tuple(other)


# Forms -----------------------------------------------------------------------


def _ilm(x, classes, **kwargs):
    return affine_networks.build(Subject(**kwargs), x.shape[1:], classes)


def _adlm(x, classes, **kwargs):
    return adlm.network((x, None), classes, **kwargs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """A published form and the move that shows a record.

    Attributes:
        network: function of records and classes to a model.
        records: function of digits to what the model reads.
        pair: function of records to two data sets, without and with.
        seen: one of the moves.
        shares, settings: of the claim.
        rate: of plain descent.
        over: a score above it says that the record is there.
    """

    network: collections.abc.Callable
    records: collections.abc.Callable = np.asarray
    pair: collections.abc.Callable = lit
    seen: collections.abc.Callable
    shares: tuple | None = None
    settings: PublishedAdLM | None = None
    rate: float = 1e-6
    over: float = 1e-10


FORMS = {
    "ILM, no normalisation": Form(
        network=functools.partial(_ilm, normalization="none"),
        seen=along_bias,
    ),
    "ILM, min-max normalisation": Form(
        network=functools.partial(_ilm, normalization="minmax"), seen=row
    ),
    "the same, noise drawn again at every step": Form(
        network=functools.partial(_ilm, normalization="minmax"),
        settings=PublishedAdLM(noise="per_step"),
        seen=row,
    ),
    "AdLM, as printed": Form(
        network=functools.partial(_adlm, hidden=_HIDDEN, form="paper"),
        seen=along_bias,
    ),
    "AdLM, the authors' code, dense": Form(
        network=functools.partial(_adlm, hidden=_HIDDEN, form="code"),
        records=halved,
        pair=alike,
        seen=below,
        shares=papers.ADLM_SHARES,
    ),
    "AdLM, the authors' code, convolutions": Form(
        network=functools.partial(
            _adlm, architecture="mnist", form="code", width=0.25
        ),
        records=lambda x: x[:100].reshape(-1, 8, 8, 1),
        pair=alike,
        seen=below,
    ),
}


def score(name, epsilon, records, classes, *, there):
    """What the trained weights of one fit show.

    Args:
        name: one of `FORMS`.
        epsilon: claimed.
        records: `(x, y)`, digits.
        classes: int.
        there: whether the record that differs is among them.

    Returns:
        float; without it 0 but for rounding.
    """
    form = FORMS[name]
    x = form.records(records[0])
    data = form.pair(x, records[1][: len(x)])[int(there)]
    with _float64():
        model = form.network(data[0], classes)
        guarantee = Published(
            lot=len(x), shares=form.shares, settings=form.settings
        )
        if hasattr(model, "guarantee"):
            given = {} if form.shares is None else {"shares": form.shares}
            twin = _trained_twin(model, data)
            guarantee = model.guarantee(lot=len(x), relevance_of=twin, **given)
        private = PrivateModel(epsilon, 0.0, data=data, guarantee=guarantee)
        return form.seen(_moves(model, form.rate, data, private))


def _trained_twin(model, data):
    """The network whose relevance decides how the noise is spread."""
    twin = unprotected_twin(model)
    twin.compile(
        keras.optimizers.SGD(1e-3), TaylorCrossEntropy(), run_eagerly=True
    )
    twin.fit(*data, batch_size=len(data[0]), verbose=0)
    return twin


def _moves(model, rate, data, private):
    """What a fit adds to every weight, those of the first layer first."""
    before = [np.array(w) for w in model.trainable_weights]
    model.compile(
        keras.optimizers.SGD(rate), TaylorCrossEntropy(), run_eagerly=True
    )
    model.fit(
        *data,
        batch_size=len(data[0]),
        epochs=_STEPS,
        shuffle=False,
        callbacks=[private],
        verbose=0,
    )
    return [np.array(w) - b for w, b in zip(model.trainable_weights, before)]


@contextlib.contextmanager
def _float64():
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


# Control ---------------------------------------------------------------------


def control_moves(data, classes, epsilon, *, steps, **compiling):
    """What a fit of a `GradientNet`, as wide as the first layers above and
    proven at (epsilon, 1e-5) under add_remove, adds to every weight: there is
    noise on every sum of gradients."""
    x, y = data
    layers = [
        keras.layers.Dense(_HIDDEN, activation="relu"),
        keras.layers.Dense(classes),
    ]
    model = models.GradientNet(x.shape[1:], layers, clip=1.0)
    before = [np.array(w) for w in model.trainable_weights]
    model.compile(**compiling)
    private = PrivateModel(epsilon=epsilon, delta=1e-5, guarantee=Proven())
    model.fit(
        x,
        y,
        batch_size=len(x) // 4,
        steps_per_epoch=steps,
        callbacks=[private],
        verbose=0,
    )
    return [np.array(w) - b for w, b in zip(model.trainable_weights, before)]


def control_score(name, epsilon, records, classes, *, there):
    """The same move of the control.

    Args and returns are those of `score`.
    """
    form = FORMS[name]
    x = records[0].reshape(len(records[0]), -1)
    moves = control_moves(
        form.pair(x, records[1])[int(there)],
        classes,
        epsilon,
        steps=_STEPS,
        optimizer=keras.optimizers.SGD(0.1),
        run_eagerly=True,
    )
    return form.seen([move.astype(np.float64) for move in moves])
