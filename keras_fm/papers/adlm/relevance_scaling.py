import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_fm.core.planned_release import PlannedRelease
from keras_fm.core.private_part import ReleasedLayer
from keras_fm.kernel import checks
from keras_fm.papers.adlm.relevance import layer_wise, pictures
from keras_fm.papers.adlm.relevance_query import RelevanceQuery


@keras.saving.register_keras_serializable(package="keras_fm")
class RelevanceScaling(ReleasedLayer):
    """Scales every feature by its released relevance.

    The proven form of AdLM's "less noise where the relevance is larger". A
    release (a noisy sum over the records) has the same noise in every
    coordinate. A feature that takes more of a record's unit norm is therefore
    measured more precisely. The layer multiplies feature j by

        (1 + s (beta_j - 1))^power,   beta_j = d R_j / sum R,

    with R the noisy average relevance. s in [0, 1] estimates, from the first
    model's release, how much of that model is signal and not noise (1 with
    `shrink=False`). `keras_fm.callbacks.PrivateModel` releases a first model
    and its relevance at this layer's input, and sets the scales. It then
    releases the model that is kept. All three are charged to the budget.
    Until the scales are set, and without the callback, they are 1. Put
    `NormalizationLayer` after the layer: the scaled record must be in the
    unit ball again.

    Args:
        power: number >= 0; 0 changes nothing.
        shrink: whether the shares beta are moved towards 1 where the first
            model is mostly noise, so that chance does not decide them.

    Input and output shape: `(batch, ...)`, of a known record shape.

    Raises:
        ValueError: if an argument is outside its range.

    Example:

    >>> layer = RelevanceScaling()
    >>> y = layer(np.ones((1, 2)))
    >>> layer.set_shares(np.array([1.5, 0.5]))
    """

    relevance_rule = "same_entry"

    def __init__(
        self, power: float = 1.0, shrink: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.power = checks.nonnegative("power", power)
        self.shrink = bool(shrink)
        # The released shares in one record's shape; `None` before a release.
        self.relevance = None

    def build(self, input_shape):
        self.scale = self.add_weight(
            name="scale",
            shape=input_shape[1:],
            initializer="ones",
            trainable=False,
        )

    def set_shares(self, shares, signal_share=1.0):
        """Sets the scales from released relevance shares.

        Args:
            shares: one record's shape, all > 0, mean 1.
            signal_share: s in [0, 1]; not used with `shrink=False`.
        """
        shares = np.asarray(shares, np.float64)
        if self.shrink:
            shares = 1 + signal_share * (shares - 1)
        self.scale.assign(shares**self.power)

    def reset(self):
        """Sets all scales back to 1."""
        self.scale.assign(np.ones(self.scale.shape))

    # Its releases, before that of the output layer -------------------------

    def release_names(self):
        return [f"{self.name} (first model)", f"{self.name} (relevance)"]

    def default_shares(self, alike):
        # The model that is kept gets the rest, 0.7.
        return [0.2, 0.1]

    def public_fact(self):
        return f"scales of layer '{self.name}': from the released relevance"

    def planned_releases(self, reading):
        """A first model of the output layer, and its relevance here."""
        first, second = self.release_names()
        head, ball = reading.top, "l1"
        if reading.ledger.budget.delta > 0:
            ball = "l2"
        if head is None or reading.parts != [self]:
            raise ValueError(
                "RelevanceScaling cannot be combined with PrivateEncoder, "
                "ChebyshevCRBM or DPPCA layers, and needs a PrivateDense on "
                "top of it."
            )
        here = f"layer '{self.name}'"
        reading.check_reach(here)
        if head.rounds is not None:
            raise ValueError(
                f"`rounds` of layer '{head.name}' and {here} cannot be "
                "combined. Leave out one."
            )
        state = {}

        def read_first():
            self.reset()
            return reading.labelled(head)

        def learn_first(release):
            state["share"] = release.signal_share()
            state["weights"] = head.get_weights()
            minimiser = release.minimise(reading.ridge_factor)[1]
            head.set_augmented_weights(minimiser)

        def read_relevance():
            try:
                every = reading.from_above(self, layer_wise)
                for found, rows, *owners in every:
                    yield found.reshape(len(found), -1)[rows], *owners
            finally:
                head.set_weights(state["weights"])

        def learn_relevance(release):
            self.relevance = release.shares().reshape(self.scale.shape)
            self.set_shares(self.relevance, state["share"])
            reading.keep(self, release)

        return [
            PlannedRelease(
                name=first,
                query=head.objective(**reading.privacy_unit),
                clip=head.clip,
                read=read_first,
                learn=learn_first,
            ),
            PlannedRelease(
                name=second,
                query=RelevanceQuery(
                    num_features=math.prod(self.scale.shape),
                    ball=ball,
                    grouped=reading.owners is not None,
                ),
                clip=head.clip,
                read=read_relevance,
                learn=learn_relevance,
            ),
        ]

    def pictures(self):
        return pictures(self.relevance)

    def call(self, inputs):
        return inputs * ops.cast(self.scale, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape
