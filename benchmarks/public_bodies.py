"""A private head on networks that others trained: images and texts.

    KERAS_BACKEND=tensorflow python benchmarks/public_bodies.py --cache=DIR

The bodies and data of docs/tutorials/images.md and text.md, with all
records: CIFAR-10 (50,000 images, 10,000 for the test) by EfficientNet-Lite0 at
96 by 96 pixels, 20 Newsgroups (11,293 posts, 7,528) by MiniLM. Features are
kept in DIR, which must be yours alone. `PrivateDense` on features of unit norm,
with one release and with 40 (`fm.Rounds(rounds=40)`), and beside it the
classifier of least squares without privacy on the same features.

Chosen on held-out training records, the last 10,000 images: that the features
of images are scaled to mean 0 and deviation 1 within each image
(`LayerNormalization` without weights), and 40 rounds without a whitening.
Nothing was chosen on posts: the same without the scaling.
"""

import importlib.util
import pathlib
import time

import joblib
import numpy as np
from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_CACHE = flags.DEFINE_string("cache", None, "Folder for features, 0700.")
_ONLY = flags.DEFINE_enum("only", None, ["images", "sentences"], "One of them.")
flags.mark_flag_as_required("cache")
EPSILONS, DELTA, ROUNDS = (1.0, 3.0, 8.0), 1e-5, (1, 40)


def kept(function, name, x):
    """Features of records, from a file of this name if there is one."""
    path = pathlib.Path(_CACHE.value, f"{name}_{joblib.hash(x)}.npy")
    if not path.exists():
        np.save(path, np.asarray(function(x), np.float32))
    return np.load(path)


def images():
    import keras_fm as fm

    data = fm.datasets.load("cifar10")
    # The loader gives 0 to 1, the body rounds 0 to 255.
    body = fm.pretrained.efficientnet_lite0((32, 32, 3), size=96)

    def of_body(x):
        return body.predict(x, batch_size=128, verbose=0)

    return [
        (kept(of_body, "efficientnet", (255 * x).round().astype("uint8")), y)
        for x, y in data
    ]


def sentences():
    page = of_page("sentences", cells=3)
    found = []
    for part in ("train", "test"):
        texts, groups = page["posts"](part)

        def alone(texts):
            return np.stack([page["features"](text) for text in texts])

        h = kept(alone, "minilm", texts)
        found.append((h, np.array([page["GROUPS"].index(v) for v in groups])))
    return found


def of_page(name, cells):
    """What the first cells of a tutorial define."""
    path = pathlib.Path(__file__).parent.parent / "docs" / "notebooks.py"
    spec = importlib.util.spec_from_file_location("notebooks", path)
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    code = [text for kind, text in notebooks.cells(name) if kind == "code"]
    defined = {}
    exec("\n".join(code[:cells]), defined)
    return defined


def trained(h, y, scaled, rounds, epsilon):
    """A model of features with its callback, after the fit."""
    import keras

    import keras_fm as fm

    model = keras.Sequential([keras.Input(h.shape[1:])])
    if scaled:
        model.add(keras.layers.LayerNormalization(center=False, scale=False))
    model.add(fm.layers.NormalizationLayer())
    classes = int(y.max()) + 1
    if rounds == 1:
        model.add(fm.layers.PrivateDense(classes))
    else:
        rounds = fm.Rounds(rounds=rounds)
        model.add(
            fm.layers.PrivateDense(classes, use_bias=False, rounds=rounds)
        )
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        epsilon=epsilon, delta=DELTA, data=(h, y)
    )
    # The fit uses the release alone, so the number of rows is nothing to it.
    model.fit(h[:256], y[:256], callbacks=[private], verbose=0)
    return model, private


def least_squares(h, y, scaled):
    """Weights of ridge 1e-4 per record on one-hot targets, without privacy."""
    h = np.c_[prepared(h, scaled), np.ones(len(h))]
    target = np.eye(int(y.max()) + 1)[y] - 1 / (int(y.max()) + 1)
    a = h.T @ h / len(h) + 1e-4 * np.eye(h.shape[1])
    return np.linalg.solve(a, h.T @ target / len(h))


def prepared(h, scaled):
    h = np.asarray(h, float)
    if scaled:
        h = h - h.mean(axis=1, keepdims=True)
    return h / np.linalg.norm(h, axis=1, keepdims=True)


def main(_):
    results = ResultsFile(
        _OUT.value, "public_bodies", ("data", "rounds", "epsilon")
    )
    for name, load in {"images": images, "sentences": sentences}.items():
        if _ONLY.value not in (None, name):
            continue
        (h, y), (h_test, y_test) = load()
        h, h_test = np.array(h), np.array(h_test)
        y, y_test, scaled = np.ravel(y), np.ravel(y_test), name == "images"
        if not results.has(name, 0, None):
            weights = least_squares(h, y, scaled)
            found = np.c_[prepared(h_test, scaled), np.ones(len(h_test))]
            right = (found @ weights).argmax(axis=1) == y_test
            results.add(
                (name, 0, None), None, accuracy=round(float(right.mean()), 4)
            )
        for rounds in ROUNDS:
            for epsilon in EPSILONS:
                if results.has(name, rounds, epsilon):
                    continue
                began = time.perf_counter()
                model, private = trained(h, y, scaled, rounds, epsilon)
                seconds = time.perf_counter() - began
                found = model.predict(h_test, batch_size=2000, verbose=0)
                right = found.argmax(axis=1) == y_test
                results.add(
                    (name, rounds, epsilon),
                    private.ledger,
                    accuracy=round(float(right.mean()), 4),
                    records=len(h),
                    seconds=round(seconds, 1),
                )


if __name__ == "__main__":
    app.run(main)
