"""Data that do not start again are refused, or stop what was paid for.

`data=lambda: it` of one iterator gave its records to the first pass and none
to the second: what that released, and was charged for, was noise.
"""

import keras
import numpy as np
import pytest

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.evaluation import private_choice, private_evaluate

N, D = 300, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype("float32")
Y = np.arange(N) % 3
ANEW = "must start again at every call with the same records"


def batches(n=N):
    return [(X[i : min(n, i + 64)], Y[i : min(n, i + 64)])
            for i in range(0, n, 64)]  # fmt: skip


class Fewer:
    """A function whose later passes give fewer records."""

    def __init__(self, *counts):
        self.counts = list(counts)

    def __call__(self):
        n = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        yield from batches(n)


def model(body=(), **head):
    m = keras.Sequential(
        [
            keras.Input((D,)),
            fm.layers.NormalizationLayer(),
            *body,
            fm.layers.PrivateDense(3, **head),
        ]
    )
    m.compile("adam", fm.losses.TaylorCrossEntropy())
    return m


def components():
    return model([fm.layers.DPPCA(4), fm.layers.NormalizationLayer()])


def rounds():
    return model(rounds=fm.Rounds(rounds=3))


def refused(m, data, match, spent=0, **proven):
    private = PrivateModel(
        fm.PrivacyBudget(2.0, 1e-6), data=data, guarantee=fm.Proven(**proven)
    )
    fit = {"steps_per_epoch": 2} if "n_public" in proven else {}
    with pytest.raises(ValueError, match=match) as error:
        m.fit(X, Y, callbacks=[private], verbose=0, **fit)
    assert len(private.ledger.entries) == spent
    assert spent or not m.layers[-1].is_released
    return str(error.value)


@pytest.mark.parametrize("make", [model, components, rounds])
def test_no_record_is_no_release(make):
    refused(make(), lambda: iter(()), "holds no records")


@pytest.mark.parametrize("make", [components, rounds])
def test_one_iterator_is_refused_before_any_charge(make):
    one = iter(batches())
    refused(make(), lambda: one, ANEW)


def test_one_iterator_is_enough_for_one_pass():
    one = iter(batches())
    private = PrivateModel(fm.PrivacyBudget(2.0, 1e-6), data=lambda: one)
    model().fit(X, Y, callbacks=[private], verbose=0)
    assert len(private.ledger.entries) == 1


def test_fewer_records_before_the_charge_and_after_it():
    refused(rounds(), Fewer(N, 200), ANEW)
    # The number, the records that are looked at, one read, another.
    refused(rounds(), Fewer(N, N, N, 200), ANEW, spent=1)
    refused(rounds(), Fewer(N, N, N, 0), ANEW, spent=1)
    m = components()
    refused(m, Fewer(N, 200), ANEW, spent=1)
    # What was right is kept, nothing is learned from the other pass.
    assert m.layers[1].is_released and not m.layers[-1].is_released


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_questions(neighbours):
    one, none = iter(batches()), lambda: iter(())
    ledger = fm.Ledger(fm.PrivacyBudget(2.0, 1e-6), neighbours=neighbours)
    asked = {"ledger": ledger, "share": 0.2, "public": "of others"}

    def first(x):
        return np.zeros(len(x), int)

    for data in (none, *[lambda: one] * (neighbours == "replace_one")):
        with pytest.raises(ValueError, match="holds no records"):
            private_evaluate(first, data, classes=3, **asked)
    with pytest.raises(ValueError, match="holds no records"):
        private_choice([first, first], none, classes=3, **asked)
    if neighbours == "replace_one":
        with pytest.raises(ValueError, match=ANEW):
            private_evaluate(first, Fewer(N, 200), classes=3, **asked)
    assert not ledger.entries


def test_other_records_at_a_later_pass_are_refused():
    """Of `shuffle(n).take(m)` every pass reads others."""
    random = np.random.default_rng(0)

    def some():
        rows = random.choice(len(X), 200, replace=False)
        yield X[rows], Y[rows]

    def mixed():
        rows = random.permutation(len(X))
        yield X[rows[:99]], Y[rows[:99]]
        yield X[rows[99:]], Y[rows[99:]]

    refused(rounds(), some, "same records each time")
    private = fm.callbacks.PrivateModel(fm.PrivacyBudget(1.0, 1e-5), data=mixed)
    rounds().fit(X, Y, callbacks=[private], verbose=0)
    assert private.ledger.entries


@pytest.mark.parametrize("settings", [None, fm.Rounds(rounds=3)])
def test_inputs_in_memory_need_no_hash_and_no_order(settings, monkeypatch):
    def released(x, y):
        head = fm.layers.PrivateDense(3, clip=True, rounds=settings)
        m = keras.Sequential([keras.Input((D,)), head])
        m.compile("sgd", fm.losses.TaylorCrossEntropy())
        private = PrivateModel(
            epsilon=2.0,
            delta=1e-5,
            data=(x, y),
            guarantee=fm.Proven(),
            reproducible_noise=7,
        )
        m.fit(X[:1], Y[:1], callbacks=[private], verbose=0)
        return list(private.releases.values())[-1].statistics

    monkeypatch.setattr("keras_fm.kernel.records._digest", None)
    found, other = released(X, Y), released(X[::-1], Y[::-1])
    assert found
    for name, value in found.items():
        np.testing.assert_array_equal(value, other[name])
