"""Models and ledgers that version 0.1.0 saved still load, and mean the same."""

import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.parts.private_part import parts_of

FOLDER = pathlib.Path(__file__).parent / "version_0_1_0"
NAMES = (
    "dense", "rounds", "scaling", "pca", "dpa", "pcdbn", "functional_net",
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("untraced")


def golden(name):
    with np.load(FOLDER / "golden.npz") as held:
        return held["img" if name == "pcdbn" else "x"], held[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_released_model_is_still_released(name):
    model = keras.saving.load_model(FOLDER / f"{name}.keras")
    x, expected = golden(name)
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    parts = [part for part in parts_of(model) if not part.optional]
    assert parts and all(part.is_released for part in parts)
    for part in parts:
        ledger = fm.Ledger.from_json(part.ledger_json)
        assert 0 < ledger.epsilon() <= 2 and len(ledger.entries)
    # Its release is trained on, without the callback and with another.
    y = np.arange(len(x)) % 3
    for callbacks in (
        [],
        [fm.callbacks.PrivateModel(fm.PrivacyBudget(2.0, 1e-5), data=(x, y))],
    ):
        history = model.fit(x, y, callbacks=callbacks, verbose=0).history
        assert set(history) == {"loss"}
        assert all(part.is_released for part in parts)
        if callbacks:
            assert not callbacks[0].ledger.entries


def test_weights_over_it_take_the_release_away():
    model = keras.saving.load_model(FOLDER / "dense.keras")
    assert model.layers[-1].is_released
    model.set_weights([w + 1 for w in model.get_weights()])
    with pytest.raises(ValueError, match="unprotected"):
        model.fit(*golden("dense")[:1], np.zeros(120), verbose=0)


@pytest.mark.once
def test_steps_of_an_old_ledger_count_as_used(tmp_path):
    """It did not write down which of its paid steps were taken."""
    path = tmp_path / "ledger.json"
    shutil.copy(FOLDER / "dpmac_ledger.json", path)
    model = keras.saving.load_model(FOLDER / "dpmac.keras")
    x, expected = golden("dpmac")
    np.testing.assert_allclose(
        model.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-5
    )
    ledger = fm.Ledger.open(path)
    assert len(ledger.entries) == 1 and 0 < ledger.epsilon() <= 2
    assert ledger.steps_left(ledger.entries[0].name) == 0
    batches = fm.datasets.PoissonBatches(x, np.arange(120) % 3, batch_size=20)
    callback = fm.callbacks.PrivateModel(ledger, data=(x, np.arange(120) % 3))
    with pytest.raises(fm.BudgetExceededError):
        model.fit(batches, callbacks=[callback], verbose=0)
