"""A layer below the head that learns from a proven release."""

from keras_fm.core import variable_values
from keras_fm.core.private_part import ReleasedLayer


class ProvenMap(ReleasedLayer):
    """A layer that learns from records without labels, by a release.

    A subclass defines its releases by `release_names`, `default_shares` and
    `steps`.
    """

    def __init__(self, trainable=False, **kwargs):
        super().__init__(trainable=trainable, **kwargs)

    # Whether the layer is of the published form, trained on records.
    is_published = False

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

    def check_published(self):
        """Refuses a layer of the proven form in a published model.

        Raises:
            ValueError: names the alternative.
        """
        raise ValueError(
            f"{type(self).__name__} '{self.name}' learns from a proven "
            'release. Leave it out, or use guarantee="proven".'
        )

    def default_shares(self, alike):
        return [0.1]
