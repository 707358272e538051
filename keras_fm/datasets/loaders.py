"""Loads data sets from the folder KERAS_FM_DATA, else by the usual
downloads."""

import os
from typing import Any

import numpy as np

from keras_fm.datasets import health_simulator
from keras_fm.kernel import checks
from keras_fm.kernel.ledger import stored_arrays

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def load(name: str, rescale: bool = True) -> Any:
    """Loads a data set by name: `(x, y), (x_test, y_test)` of images, or a
    health network.

    Images are float32 in [0, 1] (the public range of a pixel), labels int64
    classes. With `rescale=False` images that are stored as integers 0..255 stay
    integers and take a quarter of the memory; begin the model with
    `keras.layers.Rescaling(1 / 255)`.

    * `"digits"`: 1,797 scanned digits of 8x8 pixels, embedded in
      scikit-learn; works offline. Every fifth record is the test part.
    * `"mnist"`, `"fashion_mnist"`, `"cifar10"`: `NAME.npz` in the folder
      `KERAS_FM_DATA` if that is set, else the Keras loaders (cached).
    * `"usps"`: `usps.npz` in `KERAS_FM_DATA`, else OpenML through
      scikit-learn (9,298 digits of 16x16; the first 7,291 are for
      training).
    * a path that ends with `.npz`: arrays `x_train`, `y_train`, `x_test`,
      `y_test`; integers count as pixels 0..255.
    * `"health_network"`, `"health_network_weekly"`: a synthetic health
      social network of 254 users over 300 days or 48 weeks, made by
      `keras_fm.datasets.health_simulator.simulate` with seed 0; works
      offline. Your own network is a `keras_fm.datasets.HealthNetwork`.

    Args:
        name: str, see above.
        rescale: bool, see above.

    Returns:
        `(x, y), (x_test, y_test)`: `x` `(n, height, width, channels)`. For
        the health networks a `HealthNetwork`, whose `windows` makes the
        records: `(x, y)` with `x` `(n, features)`.

    Raises:
        ValueError: if the name is unknown, or a file lacks an array or holds
            other values.

    Example:

    >>> (x, y), (x_test, y_test) = load("digits")
    >>> x.shape, x_test.shape
    ((1437, 8, 8, 1), (360, 8, 8, 1))

    >>> train, test = load("health_network").windows(history=3).split(0.8)
    >>> train.x.shape, test.x.shape
    ((60198, 126), (14986, 126))
    """
    if name.endswith(".npz"):
        return _from_file(name, rescale)
    if name not in DATASETS:
        raise ValueError(
            f"Unknown data set {name!r}. Known are {sorted(DATASETS)}, or "
            "the path of an .npz file."
        )
    folder = os.environ.get("KERAS_FM_DATA")
    path = os.path.join(folder, f"{name}.npz") if folder else None
    if path and os.path.exists(path):
        return _from_file(path, rescale)
    return DATASETS[name](rescale)


def _from_file(path, rescale):
    try:
        with stored_arrays.opened(path) as data:
            arrays = [data.read(key) for key in _ARRAYS]
        return _pair(*arrays, rescale)
    except (OSError, ValueError) as e:
        raise ValueError(f"Cannot load {path!r} as a data set: {e}") from e


def _pair(x, y, x_test, y_test, rescale):
    train = _images(x, rescale), _labels(y)
    test = _images(x_test, rescale), _labels(y_test)
    for images, labels in (train, test):
        if len(images) != len(labels) or not len(images):
            raise ValueError(
                "Every image must have a label, and there must be some. "
                f"Received: {len(images)} images, {len(labels)} labels"
            )
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(
            "Images must have one shape in both parts. Received: "
            f"{train[0].shape[1:]}, {test[0].shape[1:]}"
        )
    if max(train[1].max(), test[1].max()) < 1:
        raise ValueError("Labels must name at least two classes.")
    return train, test


def _images(x, rescale):
    if x.ndim not in (2, 3, 4):
        raise ValueError(
            "Images must have shape (n, height, width[, channels]) or "
            f"(n, features). Received: shape={x.shape}"
        )
    if x.dtype.kind in "ui":
        if rescale:
            x = x.astype(np.float32)
            # In place, without a second copy of all images.
            x /= 255
    elif x.dtype.kind == "f":
        x = x.astype(np.float32)
        checks.finite("images", x)
    else:
        raise ValueError(
            f"Images must be integers or floats. Received: {x.dtype}"
        )
    return x[..., None] if x.ndim == 3 else x


def _labels(y):
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "bui":
        raise ValueError(
            "Labels must be integers of shape (n,). Received: "
            f"shape={y.shape}, dtype={y.dtype}"
        )
    y = y.astype(np.int64)
    if y.size and y.min() < 0:
        raise ValueError("Labels must be 0 or greater.")
    return y


def _digits(rescale):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = (digits.images / 16).astype(np.float32)
    y = digits.target
    test = np.arange(len(x)) % 5 == 0
    return _pair(x[~test], y[~test], x[test], y[test], rescale)


def _keras(name):
    def loader(rescale):
        import keras

        (x, y), (x_test, y_test) = getattr(keras.datasets, name).load_data()
        return _pair(x, y, x_test, y_test, rescale)

    return loader


def _usps(rescale):
    from sklearn.datasets import fetch_openml

    table = fetch_openml(data_id=41082, as_frame=False, parser="auto")
    x = (np.asarray(table.data, np.float32).reshape(-1, 16, 16) + 1) / 2
    y = np.asarray(table.target).astype(np.int64) - 1
    return _pair(x[:7291], y[:7291], x[7291:], y[7291:], rescale)


DATASETS = {
    "digits": _digits,
    "mnist": _keras("mnist"),
    "fashion_mnist": _keras("fashion_mnist"),
    "cifar10": _keras("cifar10"),
    "usps": _usps,
    "health_network": lambda _: health_simulator.simulate(),
    "health_network_weekly": lambda _: health_simulator.simulate("weekly"),
}
