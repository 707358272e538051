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
from keras_fm.core import replicas
from keras_fm.kernel.mechanisms import NoiseSource
from keras_fm.per_example import past_weights, record_map
from keras_fm.per_example.balanced_classes import BalancedClasses
from keras_fm.per_example.given_records import GivenRecords

pytestmark = [pytest.mark.full, pytest.mark.backend]

L = keras.layers
BACKEND = keras.backend.backend()
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
OTHERS = RNG.normal(size=(5, 6)).astype("float32")


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


def fit(private, *callbacks, x=X, y=Y, batch_size=10, **more):
    more = {"verbose": 0, "callbacks": callbacks, **more}
    return private.fit(x, y, batch_size=batch_size, **more)


def test_three_lines(tmp_path):
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
        validation_data=(OTHERS, Y[:5].copy()),
        callbacks=[given],
    ).history
    assert set(history) == {"charged", "val_loss", "val_accuracy"}
    assert history["charged"][0] == pytest.approx(given.ledger.epsilon())
    (entry,) = given.ledger.entries
    assert entry.guarantee == "proven" and entry.mechanism["steps"] == 8
    assert 7.9 < given.ledger.epsilon() <= 8.0
    assert any(
        np.any(one != other) for one, other in zip(before, model.get_weights())
    )
    assert "sha256" in given.report()
    private.save_weights(tmp_path / "mine.weights.h5")
    network().load_weights(tmp_path / "mine.weights.h5")


@pytest.mark.once
def test_the_bar_shows_what_was_charged(capsys):
    """An epsilon of the steps so far would promise something to a fit that
    is stopped because of what it showed."""
    given = callback(2.0)
    compiled(network()).fit(
        X,
        Y,
        batch_size=10,
        epochs=2,
        verbose=2,
        validation_data=(OTHERS, Y[:5].copy()),
        callbacks=[given],
    )
    lines = capsys.readouterr().out.splitlines()
    assert "Metrics of training rows are not shown" in lines[0]
    assert lines[1] == "Epoch 1/2"
    assert lines[2].startswith("epsilon 2 charged, step 4 of 8 - val_")
    assert "val_accuracy" in lines[2] and "step 8 of 8" in lines[4]
    assert "validation: 5 rows, not protected" in given.report()


def test_steps_are_charged_before_the_first():
    given = callback()

    class Stops(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            assert given.ledger.entries[0].mechanism["steps"] == 8
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(compiled(network()), given, Stops(), epochs=2)
    assert given.ledger.entries[0].mechanism["steps"] == 8


@pytest.mark.once
def test_a_spent_budget_trains_nothing():
    given, model = callback(), network()
    private = compiled(model)
    private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    before = model.get_weights()
    with pytest.raises(fm.BudgetExceededError, match="too little budget left"):
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
        self.all_seen, self.of_batch = [], {"first": None}

    def call(self, inputs, training=None):
        self.last_seen = inputs
        self.all_seen.append(inputs)
        self.of_batch["first"] = inputs[0]
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
    seen = (*attributes["all_seen"], attributes["of_batch"]["first"])
    compiled(model).fit(X, Y, batch_size=10, verbose=0, callbacks=[callback()])
    for variable, value in zip(kept, before):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)
    now = vars(model.layers[0])
    assert now.keys() == attributes.keys()
    assert all(now[name] is value for name, value in attributes.items())
    held = (*now["all_seen"], now["of_batch"]["first"])
    assert [id(v) for v in held] == [id(v) for v in seen]


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
    fit(private, given, batch_size=size, epochs=8 if full else 2)
    (entry,) = given.ledger.entries
    mechanism = entry.build_mechanism()
    assert mechanism.sensitivity == (2.0 if full else 1.0)
    after = np.concatenate([w.ravel() for w in model.get_weights()])
    wanted = mechanism.stddev * 0.3 / size * np.sqrt(8)
    assert (after - before).std() == pytest.approx(wanted, rel=0.11)


def test_a_second_fit_has_noise_of_its_own(tmp_path):
    """Also while something, such as the last error in a notebook, holds the
    compiled step of the first one, which JAX would take for equal."""
    model = keras.Sequential(
        [keras.Input((6,)), L.Dense(200, use_bias=False), L.Dense(4)]
    )
    private, held, found = fm.make_private(model), [], []
    private.compile(keras.optimizers.SGD(1.0), _Constant())
    for spends in (0.1, 0.7):
        given = callback(
            ledger=tmp_path / "ledger.json", guarantee=fm.Proven(spends=spends)
        )
        before = model.layers[0].get_weights()[0]
        private.fit(X, Y, batch_size=10, epochs=2, verbose=0, callbacks=[given])
        held.append(private.train_function)
        charged = given.ledger.entries[-1].build_mechanism().stddev
        found.append(charged)
        moved = model.layers[0].get_weights()[0] - before
        wanted = charged / 10 * np.sqrt(8)
        assert moved.std() == pytest.approx(wanted, rel=0.11)
    assert found[0] > 1.5 * found[1]


def test_class_weights_act_after_the_clip():
    given = GivenRecords(X, Y, batch_size=10)
    given.weigh({0: 1.0, 1: 4.0})
    np.testing.assert_allclose(given.weights, np.where(Y == 1, 1.0, 0.25))
    # The largest weight does not depend on which classes occur.
    for labels in (Y, np.where(np.arange(40) == 7, 3, Y)):
        other = GivenRecords(X, labels, batch_size=10)
        other.weigh({0: 0.5, 1: 0.25})
        assert set(other.weights[labels == 0]) == {np.float32(0.5)}


class AtBegin(keras.callbacks.Callback):
    """Keeps the weights of records that the samples are drawn with."""

    def on_train_begin(self, logs=None):
        self.weights = self.model._fit._given.weights


@pytest.mark.once
def test_balanced_classes_are_released_and_charged():
    """Counts of labels are private; what they cost is part of the budget,
    and the rare class weighs most. Counts of 100 and 300 with noise of a
    deviation of 5 are 8 deviations off once in 10^15 runs."""
    x = np.zeros((400, 6), "float32")
    y = np.where(np.arange(400) < 100, "yes", "no")
    given, begun = callback(), AtBegin()
    private = compiled(network(), classes=["no", "yes"])
    plan = given.plan(private, 400, 1, 100, class_weight="balanced")
    private.fit(
        x,
        y,
        batch_size=100,
        verbose=0,
        class_weight="balanced",
        validation_data=(x[:5] + 1, y[:5]),
        callbacks=[given, begun],
    )
    counts, steps = given.ledger.entries
    noise = counts.build_mechanism()
    assert counts.name == "counts of classes" and noise.stddev < 5
    assert "weights of classes: released" in steps.notes
    assert 7.9 < given.ledger.epsilon() <= 8.0
    common, rare = begun.weights[200], begun.weights[0]
    assert rare == 1
    exact, off = 100 / 300, 8 * noise.stddev
    assert (100 - off) / (300 + off) < common < (100 + off) / (300 - off)
    assert common != pytest.approx(exact, rel=1e-6)
    assert private.evaluate(x, y, verbose=0)
    assert f"multiplier {steps.build_mechanism().noise_multiplier:.4g}" in plan
    assert "first: counts of classes" in plan


@pytest.mark.once
def test_counts_of_owners():
    """However many rows an owner has, it counts once."""
    ledger = fm.Ledger(fm.PrivacyBudget(1e5, 1e-3), neighbours="replace_one")
    owners = np.r_[np.zeros(900, int), np.arange(1, 1001)]
    labels = np.r_[np.ones(900, int), np.zeros(1000, int)]
    found = BalancedClasses(2, owners, ledger, 1.0)
    weights = found.weights(labels, NoiseSource())
    # 1 owner of class 1, and a floor of four deviations of the noise.
    assert weights[1] == 1 and weights[0] < 0.02
    assert ledger.entries[0].build_mechanism().sensitivity == 2


@pytest.mark.once
def test_a_plan_spends_nothing_and_says_what_a_fit_does():
    given = callback()
    private = compiled(network())
    text = given.plan(private, X, batch_size=10, epochs=2)
    assert not given.ledger.entries
    assert text == given.plan(private, 40, batch_size=10, epochs=2)
    private.fit(X, Y, batch_size=10, epochs=2, verbose=0, callbacks=[given])
    (entry,) = given.ledger.entries
    noise = entry.build_mechanism()
    # 47 weights: 6 x 5 + 5 and 5 x 2 + 2.
    signal = 10 / noise.stddev / np.sqrt(47)
    for words in (
        f"epsilon = {given.ledger.epsilon():.4g} in all",
        "8 step(s)",
        "10 of 40 records expected",
        f"multiplier {noise.noise_multiplier:.4g}",
        "each of 47 weights",
        f"at most {signal:.3g}",
        "layer",
    ):
        assert words in text
    with pytest.raises(fm.BudgetExceededError):
        given.plan(private, 40, batch_size=10)
    with pytest.raises(ValueError, match="how many there are"):
        callback().plan(private)


@pytest.mark.once
def test_labels_that_are_named():
    given = GivenRecords(X, ["yes", "no"] * 20, classes=["no", "yes"])
    np.testing.assert_array_equal(given.y[:2], [1, 0])
    with pytest.raises(ValueError, match="not among the public `classes`"):
        GivenRecords(X, ["yes", "maybe"] * 20, classes=["no", "yes"])
    with pytest.raises(ValueError, match="two different labels"):
        fm.make_private(network(), classes=["no", "no"])


@pytest.mark.once
def test_batch_normalization_must_change():
    inputs = keras.Input((6, 6, 1))
    x = L.Conv2D(4, 3, name="first")(inputs)
    x = L.BatchNormalization(name="norm")(x)
    # What has no config, and no weights either.
    x = L.Lambda(lambda v: ops.relu(v))(ops.tanh(x))
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(x)))
    with pytest.raises(ValueError, match="'norm'.*fix=True"):
        fm.make_private(model)
    inner = keras.Sequential([inputs, L.TimeDistributed(model.layers[2])])
    with pytest.raises(ValueError, match="layers inside other"):
        fm.make_private(inner, fix=True)
    private = fm.make_private(model, fix=True)
    assert "norm" in private.changes[0]
    assert isinstance(private.model.get_layer("norm"), L.GroupNormalization)
    np.testing.assert_array_equal(
        private.model.get_layer("first").get_weights()[0],
        model.get_layer("first").get_weights()[0],
    )


@pytest.mark.parametrize("first", [[], [keras.Input((6,))]], ids=len)
def test_a_mended_dense_network_sees_its_records(first):
    """Each of its channels was normalised alone: the same for every record."""
    layers = [L.Dense(4), L.BatchNormalization(), L.Dense(2)]
    made = fm.make_private(keras.Sequential([*first, *layers]), fix=True).model
    seen = ops.convert_to_numpy(made(np.eye(6, dtype="float32")))
    assert np.abs(seen - seen[0]).max() > 1e-3


@pytest.mark.once
def test_a_mended_convolution_of_one_place_sees_its_records():
    """Small pictures end there in networks of `keras.applications`."""
    inputs = keras.Input((4, 4, 1))
    x = L.BatchNormalization()(L.Conv2D(3, 4)(inputs))
    model = keras.Model(inputs, L.Dense(2)(L.Flatten()(x)))
    made = fm.make_private(model, fix=True)
    assert "GroupNormalization(groups=1)" in made.changes[0]
    seen = ops.convert_to_numpy(made.model(np.eye(16).reshape(16, 4, 4, 1)))
    assert np.abs(seen - seen[0]).max() > 1e-3


@pytest.mark.once
def test_the_table_shows_the_layers_inside_other_layers():
    """Layers that only hold others were said to train record by record."""
    first, second = L.Dense(4, name="first"), L.Dense(4, name="second")
    body = keras.Sequential([keras.Input((6,)), first, second])
    last = L.Dense(2, name="last")
    lines = fm.check(keras.Sequential([keras.Input((6,)), body, last]))
    rows = [line.split() for line in lines.splitlines()[1:]]
    assert rows == [[v, "Dense", "fast"] for v in ("first", "second", "last")]
    last.enable_lora(1)
    assert "record by record" in fm.check(keras.Sequential([body, last]))


class Factors(L.Layer):
    """Multiplies by a matrix, or by its square."""

    def __init__(self, squares):
        super().__init__()
        self.squares = squares

    def build(self, shape):
        self.matrix = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, inputs):
        matrix = self.matrix
        return inputs @ (ops.matmul(matrix, matrix) if self.squares else matrix)


def test_the_table_knows_layers_of_ones_own():
    given, twice = keras.Input((4,)), L.Dense(4, name="twice")
    x = Factors(False)(twice(twice(given)))
    model = keras.Model({"a": given}, Factors(True)(x))
    _, *rows = fm.check(model).splitlines()
    assert [row.split()[1] for row in rows] == ["Dense", "Factors", "Factors"]
    assert [row.endswith("fast") for row in rows] == [True, True, False]


@pytest.mark.once
def test_a_copy_keeps_weights_of_layers_that_are_built():
    """A sequential model without an input is not built, its layers may be."""
    first = L.Dense(4)
    first.build((None, 6))
    model = keras.Sequential([first, L.BatchNormalization(), L.Dense(2)])
    private = fm.make_private(model, fix=True)
    private.model.build((None, 6))
    np.testing.assert_array_equal(
        private.model.layers[0].get_weights()[0], first.get_weights()[0]
    )


@pytest.mark.once
def test_spectral_normalization_must_change():
    """It divides its weights in every call that trains; a private step keeps
    none of that, so that a prediction used other weights than training."""
    model = keras.Sequential(
        [keras.Input((6,)), L.SpectralNormalization(L.Dense(2), name="norm")]
    )
    with pytest.raises(ValueError, match="'norm'.*fix=True"):
        fm.make_private(model)
    assert "Spectral normalization changes weights" in fm.check(model)
    private = fm.make_private(model, fix=True)
    assert fm.check(private) == fm.check(private.model)
    assert type(private.model.layers[0]) is L.Dense
    np.testing.assert_array_equal(
        private.model.get_weights()[0], model.layers[0].layer.get_weights()[0]
    )


@pytest.mark.once
def test_unfreezing_needs_a_new_compile():
    """Keras fails in the first step then, after the charge."""
    model = network()
    model.layers[0].trainable = False
    given = callback(guarantee=fm.Proven(spends=0.4))
    private = compiled(model)
    private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    model.layers[0].trainable = True
    with pytest.raises(ValueError, match="Compile it again"):
        private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    assert len(given.ledger.entries) == 1
    private.compile(
        keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy"
    )
    private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    assert len(given.ledger.entries) == 2


def contrast(y, pred):
    far = ops.sum(ops.square(pred[:, None] - pred[None]), -1)
    same = ops.cast(ops.equal(y[:, None], y[None]), "float32")
    return ops.mean(same * far + (1 - same) * ops.relu(1 - far))


def standardized(y, pred):
    y = ops.cast(y, "float32") - ops.mean(ops.cast(y, "float32"))
    return ops.mean(ops.square(y - pred[:, 0])) / ops.std(y)


def spread(y, pred):
    errors = ops.square(ops.cast(y, pred.dtype) - pred[:, :1])
    return errors + 0.1 * ops.var(pred)


@pytest.mark.parametrize(
    "loss",
    [
        contrast,
        standardized,
        spread,
        lambda y, p: keras.losses.dice(y, p[:, :1]),
    ],
)
def test_a_loss_that_compares_rows_is_refused(loss):
    """Such a fit charged its budget, and learned from noise alone, or
    something else than the loss says."""
    given, private = callback(), fm.make_private(network())
    private.compile("sgd", loss)
    with pytest.raises(ValueError, match="compares the rows of a batch"):
        fit(private, given)
    assert not given.ledger.entries


def test_rows_of_an_owner_may_be_compared():
    """They are one record; of no owner are rows compared with another's."""
    given, private = callback(), fm.make_private(network(), rows_per_owner=4)
    private.compile("sgd", contrast)
    fit(private, given, owners=np.arange(40) // 4)
    assert given.ledger.entries


@pytest.mark.once
@pytest.mark.parametrize(
    "x",
    [
        np.array([[1.0, "red"]] * 40, dtype=object),
        np.full((40, 6), "2020-01-01", "datetime64[D]"),
        X + 1j,
    ],
    ids=["mixed", "dates", "complex"],
)
def test_columns_that_are_no_numbers_are_refused_in_words(x):
    """Of a pandas table: "Invalid dtype: object", "Cast string to float"."""
    with pytest.raises(ValueError, match="numbers, of truth values or of text"):
        GivenRecords(x, Y)


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


@pytest.mark.once
@pytest.mark.parametrize(
    "model, words",
    [
        (OwnStep, "its own `train_step`"),
        (trained_before, "was trained before"),
        (lambda: keras.Sequential([trained_before()]), "was trained before"),
        (
            lambda: keras.Sequential(
                [keras.Input(batch_shape=(2, 3, 4)), L.LSTM(2, stateful=True)]
            ),
            "`stateful=True`",
        ),
        (lambda: L.Dense(2), "`model` must be a `keras.Model`"),
    ],
)
def test_models_that_are_refused(model, words):
    with pytest.raises(ValueError, match=words):
        fm.make_private(model())


@pytest.mark.once
@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"callbacks": []}, "needs one budget"),
        ({"validation_split": 0.2}, "`validation_split` would show"),
        ({"validation_data": (X[:5], Y[:5])}, "holds private records"),
        ({"validation_data": (X, Y)}, "holds private records"),
        ({"validation_data": (OTHERS[:, 1:], Y[:5].copy())}, ""),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be"),
        ({"sample_weight": 2 * np.ones(40)}, "must be from 0 to 1"),
        ({"y": np.array(["no", "yes"] * 20)}, r'classes=\["no", "yes"\]'),
        ({"y": Y + 1}, "whole numbers from 0 to 1"),
        ({"class_weight": "auto"}, '`class_weight` must be "balanced"'),
        ({"class_weight": {"no": 2.0}}, "a dict from labels"),
        ({"y": Y.tolist()}, r"`np.array\(y\)` of lists"),
        ({"guarantee": fm.Published(lot=10)}, "trains with a proof"),
        (
            {"guarantee": fm.Proven(neighbours="replace_one")},
            "batch_size=40, all records",
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


@pytest.mark.once
def test_no_step_outside_of_a_fit():
    private = compiled(network())
    with pytest.raises(ValueError, match="Use `fit`"):
        private.train_on_batch(X[:4], Y[:4])
    with pytest.raises(ValueError, match="supports `fit` only"):
        private(X[:4], training=True)
    with pytest.raises(NotImplementedError, match="`private.model`"):
        private.get_config()


@pytest.mark.once
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
    with pytest.raises(ValueError, match="The optimizer was used"):
        private.fit(X, Y, verbose=0, callbacks=[callback()])
    private, given = compiled(network()), callback()
    private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    private.model.layers[0].kernel.assign_add(np.ones((6, 5)))
    with pytest.raises(ValueError, match="no longer has the weights"):
        private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])


def private_copy(folder):
    """A model that a private fit led to, and its callback."""
    model, given = network(), callback(guarantee=fm.Proven(spends=0.5))
    compiled(model).fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    model.save(folder / "mine.keras")
    return model, given


@pytest.mark.once
def test_weights_that_were_copied_are_not_random(tmp_path):
    """A body or a file of a model that a ledger knows is of that ledger."""
    model, given = private_copy(tmp_path)
    loaded = keras.saving.load_model(tmp_path / "mine.keras")
    body = keras.Sequential([model.layers[0], L.Dense(2)])
    for copy in (loaded, body):
        with pytest.raises(ValueError, match="under another ledger"):
            compiled(copy).fit(X, Y, verbose=0, callbacks=[callback()])
    compiled(loaded).fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    assert len(given.ledger.entries) == 2


@pytest.mark.once
def test_frozen_weights_of_one_seed_are_random():
    """Two experiments of one seed have the same frozen random features."""
    frozen = []
    for given in (callback(), callback()):
        keras.utils.set_random_seed(3)
        model = network()
        model.layers[0].trainable = False
        fit(compiled(model), given)
        assert given.ledger.entries
        frozen.append(model.get_weights()[0])
    np.testing.assert_array_equal(*frozen)


@pytest.mark.once
def test_one_ledger_of_a_file(tmp_path):
    """Two callbacks that open one file charge one ledger."""
    path, budget = tmp_path / "ledger.json", fm.PrivacyBudget(8.0, 1e-3)
    private = compiled(network())
    (tmp_path / "link.json").symlink_to(path)
    for name in ("ledger.json", "link.json"):
        given = fm.callbacks.PrivateModel(
            budget,
            ledger=tmp_path / name,
            guarantee=fm.Proven(spends=0.5),
        )
        private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    assert len(given.ledger.entries) == 2


@pytest.mark.once
def test_the_statement_is_of_these_weights():
    """A plain `fit` afterwards is not covered, and the digest shows it."""
    model, given = network(), callback()
    private = compiled(model)
    private.fit(X, Y, batch_size=10, verbose=0, callbacks=[given])
    assert past_weights.digest(model) in given.report()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X, Y, verbose=0)
    assert past_weights.digest(model) not in given.report()
    assert "Other weights are not covered" in given.report()


@pytest.mark.once
def test_layers_that_were_adapted_are_not_public():
    """The exact mean and variance of the records would be in the file."""
    learned = L.Normalization()
    learned.adapt(X)
    last = L.Dense(2, activation="softmax")
    model = keras.Sequential([keras.Input((6,)), learned, last])
    given = callback()
    with pytest.raises(ValueError, match="constants of private data"):
        compiled(model).fit(X, Y, verbose=0, callbacks=[given])
    assert not given.ledger.entries
    given = callback()
    fit(compiled(model, public="means of a census"), given)
    assert given.ledger.entries


@pytest.mark.once
@pytest.mark.parametrize("activation", [None, "relu"])
def test_logits_under_a_loss_of_probabilities(activation):
    """It would learn nothing, for the whole budget."""
    last, given = L.Dense(2, activation=activation), callback()
    private = compiled(keras.Sequential([keras.Input((6,)), last]))
    with pytest.raises(ValueError, match="loss takes probabilities"):
        private.fit(X, Y, verbose=0, callbacks=[given])
    assert not given.ledger.entries


@pytest.mark.once
def test_a_class_that_the_loss_ignores():
    private, given = fm.make_private(network()), callback()
    private.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(ignore_class=255)
    )
    y = np.where(np.arange(40) < 5, 255, Y)
    fit(private, given, y=y)
    assert given.ledger.entries
    other = fm.make_private(network())
    other.compile("sgd", private.loss)
    with pytest.raises(ValueError, match="whole numbers from 0 to 1"):
        fit(other, callback(), y=np.where(y == 255, 254, y))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="writes a SavedModel")
def test_an_export_is_that_of_the_plain_model(tmp_path):
    private = compiled(network())
    fit(private, callback())
    private.export(tmp_path / "mine", verbose=False)
    served = keras.layers.TFSMLayer(tmp_path / "mine", call_endpoint="serve")
    np.testing.assert_allclose(served(X), private.model(X), rtol=1e-5)


@pytest.mark.once
def test_records_that_are_not_numbers_are_told():
    x = X.copy()
    x[3, 2] = np.inf
    with pytest.warns(UserWarning, match="NaN or infinite"):
        fit(compiled(network()), callback(), x=x)


@pytest.mark.once
def test_a_batch_has_two_rows_of_words_for_its_noise():
    private, seen = compiled(network()), []
    step = private.noisy_sums
    private.noisy_sums = lambda made, sums, keys, *more: (
        seen.append(keys.shape[0]) or step(made, sums, keys, *more)
    )
    fit(private, callback(), x=X[:1], y=Y[:1], batch_size=1)
    assert set(seen) == {2}


@pytest.mark.once
def test_one_row_of_each_owner():
    given = callback()
    private = compiled(network(), rows_per_owner=1)
    fit(private, given, owners=np.arange(40) // 2)
    assert given.ledger.entries


def test_a_layer_that_branches_on_a_record():
    """On TensorFlow XLA failed on it in a loop over pieces, after the charge:
    the trial had one piece."""

    class Branching(L.Layer):
        def build(self, shape):
            self.a = self.add_weight(shape=(shape[-1], 2))
            self.b = self.add_weight(shape=(shape[-1], 2))

        def call(self, x):
            return ops.cond(
                ops.sum(x) > 0, lambda: x @ self.a, lambda: x @ self.b
            )

    given = callback()
    model = keras.Sequential([keras.Input((6,)), Branching(), L.Softmax()])
    fit(compiled(model), given, batch_size=20)
    assert given.ledger.entries


def keeps_a_mean(inputs, mean):
    """A moving average, in the backend's own way."""
    if BACKEND == "torch":
        mean.value.detach().mul_(0.9).add_(0.1 * inputs.detach().mean())
    else:
        mean.assign(0.9 * mean + 0.1 * ops.mean(inputs))


@pytest.mark.skipif(BACKEND == "jax", reason="its arrays do not change")
@pytest.mark.parametrize("where", ["layer", "loss"])
def test_what_the_next_record_would_see_is_refused(where):
    """One record moved a step by many clips."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        mean = tf.Variable(1.0)
    else:
        mean = keras.Variable(1.0)

    class Scaled(L.Layer):
        def call(self, inputs, training=None):
            if training:
                keeps_a_mean(inputs, mean)
            return inputs / ops.convert_to_tensor(mean)

    def loss(y, outputs):
        keeps_a_mean(y, mean)
        error = ops.mean(ops.square(y - outputs), axis=-1)
        return error / ops.convert_to_tensor(mean)

    layers = [Scaled()] if where == "layer" else []
    private = fm.make_private(
        keras.Sequential([keras.Input((6,)), *layers, L.Dense(2)])
    )
    private.compile("sgd", loss if where == "loss" else "mse")
    given = callback()
    with pytest.raises(ValueError, match="hands something of a record on"):
        private.fit(X, X[:, :2], batch_size=10, verbose=0, callbacks=[given])
    assert not given.ledger.entries


@pytest.mark.once
def test_a_cell_that_is_run_twice():
    """Two fits under two callbacks had a statement of one of them."""
    model = network()
    compiled(model).fit(X, Y, batch_size=10, verbose=0, callbacks=[callback()])
    with pytest.raises(ValueError, match="under another ledger"):
        fit(compiled(model), callback())


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
        fit(private, fm.callbacks.PrivateModel(budget), batch_size=40)
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
    fit(private, given, y={"a": X[:, 0], "b": X[:, 1]})
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


@pytest.mark.once
def test_a_part_of_the_budget_is_left_to_others(tmp_path):
    given = callback(guarantee=fm.Proven(spends=0.5))
    private = compiled(network())
    saved = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"))
    fit(private, given, saved, class_weight={0: 1.0, 1: 2.0})
    assert 3 < given.ledger.epsilon() < 7
    (entry,) = given.ledger.entries
    assert "weights of classes: public, by declaration" in entry.notes
    plain = keras.saving.load_model(tmp_path / "best.keras")
    assert type(plain) is keras.Sequential


def test_pieces_of_a_batch():
    given = callback()
    fit(compiled(network(), physical_batch_size=4), given)
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
        with pytest.raises(ValueError, match="has no end"):
            GivenRecords(data.batch(7).repeat())
        # One record more would bring in six others.
        with pytest.raises(ValueError, match="drop_remainder=False"):
            GivenRecords(data.batch(7, drop_remainder=True))
    if BACKEND == "torch":
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        held = TensorDataset(torch.tensor(X), torch.tensor(Y))
        given = GivenRecords(DataLoader(held, batch_size=8, shuffle=True))
        np.testing.assert_array_equal(given.x, X)
        assert given.batch_size == 8
        from torch.utils.data import SubsetRandomSampler

        some = DataLoader(held, sampler=SubsetRandomSampler(range(10)))
        with pytest.raises(ValueError, match="must have no sampler"):
            GivenRecords(some)
    with pytest.raises(ValueError, match="a generator gives each"):
        GivenRecords(iter([(X, Y)]))


def test_several_inputs_and_a_subclass():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.other = L.Dense(3), L.Dense(3)
            self.last = L.Dense(1)

        def call(self, inputs):
            (b,) = inputs["b"]
            return self.last(self.one(inputs["a"]) * self.other(b))

    model = Two()
    private = fm.make_private(model)
    private.compile("adam", "mse")
    x = {"a": X, "b": [X[:, :2]]}
    fit(private, callback(), x=x, y=X[:, 0])
    assert private.predict(x, verbose=0).shape == (40, 1)


@pytest.mark.once
def test_a_loss_that_no_weight_moves():
    """For some records a layer may have one: it must not stop a step."""
    model = network()
    model.add(L.Lambda(lambda v: ops.stop_gradient(v)))
    given = callback()
    fit(compiled(model), given)
    assert given.ledger.entries


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras has text there")
def test_text_that_a_layer_reads():
    look = L.StringLookup(vocabulary=["no", "yes"], output_mode="one_hot")
    text = keras.Input((1,), dtype="string")
    given = callback()
    private = compiled(keras.Model(text, L.Dense(2, "softmax")(look(text))))
    fit(private, given, x=np.array([["yes"], ["no"]] * 20, object))
    assert given.ledger.entries


class Square(L.Layer):
    """What it adds is all the loss there is."""

    def call(self, inputs):
        self.add_loss(ops.mean(ops.square(inputs)))
        return inputs


def test_a_model_without_labels():
    # On PyTorch its mean is broadcast: no number of it can be set.
    scaled = L.Normalization(mean=0.0, variance=1.0)
    model = keras.Sequential([keras.Input((6,)), scaled, L.Dense(2), Square()])
    private, given = fm.make_private(model), callback()
    private.compile("sgd")
    private.fit(X, batch_size=10, verbose=0, callbacks=[given])
    assert given.ledger.entries
    without = fm.make_private(network())
    without.compile("sgd")
    with pytest.raises(ValueError, match="has no loss"):
        without.fit(X, batch_size=10, verbose=0, callbacks=[callback()])


def test_losses_of_two_reductions_are_refused_on_several_replicas(monkeypatch):
    """Keras divides a mean by the replicas, and no sum."""
    inputs = keras.Input((4,))
    heads = {n: keras.layers.Dense(1, name=n)(inputs) for n in "ab"}
    private = fm.make_private(keras.Model(inputs, heads))
    losses = {"a": "mse", "b": keras.losses.MeanSquaredError(reduction="sum")}
    private.compile("sgd", losses)
    monkeypatch.setattr(replicas, "of_strategy", lambda model: (2, True))
    private.compile("sgd", {"a": "mse", "b": "mae"})
    with pytest.raises(ValueError, match="On several replicas all losses"):
        private.compile("sgd", losses)


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
    with pytest.raises(ValueError, match="hands something of a record on"):
        private.fit(rows, rows[:, :3], batch_size=5, callbacks=[given])
    assert not given.ledger.entries
