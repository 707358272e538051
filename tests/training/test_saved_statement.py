"""Statements as files: what belongs together, and what does not."""

import functools
import json
import sys

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.core import statement_facts
from keras_fm.lab import script_functions, statement_file

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A model of one release, its file and its statement."""
    folder = tmp_path_factory.mktemp("released")
    x = np.random.default_rng(0).uniform(-1, 1, (64, 4)).astype("float32")
    y = np.arange(64) % 2
    model = keras.Sequential(
        [
            keras.Input((4,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(2),
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    budget = fm.callbacks.PrivateModel(
        1.0, 1e-5, data=(x, y), notes=["released: so I say"]
    )
    model.fit(x, y, verbose=0, callbacks=[budget])
    budget.save_statement(folder / "statement.json")
    model.save(folder / "mine.keras")
    return folder, budget


@pytest.fixture
def verify(command):
    return functools.partial(command, "verify")


def changed(folder, tmp_path, change):
    """The statement with something else in it."""
    data = json.loads((folder / "statement.json").read_text())
    change(data)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data))
    return path


def test_a_model_and_its_statement(released, verify):
    folder, _ = released
    paths = folder / "mine.keras", folder / "statement.json"
    status, out, err = verify(*paths)
    assert status == 0 and not err
    assert "belong together" in out and "do not" not in out
    for line in (
        "unit           proven",
        "n              declared",
        "weights        proven",
        "validation     proven",
        "start          proven",
        # Whoever writes a note declares it, whatever it says.
        "preprocessing  declared  released: so I say",
    ):
        assert line in out, line


def test_other_weights(released, verify, tmp_path):
    folder, _ = released
    model = keras.saving.load_model(folder / "mine.keras", compile=False)
    layer = model.layers[-1]
    layer.bias.assign(layer.bias + 1)
    model.save(tmp_path / "other.keras")
    status, out, _ = verify(tmp_path / "other.keras", folder / "statement.json")
    assert status == 1 and "weights: the statement describes" in out
    assert "not those of its release" in out


SCRIPT = """
import keras


@keras.saving.register_keras_serializable("mine")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x
"""


def test_layers_of_ones_own_are_in_a_script(verify, tmp_path):
    """The model is from another process, where the script was run."""
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    made = script_functions.imported(str(script)).Doubled()
    model = keras.Sequential([keras.Input((2,)), made, keras.layers.Dense(1)])
    private = fm.make_private(model, public="nothing")
    private.compile("sgd", "mse")
    budget = fm.callbacks.PrivateModel(2.0, 1e-3)
    x = np.ones((32, 2), "float32")
    private.fit(x, x[:, :1], batch_size=16, verbose=0, callbacks=[budget])
    paths = tmp_path / "mine.keras", tmp_path / "statement.json"
    model.save(paths[0])
    budget.save_statement(paths[1])
    del keras.saving.get_custom_objects()["mine>Doubled"]
    for name, module in list(sys.modules.items()):
        if getattr(module, "Doubled", None):
            del sys.modules[name]
    status, _, err = verify(*paths)
    assert status == 2 and "--import=mine.py" in err and err.count("\n") == 1
    status, _, err = verify(*paths, "--import=nowhere.py")
    assert status == 2 and "'nowhere.py', which is not a file" in err
    status, out, err = verify(*paths, f"--import={script}")
    assert status == 0 and not err and "belong together" in out


def _smaller(data):
    data["ledgers"][0]["epsilon"] = "0.1"


def _unproven(data):
    data["ledgers"][0]["epsilon"] = "inf"


def _praised(data):
    data["ledgers"][0]["facts"][1][2] = "proven"


def _fewer(data):
    one = data["ledgers"][0]
    one["ledger"]["entries"], one["epsilon"] = [], "0"
    # Another ledger, or this process would know it.
    one["ledger"]["id"] = "0" * 32


@pytest.mark.parametrize(
    "change, words",
    [
        (_smaller, "the statement says 0.1, its entries compose to"),
        (_unproven, "the statement says inf, its"),
        (_praised, "facts of ledger"),
        (_fewer, "carries some that the statement leaves out"),
    ],
)
def test_what_differs(released, verify, tmp_path, change, words):
    folder, _ = released
    path = changed(folder, tmp_path, change)
    status, out, err = verify(folder / "mine.keras", path)
    assert status == 1 and not err
    assert "do not belong together" in out and words in out


def test_damaged_and_hostile_files(released, verify, tmp_path):
    folder, budget = released
    model, statement = folder / "mine.keras", folder / "statement.json"
    cut = tmp_path / "cut.json"
    cut.write_text(statement.read_text()[:500])
    ledger = tmp_path / "ledger.json"
    ledger.write_text(budget.ledger.to_json())
    odd = changed(
        folder, tmp_path, lambda data: data.update(weights={}, ledgers=[7])
    )
    cut_model = tmp_path / "cut.keras"
    cut_model.write_bytes(model.read_bytes()[:300])
    for paths, words in (
        ((model, cut), "not a statement"),
        ((model, model), "not a statement"),
        ((model, odd), "not a statement"),
        ((model, ledger), "it is a ledger, which names no weights"),
        ((cut_model, statement), "not a model that Keras can load"),
        ((tmp_path / "none.keras", statement), "No such file"),
        ((model,), "name a model and its statement"),
    ):
        status, out, err = verify(*paths)
        assert status == 2 and not out and words in err, paths
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    "note",
    [
        "features: record by record as I think",
        "weights of classes: released",
        "the number of records n is not used",
    ],
)
def test_no_note_is_worded_as_a_proof(note):
    with pytest.raises(ValueError, match="in other words"):
        fm.callbacks.PrivateModel(1.0, 1e-5, notes=note)


def test_nothing_else_is_written_over(released, tmp_path):
    _, budget = released
    path = tmp_path / "privacy.json"
    path.write_text(budget.ledger.to_json())
    with pytest.raises(ValueError, match="holds something else"):
        budget.save_statement(path)
    assert path.read_text() == budget.ledger.to_json()
    budget.save_statement(tmp_path / "new.json")
    budget.save_statement(tmp_path / "new.json")
    with pytest.raises(ValueError, match="before a fit"):
        fm.callbacks.PrivateModel(1.0, 1e-5).save_statement(
            tmp_path / "unfitted.json"
        )


def test_noisy_steps_and_weights_set_afterwards(tmp_path):
    x = np.ones((32, 4), "float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    private = fm.make_private(model, public="nothing")
    private.compile("sgd", "mse")
    budget = fm.callbacks.PrivateModel(2.0, 1e-3)
    with pytest.raises(ValueError, match="before a fit"):
        budget.save_statement(tmp_path / "statement.json")
    private.fit(
        x, x[:, 0], batch_size=16, epochs=1, verbose=0, callbacks=[budget]
    )
    budget.save_statement(tmp_path / "statement.json")
    found = statement_file.SavedStatement(tmp_path / "statement.json")
    assert found.differences(model) == []
    assert [
        "start",
        "first weights: public by declaration: nothing",
        "declared",
    ] in statement_facts.of(budget.ledger)
    model.layers[-1].bias.assign([7.0])
    assert found.differences(model)
    with pytest.raises(ValueError, match="does not have the weights"):
        budget.save_statement(tmp_path / "statement.json")
