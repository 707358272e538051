"""Scattering2D against kymatio: images per second, and how close they are.

    python benchmarks/scattering.py --kymatio=PATH_OF_A_PYTHON [--threads=1]

kymatio 0.3.0 needs an older SciPy than Keras 3 likes: install kymatio,
torch, absl-py and "scipy<1.12" in an environment of their own and name its
Python. Without it only Scattering2D is measured, and the result says so.

Scattering2D is measured twice: as it is, and by convolutions, which it uses
for large images.

Two octaves, eight angles; MNIST images (28 x 28) and CIFAR-10 images
(32 x 32, 3 channels). Each library is a process of its own with the same
number of threads, which makes passes in turn with the other; medians of five
after one to warm up, on the clock and of processor seconds.

Closeness: coefficients of the same images, path by path, on all points and
without the outermost ones. The filters are not the same: ours are cut at 4
deviations and images continued by reflection at every order; kymatio's are
periodic, the image is continued by 4 pixels once.

    python benchmarks/scattering.py --patches

measures the maps `features.build` makes of scattering and of patches instead,
projections included, on the same images and in the same way, and writes
`patches.json`.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_KYMATIO = flags.DEFINE_string("kymatio", None, "Python that has kymatio.")
_THREADS = flags.DEFINE_integer("threads", 1, "Threads of each process.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Passes per median.")
_IMAGES = flags.DEFINE_integer("images", 512, "Images of a pass.")
_PATCHES = flags.DEFINE_bool("patches", False, "Whole maps, of patches too.")
_SIDE = flags.DEFINE_string("side", None, "Serve one library: FOLDER:NAME.")

SCALES, ANGLES, BATCH = 2, 8, 128
SETS = ("mnist", "cifar10")


def ours():
    """Function from images `(n, h, w, c)` to `(n, c, paths, h', w')`."""
    import keras

    from keras_fm.layers import Scattering2D

    models = {}

    def run(x):
        shape = x.shape[1:]
        if shape not in models:
            layer = Scattering2D(SCALES, ANGLES, data_format="channels_last")
            models[shape] = keras.Sequential([keras.Input(shape), layer])
        parts = [
            np.asarray(models[shape].predict_on_batch(x[i : i + BATCH]))
            for i in range(0, len(x), BATCH)
        ]
        y = np.concatenate(parts)
        y = y.reshape(*y.shape[:3], shape[-1], -1)
        return y.transpose(0, 3, 4, 1, 2)

    return run, f"keras_fm on {keras.backend.backend()}"


def convolved():
    """Ours as it is for large images: the same numbers by convolutions."""
    from keras_fm.public import scattering

    scattering._MOST_NUMBERS = 0
    run, what = ours()
    return run, f"{what}, convolved"


def scattering():
    return _map("scattering")


def patches():
    # Half of the scenes, which changes no time of what is measured.
    return _map("patches", scenes=4500)


def _map(name, **kwargs):
    """Function from images to features of a public map."""
    import keras

    import keras_fm as fm

    models = {}

    def run(x):
        shape = x.shape[1:]
        if shape not in models:
            models[shape] = fm.features.build(name, shape, **kwargs)
        return fm.features.extract(models[shape], x)

    return run, f"features.build({name!r}) on {keras.backend.backend()}"


def kymatio():
    import kymatio
    import torch
    from kymatio.torch import Scattering2D

    torch.set_num_threads(_THREADS.value)
    layers = {}

    def run(x):
        shape = x.shape[1:3]
        if shape not in layers:
            layers[shape] = Scattering2D(J=SCALES, L=ANGLES, shape=shape)
        x = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
        with torch.no_grad():
            parts = [
                layers[shape](x[i : i + BATCH]) for i in range(0, len(x), BATCH)
            ]
        return torch.cat(parts).numpy()

    return run, f"kymatio {kymatio.__version__} on torch {torch.__version__}"


def serve(folder, name):
    """Makes one pass for every line that says on which images."""
    made = ours, convolved, kymatio, scattering, patches
    run, what = {side.__name__: side for side in made}[name]()
    print(json.dumps(what), flush=True)
    for line in sys.stdin:
        images = line.strip()
        x = np.load(os.path.join(folder, f"{images}.npy"))
        clock, processors = time.perf_counter(), time.process_time()
        y = run(x)
        seconds = time.perf_counter() - clock, time.process_time() - processors
        np.save(os.path.join(folder, f"{images}_{name}.npy"), y[:256])
        print(json.dumps(seconds), flush=True)


class Side:
    """A process with one library."""

    def __init__(self, python, folder, name):
        threads = str(_THREADS.value)
        self._process = subprocess.Popen(
            [
                python,
                __file__,
                f"--side={folder}:{name}",
                f"--threads={threads}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
                "OPENBLAS_NUM_THREADS": threads,
                "TF_NUM_INTRAOP_THREADS": threads,
                "TF_NUM_INTEROP_THREADS": "1",
            },
        )
        self.what = self._answer()

    def _answer(self):
        for line in self._process.stdout:
            try:
                return json.loads(line)
            except ValueError:
                continue  # Not every library is silent.
        raise RuntimeError("The process ended; its message is above.")

    def make_pass(self, images):
        self._process.stdin.write(images + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self):
        self._process.stdin.close()
        self._process.wait()


def same_angle(y):
    """kymatio's paths in our order: its angle t runs along our t + 1."""
    L = ANGLES
    turn = (np.arange(L) - 1) % L
    first = 1 + np.arange(SCALES * L).reshape(SCALES, L)[:, turn]
    pairs = (y.shape[2] - 1 - SCALES * L) // (L * L)
    second = 1 + SCALES * L + np.arange(pairs * L * L).reshape(pairs, L, L)
    second = second[:, turn][:, :, turn]
    return y[:, :, np.concatenate([[0], first.ravel(), second.ravel()])]


def closeness(a, b):
    def of(a, b):
        paths = [
            (np.ravel(a[:, :, p]), np.ravel(b[:, :, p]))
            for p in range(a.shape[2])
        ]
        correlations = [float(np.corrcoef(u, v)[0, 1]) for u, v in paths]
        return {
            "relative difference": round(
                float(np.linalg.norm(a - b) / np.linalg.norm(b)), 4
            ),
            "smallest correlation of a path": round(min(correlations), 4),
            "median correlation of a path": round(
                statistics.median(correlations), 4
            ),
        }

    inner = (..., slice(1, -1), slice(1, -1))
    return {"all points": of(a, b), "inner points": of(a[inner], b[inner])}


def compare(folder):
    import keras_fm as fm

    for name in SETS:
        (x, _), _ = fm.datasets.load(name)
        np.save(os.path.join(folder, f"{name}.npy"), x[: _IMAGES.value])
    names = (
        ("scattering", "patches") if _PATCHES.value else ("ours", "convolved")
    )
    sides = {name: Side(sys.executable, folder, name) for name in names}
    if _KYMATIO.value and not _PATCHES.value:
        sides["kymatio"] = Side(_KYMATIO.value, folder, "kymatio")
    elif not _PATCHES.value:
        print("kymatio: not measured, no --kymatio=PATH_OF_A_PYTHON given")
    found = {
        "threads": _THREADS.value,
        "images": _IMAGES.value,
        "repeats": _REPEATS.value,
        "sides": {name: side.what for name, side in sides.items()},
    }
    for images in SETS:
        took = {name: [] for name in sides}
        for repeat in range(_REPEATS.value + 1):
            for name, side in sides.items():
                seconds = side.make_pass(images)
                if repeat:
                    took[name].append(seconds)
        row = {}
        for name, pairs in took.items():
            clock, processors = map(statistics.median, zip(*pairs, strict=True))
            row[name] = {
                "images_per_second": round(_IMAGES.value / clock),
                "images_per_processor_second": round(
                    _IMAGES.value / processors
                ),
                "processor_minutes_for_60000": round(
                    60_000 / 60 * processors / _IMAGES.value, 2
                ),
            }
        first, *others = took
        for name in others:
            row[f"{first} / {name}"] = {
                key: round(row[first][key] / row[name][key], 2)
                for key in row[first]
                if key.startswith("images")
            }
        if "kymatio" in sides:
            a, b = (
                np.load(os.path.join(folder, f"{images}_{name}.npy"))
                for name in ("ours", "kymatio")
            )
            row["closeness"] = closeness(
                a.astype(float), same_angle(b).astype(float)
            )
        found[images] = row
    for side in sides.values():
        side.end()
    return found


def main(_):
    if _SIDE.value:
        serve(*_SIDE.value.rsplit(":", 1))
        return
    with tempfile.TemporaryDirectory() as folder:
        results = compare(folder)
    text = json.dumps(results, indent=1)
    print(text)
    os.makedirs(_OUT.value, exist_ok=True)
    name = "patches.json" if _PATCHES.value else "scattering.json"
    with open(os.path.join(_OUT.value, name), "w") as f:
        f.write(text + "\n")


if __name__ == "__main__":
    app.run(main)
