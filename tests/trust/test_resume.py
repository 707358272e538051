"""A fit that was cut off goes on from its file without a new draw."""

import keras
import numpy as np
import pytest

import keras_fm as fm

pytestmark = [pytest.mark.full, pytest.mark.backend, pytest.mark.optimised]

N, EPOCHS = 60, 4
LABELS = np.arange(N) % 3
RECORDS = np.random.default_rng(0).random((N, 6)).astype("float32")


class Cut(keras.callbacks.Callback):
    """Ends the fit as an interruption does, when an epoch begins or, by
    default, when the last one is over."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt

    def on_train_end(self, logs=None):
        raise KeyboardInterrupt


# Names as a new process would give them.
def dense(bounds=None):
    inputs = keras.Input((6,))
    x = fm.layers.NormalizationLayer(bounds)(inputs)
    model = keras.Model(inputs, fm.layers.PrivateDense(3, name="head")(x))
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    return model


def rounds():
    inputs = keras.Input((6,))
    x = fm.layers.NormalizationLayer()(inputs)
    model = keras.Model(inputs, fm.layers.PrivateDense(3, rounds=3)(x))
    model.compile("adam", fm.losses.TaylorCrossEntropy())
    return model


def network():
    model = fm.models.FunctionalNet(
        (6,), [keras.layers.Dense(5), keras.layers.Dense(3)], rounds=2
    )
    model.compile("sgd")
    return model


MODELS = {
    "PrivateDense": dense,
    "rounds": rounds,
    "FunctionalNet": network,
}


def private(path, epsilon=1.0, guarantee="proven"):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, 1e-5),
        data=(RECORDS, LABELS),
        guarantee=guarantee,
        ledger=path,
    )


def fit(model, callbacks, epochs=EPOCHS):
    seen = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(epoch)
    )
    data = (RECORDS, LABELS)
    model.fit(*data, epochs=epochs, verbose=0, callbacks=[*callbacks, count])
    return seen


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("cut", [2, None])
@pytest.mark.parametrize("kind", MODELS)
def test_a_backup_is_gone_on_with(tmp_path, kind, cut):
    path, folder = tmp_path / "privacy.json", str(tmp_path / "backup")
    model = MODELS[kind]()
    backup = keras.callbacks.BackupAndRestore(folder)
    with pytest.raises(KeyboardInterrupt):
        fit(model, [Cut(cut), backup, private(path)])
    before = fm.Ledger.load(path).entries
    assert before
    again, callback = MODELS[kind](), private(path)
    backup = keras.callbacks.BackupAndRestore(folder)
    seen = fit(again, [backup, callback])
    assert seen == ([] if cut is None else [2, 3])
    assert fm.Ledger.load(path).entries == before
    assert callback.ledger.entries == before


@pytest.mark.usefixtures("untraced")
def test_a_backup_that_comes_too_late_is_refused(tmp_path):
    path = tmp_path / "privacy.json"
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(ValueError, match="before PrivateModel"):
        fit(dense(), [private(path), backup])
    assert fm.Ledger.load(path).entries == ()


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("kind", MODELS)
def test_without_a_backup_a_spent_budget_is_refused(tmp_path, kind):
    path = tmp_path / "privacy.json"
    with pytest.raises(KeyboardInterrupt):
        fit(MODELS[kind](), [private(path), Cut(0)])
    before = fm.Ledger.load(path).entries
    with pytest.raises(fm.BudgetExceededError, match="Charged before") as e:
        fit(MODELS[kind](), [private(path)])
    for part in (
        path.name,
        before[-1].name,
        before[-1].when,
        "the charge stays",
    ):
        assert part in str(e.value)
    assert fm.Ledger.load(path).entries == before


@pytest.mark.usefixtures("untraced")
def test_a_second_draw_after_a_restart_is_said(tmp_path):
    path, twice = tmp_path / "privacy.json", fm.Proven(releases=2)
    with pytest.raises(KeyboardInterrupt):
        fit(dense(), [private(path, guarantee=twice), Cut(0)])
    with pytest.warns(UserWarning, match="in addition to 1 charge"):
        fit(dense(), [private(path, guarantee=twice)])
    ledger = fm.Ledger.load(path)
    assert len(ledger.entries) == 2
    assert ledger.epsilon() <= 1 + 1e-9


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("kind", MODELS)
def test_a_checkpoint_is_gone_on_with(tmp_path, kind):
    path, file = tmp_path / "privacy.json", str(tmp_path / "model.keras")
    fit(
        MODELS[kind](),
        [private(path), keras.callbacks.ModelCheckpoint(file)],
        epochs=2,
    )
    before = fm.Ledger.load(path).entries
    again = keras.saving.load_model(file)
    fit(again, [private(path)], epochs=2)
    assert fm.Ledger.load(path).entries == before
