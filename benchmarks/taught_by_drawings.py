"""Second layers that drawings teach: do they see more in photographs?

    KERAS_BACKEND=torch python benchmarks/taught_by_drawings.py --cache=DIR

Three maps of images, all made from `drawn_scenes` alone, without a photograph:

* `patches`: one `PatchDictionary`, about what `features="patches"` has, but
  without shifts.
* `two_layers`: a dictionary of patches of what a first one says, averaged over
  12 x 12 regions of the image.
* `encoder`: two convolutions in the place of the second dictionary. They learn
  to tell two views of one drawing (crops, mirror images, colours) from all
  others of a batch.

Each is followed by the leading directions of other drawings, as in
`features="patches"`, and judged on training images of CIFAR-10: the first
`--records` train an output layer by 80 rounds behind a released second moment,
the `--judged` after them say how accurate it is. No test image is used. The
noise on a mean is that of 50,000 records, so what differs from a training on
all is how much the classifier learns by heart; at epsilon 8 that is most of it.

What takes long is kept in DIR. Another length of the training, width or number
of drawings needs another folder. Source of the loss: van den Oord, Li and
Vinyals, Representation Learning with Contrastive Predictive Coding, 2018.
"""

import os
import time

import keras
import numpy as np
import scipy.optimize
import scipy.stats
from absl import app, flags
from keras import ops
from results_file import ResultsFile

import keras_fm as fm

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_CACHE = flags.DEFINE_string("cache", None, "Folder for what is kept.")
_SCENES = flags.DEFINE_integer("scenes", 4000, "Drawings that teach.")
_OTHERS = flags.DEFINE_integer("others", 2000, "Drawings for directions.")
_FILTERS = flags.DEFINE_integer("filters", 400, "Of the last dictionary.")
_UNITS = flags.DEFINE_integer("units", 1000, "Directions that are kept.")
_WIDTH = flags.DEFINE_integer("width", 128, "Of the first convolution.")
_STEPS = flags.DEFINE_integer("steps", 200, "Of the encoder's training.")
_BATCH = flags.DEFINE_integer("batch", 128, "Drawings in one of them.")
_RECORDS = flags.DEFINE_integer("records", 8000, "Images that train.")
_JUDGED = flags.DEFINE_integer("judged", 6000, "Images that judge.")
_MAPS = flags.DEFINE_list("maps", ["two_layers", "encoder"], "Beside patches.")
flags.mark_flag_as_required("cache")
EPSILONS, DELTA, OF_RECORDS = (1.0, 3.0), 1e-5, 50_000
TEMPERATURE = 0.2
SIZE, CELLS, STEM = 32, 12, 48
LAST = {"data_format": "channels_last"}


# What drawings teach --------------------------------------------------------


def patches(drawn):
    layer = fm.layers.PatchDictionary(_FILTERS.value, epsilon=0.01, **LAST)
    layer.adapt(drawn, "drawn scenes")
    return keras.Sequential([keras.Input((SIZE, SIZE, 3)), layer, _flat()])


def _flat():
    return keras.layers.Flatten(**LAST)


def stem(drawn):
    """Maps of 12 x 12 regions: a first dictionary, standardised."""
    first = fm.layers.PatchDictionary(
        STEM, cells=CELLS, flip=False, epsilon=0.01, **LAST
    )
    first.adapt(drawn, "drawn scenes")
    scale = keras.layers.Normalization(axis=-1)
    image = keras.Input((SIZE, SIZE, 3))
    seen = keras.Model(image, first(image)).predict(drawn[:2000], verbose=0)
    scale.adapt(seen)
    return keras.Model(image, scale(first(image)), trainable=False)


def two_layers(drawn):
    below = stem(drawn)
    second = fm.layers.PatchDictionary(
        _FILTERS.value,
        patch_size=3,
        flip=False,
        components=256,
        epsilon=0.01,
        **LAST,
    )
    second.adapt(below.predict(drawn[:4000], verbose=0), "drawn scenes")
    x = below.inputs[0]
    return _mirrored(keras.Model(x, _flat()(second(below(x)))))


def encoder(drawn):
    """Two convolutions on the stem, after their training."""
    keras.utils.set_random_seed(0)
    below = stem(drawn)
    x = below(below.inputs[0])
    maps = []
    for width in (_WIDTH.value, 2 * _WIDTH.value):
        x = keras.layers.Conv2D(
            width, 3, use_bias=False, dtype="mixed_bfloat16", **LAST
        )(x)
        x = keras.layers.BatchNormalization(dtype="float32")(x)
        x = keras.layers.ReLU()(x)
        maps.append(x)
        x = keras.layers.AveragePooling2D(2, **LAST)(x)
    h = keras.layers.GlobalAveragePooling2D(**LAST)(x)
    h = keras.layers.Dense(2 * _WIDTH.value, activation="relu")(h)
    model = keras.Model(below.inputs, keras.layers.Dense(64)(h))
    rate = keras.optimizers.schedules.CosineDecay(
        1e-4, _STEPS.value, warmup_target=2e-3, warmup_steps=_STEPS.value // 10
    )
    model.compile(keras.optimizers.AdamW(rate), other_view)
    model.fit(Views(drawn), verbose=2)
    # 10 x 10 and 3 x 3 places.
    found = [
        _flat()(keras.layers.AveragePooling2D(size, strides, **LAST)(y))
        for y, size, strides in zip(maps, (4, 1), (3, 1))
    ]
    return _mirrored(
        keras.Model(below.inputs, keras.layers.Concatenate()(found))
    )


def _mirrored(map_):
    """Means over an image and its mirror image."""
    x = keras.Input((SIZE, SIZE, 3))
    mean = keras.layers.Average()([map_(x), map_(ops.flip(x, axis=2))])
    return keras.Model(x, mean)


def other_view(_, z):
    """Of each view the other one must be nearer than all else."""
    z = ops.cast(z, "float32")
    z = z / ops.sqrt(ops.sum(z * z, axis=1, keepdims=True) + 1e-6)
    n = ops.shape(z)[0]
    near = ops.matmul(z, ops.transpose(z)) / TEMPERATURE
    near = near - 1e4 * ops.eye(n)
    other = ops.roll(ops.arange(n), n // 2)
    return keras.losses.sparse_categorical_crossentropy(
        other, near, from_logits=True
    )


class Views(keras.utils.PyDataset):
    """Batches of views of drawings, then of other views of the same."""

    def __init__(self, drawn):
        super().__init__()
        self.drawn, self.rng = drawn, np.random.default_rng(0)

    def __len__(self):
        return _STEPS.value

    def __getitem__(self, _):
        rows = self.rng.integers(0, len(self.drawn), _BATCH.value)
        views = [view(self.rng, self.drawn[rows]) for _ in range(2)]
        return np.concatenate(views), np.zeros((2 * len(rows), 1))


def view(rng, x):
    """A crop, mirrored or not, in other colours."""
    n, *_ = x.shape
    side = rng.uniform(0.4, 1, n)
    down, across = (
        _stretch(rng, side * np.exp(rng.normal(0, 0.1, n))) for _ in range(2)
    )
    mirrored = rng.uniform(size=n) < 0.5
    across[mirrored] = across[mirrored, ::-1]
    x = across[:, None] @ (down @ x.reshape(n, SIZE, -1)).reshape(x.shape)
    grey = x.mean(axis=3, keepdims=True)
    x = grey + rng.uniform(0.3, 1.5, (n, 1, 1, 1)) * (x - grey)
    mean = x.mean(axis=(1, 2), keepdims=True)
    x = (x - mean) * np.exp(rng.normal(0, 0.25, (n, 1, 1, 1))) + mean
    x = x * np.exp(rng.normal(0, 0.1, (n, 1, 1, 3)))
    x = x + rng.normal(0, 0.1, (n, 1, 1, 1))
    return np.clip(x, 0, 1).astype("float32")


def _stretch(rng, side):
    """Matrices that draw a part of a line out to the whole."""
    side = np.minimum(side, 1)[:, None]
    place = (np.arange(SIZE) + 0.5) * side - 0.5
    place += rng.uniform(0, 1 - side) * SIZE
    place = np.clip(place, 0, SIZE - 1)[:, :, None]
    return np.maximum(1 - np.abs(place - np.arange(SIZE)), 0).astype("f4")


# Judging ---------------------------------------------------------------------


def features(name, make, images):
    """Rows of unit length, from the folder if they are there."""
    path = os.path.join(_CACHE.value, f"{name}.npy")
    if not os.path.exists(path):
        drawn = drawings()
        began = time.process_time()
        map_ = make(drawn[: _SCENES.value])
        print(name, map_.output_shape, "made", time.process_time() - began)
        directions = fm.layers.PrincipalProjection(_UNITS.value)
        others = fm.features.extract(map_, drawn[_SCENES.value :])
        directions.adapt(others, "other drawn scenes")
        x = map_.inputs[0]
        whole = fm.layers.NormalizationLayer()(directions(map_(x)))
        found = fm.features.extract(keras.Model(x, whole), images)
        print(name, "seconds", time.process_time() - began, flush=True)
        np.save(path, found)
    return np.load(path)


def drawings():
    path = os.path.join(_CACHE.value, "drawings.npy")
    if not os.path.exists(path):
        count = _SCENES.value + _OTHERS.value
        np.save(path, fm.datasets.drawn_scenes.load(count, SIZE))
    return np.load(path)


def as_of_all(epsilon):
    """Of few records, the epsilon at which noise moves a mean as far as at
    `epsilon` of all."""

    wanted = as_gaussian(epsilon) * OF_RECORDS / _RECORDS.value
    return scipy.optimize.brentq(
        lambda e: as_gaussian(e) - wanted, epsilon, 1000
    )


def as_gaussian(epsilon):
    """Sensitivity over deviation of the Gaussian noise of a budget."""

    def delta(mu):
        log = scipy.stats.norm.logcdf
        most = np.exp(log(mu / 2 - epsilon / mu))
        return most - np.exp(epsilon + log(-mu / 2 - epsilon / mu))

    return scipy.optimize.brentq(lambda mu: delta(mu) - DELTA, 0.01, 99)


def whitening(units):
    return [
        fm.layers.DPPCA(units, whitening=0.5),
        fm.layers.NormalizationLayer(),
    ]


def accuracy(h, y, epsilon, below):
    keras.utils.set_random_seed(0)
    n = _RECORDS.value
    model = keras.Sequential(
        [
            keras.Input(h.shape[1:]),
            fm.layers.NormalizationLayer(),
            *below,
            fm.layers.PrivateDense(
                10,
                use_bias=False,
                rounds=fm.Rounds(rounds=80, loss="cross_entropy", whitening=0),
            ),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        epsilon=as_of_all(epsilon), delta=DELTA, data=(h[:n], y[:n])
    )
    model.fit(h[:256], y[:256], callbacks=[private], verbose=0)
    found = model.predict(h[n:], batch_size=2000, verbose=0)
    return private, float((found.argmax(axis=1) == y[n:]).mean())


def main(_):
    results = ResultsFile(
        _OUT.value, "taught_by_drawings", ("features", "epsilon")
    )
    os.makedirs(_CACHE.value, exist_ok=True)
    (x, y), _ = fm.datasets.load("cifar10")
    x, y = (v[: _RECORDS.value + _JUDGED.value] for v in (x, np.ravel(y)))
    first = features("patches", patches, x)
    maps = {"patches": first}
    known = {make.__name__: make for make in (two_layers, encoder)}
    for make in (known[name] for name in _MAPS.value):
        h = features(make.__name__, make, x)
        maps[make.__name__] = h
        # Of both together as many directions as of one alone.
        half = _UNITS.value // 2
        both = np.concatenate([first[:, :half], h[:, :half]], axis=1)
        maps[f"patches, {make.__name__}"] = both
        for name in maps:
            for epsilon in EPSILONS:
                if not results.has(name, epsilon):
                    below = whitening(maps[name].shape[1])
                    private, right = accuracy(maps[name], y, epsilon, below)
                    results.add(
                        (name, epsilon),
                        None,
                        accuracy=round(right, 4),
                        records=_RECORDS.value,
                        judged=_JUDGED.value,
                        steps=_STEPS.value,
                        width=maps[name].shape[1],
                        noise_epsilon=round(private.ledger.epsilon(), 2),
                    )


if __name__ == "__main__":
    app.run(main)
