"""A view is a function of one record and of a generator of its own.

Augmentation as Keras, NumPy and torchvision show it draws from a global
generator or from a seed inside a layer. Then one record more moves the draws of
all that come after it. Each of these was accepted by chance: where a draw was
rare, two trial calls agreed.
"""

import pickle
import random
import sys

import keras
import numpy as np
import pytest

from keras_fm.datasets import PoissonBatches, record_views
from keras_fm.datasets.record_views import RecordViews

BACKEND = keras.backend.backend()
SHAPE = (4, 4, 1)
IMAGES = np.full((6, *SHAPE), 7.0, "float32")
HIDDEN = np.random.default_rng(0)
LAYER = keras.layers.RandomFlip("horizontal")
SEEDED_LAYER = keras.layers.RandomBrightness(0.1, seed=3)
SEED = keras.random.SeedGenerator(1)
PIPELINE = keras.Sequential(
    [keras.layers.RandomFlip(), keras.layers.RandomTranslation(0.1, 0.1)]
)
COUNTER = keras.Variable(0.0)
IN_CLOSURE = random.Random(5)


class Augmentation:
    """As people write them: a generator made once, used in a method."""

    shared = np.random.RandomState(3)

    def __init__(self):
        self.parts = {"jitter": [random.Random(3)]}

    def shift(self):
        self.parts["jitter"][0].random()

    def flip(self):
        return self.shared.rand()


def _of_object(record):
    return Augmentation().flip()


AUGMENTATION = Augmentation()
DRAWS = {
    "numpy.random": lambda record: np.random.rand(),
    "random": lambda record: random.random(),
    "keras.random": lambda record: keras.random.uniform((1,)),
    "a SeedGenerator": lambda record: keras.random.normal((1,), seed=SEED),
    "RandomFlip": lambda record: LAYER(record),
    "RandomFlip made anew": lambda record: keras.layers.RandomFlip()(record),
    "a layer with a seed": lambda record: SEEDED_LAYER(record),
    "a pipeline of layers": lambda record: PIPELINE(record[None]),
    "Dropout": lambda record: keras.layers.Dropout(0.5)(record, training=True),
    "a Keras variable": lambda record: COUNTER.assign_add(1.0),
    "a generator in a module": lambda record: HIDDEN.random(),
    "one of Python's": lambda record: IN_CLOSURE.random(),
    "of a class": lambda record: AUGMENTATION.flip(),
    "of an object": lambda record: AUGMENTATION.shift(),
}  # fmt: skip
if BACKEND == "torch":
    import torch

    KEPT = torch.Generator()
    DRAWS["torch.rand"] = lambda record: torch.rand(1)
    DRAWS["torch.Generator"] = lambda record: torch.rand(1, generator=KEPT)
if BACKEND == "tensorflow":
    import tensorflow as tf

    KEPT = tf.random.Generator.from_seed(1)
    DRAWS["tf.random.Generator"] = lambda record: KEPT.normal((1,))
    DRAWS["tf.random"] = lambda record: tf.random.uniform((1,))


@pytest.fixture
def seeded():
    keras.utils.set_random_seed(0)


def batches(augment, x=IMAGES):
    return PoissonBatches(
        x, np.zeros(len(x)), sampling="full", augment=augment, views=2
    )


@pytest.mark.parametrize("name", DRAWS)
def test_chance_from_elsewhere_is_refused_whatever_comes_of_it(name, seeded):
    """Whether two calls differ says nothing: here they never do."""

    def augment(record, rng):
        DRAWS[name](record)
        return record

    with pytest.raises(ValueError, match="draw all chance from the generator"):
        batches(augment)


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_that_comes_with_real_records_is_refused(name, seeded):
    """A branch that made-up records do not take ends the batch."""

    def augment(record, rng):
        if record[0, 0, 0] > 1:
            DRAWS[name](record)
        return record

    made = batches(augment)
    with pytest.raises(ValueError, match="draw all chance from") as e:
        made[0]
    assert "7.0" not in str(e.value) and e.value.__cause__ is None


@pytest.mark.parametrize("held", ["closure", "default", "partial", "attribute"])
def test_a_generator_is_found_where_a_function_holds_it(held):
    """`rng = np.random.default_rng(0)` beside the function, at p = 0.02."""
    import functools

    mine = np.random.default_rng(0)

    def rare(generator, record, rng):
        return record + (generator.random() < 0.02)

    def by_default(record, rng, generator=mine):
        return rare(generator, record, rng)

    class Held:
        def __init__(self):
            self.generator = mine

        def __call__(self, record, rng):
            return rare(self.generator, record, rng)

    function = {
        "closure": lambda record, rng: rare(mine, record, rng),
        "default": by_default,
        "partial": functools.partial(rare, mine),
        "attribute": Held(),
    }[held]
    with pytest.raises(ValueError, match="draw all chance from the generator"):
        batches(function)


def test_layers_without_chance_and_the_records_own_generator_pass():
    scale = keras.layers.Rescaling(1 / 255)

    def augment(record, rng):
        if rng.random() < 0.5:
            record = record[:, ::-1]
        return np.asarray(scale(record)) + rng.normal(size=SHAPE).astype("f4")

    rows = batches(augment)[0][0]
    assert len(np.unique(rows.reshape(12, -1)[:, 0])) == 12


def test_what_other_threads_draw_meanwhile_is_no_reason(monkeypatch):
    """Keras shuffles in a thread of its own while batches are made."""
    views = RecordViews(lambda record, rng: record, 2, SHAPE, "float32")
    found = iter([1, 2, 3, 4, *[4] * 100])

    class Others:
        def states(self):
            return next(found)

    monkeypatch.setitem(vars(views), "_others", Others())
    assert len(list(views.rows(IMAGES, 1))) == 12


def flipped(record, rng):
    return record[::-1] if rng.random() < 0.5 else record


@pytest.mark.once
def test_views_travel_to_other_processes():
    """`use_multiprocessing=True` pickles them."""
    views = RecordViews(flipped, 2, SHAPE, "float32")
    again = pickle.loads(pickle.dumps(views))
    for a, b in zip(views.rows(IMAGES, 3), again.rows(IMAGES, 3)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.once
def test_no_framework_is_imported_to_look_at_its_generators():
    assert BACKEND != "tensorflow" or "jax" not in sys.modules
    assert record_views.OtherGenerators(flipped).states()
