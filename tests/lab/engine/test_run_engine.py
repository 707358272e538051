"""What is kept, what is asked again, and what a row says."""

import math

import numpy as np
import pytest

from keras_fm.core import event_file
from keras_fm.lab.engine import grid, means, measuring, plot, store
from keras_fm.lab.engine.answering import answer_all
from keras_fm.lab.engine.job import Job, Measured, Series
from keras_fm.lab.engine.training import Training
from keras_fm.lab.engine.watch import Watch
from keras_fm.lab.report import own_fit

pytestmark = pytest.mark.once


def test_an_answer_is_on_disk_as_soon_as_it_is_there(tmp_path):
    path = str(tmp_path / "runs" / "points.jsonl")
    kept = store.Store(path, fields=("y",))
    kept.add("a", {"y": math.inf, "x": "inf at last"})
    again = store.Store(path, fields=("y",))
    assert again["a"] == {"y": math.inf, "x": "inf at last"}
    # A field more is asked for, or nothing is to be taken up.
    assert "a" not in store.Store(path, fields=("y", "z"))
    assert "a" not in store.Store(path, is_fresh=True)


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path):
    path = tmp_path / "points.jsonl"
    store.Store(str(path)).add("a", {"y": 1})
    whole = path.read_text()
    path.write_text(whole + whole[:9])
    kept = store.Store(str(path))
    assert "a" in kept
    kept.add("b", {"y": 2})
    again = store.Store(str(path))
    assert (again["a"], again["b"]) == ({"y": 1}, {"y": 2})


def test_other_code_is_another_key(monkeypatch):
    first = store.key("a", {"epsilon": 1.0})
    assert first == store.key("a", {"epsilon": 1.0})
    assert first != store.key("a", {"epsilon": 2.0})
    monkeypatch.setattr(store, "code", lambda: "other")
    assert first != store.key("a", {"epsilon": 1.0})


def test_fourteen_lines_look_different():
    looks = list(zip(plot.colors(14), plot.markers(14)))
    assert len({color for color, _ in looks}) == 14
    assert len({marker for _, marker in looks}) == 14
    assert len(plot.markers(15)) == 15


def test_only_what_is_missing_is_asked_for_and_all_come_in_order():
    kept = store.Store(None)
    kept.add("b", {"y": 2})
    asked = []

    def pool(requests):
        for key in reversed(requests):
            asked.append(key)
            yield key, {"y": requests[key]}

    found = answer_all({"a": 1, "b": 0, "c": 3}, kept, pool)
    assert found == ([{"y": 1}, {"y": 2}, {"y": 3}], 2)
    assert asked == ["c", "a"]
    assert answer_all({"a": 1}, kept, None) == ([{"y": 1}], 0)


def test_a_row_counts_what_was_shared_and_not_what_looks_at_it():
    with Watch() as before:
        pass
    before.seconds = before.cpu_seconds = 1e6
    series = Series(name="ours", label="ours", kind="no privacy")
    looked = []

    def curve():
        looked.append(True)
        return ((None, np.float32(0.5)),)

    row = measuring.measure(
        Job(series="ours"), series, lambda: Measured(curve=curve), before
    )
    assert row["curve"] == [[None, 0.5]] and looked == [True]
    assert row["seconds"] >= 1e6 and row["cpu_seconds"] >= 1e6
    assert set(row) == set(measuring.FIELDS)


def test_means_take_the_worst_epsilon():
    row = {
        "claimed": 1.0,
        "delta": 0.0,
        "neighbours": "",
        "seconds": 1.0,
        "cpu_seconds": 1.0,
    }
    rows = [{**row, "proven": p} for p in (0.9, 1.0)]
    found = means.mean(rows, [0.2, 0.4])
    assert found["y"] == pytest.approx(0.3) and found["proven"] == 1.0
    assert found["spread"] == pytest.approx(0.2 / 2**0.5)
    assert means.mean(rows[:1], [0.2])["spread"] == 0.0
    assert means.most([None, None]) is None


def test_the_best_proven_of_a_column_is_marked():
    def place(name, epsilon, value, kind="proven", relation="add_remove"):
        return grid.Place(
            name=name,
            epsilon=epsilon,
            value=value,
            kind=kind,
            relation=relation,
        )

    found = grid.of(
        [
            place("a", 1.0, 0.5),
            place("a", 2.0, 0.9),
            place("b", 1.0, 0.6),
            place("b", 2.0, 0.7),
            # Better, but of another relation, without a proof, or private.
            place("c", 1.0, 0.1, relation="replace_one"),
            place("d", 1.0, 0.8, "claimed", "replace_one"),
            place("e", None, 0.99, "no privacy"),
            place("broken", 1.0, math.nan),
        ]
    )
    assert found.epsilons == [1.0, 2.0]
    assert found.names == {
        "proven": ["a", "b", "c"],
        "claimed": ["d"],
        "no privacy": ["e"],
    }
    assert found.best == {("b", 1.0), ("a", 2.0), ("c", 1.0)}


def test_labels_stand_apart_and_in_order():
    values = [0.5, 0.51, 0.99, 0.5, 1.0]
    found = plot.apart(values, 0.1)
    order = sorted(range(5), key=values.__getitem__)
    steps = np.diff([found[i] for i in order])
    assert (steps > 0.1 - 1e-9).all() and 0 <= min(found) and max(found) <= 1
    # As far as there is room.
    crowd = sorted(plot.apart([1.0] * 11, 0.5))
    np.testing.assert_allclose(np.diff(crowd), 0.1)
    assert plot.apart([], 0.1) == [] and plot.apart([0.3], 0.1) == [0.3]


def test_a_window_is_on_what_is_proven():
    low, high = plot.window([(50.0, 0), (90.0, 0)], [10.0, 95.0, 400.0])
    assert 45 < low < 50 and 95 < high < 100
    low, high = plot.window([(70.0, 0)])
    assert low < 70 < high


def test_full_batches_are_several_to_an_epoch():
    x, y = np.zeros((10, 2)), np.arange(10)
    found = Training(epochs=45)._batches(x, y)
    assert len(found["x"]) == 200 and found["batch_size"] == 10
    assert found["epochs"] == 3 and found["shuffle"] is False
    assert np.array_equal(found["y"], np.tile(y, 20))
    found = Training(epochs=45, lot=4)._batches(x, y)
    assert found["epochs"] == 45 and found["batch_size"] == 4
    assert found["x"] is x and found["shuffle"]


def test_curves_without_privacy_need_no_tensorflow(tmp_path):
    """Keras' own callback stopped a comparison on PyTorch."""
    keras = pytest.importorskip("keras")
    if not event_file.can_be_written():
        pytest.skip("the package tensorboard is not installed")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    data = np.zeros((8, 2), "float32"), np.zeros(8, int)
    Training(epochs=2, lot=4, log_dir=str(tmp_path)).fit(model, data)
    curves, _, _ = own_fit._events(map(str, tmp_path.iterdir()))
    (steps,) = [[s for s, _ in v] for k, v in curves.items() if "loss" in k]
    assert steps == [1, 2]
