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
    "strokes_patches",
    "patches",
)
__all__ = [
    "build",
]

# Variance below which a patch, or a group of channels, counts as empty. Chosen
# on held-out training images.
_PATCH_VARIANCE = 0.01
_GROUP_EPSILON = {
    "scattering": 1e-5,
    "scattering_strokes": 1e-3,
    "scattering_scenes": 1e-5,
}
# Concatenated maps, half of the features from each.
_BESIDE = {
    "scattering_patches": ("scattering_scenes", "patches"),
    "strokes_patches": ("scattering_strokes", "patches"),
}
_OF_CHANNELS = {1: "scattering_patches", 3: "patches"}
# Smaller images have fewer pixels than these maps have features.
_SMALL = 16
_UNITS = {"patches": 4000, "scattering_patches": 1600, "strokes_patches": 1600}


def build(
    name,
    input_shape,
    units=None,
    shapes=6000,
    variants=6,
    filters=400,
    scenes=9000,
    mixtures=3000,
):
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
      `keras_fm.datasets.drawn_scenes`, then the `units` leading directions of
      its responses to them (`PrincipalProjection`). Patches have 6 x 6 and 4 x
      4 pixels, or half the side of a smaller image. Images of three channels
      are taken for photographs: responses are averaged over a left-right flip.
      Images of one channel may be letters and are not flipped.
    * `"scattering_patches"`: concatenates the scattering, projected on
      directions found in drawn scenes, and `"patches"`; half of `units` each.
    * `"strokes_patches"`: concatenates `"scattering_strokes"` and `"patches"`;
      half of `units` each.

    Args:
        name: one of `FEATURES`.
        input_shape: `(height, width, channels)` of one image.
        units: int, number of features, at most those the map has. `None` means
            800, for `"patches"` 4000, for two concatenated maps 1600.
        shapes, variants: size of the public data set of drawn strokes.
        filters, scenes: for patches, the size of each dictionary and of the
            public data set of drawn scenes.
        mixtures: for maps found in scenes, see `PrincipalProjection`.

    Returns:
        A `keras.Sequential` from images to features of unit L2 norm.

    Raises:
        ValueError: if the name is unknown, `input_shape` is not an image (only
            `"pixels"` takes others), or a map found in scenes does not get one
            or three channels.

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
        return keras.Sequential(
            [
                keras.Input(input_shape),
                keras.layers.Flatten(data_format="channels_last"),
                NormalizationLayer(),
            ],
            name="pixels",
        )
    if len(input_shape) != 3:
        raise ValueError(
            f'features="{name}" needs images (height, width, channels). '
            f"Received: input_shape={tuple(input_shape)}"
        )
    if units is None:
        units = _UNITS.get(name, 800)
    strokes = {"shapes": shapes, "variants": variants}
    drawn = {"scenes": scenes, "mixtures": mixtures}
    if name not in _BESIDE:
        return _map(name, input_shape, units, strokes, drawn, filters)
    image = keras.Input(input_shape)
    maps = [
        _map(part, input_shape, units // 2, strokes, drawn, filters)(image)
        for part in _BESIDE[name]
    ]
    both = keras.Model(image, keras.layers.Concatenate()(maps))
    return _with_unit_norm(name, input_shape, [both])


def _of_shape(input_shape):
    """The name of the map for records of a shape."""
    if len(input_shape) != 3 or min(input_shape[:2]) < _SMALL:
        return "pixels"
    return _OF_CHANNELS.get(input_shape[-1], "scattering")


def _map(name, input_shape, units, strokes, drawn, filters):
    """One map, to use alone or concatenated."""
    if name == "patches":
        base = _scene_patches(input_shape, filters, drawn["scenes"])
        return _with_scene_map(name, base, input_shape, units, **drawn)
    base = scattering(input_shape, _GROUP_EPSILON[name])
    if name == "scattering_scenes":
        return _with_scene_map(name, base, input_shape, units, **drawn)
    units = min(units, base.output_shape[-1])
    if name == "scattering":
        top = RandomFeatures(units, kind="projection", name="projection")
    else:
        top = stroke_map(base, input_shape, units, **strokes)
    return _with_unit_norm(name, input_shape, [*base.layers, top])


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
        scales=2, angles=8, data_format="channels_last", name="scattering"
    )
    channels = layer.compute_output_shape((None, *input_shape))[-1]
    return keras.Sequential(
        [
            keras.Input(input_shape),
            layer,
            keras.layers.GroupNormalization(
                groups=channels // 3,
                axis=-1,
                epsilon=group_epsilon,
                scale=False,
                center=False,
                name="group_norm",
            ),
            keras.layers.Flatten(data_format="channels_last", name="flatten"),
            NormalizationLayer(name="unit_features"),
        ]
    )


def stroke_map(base, input_shape, units, shapes=6000, variants=6):
    """A `DiscriminantProjection` adapted to drawn strokes seen through
    `base`; no private record is used."""
    size = input_shape[0]
    images, groups = pen_strokes.load(shapes, variants, image_size=size)
    layer = DiscriminantProjection(units, name="stroke_map")
    layer.adapt(
        extract(base, images),
        groups,
        description=f"{shapes} drawn pen strokes, {variants} variants each",
    )
    return layer


def _scene_patches(input_shape, filters, scenes):
    """`PatchDictionary`s of drawn scenes; no private record is used."""
    height, width, channels = input_shape
    largest = max(2, min(height, width) // 2)
    drawn = _drawn(input_shape, scenes)
    image = keras.Input(input_shape)
    together = []
    for size in sorted({min(size, largest) for size in (6, 4)}, reverse=True):
        layer = PatchDictionary(
            filters,
            patch_size=size,
            flip=channels == 3,
            epsilon=_PATCH_VARIANCE,
            data_format="channels_last",
            name=f"patch_dictionary_{size}",
        )
        layer.adapt(drawn, description=f"{scenes} drawn scenes")
        flat = keras.layers.Flatten(
            data_format="channels_last", name=f"flatten_{size}"
        )
        together.append(flat(layer(image)))
    together = keras.layers.Concatenate(name="sizes")(together)
    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.Model(image, together, name="patch_dictionaries"),
        ]
    )


def _with_scene_map(name, base, input_shape, units, scenes, mixtures):
    """`base` and a `PrincipalProjection` of drawn scenes seen through it; no
    private record is used."""
    # Other scenes than those the dictionary was made from.
    others = _drawn(input_shape, scenes, seed=1)
    units = min(units, base.output_shape[-1], scenes - 1)
    layer = PrincipalProjection(
        units, mixtures=mixtures and max(units, mixtures), name="scene_map"
    )
    # Nothing here keeps their features, so that `adapt` may let go of them.
    layer.adapt(extract(base, others), description=f"{scenes} drawn scenes")
    return _with_unit_norm(name, input_shape, [*base.layers, layer])


def _drawn(input_shape, scenes, seed=0):
    height, width, channels = input_shape
    if channels not in (1, 3) or min(height, width) < 4:
        raise ValueError(
            "Patches of drawn scenes need images of one or three channels and "
            f"at least 4 pixels. Received: input_shape={tuple(input_shape)}"
        )
    size = max(height, width, 8)
    images = drawn_scenes.load(scenes, size, channels, seed)
    return images[:, :height, :width]


def extract(map_, x):
    """Applies a feature map to an array in batches of one shape: another shape
    would be compiled anew, and may round differently."""
    batch = _batch()
    if len(x) < batch:
        return map_.predict(x, batch_size=batch, verbose=0)
    found = None
    # `predict` would hold a copy of x and of all features.
    for start in range(0, len(x), batch):
        rows = np.asarray(x[start : start + batch])
        short = batch - len(rows)
        if short:
            rows = np.pad(rows, [(0, short), *[(0, 0)] * (rows.ndim - 1)])
        some = map_.predict_on_batch(rows)
        if found is None:
            found = np.empty((len(x), *some.shape[1:]), some.dtype)
        found[start : start + batch] = some[: batch - short]
    return found


def _batch():
    """The batch size at which a device is fastest (docs/results/speed.md)."""
    if keras.backend.backend() != "jax":
        return 128
    # On a processor, a scattering splits them further.
    devices = keras.distribution.list_devices()
    return 256 if all(d.startswith("cpu") for d in devices) else 1024
