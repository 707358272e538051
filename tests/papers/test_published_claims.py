"""A published form claims what its paper claims, and nothing beyond it."""

import re

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

pytestmark = pytest.mark.full

N, D, CLASSES, LOT = 60, 6, 3, 20
RANDOM = np.random.default_rng(3)
X = RANDOM.random((N, D)).astype("float32")
IMAGES = RANDOM.random((N, 8, 8, 1)).astype("float32")
Y = np.arange(N) % CLASSES
TAYLOR = fm.losses.TaylorCrossEntropy


def box():
    return fm.layers.NormalizationLayer((0.0, 1.0), "linf", name="box")


def head():
    return fm.layers.PrivateDense(CLASSES, name="output")


def sequential(inputs, *layers):
    return keras.Sequential([keras.Input(inputs), *layers])


def ilm(form="paper"):
    return fm.models.AdaptiveLaplace(
        (D,),
        CLASSES,
        guarantee=fm.models.PublishedAdLM(form=form),
        hidden=4,
        adaptive=False,
    )


def images(form="paper"):
    settings = fm.models.PublishedAdLM(
        form=form, architecture="mnist", width=0.1
    )
    return fm.models.AdaptiveLaplace(
        (8, 8, 1), CLASSES, guarantee=settings, adaptive=False
    )


def dpa(noise_on="coefficients"):
    settings = fm.models.PublishedDPA(noise_on=noise_on)
    return fm.models.DeepPrivateAutoencoder(
        (D,), (4, 3), units=CLASSES, guarantee=settings
    )


def pcdbn(**settings):
    return fm.models.PrivateCDBN(
        (8, 8, 1),
        CLASSES,
        maps=((3, 3),),
        dense=4,
        guarantee=fm.models.PublishedCDBN(**settings),
    )


def behaviour(kind):
    columns = {"present": (0, 2), "history": (2, 4), "social": (4, 6)}
    return kind(
        (D,), columns, (0.0, 1.0), guarantee="published",
        **({"maps": ((3, (2, 2)),)} if kind is fm.models.BehaviorCDBN else {}),
    )  # fmt: skip


def small():
    """An output layer alone: dPA's."""
    return sequential((D,), box(), head())


MODELS = {
    "ILM": ilm,
    "ILM, code": lambda: ilm("code"),
    "AdLM, images": images,
    "AdLM, images, code": lambda: images("code"),
    "dPA": dpa,
    "dPA, code": lambda: dpa("hidden"),
    "dPAH": lambda: behaviour(fm.models.BehaviorAutoencoder),
    "pCDBN": pcdbn,
    "pCDBN, code, dropout": lambda: pcdbn(form="code", dropout=0.5),
    "pCDBN, dropout": lambda: pcdbn(dropout=0.5),
    "pCDBN of behaviour": lambda: behaviour(fm.models.BehaviorCDBN),
    "head": small,
}


def compiled(model, loss=None, **arguments):
    model.compile("sgd", loss or TAYLOR(), **arguments)
    return model


def claimed(epsilon=1.0, lot=LOT, **fields):
    guarantee = fm.Published(lot=lot, **fields)
    return PrivateModel(epsilon, 0.0, data=(X, Y), guarantee=guarantee)


def fit(model, private=None, x=X, y=Y, **arguments):
    callbacks = [] if private is None else [private]
    return model.fit(
        x, y, batch_size=LOT, callbacks=callbacks, verbose=0, **arguments
    )


# Files -----------------------------------------------------------------------


def through_a_file(model, folder, kind):
    if kind == "keras":
        model.save(folder / "m.keras")
        return keras.saving.load_model(folder / "m.keras")
    model.save_weights(folder / "m.weights.h5")
    other = compiled(type(model).from_config(model.get_config()))
    other.load_weights(folder / "m.weights.h5")
    return other


@pytest.mark.parametrize("kind", ["keras", "weights"])
@pytest.mark.parametrize("name", ["ILM", "ILM, code", "head"])
def test_a_claim_survives_a_file(tmp_path, name, kind):
    model, first = compiled(MODELS[name]()), claimed()
    fit(model, first)
    loaded = through_a_file(model, tmp_path, kind)
    # Twice, as a study that goes on every day.
    loaded = through_a_file(loaded, tmp_path, kind)
    second = claimed()
    fit(loaded, second)
    report = second.report()
    assert "claimed:    (epsilon = 2, " in report
    assert second.ledger.epsilon() == np.inf
    again = through_a_file(loaded, tmp_path, kind)
    third = claimed()
    fit(again, third)
    assert "claimed:    (epsilon = 3, " in third.report()


@pytest.mark.once
def test_equal_ledgers_of_one_second_are_two(monkeypatch, tmp_path):
    """Their entries were taken for those of one."""
    from keras_fm.kernel.ledger import ledger

    monkeypatch.setattr(ledger, "_now", lambda: "2020-01-01T00:00:00+00:00")
    model = compiled(small())
    fit(model, claimed())
    loaded = through_a_file(model, tmp_path, "keras")
    second = claimed()
    fit(loaded, second)
    assert "claimed:    (epsilon = 2, " in second.report()
    # Of a proven release, too, whose ledger must be gone on with.
    first, second = (
        PrivateModel(fm.PrivacyBudget(1.0, 1e-5), data=(X, Y)) for _ in range(2)
    )
    unit = fm.layers.NormalizationLayer((0.0, 1.0))
    model = compiled(sequential((D,), unit, head()))
    fit(model, first)
    second.new_release = True
    with pytest.raises(ValueError, match="released by another PrivateModel"):
        fit(model, second)


@pytest.mark.once
def test_claimed_weights_are_not_public_after_a_file(tmp_path):
    """A body that was trained under a claim counted as frozen and public."""
    model = compiled(pcdbn())
    private = PrivateModel(
        1.0, 0.0, data=IMAGES, guarantee=fm.Published(lot="data")
    )
    model.pretrain(IMAGES, private, epochs=1)
    fit(model, private, x=IMAGES)
    loaded = through_a_file(model, tmp_path, "keras")
    for layer in loaded.layers:
        layer.trainable = layer.name == "output"
    proven = PrivateModel(fm.PrivacyBudget(1.0, 1e-5), data=(IMAGES, Y))
    with pytest.raises(ValueError, match="carries published noise"):
        fit(loaded, proven, x=IMAGES)
    assert not proven.ledger.entries


# Metrics ---------------------------------------------------------------------


def test_a_noisy_step_logs_no_accuracy_of_zeros():
    """Its outputs are those of zeros, whose accuracy looks like one."""
    private = PrivateModel(
        fm.PrivacyBudget(4.0, 1e-3),
        guarantee=fm.Published(lot=LOT, neighbours="add_remove"),
    )
    layers = [keras.layers.Dense(CLASSES)]
    model = fm.models.DPMAC((D,), layers, clip=0.5, z_steps=1)
    model.compile("sgd", metrics=["accuracy"])
    shown = X + 1, Y + 0
    history = fit(model, private, validation_data=shown).history
    assert set(history) == {"charged", "val_loss", "val_accuracy"}
    stop = keras.callbacks.EarlyStopping(monitor="accuracy")
    with pytest.raises(ValueError, match="monitors 'accuracy'"):
        model.fit(X, Y, batch_size=LOT, callbacks=[private, stop], verbose=0)


# Advice ----------------------------------------------------------------------


def trainable_crbm():
    layer = fm.layers.ChebyshevCRBM(3, 3, guarantee="published", name="maps")
    return compiled(
        sequential((8, 8, 1), box(), layer, keras.layers.Flatten(), head())
    )


def trainable_encoder():
    layer = fm.layers.PrivateEncoder(4, guarantee="published", name="codes")
    return compiled(sequential((D,), box(), layer, head()))


HAND_MADE = {
    "crbm": (trainable_crbm, IMAGES),
    "encoder": (trainable_encoder, X),
}


@pytest.mark.parametrize("kind", HAND_MADE)
def test_the_advice_of_a_hand_made_stack_works(kind):
    """A Sequential was sent to `model.pretrain`, which it has not."""
    make, x = HAND_MADE[kind]
    model, lot = make(), LOT
    private = claimed()
    with pytest.raises(ValueError, match="Pre-train it with") as e:
        fit(model, private, x=x)
    code = re.search(r"`(layer = .*?)`", str(e.value)).group(1)
    exec(code, {"model": model, "private": private, "x": x, "lot": lot,
                "keras": keras, "keras_fm": fm})  # fmt: skip
    fit(model, private, x=x)
    assert private.ledger.claimed_epsilon() == pytest.approx(1.0)
    # The refusal without a callback names the same way, and that it claims.
    with pytest.raises(ValueError, match="claimed by the paper and not") as e:
        fit(make(), x=x)
    assert "lot=lot" in str(e.value) and "pretrain(x, private)" in str(e.value)


def test_the_advice_of_perturbed_affine_works():
    """It named PrivateModel's default, which refuses the layer."""

    def make():
        layer = fm.layers.PerturbedAffine(4, "sigmoid", name="first")
        return compiled(sequential((D,), box(), layer, head()))

    with pytest.raises(ValueError, match="not proven") as e:
        fit(make())
    code = re.search(r"`callbacks=\[(.*?)\]`", str(e.value)).group(1)
    private = eval(code, {"keras_fm": fm, "epsilon": 1.0, "x": X, "y": Y,
                          "batch_size": LOT})  # fmt: skip
    fit(make(), private)
    assert private.ledger.claimed_epsilon() == pytest.approx(1.0)
    assert private.ledger.epsilon() == np.inf
