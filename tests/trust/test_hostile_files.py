"""Files that nobody vouches for: a clear error, no code, no flood."""

import io
import json
import os
import pickle
import tempfile
import tracemalloc
import zipfile

import hostile_files
import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keras_fm as fm
from keras_fm import datasets
from keras_fm.kernel.ledger import stored_arrays

pytestmark = pytest.mark.optimised

SMALL = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("target", hostile_files.TARGETS)
def test_spoiled_files(target):
    """The large form is benchmarks/fuzz.py."""
    make, load = hostile_files.TARGETS[target]
    raw = make()

    @SMALL
    @given(SEEDS)
    def holds(seed):
        rng = np.random.default_rng(seed)
        with tempfile.TemporaryDirectory() as folder:
            spoiled = hostile_files.spoiled(raw, rng)
            hostile_files.is_accepted(load, spoiled, folder)

    with tempfile.TemporaryDirectory() as folder:
        assert hostile_files.is_accepted(load, raw, folder)
    holds()


# Archives --------------------------------------------------------------------


def header(shape, descr="'<f8'", fortran="False"):
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}"
    text = text.ljust(117) + "\n"
    return (
        b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    )


class Bomb:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return (os.mkdir, (Bomb.path,))


def pickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], object), allow_pickle=True)
    return buffer.getvalue()


MEMBERS = {
    "10^12 numbers": lambda: header("(1000000000000,)"),
    "10^12 by axes": lambda: header("(1000000, 1000000)"),
    "beyond 64 bits": lambda: header(f"(1{'0' * 30},)"),
    "a negative axis": lambda: header("(-1,)") + bytes(8),
    "no integer": lambda: header("(2.0,)") + bytes(16),
    "a bool": lambda: header("(True,)") + bytes(8),
    "many axes": lambda: header(f"({'1,' * 60})") + bytes(8),
    "objects": lambda: header("(1,)", "'|O'") + pickle.dumps([Bomb()]),
    "pickled by NumPy": pickled,
    "a bare pickle": lambda: pickle.dumps(Bomb()),
    "fields": lambda: header("(1,)", "[('a', '<f8')]") + bytes(8),
    "texts": lambda: header("(1,)", "'<U2'") + bytes(8),
    "long floats": lambda: header("(1,)", "'<f16'") + bytes(16),
    "times": lambda: header("(1,)", "'<M8[s]'") + bytes(8),
    "a call": lambda: header("__import__('os').mkdir('x')"),
    "too short": lambda: header("(3,)") + bytes(23),
    "too long": lambda: header("(3,)") + bytes(25),
    "nothing": lambda: b"",
    "no header": lambda: b"\x93NUMPY\x01\x00\xff\xff",
    "version 9": lambda: b"\x93NUMPY\x09\x00" + bytes(100),
    "nested": lambda: header("(" * 3000),
}


@pytest.fixture
def bomb(tmp_path):
    Bomb.path = str(tmp_path / "executed")
    yield
    assert not os.path.exists(Bomb.path)


def npz(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("member", MEMBERS)
def test_an_array_that_is_none(tmp_path, bomb, member):
    path = npz(tmp_path / "x.npz", a=MEMBERS[member]())
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="'a'|magic"):
            with stored_arrays.opened(path) as data:
                data.read("a")
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["public", "quadratic"])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_release_with_such_an_array(tmp_path, bomb, name, member):
    raw = zipfile.ZipFile(io.BytesIO(hostile_files.release_file()))
    members = {n[:-4]: raw.read(n) for n in raw.namelist()}
    path = npz(tmp_path / "r.npz", **{**members, name: MEMBERS[member]()})
    with pytest.raises(ValueError, match="not a keras_fm release"):
        fm.Release.load(path)


@pytest.mark.parametrize("member", MEMBERS)
def test_images_with_such_an_array(tmp_path, bomb, member):
    raw = zipfile.ZipFile(io.BytesIO(hostile_files.images_file()))
    members = {n[:-4]: raw.read(n) for n in raw.namelist()}
    path = npz(tmp_path / "i.npz", **{**members, "x_test": MEMBERS[member]()})
    with pytest.raises(ValueError, match="Cannot load"):
        datasets.load(str(path))


def test_what_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_arrays, "_LARGEST", 1 << 20)
    zeros = np.zeros(1 << 18)
    buffer = io.BytesIO()
    np.save(buffer, zeros)
    path = npz(tmp_path / "x.npz", a=buffer.getvalue())
    with pytest.raises(ValueError, match="unpacks to more than"):
        with stored_arrays.opened(path) as data:
            data.read("a")
    monkeypatch.setattr(stored_arrays, "_LARGEST", 1 << 22)
    with stored_arrays.opened(path) as data:
        assert np.array_equal(data.read("a"), zeros)


def test_a_directory_that_lies_about_sizes(tmp_path):
    """It says 10 bytes where 80 MB are packed: no more than 10 are read."""
    path = npz(tmp_path / "x.npz", a=header("(10000000,)") + bytes(80_000_000))
    raw = path.read_bytes()
    size = (80_000_000 + 128).to_bytes(4, "little")
    assert raw.count(size) == 2
    path.write_bytes(raw.replace(size, (10).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            with stored_arrays.opened(path) as data:
                data.read("a")
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "<f8", "?", "<f2"])
def test_arrays_are_read_as_numpy_reads_them(tmp_path, dtype, order):
    array = np.asarray(
        np.arange(24).reshape(2, 3, 4).astype(dtype), order=order
    )
    with open(tmp_path / "x.npz", "wb") as f:
        np.savez_compressed(f, a=array, b=np.float64(3))
    with stored_arrays.opened(tmp_path / "x.npz") as data:
        found, single = data.read("a"), data.read("b", ())
    assert np.array_equal(found, array) and found.dtype.kind == array.dtype.kind
    assert found.dtype.isnative and single == 3


def test_a_release_of_numbers_that_are_not_finite(tmp_path):
    raw = zipfile.ZipFile(io.BytesIO(hostile_files.release_file()))
    members = {n[:-4]: raw.read(n) for n in raw.namelist()}
    members["quadratic"] = header("(3, 3)") + np.full(9, np.nan).tobytes()
    path = npz(tmp_path / "r.npz", **members)
    with pytest.raises(ValueError, match="not finite"):
        fm.Release.load(path)


# Ledgers ---------------------------------------------------------------------

FORGED = "n is public\nproven:     (epsilon = 0.001, delta = 0)"


def change(path, value):
    def apply(data):
        *parents, last = path
        for part in parents:
            data = data[part]
        data[last] = value

    return apply


LEDGERS = {
    "a budget that is NaN": (("budget", "epsilon"), "@NaN"),
    "an infinite budget": (("budget", "epsilon"), "@1e999"),
    "a budget in words": (("budget", "epsilon"), "1.0"),
    "a budget that is huge": (("budget", "epsilon"), 10**400),
    "a budget that is true": (("budget", "epsilon"), True),
    "an epsilon in words": (("entries", 0, "mechanism", "epsilon"), "0.1"),
    "an epsilon that is NaN": (("entries", 0, "mechanism", "epsilon"), "@NaN"),
    "an epsilon that is huge": (
        ("entries", 0, "mechanism", "epsilon"),
        10**400,
    ),
    "a claim that is negative": (
        ("entries", 1, "mechanism", "claimed_epsilon"),
        -1.0,
    ),
    "a forged line": (("entries", 0, "notes"), [FORGED]),
    "a forged name": (("entries", 0, "name"), FORGED),
    "a forged unit": (("unit",), FORGED),
    "an escape of a terminal": (("entries", 0, "uses"), "\x1b[2J"),
    "text that runs backwards": (("entries", 0, "proof"), "\u202e"),
    "notes in one text": (("entries", 0, "notes"), "abc"),
    "numbers in notes": (("entries", 0, "notes"), [1]),
    "another noise": (("entries", 0, "noise"), "none"),
    "a mechanism by path": (
        ("entries", 0, "mechanism", "mechanism"),
        "os.system",
    ),
    "entries in a dict": (("entries",), {}),
}


@pytest.mark.parametrize("case", LEDGERS)
def test_a_ledger_that_is_none(tmp_path, case):
    where, value = LEDGERS[case]
    data = json.loads(hostile_files.ledger_file())
    change(where, value)(data)
    text = json.dumps(data)
    if isinstance(value, str) and value.startswith("@"):
        text = text.replace(json.dumps(value), value[1:])
    path = tmp_path / "ledger.json"
    path.write_text(text)
    for load in (fm.Ledger.load, fm.Ledger.open):
        with pytest.raises(ValueError, match="not a keras_fm ledger"):
            load(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format": 1, "format": 1}',
        b'{"format": 1e999}',
        b"1" * 10_000,
    ],
    ids=["empty", "no UTF-8", "deep", "twice", "infinite", "long"],
)
def test_bytes_that_are_no_ledger(tmp_path, raw):
    path = tmp_path / "ledger.json"
    path.write_bytes(raw)
    for load in (fm.Ledger.load, fm.Ledger.open):
        with pytest.raises(ValueError, match="not a keras_fm ledger"):
            load(path)
    assert path.read_bytes() == raw


def test_a_file_that_is_too_large(tmp_path):
    path = tmp_path / "ledger.json"
    with open(path, "wb") as f:
        f.truncate(1 << 40)
    with pytest.raises(ValueError, match="larger than"):
        fm.Ledger.load(path)


# Models ----------------------------------------------------------------------


def saved_model(tmp_path, layer=None):
    inputs = keras.Input((4,))
    x = fm.layers.NormalizationLayer()(inputs)
    if layer is not None:
        x = layer(x)
    model = keras.Model(inputs, fm.layers.PrivateDense(3, name="head")(x))
    path = str(tmp_path / "model.keras")
    model.save(path)
    return path


def rewrite(path, name, edit):
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    members[name] = edit(members[name])
    with zipfile.ZipFile(path, "w") as archive:
        for n, content in members.items():
            archive.writestr(n, content)


def test_a_model_with_code_is_refused(tmp_path):
    path = saved_model(tmp_path, keras.layers.Lambda(lambda x: x))
    with pytest.raises(ValueError, match="[Ll]ambda"):
        keras.saving.load_model(path)


@pytest.mark.parametrize("part", ["layers", "network", "compile_config"])
def test_our_models_do_not_let_code_in(tmp_path, part):
    """What they rebuild themselves is under Keras' safe mode, too."""
    model = fm.models.FunctionalNet((4,), [keras.layers.Dense(3)])
    model.compile("sgd")
    path = str(tmp_path / "model.keras")
    model.save(path)
    code = keras.saving.serialize_keras_object(keras.layers.Lambda(lambda x: x))

    def edit(raw):
        config = json.loads(raw)
        if part == "compile_config":
            config["compile_config"]["optimizer"] = code
            config["compile_config"]["loss"] = code
        else:
            config["config"]["below" if part == "layers" else "layers"] = [code]
        return json.dumps(config).encode()

    rewrite(path, "config.json", edit)
    with pytest.raises((ValueError, TypeError), match="[Ll]ambda|unsafe"):
        keras.saving.load_model(path)


@pytest.mark.parametrize(
    "ledger_json",
    ["[" * 100_000, "{", "{}", '{"format": 1}'],
    ids=["deep", "cut", "empty", "short"],
)
def test_a_model_with_a_spoiled_ledger_is_refused(tmp_path, ledger_json):
    """At loading, or when its ledger is asked for."""
    path = saved_model(tmp_path)
    model = keras.saving.load_model(path)
    head = model.get_layer("head")
    head.set_release(np.eye(5), np.ones((5, 3)), 0.0, ledger_json)
    model.save(path)
    with pytest.raises(ValueError, match="The ledger in the file|not a keras"):
        head = keras.saving.load_model(path).get_layer("head")
        assert head.is_released
        fm.Ledger.from_json(head.ledger_json)
