import numpy as np
import pytest
from keras import ops

from keras_fm.datasets import drawn_scenes
from keras_fm.public.patch_dictionary import PatchDictionary
from keras_fm.public.patch_responses import regions

SMALL = {
    "filters": 5,
    "patch_size": 4,
    "cells": 2,
    "components": 12,
    "rounds": 2,
}


@pytest.fixture(autouse=True)
def few_patches(monkeypatch):
    monkeypatch.setattr("keras_fm.public.patch_dictionary._FEWEST", 600)


@pytest.fixture(scope="module")
def scenes():
    return drawn_scenes.load(40, image_size=12, seed=5)


def adapted(images, **kwargs):
    layer = PatchDictionary(
        **{**SMALL, "data_format": "channels_last", **kwargs}
    )
    layer.adapt(images, description="drawn scenes")
    return layer


def run(layer, x):
    return ops.convert_to_numpy(layer(x))


def by_definition(layer, image):
    """Patch by patch, from the layer's weights; without the flip."""
    p, s, t = layer.patch_size, layer.strides, layer.threshold
    whitener, centre, directions = (
        ops.convert_to_numpy(w).astype("float64")
        for w in (layer.whitener, layer.centre, layer.directions)
    )
    whitener = whitener.reshape(-1, whitener.shape[-1])
    rows, columns = ((n - p) // s + 1 for n in image.shape[:2])
    agree = np.zeros((rows, columns, layer.filters))
    oppose = np.zeros_like(agree)
    for i in range(rows):
        for j in range(columns):
            patch = image[i * s : i * s + p, j * s : j * s + p].ravel()
            patch = patch.astype("float64")
            patch = patch - patch.mean()
            patch = patch / np.sqrt(np.mean(patch**2) + layer.epsilon)
            z = (patch @ whitener - centre) @ directions
            agree[i, j] = np.maximum(z - t, 0)
            oppose[i, j] = np.maximum(-z - t, 0)
    both = np.concatenate([agree, oppose], axis=-1)
    down, across = (regions(n, layer.cells) for n in (rows, columns))
    return np.einsum("ih,jw,hwf->ijf", down, across, both)


def eased(layer, features):
    return features**layer.exponent


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"flip": False},
        {"exponent": 1.0},
        {"cells": 3, "strides": 2},
        {"cells": 1, "patch_size": 3, "threshold": 0},
        {"filters": 70, "flip": False, "components": 7},
    ],
)
def test_follows_the_definition(scenes, settings):
    layer = adapted(scenes, **settings)
    found = run(layer, scenes[:3])
    for image, features in zip(scenes, found):
        expected = by_definition(layer, image)
        if layer.flip:
            mirrored = by_definition(layer, image[:, ::-1])
            expected = (expected + mirrored) / 2
        expected = eased(layer, expected)
        np.testing.assert_allclose(features, expected, rtol=2e-3, atol=2e-4)
    assert np.abs(found).max() > 0.05


@pytest.mark.parametrize(
    "settings", [{}, {"strides": 2}, {"flip": False, "cells": 1}]
)
def test_shifts_are_means_over_moved_images(scenes, settings):
    size, settings = scenes.shape[1], {"exponent": 1.0, **settings}
    found = run(adapted(scenes, shift=2, **settings), scenes[:4])
    shift = 2 * settings.get("strides", 1)
    edge = (shift, shift)
    wide = np.pad(scenes[:4], ((0, 0), edge, edge, (0, 0)), mode="reflect")
    still, places = adapted(scenes, **settings), (0, shift, 2 * shift)
    moved = [
        run(still, wide[:, i : i + size, j : j + size])
        for i in places
        for j in places
    ]
    expected = np.mean(moved, axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert np.abs(found - run(still, scenes[:4])).max() > 0.01


def test_an_image_and_its_mirror_image_are_one(scenes):
    layer = adapted(scenes)
    y, mirrored = run(layer, scenes), run(layer, scenes[:, :, ::-1])
    np.testing.assert_allclose(mirrored, y, rtol=1e-3, atol=1e-5)
    plain = adapted(scenes, flip=False)
    other = run(plain, scenes[:, :, ::-1])
    assert np.abs(other - run(plain, scenes)).max() > 0.01


def test_records_are_mapped_on_their_own(scenes):
    layer = adapted(scenes)
    together = run(layer, scenes[:6])
    alone = np.concatenate([run(layer, scenes[i : i + 1]) for i in range(6)])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-6)


def test_public_patches_are_whitened(scenes):
    """Of the patches that were seen, strong components have variance 1."""
    layer = adapted(scenes, whitening=1e-4, components=20)
    rng = np.random.default_rng(layer.seed)
    z = layer._sampled(rng, scenes)
    whitener = ops.convert_to_numpy(layer.whitener).reshape(-1, 20)
    z = z @ whitener - ops.convert_to_numpy(layer.centre)
    np.testing.assert_allclose(z[:, :3].var(axis=0), 1, atol=0.02)
    np.testing.assert_allclose(z[:, :10].mean(axis=0), 0, atol=1e-3)
    assert np.abs(np.corrcoef(z[:, :10].T) - np.eye(10)).max() < 0.01
    # Even and odd components under the mirror.
    columns = whitener.reshape(4, 4, 3, 20)
    np.testing.assert_allclose(
        columns[:, ::-1, :, :10], columns[..., :10], atol=1e-5
    )
    np.testing.assert_allclose(
        columns[:, ::-1, :, 10:], -columns[..., 10:], atol=1e-5
    )


def test_k_means_finds_directions_that_there_are():
    """Planted directions, up to the signs that make no difference."""
    rng = np.random.default_rng(0)
    layer = PatchDictionary(4, rounds=10)
    planted = np.linalg.qr(rng.normal(size=(8, 4)))[0].T
    signs = rng.choice([-1, 1], size=(400, 2)).repeat(4, axis=1)
    z = planted[np.arange(400) % 4] * signs
    z = 3 * z + 0.05 * rng.normal(size=z.shape)
    found = layer._clustered(rng, z, 4)
    near = np.abs(found[:, :4] @ planted[:, :4].T)
    near += np.abs(found[:, 4:] @ planted[:, 4:].T)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    assert near.max(axis=1).min() > 0.95


def test_bad_images(scenes):
    layer = PatchDictionary(**SMALL, data_format="channels_last")
    with pytest.raises(ValueError, match="known height and width"):
        layer.adapt(scenes[:, :3])
    with pytest.raises(ValueError, match=r"`shift \* strides \+ 1` = 13"):
        adapted(scenes, shift=12)
    with pytest.raises(ValueError, match="some contrast"):
        layer.adapt(np.ones((3, 12, 12, 3)))
    assert layer.public_data is None
    # The mirror image of every second patch is none of these.
    layer = PatchDictionary(**SMALL, strides=2, data_format="channels_last")
    with pytest.raises(ValueError, match="multiple of `strides`"):
        layer.build((None, 11, 11, 3))


@pytest.mark.parametrize(("length", "cells"), [(7, 1), (6, 2), (23, 3), (5, 5)])
def test_regions(length, cells):
    found = regions(length, cells)
    assert found.shape == (cells, length)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    np.testing.assert_array_equal(found, found[::-1, ::-1])
    # Every point counts.
    assert found.sum(axis=0).min() > 0
