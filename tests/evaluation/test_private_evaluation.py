"""Questions about models on private records: what is charged, what is told."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_fm as fm
from keras_fm.evaluation import private_choice, private_evaluate
from keras_fm.kernel.ledger.noisy_statistics import Release

RNG = np.random.default_rng(0)
N = 400
X = RNG.normal(size=(N, 4)).astype("float32")
Y = (X[:, 0] + 0.3 * RNG.normal(size=N) > 0).astype(int)
ELSEWHERE = "trained on other records"


def ledger_of(epsilon=50.0, delta=1e-6, neighbours="add_remove", **kwargs):
    return fm.Ledger(
        fm.PrivacyBudget(epsilon, delta), neighbours=neighbours, **kwargs
    )


def linear(units=2, activation=None):
    """Decides by the sign of the first number; frozen."""
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units, activation=activation)]
    )
    kernel = np.zeros((4, units), "float32")
    kernel[0] = np.linspace(-3, 3, units) if units > 1 else 3.0
    model.layers[0].set_weights([kernel, np.zeros(units, "float32")])
    return model


def ask(model, data, ledger, epsilon=1, **options):
    """A question about a model of others."""
    return private_evaluate(
        model,
        data,
        ledger=ledger,
        epsilon=epsilon,
        public=ELSEWHERE,
        **options,
    )


def untouched():
    pytest.fail("the records were read")
    yield


TRUE = ((X[:, 0] > 0) == Y).mean()


@pytest.mark.once
def test_rows_are_said_on_one_line():
    ledger = ledger_of()
    with pytest.raises(ValueError, match="`rows`"):
        ask(linear(), (X, Y), ledger, rows="two\nlines")
    found = ask(linear(), (X, Y), ledger, rows="those of 2024")
    assert "(those of 2024)" in ledger.entries[0].uses
    assert "rows: those of 2024" in repr(found)


# A model that was trained under the ledger -----------------------------------


def private_model():
    return keras.Sequential(
        [
            keras.Input((4,)),
            fm.layers.NormalizationLayer(),
            fm.layers.PrivateDense(2, name="head"),
        ]
    )


def fitted(budget, **kwargs):
    model = private_model()
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(
        budget, data=(X, Y), guarantee=fm.Proven(**kwargs)
    )
    model.fit(X, Y, epochs=1, verbose=0, callbacks=[private])
    return model, private


@pytest.mark.once
def test_training_choice_and_number_within_one_budget():
    split = fm.PrivacyBudget(8.0, 1e-6).split(
        training=6, choice=1, evaluation=3
    )
    model, private = fitted(split.budget, spends=split.training)
    ledger = private.ledger
    spent = ledger.epsilon()
    assert spent < 8.0
    worse = linear()
    worse.layers[0].set_weights([-w for w in worse.get_weights()])
    best = private_choice(
        [lambda x: worse.predict_on_batch(x), model.predict_on_batch],
        (X[:60], Y[:60]),
        ledger=ledger,
        share=split.choice,
        public="from the releases of this ledger",
        classes=2,
    )
    assert best.index == 1
    found = private_evaluate(
        model,
        (X, Y),
        ledger=ledger,
        share=split.evaluation,
        metrics=("accuracy", "calibration"),
    )
    truth = (model.predict(X, verbose=0).argmax(axis=1) == Y).mean()
    accuracy = found.mean("accuracy", level=1 - 1e-6)
    assert accuracy.low <= truth <= accuracy.high
    assert spent < ledger.epsilon() <= 8.0
    names = [entry.name for entry in ledger.entries]
    assert names == ["head", "choice", "evaluation"]
    statement = ledger.statement()
    assert "metrics on private records (except those of [2, 3])" in statement
    assert "public by declaration: the evaluated model: from" in statement
    assert "by the releases of this ledger" in statement
    rest = private_evaluate(model, (X, Y), ledger=ledger, share="rest")
    assert ledger.epsilon() == pytest.approx(8.0, rel=1e-3)
    assert rest.mean("accuracy").high <= 1
    # It spoke of samples, to somebody who takes none.
    with pytest.raises(ValueError, match=r"Nothing is left.*split\("):
        private_evaluate(model, (X, Y), ledger=ledger, share="rest")
    with pytest.raises(fm.BudgetExceededError):
        private_evaluate(model, untouched, ledger=ledger, epsilon=0.1)


@pytest.mark.once
def test_what_a_ledger_does_not_know_is_refused():
    ledger = ledger_of()
    with pytest.raises(ValueError, match="has no private part"):
        private_evaluate(linear(), untouched, ledger=ledger, epsilon=1)
    with pytest.raises(ValueError, match="has no release"):
        private_evaluate(private_model(), untouched, ledger=ledger, epsilon=1)
    twin = fm.models.unprotected_twin(private_model())
    with pytest.raises(ValueError, match="has no release"):
        private_evaluate(twin, untouched, ledger=ledger, epsilon=1)
    with pytest.raises(ValueError, match="`public` must name"):
        private_evaluate(lambda x: x, untouched, ledger=ledger, epsilon=1)
    model, private = fitted(fm.PrivacyBudget(8.0, 0.0))
    with pytest.raises(ValueError, match="released under another ledger"):
        private_evaluate(model, untouched, ledger=ledger, epsilon=1)
    above = keras.Sequential([model, keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="trainable weights without a"):
        private_evaluate(above, untouched, ledger=private.ledger, epsilon=1)
    assert ledger.entries == ()
    # Other records: it says so, in one line.
    with pytest.raises(ValueError, match="one line of printable"):
        private_evaluate(
            model, untouched, ledger=ledger, epsilon=1, public="a\nb"
        )
    ask(model, (X, Y), ledger)
    (entry,) = ledger.entries
    assert any(ELSEWHERE in note for note in entry.notes)


# Any model --------------------------------------------------------------------


class Estimator:
    classes_ = np.arange(2)

    def predict(self, x):
        return (x[:, 0] > 0).astype(int)

    def predict_proba(self, x):
        p = 1 / (1 + np.exp(-3.0 * x[:, 0]))
        return np.stack([1 - p, p], axis=1)


MODELS = {
    "logits": (linear(2), {"from_logits": True}),
    "softmax": (linear(2, "softmax"), {}),
    "one logit": (linear(1), {"from_logits": True}),
    "sigmoid": (linear(1, "sigmoid"), {}),
    "estimator": (Estimator(), {}),
    "classes": (lambda x: (x[:, 0] > 0).astype(int), {"classes": 2}),
    "tensors": (
        lambda x: ops.softmax(ops.convert_to_tensor(x[:, :1] * [-3.0, 3.0])),
        {"classes": 2},
    ),
    "outputs": (None, {"classes": 2}),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_accuracy_of_any_model(name, neighbours, tmp_path):
    model, options = MODELS[name]
    ledger = ledger_of(epsilon=2e5, delta=0.0, neighbours=neighbours)
    x = (X[:, 0] > 0).astype(int) if model is None else X
    metrics = ["accuracy", "confusion_matrix"]
    if name not in ("classes", "outputs"):
        metrics.append("calibration")
    found = ask(model, (x, Y), ledger, 1e5, metrics=metrics, **options)
    assert found.mean("accuracy").value == pytest.approx(TRUE, abs=1e-3)
    matrix = np.round(found.confusion_matrix())
    assert matrix.sum() == N and np.trace(matrix) == round(TRUE * N)
    assert matrix[1, 0] == ((X[:, 0] <= 0) & (Y == 1)).sum()
    if "calibration" in metrics:
        rows = found.reliability()
        assert [round(row["records"]) for row in rows[:5]] == [0] * 5
        assert sum(round(row["records"]) for row in rows) == N
    assert ledger.epsilon() == pytest.approx(1e5)
    (entry,) = ledger.entries
    known = any("same for all neighbours" in note for note in entry.notes)
    assert known == (neighbours == "replace_one")
    kept = any("stores nothing" in note for note in entry.notes)
    assert kept == (name in ("estimator", "classes", "tensors"))
    declared = any("its own record alone" in note for note in entry.notes)
    assert declared == (name == "outputs")
    found.save(tmp_path / "evaluation")
    assert repr(Release.load(tmp_path / "evaluation")) == repr(found)


def test_a_function_never_sees_two_records():
    seen = []

    def model(x):
        seen.append(len(x))
        return x[:, :1] * [-1.0, 1.0]

    ask(model, (X[:300], Y[:300]), ledger_of(), classes=2, from_logits=True)
    assert seen == [1] * 300


def test_a_model_that_mixes_records_is_asked_with_one_at_a_time():
    x = keras.Input((4,))
    mixing = keras.Model(x, linear(2)(x - ops.mean(x, axis=0, keepdims=True)))
    ledger = ledger_of(epsilon=2e5, delta=0.0)
    found = ask(mixing, (X, Y), ledger, 1e5, from_logits=True)
    # Of one record its own mean is left, zeros: every answer is one class.
    share = found.mean("accuracy").value
    assert min(abs(share - v) for v in (Y.mean(), 1 - Y.mean())) < 1e-3
    assert any("record by record" in n for n in ledger.entries[0].notes)


# What is invalid spends nothing -----------------------------------------------


@pytest.mark.parametrize(
    "model, x, y, message",
    [
        (linear(), X * np.nan, Y, "NaN or infinite inputs"),
        (linear(), X, Y + 1, "whole numbers in"),
        (linear(), X, Y[:-1], "same number of records"),
        (linear(1), X, Y, "add up to 1"),
        (lambda x: x[:, 0] / 0, X, Y, "NaN or infinite for at least"),
        (lambda x: x[0], X, Y, "a row of numbers for each record"),
        (lambda x: x[:, :3], X, Y, "2 numbers for each record"),
        (lambda x: "one", X, Y, "a row of numbers|convert"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_invalid_records_spend_nothing(model, x, y, message):
    ledger = ledger_of()
    options = {} if isinstance(model, keras.Model) else {"classes": 2}
    with pytest.raises(Exception, match=message):
        ask(model, (x, y), ledger, **options)
    assert ledger.entries == ()


def test_numbers_that_a_model_predicts():
    head = fm.layers.PrivateDense(
        2, loss="squared_error", target_bounds=(0.0, 1.0)
    )
    model = keras.Sequential([keras.Input((4,)), head])
    ledger = ledger_of()
    found = ask(
        model,
        (X, np.stack([Y, Y], axis=1)),
        ledger,
        40,
        metrics="mean_absolute_error",
        bounds=(0, 1),
    )
    said = model.predict(X, verbose=0).clip(0, 1)
    truth = np.abs(said - Y[:, None]).mean()
    error = found.mean("mean_absolute_error", level=1 - 1e-9)
    assert error.low <= truth <= error.high


def test_another_unit_is_repeated():
    ledger = ledger_of(unit="one patient")
    with pytest.raises(ValueError, match="an evaluation counts rows"):
        ask(linear(), (X, Y), ledger)
    ask(linear(), (X, Y), ledger, unit="one patient", from_logits=True)
    assert "no unit (one patient) has more than one row" in ledger.statement()


def test_records_that_hold_others_data_are_asked_with_their_reach():
    ledger = ledger_of()
    options = {"epsilon": 1, "public": ELSEWHERE, "ledger": ledger}
    first = private_evaluate(linear(), (X, Y), reach=2, **options)
    assert first.mechanism.sensitivity == 1 + 2 * 2**0.5
    with pytest.raises(ValueError, match="Pass `reach=`"):
        private_evaluate(linear(), untouched, **options)
    best = private_choice([linear(), linear()], (X, Y), reach=2, **options)
    assert best.mechanism.sensitivity == 5
    for entry in ledger.entries:
        assert "at most 2 other units" in entry.uses


def test_the_best_of_models_that_predict_numbers():
    y = X[:, 1].clip(-2, 2) * 0.5
    ledger = ledger_of()
    asked = {"ledger": ledger, "public": "constants", "bounds": (-1, 1)}
    models = [lambda x: x[:, 1] * 0.0, lambda x: x[:, 1] * 0.5]
    best = private_choice(
        models, (X, y), metric="mean_squared_error", epsilon=10, **asked
    )
    assert best.index == 1
    with pytest.raises(ValueError, match="outside the public bounds"):
        asked["bounds"] = (-0.1, 0.1)
        private_evaluate(
            models[1], (X, y), metrics="mean_absolute_error", epsilon=1, **asked
        )
    assert len(ledger.entries) == 1
