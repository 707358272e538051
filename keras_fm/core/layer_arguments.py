"""Checks of arguments of layers and models, in the manner of `checks`."""

import keras

from keras_fm.kernel import checks


def odd(name, value):
    """A positive odd integer."""
    if checks.count(name, value) % 2 == 0:
        checks.refuse(name, value, "a positive odd integer")
    return int(value)


def pair(name, value):
    """A positive integer, or two of them, as a pair."""
    if not isinstance(value, (tuple, list)):
        value = (value, value)
    if len(value) != 2:
        raise ValueError(
            f"`{name}` must be an integer or a pair of them. Received: "
            f"{name}={value}"
        )
    return tuple(checks.count(name, v) for v in value)


def sizes(name, value):
    """`value`, sizes of one record or `None` if unknown, as a tuple."""
    if not isinstance(value, (tuple, list)) or any(
        size is not None and not (checks.is_integer(size) and size > 0)
        for size in value
    ):
        checks.refuse(name, value, "the shape of one record, a tuple")
    return tuple(value)


def belongs(guarantee, owner, **settings):
    """Refuses settings that belong to the other guarantee.

    Args:
        guarantee: the chosen guarantee.
        owner: the only guarantee that the settings belong to.
        settings: `name=(value, default)`; a default is not a setting.
    """
    for name, (value, default) in settings.items():
        if guarantee != owner and value != default:
            raise ValueError(
                f'`{name}` belongs to guarantee="{owner}". Received: '
                f"{name}={value!r}, guarantee={guarantee!r}"
            )


def map_shape(input_shape, kernel_size, strides, padding, filters):
    """The shape that a convolution makes of images, channels last."""
    sizes = []
    for size, kernel, stride in zip(input_shape[1:3], kernel_size, strides):
        if size is not None:
            reach = 0 if padding == "same" else kernel - 1
            size = -(-(size - reach) // stride)
            if size < 1:
                raise ValueError(
                    "`kernel_size` must not exceed the image with "
                    f'padding="valid". Received: kernel_size={kernel_size}, '
                    f"input_shape={tuple(input_shape)}"
                )
        sizes.append(size)
    return (input_shape[0], *sizes, filters)


def data_format(value):
    """The `data_format` of a layer of images; `None` is Keras' own."""
    if value is None:
        value = keras.config.image_data_format()
    known = ("channels_last", "channels_first")
    return checks.either("data_format", value, known)


def image_shape(input_shape, data_format, smallest, what):
    """`(height, width, channels)` of images.

    Raises:
        ValueError: if one is not known, or images have fewer than `smallest`
            pixels on a side, which the layer's `what` needs.
    """
    height, width, channels = input_shape[1:]
    if data_format == "channels_first":
        channels, height, width = input_shape[1:]
    if None in (height, width, channels) or min(height, width) < smallest:
        raise ValueError(
            "Images must have known channels and a known height and width of "
            f"at least {what} = {smallest} pixels. Received: "
            f"input_shape={tuple(input_shape)}"
        )
    return height, width, channels
