"""Whether float32 numbers are multiplied as such, as clipping presumes.

Graphics cards may round the factors of a product to the 11 digits of
TensorFloat-32: by more than the clip leaves room for
(docs/proofs/gradient.md, "Rounding").
"""

import keras

_REMEDIES = {
    "tensorflow": "tf.config.experimental.enable_tensor_float_32_execution("
    "False)",
    "jax": "jax.config.update('jax_default_matmul_precision', 'highest')",
    "torch": "torch.backends.cuda.matmul.allow_tf32 = False and "
    "torch.backends.cudnn.allow_tf32 = False",
}


def check():
    """Refuses devices that would multiply with fewer digits.

    Raises:
        ValueError: saying what to write before the fit.
    """
    backend = keras.backend.backend()
    if _is_rounded(backend):
        raise ValueError(
            "On this device products of float32 numbers are rounded to fewer "
            "digits, and a clipped record could be longer than its bound. "
            f"Before the fit, write `{_REMEDIES[backend]}`."
        )


def _is_rounded(backend):
    if backend == "tensorflow":
        import tensorflow as tf

        allowed = tf.config.experimental.tensor_float_32_execution_enabled()
        return allowed and bool(tf.config.list_physical_devices("GPU"))
    if backend == "jax":
        import jax

        precision = jax.config.jax_default_matmul_precision
        exact = precision in ("highest", "float32")
        return not exact and jax.default_backend() != "cpu"
    if backend == "torch":
        import torch

        allowed = torch.backends.cuda.matmul.allow_tf32
        allowed = allowed or torch.backends.cudnn.allow_tf32
        return allowed and torch.cuda.is_available()
    return False
