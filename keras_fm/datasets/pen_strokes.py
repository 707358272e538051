"""Drawings of random pen strokes: public data to fit a public map.

No drawing shows a letter or a digit on purpose, and none comes from a
photographed or scanned record. So maps that are fitted to them alone use no
privacy.
"""

import math

import numpy as np

from keras_fm.kernel import checks

# Points along the pen's path of one drawing, less than a pixel apart.
_POINTS = 160
_STROKES = 3
_WAVES = 3
# Drawings rendered together; bounds the memory, not the result.
_CHUNK = 64


def load(shapes=6000, variants=6, image_size=28, seed=0):
    """Draws random shapes, each several times with small deformations.

    A shape is one to three strokes: cubic Bezier curves, straight lines and
    arcs of ellipses, often joined end to start. Its variants differ by a
    small rotation, shear, stretch and smooth warp and by the pen's width.
    As usual for scanned characters, the ink fits a square of 20/28 of the
    image and its centre of mass is the image's centre.

    Args:
        shapes: int, number of shapes.
        variants: int, drawings of each shape.
        image_size: int >= 8, height and width.
        seed: int, seed of the NumPy generator.

    Returns:
        `(images, groups)`: float32 `(shapes * variants, image_size,
        image_size, 1)` in [0, 1], 1 is ink; int64 `(shapes * variants,)`,
        the number of the shape. Variants of a shape are neighbours.

    Raises:
        ValueError: if a size is not a positive integer.

    Example:

    >>> images, groups = load(shapes=10, variants=3)
    >>> images.shape, groups[:4].tolist()
    ((30, 28, 28, 1), [0, 0, 0, 1])
    """
    checks.count("shapes", shapes)
    checks.count("variants", variants)
    checks.integer("image_size", image_size, at_least=8)
    rng = np.random.default_rng(seed)
    pens = np.repeat(_pen_paths(rng, shapes), variants, axis=0)
    pens = _fit(_deform(rng, pens))
    # A quarter of the width differs between shapes, the rest by drawing.
    width = np.repeat(rng.uniform(size=shapes), variants)
    width = 0.25 * width + 0.75 * rng.uniform(size=len(pens))
    images = _render(pens, 0.6 + 1.2 * width, image_size)
    return images[..., None], np.repeat(np.arange(shapes), variants)


def _pen_paths(rng, n):
    """`(n, _POINTS, 2)`: points of random strokes in about [-1, 1]^2."""
    k = rng.integers(1, _STROKES + 1, size=n)
    bezier = rng.uniform(-1, 1, size=(n, _STROKES, 4, 2))
    # Nearly straight: inner control points on the chord.
    straight = rng.uniform(size=(n, _STROKES)) < 0.25
    for i, part in ((1, 1 / 3), (2, 2 / 3)):
        chord = (1 - part) * bezier[:, :, 0] + part * bezier[:, :, 3]
        chord += 0.1 * rng.normal(size=chord.shape)
        bezier[:, :, i] = np.where(straight[..., None], chord, bezier[:, :, i])
    centre = rng.uniform(-0.5, 0.5, size=(n, _STROKES, 2))
    radii = rng.uniform(0.25, 0.9, size=(n, _STROKES, 2))
    tilt = rng.uniform(0, math.pi, size=(n, _STROKES))
    start = rng.uniform(0, 2 * math.pi, size=(n, _STROKES))
    turn = rng.uniform(0.5, 1.1, size=(n, _STROKES)) * 2 * math.pi
    turn *= rng.choice([-1, 1], size=(n, _STROKES))
    is_ellipse = rng.uniform(size=(n, _STROKES)) < 0.3
    joined = rng.uniform(size=(n, _STROKES)) < 0.6

    t = np.linspace(0, 1, _POINTS)
    ways = np.empty((n, _STROKES, _POINTS, 2))
    for s in range(_STROKES):
        b = bezier[:, s, :, None]
        curve = (
            b[:, 0] * ((1 - t) ** 3)[:, None]
            + b[:, 1] * (3 * t * (1 - t) ** 2)[:, None]
            + b[:, 2] * (3 * t**2 * (1 - t))[:, None]
            + b[:, 3] * (t**3)[:, None]
        )
        phase = start[:, s, None] + turn[:, s, None] * t
        x = radii[:, s, :1] * np.cos(phase)
        y = radii[:, s, 1:] * np.sin(phase)
        cos, sin = np.cos(tilt[:, s, None]), np.sin(tilt[:, s, None])
        arc = np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
        arc += centre[:, s, None]
        way = np.where(is_ellipse[:, s, None, None], arc, curve)
        if s:
            jump = ways[:, s - 1, -1] - way[:, 0]
            way = way + np.where(joined[:, s, None], jump, 0)[:, None]
        ways[:, s] = way
    # The same number of points for one stroke or three: share them out.
    place = np.arange(_POINTS) * k[:, None] / _POINTS
    stroke = place.astype(int)
    point = np.rint((place - stroke) * (_POINTS - 1)).astype(int)
    return ways[np.arange(n)[:, None], stroke, point]


def _deform(rng, pens):
    """Small affine maps and smooth warps, one for each drawing."""
    n = len(pens)
    angle = rng.normal(0, 0.12, size=n)
    shear = rng.normal(0, 0.15, size=n)
    stretch = np.exp(rng.normal(0, 0.12, size=n))
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.stack([cos, -sin, sin, cos], -1).reshape(n, 2, 2)
    slant = np.stack([stretch, shear, np.zeros(n), 1 / stretch], -1).reshape(
        n, 2, 2
    )
    pens = pens @ (turn @ slant).transpose(0, 2, 1)
    frequency = rng.normal(0, 2.2, size=(n, _WAVES, 2))
    phase = rng.uniform(0, 2 * math.pi, size=(n, 1, _WAVES))
    push = rng.normal(0, 0.07, size=(n, _WAVES, 2))
    waves = np.sin(pens @ frequency.transpose(0, 2, 1) + phase)
    return pens + waves @ push


def _fit(pens):
    """Scales every path to a box of half side 1 and centres its ink."""
    low, high = pens.min(axis=1), pens.max(axis=1)
    half = (high - low).max(axis=1) / 2
    pens = pens / np.maximum(half, 1e-3)[:, None, None]
    # Ink lies along the path: weigh points by the distance to their neighbours,
    # without the jump from one stroke to the next.
    steps = np.linalg.norm(np.diff(pens, axis=1), axis=-1)
    steps = np.where(steps < 0.25, steps, 0)
    weight = np.pad(steps, ((0, 0), (1, 0))) + np.pad(steps, ((0, 0), (0, 1)))
    weight /= np.maximum(weight.sum(axis=1, keepdims=True), 1e-12)
    return pens - np.einsum("np,npd->nd", weight, pens)[:, None]


def _render(pens, radius, image_size):
    """Ink by the distance of each pixel to the pen's path."""
    # Sizes are in pixels of a 28x28 image; the pen's width counts too.
    scale = image_size / 28
    pens = pens * (scale * (10 - radius))[:, None, None]
    pens = pens.astype(np.float32)
    line = np.arange(image_size, dtype=np.float32) - (image_size - 1) / 2
    y, x = np.meshgrid(line, line, indexing="ij")
    pixels = np.stack([x.ravel(), y.ravel()]).astype(np.float32)
    images = np.empty((len(pens), image_size**2), np.float32)
    for i in range(0, len(pens), _CHUNK):
        p = pens[i : i + _CHUNK]
        # |pixel - point|^2, less the pixel's own square.
        d = np.matmul(-2 * p, pixels)
        d += (p * p).sum(axis=-1, keepdims=True)
        d = d.min(axis=1) + (pixels * pixels).sum(axis=0)
        d = np.sqrt(np.maximum(d, 0)) / scale
        r = radius[i : i + _CHUNK, None].astype(np.float32)
        images[i : i + _CHUNK] = np.clip((r + 0.6 - d) / 1.2, 0, 1)
    return images.reshape(-1, image_size, image_size)
