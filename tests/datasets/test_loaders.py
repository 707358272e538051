"""Loaders: shapes, ranges, where files are looked for, bad files."""

import numpy as np
import pytest

from keras_fm import datasets

pytestmark = pytest.mark.once


def arrays(n=4):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 5, 5), dtype=np.uint8)
    labels = np.arange(n) % 3
    return {
        "x_train": images,
        "y_train": labels,
        "x_test": images[:2],
        "y_test": labels[:2],
    }


def test_digits_are_embedded_and_split_by_a_rule():
    (x, y), (x_test, y_test) = datasets.load("digits")
    assert x.shape == (1437, 8, 8, 1) and x_test.shape == (360, 8, 8, 1)
    assert x.dtype == np.float32 and 0 <= x.min() and x.max() == 1
    assert set(y) == set(range(10)) == set(y_test)
    # Disjoint: the split is by position, and no digit image repeats.
    rows = {r.tobytes() for r in x}
    assert not any(r.tobytes() in rows for r in x_test)


def test_npz_pixels_are_scaled_and_channels_added(tmp_path):
    path = tmp_path / "set.npz"
    content = arrays()
    np.savez(path, **content)
    (x, y), (x_test, _) = datasets.load(str(path))
    assert x.shape == (4, 5, 5, 1) and x_test.shape == (2, 5, 5, 1)
    np.testing.assert_allclose(x[..., 0], content["x_train"] / 255, rtol=1e-6)
    assert y.dtype == np.int64


def test_the_data_folder_comes_first(tmp_path, monkeypatch):
    np.savez(tmp_path / "mnist.npz", **arrays())
    monkeypatch.setenv("KERAS_FM_DATA", str(tmp_path))
    assert datasets.load("mnist")[0][0].shape == (4, 5, 5, 1)


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Cannot load"):
        datasets.load(str(tmp_path / "absent.npz"))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match="Cannot load"):
        datasets.load(str(tmp_path / "text.npz"))
    content = arrays()
    del content["y_test"]
    np.savez(tmp_path / "short.npz", **content)
    with pytest.raises(ValueError, match="lacks the array"):
        datasets.load(str(tmp_path / "short.npz"))


def test_pickled_objects_are_never_loaded(tmp_path):
    class Boom:
        def __reduce__(self):
            return (pytest.fail, ("code from a file was executed",))

    content = arrays()
    content["x_train"] = np.array([Boom()], dtype=object)
    np.savez(tmp_path / "pickle.npz", **content)
    with pytest.raises(ValueError, match="Cannot load"):
        datasets.load(str(tmp_path / "pickle.npz"))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"y_train": np.arange(3)}, "4 images, 3 labels"),
        (
            {"x_train": np.zeros((0, 5, 5), "uint8"), "y_train": np.arange(0)},
            "0 images, 0 labels",
        ),
        ({"x_test": np.zeros((2, 6, 5), "uint8")}, "one shape in both parts"),
        ({"y_train": -np.arange(4)}, "0 or greater"),
        ({"y_train": np.zeros(4, int), "y_test": np.zeros(2, int)},
         "two classes"),
        ({"x_test": np.full((2, 5, 5), np.nan)}, "`images` must be finite"),
    ],
)  # fmt: skip
def test_arrays_that_no_run_could_use_are_refused(tmp_path, changed, message):
    """They ended in the middle of a comparison, by an error of Keras."""
    np.savez(tmp_path / "a.npz", **(arrays() | changed))
    with pytest.raises(ValueError, match=message) as e:
        datasets.load(str(tmp_path / "a.npz"))
    assert "Cannot load" in str(e.value)
