"""How a `DPPCA` layer learns: the second moment of its inputs, once."""

from keras_fm.callbacks.step import Step
from keras_fm.objectives import SecondMomentObjective

# Of the budget, for each layer.
SHARE = 0.1


def names(layer):
    """What the release of the layer is called."""
    return [f"{layer.name} (second moment)"]


def steps(plan, layer, inputs):
    """The one release of a DPPCA layer.

    Args:
        plan: the `ProvenPlan`.
        layer: a `DPPCA`.
        inputs: function from a batch of records to what the layer reads.
    """
    (name,) = names(layer)
    objective = SecondMomentObjective(
        num_features=layer.num_features,
        feature_bound=layer.moment_bound,
        **plan.privacy_unit,
    )

    def read():
        for x, rows, *owners in plan.unlabelled():
            yield layer.augment(inputs(x)[rows]), None, *owners

    def learn(release):
        layer.set_components(
            *release.principal(layer.units, layer.constant, layer.ridge_factor)
        )
        plan.keep(layer, release)

    return [
        Step(
            name=name,
            objective=objective,
            share=plan.shares[name],
            clip=layer.clip,
            read=read,
            learn=learn,
        )
    ]
