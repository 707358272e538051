"""Float32 numbers are multiplied in full precision, as clipping assumes.

A record is clipped by the norm of its part in the sum of a step. Norms and sums
might be products of fewer digits than float32 has (bfloat16, the 11 digits of
TensorFloat-32). Then this part could be longer than its clip, by more than the
margin of the clip (docs/proofs/gradient.md, "Rounding").
"""

import contextlib

import keras
import numpy as np
from keras import ops

_LONGER = "a clipped record could be longer than its clip"
# Many times float32's error; bfloat16 and TensorFloat-32 exceed it by far.
_TOLERANCE = 1e-5
# PyTorch's names for full float32.
_EXACT = ("none", "ieee")


@contextlib.contextmanager
def scope():
    """Makes the backend compute as by default, in full float32, whatever was
    set outside: PyTorch's autocast and the precision of products on a
    processor, JAX's precision of products and its random numbers (Keras
    knows one kind).

    TensorFlow's settings, and PyTorch's for graphics cards, belong to the
    whole process: `check` refuses them.
    """
    backend = keras.backend.backend()
    with contextlib.ExitStack() as stack:
        if backend == "jax":
            import jax

            stack.enter_context(jax.default_matmul_precision("highest"))
            stack.enter_context(jax.default_prng_impl("threefry2x32"))
        elif backend == "torch":
            import torch

            for device in ("cpu", "cuda", "mps", "xpu"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(_exact_processor(torch))
        yield


@contextlib.contextmanager
def _exact_processor(torch):
    # Older PyTorch has one setting for all devices.
    backend = torch.backends.mkldnn
    kinds = (getattr(backend, name, None) for name in ("matmul", "conv"))
    kinds = [k for k in kinds if k and k.fp32_precision not in _EXACT]
    before = [kind.fp32_precision for kind in kinds]
    for kind in kinds:
        kind.fp32_precision = "ieee"
    try:
        yield
    finally:
        for kind, precision in zip(kinds, before):
            # It may have followed the setting of all kinds, and does again.
            kind.fp32_precision = "none"
            if kind.fp32_precision != precision:
                kind.fp32_precision = precision


def check():
    """Refuses settings and devices that multiply with fewer digits.

    Raises:
        ValueError: saying what to write before the fit.
    """
    for setting, remedy in _settings():
        raise ValueError(
            f"Noisy steps need matrix products in full float32. With {setting} "
            f"{_LONGER}. Before the fit, write `{remedy}`."
        )
    error = _error()
    if not error < _TOLERANCE:
        raise ValueError(
            "Noisy steps need matrix products in full float32. On this device "
            f"they have a relative error of {error:.1g}: {_LONGER}. Train on "
            "another device, or remove the setting that lowers precision, such "
            "as the environment variable ONEDNN_DEFAULT_FPMATH_MODE."
        )


def _settings():
    """Settings that make products lose digits, and code that unsets them."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        rounds = tf.config.experimental.tensor_float_32_execution_enabled()
        if rounds and tf.config.list_physical_devices("GPU"):
            yield (
                "TensorFloat-32",
                "tf.config.experimental."
                "enable_tensor_float_32_execution(False)",
            )
        options = tf.config.optimizer.get_experimental_options()
        for name, is_on in options.items():
            if is_on and name.startswith("auto_mixed_precision"):
                yield (
                    f"`{name}`",
                    "tf.config.optimizer.set_experimental_options("
                    f'{{"{name}": False}})',
                )
    if backend == "torch":
        import torch

        if torch.cuda.is_available() and _card_rounds(torch.backends):
            yield (
                "TensorFloat-32",
                "torch.backends.cuda.matmul.allow_tf32 = False; "
                "torch.backends.cudnn.allow_tf32 = False",
            )


def _card_rounds(backends):
    if not hasattr(backends.cudnn, "conv"):
        return backends.cuda.matmul.allow_tf32 or backends.cudnn.allow_tf32
    # PyTorch raises an error if old names are read after new ones are set.
    kinds = (backends.cuda.matmul, backends.cudnn.conv)
    return any(kind.fp32_precision not in _EXACT for kind in kinds)


def _error():
    """The largest relative error of products on this device."""
    numbers = np.random.default_rng(0)
    images = numbers.standard_normal((8, 4, 4, 8), dtype="float32")
    kernel = numbers.standard_normal((4, 4, 8, 8), dtype="float32")
    rows, columns = images.reshape(8, -1), kernel.reshape(-1, 8)
    with scope():
        found = (
            ops.matmul(ops.convert_to_tensor(rows), columns),
            ops.reshape(
                ops.conv(
                    ops.convert_to_tensor(images),
                    kernel,
                    data_format="channels_last",
                ),
                (8, 8),
            ),
        )
    size = np.abs(rows) @ np.abs(columns)
    exact = rows.astype("float64") @ columns
    return max(
        np.max(np.abs(ops.convert_to_numpy(one) - exact) / size)
        for one in found
    )
