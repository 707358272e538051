"""A DPMAC under PrivateModel: one budget for what is below and every step."""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.kernel import mechanisms

DELTA = 1e-5
N, INPUTS, CLASSES, BATCH = 400, 6, 3, 100


def records(seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, N)
    x = rng.normal(size=(N, INPUTS)) + 5 * np.eye(CLASSES, INPUTS)[y]
    return x.astype("float32"), y


@pytest.fixture
def data():
    return records()


def build(pca=False, clip=0.5, **arguments):
    below = [fm.layers.NormalizationLayer()]
    if pca:
        below.append(fm.layers.DPPCA(4, name="dppca"))
    model = fm.models.DPMAC(
        (INPUTS,),
        [
            keras.layers.Dense(5, activation="tanh"),
            keras.layers.Dense(CLASSES),
        ],
        below=below,
        clip=clip,
        z_steps=2,
        **arguments,
    )
    model.compile(keras.optimizers.SGD(0.5), metrics=["accuracy"])
    return model


def poisson(data, **arguments):
    return fm.datasets.PoissonBatches(*data, batch_size=BATCH, **arguments)


def private_model(epsilon=2.0, guarantee="proven", data=None, seed=None):
    return fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, DELTA),
        data=data,
        guarantee=guarantee,
        reproducible_noise=seed,
    )


SHUFFLED = fm.Published(lot=BATCH, neighbours="add_remove")


class StopAfter(keras.callbacks.Callback):
    def __init__(self, batches, error=None):
        super().__init__()
        self.left, self.error = batches, error

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            if self.error:
                raise self.error
            self.model.stop_training = True


def fit(model, batches, private, epochs=2, **arguments):
    callbacks = [private, *arguments.pop("callbacks", [])]
    return model.fit(
        batches, epochs=epochs, callbacks=callbacks, verbose=0, **arguments
    )


@pytest.mark.parametrize("label", [-1, CLASSES, 0.5, np.nan])
@pytest.mark.once
def test_the_published_form_refuses_other_labels_unspent(data, label):
    x, y = data
    y = y.astype("float32")
    y[7] = label
    model = build()
    private = private_model(guarantee=SHUFFLED, data=(x, y))
    with pytest.raises(ValueError, match=r"whole numbers in \[0, 3\)|finite"):
        model.fit(x, y, batch_size=BATCH, callbacks=[private], verbose=0)
    assert not private.ledger.entries and not model.is_perturbed


@pytest.mark.once
def test_a_plan_meets_its_budget_just_so(data):
    model, private = build(pca=True), private_model()
    batches = poisson(data)
    planned = private.plan(model, batches, epochs=2)
    assert not private.ledger.entries
    together = planned.splitlines()[-1]
    tight = float(together.split("epsilon = ")[1].split()[0])
    assert 1.99 < tight <= 2.0
    history = fit(model, batches, private, validation_data=records(seed=1))
    pca, steps = private.ledger.entries
    assert f"noise_multiplier {steps.mechanism['noise_multiplier']:.6g}" in (
        planned
    )
    assert pca.name == "dppca (second moment)"
    assert steps.mechanism["steps"] == 8 == model.steps_taken
    assert steps.mechanism["sampling_rate"] == BATCH / N
    assert steps.mechanism["sensitivity"] == pytest.approx(2**0.5)
    assert 1.99 < private.ledger.epsilon() <= 2.0
    assert model.noise_multiplier == steps.mechanism["noise_multiplier"]
    assert model.expected_batch_size == BATCH
    # Metrics of the records are gone, those of other data stay.
    assert set(history.history) == {"loss", "val_loss", "val_accuracy"}
    assert "proven:     (epsilon = 1.99" in private.report()


def test_it_learns_what_noise_allows(data):
    keras.utils.set_random_seed(0)
    model = build(clip=[0.5, 0.5])
    model.compile(keras.optimizers.Adam(0.05), metrics=["accuracy"])
    private = private_model(50.0, seed=1)
    fit(model, poisson(data, seed=0), private, epochs=15)
    accuracy = model.evaluate(*data, verbose=0)[1]
    assert accuracy > 0.8
    assert not private.ledger.entries[0].private
    assert private.ledger.epsilon() == np.inf


def test_seeded_samples_are_not_private(data):
    model, private = build(), private_model()
    fit(model, poisson(data, seed=0), private)
    assert not private.ledger.entries[0].private
    assert private.ledger.epsilon() == np.inf


@pytest.mark.parametrize("form", ["arrays", "dataset"])
def test_shuffled_batches_are_no_proof(data, form):
    model, private = build(), private_model(data=data)
    given = {"x": data[0], "y": data[1], "batch_size": BATCH}
    if form == "dataset":
        tf = pytest.importorskip("tensorflow")
        given = {"x": tf.data.Dataset.from_tensor_slices(data).batch(BATCH)}
    with pytest.raises(ValueError, match="trained on Poisson samples"):
        model.fit(**given, callbacks=[private], verbose=0)
    assert not private.ledger.entries and not model.is_perturbed


@pytest.mark.once
def test_shuffled_batches_are_claimed(data):
    model = build(pca=True)
    private = private_model(guarantee=SHUFFLED, data=data)
    model.fit(*data, batch_size=BATCH, epochs=2, callbacks=[private], verbose=0)
    pca, steps = private.ledger.entries
    assert (pca.guarantee, steps.guarantee) == ("proven", "claimed")
    assert private.ledger.epsilon() == np.inf
    assert 1.99 < private.ledger.claimed_epsilon() <= 2.0
    assert "as if every record joined" in private.report()


@pytest.mark.parametrize(
    "guarantee, message",
    [
        (fm.Proven(n_public=False), "must be public"),
        (fm.Proven(neighbours="replace_one"), "add_remove"),
        (
            fm.Proven(unit=fm.Unit(owners=np.arange(N))),
            "all records of an owner or none",
        ),
        (fm.Proven(unit=fm.Unit(reach=1)), "`reach` is not supported"),
    ],
)
@pytest.mark.once
def test_unsafe_use_is_refused_before_anything_is_spent(
    data, guarantee, message
):
    model, private = build(pca=True), private_model(guarantee=guarantee)
    with pytest.raises(ValueError, match=message):
        private.plan(model, poisson(data))
    with pytest.raises(ValueError, match=message):
        fit(model, poisson(data), private, steps_per_epoch=4)
    assert not private.ledger.entries and not model.is_perturbed


@pytest.mark.once
def test_a_budget_without_delta_is_refused(data):
    private = fm.callbacks.PrivateModel(fm.PrivacyBudget(2.0, 0.0))
    with pytest.raises(ValueError, match="needs delta > 0"):
        fit(build(), poisson(data), private)
    assert not private.ledger.entries


@pytest.mark.once
def test_what_was_trained_without_noise_is_refused(data):
    twin = build(unprotected=True)
    twin.fit(*data, verbose=0)
    other = build()
    other.set_weights(twin.get_weights())
    model = build()
    model.compile(twin.optimizer)
    for each, match in (
        (twin, "built with `unprotected=True`"),
        (model, "trained before its first release"),
        (other, "other weights than it was built with"),
    ):
        private = private_model()
        with pytest.raises(ValueError, match=match):
            fit(each, poisson(data), private)
        assert not private.ledger.entries and not each.is_perturbed


def test_epsilon_from_sigma(data):
    model, private = build(noise_multiplier=2.5), private_model(5.0)
    batches = poisson(data)
    fit(model, batches, private)
    (entry,) = private.ledger.entries
    assert entry.mechanism["noise_multiplier"] == 2.5
    samples = batches.plan(steps=8, delta=DELTA, epsilon=5.0)
    expected = mechanisms.compose_epsilon(
        [samples.mechanism(2.5, 2**0.5)], DELTA, scale=5.0
    )
    assert private.ledger.epsilon() == pytest.approx(expected, rel=1e-9)
    assert private.ledger.epsilon() < 5.0


@pytest.mark.once
def test_too_little_noise_for_the_budget_is_refused(data):
    model, private = build(noise_multiplier=0.5), private_model(0.1)
    with pytest.raises(fm.BudgetExceededError):
        fit(model, poisson(data), private)
    assert not private.ledger.entries and not model.is_perturbed


@pytest.mark.once
def test_an_interrupted_fit_goes_on_under_the_same_ledger(data):
    model, private = build(), private_model()
    batches = poisson(data)
    fit(model, batches, private, epochs=3, callbacks=[StopAfter(5)])
    before = private.ledger.entries
    assert model.steps_taken >= 5 and model.steps_allowed == 12
    taken = model.steps_taken
    fit(model, batches, private, epochs=3, initial_epoch=2)
    assert private.ledger.entries == before
    assert model.steps_taken == taken + 4 and model.steps_refused == 0


@pytest.mark.once
def test_a_crash_leaves_all_steps_charged(data):
    model, private = build(), private_model()
    with pytest.raises(RuntimeError, match="power"):
        fit(
            model,
            poisson(data),
            private,
            callbacks=[StopAfter(3, RuntimeError("power"))],
        )
    (paid,) = private.ledger.entries
    assert paid.mechanism["steps"] == 8
    assert model.steps_taken == 3
    # Nobody knows how many of the epoch's ran: all of them are used.
    assert private.ledger.steps_left(paid.name) == 4
    fit(model, poisson(data), private, epochs=1)
    assert private.ledger.entries == (paid,)
    assert model.steps_taken == 7
    with pytest.raises(fm.BudgetExceededError, match="1 more than"):
        one_step = {"epochs": 1, "steps_per_epoch": 1}
        fit(model, poisson(data), private, **one_step)
    assert private.ledger.entries == (paid,) and model.steps_taken == 7


def test_a_saved_model_goes_on_with_its_ledger(data, tmp_path):
    model, private = build(pca=True, planned_steps=8), private_model()
    batches = poisson(data)
    fit(model, batches, private, epochs=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.steps_taken, loaded.steps_allowed) == (4, 8)
    with pytest.raises(ValueError, match="noise that is not in this ledger"):
        fit(loaded, batches, private_model(), epochs=1)
    # Without the callback there is no step, before or after.
    with pytest.raises(ValueError, match="in a fit with its ledger only"):
        loaded.fit(batches, verbose=0)
    # Of this process, which knows what others may not: which steps are left.
    ledger = fm.Ledger.from_json(loaded.ledger_json)
    again = fm.callbacks.PrivateModel(ledger)
    before = ledger.entries
    fit(loaded, batches, again, epochs=1)
    assert ledger.entries == before
    assert loaded.steps_taken == 8
    with pytest.raises(fm.BudgetExceededError, match="planned_steps"):
        fit(loaded, batches, again, epochs=1)
    assert ledger.entries == before
    # They were taken once: the first model has none of them left.
    with pytest.raises(fm.BudgetExceededError, match="more than"):
        fit(model, batches, private, epochs=1)
    assert model.steps_taken == 4


@pytest.mark.once
def test_more_steps_are_charged_where_the_budget_allows(data):
    model, private = build(noise_multiplier=2.0), private_model(20.0)
    batches = poisson(data)
    fit(model, batches, private, epochs=1)
    once = private.ledger.epsilon()
    fit(model, batches, private, epochs=1)
    assert [e.mechanism["steps"] for e in private.ledger.entries] == [4, 4]
    assert once < private.ledger.epsilon() < 2 * once
    assert model.steps_taken == 8


@pytest.mark.once
def test_going_on_in_another_way_is_refused(data):
    model, private = build(planned_steps=20), private_model()
    fit(model, poisson(data), private, epochs=1)
    other = data[0] + 1, data[1]
    with pytest.raises(ValueError, match="data changed"):
        fit(model, poisson(other), private, epochs=1)
    batches = fm.datasets.PoissonBatches(*data, batch_size=BATCH // 2)
    with pytest.raises(ValueError, match="sampling rate"):
        fit(model, batches, private, epochs=1)
    assert model.steps_taken == 4


@pytest.mark.once
def test_going_on_with_another_guarantee_is_refused(data):
    """Steps that were paid for as proven were once taken on shuffled batches,
    with their metrics shown."""
    model, private = build(planned_steps=20), private_model()
    fit(model, poisson(data), private, epochs=1)
    shuffled = fm.callbacks.PrivateModel(
        private.ledger, data=data, guarantee=SHUFFLED
    )
    with pytest.raises(ValueError, match='paid for with guarantee="proven"'):
        model.fit(*data, batch_size=BATCH, callbacks=[shuffled], verbose=0)
    assert model.steps_taken == 4 and not model.published
    model, private = (
        build(planned_steps=20),
        private_model(guarantee=SHUFFLED, data=data),
    )
    model.fit(*data, batch_size=BATCH, callbacks=[private], verbose=0)
    proven = fm.callbacks.PrivateModel(private.ledger, data=data)
    with pytest.raises(ValueError, match='with guarantee="published"'):
        fit(model, poisson(data), proven, epochs=1)
    assert model.steps_taken == 4 and model.published


@pytest.mark.once
def test_a_fit_longer_than_planned_is_refused(data):
    model, private = build(planned_steps=3), private_model()
    with pytest.raises(ValueError, match="more steps than are planned"):
        fit(model, poisson(data), private)
    assert not private.ledger.entries


def test_thresholds_from_a_histogram(data):
    model, private = build(clip="histogram"), private_model(20.0)
    batches = poisson(data)
    norms = model.coefficient_norms(*data)
    fit(model, batches, private)
    first, steps = private.ledger.entries
    assert first.name == "dpmac (thresholds)" or "thresholds" in first.name
    assert first.mechanism["sensitivity"] == pytest.approx(2**0.5)
    assert 19.9 < private.ledger.epsilon() <= 20.0
    learned = [t for _, _, t in model.partitions]
    # The noise of epsilon 20 moves a median of 400 by one bin at most.
    exact = np.median(norms, axis=0)
    ratio = (1e3 / 1e-4) ** (1 / 69)
    assert np.all(learned <= exact * ratio**2.01)
    assert np.all(learned >= exact / ratio**1.01)


def test_auto_encoders_need_no_labels(data):
    x = data[0]
    model = fm.models.DPMAC(
        (INPUTS,),
        [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(INPUTS)],
        loss="squared_error",
        clip=0.5,
        z_steps=2,
    )
    model.compile(keras.optimizers.SGD(0.1))
    private = private_model()
    batches = fm.datasets.PoissonBatches(x, batch_size=BATCH)
    fit(model, batches, private)
    assert 1.99 < private.ledger.epsilon() <= 2.0
    assert model.predict(x, verbose=0).shape == x.shape


def test_targets_of_an_auto_encoder_are_never_guessed(data):
    x = data[0]
    model = fm.models.DPMAC(
        (INPUTS,),
        [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(INPUTS)],
        loss="squared_error",
        below=[keras.layers.Rescaling(0.5)],
    )
    model.compile(keras.optimizers.SGD(0.1))
    private = private_model()
    batches = fm.datasets.PoissonBatches(x, batch_size=BATCH)
    with pytest.raises(ValueError, match="Pass the targets"):
        fit(model, batches, private)
    assert not private.ledger.entries
    given = fm.datasets.PoissonBatches(x, 0.5 * x, batch_size=BATCH)
    fit(model, given, private, epochs=1)
    assert model.steps_taken == 4


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"planned_steps": 0}, "`planned_steps` must be a positive"),
        ({"planned_steps": 2.5}, "`planned_steps` must be a positive"),
        ({"noise_multiplier": 0.0}, "`noise_multiplier` must be"),
        ({"noise_multiplier": np.nan}, "`noise_multiplier` must be"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        build(**arguments)


OWNERS = np.random.default_rng(3).permutation(np.arange(N) // 2)
OWNED = {"owners": OWNERS, "rows_per_owner": 3}


@pytest.mark.once
def test_the_unit_may_be_an_owner(data):
    promise = fm.Proven(unit=fm.Unit(owners=OWNERS))
    model, private = build(), private_model(guarantee=promise)
    batches = poisson(data, **OWNED)
    fit(model, batches, private, epochs=1)
    (entry,) = private.ledger.entries
    # A hundred of two hundred owners, not of four hundred records.
    assert entry.mechanism["sampling_rate"] == 0.5
    assert "averaged over each owner's records" in entry.reads
    assert "one owner with all its rows" in private.report()
    assert model.steps_taken == 2 and model.expected_batch_size == BATCH
    assert 1.9 < private.ledger.epsilon() <= 2.0 * (1 + 1e-9)


@pytest.mark.once
def test_owners_of_batches_and_promise_are_the_same(data):
    other = {"owners": OWNERS[::-1], "rows_per_owner": 3}
    unit = fm.Unit(owners=OWNERS)
    for promise, more in (
        (fm.Proven(unit=unit), other),
        (fm.Proven(), OWNED),
    ):
        private = private_model(guarantee=promise)
        with pytest.raises(ValueError, match="must be the same ids"):
            private.plan(build(), poisson(data, **more))
        with pytest.raises(ValueError, match="must be the same ids"):
            fit(build(), poisson(data, **more), private)
        assert not private.ledger.entries
    # Nor when a fit goes on.
    model, private = build(), private_model(guarantee=fm.Proven(unit=unit))
    fit(model, poisson(data, **OWNED), private, epochs=1)
    with pytest.raises(ValueError, match="must be the same ids"):
        fit(model, poisson(data, **other), private, epochs=1)


@pytest.mark.once
def test_a_histogram_counts_records_and_not_owners(data):
    promise = fm.Proven(unit=fm.Unit(owners=OWNERS))
    private = private_model(guarantee=promise)
    with pytest.raises(ValueError, match="counts records one by one"):
        fit(build(clip="histogram"), poisson(data, **OWNED), private)
    assert not private.ledger.entries
