import keras
import numpy as np

from keras_fm.kernel.access import columns
from keras_fm.lab.baselines.dp_sgd import DPSGDClassifier
from keras_fm.lab.baselines.dp_sgd_config import check_records


class DPSGDAutoencoder(DPSGDClassifier):
    """A Keras 3 auto-encoder trained by tensorflow-privacy's DP-SGD.

    The loss of a record is its mean squared reconstruction error. Everything
    else is as in `DPSGDClassifier`: layers, batches, clipping, accounting and
    guarantee. The last layer should be linear.

    Args:
        model: a Keras 3 `Sequential` or a list of Keras 3 layers that ends
            in as many outputs as a flattened record has entries.
        config, epsilon, delta, seed, neighbours: see `DPSGDClassifier`.

    Example:

    ```python
    model = keras.Sequential(
        [keras.Input((784,)), keras.layers.Dense(100, "sigmoid"),
         keras.layers.Dense(784)]
    )
    rival = DPSGDAutoencoder(model, config, epsilon=1.0, delta=1e-5)
    rival.fit(x)                       # (n, 784)
    rival.evaluate(x_test)["mse"]
    ```
    """

    def fit(self, x):
        """Trains on the records `x`, `(n, ...)`, once; see
        `DPSGDClassifier.fit`.

        Returns:
            self.
        """
        return super().fit(x, None)

    def predict(self, x):
        """Reconstructions, float32, of the shape of `x`."""
        return self._outputs(x).reshape(np.shape(x))

    def evaluate(self, x):
        """Mean squared error per entry on held-out records.

        Returns:
            dict with `"mse"`.
        """
        error = self.predict(x) - np.asarray(x, "float32")
        return {"mse": float(np.mean(np.square(error, dtype="float64")))}

    def _keras_loss(self, model, shape):
        return keras.losses.MeanSquaredError()

    def _keras_outputs(self, model, x):
        return model(x, training=False)

    @staticmethod
    def _loss(tf_keras):
        return tf_keras.losses.MeanSquaredError

    def _check_data(self, x, y, num_classes):
        x = columns.as_numbers(x, dtype=np.float32)
        check_records(x)
        if not self._model.built:
            self._model.build((None, *x.shape[1:]))
        targets = x.reshape(len(x), -1)
        return x, targets
