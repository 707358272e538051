"""Releases of a `FunctionalNet`'s fit: its expansion, round by round.

Each round uses every record once. It releases the coefficients of the
expansion about the weights that the previous round set.
"""

import dataclasses
from functools import partial

import numpy as np

from keras_fm.core.planned_release import PlannedRelease
from keras_fm.kernel.ledger.ledger_entry import FLOATING_POINT
from keras_fm.kernel.mechanisms import LaplaceMechanism
from keras_fm.papers.functional_net import claims
from keras_fm.papers.functional_net.expansion_descent import ExpansionDescent


def planned_releases(model, reading):
    """The rounds of a model, as `PlannedRelease`s.

    Args:
        model: a `FunctionalNet`.
        reading: a `keras_fm.training.proven_plan.ProvenPlan`.
    """
    reading.check_reach("a FunctionalNet")
    norm = "l2" if reading.ledger.budget.delta > 0 else "l1"
    published = reading.published
    grouped = reading.owners is not None
    query = model.objective(norm, clipped=not published, grouped=grouped)
    descent = ExpansionDescent(model, reading.ridge_factor, published)
    before = {}
    how = {"curvature": "diagonal"} if published else {}

    def read():
        before.setdefault("weights", model.augmented_weights())
        for x, y, rows, *owners in reading.placed():
            model.check_labels(None if y is None else y[rows], len(rows))
            found = model.factors(x, y, **how)
            found = [tuple(part[rows] for part in layer) for layer in found]
            yield found, *owners

    def learn(release, last):
        # After the last round `install` decides whether weights move.
        descent.learn(release, move=not last)
        if last:
            reading.keep(model, release)
            descent.install(reading.ledger.to_json())

    def undo():
        # No other ledger knows the weights between rounds.
        if "weights" in before:
            model.set_augmented_weights(before["weights"])

    reading.on_failure(undo)
    more = {}
    if published:
        if reading.parts:
            raise ValueError(
                "The published FunctionalNet has no private layers below. "
                f"Received: '{reading.parts[0].name}'"
            )
        sizes = [units for _, units in query.shapes_of_layers]
        sensitivity = claims.network_expansion_sensitivity(
            sizes, neighbours=reading.ledger.neighbours
        )
        more["entry"] = _claim
        more["carry_out"] = lambda planned, **given: _published_round(
            model, reading, planned, **given
        )
    names = model.release_names()
    found = []
    for name in names:
        if published:
            more["mechanism"] = LaplaceMechanism(
                sensitivity=sensitivity,
                epsilon=reading.ledger.budget.epsilon * reading.shares[name],
            )
        found.append(
            PlannedRelease(
                name=name,
                query=query,
                read=read,
                learn=partial(learn, last=name == names[-1]),
                **more,
            )
        )
    return found


def _claim(entry):
    """The ledger entry of a round, marked as claimed."""
    epsilon = entry.mechanism["epsilon"]
    scale = entry.mechanism["sensitivity"] / epsilon
    return dataclasses.replace(
        entry,
        guarantee="claimed",
        mechanism={"claimed_epsilon": epsilon, "laplace_scale": scale},
        proof=claims.EXPANSION_REASON,
        noise=FLOATING_POINT,
        notes=(),
    )


def _published_round(model, reading, planned, *, entry, noise, **_):
    """Exact sums, clipped as printed, with Laplace noise of Theorem 6."""
    ledger, query = reading.ledger, planned.query
    ledger.check([entry])
    statistics = query.zero()
    for batch in planned.read():
        statistics = query.accumulate(statistics, *batch)
    sums = query.unpack(query.pack(statistics, "l1"), "l1")
    settings = reading.guarantee.settings_of(
        model, claims.PublishedFunctionalNet
    )
    bound = settings.sum_clip
    # `g / max(1, ||g||^2 / C)`, g the sums of all layers, as printed.
    if bound is not None:
        sums = [v / max(1.0, np.sum(v**2) / bound) for v in sums]
    ledger.charge([entry])
    generator = noise.generator()
    scale = entry.mechanism["laplace_scale"]
    noisy = [v + generator.laplace(0.0, scale, v.shape) for v in sums]
    return reading.release_of(planned, dict(zip(query.names, noisy)))
