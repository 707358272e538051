"""Whole trainings by Adam, seen by the moves of `still_weights`.

Adam divides by the size of gradients, so what rounding (float32) leaves of a
gradient of zero moves weights, too: here a record is told by how far, not by
whether. The networks, rates and numbers of steps are those of the table of
trainings in docs/results/audit.md.
"""

import numpy as np

from keras_fm.lab.audits import affine_networks, controls, papers, still_weights
from keras_fm.lab.audits.pictures import halved
from keras_fm.lab.audits.subject import Subject
from keras_fm.papers.adlm import recipe as adlm

_CONTROL_STEPS = 100


def lit_columns(
    normalization, epsilon, records, classes, *, columns, seed, epochs=1080
):
    """One training of ILM with a canary for every column that is added.

    Each of `columns` records has a column of its own, 0 or 1 by a coin; in
    all others it is 0. A column that is 0 throughout moves along the bias
    (`"none"`), or by rounding alone (`"minmax"`).

    Args:
        normalization: `"none"` or `"minmax"`.
        epsilon: claimed.
        records: `(x, y)`, digits.
        classes: int.
        columns: int, canaries.
        seed: int, of canaries and coins.
        epochs: int, full batches.

    Returns:
        scores and coins, `(columns,)`: ranks of how far a column moved, from
        -1 to 1.
    """
    coins, x = _with_columns(records[0], columns, seed)
    subject = Subject(model="ilm", normalization=normalization, epsilon=epsilon)
    model = affine_networks.build(subject, x.shape[1:], classes)
    training = subject.training(x).but(epochs=epochs)
    before = [np.array(w) for w in model.trainable_weights[:2]]
    adlm.perturbed(training, model, (x, records[1]))
    rows, bias = (
        np.array(w) - b for w, b in zip(model.trainable_weights[:2], before)
    )
    rows = rows[-columns:]
    if normalization == "none":
        # Adam takes the size of one noise for all steps out.
        far = np.abs(np.abs(rows) - np.abs(bias)).max(axis=1)
    else:
        far = np.linalg.norm(rows, axis=1)
    return _ranks(far), coins


def control_columns(epsilon, records, classes, *, columns, seed):
    """The same of a `GradientNet`, proven at (epsilon, 1e-5) under
    add_remove."""
    coins, x = _with_columns(records[0], columns, seed)
    moves = still_weights.control_moves(
        (x, records[1]), classes, epsilon, steps=_CONTROL_STEPS, optimizer="sgd"
    )
    rows = moves[0][-columns:]
    return _ranks(np.linalg.norm(rows, axis=1)), coins


def _with_columns(x, columns, seed):
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, columns)
    added = np.zeros((len(x), columns), x.dtype)
    added[rng.permutation(len(x))[:columns], np.arange(columns)] = coins
    return coins, np.concatenate([x, added], axis=1)


def _ranks(far):
    return 2 * np.argsort(np.argsort(far)) / (len(far) - 1) - 1


def alike(epsilon, records, classes, *, there):
    """How far the first layer of AdLM, the authors' code, moves on records
    that are alike, or of which one differs.

    Args are those of `still_weights.score`.

    Returns:
        float, the median over its weights.
    """
    subject = Subject(model="adlm", epsilon=epsilon, epochs=1500)
    pair = still_weights.alike(halved(records[0]), records[1])
    data = pair[int(there)]
    architecture = {"hidden": subject.hidden, "form": "code"}
    twin = adlm.network(data, classes, unprotected=True, **architecture)
    controls.learn(subject, twin, *data, epochs=20)
    model = adlm.network(data, classes, **architecture)
    layer = model.get_layer("perturbed")
    before = np.array(layer.kernel)
    training = subject.training(data[0])
    guarantee = model.guarantee(
        lot=len(data[0]), relevance_of=twin, shares=papers.ADLM_SHARES
    )
    training.fit(model, data, training.claimed(data, guarantee))
    return float(np.median(np.abs(np.array(layer.kernel) - before)))
