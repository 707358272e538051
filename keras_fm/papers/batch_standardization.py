import keras


@keras.saving.register_keras_serializable(package="keras_fm")
class BatchStandardization(keras.layers.BatchNormalization):
    """Batch normalisation that uses the batch also when it predicts, as the
    authors' code does: statistics gathered under noise say nothing of inputs
    without it. Predict whole test sets in large batches."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=True, mask=mask)
