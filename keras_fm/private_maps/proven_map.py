"""A layer below the head that learns from a proven release and nothing else."""

from keras_fm.private_maps.pretrained_layer import PretrainedLayer


class ProvenMap(PretrainedLayer):
    """A `PretrainedLayer` without a published form, which no fit trains."""

    noise_shapes: dict = {}

    def __init__(self, trainable=False, **kwargs):
        if trainable:
            raise ValueError(
                f"{type(self).__name__} learns from its release only; it "
                f"cannot be trained. Received: trainable={trainable!r}"
            )
        super().__init__(trainable=False, **kwargs)

    @property
    def is_published(self):
        """`False`: there is no published form of this layer."""
        return False

    def check_published(self):
        raise ValueError(
            f"{type(self).__name__} '{self.name}' learns from a proven "
            'release only. Leave it out, or use guarantee="proven".'
        )

    def set_pretraining(self, value):
        """Nothing: the layer has no weights that a fit trains."""

    def default_shares(self, alike):
        return [0.1]

    def get_config(self):
        config = super().get_config()
        del config["trainable"]
        return config
