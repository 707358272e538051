"""Drawings of random scenes: public data to fit maps of photographs.

Shapes hide one another, as things in front of a camera do. No drawing comes
from a photograph and no constant was fitted to a data set. So maps that are
fitted to these drawings alone use no privacy.
"""

import math

import numpy as np
import scipy.ndimage

from keras_fm.kernel import checks

_MOST_SHAPES = 48
_SIDES = 5
# Blue against yellow and green against magenta, the colours in which
# natural light and pigments differ much and little.
_OPPONENTS = np.array([[1.0, 0.1, -1.1], [-0.6, 1.1, -0.5]])
# How far views of a scene differ: entries of the matrix of places, and shares
# of the side. Pixels that are drawn beyond it.
_TURNED, _MOVED, _MARGIN = 0.1, 0.04, 8
# Drawings rendered together, so that they stay in the cache; the result does
# not depend on it.
_CHUNK = 128


def load(num=12000, image_size=32, channels=3, seed=0, variants=1):
    """Draws random scenes of shapes that hide one another.

    A scene is a background and 6 to 48 ellipses and polygons. Their sizes
    follow a power law, and larger ones are mostly behind. (This is the dead
    leaves model, with the edges and spectra of natural images.) Every surface
    has a brightness, a tint near that of the scene, linear shading and rough or
    striped texture; the scene has an illuminant, uneven light, haze and blur.
    Brightness varies most, blue against yellow less, green against magenta
    least, as in photographs.

    Source: Lee, Mumford and Huang, Occlusion Models for Natural Images,
    2001; Baradad et al., Learning to See by Looking at Noise, 2021.

    Args:
        num: int, number of images.
        image_size: int >= 8, height and width.
        channels: 3 for colours, 1 for the brightness of the same drawings.
        seed: int, seed of the NumPy generator.
        variants: int, views of each scene, one after the other. If there are
            several, each is turned, stretched, slanted and moved a little.

    Returns:
        float32 array `(num * variants, image_size, image_size, channels)` in
        [0, 1].

    Raises:
        ValueError: if a size is not an integer in its range.

    Example:

    >>> images = load(num=10)
    >>> images.shape
    (10, 32, 32, 3)
    """
    checks.count("num", num)
    checks.integer("image_size", image_size, at_least=8)
    checks.one_of("channels", channels, (1, 3))
    if variants > 1:
        wide = load(num, image_size + _MARGIN, channels, seed)
        return _views(wide, variants, image_size, seed)
    rng = np.random.default_rng(seed)
    scenes = _scenes(rng, num)
    textures = rng.spawn(1)[0]
    images = np.empty((num, image_size, image_size, channels), np.float32)
    for start in range(0, num, _CHUNK):
        part = {k: v[start : start + _CHUNK] for k, v in scenes.items()}
        drawn = _render(part, textures, image_size)
        if channels == 1:
            drawn = drawn @ np.array([[0.299], [0.587], [0.114]], np.float32)
        images[start : start + _CHUNK] = drawn
    return images


def _views(wide, variants, size, seed):
    """Parts of wider images, `(n * variants, size, size, channels)`."""
    images = np.repeat(wide, variants, axis=0)
    found = np.empty((len(images), size, size, wide.shape[3]), np.float32)
    rng = np.random.default_rng(seed)
    for image, seen in zip(images, found):
        # Channels stay where they are.
        view, moved = np.eye(3), np.zeros(3)
        view[:2, :2] += _TURNED * rng.normal(size=(2, 2))
        moved[:2] = _MOVED * size * rng.normal(size=2)
        start = np.array(image.shape) - 1 - view @ (np.array(seen.shape) - 1)
        scipy.ndimage.affine_transform(
            image, view, start / 2 + moved, output=seen, order=1, mode="mirror"
        )
    return found


def _scenes(rng, n):
    """Random parameters of scenes: arrays whose first axis is the scene.

    Lengths are shares of the image's side, shapes the second axis; the
    first of them is the background.
    """
    k = _MOST_SHAPES + 1
    count = np.exp(rng.uniform(math.log(6), math.log(_MOST_SHAPES + 1), n))
    # Density r^-2.5 between a pixel and a half and two thirds of the side.
    low, high = 0.045**-1.5, 0.65**-1.5
    radius = (low + rng.uniform(size=(n, k)) * (high - low)) ** (-1 / 1.5)
    behind = np.log(radius) + rng.normal(0, 0.7, size=(n, k))
    radius = np.take_along_axis(radius, np.argsort(-behind, axis=1), axis=1)
    aspect = np.exp(rng.normal(0, 0.5, size=(n, k)))
    angle = rng.uniform(0, math.pi, size=(n, k))
    # Ground and gravity: a third of all things stand upright or lie.
    upright = rng.uniform(size=(n, k)) < 0.35
    angle = np.where(upright, rng.normal(0, 0.06, size=(n, k)), angle)
    # Things are nearer to the centre than to the border.
    centre = 0.5 + 0.32 * rng.normal(size=(n, k, 2))
    is_polygon = rng.uniform(size=(n, k)) < 0.5
    sides = rng.integers(3, _SIDES + 1, size=(n, k, 1))
    turn = 2 * math.pi * np.arange(_SIDES) / sides
    turn = turn + rng.uniform(-0.35, 0.35, size=(n, k, _SIDES))
    # Sides beyond the last repeat the first.
    turn = np.where(np.arange(_SIDES) < sides, turn, turn[..., :1])

    contrast = rng.uniform(0.35, 0.85, size=(n, 1))
    bright = rng.normal(-0.75, 0.3, size=(n, 1))
    bright = bright + contrast * rng.normal(size=(n, k))
    # Tints: of the light, of the scene, and of a thing, seldom strong.
    strength = np.exp(rng.normal(-2.4, 0.8, size=(n, k, 1)))
    tint = strength * rng.normal(size=(n, k, 2)) * [1, 0.5]
    tint += rng.normal(size=(n, 1, 2)) * [0.16, 0.06]
    tint = np.exp(tint @ _OPPONENTS)
    slope = rng.exponential(0.22, size=(n, k, 1)) * rng.normal(size=(n, k, 2))
    rough = np.exp(rng.normal(-2.2, 0.8, size=(n, k)))
    striped = rng.uniform(size=(n, k)) < 0.12
    stripes = np.where(striped, rng.uniform(0.1, 0.45, size=(n, k)), 0)
    wave = np.exp(rng.uniform(math.log(3), math.log(12), size=(n, k)))
    edge = np.exp(rng.normal(0, 0.35, size=(n, k)))
    return {
        "count": np.minimum(count.astype(int), _MOST_SHAPES),
        "half": np.stack([radius * aspect**0.5, radius / aspect**0.5], -1),
        "angle": angle,
        "centre": centre,
        "is_polygon": is_polygon,
        "turn": turn,
        "reach": rng.uniform(0.6, 1.0, size=(n, k, _SIDES)),
        "bright": np.exp(bright),
        "tint": tint,
        "slope": slope,
        "rough": rough,
        "which": rng.integers(0, 2, size=(n, k)),
        "stripes": stripes,
        "wave": wave,
        "phase": rng.uniform(0, 2 * math.pi, size=(n, k)),
        "edge": edge,
        "steep": rng.uniform(0.7, 1.5, size=(n, 2)),
        "uneven": rng.exponential(0.15, size=n),
        "haze": rng.uniform(0, 0.12, size=n),
        "blur": rng.uniform(0, 0.9, size=n),
        "grain": rng.exponential(0.012, size=n),
    }


def _render(scenes, rng, size):
    """Paints scenes from back to front: `(n, size, size, 3)`."""
    s = {
        name: value.astype(np.float32) if value.dtype == float else value
        for name, value in scenes.items()
    }
    n = len(s["count"])
    fields = rng.standard_normal((n, 4, size, size), np.float32)
    rough = _spectral(fields[:, :2], s["steep"])
    light = _spectral(fields[:, 2:3], np.full((n, 1), 2.0))[:, 0]
    line = (np.arange(size, dtype=np.float32) + 0.5) / size
    y, x = np.meshgrid(line, line, indexing="ij")
    y, x = y.ravel(), x.ravel()
    image = np.zeros((3, n, size * size), np.float32)
    for k in range(s["count"].max() + 1):
        rows = np.flatnonzero(s["count"] >= k)
        p = {
            name: value[rows, k]
            for name, value in s.items()
            if value.shape[1:2] == (_MOST_SHAPES + 1,)
        }
        cos, sin = np.cos(p["angle"])[:, None], np.sin(p["angle"])[:, None]
        dx, dy = x - p["centre"][:, :1], y - p["centre"][:, 1:]
        u, v = cos * dx + sin * dy, cos * dy - sin * dx
        surface = _surface(p, u, v, rough.reshape(n, 2, -1)[rows, p["which"]])
        if k == 0:
            cover = 1.0
        else:
            inside = _inside(p, u, v)
            # Edges are a pixel wide, more or less.
            cover = np.clip(inside * (size / p["edge"][:, None]) + 0.5, 0, 1)
        for c in range(3):
            # The whole and its rows differ only for busy scenes.
            old = image[c] if len(rows) == n else image[c, rows]
            old = old + cover * (surface * p["tint"][:, None, c] - old)
            image[c, rows] = old
    image = image.reshape(3, n, size, size)
    image *= np.exp(s["uneven"][:, None, None] * light)
    haze = s["haze"][:, None, None]
    image += haze * (0.7 - image)
    # A camera's response: highlights come near to white slowly.
    image = 1 - np.exp(-1.1 * image)
    image = _blurred(image, s["blur"])
    image += s["grain"][:, None, None] * fields[:, 3]
    return np.clip(image, 0, 1).transpose(1, 2, 3, 0)


def _surface(p, u, v, rough):
    """Brightness of one surface of every scene at all pixels."""
    shade = p["slope"][:, :1] * u + p["slope"][:, 1:] * v
    shade /= p["half"].max(axis=1, keepdims=True)
    shade = np.clip(shade, -1, 1) + p["rough"][:, None] * rough
    (striped,) = np.nonzero(p["stripes"])
    if len(striped):
        wave = 2 * math.pi * p["wave"][striped, None] * u[striped]
        wave = np.sin(wave + p["phase"][striped, None])
        shade[striped] += p["stripes"][striped, None] * wave
    return p["bright"][:, None] * np.exp(shade)


def _inside(p, u, v):
    """About the distance to a shape's border, positive inside."""
    a, b = p["half"][:, :1], p["half"][:, 1:]
    found = 1 - np.sqrt((u / a) ** 2 + (v / b) ** 2)
    (polygon,) = np.nonzero(p["is_polygon"])
    u, v = (u / a)[polygon], (v / b)[polygon]
    cos, sin = np.cos(p["turn"][polygon]), np.sin(p["turn"][polygon])
    nearest = None
    for i in range(_SIDES):
        side = p["reach"][polygon, i, None] - (
            cos[:, i, None] * u + sin[:, i, None] * v
        )
        nearest = side if nearest is None else np.minimum(nearest, side)
    found[polygon] = nearest
    return found * np.minimum(a, b)


def _spectral(noise, steep):
    """Fields of unit deviation whose amplitude falls as `f**-steep`."""
    size = noise.shape[-1]
    f = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    f[0, 0] = np.inf
    fall = np.exp(-steep[..., None, None] * np.log(f))
    fall[..., 0, 0] = 0
    field = np.fft.irfft2(np.fft.rfft2(noise) * fall, s=(size, size))
    field /= field.std(axis=(-2, -1), keepdims=True)
    return field.astype(np.float32)


def _blurred(image, share):
    """Three taps down and across; `share` of 1 is their full weight."""
    side = (share / 4)[:, None, None].astype(np.float32)
    for axis in (2, 3):
        ends = [(0, 0)] * 4
        ends[axis] = (1, 1)
        wide = np.pad(image, ends, mode="edge")
        length = image.shape[axis]
        before = np.take(wide, range(length), axis=axis)
        after = np.take(wide, range(2, length + 2), axis=axis)
        image = (1 - 2 * side) * image + side * (before + after)
    return image
