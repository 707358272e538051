"""What layers have in common that learn before the output layer does."""

import numpy as np

from keras_fm.kernel import checks
from keras_fm.parts import variable_values
from keras_fm.parts.private_part import ReleasedLayer
from keras_fm.parts.step import Claim


class PretrainedLayer(ReleasedLayer):
    """A layer that is learned from records without labels.

    Proven (`trainable=False`): `keras_fm.callbacks.PrivateModel` makes its
    weights from a release; the ledger of that release is saved with them.
    Published (`trainable=True`): records drive every step of a pre-training
    fit, under noise that is fixed before it.

    A subclass has `noise_shapes`, `claimed_sensitivity`, `claim_reads` and
    `claim_reason` for the published form.
    """

    def __init__(self, trainable=False, **kwargs):
        super().__init__(trainable=trainable, **kwargs)
        # Set when a training step with the perturbed objective is traced.
        self.objective_in_use = False

    def set_pretraining(self, value):
        """Whether weights that only pre-training uses are trained: they have
        no gradient anywhere else."""
        raise NotImplementedError

    def enter_training(self):
        if self._released is not None and self.trainable_weights:
            variable_values.give_back(self._trainer())
            raise ValueError(
                f"{type(self).__name__} '{self.name}' has its weights from a "
                "release, and training them would use the records "
                "unprotected. Set `trainable = False`; "
                f"`{type(self).__name__}(..., unprotected=True)` makes a "
                "non-private twin."
            )
        super().enter_training()

    # Published: fixed noise ----------------------------------------------

    # What pre-trains the layer in a model of one's own: the name of a view
    # in `keras_fm.models`, and what it is compiled with.
    _view: str | None = None
    _compiled_with = '"adam"'

    def how_to_pretrain(self, model=None):
        """Code that pre-trains the layer under its noise, for errors.

        Args:
            model: the model that it is in, if that is known.
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
        return (
            "`model.pretrain(x, private)` of the paper's model, and in a "
            f"model of yours {view}"
        )

    def _how_it_trains(self):
        if not self.is_published:
            return super()._how_it_trains()
        return (
            "A layer with `trainable=True` is trained in the published form, "
            "whose epsilon is claimed by the paper and not proven, with "
            "`private = keras_fm.callbacks.PrivateModel(epsilon=1.0, delta=0, "
            "data=(x, y), "
            "guarantee=keras_fm.Published(lot=lot))`: first "
            f"{self.how_to_pretrain()}, then fit the model with "
            "`callbacks=[private]`. For a proof build it with "
            "`trainable=False`: it then learns from a release."
        )

    @property
    def is_published(self):
        """Whether the layer is of the published form: trained on records."""
        return self.trainable

    @property
    def noise_shapes(self):
        """Dict from the name of a noise to its shape."""
        raise NotImplementedError

    def claimed_sensitivity(self, neighbours):
        """The paper's Delta; subclasses say which."""
        raise NotImplementedError

    @property
    def claim_reads(self):
        """What the published form reads and perturbs, in words."""
        raise NotImplementedError

    # Why the claim is not a proof; see `claims`.
    claim_reason: str | None = None

    @property
    def is_perturbed(self):
        """Whether noise (published form) was fixed."""
        return any(self._has_hidden(name) for name in self.noise_shapes)

    def check_published(self):
        """Refuses a layer of the proven form.

        Raises:
            ValueError: saying how a published one is made.
        """
        if self.is_released or not self.is_published:
            raise ValueError(
                f"{type(self).__name__} '{self.name}' is of the proven form, "
                "or was pre-trained without PrivateModel: give PrivateModel "
                "`guarantee=keras_fm.Proven()`. A published one, whose "
                "epsilon is claimed and not proven, is trained on the records "
                'under noise: build a new model with guarantee="published", '
                "or the layer with `trainable=True` (and, for a "
                'PrivateEncoder, `tied=True, form="cross_entropy"`), and '
                f"pre-train it with {self.how_to_pretrain()}."
            )

    def claims(self, publishing):
        """What `guarantee="published"` is charged for pre-training."""
        self.check_published()

        def fix(scale, laplace):
            noise = {
                name: self.noise_of(scale, shape, laplace)
                for name, shape in self.noise_shapes.items()
            }
            self.fix_noise(**noise)

        return [
            Claim(
                name=self.name,
                sensitivity=self.claimed_sensitivity(publishing.neighbours),
                reads=self.claim_reads,
                reason=self.claim_reason,
                fix=fix,
            )
        ]

    def fix_noise(self, **noise):
        """Fixes noise that is already divided by the number of records.

        Args:
            **noise: one array for each of `noise_shapes`.

        Raises:
            ValueError: if the layer was perturbed or released before, or a
                shape is wrong, or a number is not finite.
        """
        if self.is_perturbed or self.is_released:
            raise ValueError(
                f"The objective of layer '{self.name}' is perturbed already."
            )
        given = {name: np.shape(value) for name, value in noise.items()}
        if given != self.noise_shapes:
            raise ValueError(
                f"Noise must have shapes {self.noise_shapes}. Received: {given}"
            )
        checks.all_finite(**noise)
        for name, value in noise.items():
            self._set_hidden(name, self._kept_noise(name, np.asarray(value)))

    def noise_of(self, scale, shape, laplace):
        """A draw of `laplace(scale, shape)`, or what stands for it."""
        return np.asarray(laplace(scale, shape), np.float32)

    def _kept_noise(self, name, value):
        """What is kept of a noise: a subclass may drop what has no effect."""
        return value
