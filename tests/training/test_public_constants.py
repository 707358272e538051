"""Lookups and normalisations: built from constants, or told what to write."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.layers import PrivateDense
from keras_fm.losses import TaylorCrossEntropy
from keras_fm.training import public_constants

pytestmark = [pytest.mark.full, pytest.mark.tensorflow]

N = 120
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 2, N)
CITY = RANDOM.choice(np.array(["Rome", "Oslo", "Lima"], object), N)
COUNT = RANDOM.integers(0, 6, N)
HEIGHT = RANDOM.normal(170, 10, N).astype("float32")
TEXT = np.array(
    [
        " ".join(RANDOM.choice("Good bad, film. so".split(), n))
        for n in RANDOM.integers(1, 7, N)
    ],
    object,
)
WORDS = ["good", "bad", "film"]

layers = keras.layers
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="these layers are made of TensorFlow",
)
KINDS = {
    "Normalization": lambda: layers.Normalization(mean=170.0, variance=90.0),
    "Discretization": lambda: layers.Discretization(
        bin_boundaries=[160.0, 170.0, 180.0], output_mode="one_hot"
    ),
    "CategoryEncoding": lambda: layers.CategoryEncoding(
        num_tokens=6, output_mode="one_hot"
    ),
}
TENSORFLOW_KINDS = {
    "StringLookup": lambda: layers.StringLookup(
        vocabulary=["Rome", "Oslo"], output_mode="one_hot"
    ),
    "IntegerLookup": lambda: layers.IntegerLookup(
        vocabulary=[1, 2, 3], output_mode="multi_hot"
    ),
    "TextVectorization": lambda: layers.TextVectorization(
        vocabulary=WORDS, output_mode="count"
    ),
    "tf_idf": lambda: layers.TextVectorization(
        vocabulary=WORDS, idf_weights=[0.1, 0.2, 0.4], output_mode="tf_idf"
    ),
    "Hashing": lambda: layers.Hashing(num_bins=5, output_mode="one_hot"),
}
RECORDS = {
    "CategoryEncoding": COUNT,
    "Hashing": CITY,
    "IntegerLookup": COUNT,
    "StringLookup": CITY,
    "TextVectorization": TEXT,
    "tf_idf": TEXT,
}
FACTS = {
    "Normalization": "mean and variance of layer",
    "Discretization": "bin_boundaries of layer",
    "StringLookup": "vocabulary of layer",
    "IntegerLookup": "vocabulary of layer",
    "TextVectorization": "vocabulary of layer",
    "tf_idf": "vocabulary and idf_weights of layer",
}


def model_of(layer, x):
    kind = {"O": "string", "i": "int64", "f": "float32"}[x.dtype.kind]
    text = isinstance(layer, layers.TextVectorization)
    given = keras.Input(() if text else (1,), dtype=kind, name="x")
    out = PrivateDense(2, feature_bound=2.0, clip=True)(layer(given))
    model = keras.Model(given, out)
    model.compile("adam", TaylorCrossEntropy())
    return model


def private_of(data):
    return fm.callbacks.PrivateModel(fm.PrivacyBudget(1.0, 1e-6), data=data)


@pytest.mark.parametrize(
    "kind",
    [
        *KINDS,
        *(pytest.param(kind, marks=on_tensorflow) for kind in TENSORFLOW_KINDS),
    ],
)
def test_constants_are_public_whatever_is_done_with_the_model(kind, tmp_path):
    """Released, row-independent, saved, loaded, fitted on, exported."""
    x = RECORDS.get(kind, HEIGHT)
    model = model_of({**KINDS, **TENSORFLOW_KINDS}[kind](), x)
    private = private_of((x, LABELS))
    given = keras.ops.convert_to_tensor(x) if x.dtype.kind != "O" else x
    model.fit(given, LABELS, verbose=0, callbacks=[private])
    found = model.predict(x, verbose=0)
    assert (FACTS.get(kind, "public by declaration")) in private.report()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), found)
    # The loaded layer is as public as the one that was saved.
    again = fm.callbacks.PrivateModel(
        fm.Ledger.from_json(private.ledger.to_json()), data=(x, LABELS)
    )
    loaded.fit(x, LABELS, verbose=0, callbacks=[again])
    assert len(again.ledger.entries) == 1
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    rows = x if len(model.inputs[0].shape) == 1 else x[:, None]
    np.testing.assert_allclose(
        exported.serve(tf.constant(rows)), found, atol=1e-6
    )


def adapted(layer, x):
    layer.adapt(x)
    return layer


def set_later(layer, *values):
    layer.set_vocabulary(*values)
    return layer


def from_file(path):
    path.write_text("Rome\nOslo\n")
    return layers.StringLookup(vocabulary=str(path), output_mode="one_hot")


BAD = {
    "normalization": lambda _: adapted(layers.Normalization(), HEIGHT[:, None]),
}
BAD_ON_TENSORFLOW = {
    # Keras imports TensorFlow to adapt it.
    "bins": lambda _: adapted(
        layers.Discretization(num_bins=4, output_mode="one_hot"), HEIGHT
    ),
    "strings": lambda _: adapted(
        layers.StringLookup(output_mode="one_hot"), CITY
    ),
    "integers": lambda _: adapted(
        layers.IntegerLookup(output_mode="one_hot"), COUNT
    ),
    "text": lambda _: adapted(
        layers.TextVectorization(output_mode="multi_hot"), TEXT
    ),
    "set by hand": lambda _: set_later(
        layers.StringLookup(output_mode="one_hot"), ["Rome"]
    ),
    "file": lambda path: from_file(path / "words.txt"),
}
BAD_RECORDS = {
    "integers": COUNT,
    "text": TEXT,
    "strings": CITY,
    "set by hand": CITY,
    "file": CITY,
}


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        *BAD,
        *(
            pytest.param(kind, marks=on_tensorflow)
            for kind in BAD_ON_TENSORFLOW
        ),
    ],
)
def test_what_may_have_been_learned_is_refused(kind, loaded, tmp_path):
    """Before anything is read or spent, and after saving and loading too."""
    x = BAD_RECORDS.get(kind, HEIGHT)
    layer = {**BAD, **BAD_ON_TENSORFLOW}[kind](tmp_path)
    model = model_of(layer, x)
    if loaded:
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    private = private_of((x, LABELS))
    name = type(layer).__name__
    with pytest.raises(ValueError, match=rf"keras\.layers\.{name}\(") as e:
        model.fit(x, LABELS, verbose=0, callbacks=[private])
    assert not private.ledger.entries
    assert "constants of private data" in str(e.value)


def test_layers_of_ones_own_that_adapt():
    class Scale(layers.Layer):
        def adapt(self, data):
            self.scale = np.max(data)

    assert "got no constants" in public_constants.problem(Scale())
    assert public_constants.problem(layers.Dense(3)) is None


# FeatureSpace ---------------------------------------------------------------

TABLE = {"city": CITY, "count": COUNT, "height": HEIGHT}


def space_of(**features):
    of = keras.utils.FeatureSpace
    return of(
        features={
            "city": of.string_hashed(5),
            "count": of.integer_hashed(4),
            "height": of.feature("float32", KINDS["Normalization"](), "float"),
            **features,
        },
        crosses=[of.cross(("city", "count"), 6)],
        output_mode="concat",
    )


def vocabulary():
    """One-hot of a given vocabulary, without `adapt`."""
    lookup = layers.TextVectorization(
        vocabulary=["Rome", "Oslo"],
        standardize=None,
        split=None,
        output_mode="multi_hot",
    )
    return keras.utils.FeatureSpace.feature("string", lookup, "float")


def model_on(space):
    given = space.get_inputs()
    h = space.get_encoded_features()
    model = keras.Model(given, PrivateDense(2, clip=True)(h))
    model.compile("adam", TaylorCrossEntropy())
    return model


@on_tensorflow
@pytest.mark.filterwarnings("ignore:The structure of")
@pytest.mark.parametrize(
    "height", ["float", "float_rescaled", "float of constants"]
)
def test_a_feature_space_of_public_constants(height, tmp_path):
    import tensorflow as tf

    more = {} if "of" in height else {"height": height}
    model = model_on(space_of(town=vocabulary(), **more))
    x = {**TABLE, "town": CITY}
    private = private_of((x, LABELS))
    model.fit(x, LABELS, verbose=0, callbacks=[private])
    found = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), found)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    rows = {
        name: tf.constant(column[:, None])
        if name != "count"
        else tf.constant(column[:, None], "int32")
        for name, column in x.items()
    }
    np.testing.assert_allclose(exported.serve(rows), found, atol=1e-6)


@on_tensorflow
@pytest.mark.parametrize("feature", ["string_categorical", "float_normalized"])
def test_an_adapted_feature_space_is_refused(feature):
    import tensorflow as tf

    name = "city" if "string" in feature else "height"
    space = space_of(**{name: feature})
    dataset = tf.data.Dataset.from_tensor_slices((TABLE, LABELS)).batch(16)
    space.adapt(dataset.map(lambda x, y: x))
    with pytest.raises(ValueError, match="constants of private data"):
        private_of((TABLE, LABELS)).plan(model_on(space))
