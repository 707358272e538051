"""Ways around the promise, each of which a model once went.

A model with a proven report must not hold, show or have been trained on
private records beyond its ledger, wherever a user steps off the one path that
was meant.
"""

import keras
import numpy as np
import pytest
from fit_checks import Spy

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.core.private_part import parts_of

N = 96
GENERATOR = np.random.default_rng(0)
Y = np.arange(N) % 3
X = GENERATOR.random((N, 6)).astype("float32")
HOT = np.eye(3, dtype="float32")[Y]
# Other records: nothing that a fit shows may tell them from X and Y.
OTHER = GENERATOR.random((N, 6)).astype("float32")
OTHER_HOT = np.eye(3, dtype="float32")[np.zeros(N, int)]

pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.full,
]
# What is said of a compiled step must be tried on one.
TRACED = "compiled"


def dense(body=(), head=None, loss=None, metrics=("accuracy",)):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            *body,
            fm.layers.NormalizationLayer(),
            head or fm.layers.PrivateDense(3, name="head"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1),
        loss or fm.losses.TaylorCrossEntropy(),
        metrics=list(metrics),
    )
    return model


def private(data=(X, HOT), epsilon=2.0, **kwargs):
    return PrivateModel(fm.PrivacyBudget(epsilon, 1e-5), data=data, **kwargs)


def released(**kwargs):
    model = dense(**kwargs)
    model.fit(X, HOT, callbacks=[private()], verbose=0)
    return model


def refused_to_train(model, x=X, y=HOT, match="unprotected"):
    before = [np.array(w) for w in model.get_weights()]
    with pytest.raises(ValueError, match=match):
        model.fit(x, y, verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


# The logs ---------------------------------------------------------------

TAYLOR = fm.losses.TaylorCrossEntropy()
LOSSES = {
    "taylor": fm.losses.TaylorCrossEntropy,
    "mse": lambda: "mse",
    "hinge": lambda: "categorical_hinge",
    "own": lambda: lambda y, z: keras.ops.mean(y, axis=-1),
}


class ShareOfFirst(keras.metrics.Metric):
    """The share of label 0, under a name that a cleaner would let pass."""

    def __init__(self):
        super().__init__(name="val_share")
        self.total = self.add_weight(initializer="zeros", name="total")

    def update_state(self, y, z, sample_weight=None):
        self.total.assign_add(keras.ops.sum(y[:, 0]))

    def result(self):
        return keras.ops.convert_to_tensor(self.total)


def logs_of(model, x, y, callbacks=(), **kwargs):
    first, last = Spy(), Spy()
    history = model.fit(
        x, y, epochs=2, batch_size=32, verbose=0, shuffle=False,
        callbacks=[first, *callbacks, last], **kwargs,
    ).history  # fmt: skip
    return [first.seen, last.seen, history]


@pytest.mark.parametrize("loss", LOSSES)
def test_no_loss_shows_labels_or_records(tmp_path, loss):
    """`loss` in the logs was that of the labels with zero logits: the exact
    number of positive labels at epsilon 0.1."""
    metrics = ["accuracy", ShareOfFirst()]
    model = dense(loss=LOSSES[loss](), metrics=metrics)
    callback = private()
    found = logs_of(model, X, HOT, [callback])
    head = model.layers[-1]
    objective = float(keras.ops.convert_to_numpy(head.released_objective()))
    for seen in (*found[0], *found[1]):
        assert set(seen) <= {"loss"}
        assert all(np.isfinite(list(seen.values())))
    assert set(found[2]) == {"loss"}
    # Begun at its minimum, the released objective stays there.
    np.testing.assert_allclose(found[2]["loss"], objective, rtol=1e-5)
    model.save(tmp_path / "m.keras")
    again = []
    for x, y in ((X, HOT), (OTHER, OTHER_HOT)):
        keras.utils.set_random_seed(2)
        loaded = keras.saving.load_model(
            tmp_path / "m.keras",
            custom_objects={"ShareOfFirst": ShareOfFirst},
            compile=False,
        )
        loaded.compile(
            "sgd", LOSSES[loss](), metrics=["accuracy", ShareOfFirst()]
        )
        # Without the callback, and one step by hand.
        again.append([*logs_of(loaded, x, y), loaded.train_on_batch(x, y)])
    assert again[0] == again[1]


def test_the_same_in_a_compiled_step(tmp_path):
    model = dense(metrics=["accuracy", ShareOfFirst()])
    found = logs_of(
        model, X, HOT, [private()], validation_data=(OTHER, OTHER_HOT)
    )
    assert set(found[2]) == {
        "loss", "val_loss", "val_accuracy", "val_val_share",
    }  # fmt: skip
    assert all(set(seen) <= {"loss"} for seen in found[0] if len(seen) == 1)
    model.save(tmp_path / "m.keras")
    again = []
    for x, y in ((X, HOT), (OTHER, OTHER_HOT)):
        loaded = keras.saving.load_model(
            tmp_path / "m.keras",
            custom_objects={"ShareOfFirst": ShareOfFirst},
            compile=False,
        )
        loaded.compile("sgd", "mse", metrics=["accuracy", ShareOfFirst()])
        again.append(logs_of(loaded, x, y))
    assert again[0] == again[1]


class Adds(keras.layers.Layer):
    """Adds a loss of what it sees, and keeps its column means."""

    def build(self, shape):
        self.means = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if training:
            self.add_loss(keras.ops.sum(x))
            self.means.assign(keras.ops.mean(x, axis=0))
        return x


def test_what_layers_below_add_or_keep():
    """`add_loss` and `activity_regularizer` below the head showed sums of
    records; a variable that is written while training kept column means."""
    keras.utils.set_random_seed(0)
    frozen = keras.layers.Dense(
        6, trainable=False, activity_regularizer=keras.regularizers.L2(1.0)
    )
    found = []
    for data in ((X, HOT), (OTHER, OTHER_HOT)):
        model = dense([frozen])
        history = model.fit(
            *data, callbacks=[private(data, reproducible_noise=1)], verbose=0
        ).history
        head = model.layers[-1]
        objective = keras.ops.convert_to_numpy(head.released_objective())
        np.testing.assert_allclose(history["loss"], objective, rtol=1e-5)
        found.append(history["loss"])
    assert found[0] != found[1], "the releases are of other records"
    # A layer that keeps what it sees is called outside of steps only.
    model, callback = dense([Adds(name="adds")]), private()
    model.fit(X, HOT, callbacks=[callback], verbose=0)
    assert "record by record (Adds 'adds')" in callback.report()
    assert not np.any(keras.ops.convert_to_numpy(model.layers[0].means))


def test_steps_of_one_s_own_see_no_record():
    """A subclass with its own step is given zeros by the callback, and is
    refused without it."""

    class Own(keras.Model):
        def train_step(self, *arguments):
            *_, data = arguments
            seen.append(data)
            return super().train_step(*arguments)

    seen = []
    inputs = keras.Input((6,))
    outputs = fm.layers.PrivateDense(3, clip=True)(inputs)
    model = Own(inputs, outputs)
    model.compile("sgd", TAYLOR, run_eagerly=True)
    model.fit(X, HOT, callbacks=[private()], verbose=0)
    assert seen
    for data in seen:
        for array in keras.tree.flatten(data):
            assert not np.any(keras.ops.convert_to_numpy(array))
    other = Own(inputs, outputs)
    other.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(ValueError, match="its own `train_step`"):
        other.fit(X, HOT, verbose=0)


# A release is lost, or goes along ------------------------------------------


def by_config(model, tmp_path):
    made = type(model).from_config(model.get_config())
    made.set_weights(model.get_weights())
    return made


def by_h5(model, tmp_path):
    path = str(tmp_path / "m.h5")
    model.save(path)
    return keras.saving.load_model(path, compile=False)


def by_assignment(model, tmp_path):
    kernel = model.layers[-1].kernel
    kernel.assign(kernel + 1)
    return model


def by_a_twin_s_file(model, tmp_path):
    twin = fm.models.unprotected_twin(model)
    twin.compile("sgd", fm.losses.TaylorCrossEntropy())
    twin.fit(X, HOT, verbose=0)
    twin.save_weights(tmp_path / "twin.weights.h5")
    model.load_weights(tmp_path / "twin.weights.h5")
    return model


LOSERS = [by_config, by_h5, by_assignment, by_a_twin_s_file]


@pytest.mark.parametrize("how", LOSERS)
def test_what_loses_a_release_refuses_to_train(tmp_path, how):
    model = how(released(), tmp_path)
    if getattr(model, "optimizer", None) is None:
        model.compile("sgd", fm.losses.TaylorCrossEntropy())
    head = model.layers[-1]
    assert not head.is_released and head.ledger_json is None
    refused_to_train(model)
    with pytest.raises(ValueError, match="unprotected"):
        model.train_on_batch(X, HOT)
    with pytest.raises(ValueError, match="unprotected"):
        model(X, training=True)
    # It predicts, and what is saved has no ledger.
    assert model.predict(X, verbose=0).shape == (N, 3)
    model.save(tmp_path / "after.keras")
    again = keras.saving.load_model(tmp_path / "after.keras")
    assert not again.layers[-1].is_released


def test_a_release_lasts_through_what_fits_do(tmp_path):
    """Best weights that are restored, averages, interrupted and own loops
    are steps on the release; weights set after them are not."""
    model = released()
    head = model.layers[-1]
    path = str(tmp_path / "c.weights.h5")
    model.fit(
        X, HOT, epochs=3, verbose=0,
        callbacks=[
            keras.callbacks.EarlyStopping(
                monitor="loss", patience=1, restore_best_weights=True
            ),
            keras.callbacks.ModelCheckpoint(path, save_weights_only=True),
        ],
    )  # fmt: skip
    assert head.is_released
    model.load_weights(path)
    assert head.is_released
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
    model.fit(X, HOT, epochs=2, verbose=0)
    assert head.is_released
    # Keras on JAX cannot fit twice with averages.
    model.compile("sgd", "mse")
    model.fit(X, HOT, verbose=0)
    head.set_weights([w + 1 for w in head.get_weights()])
    assert not head.is_released


def test_a_layer_below_that_lost_its_release():
    """DPPCA lost its ledger while the head above still said released."""
    model = dense([fm.layers.NormalizationLayer(), fm.layers.DPPCA(4)])
    model.fit(X, HOT, callbacks=[private()], verbose=0)
    pca = model.layers[1]
    assert pca.is_released
    pca.set_weights([w + 1 for w in pca.get_weights()])
    assert not pca.is_released
    refused_to_train(model, match="DPPCA")


# Ledgers that do not know of each other ------------------------------------


def test_a_released_layer_as_features_under_a_new_ledger():
    """It was called public: the sum is 4, the statement said 2."""
    first = released()
    head = first.layers[-1]
    head.trainable = False
    inputs = keras.Input((6,))
    features = fm.layers.NormalizationLayer()(first(inputs))
    model = keras.Model(inputs, fm.layers.PrivateDense(3)(features))
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    callback = private()
    for ask in (
        lambda: callback.plan(model),
        lambda: model.fit(X, HOT, callbacks=[callback], verbose=0),
    ):
        with pytest.raises(ValueError, match="this ledger does not count"):
            ask()
    assert not callback.ledger.entries
    whole = fm.Ledger(fm.PrivacyBudget(9.0, 1e-5), neighbours="add_remove")
    first = dense()
    twice = fm.Proven(releases=2)
    callback = PrivateModel(whole, data=(X, HOT), guarantee=twice)
    first.fit(X, HOT, callbacks=[callback], verbose=0)
    first.layers[-1].trainable = False
    features = fm.layers.NormalizationLayer()(first(inputs))
    model = keras.Model(inputs, fm.layers.PrivateDense(3)(features))
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    callback = PrivateModel(whole, data=(X, HOT), guarantee=twice)
    model.fit(X, HOT, callbacks=[callback], verbose=0)
    assert len(whole.entries) == 2 and 8 < whole.epsilon() <= 9


def test_a_ledger_in_a_file_is_one_budget_wherever_the_process_goes(
    tmp_path, monkeypatch
):
    """A cell that makes model and callback anew began a second budget after
    the ledger's file had been deleted."""
    monkeypatch.chdir(tmp_path)
    callback = private(ledger="privacy.json")
    dense().fit(X, HOT, callbacks=[callback], verbose=0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(fm.BudgetExceededError):
        dense().fit(X, HOT, callbacks=[callback], verbose=0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "privacy.json").unlink()
    with pytest.raises(ValueError, match="is gone"):
        dense().fit(X, HOT, callbacks=[callback], verbose=0)
    with pytest.raises(ValueError, match="is gone"):
        private(ledger="privacy.json")
    with pytest.raises(ValueError, match="must be a file"):
        private(ledger=".")
    with pytest.raises(ValueError, match="in place of the budget"):
        private(ledger=callback.ledger)


# Data --------------------------------------------------------------------


def test_weights_inside_a_dataset_are_refused():
    tf = pytest.importorskip("tensorflow")
    weighted = tf.data.Dataset.from_tensor_slices((X, HOT, Y)).batch(32)
    model, callback = dense(), private(weighted)
    with pytest.raises(ValueError, match="weight"):
        model.fit(X, HOT, callbacks=[callback], verbose=0)
    assert not callback.ledger.entries


def test_every_part_is_found():
    model = dense([fm.layers.NormalizationLayer(), fm.layers.DPPCA(4)])
    nested = keras.Sequential([keras.Input((6,)), model])
    assert len(parts_of(nested)) == 2
    network = fm.models.FunctionalNet((6,), [keras.layers.Dense(3)])
    assert parts_of(network) == [network]
    inner = keras.Model(network.inputs, network.outputs)
    assert [type(part).__name__ for part in parts_of(inner)] == [
        "ExpansionState"
    ]
