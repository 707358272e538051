"""TensorBoard's files without TensorFlow: what its own reader finds in them."""

import io
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import image

from keras_fm.core import event_file

pytest.importorskip("tensorboard")
VALUES = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
PIXELS = np.random.default_rng(1).random((5, 7, 3))


def _png():
    buffer = io.BytesIO()
    image.imsave(buffer, np.uint8(PIXELS * 255))
    return buffer.getvalue()


def _write(folder):
    file = event_file.EventFile(folder)
    file.hparams({"epsilon": 2.0, "guarantee": "proven"}, "first")
    for file.step in (0, 1):
        file.scalar("a/loss", 0.5 + file.step, "What is released.")
    file.text("a/words", "| a | b |\n|---|---|\n| 1 | 2 |")
    file.histogram("a/weights", VALUES)
    file.image("a/drawn", _png())
    file.image("a/pixels", PIXELS)
    file.image("a/grey", PIXELS[..., :1])
    file.close()


def _read(folder):
    """`{tag: (plugin, description, [(step, array)])}`."""
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    found = event_accumulator.EventAccumulator(
        str(folder), size_guidance={"tensors": 0}
    )
    found.Reload()
    read = {}
    for tag in found.Tags()["tensors"]:
        about = found.SummaryMetadata(tag)
        points = [
            (event.step, tensor_util.make_ndarray(event.tensor_proto))
            for event in found.Tensors(tag)
        ]
        read[tag] = about.plugin_data.plugin_name, about, points
    return read


def _pixels(value):
    width, height, *pictures = value
    (picture,) = pictures
    shown = np.atleast_3d(image.imread(io.BytesIO(picture)))[..., :3]
    assert shown.shape[:2] == (int(height), int(width))
    return shown


def test_everything_is_read_again(tmp_path):
    _write(tmp_path)
    found = _read(tmp_path)
    assert {tag: plugin for tag, (plugin, *_) in found.items()} == {
        "_hparams_/session_start_info": "hparams",
        "a/loss": "scalars",
        "a/words": "text",
        "a/weights": "histograms",
        "a/drawn": "images",
        "a/pixels": "images",
        "a/grey": "images",
    }
    _, about, points = found["a/loss"]
    assert points == [(0, 0.5), (1, 1.5)]
    assert about.summary_description == "What is released."
    assert found["a/words"][2][0][1].ravel()[0].startswith(b"| a | b |")
    step, edges = found["a/weights"][2][0]
    assert step == 1 and edges[:, 2].sum() == VALUES.size
    assert edges[0, 0] == VALUES.min() and edges[-1, 1] == VALUES.max()
    for tag, right in (
        ("a/drawn", PIXELS),
        ("a/pixels", PIXELS),
        ("a/grey", PIXELS[..., :1].repeat(3, axis=-1)),
    ):
        shown = _pixels(found[tag][2][0][1])
        np.testing.assert_allclose(shown, right, atol=1 / 255 + 1e-6)


def test_numbers_that_are_none_end_no_training(tmp_path):
    """Weights of a training that diverged."""
    file = event_file.EventFile(tmp_path)
    file.histogram("a", np.array([1.0, np.nan, np.inf]))
    file.histogram("b", np.array([np.nan]))
    file.histogram("c", np.zeros((0, 3)))
    file.image("d", np.full((2, 2, 1), np.nan))
    file.close()
    found = _read(tmp_path)
    assert found["a"][2][0][1][:, 2].sum() == 1
    assert set(found) == {"a", "b", "c", "d"}


def test_no_framework_is_loaded(tmp_path):
    """As where TensorFlow is not installed, or is and takes seconds."""
    code = (
        "import sys\n"
        "sys.modules['tensorflow'] = None\n"
        "from keras_fm.core import event_file\n"
        f"file = event_file.EventFile({str(tmp_path)!r})\n"
        "file.hparams({'a': 1.0}, 'run')\n"
        "file.histogram('h', [1.0, 2.0])\n"
        "file.text('t', 'words')\n"
        "file.image('i', [[[0.5]]])\n"
        "file.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(_read(tmp_path)) == 4
