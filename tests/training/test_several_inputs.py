"""Models of several inputs, lists and dicts, numbers and text."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.layers import PrivateDense
from keras_fm.losses import TaylorCrossEntropy

pytestmark = pytest.mark.full

N = 300
RANDOM = np.random.default_rng(0)
TABLE = {
    "age": RANDOM.integers(18, 90, N),
    "scores": RANDOM.normal(size=(N, 2)).astype("float32"),
    "member": RANDOM.integers(0, 2, N).astype(bool),
}
Y = RANDOM.integers(0, 2, N)
STRUCTURES = ("list", "dict", "nested")


def inputs():
    return {
        "age": keras.Input((1,), dtype="int32", name="age"),
        "scores": keras.Input((2,), name="scores"),
        "member": keras.Input((1,), dtype="bool", name="member"),
    }


def structured(values, structure):
    """The same values as a list, a dict, or a nested one."""
    if structure == "list":
        return list(values.values())
    if structure == "nested":
        return {
            "person": {"age": values["age"], "member": values["member"]},
            "scores": values["scores"],
        }
    return dict(values)


def model_of(structure="dict", seed=1):
    keras.utils.set_random_seed(seed)
    given = inputs()
    age = keras.layers.Rescaling(1 / 90)(given["age"])
    member = keras.layers.Rescaling(1.0)(given["member"])
    h = keras.layers.Concatenate()([age, given["scores"], member])
    h = keras.layers.Dense(6, "tanh", trainable=False)(h)
    out = PrivateDense(2, feature_bound=1.0, clip=True)(h)
    model = keras.Model(structured(given, structure), out)
    model.compile("adam", TaylorCrossEntropy())
    return model


def fitted(structure, data, x=None, y=Y, **more):
    model = model_of(structure)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(1.0, 1e-6), data=data, reproducible_noise=3
    )
    x = data[0] if x is None else x
    model.fit(x, y, epochs=2, verbose=0, callbacks=[private], **more)
    return model, private


@pytest.fixture(scope="module")
def reference():
    x = structured(TABLE, "dict")
    model, private = fitted("dict", (x, Y))
    return model, private, model.predict(x, verbose=0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_is_released_saved_and_loaded(
    structure, reference, tmp_path
):
    x = structured(TABLE, structure)
    model, private = fitted(structure, (x, Y))
    found = model.predict(x, verbose=0)
    # The same noise on the same records: the same release.
    np.testing.assert_array_equal(found, reference[2])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), found)
    # The same data again are free.
    model.fit(x, Y, verbose=0, callbacks=[private])
    assert len(private.ledger.entries) == 1


@pytest.mark.parametrize("form", ["batches", "names", "columns", "data set"])
def test_forms_of_the_same_records(form, reference):
    _, private, expected = reference
    if form == "columns":
        data = ({**TABLE, "age": TABLE["age"][:, None]}, Y)
    elif form == "names":
        # A model of a list takes a dict by the names of its inputs.
        data = ({**TABLE, "unused": Y}, Y)
    elif form == "batches":

        def data():
            for start in range(0, N, 70):
                rows = slice(start, start + 70)
                yield {k: v[rows] for k, v in TABLE.items()}, Y[rows]
    else:
        tf = pytest.importorskip("tensorflow")
        data = tf.data.Dataset.from_tensor_slices((TABLE, Y)).batch(64)
    structure = "list" if form == "names" else "dict"
    x = structured(TABLE, structure)
    model, _ = fitted(structure, data, x)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)


def refused(match, data, structure="dict"):
    model = model_of(structure)
    private = fm.callbacks.PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=data)
    x = structured(TABLE, structure)
    with pytest.raises(ValueError, match=match):
        model.fit(x, Y, verbose=0, callbacks=[private])
    assert not private.ledger.entries and private.release is None


def changed(**columns):
    return {**TABLE, **columns}, Y


def test_what_is_wrong_is_named_and_nothing_is_spent():
    ages = TABLE["age"]
    missing = {k: v for k, v in TABLE.items() if k != "age"}
    refused("structure.*'age'", (missing, Y))
    refused("structure.*'unused'", changed(unused=Y))
    refused("structure", (structured(TABLE, "list"), Y))
    refused("by their names.*'age'", (missing, Y), "list")
    refused("structure", (TABLE, Y), "nested")
    refused("input 'scores' must have shape", changed(scores=np.ones((N, 3))))
    bad = TABLE["scores"].copy()
    bad[7, 1] = np.nan
    refused("NaN or infinite inputs of input 'scores'", changed(scores=bad))
    refused("input 'age' must hold numbers", changed(age=ages.astype(str)))
    refused("same number of records", changed(age=ages[:9]))


def test_a_published_fit_has_one_input():
    private = fm.callbacks.PrivateModel(
        1.0, 0.0, data=(TABLE, Y), guarantee=fm.Published(lot=32)
    )
    with pytest.raises(ValueError, match="a model with one input"):
        private.plan(model_of())
