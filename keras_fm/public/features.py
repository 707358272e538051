"""Named public feature maps for images: recipes of public layers.

Each maps a record on its own and is made without private records, so it
needs no privacy. The last step of every map is unit L2 norm.
"""

import keras
import numpy as np

from keras_fm.datasets import drawn_scenes, pen_strokes
from keras_fm.kernel import checks
from keras_fm.public.discriminant_projection import DiscriminantProjection
from keras_fm.public.efficientnet_lite import efficientnet_lite0
from keras_fm.public.normalization_layer import NormalizationLayer
from keras_fm.public.patch_dictionary import PatchDictionary
from keras_fm.public.principal_projection import PrincipalProjection
from keras_fm.public.random_features import RandomFeatures
from keras_fm.public.scattering import Scattering2D

FEATURES = (
    "pixels",
    "scattering",
    "scattering_strokes",
    "scattering_patches",
    "strokes_patches",
    "patches",
)
__all__ = [
    "build",
    "efficientnet_lite0",
]

# Variance below which a patch, or a group of channels, counts as empty. Chosen
# on held-out training images.
_PATCH_VARIANCE = 0.01
_GROUP_EPSILON = {
    "scattering": 1e-5,
    "scattering_strokes": 1e-3,
    "scattering_scenes": 1e-5,
}
# Maps beside each other, half of the features from each.
_BESIDE = {
    "scattering_patches": ("scattering_scenes", "patches"),
    "strokes_patches": ("scattering_strokes", "patches"),
}
_UNITS = {"patches": 4000, "scattering_patches": 1600, "strokes_patches": 1600}


def build(
    name,
    input_shape,
    units=None,
    shapes=6000,
    variants=6,
    filters=400,
    scenes=9000,
    patch_sizes=None,
    mixtures=3000,
):
    """Layers of a public feature map, ready to put before a private layer.

    * `"pixels"`: the pixels themselves.
    * `"scattering"`: wavelet scattering (two octaves, eight angles), each
      image's channels centred and scaled in groups of three, a random
      projection to `units`.
    * `"scattering_strokes"`: the same scattering, then the directions that
      tell drawn pen strokes apart (`DiscriminantProjection` adapted to
      `keras_fm.datasets.pen_strokes`), `units` of them.
    * `"patches"`: a `PatchDictionary` of `keras_fm.datasets.drawn_scenes`
      and the leading directions of what it says of them
      (`PrincipalProjection`), `units` of them. Patches are of 6 x 6 and of
      4 x 4 pixels, or half of a smaller image. Photographs, images of three
      channels, show the same mirrored, so responses are averaged over a
      flip; those of one channel may be letters and are not.
    * `"scattering_patches"`: the scattering, its directions found in drawn
      scenes as those of `"patches"` are, beside `"patches"`; half of
      `units` each.
    * `"strokes_patches"`: `"scattering_strokes"` beside `"patches"`, half
      of `units` each.

    Args:
        name: one of `FEATURES`.
        input_shape: `(height, width, channels)` of one image.
        units: int, features kept; never more than the map has. `None` for
            800, 4000 of `"patches"`, 1600 of two maps beside each other.
        shapes, variants: size of the drawn public data set of strokes.
        filters, scenes: of patches, the size of each dictionary and of the
            drawn public data set.
        patch_sizes: of patches, sizes in pixels, a dictionary for each;
            `None`: see above.
        mixtures: of maps found in scenes, see `PrincipalProjection`.

    Returns:
        A `keras.Sequential` from images to features of unit L2 norm.

    Raises:
        ValueError: if the name is unknown, or what is no image is asked for
            more than pixels, or scenes for images that have neither one nor
            three channels.

    Example:

    ```python
    body = fm.features.build("scattering", (28, 28, 1))
    model = keras.Sequential([body, fm.layers.PrivateDense(10)])
    ```
    """
    checks.one_of("features", name, FEATURES)
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
    sized = {"filters": filters, "patch_sizes": patch_sizes}
    if name not in _BESIDE:
        return _map(name, input_shape, units, strokes, drawn, sized)
    image = keras.Input(input_shape)
    maps = [
        _map(part, input_shape, units // 2, strokes, drawn, sized)(image)
        for part in _BESIDE[name]
    ]
    both = keras.Model(image, keras.layers.Concatenate()(maps))
    return _with_unit_norm(name, input_shape, [both])


def _map(name, input_shape, units, strokes, drawn, sized):
    """One map, which stands alone or beside another."""
    if name == "patches":
        base = _scene_patches(input_shape, scenes=drawn["scenes"], **sized)
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


def _scene_patches(input_shape, filters, scenes, patch_sizes=None):
    """`PatchDictionary`s of drawn scenes; no private record is used."""
    height, width, channels = input_shape
    if patch_sizes is None:
        largest = max(2, min(height, width) // 2)
        patch_sizes = sorted(
            {min(size, largest) for size in (6, 4)}, reverse=True
        )
    different = isinstance(patch_sizes, list | tuple) and set(patch_sizes)
    if not different or len(different) < len(patch_sizes):
        checks.refuse(
            "patch_sizes",
            patch_sizes,
            "a tuple of one or more different integers",
        )
    drawn = _drawn(input_shape, scenes)
    image = keras.Input(input_shape)
    found = []
    for size in patch_sizes:
        suffix = f"_{size}" if len(patch_sizes) > 1 else ""
        layer = PatchDictionary(
            filters,
            patch_size=size,
            flip=channels == 3,
            epsilon=_PATCH_VARIANCE,
            data_format="channels_last",
            name="patch_dictionary" + suffix,
        )
        layer.adapt(drawn, description=f"{scenes} drawn scenes")
        found.append(
            [
                layer,
                keras.layers.Flatten(
                    data_format="channels_last", name="flatten" + suffix
                ),
            ]
        )
    if len(found) == 1:
        return keras.Sequential([image, *found[0]])
    together = [flatten(layer(image)) for layer, flatten in found]
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
    # Others than a dictionary was made from.
    h = extract(base, _drawn(input_shape, scenes, seed=1))
    units = min(units, base.output_shape[-1], scenes - 1)
    layer = PrincipalProjection(
        units, mixtures=mixtures and max(units, mixtures), name="scene_map"
    )
    layer.adapt(h, description=f"{scenes} drawn scenes")
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
    """Applies a feature map to an array in batches of one shape: another one
    would be compiled anew, and may round differently."""
    batch = _batch()
    if len(x) < batch:
        return map_.predict(x, batch_size=batch, verbose=0)
    found = None
    # `predict` would hold a copy of x, and of all features in the end.
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
    """Records at a time: where a device is fastest (docs/results/speed.md)."""
    if keras.backend.backend() != "jax":
        return 128
    # A processor takes a scattering of them in pieces.
    devices = keras.distribution.list_devices()
    return 256 if all(d.startswith("cpu") for d in devices) else 1024
