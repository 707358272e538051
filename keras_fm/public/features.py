"""Named public feature maps for images: recipes of public layers.

Each maps one record at a time and is made without private records, so it uses
no privacy. Every map ends by scaling its features to unit L2 norm.
"""

import keras
import numpy as np

from keras_fm.datasets import drawn_scenes, pen_strokes
from keras_fm.kernel import checks
from keras_fm.public.discriminant_projection import DiscriminantProjection
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.public.patch_dictionary import PatchDictionary
from keras_fm.public.principal_projection import PrincipalProjection
from keras_fm.public.random_features import RandomFeatures
from keras_fm.public.scattering import Scattering2D

FEATURES = (
    "auto",
    "pixels",
    "scattering",
    "scattering_strokes",
    "scattering_patches",
    "patches",
)
__all__ = ["build"]

# Variance below which a patch, or a group of channels, counts as empty. Chosen
# on held-out training images.
_PATCH_VARIANCE = 0.01
_GROUPS, _OF_STROKES = 1e-5, 1e-3
# Concatenated maps, each with as many of the features.
_BESIDE = {
    "scattering_patches": (
        "scattering_scenes",
        "patches",
        "half_patches",
        "windows_4",
    ),
}
_OF_CHANNELS = {1: "scattering_patches", 3: "patches"}
# By the channels of an image.
_FILTERS = {1: 400, 3: 300}
# Of photographs, the share of windows in the square of the norm. The filters
# of a dictionary for windows, the directions of these that are multiplied, and
# the windows they are found in.
_OF_WINDOWS = 0.4
_FEW, _MULTIPLIED, _WINDOWED = 50, 60, 50_000
# Regions of an image down and across, for patches above 4 x 4 and others, and
# those of a window: large windows, far apart, and small ones everywhere.
_COARSE, _FINE, _IN_WINDOW = 5, 14, 3
# Of grey drawn scenes: directions among which those are sought that tell
# scenes apart, and drawings of each.
_KEPT, _VARIANTS = 1500, 4
_MIXTURES = 2000
# Smaller images have fewer pixels than these maps have features.
_SMALL = 16
_UNITS = {"patches": 4000, "scattering_patches": 2400}


def build(name, input_shape, units=None, filters=None, scenes=9000):
    """Builds a public feature map to put before a private layer.

    * `"auto"`: follows from the shape of a record alone: `"patches"` for images
      of three channels, `"scattering_patches"` for one, `"scattering"` for
      others. Images with a side below 16, and what is not an image, stay
      `"pixels"`.
    * `"pixels"`: the pixels themselves.
    * `"scattering"`: wavelet scattering (two octaves, eight angles), each
      image's channels centred and scaled in groups of three, a random
      projection to `units`.
    * `"scattering_strokes"`: the same scattering, then the `units` directions
      that separate drawn pen strokes best (`DiscriminantProjection` adapted to
      `keras_fm.datasets.pen_strokes`).
    * `"patches"`: a `PatchDictionary` adapted to
      `keras_fm.datasets.drawn_scenes`, then directions found in its responses
      to other scenes. Patches have 6 x 6 and 4 x 4 pixels, or half the side of
      a smaller image. Images of three channels are taken for photographs: half
      of the features are the leading directions (`PrincipalProjection`) of
      responses that are averaged over a left-right flip and over shifts by a
      tenth of the image. The others are leading directions of second-order
      pooling in windows of 3 x 3 regions, small ones for patches of 4 x 4
      pixels and large ones for 6 x 6: products of two directions of a window's
      responses, averaged over all windows of the image and of its mirror
      image. Images of one channel may be letters: they are not flipped, and the
      directions are those that best tell scenes apart that were turned,
      stretched, slanted and moved (`DiscriminantProjection`).
    * `"scattering_patches"`: concatenates the scattering, projected on
      directions found in drawn scenes, `"patches"`, patches of the image at
      half its size, and second-order pooling in small windows; a quarter of
      `units` each.

    Maps of patches take a minute or more to make, once: save them.

    Args:
        name: one of `FEATURES`.
        input_shape: `(height, width, channels)` of one image.
        units: int, number of features, at most those the map has. `None` means
            800, for `"patches"` 4000, for `"scattering_patches"` 2400.
        filters: int, for patches, the size of each dictionary; for windows at
            most 50. `None` means 300 for images of three channels, else 400.
        scenes: the size of the public data set of drawn scenes; of pen
            strokes four times as many are drawn.

    Returns:
        A `keras.Sequential` from images to features of unit L2 norm.

    Raises:
        ValueError: if the name is unknown, `input_shape` is not an image (only
            `"pixels"` takes others), or a map found in scenes does not get one
            or three channels.

    Source: scattering and patches: see their layers; second-order pooling:
    Carreira, Caseiro, Batista and Sminchisescu, Semantic Segmentation with
    Second-Order Pooling, 2012; of neighbouring regions: Mairal, End-to-End
    Kernel Learning with Supervised Convolutional Kernel Networks, 2016.

    Example:

    ```python
    body = fm.features.build("scattering", (28, 28, 1))
    model = keras.Sequential([body, fm.layers.PrivateDense(10)])
    ```
    """
    checks.one_of("features", name, FEATURES)
    if name == "auto":
        name = _of_shape(input_shape)
    if name == "pixels":
        flat = keras.layers.Flatten(data_format="channels_last")
        return _with_unit_norm(name, input_shape, [flat])
    if len(input_shape) != 3:
        raise ValueError(
            f'features="{name}" needs images (height, width, channels). '
            f"Received: input_shape={tuple(input_shape)}"
        )
    if units is None:
        units = _UNITS.get(name, 800)
    if filters is None:
        filters = _FILTERS.get(input_shape[-1])
    parts = _parts(name, input_shape)
    maps = [
        _map(part, input_shape, max(1, int(units * share)), filters, scenes)
        for part, share, _ in parts
    ]
    if len(maps) == 1:
        return maps[0]
    image = keras.Input(input_shape)
    found = [
        keras.layers.Rescaling(part[2] ** 0.5)(map_(image))
        for part, map_ in zip(parts, maps)
    ]
    both = keras.layers.Concatenate()(found)
    return _with_unit_norm(name, input_shape, [keras.Model(image, both)])


def _of_shape(input_shape):
    """The name of the map for records of a shape."""
    if len(input_shape) != 3 or min(input_shape[:2]) < _SMALL:
        return "pixels"
    return _OF_CHANNELS.get(input_shape[-1], "scattering")


def _parts(name, input_shape):
    """Maps to concatenate, with their shares of the units and of the square of
    the norm."""
    if name != "patches" or input_shape[-1] != 3:
        parts = _BESIDE.get(name, (name,))
        return [(part, 1 / len(parts), 1 / len(parts)) for part in parts]
    sizes = _sizes(input_shape)
    shares = 0.5 / len(sizes), _OF_WINDOWS / len(sizes)
    windows = [(f"windows_{size}", *shares) for size in sizes]
    return [(name, 0.5, 1 - _OF_WINDOWS), *windows]


def _map(name, input_shape, units, filters, scenes):
    """One map, to use alone or concatenated."""
    of_strokes = name == "scattering_strokes"
    if name.startswith("windows"):
        base = _window_products(input_shape, int(name[-1]), filters, scenes)
    elif name.endswith("patches"):
        base = _scene_patches(input_shape, filters, scenes, name != "patches")
    else:
        base = scattering(input_shape, _OF_STROKES if of_strokes else _GROUPS)
    units = min(units, base.output_shape[-1])
    if name == "scattering":
        top = [RandomFeatures(units, kind="projection", name="projection")]
    elif of_strokes:
        # Six of each shape.
        drawings = pen_strokes.load(2 * scenes // 3, 6, input_shape[0])
        top = [_told_apart(base, *drawings, units, "drawn pen strokes")]
    else:
        top = _scene_map(base, input_shape, units, scenes)
    return _with_unit_norm(name, input_shape, [base, *top])


def _with_unit_norm(name, input_shape, layers):
    return keras.Sequential(
        [keras.Input(input_shape), *layers, NormalizationLayer()], name=name
    )


def scattering(input_shape, group_epsilon):
    """Scattering, normalised per image in groups of three channels.

    Groups of three are those of Tramer and Boneh (2021): 27 groups for one
    image channel, 81 for three.
    """
    layer = Scattering2D(
        scales=2, angles=8, data_format="channels_first", name="scattering"
    )
    return keras.Sequential(
        [
            keras.Input(input_shape),
            # TensorFlow is slow at means of numbers that are not together.
            keras.layers.Permute((3, 1, 2)),
            layer,
            keras.layers.GroupNormalization(
                groups=27 * input_shape[-1],
                axis=1,
                epsilon=group_epsilon,
                scale=False,
                center=False,
                name="group_norm",
            ),
            keras.layers.Flatten(data_format="channels_first", name="flatten"),
            NormalizationLayer(name="unit_features"),
        ]
    )


def _told_apart(base, drawings, groups, units, description):
    """A `DiscriminantProjection` adapted to drawings seen through `base`; no
    private record is used."""
    layer = DiscriminantProjection(units, name="variants_map")
    layer.adapt(extract(base, drawings), groups, description)
    return layer


def _scene_patches(input_shape, filters, scenes, half):
    """`PatchDictionary`s of drawn scenes; no private record is used."""
    image, sizes = keras.Input(input_shape), _sizes(input_shape)
    x, drawn = image, _drawn(input_shape, scenes)
    if half:
        # Its patches see twice as far.
        halve = keras.layers.AveragePooling2D(2, data_format="channels_last")
        x = halve(image)
        sizes = _sizes(x.shape[1:])[:1]
        drawn = keras.ops.convert_to_numpy(halve(drawn))
    smaller, colours = min(x.shape[1:3]), input_shape[-1] == 3
    shift = smaller // 10 if colours else 0
    together = [
        _dictionary(size, filters, drawn, flip=colours, shift=shift)(x)
        for size in sizes
    ]
    found = keras.layers.Concatenate(name="sizes")(together)
    found = keras.layers.Flatten(data_format="channels_last")(found)
    return keras.Model(image, found, name="patch_dictionaries")


def _sizes(input_shape):
    """Of patches, the larger first."""
    largest = max(2, min(input_shape[:2]) // 2)
    return sorted({min(size, largest) for size in (6, 4)}, reverse=True)


def _dictionary(size, filters, drawn, **options):
    layer = PatchDictionary(
        filters,
        patch_size=size,
        epsilon=_PATCH_VARIANCE,
        data_format="channels_last",
        **options,
    )
    layer.adapt(drawn, description="drawn scenes")
    return layer


def _window_products(input_shape, size, filters, scenes):
    """Directions of the responses in windows, and products of two, added over
    the windows of an image, and of its mirror image if it is a photograph; no
    private record is used."""
    side = min(input_shape[:2])
    cells = min(_COARSE if size > 4 else _FINE, side - size + 1)
    filters, drawn = min(_FEW, filters), _drawn(input_shape, scenes)
    dictionary = _dictionary(size, filters, drawn, flip=False, cells=cells)
    image, across = keras.Input(input_shape), min(_IN_WINDOW, cells)
    x, k = dictionary(image), cells - across + 1
    x = [x[:, i : i + k, j : j + k] for i, j in np.ndindex(across, across)]
    x = keras.layers.Concatenate()(x)
    x = keras.layers.Reshape((-1, x.shape[-1]))(x)
    drawn = _drawn(input_shape, min(scenes, -(-_WINDOWED // x.shape[1])), 1)
    units = min(_MULTIPLIED, 2 * filters)
    directions = PrincipalProjection(units, -0.375, name="window_map")
    seen = extract(keras.Model(image, x), drawn)
    directions.adapt(np.concatenate(seen), "windows of drawn scenes")
    del seen
    x = keras.layers.UnitNormalization()(directions(x))
    windows = keras.Model(image, x, name="windows")
    image = keras.Input(input_shape)
    both = windows(image)
    if input_shape[-1] == 3:
        other = windows(keras.ops.flip(image, axis=2))
        both = keras.layers.Concatenate(axis=1)([both, other])
    products = keras.layers.Flatten()(keras.layers.Dot(1)([both, both]))
    once = np.flatnonzero(np.triu(np.ones((units, units))))
    products = keras.ops.take(products, once, axis=1)
    mean = keras.layers.GlobalAveragePooling1D("channels_last")(both)
    found = keras.layers.Concatenate()([mean, products])
    return keras.Model(image, found, name=f"window_products_{size}")


def _scene_map(base, input_shape, units, scenes):
    """Layers adapted to drawn scenes seen through `base`; no private record is
    used."""
    grey = input_shape[-1] == 1
    # Products of two, of unit vectors, have a sum of squares that is constant.
    most = min(base.output_shape[-1], scenes) - 1
    kept = min(_KEPT if grey else units, most)
    layer = PrincipalProjection(
        kept,
        power=0 if grey else -0.375,
        mixtures=max(kept, _MIXTURES),
        name="scene_map",
    )
    # Other scenes than those the dictionary was made from. Nothing here keeps
    # their features, so that `adapt` may let go of them.
    layer.adapt(extract(base, _drawn(input_shape, scenes, 1)), "drawn scenes")
    if not grey:
        return [layer]
    # Digits and letters differ by less than what moves and slants them.
    groups = np.repeat(np.arange(scenes // _VARIANTS), _VARIANTS)
    moved = _drawn(input_shape, scenes // _VARIANTS, 2, _VARIANTS)
    seen, units = keras.Sequential([base, layer]), min(units, kept)
    return [layer, _told_apart(seen, moved, groups, units, "drawn scenes")]


def _drawn(input_shape, scenes, seed=0, variants=1):
    height, width, channels = input_shape
    if channels not in (1, 3) or min(height, width) < 4:
        raise ValueError(
            "Patches of drawn scenes need images of one or three channels and "
            f"at least 4 pixels. Received: input_shape={tuple(input_shape)}"
        )
    size = max(height, width, 8)
    images = drawn_scenes.load(scenes, size, channels, seed, variants)
    return images[:, :height, :width]


def extract(map_, x):
    """Applies a feature map to an array in batches of one shape: another shape
    would be compiled anew, and may round differently."""
    batch = min(_batch(np.size(x[:1])), len(x))
    found = None
    # `predict` would hold a copy of x and of all features.
    for start in range(0, len(x), batch):
        # The last batch ends with the last record.
        start = min(start, len(x) - batch)
        some = map_.predict_on_batch(np.asarray(x[start : start + batch]))
        if found is None:
            found = np.empty((len(x), *some.shape[1:]), some.dtype)
        found[start : start + batch] = some
    return found


def _batch(numbers):
    """The batch size at which a device is fastest, for records of so many
    numbers."""
    backend = keras.backend.backend()
    # PyTorch lists none.
    devices = [] if backend == "torch" else keras.distribution.list_devices()
    on_processor = all(d.startswith("cpu") for d in devices)
    if on_processor and numbers > 1024:
        # Responses to patches of larger images leave the cache.
        return 32 if backend == "jax" else 16
    # On a processor, a scattering splits 256 further.
    return 128 if backend != "jax" else 256 if on_processor else 1024
