"""How a `ChebyshevCRBM` learns: the moments of its patches, once."""

import numpy as np

from keras_fm import filters
from keras_fm.callbacks.step import Step
from keras_fm.objectives import PatchMomentObjective

# Of the budget, for each layer: its few moments are averages over many
# patches.
SHARE = 0.05


def names(layer):
    """What the release of the layer is called."""
    return [f"{layer.name} (patch moments)"]


def steps(plan, layer, inputs):
    """The one release of a convolutional RBM.

    Args:
        plan: the `ProvenPlan`.
        layer: a `ChebyshevCRBM`.
        inputs: function from a batch of records to what the layer reads.

    Raises:
        ValueError: if the layer's form cannot be proven.
    """
    layer.check_proven()
    (name,) = names(layer)
    objective = PatchMomentObjective(
        num_features=layer.patch_size + 1,
        order=layer.moment_order,
        feature_bound=layer.moment_bound,
        constant=layer.constant,
        **plan.privacy_unit,
    )

    def read():
        for x, rows, *owners in plan.unlabelled():
            found, first = inputs(x)[rows], 0
            if owners:
                # An owner's records must come in one piece.
                parts = layer.patches(found, chunks=False)
            else:
                parts = layer.patches(found)
            for part in parts:
                yield part, *(o[first : first + len(part)] for o in owners)
                first += len(part)

    def learn(release):
        layer.set_filters(*filters.learn(release, **layer.learning))
        # Of all weights nothing may be left that an earlier fit learned.
        layer.visible_bias.assign(np.zeros(layer.visible_bias.shape))
        plan.keep(layer, release)

    return [
        Step(
            name=name,
            objective=objective,
            share=plan.shares[name],
            clip=True,
            read=read,
            learn=learn,
        )
    ]
