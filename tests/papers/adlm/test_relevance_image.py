"""Only released relevance becomes a picture."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import RelevanceImage


def fitted(picture_of):
    rng = np.random.default_rng(0)
    x = rng.random((300, 4, 4)).astype("float32")
    y = np.arange(300) % 3
    model = fm.models.AdaptiveLaplace((4, 4), 3)
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    p = fm.callbacks.PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=(x, y))
    model.fit(x, y, callbacks=[picture_of(p), p], verbose=0)
    return p


def written(folder):
    from tensorboard.backend.event_processing import event_accumulator

    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    return events


def is_picture(events, tag):
    [found] = events.Tensors(tag)
    return found.tensor_proto.string_val[2][:4] == b"\x89PNG"


def test_a_png(tmp_path):
    path = tmp_path / "r.png"
    p = fitted(lambda p: RelevanceImage(p, path=path, shape=(4, 4)))
    assert p.relevance.shape == (16,)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    fitted(lambda p: RelevanceImage(p, log_dir=str(tmp_path)))
    events = written(tmp_path)
    assert events.Tags()["tensors"] == ["privacy/relevance"]
    assert is_picture(events, "privacy/relevance")


def test_without_the_package_there_is_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="use `path=`"):
        RelevanceImage(None, log_dir=str(tmp_path))


def test_the_board_of_all_that_is_released_has_it(tmp_path):
    pytest.importorskip("tensorboard")
    fitted(lambda p: fm.callbacks.PrivacyTensorBoard(p, tmp_path))
    assert is_picture(written(tmp_path), "pictures/relevance")


def test_a_fit_without_relevance_writes_nothing(tmp_path):
    x, y = np.ones((60, 4), "float32"), np.arange(60) % 3
    model = keras.Sequential(
        [
            keras.Input((4,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(3),
        ]
    )
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    p = fm.callbacks.PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=(x, y))
    picture = RelevanceImage(p, path=tmp_path / "r.png")
    model.fit(x, y, callbacks=[p, picture], verbose=0)
    assert not list(tmp_path.iterdir())


def test_it_must_know_where_to_write():
    with pytest.raises(ValueError, match="`path`, `log_dir` or both"):
        RelevanceImage(None)
