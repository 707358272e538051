"""PrivatePatches by itself: a Keras layer, what is read, what is learned."""

import json

import keras
import numpy as np
import pytest
from layer_checks import check_layer, check_promise, check_saved

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.layers import PatchDictionary, PrivatePatches
from keras_fm.queries import PatchClustersQuery, PatchMomentQuery

SMALL = {"filters": 5, "patch_size": 3, "cells": 2, "components": 6}
RNG = np.random.default_rng(0)
# Of one direction far more than of the others.
X = (RNG.random((60, 1, 8, 1)) + 0.2 * RNG.random((60, 7, 8, 1))).astype(
    "float32"
)
Y = np.arange(60) % 3

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]


def array(x):
    return keras.ops.convert_to_numpy(x)


def model_of(layer, shape=(7, 8, 1)):
    model = keras.Sequential(
        [
            keras.Input(shape),
            layer,
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(3, name="head"),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    return model


def released(layer, epsilon=1e6, x=X, y=Y, **kwargs):
    model = model_of(layer, x.shape[1:])
    private = PrivateModel(
        fm.PrivacyBudget(epsilon, 1e-5), data=(x, y), **kwargs
    )
    model.fit(x, y, verbose=0, callbacks=[private])
    return model, private


def normalized(x, layer):
    """Every patch of images, `(n, positions, d)`, one after the other."""
    p, (down, across) = layer.patch_size, layer._release_strides
    found = []
    for image in np.asarray(x, np.float64):
        rows, columns = (n - p + 1 for n in image.shape[:2])
        for i in range(0, rows, down):
            for j in range(0, columns, across):
                v = image[i : i + p, j : j + p].ravel()
                v = v - v.mean()
                found.append(v / np.sqrt(np.mean(v * v) + layer.epsilon))
    return np.reshape(found, (len(x), -1, found[0].size))


@pytest.mark.parametrize("kwargs", [{}, {"flip": True, "exponent": 1.0}])
def test_it_is_a_keras_citizen(kwargs, tmp_path):
    def make(**more):
        return PrivatePatches(**SMALL, **kwargs, **more)

    check_layer(make, X[:4], trainable_fit=False)
    check_promise(make, X[:4], tmp_path, trainable_fit=False)
    layer = make()
    loaded = PrivatePatches.from_config(layer.get_config())
    assert loaded.get_config() == layer.get_config()
    json.dumps(layer.get_config())
    assert layer.compute_output_shape((None, 7, 8, 1)) == (None, 2, 2, 10)
    model, _ = released(layer)
    check_saved(layer, X[:4], tmp_path / "m.keras")
    assert model.layers[0].is_released


def test_it_answers_as_the_public_dictionary_of_its_weights():
    layer = PrivatePatches(**SMALL, flip=True)
    released(layer)
    twin = PatchDictionary(**SMALL, flip=True, public_data={"records": 0})
    twin.build((None, 7, 8, 1))
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(array(layer(X)), array(twin(X)))


def test_before_its_release_it_does_not_whiten():
    layer = PrivatePatches(**{**SMALL, "components": 8})
    layer.build((None, 7, 8, 1))
    kernel = array(layer.whitener).reshape(9, 8)
    product = kernel.T @ kernel
    np.testing.assert_allclose(product, product[0, 0] * np.eye(8), atol=1e-6)
    np.testing.assert_array_equal(array(layer.centre), np.zeros(8))
    lengths = np.linalg.norm(array(layer.directions), axis=0)
    np.testing.assert_allclose(lengths, 1, rtol=1e-6)


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("flip", [False, True])
def test_a_release_without_noise_whitens_the_records_patches(strides, flip):
    x = RNG.random((60, 7, 9, 2)).astype("float32")
    x[:, :, :, 1] = 0.7 * x[:, :, :, 0] + 0.3 * x[:, :, :, 1]
    x[:, 1:] += 0.8 * x[:, :-1]
    layer = PrivatePatches(
        **{**SMALL, "components": 10},
        strides=strides,
        flip=flip,
        whitening=1e-6,
    )
    _, private = released(layer, x=x, reproducible_noise=1)
    patches = normalized(x, layer).reshape(-1, 18)
    if flip:
        mirrored = patches.reshape(-1, 3, 3, 2)[:, :, ::-1].reshape(-1, 18)
        patches = np.concatenate([patches, mirrored])
    kernel = array(layer.whitener).reshape(18, 10)
    z = patches @ kernel - array(layer.centre)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(z.T), np.eye(10), atol=0.12)
    entry, *rounds, _ = private.ledger.entries
    assert entry.name == f"{layer.name} (patch moments)"
    assert "averaged over each record's positions" in entry.uses
    assert [e.name for e in rounds] == [
        f"{layer.name} (patch clusters, {i})" for i in (1, 2, 3)
    ]


def clusters_of_loops(x, layer):
    """What `clusters` says, place by place, in float64."""
    found = np.zeros((len(x), layer.filters, layer.directions.shape[0]))
    kernel = array(layer.whitener).reshape(-1, found.shape[2])
    directions = array(layer.directions).T.astype(np.float64)
    sign = np.where(np.arange(found.shape[2]) < layer._even, 1.0, -1.0)
    patches = normalized(x, layer)
    for record, places in zip(found, patches @ kernel):
        for raw in places:
            z = raw - array(layer.centre)
            u = z / np.linalg.norm(z)
            angles = 30 * np.r_[directions @ u, directions @ (sign * u)]
            q = np.exp(angles[: layer.filters * (1 + layer.flip)])
            q /= q.sum()
            length = np.linalg.norm(raw)
            u = u * length / (1 + length) / len(places)
            record += np.outer(q[: layer.filters], u)
            if layer.flip:
                record += np.outer(q[layer.filters :], sign * u)
    return found


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("apart", [None, (2, 3)])
def test_clusters_are_those_of_loops(flip, apart, monkeypatch):
    layer = PrivatePatches(**SMALL, flip=flip, moment_strides=apart)
    released(layer)
    x = X[:7]
    whole = layer.clusters(x)
    monkeypatch.setattr("keras_fm.papers.pcdbn.private_patches._CHUNK", 60)
    np.testing.assert_allclose(layer.clusters(x), whole, atol=1e-6)
    np.testing.assert_allclose(whole, clusters_of_loops(x, layer), atol=1e-6)


def test_rounds_move_directions_to_what_patches_show():
    """Of two textures, each in two phases, a direction ends near each."""
    stripes = np.indices((7, 8))[:, None, :, :, None] % 2
    x = np.concatenate([np.repeat(s, 30, axis=0) for s in stripes])
    x = x + 0.05 * RNG.random(x.shape)
    small = {**SMALL, "filters": 4, "seed": 3}
    layers = [PrivatePatches(**small, rounds=rounds) for rounds in (0, 4)]
    nearest = []
    for layer in layers:
        released(layer, x=x.astype("float32"), reproducible_noise=1)
        kernel = array(layer.whitener).reshape(9, -1)
        z = normalized(x, layer).reshape(-1, 9) @ kernel - array(layer.centre)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        nearest.append((z @ array(layer.directions)).max(axis=1).mean())
    assert nearest[1] > 0.8 > nearest[0] + 0.3


def test_a_release_leaves_nothing_of_weights_before_it():
    found = []
    for spoiled in (False, True):
        layer = PrivatePatches(**SMALL)
        model = model_of(layer)
        if spoiled:
            layer.set_weights([RNG.random(w.shape) for w in layer.weights])
        private = PrivateModel(
            fm.PrivacyBudget(1e6, 1e-5), data=(X, Y), reproducible_noise=1
        )
        model.fit(X, Y, verbose=0, callbacks=[private])
        found.append(layer.get_weights())
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_noise_is_not_raised():
    """Under much noise all components count alike, none explodes."""
    layer = PrivatePatches(**SMALL)
    released(layer, epsilon=0.1)
    kernel = array(layer.whitener).reshape(9, 6)
    lengths = np.linalg.norm(kernel, axis=0)
    assert lengths.max() < 1 < 4 * lengths.max() / lengths.min()
    assert lengths.max() / lengths.min() < 3


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_no_image_exceeds_what_the_release_is_charged_for(scale):
    layer = PrivatePatches(**SMALL)
    layer.build((None, 7, 8, 1))
    query = PatchMomentQuery(
        num_features=10,
        order=2,
        feature_bound=np.hypot(3.0, layer.constant),
        constant=layer.constant,
    )
    images = [
        RNG.normal(size=(1, 7, 8, 1)) * scale,
        RNG.choice([-scale, scale], size=(1, 7, 8, 1)),
        np.zeros((1, 7, 8, 1)),
        np.indices((7, 8)).sum(axis=0)[None, ..., None] % 2 * scale,
    ]
    vectors = []
    for image in images:
        (patches,) = layer.patches(image)
        assert np.linalg.norm(patches[..., :9], axis=-1).max() <= 3.0
        statistics = query.accumulate(query.zero(), patches, clip=False)
        vectors.append(query.pack(statistics, "l2"))
        limit = query.sensitivity("l2", neighbours="add_remove")
        assert np.linalg.norm(vectors[-1]) <= limit * (1 + 1e-12)
    limit = query.sensitivity("l2", neighbours="replace_one")
    for one in vectors:
        for other in vectors:
            assert np.linalg.norm(one - other) <= limit * (1 + 1e-12)


@pytest.mark.parametrize(
    "strides", [{"strides": 2}, {"strides": 2, "moment_strides": 3}]
)
def test_patches_are_those_of_a_loop(strides, monkeypatch):
    layer = PrivatePatches(**SMALL, **strides)
    layer.build((None, 7, 8, 1))
    monkeypatch.setattr("keras_fm.papers.pcdbn.private_patches._CHUNK", 60)
    parts = list(layer.patches(X[:7]))
    assert len(parts) > 1
    assert len(list(layer.patches(X[:7], chunks=False))) == 1
    found = np.concatenate(parts)
    np.testing.assert_allclose(found[..., :9], normalized(X[:7], layer))
    assert (found[..., 9] == layer.constant).all()


def test_no_image_exceeds_what_a_round_is_charged_for():
    """What is longer is scaled back, and typical images are shorter."""
    layer = PrivatePatches(20, patch_size=3, cells=2)
    released(layer)
    found = layer.clusters(X)
    lengths = np.linalg.norm(found.reshape(len(X), -1), axis=1)
    assert lengths.max() <= 1
    query = PatchClustersQuery(
        directions=20, components=8, clip=layer.cluster_bound
    )
    for one in found[:9]:
        (made,) = query.accumulate(query.zero(), one[None])
        assert np.linalg.norm(made) <= layer.cluster_bound == 20**-0.5


@pytest.mark.parametrize("step", [0, 1])
def test_what_is_summed_of_a_record_has_no_bit_of_another(step):
    """Of a network, a record's row in a batch may change the last bits: with
    one record less, those of all others would move."""
    x = RNG.random((300, 7, 8, 1)).astype("float32")
    model, _ = released(
        PrivatePatches(**SMALL, flip=True), x=x, y=np.arange(300) % 3
    )

    def read(x):
        data = (x, np.arange(len(x)) % 3)
        private = PrivateModel(fm.PrivacyBudget(1.0, 1e-5), data=data)
        private.set_model(model)
        part, planned = private._make_plan()._planned[0]
        assert part is model.layers[0]
        found = [rows for rows, *_ in planned[step].read()]
        return {row.tobytes() for row in np.concatenate(found)}

    one = read(x)
    assert len(one) == 300
    for left_out in (0, 7, 299):
        other = read(np.delete(x, left_out, axis=0))
        assert len(other) == 299 and other < one
