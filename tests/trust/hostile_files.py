"""Loaders, a valid file of each, and ways to spoil one.

A loader may return or raise a ValueError; anything else is a defect. Used by
test_hostile_files.py and benchmarks/fuzz.py.
"""

import io
import json
import os
import tempfile
import zipfile

import numpy as np

from keras_fm import queries as objectives_lib
from keras_fm.datasets import loaders
from keras_fm.kernel import budget, mechanisms, release
from keras_fm.kernel.ledger import ledger, ledger_entry
from keras_fm.kernel.ledger.noisy_statistics import Release
from keras_fm.lab import composition

# What is put in the place of a number, a name or a part of a header.
TOKENS = [
    *(b"0", b"-1", b"1e308", b"1e999", b"-1e999", b"NaN", b"Infinity", b"null"),
    *(b"1" + b"0" * 12, b"1" + b"0" * 400, b"9" * 5000, b"1e-320", b"true"),
    *(b'"1.0"', b"{}", b"[]", b"[" * 100_000, b'{"a":' * 50_000, b'"\\u0000"'),
    *(b"'|O'", b"'<U9'", b"'<f16'", b"(-1,)", b"(1000000000000,)", b"\xff\xfe"),
    *(b'"../../x"', b'"\\n"', b"__import__('os')", b'"add_remove"', b","),
    *(b'"replace_one"', b'"PatchMomentQuery"', b'"GradientQuery"'),
]


# Valid files -----------------------------------------------------------------


def ledger_file():
    made = ledger.Ledger(
        budget.PrivacyBudget(1.0, 1e-5), neighbours="add_remove"
    )
    entry = {"name": "head", "neighbours": "add_remove", "uses": "A and S"}
    made.charge(
        [
            ledger_entry.LedgerEntry(
                **entry,
                guarantee="proven",
                mechanism=mechanisms.LaplaceMechanism(
                    sensitivity=2.0, epsilon=0.25
                ).config(),
                proof="docs/proofs/cross_entropy.md",
                notes=("n is public",),
            ),
            ledger_entry.LedgerEntry(
                **entry,
                guarantee="claimed",
                mechanism={"claimed_epsilon": 0.25},
                proof="none.",
            ),
        ]
    )
    # What this process charged is known to it, and its spoiled copies would
    # be refused for that alone.
    return made.to_json().replace(made.id, "0" * 32).encode()


def release_file():
    objective = objectives_lib.SecondMomentQuery(num_features=3)
    made = release.release(
        objective,
        [(np.full((4, 3), 0.5),)],
        mechanism=mechanisms.LaplaceMechanism(
            sensitivity=objective.sensitivity("l1", neighbours="add_remove"),
            epsilon=1.0,
        ),
        ledger=ledger.Ledger(
            budget.PrivacyBudget(1.0, 0.0), neighbours="add_remove"
        ),
        name="moments",
        noise=mechanisms.NoiseSource(0),
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "release.npz")
        made.save(path)
        with open(path, "rb") as f:
            return f.read()


def images_file():
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        x_train=np.zeros((3, 2, 2), np.uint8),
        y_train=np.arange(3),
        x_test=np.zeros((2, 2, 2), np.float32),
        y_test=np.arange(2)[:, None],
    )
    return buffer.getvalue()


PLAN_JSON = json.dumps(
    {
        "neighbours": "add_remove",
        "stages": [
            {
                "mechanism": "gaussian",
                "noise_multiplier": 1.5,
                "sampling_rate": 0.01,
                "count": 100,
            },
            {"mechanism": "approximate", "epsilon": 0.1, "delta": 1e-6},
        ],
    }
).encode()
PLAN_TOML = b"""
neighbours = "add_remove"
[[stages]]
mechanism = "pure"
epsilon = 0.1
count = 3
"""


# Loaders: each takes the bytes of a file and a folder to put it in -----------


def _put(raw, folder, name):
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(raw)
    return path


def load_ledger(raw, folder):
    path = _put(raw, folder, "ledger.json")
    found = ledger.Ledger.load(path)
    found.statement()
    ledger.Ledger.open(path).remaining()


def load_release(raw, folder):
    found = Release.load(_put(raw, folder, "release.npz"))
    found.vector()


def load_images(raw, folder):
    loaders.load(_put(raw, folder, "images.npz"))


def load_plan_json(raw, folder):
    composition.Plan.load(_put(raw, folder, "plan.json"))


def load_plan_toml(raw, folder):
    composition.Plan.load(_put(raw, folder, "plan.toml"))


TARGETS = {
    "ledger": (ledger_file, load_ledger),
    "release": (release_file, load_release),
    "images": (images_file, load_images),
    "plan.json": (lambda: PLAN_JSON, load_plan_json),
    "plan.toml": (lambda: PLAN_TOML, load_plan_toml),
}


# Spoiling --------------------------------------------------------------------


def spoil(raw, rng):
    """One to four changes of a file: bytes, tokens, cuts, repeats."""
    raw = bytearray(raw)
    for _ in range(rng.integers(1, 5)):
        if not raw:
            break
        at = int(rng.integers(len(raw)))
        end = min(len(raw), at + int(rng.integers(1, 30)))
        kind = rng.integers(6)
        if kind == 0:
            raw[at] ^= 1 << rng.integers(8)
        elif kind == 1:
            raw[at:end] = rng.bytes(end - at)
        elif kind == 2:
            raw[at:end] = TOKENS[rng.integers(len(TOKENS))]
        elif kind == 3:
            del raw[at:end]
        elif kind == 4:
            raw[at:at] = raw[at:end]
        else:
            _replace_value(raw, rng)
    return bytes(raw)


def _replace_value(raw, rng):
    """A token in the place of what stands between two separators."""
    cuts = [i for i, c in enumerate(raw) if c in b',:=(){}[]"\n ']
    if len(cuts) < 2:
        return
    first = int(rng.integers(len(cuts) - 1))
    raw[cuts[first] + 1 : cuts[first + 1]] = TOKENS[rng.integers(len(TOKENS))]


def spoil_inside(raw, rng):
    """The same inside a member of an archive, whose checksums then hold."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    name = list(members)[rng.integers(len(members))]
    members[name] = spoil(members[name], rng)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def spoiled(raw, rng):
    """Either of the two."""
    if raw[:2] == b"PK" and rng.random() < 0.7:
        return spoil_inside(raw, rng)
    return spoil(raw, rng)


def is_accepted(load, raw, folder):
    """Whether a loader took it; anything but a ValueError is raised."""
    try:
        load(raw, folder)
    except ValueError as e:
        if not str(e):
            raise AssertionError("an error without a text") from e
        return False
    return True
