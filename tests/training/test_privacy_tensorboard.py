"""What TensorBoard is shown: releases and words, never noise or records."""

import importlib.util

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.kernel import mechanisms

pytestmark = pytest.mark.full

DELTA, N = 1e-5, 240


def records(seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(N) % 3
    x = 0.3 * rng.random((N, 4, 4)) + np.eye(4)[y][:, None] * 0.5
    return x.astype("float32"), y


@pytest.fixture
def data():
    return records()


def dense_model(bounds=None):
    model = keras.Sequential(
        [
            keras.Input((4, 4)),
            keras.layers.Flatten(),
            fm.layers.NormalizationLayer(bounds),
            fm.layers.PrivateDense(3),
        ]
    )
    model.compile("adam", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    return model


def private_model(data, guarantee="proven"):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(2.0, DELTA), data=data, guarantee=guarantee
    )


def fit(model, data, private, folder, epochs=2, **arguments):
    board = fm.callbacks.PrivacyTensorBoard(private, folder, **arguments)
    x, y = records(seed=1)
    model.fit(
        *data,
        epochs=epochs,
        callbacks=[private, board],
        validation_data=(x.reshape(N, *data[0].shape[1:]), y),
        verbose=0,
    )
    return events(folder)


def events(folder):
    """Dict from tag to a list of (step, value as array or bytes)."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.util import tensor_util

    found = event_accumulator.EventAccumulator(
        str(folder), size_guidance={"tensors": 0}
    )
    found.Reload()
    return {
        tag: [
            (e.step, tensor_util.make_ndarray(e.tensor_proto))
            for e in found.Tensors(tag)
        ]
        for tag in found.Tags()["tensors"]
    }


def numbers(found, tag):
    return [float(value) for _, value in found[tag]]


def test_a_proven_fit(data, tmp_path):
    private = private_model(data)
    model = dense_model()
    found = fit(model, data, private, tmp_path)
    release = private.release
    name = next(iter(private.releases))
    # Epochs cost nothing: a number, not a flat curve.
    assert not [tag for tag in found if tag.startswith("privacy/epsilon")]
    budget = found["privacy/budget"][0][1].ravel()[0].decode()
    assert "| budget | 2 |" in budget and "| spent, proven | " in budget
    assert "| left | " in budget and "removing any one record" in budget
    statement = b"".join(np.ravel(found["privacy/statement"][0][1]))
    # Every word is there, in lines that no card cuts off.
    assert statement.split() == private.report().encode().split()
    assert max(map(len, statement.splitlines())) <= 4 + 78
    assert b"guarantee   proven" in found["privacy/settings"][0][1].ravel()[0]
    variance = release.mechanism.coordinate_variance(release.query.size)
    ratio = np.sqrt(max(0, np.mean(release.vector() ** 2) - variance))
    table = found["release/table"][0][1].ravel()[0].decode()
    row = next(r for r in table.splitlines() if r.startswith(f"| {name} "))
    assert f"| {variance**0.5:.3g} | {ratio / variance**0.5:.3g} |" in row
    values = np.linalg.eigvalsh(release.statistics["quadratic"])
    above = int((values > release.noise_edge()).sum())
    assert f"{above} of {len(values)} above the noise" in row
    for tag in (
        "release/signal over noise",
        f"release/{name}/spectrum",
    ):
        assert found[tag][0][1][2][:4] == b"\x89PNG"
    # It rests at its minimum, and a flat line says nothing.
    assert not [tag for tag in found if tag.startswith("released/gap")]
    assert "_hparams_/session_start_info" in found
    # Tags are those of the next model, too, whose layers have these names.
    weights = {tag for tag in found if tag.startswith("weights/")}
    assert weights and not [tag for tag in weights if model.name in tag]
    # Metrics of the records are not there.
    assert not [tag for tag in found if tag.startswith("private_records")]
    assert "released/loss" not in found
    assert len(found["validation/accuracy"]) == 2
    edges = found[f"release/{name}/quadratic"][0][1]
    values = release.statistics["quadratic"]
    assert edges[0, 0] == pytest.approx(values.min(), rel=1e-4)
    assert edges[-1, 1] == pytest.approx(values.max(), rel=1e-4)
    assert edges[:, 2].sum() == values.size


def test_a_published_fit_is_marked(data, tmp_path):
    private = private_model(data, fm.Published(lot=32))
    found = fit(dense_model((0, 1)), data, private, tmp_path)
    assert "private_records/accuracy" in found
    assert "private_records/loss" in found and "released/loss" not in found
    budget = found["privacy/budget"][0][1].ravel()[0].decode()
    assert "| claimed, no guarantee | 2 |" in budget
    assert "nothing is promised" in budget and "| left" not in budget
    text = b"".join(np.ravel(found["privacy/statement"][0][1]))
    assert b"no valid proof" in text


def test_kernels(data, tmp_path):
    layers = [
        keras.Input((4, 4, 1)),
        keras.layers.Conv2D(5, 2, padding="same", trainable=False),
        keras.layers.Flatten(),
        fm.layers.NormalizationLayer(),
        fm.layers.PrivateDense(3),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    x = data[0][..., None]
    found = fit(model, (x, data[1]), private_model((x, data[1])), tmp_path)
    tag = f"pictures/kernels of {model.layers[0].name}"
    width, height, picture = found[tag][0][1]
    # Five kernels in three columns, two by two and one between.
    assert (int(width), int(height)) == (9, 6)
    assert picture[:4] == b"\x89PNG"


def test_neither_noise_nor_statistics_are_written(data, tmp_path, monkeypatch):
    """Scan of every file for the bytes of the noise and of the exact sums,
    in both precisions."""
    perturb, secrets = mechanisms.Mechanism.perturb, []

    def watched(self, exact, *arguments, **keywords):
        noisy = perturb(self, exact, *arguments, **keywords)
        secrets.extend([np.array(exact), noisy - exact])
        return noisy

    monkeypatch.setattr(mechanisms.Mechanism, "perturb", watched)
    private = private_model(data)
    model = dense_model()
    fit(model, data, private, tmp_path)
    exact, noise = secrets
    np.testing.assert_allclose(private.release.vector(), exact + noise)
    # The sum of the constants of a class: these are the exact statistics.
    constants = N / 3 * model.layers[-1].bias_feature
    # Each is cut off below 2^-19.
    assert np.abs(exact - constants).min() < N * 2**-19
    blob = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )
    assert len(blob) > 1000
    for secret in (exact, noise):
        for value in secret[:150]:
            # Sums of ones are round numbers, which are anywhere.
            if abs(value - round(value)) < 1e-3:
                continue
            for kind in (np.float64, np.float32):
                assert kind(value).tobytes() not in blob


def test_only_the_package_of_its_name_is_needed(data, monkeypatch):
    """Users of JAX and PyTorch, without TensorFlow, were told to install it."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: None if name == "tensorboard" else find_spec(name),
    )
    with pytest.raises(ImportError, match="`pip install tensorboard`"):
        fm.callbacks.PrivacyTensorBoard(private_model(data), "runs")


@pytest.mark.parametrize("validates", [False, True])
def test_noisy_steps(data, tmp_path, validates):
    model = keras.Sequential([keras.Input((4, 4)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(3, activation="softmax"))
    network = fm.make_private(model)
    network.compile("sgd", "sparse_categorical_crossentropy")
    private = fm.callbacks.PrivateModel(2.0, DELTA)
    board = fm.callbacks.PrivacyTensorBoard(private, tmp_path)
    history = network.fit(
        *data,
        batch_size=60,
        epochs=2,
        callbacks=[private, board],
        validation_data=records(seed=1) if validates else None,
        verbose=0,
    ).history
    assert set(history) == {"charged", *["val_loss"] * validates}
    found = events(tmp_path)
    # Against steps, not epochs.
    paid = found["privacy/steps taken of those paid for"]
    assert [(step, float(share)) for step, share in paid] == [(4, 0.5), (8, 1)]
    first, last = numbers(
        found, "privacy/epsilon, if the stop had been fixed beforehand"
    )
    assert first < 0.99 * last
    assert last == pytest.approx(private.epsilon(), rel=1e-6)
    # Of the ledger's entry: the multiplier, each of 51 weights, and the mean.
    multiplier = private.ledger.entries[-1].mechanism["noise_multiplier"]
    noise = numbers(found, "step/length of the noise in it, expected")
    assert noise == pytest.approx([multiplier * 51**0.5 / 60] * 2)
    # No gradient is longer than one, so no mean is much more than the noise.
    for length in numbers(found, "step/length of the noisy mean gradient"):
        assert 0.3 * noise[0] < length < 2 + 2 * noise[0]
    assert not [t for t in found if t.startswith(("private_rec", "released"))]
