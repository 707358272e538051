"""Screenshots of what people look at, for the docs.

    python benchmarks/screenshots.py --out=docs/results/screens

makes the page of a comparison (`--runs=FOLDER`, written by `keras-fm compare`),
trains four private models with `PrivacyTensorBoard`, and photographs, with
Chromium: the page at 1280 pixels (a desk) and at 390 (a phone), and the tabs of
TensorBoard. Two minutes on two cores.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from keras_fm.lab import report

_TABS = {
    "budget": ("#text&tagFilter=budget%7Ctable", 1500),
    "statement": ("#text&tagFilter=statement", 900),
    "images": ("#images", 1500),
    "scalars": ("#scalars", 1000),
    "hparams": ("#hparams", 600),
}
_STEPS = "#scalars&tagFilter=privacy%7Cstep%7Caccuracy"


def main():
    """Makes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="docs/results/screens")
    parser.add_argument("--runs", default="docs/results/digits")
    given = parser.parse_args()
    out = pathlib.Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        page = folder / "page.html"
        report.write([report.read(given.runs)], str(page))
        camera = Camera(folder)
        camera.take(page.as_uri(), out / "report_desk.png", 1280, 2100)
        camera.take(page.as_uri(), out / "report_phone.png", 390, 1500)
        train(folder / "logs")
        with TensorBoard(folder / "logs") as address:
            for name, (tab, height) in _TABS.items():
                place = out / f"tensorboard_{name}.png"
                camera.take(address + tab, place, 1280, height, wait=25)
        take_steps(folder / "steps", camera, out)


def take_steps(logs, camera, out):
    """Noisy steps in TensorBoard, and the page of the fit."""
    train_steps(logs)
    page = logs.parent / "fit.html"
    report.write([report.read(logs)], str(page))
    camera.take(page.as_uri(), out / "report_fit_desk.png", 1280, 2000)
    camera.take(page.as_uri(), out / "report_fit_phone.png", 390, 1700)
    with TensorBoard(logs) as address:
        place = out / "tensorboard_steps.png"
        camera.take(address + _STEPS, place, 1280, 1300, wait=25)


def train_steps(folder):
    """Noisy steps of a small network on all its layers."""
    import keras

    import keras_fm as fm

    (x, y), test = fm.datasets.load("digits")
    layers = [keras.Input(x.shape[1:]), keras.layers.Flatten()]
    layers.append(keras.layers.Dense(32, activation="relu"))
    layers.append(keras.layers.Dense(10, activation="softmax"))
    network = fm.make_private(keras.Sequential(layers))
    network.compile(
        keras.optimizers.SGD(0.5),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    private = fm.callbacks.PrivateModel(epsilon=8.0, delta=1e-5)
    board = fm.callbacks.PrivacyTensorBoard(private, folder)
    network.fit(
        x,
        y,
        batch_size=256,
        epochs=20,
        callbacks=[private, board],
        validation_data=test,
        verbose=0,
    )


def train(folder):
    """The quickstart's model at three budgets, and filters at one."""
    import keras

    import keras_fm as fm

    (x, y), test = fm.datasets.load("digits")
    unit = fm.layers.NormalizationLayer
    dense = [
        keras.Sequential(
            [
                keras.Input(x.shape[1:]),
                keras.layers.Flatten(),
                unit(),
                fm.layers.RandomFeatures(64, kind="fourier", scale=0.7),
                unit(),
                fm.layers.PrivateDense(10, name="head"),
            ]
        )
        for _ in range(3)
    ]
    filters = fm.models.PrivateCDBN(
        x.shape[1:], 10, maps=((16, 3), (32, 3)), dense=128
    )
    for name, model, epsilon in zip(
        ("epsilon 0.5", "epsilon 2", "epsilon 8", "filters, epsilon 8"),
        (*dense, filters),
        (0.5, 2.0, 8.0, 8.0),
    ):
        # From where they are, so that curves show a way to the minimum.
        private = fm.callbacks.PrivateModel(
            epsilon=epsilon,
            delta=1e-5,
            data=(x, y),
            guarantee=fm.Proven(start="current"),
        )
        board = fm.callbacks.PrivacyTensorBoard(private, folder / name)
        model.compile(
            "adam", loss=fm.losses.TaylorCrossEntropy(), metrics=["accuracy"]
        )
        model.fit(
            x,
            y,
            epochs=8,
            callbacks=[private, board],
            validation_data=test,
            verbose=0,
        )


class Camera:
    """Chromium without a window.

    Args:
        folder: for its profile.
    """

    def __init__(self, folder):
        found = map(
            shutil.which, ("chromium", "chromium-browser", "google-chrome")
        )
        self._browser = next(filter(None, found), None)
        if self._browser is None:
            raise SystemExit("No Chromium is installed.")
        self._profile = folder / "profile"

    def take(self, address, path, width, height, wait=0):
        """Photographs a page, after so many seconds of its own clock."""
        words = ["--headless", "--no-sandbox", "--disable-gpu"]
        words += ["--hide-scrollbars", f"--user-data-dir={self._profile}"]
        words += ["--blink-settings=preferredColorScheme=1"]
        words += [f"--window-size={width},{height}", f"--screenshot={path}"]
        if wait:
            words.append(f"--virtual-time-budget={1000 * wait}")
        subprocess.run(
            [self._browser, *words, address],
            check=True,
            capture_output=True,
            timeout=300,
        )
        sys.stdout.write(f"{path}\n")


class TensorBoard:
    """A server of a folder of logs, while a `with` block lasts."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        words = ["-m", "tensorboard.main", f"--logdir={folder}"]
        words += [f"--port={self._port}", "--host=127.0.0.1"]
        self._command = [sys.executable, *words, "--load_fast=false"]

    def __enter__(self):
        self._server = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        address = f"http://127.0.0.1:{self._port}/"
        for _ in range(240):
            try:
                urllib.request.urlopen(address, timeout=5).read()
                # What was written has to be read, too.
                time.sleep(10)
                return address
            except OSError:
                time.sleep(0.5)
        raise SystemExit("TensorBoard does not answer.")

    def __exit__(self, *_):
        self._server.terminate()
        self._server.wait()


if __name__ == "__main__":
    main()
