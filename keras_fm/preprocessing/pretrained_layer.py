"""The common part of layers that learn before the output layer."""

import numpy as np

from keras_fm.core.planned_release import PublishedNoise
from keras_fm.kernel import checks
from keras_fm.preprocessing.proven_map import ProvenMap


class PretrainedLayer(ProvenMap):
    """A layer that learns from records without labels, in either form.

    A subclass describes the noise of its published form by `noise_shapes`,
    `claimed_sensitivity`, `claim_uses` and `claim_reason`.

    Args:
        guarantee: `"proven"`: the weights are functions of a release; or
            `"published"`: they train on the records, with fixed noise in the
            objective.
    """

    def __init__(self, guarantee="proven", trainable=None, **kwargs):
        self.guarantee = checks.either(
            "guarantee", guarantee, ("proven", "published")
        )
        if trainable is None:
            trainable = guarantee == "published"
        super().__init__(trainable=trainable, **kwargs)

    def set_pretraining(self, value):
        """Whether to train the weights that only pre-training uses: they have
        no gradient elsewhere."""
        raise NotImplementedError

    # Published: fixed noise ----------------------------------------------

    # Pre-trains the layer in your own model: the name of a view in
    # `keras_fm.models`, and its arguments of `compile`.
    _view: str | None = None
    _compiled_with = '"adam"'

    def how_to_pretrain(self, model=None):
        """Code that pre-trains the layer with its noise, for error messages.

        Args:
            model: the model that holds the layer, if known.
        """
        if hasattr(model, "pretrain"):
            return "`model.pretrain(x, private)`"
        view = (
            f"`layer = model.get_layer({self.name!r}); "
            "layer.set_pretraining(True); "
            f"stage = keras_fm.models.{self._view}("
            "keras.Model(model.inputs[0], layer.output), [layer], "
            f"part_of=model); stage.compile({self._compiled_with}); "
            "stage.fit(x, batch_size=lot, callbacks=[private]); "
            "layer.set_pretraining(False)`"
        )
        if model is not None:
            return view
        return f"`model.pretrain(x, private)`, in a model of yours {view}"

    def _how_it_trains(self):
        if not self.is_published:
            return super()._how_it_trains()
        return (
            'A layer with `guarantee="published"` is trained in that form, '
            "whose epsilon is claimed by the paper and not proven, with "
            "`private = keras_fm.callbacks.PrivateModel(epsilon=1.0, delta=0, "
            "data=(x, y), "
            "guarantee=keras_fm.Published(lot=lot))`: first "
            f"{self.how_to_pretrain()}, then fit the model with "
            "`callbacks=[private]`. For a proof build it with "
            '`guarantee="proven"`: it then learns from a release.'
        )

    @property
    def is_published(self):
        return self.guarantee == "published"

    def noise_shapes(self, settings):
        """Dict from the name of a noise to its shape."""
        raise NotImplementedError

    def claimed_sensitivity(self, neighbours, settings=None):
        """The paper's Delta, defined by subclasses."""
        raise NotImplementedError

    def claim_uses(self, settings):
        """What the published form uses and perturbs, in words."""
        raise NotImplementedError

    # Why the claim is not a proof, and class of the paper's settings.
    claim_reason: str | None = None
    settings_class: type

    def check_published(self):
        if self.is_released or not self.is_published:
            raise ValueError(
                f"{type(self).__name__} '{self.name}' is of the proven form, "
                "or was pre-trained without PrivateModel: give PrivateModel "
                "`guarantee=keras_fm.Proven()`. A published one, whose "
                "epsilon is claimed and not proven, is trained on the records "
                "under noise: build a new model or layer with "
                f'guarantee="published", and pre-train it with '
                f"{self.how_to_pretrain()}."
            )

    def claims(self, publishing):
        """The ledger's charge for pre-training with `guarantee="published"`."""
        self.check_published()
        settings = publishing.settings(self.settings_class)
        per_step = getattr(settings, "noise_per_step", False)
        shapes = self.noise_shapes(settings)

        def fix(scale, laplace):
            self.fix_noise(
                per_step,
                **{
                    name: np.full(shape, scale)
                    if per_step
                    else self.kept_noise(name, laplace(scale, shape))
                    for name, shape in shapes.items()
                },
            )

        return [
            PublishedNoise(
                name=self.name,
                sensitivity=self.claimed_sensitivity(
                    publishing.neighbours, settings
                ),
                uses=self.claim_uses(settings),
                reason=self.claim_reason,
                fix=fix,
            )
        ]

    def kept_noise(self, name, value):
        """The kept part of a noise: a subclass may drop parts without
        effect."""
        return value
