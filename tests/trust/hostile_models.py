"""Saved models with something spoiled: in the file, in a configuration, in
what a layer stored.

A `.keras` file is read by Keras, whose errors are of many kinds. What is asked
for here is that no error of another kind than ValueError comes out of this
package, and that nothing is run or charged. The bytes of `model.weights.h5`
are left alone: they are the HDF5 library's to read, which is known to crash.
"""

import io
import json
import os
import random
import zipfile

import hostile_files
import keras
import numpy as np

import keras_fm as fm

WEIGHTS = "model.weights.h5"
# Names that Keras looks up, and must not run.
CALLED = [
    *("os", "subprocess", "builtins", "eval", "system", "Popen", "keras.ops"),
    *("__lambda__", "Lambda", "keras_fm", "keras_fm>PrivateDense", "numpy"),
    {"class_name": "__lambda__", "config": {"value": "gA=="}},
    {"class_name": "function", "module": "os", "config": "system"},
    {"class_name": "Lambda", "module": "keras.layers", "config": {}},
    {"module": "subprocess", "class_name": "Popen", "config": {"args": "ls"}},
]


def _fitted():
    """A model with a released encoder, map and head."""
    model = keras.Sequential(
        [
            keras.Input((6,)),
            fm.layers.PrivateNormalization((0, 1), name="columns"),
            fm.layers.NormalizationLayer(),
            fm.layers.DPPCA(3, name="pca"),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(3, name="head"),
        ]
    )
    rng = np.random.default_rng(0)
    data = rng.random((40, 6)).astype("float32"), np.arange(40) % 3
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(fm.PrivacyBudget(2.0, 1e-5), data=data)
    model.fit(*data, callbacks=[private], verbose=0)
    return model


class Models:
    """Valid ones, their spoiled copies, and what reads them."""

    def __init__(self, folder):
        self._path = os.path.join(folder, "model.keras")
        self.model = _fitted()
        self.model.save(self._path)
        with open(self._path, "rb") as f:
            self._raw = f.read()
        with zipfile.ZipFile(self._path) as archive:
            self._members = {n: archive.read(n) for n in archive.namelist()}
        self._layers = [v for v in self.model.layers if v.weights]
        self._stores = []
        for layer in self._layers:
            store = {}
            layer.save_own_variables(store)
            self._stores.append({k: np.asarray(v) for k, v in store.items()})
        self._configs = [
            keras.saving.serialize_keras_object(layer)
            for layer in (
                *self.model.layers,
                fm.models.FunctionalNet(
                    (4,), [keras.layers.Dense(3)], clip=0.5
                ),
                fm.models.DeepPrivateAutoencoder((4,), hidden=(3,), units=2),
            )
        ]

    def files(self, count, spoil_value):
        rng = random.Random("models")
        numbers = np.random.default_rng(3)
        start = self._raw.index(self._members[WEIGHTS])
        end = start + len(self._members[WEIGHTS])
        yield self._raw
        for _ in range(count - 1):
            kind = rng.randrange(3)
            members = dict(self._members)
            if kind == 0:
                # Heads, names and tables of the archive.
                head, tail = self._raw[:start], self._raw[end:]
                if rng.random() < 0.5:
                    head = hostile_files.spoil(head, numbers)
                else:
                    tail = hostile_files.spoil(tail, numbers)
                yield head + self._raw[start:end] + tail
                continue
            name = rng.choice([n for n in members if n != WEIGHTS])
            if kind == 1:
                members[name] = hostile_files.spoil(members[name], numbers)
            else:
                value = json.loads(members[name])
                members[name] = json.dumps(spoil_value(value, rng)).encode()
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as archive:
                for member, content in members.items():
                    archive.writestr(member, content)
            yield buffer.getvalue()

    def read_file(self, raw):
        with open(self._path, "wb") as f:
            f.write(raw)
        only_ours(lambda: _look(keras.saving.load_model(self._path)))

    def configs(self, count, spoil_value):
        rng = random.Random("configs")
        yield from self._configs
        for _ in range(count - len(self._configs)):
            yield spoil_value(rng.choice(self._configs), rng)

    def read_config(self, config):
        only_ours(lambda: keras.saving.deserialize_keras_object(config))

    def stores(self, count, spoil_text):
        rng = random.Random("stores")
        numbers = np.random.default_rng(4)
        places = range(len(self._stores))
        yield from ((at, self._stores[at]) for at in places)
        for _ in range(count - len(self._stores)):
            at = rng.choice(places)
            yield at, _spoiled_store(self._stores[at], rng, numbers, spoil_text)

    def read_store(self, value):
        at, store = value
        layer = self._layers[at]
        only_ours(lambda: layer.load_own_variables(store))
        only_ours(lambda: _look(self.model))


def _look(model):
    """What whoever loads a model asks of it."""
    for layer in model.layers:
        if getattr(layer, "is_released", False) and layer.ledger_json:
            fm.Ledger.from_json(layer.ledger_json).statement()


def _spoiled_store(store, rng, numbers, spoil_text):
    """A copy in which one array is another, or has another name."""
    store, key = dict(store), rng.choice(list(store))
    value, kind = store.pop(key), rng.randrange(7)
    if kind == 0:
        return store
    if kind == 1:
        return {**store, rng.choice([*store, "9", "x", ""]): value}
    if key == "ledger" or kind == 2:
        raw = spoil_text(value.tobytes(), rng)
        return {**store, key: np.frombuffer(raw, np.uint8)}
    other = {
        3: lambda: value.ravel()[: rng.randrange(3)],
        4: lambda: value[None],
        5: lambda: rng.choice(
            [np.array("a"), np.array(None), np.zeros((2, 2), complex)]
        ),
        6: lambda: np.where(
            numbers.random(value.shape) < 0.5,
            rng.choice([np.nan, np.inf, -1, 1e308]),
            value,
        ),
    }[kind]()
    return {**store, key: other}


def only_ours(read):
    """Calls `read`; of errors only what this package is not to blame for.

    Raises:
        ValueError: for every error that is let pass.
    """
    try:
        read()
    except ValueError:
        raise
    except Exception as e:
        error = e
        # A ValueError of ours may have had another reason.
        while error is not None and not isinstance(error, ValueError):
            assert not _is_ours(error), e
            error = error.__cause__ or error.__context__
        raise ValueError(f"{type(e).__name__}: {e}") from e


_OURS = os.path.dirname(fm.__file__) + os.sep
_THEIRS = os.path.dirname(keras.__file__) + os.sep


def _is_ours(error):
    """Whether it came out of this package, or out of what this package
    called, but not out of Keras. A shape that is none is given by Keras to
    the `build` of every layer; an argument that there is not, or that is
    missing, is refused by Python."""
    if isinstance(error, TypeError) and "argument" in str(error):
        return False
    frame, last = error.__traceback__, False
    while frame is not None:
        code = frame.tb_frame.f_code
        if code.co_filename.startswith(_OURS):
            if code.co_name == "build":
                return False
            last = True
        elif code.co_filename.startswith(_THEIRS):
            last = False
        frame = frame.tb_next
    return last
