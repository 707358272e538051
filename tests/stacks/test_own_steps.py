"""What is no step of this package's own, and what a step shows."""

import keras
import numpy as np
import pytest
from gradient_nets import private
from keras import layers as L
from keras import ops

import keras_fm as fm
from keras_fm.parts.hidden_state import HiddenVariable

X = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
Y = np.arange(60) % 3
Batches = fm.datasets.PoissonBatches


class Centred(Batches):
    """Batches whose rows hold the mean of all records in them."""

    def __getitem__(self, index):
        x, y, mask = super().__getitem__(index)
        return x - x.mean(axis=0), y, mask


class Louder(fm.models.GradientNet):
    """A loss that reads the records beside the noisy sums."""

    def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
        found = super().compute_loss(x, y, y_pred, *args, **kwargs)
        return found + ops.mean(ops.square(y_pred))


def own_step(model):
    model.train_step = lambda *args: {"loss": ops.mean(args[-1][0])}


@pytest.mark.parametrize(
    "kind, batches, change, match",
    [
        (fm.models.GradientNet, Centred, None, "not on a subclass"),
        (Louder, Batches, None, "class of its own"),
        (fm.models.GradientNet, Batches, own_step, "own `train_step`"),
    ],
)
def test_own_batches_and_steps_are_refused(kind, batches, change, match):
    model = kind((6,), [L.Dense(3)], clip=0.1)
    model.compile("sgd")
    if change is not None:
        change(model)
    before = model.get_weights()
    callback = private()
    sampled = batches(X, Y, batch_size=10)
    with pytest.raises(ValueError, match=match):
        model.fit(sampled, callbacks=[callback], verbose=0)
    assert not callback.ledger.entries
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("change", ["lora", "quantized"])
def test_layers_that_changed_since_are_refused_before_the_charge(change):
    """All steps were paid for, and then the first one of a quantized network
    stopped with "Expected int32, but got 0.0"; weights that a model was not
    built with are in no digest of it."""
    layer = L.Dense(5, activation="relu")
    model = fm.models.GradientNet((6,), [layer, L.Dense(3)], clip=0.1)
    if change == "quantized":
        layer.quantize("int8")
    else:
        layer.enable_lora(2)
    model.compile("sgd")
    callback = private()
    with pytest.raises(ValueError, match="other weights than"):
        sampled = Batches(X, Y, batch_size=10)
        model.fit(sampled, callbacks=[callback], verbose=0)
    assert not callback.ledger.entries


@pytest.mark.parametrize("token", [987654, -5])
def test_no_step_stops_at_a_record(token):
    """Uncompiled, a table told the token that is not in it, after all was
    paid for."""
    tokens = np.random.default_rng(0).integers(0, 6, (30, 4))
    tokens[7, 3] = token
    layers = [L.Embedding(6, 2), L.Flatten(), L.Dense(3)]
    model = fm.models.GradientNet((4,), layers, clip=0.1)
    eager = keras.backend.backend() != "jax"
    model.compile("sgd", run_eagerly=eager)
    sampled = Batches(tokens, Y[:30], sampling="full")
    model.fit(sampled, epochs=2, callbacks=[private()], verbose=0)
    assert model.steps_taken == 2


def test_the_batches_themselves_are_no_validation_data():
    model = fm.models.GradientNet((6,), [L.Dense(3)], clip=0.1)
    model.compile("sgd", metrics=["accuracy"])
    sampled, callback = Batches(X, Y, batch_size=10), private()
    others = Batches(X + 1, Y.copy(), batch_size=10)
    for shown in (sampled, Batches(X[:9], Y[:9], sampling="full")):
        with pytest.raises(ValueError, match="holds private records"):
            model.fit(
                sampled,
                validation_data=shown,
                callbacks=[callback],
                verbose=0,
            )
    assert not callback.ledger.entries
    fit = {"validation_data": others, "callbacks": [callback], "verbose": 0}
    assert "val_accuracy" in model.fit(sampled, **fit).history


def test_the_batches_themselves_are_no_data_beside_them():
    """They were called a batch with sample weights."""
    model = fm.models.GradientNet((6,), [L.Dense(3)], clip=0.1)
    model.compile("sgd")
    sampled = Batches(X, Y, batch_size=10)
    callback = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(2.0, 1e-5), data=sampled
    )
    with pytest.raises(ValueError, match="`data` must be left out"):
        model.fit(sampled, callbacks=[callback], verbose=0)
    assert not callback.ledger.entries


class Exports(keras.callbacks.Callback):
    """Writes the model while it trains, and remembers its seed."""

    def __init__(self, path):
        super().__init__()
        self.path, self.seed = path, None

    def on_train_batch_end(self, batch, logs=None):
        self.seed = ops.convert_to_numpy(self.model._noise._get_hidden("seed"))
        if not self.path.exists():
            self.model.export(self.path, verbose=False)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="written by TensorFlow"
)
def test_no_export_holds_the_seed_and_no_model_after_its_fit(tmp_path):
    """`Model.export` writes all variables, and the seed was one of them: the
    noise of all steps could be taken off."""
    model = fm.models.GradientNet((6,), [L.Dense(3)], clip=0.1)
    model.compile("sgd")
    callback, exports = private(), Exports(tmp_path / "early")
    sampled = Batches(X, Y, batch_size=10)
    fit = {"callbacks": [callback, exports], "verbose": 0}
    model.fit(sampled, epochs=1, **fit)
    model.export(tmp_path / "late", verbose=False)
    assert np.all(exports.seed > 0)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            for word in exports.seed:
                assert word.astype("<i4").tobytes() not in raw
                assert word.astype("<i8").tobytes() not in raw
    held = model._noise._hidden.variables.values()
    assert all(isinstance(value, HiddenVariable) for value in held)
    for value in held:
        assert not np.isin(exports.seed, ops.convert_to_numpy(value)).any()


class Checkpoint(keras.callbacks.Callback):
    """As people write it: every variable of the model, at every epoch."""

    def on_train_begin(self, logs=None):
        noise, given = self.model._noise, []
        self.seed = given
        if keras.backend.backend() == "jax":
            key_of_batch = noise.key_of_batch

            def watched():
                given.append(key_of_batch())
                return given[-1]

            noise.key_of_batch = watched
        if keras.backend.backend() == "torch":
            state = noise._hidden.seed.bit_generator.state
            given.append(state["state"]["key"])

    def on_epoch_end(self, epoch, logs=None):
        if keras.backend.backend() == "tensorflow":
            self.seed.append(
                ops.convert_to_numpy(self.model._noise._get_hidden("seed"))
            )
        self.held = [
            ops.convert_to_numpy(v).ravel()
            for v in (
                *self.model.variables,
                *self.model.non_trainable_variables,
                *self.model.get_layer("step_noise").variables,
            )
        ]
        if keras.backend.backend() == "torch":
            self.held += [
                value.cpu().numpy().ravel()
                for value in self.model.state_dict().values()
            ]


def test_no_checkpoint_of_all_variables_holds_the_seed():
    """With the seed the noise of every step can be taken off."""
    model = fm.models.GradientNet((6,), [L.Dense(3)], clip=0.1)
    model.compile("sgd")
    written = Checkpoint()
    sampled = Batches(X, Y, batch_size=10)
    model.fit(sampled, callbacks=[private(), written], verbose=0)
    words = np.concatenate(written.seed)
    assert np.all(words > 0)
    held = np.concatenate(written.held)
    assert held.size > 18
    assert not np.isin(words, held).any()


def test_a_fit_that_goes_on_has_other_noise():
    model = fm.models.GradientNet((6,), [L.Dense(3)], clip=0.1, planned_steps=4)
    model.compile(keras.optimizers.SGD(1.0))
    callback = private(0.5)
    sampled = Batches(0 * X, 0 * Y, batch_size=10, steps_per_epoch=2)
    moved = []
    for _ in range(2):
        before = model.get_weights()[0]
        model.fit(sampled, callbacks=[callback], verbose=0)
        assert not model._noise.has_seed
        moved.append((model.get_weights()[0] - before).ravel())
    assert model.steps_taken == 4
    scale = model.noise_multiplier * 0.1 / 10 * 2**0.5
    for found in moved:  # 18 entries: false alarm below 1e-7
        assert 0.25 < np.sqrt(np.mean(found**2)) / scale < 2.5
    assert np.abs(moved[0] - moved[1]).max() > 0.1 * scale


def test_batches_are_drawn_as_was_planned():
    sampled = Batches(X, Y, batch_size=10)
    for name in ("sampling_rate", "batch_size", "sampling", "_x", "capacity"):
        with pytest.raises(AttributeError, match="fixed when they are built"):
            setattr(sampled, name, getattr(sampled, name))


@pytest.mark.parametrize("first", [True, False])
def test_weights_that_are_restored_before_the_end_is_noted(first):
    model = fm.models.GradientNet((6,), [L.Dense(3)], clip=0.1)
    model.compile(keras.optimizers.SGD(50.0), metrics=["accuracy"])
    early = keras.callbacks.EarlyStopping(
        "val_loss", patience=2, restore_best_weights=True
    )
    callbacks = [early, private()] if first else [private(), early]
    sampled = Batches(X, Y, batch_size=10)
    fit = {"validation_data": (X + 9, Y.copy()), "verbose": 0}
    model.fit(sampled, epochs=9, callbacks=callbacks, **fit)
    assert early.best_epoch < early.stopped_epoch
    assert model.is_released is first


def test_layers_and_records_that_are_none_are_named():
    layers = [keras.Input((6,)), L.Dense(3)]
    with pytest.raises(ValueError, match="without `keras.Input`"):
        fm.models.GradientNet((6,), layers)
    for x, y in ((X, Y.astype(str)), (X.astype(str), Y)):
        with pytest.raises(
            ValueError, match="ook words up beforehand|classes.index"
        ):
            Batches(x, y, batch_size=10)


class Stops(L.Layer):
    def call(self, inputs, training=None):
        if training:
            raise TypeError("no step goes through here")
        return inputs


def test_what_stops_a_step_stops_it_before_it_is_paid_for():
    model = fm.models.GradientNet((6,), [Stops(), L.Dense(3)], clip=0.1)
    model.compile("sgd")
    callback = private()
    with pytest.raises(ValueError, match="on made-up records stops"):
        model.fit(Batches(X, Y, batch_size=10), callbacks=[callback], verbose=0)
    assert not callback.ledger.entries


def test_a_record_without_a_norm_is_in_a_bin():
    keras.utils.set_random_seed(0)
    x = X.copy()
    x[3], x[5] = 3e38, -3e38
    layers = [L.Dense(4, activation="relu"), L.Dense(3)]
    model = fm.models.GradientNet((6,), layers, clip="histogram")
    assert not np.all(np.isfinite(model.coefficient_norms(x, Y)))
    model.compile("sgd")
    sampled = Batches(x, Y, batch_size=10)
    model.fit(sampled, callbacks=[private()], verbose=0)
    assert model.steps_taken == 6
    assert all(np.all(np.isfinite(w)) for w in model.get_weights())


@pytest.mark.parametrize("name", ["class_weight", "sample_weight"])
@pytest.mark.parametrize("kind", [fm.models.GradientNet, fm.models.DPMAC])
def test_weights_are_refused_by_their_name(kind, name):
    """Keras said "You cannot specify `class_weight` and `sample_weight` at
    the same time" where one was given."""
    model = kind((6,), [L.Dense(3)], clip=0.1)
    model.compile("sgd")
    callback = private()
    sampled = Batches(X, Y, batch_size=10)
    weights = {0: 1.0, 1: 2.0, 2: 1.0}
    weights = weights if name == "class_weight" else np.ones(len(X))
    with pytest.raises(ValueError, match=f"`{name}` must be left out") as e:
        model.fit(sampled, callbacks=[callback], verbose=0, **{name: weights})
    assert "at the same time" not in str(e.value)
    assert not callback.ledger.entries
    # The twin may weigh what it likes, as Keras does.
    twin = kind((6,), [L.Dense(3)], clip=0.1, unprotected=True)
    twin.compile("sgd")
    twin.fit(X, Y, verbose=0, **{name: weights})
