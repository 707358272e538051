import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_fm")
class BatchStandardization(keras.layers.BatchNormalization):
    """Batch normalisation that also uses the batch's statistics to predict.

    The authors' code does so: statistics of noisy inputs do not fit inputs
    without noise. Predict whole test sets in large batches."""

    def call(self, inputs, training=None, mask=None):
        if keras.backend.backend() == "torch" and self.trainable:
            inputs = self._centred(inputs)
        return super().call(inputs, training=True, mask=mask)

    def _centred(self, inputs):
        """The inputs minus their mean, which changes no output.

        On PyTorch, Keras computes the variance as E[x^2] - E[x]^2. If a unit
        is constant at a large value, rounding makes this negative and the
        output NaN.
        """
        wide = keras.backend.result_type(inputs.dtype, "float32")
        inputs = ops.cast(inputs, wide)
        rank = len(inputs.shape)
        axes = [axis for axis in range(rank) if axis != self.axis % rank]
        return inputs - ops.mean(inputs, axis=axes, keepdims=True)
