"""What every private part holds to, whatever it releases."""

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from fit_checks import Spy, Unreadable

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.core.private_part import parts_of
from keras_fm.evaluation import private_evaluate
from keras_fm.kernel import release as release_lib

N = 80
GENERATOR = np.random.default_rng(0)
Y = np.arange(N) % 3
X = GENERATOR.random((N, 6)).astype("float32")
LABELS = np.stack([Y == 0, Y > 0, Y > 1], axis=1).astype("float32")
IMAGES = GENERATOR.random((N, 6, 6, 1)).astype("float32")
EPSILON, DELTA = 2.0, 1e-5
LOSS = fm.losses.TaylorCrossEntropy()

pytestmark = pytest.mark.usefixtures("untraced")


def unit():
    return fm.layers.NormalizationLayer()


def stack(*layers, units=3, **kwargs):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            *layers,
            unit(),
            fm.layers.PrivateDense(units, name="head", **kwargs),
        ]
    )
    return model


def numbers(**kwargs):
    return stack(units=1, loss="squared_error", target_bounds=(0, 1), **kwargs)


def several(**kwargs):
    return stack(loss="binary_cross_entropy", **kwargs)


def network(kind, **kwargs):
    layers = [keras.layers.Dense(4, activation="sigmoid")]
    return kind((6,), [*layers, keras.layers.Dense(3)], name="net", **kwargs)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One private model: how it is built, and what it releases."""

    build: Callable
    releases: tuple
    x: np.ndarray = dataclasses.field(default_factory=lambda: X)
    y: np.ndarray = dataclasses.field(default_factory=lambda: Y)
    loss: Any = LOSS
    neighbours: str | None = None

    def compiled(self, **kwargs):
        keras.utils.set_random_seed(1)
        model = self.build(**kwargs)
        model.compile(
            keras.optimizers.SGD(0.1), self.loss, metrics=["accuracy"]
        )
        return model

    def batches(self, data=None, **kwargs):
        """What `fit` is given."""
        x, y = (self.x, self.y) if data is None else data
        return x, y

    def private(self, epsilon=EPSILON, data=None, **kwargs):
        if data is None:
            data = (self.x, self.y)
        promise = kwargs.pop("guarantee", fm.Proven())
        promise = dataclasses.replace(promise, neighbours=self.neighbours)
        return PrivateModel(
            fm.PrivacyBudget(epsilon, DELTA),
            data=data,
            guarantee=promise,
            **kwargs,
        )

    def fit(self, model, callbacks=(), data=None, **kwargs):
        """Two steps on a release, the second on fewer records."""
        kwargs.setdefault("batch_size", 50)
        return model.fit(
            *self.batches(data), verbose=0, callbacks=list(callbacks), **kwargs
        ).history


WINDOW = "head (targets)", "head"
KINDS = {
    "one release": Kind(stack, ("head",)),
    "labels alone": Kind(stack, ("head",), neighbours="replace_label"),
    "rounds": Kind(lambda **k: stack(rounds=3, **k), ("head",)),
    "numbers": Kind(numbers, WINDOW, y=0.5 * Y, loss="mse"),
    "numbers alone": Kind(
        numbers, WINDOW, y=0.5 * Y, loss="mse", neighbours="replace_label"
    ),
    "numbers, rounds": Kind(
        lambda **k: numbers(rounds=3, **k),
        ("head (second moment)", "head"),
        y=0.5 * Y,
        loss="mse",
    ),
    "several labels": Kind(several, ("head",), y=LABELS),
    "several labels, rounds": Kind(
        lambda **k: several(rounds=3, **k), ("head",), y=LABELS
    ),
    "RelevanceScaling": Kind(
        lambda **k: stack(fm.layers.RelevanceScaling(name="scaling"), **k),
        ("scaling (first model)", "scaling (relevance)", "head"),
    ),
    "PrivateEncoder": Kind(
        lambda **k: fm.models.DeepPrivateAutoencoder(
            (6,), hidden=(4,), units=3, **k
        ),
        ("encoder_1 (moments)", "output"),
    ),
    "ChebyshevCRBM": Kind(
        lambda **k: fm.models.PrivateCDBN(
            (6, 6, 1), 3, maps=((3, 3),), dense=0, **k
        ),
        ("crbm_1 (patch moments)", "output"),
        x=IMAGES,
    ),
    "DPPCA": Kind(
        lambda unprotected=False: stack(
            unit(),
            fm.layers.DPPCA(4, name="pca", unprotected=unprotected),
            unprotected=unprotected,
        ),
        ("pca (second moment)", "head"),
    ),
    "PrivatePatches": Kind(
        lambda unprotected=False: keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                fm.layers.PrivatePatches(
                    4, 3, cells=2, name="patches", unprotected=unprotected
                ),
                keras.layers.Flatten(),
                unit(),
                fm.layers.PrivateDense(3, name="head", unprotected=unprotected),
            ]
        ),
        (
            "patches (patch moments)",
            *(f"patches (patch clusters, {i})" for i in (1, 2, 3)),
            "head",
        ),
        x=IMAGES,
    ),
    "PrivateNormalization": Kind(
        lambda unprotected=False: stack(
            fm.layers.PrivateNormalization(
                (0, 1), name="columns", unprotected=unprotected
            ),
            unprotected=unprotected,
        ),
        ("columns (column moments)", "head"),
    ),
    "PrivateNormalization, quantiles": Kind(
        lambda unprotected=False: stack(
            fm.layers.PrivateNormalization(
                (0, 1),
                quantiles=(0.1, 0.9),
                name="columns",
                unprotected=unprotected,
            ),
            unprotected=unprotected,
        ),
        (
            "columns (column histograms)",
            "columns (column moments)",
            "head",
        ),
    ),
    "AdaptiveLaplace": Kind(
        lambda **k: fm.models.AdaptiveLaplace((6,), 3, **k),
        ("scaling (first model)", "scaling (relevance)", "output"),
    ),
    "FunctionalNet": Kind(
        lambda **k: network(fm.models.FunctionalNet, rounds=2, **k),
        ("net (round 1 of 2)", "net (round 2 of 2)"),
        loss=None,
    ),
}
# Their plans ask for n, which is public.
COUNTED = (
    "rounds",
    "numbers, rounds",
    "several labels, rounds",
)
every_kind = pytest.mark.parametrize("name", KINDS)


def weights(model):
    return [np.array(w) for w in model.get_weights()]


def same(a, b):
    return all(np.array_equal(u, v) for u, v in zip(a, b, strict=True))


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A plan, the fit that it was made for, and what the fit called. Tests
    that share it change nothing of it."""

    model: keras.Model
    callback: PrivateModel
    plan: str
    released: tuple


@pytest.fixture(scope="module")
def fits():
    return {}


@pytest.fixture
def fitted(name, fits, monkeypatch):
    if name not in fits:
        fits[name] = _planned_and_fitted(name, monkeypatch)
    return fits[name]


def _planned_and_fitted(name, monkeypatch):
    kind, seen = KINDS[name], []
    model, callback = kind.compiled(), kind.private()
    if name not in COUNTED:
        callback.data = Unreadable()
    text = callback.plan(model)
    callback.data = (kind.x, kind.y)
    assert not callback.ledger.entries
    assert not any(part.is_released for part in parts_of(model))
    original = release_lib.release

    def counted(objective, *args, **kwargs):
        seen.append(kwargs["name"])
        return original(objective, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(release_lib, "release", counted)
        kind.fit(model, [callback])
    return Fitted(model, callback, text, tuple(seen))


# Without protection ------------------------------------------------------


@every_kind
def test_it_does_not_train_without_protection(name):
    kind = KINDS[name]
    model = kind.compiled()
    before = weights(model)
    for train in (
        lambda: model.fit(kind.x, kind.y, verbose=0),
        lambda: kind.fit(model),
        lambda: model.train_on_batch(kind.x, kind.y),
        lambda: model(kind.x, training=True),
    ):
        with pytest.raises(ValueError, match="unprotected") as caught:
            train()
        assert "PrivateModel" in str(caught.value)
    assert same(before, weights(model))
    # Refused, it is none the worse.
    callback = kind.private()
    kind.fit(model, [callback])
    assert len(callback.ledger.entries) == len(kind.releases)


@every_kind
def test_its_twin_trains_and_is_never_released(tmp_path, name):
    kind = KINDS[name]
    twin = kind.compiled(unprotected=True)
    before = weights(twin)
    twin.fit(kind.x, kind.y, verbose=0)
    assert not same(before, weights(twin))
    callback = kind.private()
    with pytest.raises(ValueError, match="unprotected=True"):
        kind.fit(twin, [callback])
    assert not callback.ledger.entries
    twin.save(tmp_path / "twin.keras")
    loaded = keras.saving.load_model(tmp_path / "twin.keras")
    assert any(part.unprotected for part in parts_of(loaded))
    loaded.fit(kind.x, kind.y, verbose=0)
    model = kind.compiled()
    made = fm.models.unprotected_twin(model)
    made.compile("sgd", kind.loss and "mse")
    assert any(part.unprotected for part in parts_of(made))
    # Nor is what its optimizer knows of the records begun with.
    model.compile(twin.optimizer, kind.loss)
    with pytest.raises(ValueError, match="trained before its first release"):
        kind.fit(model, [callback])
    assert not callback.ledger.entries


# Spending ----------------------------------------------------------------


@every_kind
def test_a_plan_says_what_a_fit_charges_and_spends_nothing(name, fitted):
    kind, ledger = KINDS[name], fitted.callback.ledger
    for release in kind.releases:
        assert f"  {release} (proven)" in fitted.plan
    assert tuple(e.name for e in ledger.entries) == kind.releases
    assert all(e.describe() in fitted.plan for e in ledger.entries)
    assert 0.98 * EPSILON < ledger.epsilon() <= EPSILON * (1 + 1e-9)


@every_kind
def test_what_a_fit_leaves_of_a_budget_is_for_a_question(name):
    kind, budget = KINDS[name], fm.PrivacyBudget(EPSILON, DELTA)
    model = kind.compiled()
    callback = kind.private(guarantee=fm.Proven(spends=0.9))
    kind.fit(model, [callback])
    ledger, records = callback.ledger, (kind.x, kind.y)
    most = budget.split(training=9, evaluation=1).mechanisms()["training"]
    alone = fm.mechanisms.compose_epsilon([most], DELTA, scale=EPSILON)
    # Alone, samples may cost more than the noise that is left room for.
    assert 0.98 * alone < ledger.epsilon() <= alone * 1.001
    with pytest.raises(ValueError, match="under another ledger"):
        private_evaluate(
            model,
            Unreadable(),
            ledger=fm.Ledger(budget, neighbours="add_remove"),
            share=0.1,
        )
    said = model.predict(kind.x, verbose=0)
    of_classes = (
        {"metrics": "accuracy"},
        said.argmax(axis=1) == np.resize(Y, len(said)),
    )
    of_numbers = (
        {"metrics": "mean_absolute_error", "bounds": (0, 1)},
        abs(said.clip(0, 1) - np.reshape(kind.y, (len(said), -1)).clip(0, 1)),
    )
    top = model.layers[-1]
    classes = getattr(top, "predicts", "classes") == "classes"
    options, shares = of_classes if classes else of_numbers
    found = private_evaluate(
        model, records, ledger=ledger, share=0.1, clip=True, **options
    )
    interval = found.mean(options["metrics"], level=1 - 1e-9)
    assert interval.low - 1e-6 <= shares.mean() <= interval.high + 1e-6
    assert 0.98 * EPSILON < ledger.epsilon() <= EPSILON * (1 + 1e-9)


@every_kind
def test_a_spent_budget_refuses_and_reads_nothing(name, fitted):
    kind, callback = KINDS[name], fitted.callback
    spent = callback.ledger.entries
    other = kind.compiled()
    again = PrivateModel(
        callback.ledger,
        data=(kind.x, kind.y) if name in COUNTED else Unreadable(),
    )
    for ask in (
        lambda: again.plan(other),
        lambda: kind.fit(other, [again]),
    ):
        with pytest.raises(fm.BudgetExceededError):
            ask()
    assert callback.ledger.entries == spent


# They clip what a record adds, whatever its targets in [0, 1].
SOFT = ("FunctionalNet",)


def bad(name):
    """Records that no release takes, and what is said of them."""
    kind = KINDS[name]
    for value in (np.nan, -np.inf):
        x = kind.x.copy()
        x[5].flat[1] = value
        yield (x, kind.y), "NaN|infinite|finite"
    # The last label of all: nothing is charged before it was seen.
    for label in (7, -1, 0.5, np.nan):
        y = kind.y.astype("float32")
        y[-1] = label
        if label != 0.5 or not name.startswith("numbers"):
            yield (
                (kind.x, y),
                r"whole numbers in \[0, 3\)|finite|public bounds|be 0 or 1",
            )
    if kind.y.ndim > 1 or kind.y.dtype != Y.dtype:
        yield (kind.x, kind.y[..., None, None]), "shape"
    elif name not in SOFT:
        twice = np.eye(3, dtype="float32")[kind.y]
        twice[-1] = 1
        yield (kind.x, twice), "must be one-hot"
    yield (kind.x[:, :5], kind.y), "shape"
    yield (kind.x, kind.y[:-1]), "same number|cardinality|lengths"


@every_kind
def test_bad_records_spend_nothing(name):
    kind = KINDS[name]
    model = kind.compiled()
    before = weights(model)
    for data, match in bad(name):
        callback = kind.private(data=data)
        with pytest.raises(ValueError, match=match):
            kind.fit(model, [callback], None)
        assert not callback.ledger.entries, match
        assert not any(part.is_released for part in parts_of(model))
    assert same(before, weights(model))


@every_kind
def test_a_read_that_fails_spends_nothing_and_may_be_tried_again(name):
    kind = KINDS[name]
    broken = []

    def read():
        yield kind.x[:50], kind.y[:50]
        if broken:
            raise OSError("the disk is gone")
        yield kind.x[50:], kind.y[50:]

    model, callback = kind.compiled(), kind.private(data=read)
    before = weights(model)
    broken.append(True)
    with pytest.raises(OSError, match="disk"):
        kind.fit(model, [callback])
    assert not callback.ledger.entries
    assert same(before, weights(model))
    broken.clear()
    kind.fit(model, [callback])
    assert len(callback.ledger.entries) == len(kind.releases)


@every_kind
def test_a_crash_after_the_charge_stays_charged(name, monkeypatch, tmp_path):
    kind = KINDS[name]
    path = str(tmp_path / "privacy.json")

    def crash(*args, **kwargs):
        raise KeyboardInterrupt

    charge = fm.Ledger.charge

    def charged(self, entries):
        charge(self, entries)
        raise KeyboardInterrupt

    monkeypatch.setattr(fm.Ledger, "charge", charged)
    model = kind.compiled()
    with pytest.raises(KeyboardInterrupt):
        kind.fit(model, [kind.private(ledger=path)])
    monkeypatch.undo()
    ledger = fm.Ledger.open(path)
    assert [e.name for e in ledger.entries] == [kind.releases[0]]
    with pytest.raises(ValueError, match="unprotected|with its ledger only"):
        model.train_on_batch(kind.x, kind.y)


@every_kind
def test_a_seed_is_labelled_and_a_large_delta_warned_about(name):
    kind = KINDS[name]
    callback = PrivateModel(
        fm.PrivacyBudget(EPSILON, 0.02),
        data=(kind.x, kind.y),
        reproducible_noise=1,
    )
    with pytest.warns(UserWarning, match="is too large for"):
        kind.fit(kind.compiled(), [callback])
    assert callback.ledger.epsilon() == np.inf
    assert "NOT PRIVATE" in callback.report()


def of_batches(data):
    def batches():
        for start in range(0, N, 20):
            yield tuple(v[start : start + 20] for v in data)

    return batches


@pytest.mark.full
@pytest.mark.parametrize(
    "form, data",
    [
        ("arrays", (X, Y)),
        ("function", of_batches((X, Y))),
        ("published", (X, Y)),
        ("steps", None),
        ("owners", (X, Y)),
    ],
)
def test_a_large_delta_is_warned_about_in_every_form(form, data):
    """Samples that the fit draws, streams, and published forms said nothing of
    a delta that permits publishing a record."""
    guarantee, delta = fm.Proven(), 1 / N
    if form == "published":
        guarantee = fm.Published(lot=20)
    if form == "owners":
        guarantee = fm.Proven(unit=fm.Unit(owners=np.arange(N) // 8))
        delta = 0.1
    for at, warned in ((delta, True), (0.9 * delta, False)):
        model, loss = stack(fm.layers.NormalizationLayer((0, 1), "linf")), LOSS
        if form != "published":
            model = stack()
        given = {"x": X, "y": Y, "batch_size": 20}
        if form == "steps":
            model, loss = network(fm.models.GradientNet, clip=0.1), None
        model.compile("sgd", loss)
        callback = PrivateModel(
            fm.PrivacyBudget(EPSILON, at), data=data, guarantee=guarantee
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(**given, verbose=0, callbacks=[callback])
        found = [w for w in caught if "is too large for" in str(w.message)]
        assert len(found) == warned


# Fits on a release -------------------------------------------------------


@every_kind
def test_no_metric_of_records_in_whatever_order(name):
    kind = KINDS[name]
    spies = [Spy(), Spy()]
    order = [spies[0], kind.private(), spies[1]]
    held = np.random.default_rng(1).random(kind.x.shape).astype("float32")
    history = kind.fit(
        kind.compiled(),
        order,
        validation_data=(held, kind.y[::-1].copy()),
        batch_size=None,
    )
    wanted = {"loss", "val_loss", "val_accuracy"}
    assert set(history) == wanted
    assert all({*logs} <= wanted for spy in spies for logs in spy.seen)


@every_kind
def test_later_fits_are_free_and_see_no_record(name, tmp_path):
    kind = KINDS[name]
    # Not at the minimum, where training would stay.
    callback = kind.private(guarantee=fm.Proven(start="current"))
    model = kind.compiled()
    first = kind.fit(model, [callback], batch_size=27)
    spent = callback.ledger.entries
    kind.fit(model, [callback], batch_size=80)
    model.save(tmp_path / "m.keras")
    found = []
    others = [np.full_like(kind.x, fill) for fill in (np.nan, 0.0)]
    for x in (kind.x, *others):
        loaded = keras.saving.load_model(tmp_path / "m.keras")
        before = weights(loaded)
        history = loaded.fit(
            x, kind.y * 0 if x is not kind.x else kind.y, epochs=2, verbose=0
        ).history
        assert set(history) == set(first) == {"loss"}
        assert all(part.is_released for part in parts_of(loaded))
        assert not same(before, weights(loaded)), "training did not move"
        found.append((weights(loaded), history))
    for moved, history in found[1:]:
        assert same(found[0][0], moved) and found[0][1] == history
    assert callback.ledger.entries == spent
    # Another callback asks for nothing.
    again = PrivateModel(fm.PrivacyBudget(EPSILON, DELTA), data=Unreadable())
    kind.fit(loaded, [again])
    assert not again.ledger.entries


@pytest.mark.full
@every_kind
def test_a_new_draw_is_charged(name):
    kind = KINDS[name]
    model = kind.compiled()
    callback = kind.private(guarantee=fm.Proven(releases=2))
    kind.fit(model, [callback])
    half = callback.ledger.epsilon()
    assert half < EPSILON
    callback.new_release = True
    kind.fit(model, [callback])
    assert len(callback.ledger.entries) == 2 * len(kind.releases)
    assert half < callback.ledger.epsilon() <= EPSILON * (1 + 1e-9)
    callback.new_release, before = True, weights(model)
    with pytest.raises(fm.BudgetExceededError, match="No record was used"):
        kind.fit(model, [callback])
    assert same(before, weights(model))
    assert len(callback.ledger.entries) == 2 * len(kind.releases)
    # What was refused is not asked for again.
    assert not callback.new_release
    kind.fit(model, [callback])
    assert len(callback.ledger.entries) == 2 * len(kind.releases)


# What a file and a copy hold ---------------------------------------------


@every_kind
def test_files_hold_the_release_and_its_ledger(name, fitted, tmp_path):
    kind, model, callback = KINDS[name], fitted.model, fitted.callback
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    other = kind.compiled()
    other.load_weights(tmp_path / "m.weights.h5")
    for made in (keras.saving.load_model(tmp_path / "m.keras"), other):
        tops = [part for part in parts_of(made)]
        assert all(part.is_released for part in tops)
        for part in tops:
            ledger = fm.Ledger.from_json(part.ledger_json)
            assert ledger.epsilon() == callback.ledger.epsilon()
        np.testing.assert_array_equal(
            made.predict(kind.x, verbose=0), model.predict(kind.x, verbose=0)
        )


def by_clone(model):
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone


def by_other_weights(model):
    copied = copy.deepcopy(model)
    assert all(part.is_released for part in parts_of(copied))
    copied.set_weights([w + 0.5 for w in copied.get_weights()])
    return copied


@every_kind
@pytest.mark.parametrize("how", [by_clone, by_other_weights])
def test_copies_and_other_weights_lose_it(name, how, fitted, tmp_path):
    kind = KINDS[name]
    made = how(fitted.model)
    made.compile("sgd", kind.loss)
    assert not any(part.is_released for part in parts_of(made))
    with pytest.raises(ValueError, match="unprotected"):
        made.fit(kind.x, kind.y, verbose=0)
    # Nor is it released anew over weights that nobody knows, but for those
    # that a release replaces.
    again = kind.private(ledger=str(tmp_path / "l.json"))
    try:
        kind.fit(made, [again])
    except ValueError:
        assert not again.ledger.entries
    else:
        assert all(part.is_released for part in parts_of(made))


# A release that is not the library's -------------------------------------


@every_kind
def test_rounds_go_through_the_one_function(name, fitted):
    """Every proven read is charged where `release` charges, or by the reads
    and steps that are named as such."""
    sampled = {
        e.name
        for e in fitted.callback.ledger.entries
        if "sampling_rate" in e.mechanism
    }
    assert set(fitted.released) | sampled == set(KINDS[name].releases)
