"""How a `PrivateEncoder` learns: its moments, or rounds of reconstruction."""

import keras
import numpy as np

from keras_fm.callbacks.step import Step
from keras_fm.objectives import ReconstructionObjective, SecondMomentObjective

# Of the budget, for all encoders under an output layer together.
SHARE = 0.3


def names(layer):
    """What the releases of an encoder are called, in order."""
    if layer.rounds == 1:
        kind = "moments" if layer.source == "moments" else "reconstruction"
        return [f"{layer.name} ({kind})"]
    first = "moments" if layer.source == "moments" else "round 1"
    rest = [f"{layer.name} (round {r})" for r in range(2, layer.rounds + 1)]
    return [f"{layer.name} ({first})", *rest]


def steps(plan, layer, inputs):
    """The releases of one encoder, in order.

    Args:
        plan: the `ProvenPlan`.
        layer: a `PrivateEncoder`.
        inputs: function from a batch of records to what the layer reads.
    """
    moments = SecondMomentObjective(
        num_features=layer.input_dim + 1,
        feature_bound=layer.moment_bound,
        **plan.privacy_unit,
    )
    start, stop = layer.visible_range
    centre, bound = layer.centre, layer.input_bound
    if layer.form == "cross_entropy":
        # Visible units are probabilities: in the cube about 1/2.
        centre, bound = 0.5, (stop - start) ** 0.5 / 2
    decoder = ReconstructionObjective(
        num_features=layer.units + 1,
        num_visible=stop - start,
        feature_bound=layer.code_bound,
        visible_bound=bound,
        centre=centre,
        form=layer.form,
        quadratic_scale=layer.code_bound / bound,
        **plan.privacy_unit,
    )

    def read_moments():
        for x, rows, *owners in plan.unlabelled():
            yield layer.augment(inputs(x)[rows]), None, *owners

    def read_codes():
        for x, rows, *owners in plan.unlabelled():
            found = inputs(x)
            code = keras.ops.convert_to_numpy(layer(found))[rows]
            visible = found[rows, start:stop]
            yield layer.code_features(code), visible, *owners

    def read_tied():
        before = layer.get_weights()
        layer.tie_encoder()
        try:
            yield from read_codes()
        except BaseException:
            # The decoder belongs to the encoder before.
            layer.set_weights(before)
            raise

    def learn_moments(release):
        constant = layer.bias_feature
        count = release.moments(constant)[2]
        mean, directions, variances = release.principal(
            layer.input_dim, constant
        )
        above = int(np.sum(variances > release.noise_edge() / count))
        layer.set_principal(mean, directions, variances, above)

    def learn_decoder(release):
        weights = release.minimise(plan.ridge_factor)[1]
        if release.objective.form == "cross_entropy":
            weights = weights / 4  # values are 1/2 + z/4
        layer.set_decoder(weights, centre)

    found = []
    for index, name in enumerate(names(layer)):
        first = index == 0 and layer.source == "moments"
        random = layer.source == "random"

        def read(index=index, random=random, codes=not first):
            if random and index:
                return read_tied()
            if random:
                layer.reset_encoder()
            return read_codes() if codes else read_moments()

        def learn(release, first=first):
            (learn_moments if first else learn_decoder)(release)
            plan.keep(layer, release)

        found.append(
            Step(
                name=name,
                objective=moments if first else decoder,
                share=plan.shares[name],
                clip=layer.clip,
                read=read,
                learn=learn,
            )
        )
    return found
