"""What would stop a fit after its release is refused before it is charged."""

import traceback

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

N, D = 120, 6
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (N, D)).astype("float32")
Y = (X[:, 0] > 0.5).astype(int)
XV = RNG.uniform(0, 1, (50, D)).astype("float32")
YV = (XV[:, 0] > 0.5).astype(int)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.given = x, y

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.given


class Fails(keras.metrics.Metric):
    def update_state(self, y_true, y_pred, sample_weight=None):
        raise KeyError("of its own")

    def result(self):
        return 0.0


def model(head=None, metrics=("accuracy",), loss=None):
    m = keras.Sequential(
        [
            keras.Input((D,)),
            fm.layers.NormalizationLayer(bounds=(0, 1)),
            head or fm.layers.PrivateDense(2),
        ]
    )
    loss = loss or fm.losses.TaylorCrossEntropy()
    m.compile("sgd", loss, metrics=[*metrics])
    return m


def fit(m, x=X, y=Y, data=(X, Y), callbacks=(), **arguments):
    private = PrivateModel(fm.PrivacyBudget(2.0, 1e-6), data=data)
    try:
        found = m.fit(
            x, y, callbacks=[private, *(c(private) for c in callbacks)],
            verbose=0, **arguments,
        )  # fmt: skip
    except Exception:
        assert not private.ledger.entries, "it was charged"
        assert not m.layers[-1].is_released
        raise
    assert len(private.ledger.entries) == 1
    return found.history


def validating(shown, match, m=None):
    with pytest.raises(ValueError, match=match) as error:
        fit(m or model(), validation_data=shown)
    assert str(error.value).startswith("`validation_data`")


# Validation data --------------------


@pytest.mark.parametrize(
    "shown, match",
    [
        ((XV[:, :2], YV), r"must have shape \(6,\)"),
        ((XV[0], YV[:6]), r"must have shape \(6,\)"),
        ((XV, YV[:-1]), "same number of records. Received: 50 in x, 49 in y"),
        ((XV, YV, np.ones(49)), "49 in sample_weight"),
        ((XV, YV.astype(str)), "numbers or truth values, not text"),
        ((XV, YV.astype(complex)), "complex"),
        ((XV, YV + 1), r"whole numbers in \[0, 2\)"),
        ((XV, YV + 0.5), "whole numbers"),
        ((XV, np.ones((50, 2))), "one-hot"),
        ((XV, np.eye(3)[YV]), "loss|shape"),
        (XV, "pair"),
        ((XV,), "pair"),
        ((XV[:0], YV[:0]), "holds no records"),
        ((XV.astype(complex), YV), "complex numbers"),
        ((XV.astype(str), YV), "must hold numbers"),
        (Batches(XV[:, :2], YV), r"must have shape \(6,\)"),
        (Batches(XV, YV + 1), "whole numbers"),
        ((XV.tolist(), YV.tolist()), "convert lists by `np.asarray`"),
        ((XV, YV, [1.0] * 50), "convert lists"),
        ((XV, YV, np.ones((50, 3))), "one number for each record"),
        ((XV, YV, np.full(50, "a")), "one number for each record"),
        ((XV.astype("longdouble"), YV), "no numbers of this type"),
        ((np.ma.array(XV, mask=XV > 0.5), YV), "masked"),
        (zip(XV, YV), "a data set or a generator"),
        ("test.csv", "a data set or a generator"),
    ],
)
def test_validation_data_that_do_not_fit(shown, match):
    validating(shown, match)


@pytest.mark.parametrize(
    "shown",
    [
        (XV, YV),
        [XV, YV],
        (XV, YV, np.ones(50)),
        (XV.astype("float64")[:, :, None], YV[:, None]),
        (XV, YV.astype(bool)),
        Batches(XV, YV),
    ],
)
def test_validation_data_that_fit(shown):
    history = fit(model(), validation_data=shown)
    assert {"loss", "val_loss", "val_accuracy"} == set(history)


def test_validation_data_without_a_loss():
    m = keras.Sequential([keras.Input((D,)), *model().layers])
    m.compile("sgd")
    validating((XV, YV), "need a compiled loss", m)
    fit(m)


def test_tables():
    pandas = pytest.importorskip("pandas")
    table, labels = pandas.DataFrame(XV), pandas.Series(YV)
    fit(model(), pandas.DataFrame(X), validation_data=(table, labels))
    validating((table.iloc[:, :2], labels), r"must have shape \(6,\)")
    validating((table, labels.astype(str)), "not text")
    validating((table, labels.astype("Int64")), "no numbers of this type")
    fit(model(), validation_data=(table, labels.to_frame()))
    # Elsewhere Keras finds it first, in words of its own.
    if keras.backend.backend() == "tensorflow":
        with pytest.raises(ValueError, match=r"`x` of fit.*shape \(6,\)"):
            fit(model(), pandas.DataFrame(X).iloc[:, :2])


def test_numbers_may_be_out_of_the_bounds_of_private_ones():
    head = fm.layers.PrivateDense(1, loss="squared_error", target_bounds=(0, 1))
    m, y = model(head, ("mae",), "mse"), X[:, 0]
    history = fit(m, X, y, (X, y), validation_data=(XV, XV[:, 0] * 3))
    assert np.isfinite(history["val_loss"][0])


def test_data_sets_of_tensorflow():
    tf = pytest.importorskip("tensorflow")

    def batched(*parts):
        return tf.data.Dataset.from_tensor_slices(parts).batch(10)

    validating(batched(XV[:, :2], YV), r"must have shape \(6,\)")
    validating(batched(XV, YV).unbatch(), "in batches")
    validating(batched(XV, YV.astype(str)), "not text")
    validating(batched(XV, YV, YV, YV), "4 parts")
    validating(batched(XV, np.eye(3)[YV]), "loss")
    validating(batched(XV), "pair")
    with pytest.raises(ValueError, match=r"`x` of fit.*shape \(6,\)"):
        fit(model(), batched(X[:, :2], Y), None)
    fit(model(), batched(X, Y), None, validation_data=batched(XV, YV))


# x of fit, metrics, folders --------------------


def test_x_of_another_width():
    """Keras itself sees it where it builds on the first batch."""
    match = r"`x` of fit.*shape \(6,\)|same shape|Unable to"
    with pytest.raises((ValueError, RuntimeError), match=match):
        fit(model(), X[:, :2])


@pytest.mark.parametrize(
    "metric", ["Precision", "AUC", "F1Score", Fails(), keras.metrics.Recall()]
)
def test_metrics_that_do_not_fit(metric):
    m = model(metrics=(metric,))
    with pytest.raises(Exception) as error:
        fit(m, validation_data=(XV, YV))
    # Others build metrics on the first batch, before any callback.
    if keras.backend.backend() == "tensorflow":
        assert "compiled metrics cannot compare" in str(error.value)


@pytest.mark.parametrize(
    "metric, form",
    [
        (keras.metrics.SparseTopKCategoricalAccuracy(k=1), lambda y: y),
        ("F1Score", lambda y: np.eye(2)[y]),
        (keras.metrics.Precision(), lambda y: np.eye(2)[y]),
        ("accuracy", lambda y: np.eye(2)[y]),
        (lambda t, p: keras.ops.mean(p), lambda y: y),
    ],
)
def test_metrics_that_fit_are_as_they_were(metric, form):
    m, shown = model(metrics=(metric,)), (XV, form(YV))
    history = fit(m, X, form(Y), validation_data=shown)
    found = m.evaluate(*shown, verbose=0, return_dict=True)
    assert len(found) == 2
    for name, value in found.items():
        np.testing.assert_allclose(history[f"val_{name}"][0], value, rtol=1e-5)


def test_metrics_that_were_built_on_other_labels():
    """Where Keras builds them on the labels of fit, those of another form are
    refused; `fit` here sees to the charge."""
    if keras.backend.backend() == "tensorflow":
        fit(model(), validation_data=(XV, np.eye(2)[YV]))
    else:
        validating((XV, np.eye(2)[YV]), "compiled metrics cannot compare")


def test_a_folder_that_cannot_be_written(tmp_path):
    pytest.importorskip("tensorflow")
    (tmp_path / "file").write_text("")

    def board(private):
        return fm.callbacks.PrivacyTensorBoard(private, tmp_path / "file" / "a")

    with pytest.raises(ValueError, match="`log_dir` must be a folder"):
        fit(model(), callbacks=[board])
    assert [v.name for v in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "name, value",
    [
        ("epochs", 1.5),
        ("validation_steps", 1.5),
        ("validation_batch_size", "a"),
        ("validation_freq", 0),
        ("validation_freq", (1, 2)),
    ],
)
def test_numbers_that_are_not_whole(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a"):
        fit(model(), validation_data=(XV, YV), **{name: value})


@pytest.mark.parametrize("value", ["auto", 1.5, 0])
def test_numbers_of_compile_that_keras_counts_with(value):
    m = model()
    m.steps_per_execution = value
    # TensorFlow counts after the callbacks begin, the others before.
    words = "`steps_per_execution` must be|as an integer|must not be zero"
    with pytest.raises((TypeError, ValueError), match=words) as error:
        fit(m)
    if keras.backend.backend() == "tensorflow":
        assert "`steps_per_execution` must be a pos" in str(error.value)


@pytest.mark.parametrize("name", ["{accuracy:.2f}", "{epoch}-{val_loss:.2f}"])
def test_files_named_by_what_is_not_logged(name, tmp_path):
    def checkpoint(private):
        return keras.callbacks.ModelCheckpoint(f"{tmp_path}/{name}.keras")

    with pytest.raises(ValueError, match="names its files by '(acc|val)"):
        fit(model(), callbacks=[checkpoint])
    if "val" in name:
        fit(model(), callbacks=[checkpoint], validation_data=(XV, YV))
        assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["ModelCheckpoint", "CSVLogger"])
def test_files_where_no_folder_can_be(kind, tmp_path):
    (tmp_path / "taken").write_text("a file")

    def callback(private):
        path = tmp_path / "taken" / "a" / "{epoch}.keras"
        return getattr(keras.callbacks, kind)(str(path))

    with pytest.raises(ValueError, match=f"{kind} must write where it may"):
        fit(model(), callbacks=[callback])


# Records --------------------


@pytest.mark.parametrize(
    "x, y, match",
    [
        (X + 1j, Y, "not complex numbers"),
        (np.full(X.shape, np.datetime64("2020-01-01")), Y, "not dates"),
        (X, Y + 0j, "not text, dates or complex"),
        (X, np.full(N, np.datetime64("2020-01-01")), "not text, dates"),
        (np.ma.array(X, mask=X > 0.5), Y, "masked array"),
        (X, np.ma.array(Y, mask=Y > 0), "masked array"),
    ],
)
def test_records_that_are_no_numbers(x, y, match):
    with pytest.raises(ValueError, match=match):
        fit(model(), data=(x, y))


def test_records_in_another_order_of_bytes():
    """PyTorch's error showed them, and JAX saw other numbers."""
    found = []
    for x in (X, X.astype(">f4")):
        m = model()
        seeded = PrivateModel(1.0, 0.0, data=(x, Y), reproducible_noise=0)
        m.fit(X, Y, callbacks=[seeded], verbose=0)
        found.append(m.get_weights()[0])
    np.testing.assert_array_equal(*found)


# A release that would not be learned --------------------


def test_objectives_that_they_hold():
    for settings in (
        {"feature_bound": 1e15},
        {"feature_bound": 1e-20},
        {"feature_bound": 1e20, "rounds": 2},
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
    ):
        m = model(fm.layers.PrivateDense(2, clip=True, **settings))
        fit(m)
        for weight in m.get_weights():
            assert np.isfinite(weight.astype("float64")).all()


# A refused release --------------------


def test_what_a_backend_says_of_a_record_is_not_shown():
    """TensorFlow's error for an index that is out of range shows it, and so
    did a fit and a question. (JAX takes the nearest, and no error.)"""
    if keras.backend.backend() == "jax":
        pytest.skip("no error")
    x = RNG.integers(0, 5, (N, 1)).astype("int32")
    x[3] = 471147
    below = [
        keras.Input((1,), dtype="int32"),
        # Not of the input itself, whose numbers are looked at.
        keras.layers.Reshape((1,)),
        keras.layers.Embedding(5, 3, trainable=False),
        keras.layers.Flatten(),
        fm.layers.NormalizationLayer(),
    ]
    m = keras.Sequential([*below, fm.layers.PrivateDense(2)])
    m.compile("sgd", fm.losses.TaylorCrossEntropy())
    ledger = fm.Ledger(fm.PrivacyBudget(1.0, 1e-6), neighbours="add_remove")
    other = keras.Sequential([*below, keras.layers.Dense(2)])
    for ask in (
        lambda: fit(m, x, Y, (x, Y)),
        lambda: fm.evaluation.private_evaluate(
            other, (x, Y), ledger=ledger, share=0.1, public="random"
        ),
    ):
        with pytest.raises(ValueError, match="fail on a record") as error:
            ask()
        assert "471147" not in "".join(traceback.format_exception(error.value))
    assert not ledger.entries


def test_the_statement_declares_lengths_that_a_model_leaves_open():
    """`pad_sequences` without `maxlen` pads to the longest record."""
    for length in (None, 5):
        m = keras.Sequential(
            [
                keras.Input((length,), dtype="int32", name="words"),
                keras.layers.Embedding(9, 3, trainable=False),
                keras.layers.GlobalAveragePooling1D(),
                fm.layers.NormalizationLayer(),
                fm.layers.PrivateDense(2),
            ]
        )
        m.compile("sgd", fm.losses.TaylorCrossEntropy())
        x = np.ones((N, 5), int)
        private = PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=(x, Y))
        m.fit(x, Y, verbose=0, callbacks=[private])
        said = "public by declaration: the lengths" in private.report()
        assert said == (length is None)


def test_one_private_model_in_a_fit():
    """The second found the first's release, and its ledger stayed empty."""
    m = model()
    pair = [
        PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=(X, Y)) for _ in "ab"
    ]
    with pytest.raises(ValueError, match="one PrivateModel.*Received: 2"):
        m.fit(X, Y, callbacks=pair, verbose=0)
    assert not any(private.ledger.entries for private in pair)


def test_a_summary_without_an_output(monkeypatch):
    """A process without a console has no `sys.stdout`."""
    private = PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=(X, Y))
    m = model()
    m.fit(X, Y, callbacks=[private], verbose=0)
    private.set_params({"verbose": 2})
    monkeypatch.setattr("sys.stdout", None)
    private.on_train_end()
