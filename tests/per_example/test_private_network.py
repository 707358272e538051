"""Any Keras model, private in three lines.

The habits that these guard: fits without a budget, `validation_split`, fits
on a model that was trained before, batch normalisation, weights of classes,
data sets of every kind, and models that keep what they see.
"""

import keras
import numpy as np
import pytest
from keras import ops

import keras_fm as fm
from keras_fm.per_example import record_map
from keras_fm.per_example.given_records import GivenRecords

L = keras.layers
BACKEND = keras.backend.backend()
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


def network():
    return keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(5, activation="relu"),
            L.Dropout(0.1),
            L.Dense(2, activation="softmax"),
        ]
    )


def compiled(model, optimizer=None, **kwargs):
    private = fm.make_private(model, **kwargs)
    private.compile(
        optimizer or keras.optimizers.SGD(0.5),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return private


def callback(epsilon=8.0, **kwargs):
    return fm.callbacks.PrivateModel(fm.PrivacyBudget(epsilon, 1e-3), **kwargs)


def test_three_lines():
    model = network()
    private = compiled(model)
    before = [w.copy() for w in model.get_weights()]
    given = callback()
    history = private.fit(
        X,
        Y,
        batch_size=10,
        epochs=2,
        verbose=0,
        validation_data=(X[:5], Y[:5]),
        callbacks=[given],
    ).history
    assert set(history) == {"charged", "val_loss", "val_accuracy"}
    assert history["charged"][0] == pytest.approx(given.ledger.epsilon())
    (entry,) = given.ledger.entries
    assert entry.guarantee == "proven" and entry.steps == 8
    assert 7.9 < given.ledger.epsilon() <= 8.0
    assert any(
        np.any(one != other) for one, other in zip(before, model.get_weights())
    )
    assert "sha256" in given.report()


def test_steps_are_charged_before_the_first():
    given = callback()

    class Stops(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            assert given.ledger.entries[0].steps == 8
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled(network()).fit(
            X,
            Y,
            batch_size=10,
            epochs=2,
            verbose=0,
            callbacks=[given, Stops()],
        )
    assert given.ledger.entries[0].steps == 8


def test_a_spent_budget_trains_nothing():
    given, model = callback(), network()
    private = compiled(model)
    private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    before = model.get_weights()
    with pytest.raises((ValueError, fm.BudgetExceededError)):
        private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)


class Watching(keras.layers.Layer):
    """Keeps a moving average and the last of what it saw."""

    def build(self, shape):
        self.average = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False
        )
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs, training=None):
        self.last_seen = inputs
        if training:
            self.average.assign(0.9 * self.average + ops.mean(inputs, axis=0))
        return inputs + keras.random.normal(
            ops.shape(inputs), stddev=0.1, seed=self.seeds
        )


def test_no_state_leaves():
    """A moving average would be a mean of records without noise in a saved
    weight, and the counters of seeds would tell how many records there were.
    """
    model = keras.Sequential(
        [
            keras.Input((6,)),
            Watching(),
            L.BatchNormalization(trainable=False),
            L.Dropout(0.2),
            L.Dense(2, activation="softmax"),
        ]
    )
    learned = {id(v) for v in model.trainable_variables}
    kept = [v for v in model.variables if id(v) not in learned]
    before = [np.array(ops.convert_to_numpy(v)) for v in kept]
    attributes = dict(vars(model.layers[0]))
    compiled(model).fit(X, Y, batch_size=10, verbose=0, callbacks=[callback()])
    for variable, value in zip(kept, before):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)
    assert vars(model.layers[0]).keys() == attributes.keys()


class _Constant(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.sum(0.0 * y_pred, axis=-1)


@pytest.mark.parametrize("full", [False, True])
def test_noise_drawn_is_noise_charged(full):
    """Of a loss without a gradient a step is noise alone: what is drawn, and
    anew at every step.

    The deviation of 2,000 sums of the noise of 8 steps is as far off as is
    allowed less than once in a million runs. Two thirds, half or twice of the
    noise are refused, and so is the same noise in all steps.
    """
    relation = "replace_one" if full else "add_remove"
    model = keras.Sequential(
        [keras.Input((6,)), L.Dense(200, use_bias=False), L.Dense(4)]
    )
    private = fm.make_private(model, clip=0.3)
    private.compile(keras.optimizers.SGD(1.0), _Constant())
    given = callback(guarantee=fm.Proven(neighbours=relation))
    before = np.concatenate([w.ravel() for w in model.get_weights()])
    size = 40 if full else 10
    private.fit(
        X,
        Y,
        batch_size=size,
        epochs=8 if full else 2,
        verbose=0,
        callbacks=[given],
    )
    (entry,) = given.ledger.entries
    mechanism = entry.build_mechanism()
    assert mechanism.sensitivity == (2.0 if full else 1.0)
    after = np.concatenate([w.ravel() for w in model.get_weights()])
    wanted = mechanism.stddev * 0.3 / size * np.sqrt(8)
    assert (after - before).std() == pytest.approx(wanted, rel=0.11)


def test_class_weights_act_after_the_clip():
    given = GivenRecords(X, Y, batch_size=10)
    given.weigh({0: 1.0, 1: 4.0})
    np.testing.assert_allclose(given.weights, np.where(Y == 1, 1.0, 0.25))
    # The largest weight does not depend on which classes occur.
    for labels in (Y, np.where(np.arange(40) == 7, 3, Y)):
        other = GivenRecords(X, labels, batch_size=10)
        other.weigh({0: 0.5, 1: 0.25})
        assert set(other.weights[labels == 0]) == {np.float32(0.5)}


def test_batch_normalization_must_change():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            L.Conv2D(4, 3, name="first"),
            L.BatchNormalization(name="norm"),
            L.Flatten(),
            L.Dense(2),
        ]
    )
    with pytest.raises(ValueError, match="'norm'.*fix=True"):
        fm.make_private(model)
    private = fm.make_private(model, fix=True)
    assert "norm" in private.changes[0]
    assert isinstance(private.model.get_layer("norm"), L.GroupNormalization)
    np.testing.assert_array_equal(
        private.model.get_layer("first").get_weights()[0],
        model.get_layer("first").get_weights()[0],
    )


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = L.Dense(2)

    def call(self, inputs):
        return self.last(inputs)

    def train_step(self, data):
        return super().train_step(data)


def trained_before():
    model = network()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X, Y, verbose=0)
    return model


@pytest.mark.parametrize(
    "model, words",
    [
        (OwnStep, "its own `train_step`"),
        (trained_before, "was trained before"),
        (lambda: L.Dense(2), "`model` must be a `keras.Model`"),
    ],
)
def test_models_that_are_refused(model, words):
    with pytest.raises(ValueError, match=words):
        fm.make_private(model())


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"callbacks": []}, "needs one budget"),
        ({"validation_split": 0.2}, "`validation_split` would show"),
        ({"validation_data": (X, Y)}, "holds the private records"),
        ({"steps_per_epoch": 3}, "`steps_per_epoch` must be left out"),
        ({"sample_weight": 2 * np.ones(40)}, "must be from 0 to 1"),
        ({"y": np.array(["no", "yes"] * 20)}, "`y` must hold numbers"),
        ({"y": Y + 1}, "whole numbers from 0 to 1"),
        ({"class_weight": "balanced"}, "`class_weight` must be a dict"),
        (
            {"guarantee": fm.Proven(unit=fm.Unit(owners=np.arange(40) // 2))},
            "protects rows whose number is public",
        ),
        ({"guarantee": fm.Published(lot=10)}, "trains with a proof"),
        (
            {"guarantee": fm.Proven(neighbours="replace_one")},
            "batch_size=40, all rows",
        ),
    ],
)
def test_fits_that_are_refused(arguments, words):
    arguments = dict(arguments)
    given = callback(guarantee=arguments.pop("guarantee", "proven"))
    arguments = {"y": Y, "callbacks": [given], **arguments}
    with pytest.raises(ValueError, match=words):
        compiled(network()).fit(X, batch_size=10, verbose=0, **arguments)
    assert not given.ledger.entries


def test_no_step_outside_of_a_fit():
    private = compiled(network())
    with pytest.raises(ValueError, match="Use `fit`"):
        private.train_on_batch(X[:4], Y[:4])
    with pytest.raises(ValueError, match="trained by `fit` alone"):
        private(X[:4], training=True)
    with pytest.raises(NotImplementedError, match="`private.model`"):
        private.get_config()


def test_weights_and_optimizers_that_no_ledger_knows():
    model = network()
    private = compiled(model)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match="was trained before"):
        private.fit(X, Y, verbose=0, callbacks=[callback()])
    model, fed = network(), keras.optimizers.SGD(0.1, momentum=0.9)
    fed.build(model.trainable_variables)
    fed.iterations.assign(3)
    private = compiled(model, fed)
    with pytest.raises(ValueError, match="The optimizer took steps"):
        private.fit(X, Y, verbose=0, callbacks=[callback()])
    private, given = compiled(network()), callback()
    private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    private.model.layers[0].kernel.assign_add(np.ones((6, 5)))
    with pytest.raises(ValueError, match="has other weights"):
        private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])


def test_layers_that_were_adapted_are_not_public():
    """The exact mean and variance of the records would be in the file."""
    learned = L.Normalization()
    learned.adapt(X)
    model = keras.Sequential([keras.Input((6,)), learned, L.Dense(2)])
    given = callback()
    with pytest.raises(ValueError, match="was adapted to data"):
        compiled(model).fit(X, Y, verbose=0, callbacks=[given])
    assert not given.ledger.entries
    given = callback()
    compiled(model, public="means of a census").fit(
        X, Y, batch_size=10, verbose=0, callbacks=[given]
    )
    assert given.ledger.entries


def test_a_cell_that_is_run_twice():
    """Two fits under two callbacks had a statement of one of them."""
    model = network()
    compiled(model).fit(X, Y, batch_size=10, verbose=0, callbacks=[callback()])
    with pytest.raises(ValueError, match="under another ledger"):
        compiled(model).fit(
            X, Y, batch_size=10, verbose=0, callbacks=[callback()]
        )


def test_penalties_of_weights_act_outside_of_the_clip():
    """On JAX they were taken off every record's gradient. With a clip that
    reaches no record and hardly any noise two fits differ by the penalty."""
    found = []
    for penalty in (None, keras.regularizers.L2(1.0)):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((6,)), L.Dense(2, kernel_regularizer=penalty)]
        )
        private = fm.make_private(model, clip=1e4)
        private.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        before = model.get_weights()[0]
        budget = fm.PrivacyBudget(1e6, 1e-3)
        private.fit(
            X,
            Y,
            batch_size=40,
            verbose=0,
            callbacks=[fm.callbacks.PrivateModel(budget)],
        )
        found.append(model.get_weights()[0] - before)
    # Noise of a deviation of some 0.2 would not hide twice the weights.
    difference = found[1] - found[0]
    wanted = -0.1 * 2 * before
    slope = np.sum(difference * wanted) / np.sum(wanted**2)
    assert slope == pytest.approx(1, abs=0.4)


def test_several_outputs_and_metrics_in_layers():
    class Counting(L.Layer):
        def __init__(self):
            super().__init__()
            self.mean = keras.metrics.Mean()

        def call(self, inputs):
            self.mean.update_state(inputs)
            return inputs

    inputs = keras.Input((6,))
    x = Counting()(L.Dense(4)(inputs))
    model = keras.Model(
        inputs, {"a": L.Dense(1, name="a")(x), "b": L.Dense(1, name="b")(x)}
    )
    private = fm.make_private(model)
    private.compile("sgd", {"a": "mse", "b": "mae"})
    given = callback()
    private.fit(
        X,
        {"a": X[:, 0], "b": X[:, 1]},
        batch_size=10,
        verbose=0,
        callbacks=[given],
    )
    assert given.ledger.entries


def test_masks_of_other_records_do_not_matter():
    """Keras averages the loss of a batch with a mask over all its tokens."""
    model = keras.Sequential(
        [
            keras.Input((8,), dtype="int32"),
            L.Embedding(9, 4, mask_zero=True),
            L.Dense(3),
        ]
    )
    private = fm.make_private(model, clip=1.0)
    private.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    x = np.zeros((6, 8), "int32")
    x[:, 0], x[0] = 1, np.arange(1, 9)
    y = np.arange(48).reshape(6, 8) % 3
    example = (x[:3], y[:3])
    made = record_map.chosen_for(private, 1.0, example)
    keys = np.ones((6, *made.key_shape), record_map.KEY_DTYPE)
    sums = []
    for factors in (np.ones(6), np.array([0, 1, 1, 1, 1, 1])):
        given = (x, y, keys, factors.astype("float32"))
        found = record_map._run(
            made, [ops.convert_to_tensor(v) for v in given], traced=False
        )
        sums.append(
            np.concatenate([ops.convert_to_numpy(v).ravel() for v in found])
        )
    assert 0 < np.linalg.norm(sums[0] - sums[1]) <= 1


def test_a_part_of_the_budget_is_left_to_others(tmp_path):
    given = callback(guarantee=fm.Proven(spends=0.5))
    private = compiled(network())
    saved = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"))
    private.fit(
        X,
        Y,
        batch_size=10,
        verbose=0,
        callbacks=[given, saved],
        class_weight={0: 1.0, 1: 2.0},
    )
    assert 3 < given.ledger.epsilon() < 7
    (entry,) = given.ledger.entries
    assert "weights of classes: public" in entry.notes
    plain = keras.saving.load_model(tmp_path / "best.keras")
    assert type(plain) is keras.Sequential


def test_pieces_of_a_batch():
    given = callback()
    compiled(network(), physical_batch_size=4).fit(
        X, Y, batch_size=10, verbose=0, callbacks=[given]
    )
    assert given.ledger.entries


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        rows = slice(10 * i, 10 * i + 10)
        return X[rows], Y[rows]


def test_a_row_is_a_record_whatever_holds_it():
    given = GivenRecords(Batches(workers=1))
    np.testing.assert_array_equal(given.x, X)
    assert given.n == 40 and given.batch_size == 10
    if BACKEND == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((X, Y))
        np.testing.assert_array_equal(GivenRecords(data.batch(7)).y, Y)
        with pytest.raises(ValueError, match="without end"):
            GivenRecords(data.batch(7).repeat())
    if BACKEND == "torch":
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        held = TensorDataset(torch.tensor(X), torch.tensor(Y))
        given = GivenRecords(DataLoader(held, batch_size=8, shuffle=True))
        np.testing.assert_array_equal(given.x, X)
        assert given.batch_size == 8
        from torch.utils.data import SubsetRandomSampler

        some = DataLoader(held, sampler=SubsetRandomSampler(range(10)))
        with pytest.raises(ValueError, match="must take every row"):
            GivenRecords(some)
    with pytest.raises(ValueError, match="a generator shows each"):
        GivenRecords(iter([(X, Y)]))


def test_several_inputs_and_a_subclass():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.other = L.Dense(3), L.Dense(3)
            self.last = L.Dense(1)

        def call(self, inputs):
            return self.last(self.one(inputs["a"]) * self.other(inputs["b"]))

    model = Two()
    private = fm.make_private(model)
    private.compile("adam", "mse")
    private.fit(
        {"a": X, "b": X[:, :2]},
        X[:, 0],
        batch_size=10,
        verbose=0,
        callbacks=[callback()],
    )
    assert private.predict({"a": X, "b": X[:, :2]}, verbose=0).shape == (40, 1)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's generators"
)
def test_a_layer_that_draws_from_tensorflow_itself_is_refused():
    """`tf.random.uniform` in a layer, and a global seed: without a record the
    others would have other masks."""
    import tensorflow as tf

    class Masked(keras.layers.Layer):
        def call(self, inputs, training=None):
            if not training:
                return inputs
            return inputs * tf.random.uniform(tf.shape(inputs))

    model = keras.Sequential(
        [keras.Input((4,)), Masked(), keras.layers.Dense(3)]
    )
    given = callback()
    private = fm.make_private(model)
    private.compile("sgd", "mse")
    rows = np.ones((20, 4), "float32")
    with pytest.raises(ValueError, match="TensorFlow's own generator"):
        private.fit(rows, rows[:, :3], batch_size=5, callbacks=[given])
    assert not given.ledger.entries
