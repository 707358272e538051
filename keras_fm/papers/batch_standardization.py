import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_fm")
class BatchStandardization(keras.layers.BatchNormalization):
    """Batch normalisation that uses the batch also when it predicts, as the
    authors' code does: statistics gathered under noise say nothing of inputs
    without it. Predict whole test sets in large batches."""

    def call(self, inputs, training=None, mask=None):
        if keras.backend.backend() == "torch" and self.trainable:
            inputs = self._centred(inputs)
        return super().call(inputs, training=True, mask=mask)

    def _centred(self, inputs):
        """The inputs minus their mean, which changes no output.

        On PyTorch Keras takes the variance for E[x^2] - E[x]^2. Of a unit
        that is constant at a large value this is negative by rounding, and
        the output NaN.
        """
        wide = keras.backend.result_type(inputs.dtype, "float32")
        inputs = ops.cast(inputs, wide)
        rank = len(inputs.shape)
        axes = [axis for axis in range(rank) if axis != self.axis % rank]
        return inputs - ops.mean(inputs, axis=axes, keepdims=True)
