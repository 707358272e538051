"""`make_private` for a list of layers that ends in logits."""

import keras

from keras_fm.kernel import checks
from keras_fm.per_example.private_network import PrivateNetwork


def _losses():
    return {
        "categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy(
            from_logits=True
        ),
        "binary_crossentropy": keras.losses.BinaryCrossentropy(
            from_logits=True
        ),
        "squared_error": keras.losses.MeanSquaredError(),
    }


class GradientNet(PrivateNetwork):
    """A network that trains every layer with DP-SGD (clipped, noisy steps).

    It is `keras_fm.make_private` for layers that end in logits, with a clip and
    a loss on logits. `fit` works as there: it draws a Poisson sample of the
    records for every step, and charges all steps before the first.

    Args:
        input_shape: shape of one record.
        layers: a list of layers, or a Keras model. Frozen layers (`trainable =
            False`) do not change; name the public data of their weights,
            `public="ImageNet"`.
        loss: `"categorical_crossentropy"` (softmax; labels are the numbers
            of classes), `"binary_crossentropy"` (per class) or
            `"squared_error"`. Pass any other loss to `compile`.
        clip: float > 0, the largest L2 norm of a record's gradient, or `None`
            to divide every gradient by its norm.
        **kwargs: as in `keras_fm.make_private`: `physical_batch_size`,
            `rows_per_owner`, `classes`, `public`.

    Attributes:
        model: the plain Keras model, which `fit` trains.

    Raises:
        ValueError: if a layer mixes the records of a batch (the message names
            it), or an argument is outside its range.

    Example:

    ```python
    model = fm.models.GradientNet(
        (28, 28, 1),
        [
            keras.layers.Conv2D(16, 8, strides=2, activation="tanh"),
            keras.layers.MaxPooling2D(2, strides=1),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ],
        clip=0.1,
    )
    model.compile(keras.optimizers.SGD(2.0, momentum=0.9))
    private = fm.callbacks.PrivateModel(epsilon=2.0, delta=1e-5)
    model.fit(x, y, batch_size=2000, epochs=20, callbacks=[private])
    ```

    Source: Abadi et al., "Deep Learning with Differential Privacy", 2016.
    """

    def __init__(
        self,
        input_shape,
        layers,
        loss="categorical_crossentropy",
        clip=1.0,
        **kwargs,
    ):
        losses = _losses()
        checks.one_of("loss", loss, losses)
        if not isinstance(layers, keras.Model):
            layers = keras.Sequential(
                [keras.Input(tuple(input_shape)), *layers], name="network"
            )
        elif not layers.built:
            layers.build((None, *input_shape))
        super().__init__(layers, clip=clip, **kwargs)
        self._loss_of_logits = losses[loss]

    def compile(self, optimizer="rmsprop", loss=None, **kwargs):
        """As in Keras. Without `loss`, that of the constructor is used."""
        super().compile(optimizer, loss or self._loss_of_logits, **kwargs)
