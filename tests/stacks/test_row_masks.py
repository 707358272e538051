"""Dropout and its kin: random numbers of every row, and no more."""

import keras
import numpy as np
import pytest
from gradient_nets import (
    array,
    by_layer,
    longest,
    masks,
    opposite,
    searched,
    sums,
)
from keras import layers as L
from keras import ops
from neighbours import check_sensitivity

import keras_fm as fm
from keras_fm.parts import replicas
from keras_fm.stacks.pull_backs import pull_back
from keras_fm.stacks.row_masks import KINDS, RowMask

MADE = {
    "Dropout": (lambda: L.Dropout(0.3), (40,)),
    "shared along a side": (lambda: L.Dropout(0.3, (None, 1, None)), (5, 8)),
    "AlphaDropout": (lambda: L.AlphaDropout(0.3), (40,)),
    "SpatialDropout1D": (lambda: L.SpatialDropout1D(0.3), (5, 8)),
    "SpatialDropout2D": (lambda: L.SpatialDropout2D(0.3), (2, 3, 8)),
    "SpatialDropout3D": (lambda: L.SpatialDropout3D(0.3), (2, 3, 2, 8)),
    "GaussianNoise": (lambda: L.GaussianNoise(0.3), (40,)),
    "GaussianDropout": (lambda: L.GaussianDropout(0.3), (40,)),
    "nothing": (lambda: L.Dropout(0.0), (40,)),
}


def test_every_kind_is_here():
    assert {type(make()) for make, _ in MADE.values()} == set(KINDS)


@pytest.mark.parametrize("case", MADE)
def test_it_does_what_the_layer_does(case):
    """The same values, as often, and the same entries together."""
    keras.utils.set_random_seed(0)
    make, shape = MADE[case]
    layer, rows = make(), 600
    x = 2 * ops.ones((rows, *shape))
    mask = RowMask(layer, shape)
    found = array(mask.apply(x, mask.draw(rows)))
    wanted = array(layer(x, training=True))
    if "Gaussian" not in case:
        values = [np.unique(v.round(4)) for v in (found, wanted)]
        np.testing.assert_allclose(*values, atol=1e-3)
    for moment in (np.mean, np.std):
        # Of the mean of a row, too: masks that are shared.
        for flat in (np.ravel, lambda v: v.reshape(rows, -1).mean(axis=1)):
            assert abs(moment(flat(found)) - moment(flat(wanted))) < 0.1
    assert np.std(found, axis=0).min() > 0 or case == "nothing"


def masked(views=1, **kwargs):
    keras.utils.set_random_seed(1)
    return fm.models.GradientNet((6,), masks(), views=views, **kwargs)


def with_numbers(model, rows):
    """The model, its steps with the same numbers each time."""
    masks = model._steps.graph.draw_masks(rows)
    meetings = model._steps.meetings
    model._steps.meetings = lambda x, y, w, _=None: meetings(x, y, w, masks)
    return masks


def test_gradients_are_those_of_the_backend():
    model = masked(clip=1e3)
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    y = np.arange(5) % 2
    plain = sums(model, x, y)
    drawn = with_numbers(model, 5)
    steps, weights = model._steps, model._steps.weights()
    taps = [ops.zeros((5, *s.map.output_shape)) for s in steps.stages[:-1]]
    for k in range(5):
        (a, _), back = pull_back(
            lambda flat: (
                steps.graph.run(
                    ops.array(x),
                    keras.tree.pack_sequence_as(weights, list(flat)),
                    taps,
                    drawn,
                )[0],
                None,
            ),
            keras.tree.flatten(weights),
        )
        rows = np.eye(5, dtype="float32")[k]
        targets = ops.array(np.eye(3, dtype="float32")[y])
        slope = steps.loss.slope(a, targets) * ops.array(rows[:, None])
        right = by_layer(model, [array(v).ravel() for v in back(slope)])
        found = sums(model, x, y, sample_weight=rows)
        for a, b in zip(found, right):
            np.testing.assert_allclose(a, b, atol=1e-4)
    masked_sums = np.concatenate(sums(model, x, y))
    assert abs(masked_sums - np.concatenate(plain)).max() > 0.01


def test_no_pair_moves_a_step_by_more_than_is_stated():
    """Whatever the numbers of its rows are."""
    keras.utils.set_random_seed(1)
    layers = [L.GaussianNoise(0.2), L.Dense(3), L.Dropout(0.4), L.Dense(2)]
    model = fm.models.GradientNet((2,), layers, clip=0.1, views=2)
    with_numbers(model, 2)
    check_sensitivity(searched(model), [opposite(model)], tries=10)


@pytest.mark.parametrize("views", [1, 3])
def test_no_record_adds_more_than_the_clip(views):
    model = masked(views, clip=0.1)
    with_numbers(model, views)
    normal = np.random.default_rng(0).normal(size=(views, 6))
    assert 0.0999 < longest(model, normal) <= 0.1


# Four rows, each of its own block of inputs: gradients show their masks.
ROWS = np.kron(np.eye(4), np.ones(12)).astype("float32")


class Seen(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.last, self.masks = self.kernel(), []

    def on_train_batch_end(self, batch, logs=None):
        now = self.kernel()
        self.masks.append(abs(now - self.last).max(axis=1) > 1e-4)
        self.last = now

    def kernel(self):
        return array(self.model.private_layers[0].kernel)


def shown(noisy, seed=None, rows=ROWS):
    """Masks of eight compiled steps, `(8, 4, 12)`."""
    layers = [L.Dropout(0.5, seed=seed), L.Dense(2, kernel_initializer="zeros")]
    model = fm.models.GradientNet((48,), layers, clip=10.0, unprotected=True)
    model.compile(keras.optimizers.SGD(0.1))
    if noisy:
        model.perturb(1e-6, 4.0, 8)
    seen, y = Seen(), np.zeros(4)
    fit = {"batch_size": 4, "epochs": 8, "shuffle": False, "verbose": 0}
    model.fit(rows, y, callbacks=[seen], **fit)
    predicted = model.predict(rows, verbose=0)
    np.testing.assert_array_equal(predicted, model.predict(rows, verbose=0))
    return np.stack(seen.masks).reshape(8, 4, 12)


@pytest.mark.parametrize("noisy", [False, True])
def test_numbers_are_new_at_every_step_and_of_every_row(noisy):
    masks = shown(noisy).reshape(32, 12)
    assert len(np.unique(masks, axis=0)) >= 30
    assert 0.3 < masks.mean() < 0.7
    # Neither the next step's nor the next row's.
    for shift in (1, 4):
        alike = (masks[shift:] == masks[:-shift]).mean()
        assert 0.3 < alike < 0.7


def test_a_seed_is_of_the_twin_alone():
    """Numbers that somebody knows would not hide in which row a record is."""
    first, second = (shown(False, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    first, second = (shown(True, seed=5) for _ in range(2))
    assert 0.3 < (first == second).mean() < 0.7


def test_a_functional_model_has_all_its_masks():
    """Keras notes `training=False` where nothing was said."""
    x = keras.Input((6,))
    inner = keras.Sequential([L.Dense(4), L.Dropout(0.5)])
    y = L.GaussianNoise(0.3)(inner(inputs=x))
    network = keras.Model(x, L.Dense(2)(y))
    model = fm.models.GradientNet((6,), network, unprotected=True)
    masks = model._steps.graph.draw_masks(3)
    assert [tuple(v.shape) for v in masks] == [(3, 4)] * 2
    assert model.draws_masks


@pytest.mark.parametrize(
    "layer, match",
    [
        (lambda: L.Dropout(0.5, noise_shape=(1, 6)), "between records"),
        (lambda: L.Dropout(0.5, noise_shape=(8, 6)), "between records"),
        (lambda: L.AlphaDropout(0.5, noise_shape=(1, 6)), "between records"),
        (lambda: L.Dropout(1.0), "below 1"),
    ],
)
def test_refusals(layer, match):
    with pytest.raises(ValueError, match=match):
        fm.models.GradientNet((6,), [layer(), L.Dense(2)])


def test_several_replicas_are_refused(monkeypatch):
    model = masked(unprotected=True)
    monkeypatch.setattr(replicas, "of_strategy", lambda model: (2, True))
    monkeypatch.setattr(type(model._noise), "is_mirrored", True)
    with pytest.raises(ValueError, match="same masks"):
        model.perturb(1.0, 8.0, 3)
