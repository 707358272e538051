"""What layers have in common that learn before the output layer does."""

import numpy as np

from keras_fm import domain
from keras_fm.layers.hidden_state import (
    HiddenStateLayer,
    store_ledger,
    stored_ledger,
)


class PretrainedLayer(HiddenStateLayer):
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
        self._ledger_json = None
        # Set when a training step with the perturbed objective is traced.
        self.objective_in_use = False

    # Proven: weights from releases ---------------------------------------

    @property
    def is_released(self):
        """Whether the weights come from a release."""
        return self._ledger_json is not None

    @property
    def ledger_json(self):
        """The ledger of the releases, or `None`."""
        return self._ledger_json

    def mark_released(self, ledger_json):
        """Records the ledger that the weights are functions of."""
        self._ledger_json = ledger_json

    def set_pretraining(self, value):
        """Whether weights that only pre-training uses are trained: they have
        no gradient anywhere else."""
        raise NotImplementedError

    # Published: fixed noise ----------------------------------------------

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

    # Why the claim is not a proof; see `keras_fm.claims`.
    claim_reason: str | None = None

    @property
    def is_perturbed(self):
        """Whether noise (published form) was fixed."""
        return any(self._has_hidden(name) for name in self.noise_shapes)

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
        domain.check_noise(**noise)
        for name, value in noise.items():
            self._set_hidden(name, self._kept_noise(name, np.asarray(value)))

    def noise_of(self, scale, shape, laplace):
        """A draw of `laplace(0, scale, shape)`, or what stands for it."""
        return np.asarray(laplace(0.0, scale, shape), np.float32)

    def _kept_noise(self, name, value):
        """What is kept of a noise: a subclass may drop what has no effect."""
        return value

    # Saving: a release is safe to save, noise is not ---------------------

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store_ledger(store, self._ledger_json)

    def load_own_variables(self, store):
        weights = self.weights
        stored = [key for key in store.keys() if key.isdigit()]
        if len(stored) != len(weights):
            raise ValueError(
                f"Layer '{self.name}' expected {len(weights)} variables, but "
                f"the file holds {len(stored)}."
            )
        ledger = stored_ledger(store)
        for index, weight in enumerate(weights):
            weight.assign(store[str(index)])
        self._ledger_json = ledger
