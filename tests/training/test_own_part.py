"""A private layer from outside the package, without a change in it."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.core.planned_release import PlannedRelease
from keras_fm.core.private_part import ReleasedLayer
from keras_fm.queries import SecondMomentQuery

N, CONSTANT = 200, 0.5
GENERATOR = np.random.default_rng(0)
Y = np.arange(N) % 3
X = (GENERATOR.random((N, 4)) / 4).astype("float32")

pytestmark = [
    pytest.mark.usefixtures("untraced"),
    pytest.mark.full,
]


@keras.saving.register_keras_serializable(package="tests")
class Centred(ReleasedLayer):
    """Subtracts the released mean of its inputs, of L2 norm at most 1."""

    def build(self, input_shape):
        self.mean = self.add_weight(
            name="mean", shape=input_shape[1:], initializer="zeros",
            trainable=False,
        )  # fmt: skip

    def call(self, inputs, training=False):
        if training:
            self.enter_training()
        return inputs - keras.ops.cast(self.mean, inputs.dtype)

    def release_names(self):
        return [f"{self.name} (mean)"]

    def default_shares(self, alike):
        return [0.1 / alike]

    def planned_releases(self, reading):
        def read():
            for inputs, rows, *owners in reading.unlabelled(self):
                found = inputs[rows]
                constant = np.full((len(found), 1), CONSTANT, found.dtype)
                rows = np.concatenate([found, constant], axis=1)
                yield rows, None, *owners

        def learn(release):
            self.mean.assign(release.moments(CONSTANT)[0])
            reading.keep(self, release)

        query = SecondMomentQuery(
            num_features=self.mean.shape[0] + 1,
            feature_bound=float(np.hypot(1, CONSTANT)),
            **reading.privacy_unit,
        )
        (name,) = self.release_names()
        return [PlannedRelease(name=name, query=query, read=read, learn=learn)]


def model():
    made = keras.Sequential(
        [
            keras.Input((4,)),
            Centred(name="centred"),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(3, name="head"),
        ]
    )
    made.compile("sgd", fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    return made


def private(**fields):
    guarantee = fm.Proven(**fields)
    budget = fm.PrivacyBudget(1e4, 1e-5)
    return fm.callbacks.PrivateModel(budget, data=(X, Y), guarantee=guarantee)


def test_it_is_planned_released_and_charged():
    made, callback = model(), private()
    text = callback.plan(made)
    assert "centred (mean) (proven)" in text and not callback.ledger.entries
    history = made.fit(X, Y, callbacks=[callback], verbose=0).history
    assert set(history) == {"loss"}
    names = [entry.name for entry in callback.ledger.entries]
    assert names == ["centred (mean)", "head"]
    assert 0.98e4 < callback.ledger.epsilon() <= 1e4 * (1 + 1e-9)
    mean = keras.ops.convert_to_numpy(made.layers[0].mean)
    np.testing.assert_allclose(mean, X.mean(axis=0), atol=1e-2)
    assert "record by record (Centred 'centred')" in callback.report()


def test_its_shares_are_given_in_the_order_of_the_plan():
    made, callback = model(), private(shares=(0.5, 0.5))
    made.fit(X, Y, callbacks=[callback], verbose=0)
    first, second = (e.mechanism for e in callback.ledger.entries)
    assert first["noise_multiplier"] == second["noise_multiplier"]


def test_it_keeps_and_loses_its_release_as_others_do(tmp_path):
    made = model()
    with pytest.raises(ValueError, match="Centred 'centred' has no release"):
        made.fit(X, Y, verbose=0)
    made.fit(X, Y, callbacks=[private()], verbose=0)
    made.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    loaded.fit(X * 0, Y, verbose=0)
    layer = loaded.layers[0]
    assert layer.is_released and layer.ledger_json
    layer.mean.assign(layer.mean + 1)
    with pytest.raises(ValueError, match="no longer those of the release"):
        loaded.fit(X, Y, verbose=0)
    twin = fm.models.unprotected_twin(made)
    twin.compile("sgd", fm.losses.TaylorCrossEntropy())
    twin.fit(X, Y, verbose=0)
    with pytest.raises(ValueError, match="never released"):
        private().plan(twin)
