"""Rows that belong to several people, of whom each has one row in the steps.

The habit that these guard: photos with several faces, papers with several
authors and messages with a sender and a receiver, trained as if each had one.
"""

import keras
import layer_moves
import numpy as np
import pytest
from layer_moves import N, network, nothing

import keras_fm as fm
from keras_fm.core import several_owners
from keras_fm.per_example import balanced_classes

pytestmark = [
    pytest.mark.full,
    pytest.mark.backend,
    pytest.mark.usefixtures("forgetful"),
]

# Twelve people; in a row are two or three of them.
_RNG = np.random.default_rng(5)
IDS = np.array([_RNG.permutation(12)[:3] for _ in range(N)])
IDS[::2, 2] = -1
CHOSEN = several_owners.chosen_rows(IDS)


def protecting(ids=IDS, epsilon=8.0, **kwargs):
    promise = fm.Proven(unit=fm.Unit(owners=ids), **kwargs)
    return fm.callbacks.PrivateModel(epsilon, 1e-3, guarantee=promise)


# Which rows ------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("seed", range(5))
def test_every_owner_has_at_most_one_row(seed):
    """And every row that is left out shares an owner with one that is not."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 60, (200, 4))
    ids[:, 1:][rng.random((200, 3)) < 0.6] = -1
    rows = several_owners.chosen_rows(ids)
    owners = [set(row) - {-1} for row in ids]
    met = [owner for row in rows for owner in owners[row]]
    assert len(met) == len(set(met)) and len(rows) > 15
    for row in set(range(200)) - set(rows):
        assert owners[row] & set(met)


@pytest.mark.once
def test_rows_depend_on_who_owns_them_alone():
    """Not on what ids are called, nor on their order in a row: text, bytes
    and whole numbers, in arrays and lists."""
    for names in (
        np.where(IDS < 0, "", np.char.add("u", IDS.astype(str))),
        np.where(IDS < 0, "", (50 - IDS).astype(str)).tolist(),
        np.char.encode(np.where(IDS < 0, "", IDS.astype(str))),
        np.where(IDS < 0, -1, 2**70 + IDS.astype(object)),
        np.where(IDS < 0, -1.0, 7.0 * IDS),
        IDS[:, ::-1].tolist(),
    ):
        assert np.array_equal(fm.Unit(owners=names).chosen, CHOSEN)


@pytest.mark.once
def test_one_owner_of_a_row_is_as_before():
    assert fm.Unit(owners=IDS[:, 0]).chosen is None
    assert fm.Unit().chosen is None
    # Given as a table, one row of each.
    rows = fm.Unit(owners=IDS[:, :1]).chosen
    assert len(set(IDS[rows, 0])) == len(rows) == len(set(IDS[:, 0]))


# What steps take -------------------------------------------------------------


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_no_owner_moves_a_step_by_more_than_a_clip(neighbours):
    """Whatever all rows of an owner hold. As plain rows they would move it by
    one clip each."""
    used = set(IDS[CHOSEN].ravel()) - {-1}
    left = set(range(12)) - used
    assert used and left
    replaced = neighbours == "replace_one"
    for owner in (min(used), min(left)):
        own = (owner == IDS).any(axis=1)
        assert own.sum() > 2
        sums = {"owners": [], "rows": []}
        for label in (1e7, -1e7 if replaced else 0.0):
            x, y = nothing()
            x[own], y[own] = 1e3 * (label != 0), label
            for kind, found in sums.items():
                budget = fm.callbacks.PrivateModel(
                    8.0, 1e-3, guarantee=fm.Proven(neighbours=neighbours)
                )
                if kind == "owners":
                    budget = protecting(neighbours=neighbours)
                # A mean over rows, in clips.
                size = len(CHOSEN) if kind == "owners" else N
                found.append(layer_moves.moves(network(), x, y, budget, size))
        (entry,) = budget.ledger.entries
        far, plain = (
            np.linalg.norm(one - other, axis=1) / (1 + replaced)
            for one, other in sums.values()
        )
        assert np.all(far <= 1) and np.all(plain > own.sum() - 0.01)
        assert np.all((far > 0.999) == (owner in used))
        assert np.all((far == 0) == (owner in left))


@pytest.mark.parametrize(
    "participation", [None, fm.Participation(), fm.BallsInBins()]
)
def test_noise_is_that_of_the_rows_that_are_used(participation):
    """The same charge as of so many plain rows; what is drawn is that."""
    mechanisms = []
    for budget, n in (
        (protecting(epsilon=1.0), N),
        (fm.callbacks.PrivateModel(1.0, 1e-3), len(CHOSEN)),
    ):
        steps = layer_moves.moves(
            network(), *nothing(n), budget, 2, participation=participation
        )
        (entry,) = budget.ledger.entries
        mechanisms.append(entry.build_mechanism())
        if not isinstance(participation, fm.Participation):
            noise = steps / mechanisms[-1].stddev
            assert layer_moves.are_independent(noise)
    assert mechanisms[0] == mechanisms[1]


@pytest.mark.once
def test_what_the_ledger_and_the_plan_say():
    budget = protecting()
    text = budget.plan(network(), N, batch_size=2, epochs=2)
    private = network()
    layer_moves.moves(private, *nothing(), budget, 2)
    kept = f"at most one row of each owner, {len(CHOSEN)} of {N} rows"
    (entry,) = budget.ledger.entries
    assert kept in entry.uses and kept in text
    assert any("which owner has which row is public" in n for n in entry.notes)
    assert entry.mechanism["sampling_rate"] == 2 / len(CHOSEN)
    unit = "unit: {}contents of one owner's rows (which owner has which row is"
    assert unit.format("") in text
    assert unit.format(" " * 6) in budget.report()


@pytest.mark.once
def test_owners_are_given_to_fit_and_to_a_second_fit(tmp_path):
    """A ledger counts one unit: not rows as well, nor owners of several
    rows."""
    budget = fm.callbacks.PrivateModel(
        8.0, 1e-3, guarantee=fm.Proven(spends=0.5)
    )
    private = network()
    for _ in range(2):
        private.fit(*nothing(), 2, verbose=0, callbacks=[budget], owners=IDS)
    assert len(budget.ledger.entries) == 2
    with pytest.raises(ValueError, match="cannot count these owners"):
        network(owned=2).fit(
            *nothing(), 2, verbose=0, callbacks=[budget], owners=IDS[:, 0]
        )
    path = tmp_path / "privacy.json"
    first = fm.Unit(owners=IDS, words="one author")
    for unit in (first, first, fm.Unit(owners=IDS[:, 0], words="one author")):
        promise = fm.Proven(unit=unit)
        if unit is first:
            fm.callbacks.PrivateModel(8.0, 1e-3, guarantee=promise, ledger=path)
            continue
        with pytest.raises(ValueError, match="unit"):
            fm.callbacks.PrivateModel(8.0, 1e-3, guarantee=promise, ledger=path)


@pytest.mark.once
def test_classes_are_counted_in_rows_that_are_used(monkeypatch):
    """A person with many rows counts once, in a release of its own."""
    counted = []
    weights = balanced_classes.BalancedClasses.weights

    def noted(self, labels, noise):
        counted.append(labels)
        return weights(self, labels, noise)

    monkeypatch.setattr(balanced_classes.BalancedClasses, "weights", noted)
    layer = keras.layers.Dense(2, activation="softmax")
    private = fm.make_private(keras.Sequential([keras.Input((3,)), layer]))
    private.compile("sgd", "sparse_categorical_crossentropy")
    x, y = np.ones((N, 3)), np.arange(N) // 3 % 2
    private.fit(
        x, y, 2, verbose=0, callbacks=[protecting()], class_weight="balanced"
    )
    (labels,) = counted
    assert np.array_equal(labels, y[CHOSEN])


# Refusals --------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize(
    "ids, words",
    [
        (IDS[:-1], "one id for each row"),
        (IDS.T, "one id for each row"),
        (np.where(IDS == IDS[0, 0], -1, IDS)[:, :1], "at least one owner"),
        (np.full((N, 2), ""), "at least one owner"),
        (IDS[:, :0], "at least one owner"),
        (IDS[None], "or k ids"),
        (3, "or k ids"),
        ([[1, 2], *[[3]] * (N - 1)], "Fill up lists of several"),
        ([["u", None]] * N, "Fill up lists of several"),
        (np.where(IDS < 0, np.nan, IDS), "Fill up lists of several"),
        ([[1, ""]] * N, "Fill up lists of several"),
    ],
)
def test_owners_that_are_refused(ids, words):
    budget = fm.callbacks.PrivateModel(8.0, 1e-3)
    with pytest.raises(ValueError, match=words):
        network().fit(*nothing(), 2, verbose=0, callbacks=[budget], owners=ids)
    assert not budget.ledger.entries


@pytest.mark.once
def test_what_does_not_take_several_owners():
    """Rows per owner, streams, and releases of one access."""
    budget = protecting()
    with pytest.raises(ValueError, match="leave `rows_per_owner` out"):
        network(owned=2).fit(*nothing(), 2, verbose=0, callbacks=[budget])
    with pytest.raises(ValueError, match="`owners` need arrays"):
        network().fit(
            iter([nothing()]),
            batch_size=2,
            steps_per_epoch=2,
            participation=fm.Participation(),
            verbose=0,
            callbacks=[budget],
        )
    x, y = np.zeros((N, 3)), np.arange(N) % 2
    head = keras.Sequential([keras.Input((3,)), fm.layers.PrivateDense(2)])
    head.compile("sgd")
    budget.data = x, y
    with pytest.raises(ValueError, match="steps of `make_private`"):
        head.fit(x, y, verbose=0, callbacks=[budget])
    assert not budget.ledger.entries
