"""More than one device, and more than one process."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
BACKEND = keras.backend.backend()


def start(script, *arguments):
    environment = dict(os.environ, KERAS_BACKEND=BACKEND, OMP_NUM_THREADS="1")
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    return printed


@pytest.mark.skipif(
    BACKEND == "torch", reason="Keras on PyTorch has no distribution of its own"
)
@pytest.mark.parametrize("guarantee", ["proven", "published"])
def test_two_devices_train_as_one(guarantee):
    """MirroredStrategy, and DataParallel on JAX."""
    printed = finished(start("two_devices.py", guarantee))
    found = json.loads(printed.strip().splitlines()[-1])
    assert found["devices"] == 2
    # One draw of the noise, the same on both devices.
    assert len(set(found["entries"])) == 1 and found["entries"][0] > 0
    assert found["difference"] < 1e-5 < 0.1 < found["moved"]
    np.testing.assert_allclose(*found["losses"], rtol=1e-4)


@pytest.mark.skipif(BACKEND == "torch", reason="as above")
def test_two_processes_share_one_release(tmp_path):
    """Each reads half of the records; one draws the noise."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        # Of a pair of free ports above it the scripts take the next two.
        port = probe.getsockname()[1]
    both = [start("two_processes.py", i, port, tmp_path) for i in range(2)]
    for process in both:
        finished(process)
    found = [
        json.loads((tmp_path / f"found_{i}.json").read_text()) for i in (0, 1)
    ]
    for one in found:
        assert one["entries"] == 1
        assert "several processes" in one["refusal"]
        assert "2 processes" in one["refusal"]
    assert found[0]["kernel"] == found[1]["kernel"]
    assert np.abs(found[0]["kernel"]).max() > 0.1
    assert found[0]["quadratic"] == found[1]["quadratic"]
    np.testing.assert_allclose(
        found[0]["quadratic"], in_one_process(), rtol=0, atol=1e-9
    )


def in_one_process():
    """The same release of the same records, with the same seed."""
    import keras_fm as fm
    from keras_fm.mechanisms import NoiseSource
    from keras_fm.release import calibrate, release

    (x, y), _ = fm.datasets.load("digits")
    layer = fm.layers.PrivateDense(10)
    layer.build((None, 64))
    normalise = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(),
        ]
    )
    h = normalise.predict(x[:400], verbose=0)
    budget = fm.PrivacyBudget(2.0, 1e-5)
    made = release(
        layer.objective(),
        [(layer.augment(h), y[:400])],
        mechanism=calibrate(layer.objective(), budget, neighbours="add_remove"),
        ledger=fm.Ledger(budget, neighbours="add_remove"),
        name="head",
        noise=NoiseSource(0),
    )
    return made.quadratic
