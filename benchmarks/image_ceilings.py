"""What limits the accuracy on photographs: noise, directions or features?

    KERAS_BACKEND=tensorflow python benchmarks/image_ceilings.py --cache=DIR

Responses to dictionaries of patches of drawn scenes on training images of
CIFAR-10: the first `--records` train, the `--judged` after them say how
accurate it is. No test image is used.

* `shifted`: patches of 6 x 6 and 4 x 4 pixels; responses averaged over shifts
  by 3 pixels.
* `scaled`: the same directions, each over the power 3/8 of its variance among
  scenes instead of 1/4. So has half of `features="patches"`; the other half, of
  windows, is not here.
* `products`: these, and all products of two of the leading 100
  (`QuadraticFeatures`).
* `all products`: of all 4,000.
* `patches`: patches without shifts, and so is `half`.
* `half`: beside them, in a block of its own, 6 x 6 of the image at half its
  size; a third of the directions.

Without noise a ridge regression is trained, with the best of some ridges; at
an epsilon 80 rounds with the noise on a mean that 50,000 records would have:
behind a released second moment, but `scaled` and `products` without. `all`
directions are the responses themselves.
What takes long is kept in DIR (2 GB); rows that are there are not measured
again.
"""

import functools
import os

import keras
import numpy as np
import scipy.linalg
from absl import app, flags
from results_file import ResultsFile
from taught_by_drawings import accuracy as rounds
from taught_by_drawings import whitening

import keras_fm as fm
from keras_fm.datasets import drawn_scenes

FLAGS = flags.FLAGS
SHAPE, SCENES, FILTERS = (32, 32, 3), 9000, 400
LAST = {"data_format": "channels_last"}
RIDGES = (1e-6, 1e-5, 1e-4, 1e-3)
DICTIONARIES = {
    "shifted": ("6 shifted", "4 shifted"),
    "patches": ("6", "4"),
    "half": ("half",),
}


def responses(name, part):
    """Of a dictionary, to `images` or `scenes`: float16, from the folder."""
    path = os.path.join(FLAGS.cache, f"{name}_{part}.npy")
    if not os.path.exists(path):
        x = image = keras.Input(SHAPE)
        drawn = drawn_scenes.load(SCENES)
        if name == "half":
            halve = keras.layers.AveragePooling2D(2, **LAST)
            x, drawn = halve(image), keras.ops.convert_to_numpy(halve(drawn))
        layer = fm.layers.PatchDictionary(
            FILTERS,
            patch_size=int(name[0]) if x is image else 6,
            shift=3 if "shifted" in name else 0,
            epsilon=0.01,
            **LAST,
        )
        layer.adapt(drawn, "drawn scenes")
        map_ = keras.Model(image, keras.layers.Flatten(**LAST)(layer(x)))
        for some, rows in (
            ("images", images()[0]),
            ("scenes", drawn_scenes.load(SCENES, seed=1)),
        ):
            kept = os.path.join(FLAGS.cache, f"{name}_{some}.npy")
            found = fm.features.extract(map_, rows)
            np.save(kept, found.astype("float16"))
    return np.load(path, mmap_mode="r")


def images():
    (x, y), _ = fm.datasets.load("cifar10")
    count = FLAGS.records + FLAGS.judged
    return np.asarray(x[:count], "float32"), np.ravel(y)[:count]


def joined(name, part, rows=slice(None)):
    parts = [responses(one, part)[rows] for one in DICTIONARIES[name]]
    return np.concatenate(parts, axis=1).astype("float32")


def unit(h):
    return h / np.linalg.norm(h, axis=1, keepdims=True)


@functools.lru_cache(maxsize=2)
def directions(name, units, power=-0.25):
    """Features of the images along the leading directions of scenes."""
    layer = fm.layers.PrincipalProjection(
        units, power, mixtures=max(3000, units)
    )
    layer.adapt(joined(name, "scenes"), "drawn scenes")
    found = [
        keras.ops.convert_to_numpy(layer(joined(name, "images", rows)))
        for rows in chunks()
    ]
    return unit(np.concatenate(found))


def standardised():
    """The responses of `patches` themselves, as the directions see them."""
    drawn = joined("patches", "scenes", slice(4000))
    mean, deviation = drawn.mean(axis=0), drawn.std(axis=0) + 1e-6
    del drawn
    found = np.empty((FLAGS.records + FLAGS.judged, len(mean)), "float32")
    for rows in chunks():
        x = joined("patches", "images", rows)
        found[rows] = unit((x - mean) / deviation)
    return found


def chunks():
    count = FLAGS.records + FLAGS.judged
    return [slice(i, min(i + 2000, count)) for i in range(0, count, 2000)]


def without_noise(h, y, leading=0):
    """The accuracy of the best ridge regression, in features or in records,
    whichever are fewer. Also on all products of two `leading` features, by
    their kernel."""
    n, d = FLAGS.records, h.shape[1]
    targets = np.eye(10, dtype="float32")[y[:n]] - 0.1
    by_records = leading or d > n
    products = h @ h[:n].T if by_records else h[:n].T @ h[:n]
    if leading:
        share = fm.layers.QuadraticFeatures(leading).share
        g = unit(h[:, :leading])
        products *= 1 - share
        products += share * (g @ g[:n].T) ** 2
    right = targets if by_records else h[:n].T @ targets
    square = products[: len(right)]
    found = []
    for ridge in RIDGES:
        a = square.copy()
        a[np.diag_indices(len(a))] += ridge * np.trace(square)
        factor = scipy.linalg.cho_factor(a, overwrite_a=True)
        solved = scipy.linalg.cho_solve(factor, right)
        seen = products[n:] if by_records else h[n:]
        found.append(np.mean((seen @ solved).argmax(axis=1) == y[n:]))
    return float(max(found))


def main(_):
    results = ResultsFile(
        FLAGS.out, "image_ceilings", ("features", "directions", "epsilon")
    )
    os.makedirs(FLAGS.cache, exist_ok=True)
    _, y = images()

    def add(name, kept, epsilon, measured):
        if results.has(name, kept, epsilon):
            return
        right = measured()
        results.add(
            (name, kept, epsilon),
            None,
            accuracy=round(right, 4),
            records=FLAGS.records,
            judged=FLAGS.judged,
        )

    def judged(name, kept, features, epsilons, leading=0, whitened=True):
        def exact():
            return without_noise(features(), y, leading)

        def noisy(e):
            below = whitening(kept) if whitened else []
            if leading:
                below.append(fm.layers.QuadraticFeatures(leading))
            return rounds(features(), y, e, below)[1]

        add(name, kept, "no noise", exact)
        for e in epsilons:
            add(name, kept, e, functools.partial(noisy, e))

    def shifted():
        return directions("shifted", 4000)

    def scaled():
        return directions("shifted", 4000, -0.375)

    def some(kept, of_half=0):
        """Directions of patches, and of the image at half its size."""
        found = unit(directions("patches", 4000)[:, :kept])
        if not of_half:
            return found
        half = directions("half", 1400)[:, :of_half]
        return unit(np.concatenate([found, half], axis=1))

    of_all = 1.0, 3.0, 8.0
    judged("shifted", 4000, shifted, of_all)
    judged("scaled", 4000, scaled, of_all, whitened=False)
    judged("products", 4000, scaled, of_all, 100, whitened=False)
    judged("all products", 4000, scaled, (), 4000)
    judged("patches", 2000, lambda: some(2000), of_all)
    judged("half", 2000, lambda: some(1300, 700), of_all)
    judged("patches", 4000, lambda: some(4000), of_all)
    judged("half", 4000, lambda: some(2600, 1400), ())
    directions.cache_clear()
    add("patches", "all", "no noise", lambda: without_noise(standardised(), y))


if __name__ == "__main__":
    flags.FLAGS.set_default("records", 15_000)
    flags.FLAGS.set_default("judged", 5_000)
    app.run(main)
