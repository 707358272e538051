"""`keras-fm audit` from flags to report and files, on a tiny data set."""

import functools
import importlib.util
import json

import keras
import numpy as np
import pytest

from keras_fm.lab import audits as audit_subjects
from keras_fm.lab.auditing import AuditReport
from keras_fm.lab.audits import MODELS, Subject

# Traced in tests of this name alone; see `untraced`.
TRACED = "from_flags"
pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.once,
    pytest.mark.full,
    pytest.mark.tensorflow,
]
PROVEN = [name for name, forms in MODELS.items() if "proven" in forms]
SAMPLED = ("dpmac", "dp_sgd", "jax_privacy")
# By a library that goes with one backend.
LIBRARIES = {
    "dp_sgd": ("tensorflow", "tensorflow_privacy"),
    "jax_privacy": ("jax", "jax_privacy"),
}


def skip_without_library(model):
    backend, package = LIBRARIES.get(model, (keras.backend.backend(), "keras"))
    if backend != keras.backend.backend():
        pytest.skip(f"{package} needs the backend {backend}")
    # Not imported: tensorflow-privacy cannot be, as a whole.
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")


@pytest.fixture
def npz(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "tiny.npz"
    parts = {}
    for name, n in (("train", 80), ("test", 10)):
        parts[f"x_{name}"] = rng.random((n, 3, 4)).astype("float32")
        parts[f"y_{name}"] = rng.integers(0, 3, n)
    np.savez(path, **parts)
    return str(path)


@pytest.fixture
def run(command):
    return functools.partial(command, "audit")


def test_from_flags_to_files(run, npz, tmp_path):
    out = tmp_path / "out"
    status, text, error = run(
        f"--dataset={npz}",
        f"--out={out}",
        "--epochs=4",
        "--control_epochs=4",
        "--hidden=6",
        "--canaries=30",
        "--seeds=2",
        "--epsilon=0.7",
    )
    assert status == 0, error
    assert "claimed (epsilon = 0.7, delta = 0), replace_one" in text
    assert "3 of 4 trainings" in error
    report = AuditReport.from_json((out / "audit.json").read_text())
    assert report.text() in text
    assert report.text() == (out / "audit.txt").read_text().rstrip("\n")
    assert (out / "audit.png").read_bytes()[:4] == b"\x89PNG"
    assert report.canaries == 30 and len(report.runs) == 2
    assert f"verdict:     {report.verdict}" in text
    summary = json.loads((out / "audit.json").read_text())
    assert summary["verdict"] == report.verdict


@pytest.mark.parametrize("model", PROVEN)
def test_proven_forms_state_what_their_ledger_proves(npz, model):
    skip_without_library(model)
    report = audit_subjects.run(
        Subject(
            model=model,
            guarantee="proven",
            epsilon=0.5,
            hidden=6,
            epochs=2,
            control_epochs=2,
        ),
        npz,
        canaries=25,
        seeds=1,
        progress=False,
    )
    assert report.claim.guarantee == "proven"
    assert 0.4 < report.claim.epsilon <= 0.5 * (1 + 1e-6)
    assert report.claim.delta == 1e-5
    relation = "add_remove" if model in SAMPLED else "replace_one"
    assert report.claim.neighbours == relation


@pytest.mark.parametrize("model", list(MODELS))
def test_published_forms_state_what_their_papers_claim(npz, model):
    skip_without_library(model)
    report = audit_subjects.run(
        Subject(model=model, hidden=6, epochs=2, control_epochs=2),
        npz,
        canaries=25,
        seeds=1,
        progress=False,
    )
    assert report.claim.guarantee == "claimed"
    assert report.claim.epsilon == pytest.approx(0.3, rel=1e-3)
    assert report.claim.delta == (1e-5 if model in SAMPLED else 0.0)


def test_a_batch_normalised_form_is_seen_without_its_moving_averages():
    subject = Subject(hidden=6, epochs=2, control_epochs=2)
    rng = np.random.default_rng(0)
    x = rng.random((40, 12)).astype("float32")
    y = rng.integers(0, 3, 40)
    _, control = subject.functions(3)
    model = control(x, y)
    inside = x / 2  # [0, 1] is what claims are for
    logits, shifted = (
        model.predict(v, verbose=0) for v in (inside, inside + 0.5)
    )
    # A shift that all records share changes nothing.
    assert np.allclose(logits, shifted, atol=1e-2)
    assert logits.shape == (40, 3) and np.std(logits) > 0


def test_the_gradient_of_a_functional_net_tells_labels_apart():
    """Without noise every record's label is read from the sum."""
    subject = Subject(model="functional", hidden=4)
    rng = np.random.default_rng(0)
    x = rng.random((40, 12)).astype("float32")
    y = rng.integers(0, 3, 40)
    _, control = subject.functions(3)
    logits = control(x, y)
    assert np.array_equal(logits(x[5:20]).argmax(axis=1), y[5:20])


def test_a_gradient_score_and_tensorboard(run, npz, tmp_path):
    pytest.importorskip("tensorboard")
    board = tmp_path / "board"
    status, text, error = run(
        f"--dataset={npz}",
        "--out=",
        f"--tensorboard={board}",
        "--score=gradient",
        "--model=head",
        "--epochs=2",
        "--control_epochs=2",
        "--hidden=6",
        "--canaries=10",
        "--seeds=1",
    )
    assert status == 0, error
    assert "score gradient" in text and f"--logdir={board}" in text
    assert list(board.iterdir())
