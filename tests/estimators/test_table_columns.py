"""Columns by what is publicly known of them: numbers and words."""

import math

import numpy as np
import pytest
from fit_checks import shown
from sklearn.base import clone

from keras_fm.estimators import PrivateClassifier, PrivateRegressor
from keras_fm.estimators.table_columns import TableColumns
from keras_fm.heads.rounds import Rounds

N = 400
RNG = np.random.default_rng(0)
AGE = RNG.uniform(20, 60, N)
WORDS = ["x", "y", "z"]
WORD = RNG.choice(WORDS, N)
Y = np.where((AGE < 30) | (WORD == "x"), "no", "yes")
COLUMNS = [(20, 30, 40, 50, 60), WORDS]
X = np.empty((N, 2), object)
X[:, 0], X[:, 1] = AGE, WORD


def made(epsilon=1e4, delta=1e-6, **kwargs):
    given = {"columns": COLUMNS, "classes": ["no", "yes"], **kwargs}
    return PrivateClassifier(epsilon, delta, **given)


def encode(rows, columns=COLUMNS):
    table = np.empty((len(rows), len(rows[0])), object)
    table[:] = rows
    return TableColumns(columns).encode(table)


class NAType:
    """As pandas has it: no truth value, and no number."""

    def __eq__(self, other):
        return self

    __hash__ = object.__hash__

    def __bool__(self):
        raise TypeError("ambiguous")


def test_words_that_one_fraction_elsewhere_would_round_are_refused():
    """A table of whole numbers and one fraction is float64 throughout: all of
    these words were the first, in the records of everybody."""
    words = [2**60 + i for i in range(3)]
    for given in (words, [2**53, 0, 1], [-(2**53) - 1, 0], [2.0**54, 1]):
        with pytest.raises(ValueError, match="Column 0 must.*text.*2\\^53"):
            TableColumns([given])
    # 2^53 + 1 would be 2^53.
    TableColumns([[2**53 - 1, 1 - 2**53, True]])
    TableColumns([[str(word) for word in words]])


def test_a_record_is_encoded_by_its_own_row():
    found = encode(
        [[20, "x"], [45, "z"], [60.0, "y"], [99, "x"], [-1, "?"]],
    )
    np.testing.assert_allclose(
        found,
        [
            [1, 0, 0, 0, 0, 1, 0, 0],
            [0, 0, 0.5, 0.5, 0, 0, 0, 1],
            [0, 0, 0, 0, 1, 0, 1, 0],
            [0, 0, 0, 0, 1, 1, 0, 0],
            [1, 0, 0, 0, 0, 0, 0, 0],
        ],
    )
    assert found.dtype == np.float32


@pytest.mark.parametrize("gap", [None, math.nan, np.float32("nan"), NAType()])
def test_what_is_missing_is_zeros(gap):
    columns = [*COLUMNS, (0, 10)]
    assert not encode([[gap, gap, gap]], columns).any()
    np.testing.assert_array_equal(
        encode([[gap, "y", 10]], columns), [[0] * 5 + [0, 1, 0, 1]]
    )


def test_words_may_be_numbers_and_truth_values():
    columns = [[1, 2], [True, False], (0, 4)]
    table = np.array([[2, 1, 1], [1, 0, 4]])
    for given in (table, table.astype(object), table.astype(float)):
        if given.dtype.kind == "f":
            columns[0] = (1, 2)
        np.testing.assert_allclose(
            TableColumns(columns).encode(given)[:, -3:],
            [[1, 0, -0.5], [0, 1, 1]],
        )
    np.testing.assert_array_equal(
        TableColumns([[1, 2, 9]]).encode(table[:, :1]), [[0, 1, 0], [1, 0, 0]]
    )


def test_bounds_hold_for_every_record():
    columns = [(0, 1), (0, 0.1, 3, 9), ["a", "b"], list(range(40))]
    found = TableColumns(columns)
    rows = [
        [RNG.normal() * 9, RNG.normal() * 9, "ab"[i % 2], i % 50]
        for i in range(300)
    ]
    h = found.scale * encode(rows, columns).astype(float)
    assert found.width == h.shape[1] == 1 + 4 + 2 + 40
    assert np.linalg.norm(h, axis=1).max() <= 1 + 1e-7
    assert np.abs(h).sum(axis=1).max() <= found.l1_bound * (1 + 1e-7)
    assert found.l1_bound == 2.0


@pytest.mark.once
def test_a_pure_fit_says_that_records_are_sparse():
    model = made(delta=0.0).fit(X, Y)
    assert model.score(X, Y) > 0.85
    (entry,) = model.ledger_.entries
    assert f"||h||_1 <= {math.sqrt(2) + 0.1:g}" in entry.uses
    # Of public features nothing is known.
    import keras

    (entry,) = made(features=keras.layers.Identity()).fit(X, Y).ledger_.entries
    assert "||h||_1" not in entry.uses


def test_columns_are_learned_and_cost_nothing():
    model = made(30.0, rounds=20, fits=2).fit(X, Y)
    assert model.score(X, Y) > 0.85
    # Rounds of probabilities; other rounds are what they say.
    assert model.model_.layers[-1].rounds.whitening == 0.1
    margin = Rounds(rounds=2, loss="crammer_singer")
    (*_, head) = made(30.0, rounds=margin).fit(X, Y).model_.layers
    assert head.rounds == margin
    assert clone(model).fit(X, Y).get_params()["columns"] == COLUMNS
    # Another company changes no record's prediction.
    np.testing.assert_array_equal(
        model.decision_function(X)[:7], model.decision_function(X[:7])
    )


def test_numbers_are_learned_from_columns():
    y = AGE + 10 * (WORD == "x")
    model = PrivateRegressor(
        1e5, 0, columns=COLUMNS, target_bounds=(0, 100)
    ).fit(X, y)
    assert model.score(X, y) > 0.9


@pytest.mark.full
def test_a_data_frame_has_its_columns_by_name():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"id": np.arange(N), "word": pd.Categorical(WORD), "age": AGE}
    )
    frame.loc[3, "age"] = None
    columns = {"age": COLUMNS[0], "word": WORDS}
    model = made(columns=columns).fit(frame, Y)
    assert model.score(frame, Y) > 0.85
    assert list(model.feature_names_in_) == ["age", "word"]
    with pytest.raises(ValueError, match=r"Missing: \['income'\]"):
        made(columns={"income": (0, 9)}).fit(frame, Y)


@pytest.mark.full
def own_types(pd, frame, kind):
    if kind == "arrow":
        pytest.importorskip("pyarrow")
        return frame.convert_dtypes(dtype_backend="pyarrow")
    return frame.astype({"word": kind, "age": "Float64", "many": "Int64"})


@pytest.mark.parametrize("kind", ["string", "category", "arrow"])
def test_columns_of_types_of_pandas_are_those_of_numpy(kind):
    """`convert_dtypes` made scikit-learn turn all columns into floats, and the
    error said to write the `columns` that were given."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"word": WORD, "age": AGE, "many": np.arange(N)})
    frame.loc[::7, "word"], frame.loc[::5, "age"] = None, np.nan
    columns = {"word": WORDS, "age": (20, 60), "many": (0, N)}
    model = made(columns=columns).fit(own_types(pd, frame, kind), Y)
    np.testing.assert_array_equal(
        model.decision_function(own_types(pd, frame, kind)),
        model.decision_function(frame),
    )


def test_other_columns_of_a_data_frame_are_not_read():
    """A model that was fitted on a frame with the label in it would predict
    from no other."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": AGE, "word": WORD, "label": Y, 7: AGE, 8: Y})
    frame.columns = ["age", "word", "label", 7, "label"]
    frame["day"] = pd.Timestamp("2020-01-01")
    columns = {"age": COLUMNS[0], "word": WORDS}
    model = made(columns=columns).fit(frame, Y)
    wanted = model.predict(frame)
    for other in (
        frame[["word", "age"]],
        frame[["age", "word"]].assign(id=np.arange(N)),
    ):
        np.testing.assert_array_equal(model.predict(other), wanted)
    with pytest.raises(ValueError, match=r"Missing: \['age'\]"):
        model.predict(frame[["word"]])
    twice = pd.concat([frame, frame[["age"]]], axis=1)
    with pytest.raises(ValueError, match=r"More than once: \['age'\]"):
        model.predict(twice)


@pytest.mark.parametrize(
    "change, match",
    [
        ({"columns": {}}, "`columns` must be a dict"),
        ({"columns": 3}, "`columns` must be a dict"),
        ({"columns": "age"}, "`columns` must be a dict"),
        ({"columns": [(0, 1)]}, "must have the 1 columns"),
        ({"columns": {"a": (0, 1)}}, "must be a data frame"),
        ({"columns": [(1, 0), WORDS]}, "Column 0 must be"),
        ({"columns": [(1,), WORDS]}, "Column 0 must be"),
        ({"columns": [(0, math.inf), WORDS]}, "Column 0 must be"),
        ({"columns": [(0, 1), ["x", "x"]]}, "Column 1 must be"),
        ({"columns": [(0, 1), []]}, "Column 1 must be"),
        ({"columns": [(0, 1), "xyz"]}, "Column 1 must be"),
        ({"columns": [("0", "100"), WORDS]}, "Column 0 must be"),
        ({"columns": [(0, 10**400), WORDS]}, "Column 0 must be"),
        ({"columns": [(0, 1), [["x"], ["y"]]]}, "Column 1 must be"),
        ({"columns": [(0, 1), ["x", None]]}, "Column 1 .*of them missing"),
        ({"columns": [(0, 1), ["x", math.nan]]}, "Column 1 .*of them missing"),
        ({"bounds": (0, 1)}, "leave out `bounds`"),
    ],
)
@pytest.mark.once
def test_what_is_refused_costs_nothing(change, match):
    model = made(1.0, **change)
    with pytest.raises(ValueError, match=match):
        model.fit(X, Y)
    model.set_params(columns=COLUMNS, bounds=None).fit(X, Y)


@pytest.mark.parametrize(
    "bad, match",
    [
        ("0.123454321 years", "Column 0 must hold numbers"),
        (["0.123454321"], "Column 0 must hold numbers"),
        (10**400 + 123454321, "Column 0 must hold numbers"),
    ],
)
def test_a_value_that_is_no_number_is_not_shown(bad, match):
    table = X.copy()
    table[5, 0] = bad
    with pytest.raises(ValueError, match=match) as caught:
        made().fit(table, Y)
    assert not any("123454321" in text for text in shown(caught.value))
