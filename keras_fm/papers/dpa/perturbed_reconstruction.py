import keras
from keras import ops

from keras_fm.kernel import checks
from keras_fm.public import polynomials

FORMS = ("cross_entropy", "squared_error")


@keras.saving.register_keras_serializable(package="keras_fm")
class PerturbedReconstruction(keras.losses.Loss):
    """Reconstruction error of an auto-encoder, quadratic in the decoder.

    Summed over the d visible units of a record:

    * `"cross_entropy"`: the second-order Taylor expansion about 0 of the
      cross-entropy of every visible unit, with logit z and value v in
      [0, 1]: `log 2 + (1/2 - v) z + z^2 / 8` (dPA Eq. 11). It equals the
      form `max(z, 0) - v z + log 2 - |z| / 2 + z^2 / 8` of the authors'
      code. Where |z| <= 1 it differs from the exact cross-entropy by at
      most 0.004886.
    * `"squared_error"`: `(v - z)^2 / 2`, z the reconstruction itself.

    The functional mechanism adds noise to the coefficients of this loss. The
    layer (`keras_fm.layers.PrivateEncoder`) holds that noise;
    `keras_fm.callbacks.PrivateModel` draws it once.

    Args:
        form: see above.
        reduction, name, dtype: as in `keras.losses.Loss`.

    `y_true`, `y_pred`: `(batch, d)`.

    Raises:
        ValueError: if `form` is unknown or the shapes differ.

    Example:

    >>> loss = PerturbedReconstruction()
    >>> x, z = np.array([[1.0, 0.0]]), np.zeros((1, 2))
    >>> round(float(loss(x, z)), 4)   # 2 log 2
    1.3863
    """

    def __init__(
        self,
        form="cross_entropy",
        reduction="sum_over_batch_size",
        name="perturbed_reconstruction",
        dtype=None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.form = checks.one_of("form", form, FORMS)

    def call(self, y_true, y_pred):
        if tuple(y_true.shape[1:]) != tuple(y_pred.shape[1:]):
            raise ValueError(
                "`y_true` must hold one value for each visible unit. "
                f"Received: y_true.shape={y_true.shape}, "
                f"y_pred.shape={y_pred.shape}"
            )
        v, z = ops.cast(y_true, y_pred.dtype), y_pred
        if self.form == "squared_error":
            return ops.sum(ops.square(v - z), axis=-1) / 2
        constant, _, square = polynomials.taylor("softplus", 2).coefficients
        return ops.sum(constant + (0.5 - v) * z + square * z * z, axis=-1)

    def get_config(self):
        return {**super().get_config(), "form": self.form}
