"""The sums that metrics are computed from, and what is computed of them."""

import dataclasses
import itertools

import numpy as np
import pytest
from neighbours import Domain, check_sensitivity, shares

from keras_fm.evaluation.evaluation_query import (
    GRID,
    IN_SAMPLE,
    METRICS,
    Evaluation,
    EvaluationQuery,
)
from keras_fm.evaluation.private_evaluation import agreement
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.mechanisms import (
    LaplaceMechanism,
    NoiseSource,
)
from keras_fm.kernel.release import calibrate
from keras_fm.lab.auditing import audit_objective

ASKED = [
    ("log_loss", "confusion_matrix"),
    ("r2",),
    ("log_loss", "auc"),
    ("accuracy",),
    ("confusion_matrix",),
    ("accuracy", "calibration"),
    ("accuracy", "confusion_matrix", "calibration"),
    ("mean_absolute_error", "mean_squared_error"),
]


def query_of(metrics, records=0):
    classes = 2 if "auc" in metrics else 3
    return EvaluationQuery(
        metrics=metrics, classes=classes, bins=4, records=records
    )


def domain_of(query):
    """Records from numbers: shares in [0, 1], then cells."""
    m = len(query.means)
    sizes = [int(np.prod(s)) for s in query.shapes[bool(m) :]]

    def inside(v):
        v = np.abs(np.asarray(v, float))
        cells = np.floor(v[m:]) % np.array(sizes, float)
        return np.concatenate([np.clip(v[:m], 0, 1), cells])

    def arguments(v):
        return v[None, :m], v[None, m:].astype(int)

    return Domain(query, m + len(sizes), inside, arguments)


def extremal(query):
    """All right in the first cells, all wrong in the second."""
    m, t = len(query.means), len(query.tables)
    yield np.r_[np.ones(m), np.zeros(t)], np.r_[np.zeros(m), np.ones(t)]


@pytest.mark.parametrize("records", [0, 7])
@pytest.mark.parametrize("metrics", ASKED)
def test_no_pair_is_farther_apart_than_the_sensitivity(metrics, records):
    query = query_of(metrics, records)
    domain = domain_of(query)
    check_sensitivity(domain, list(extremal(query)))
    for key, share in shares(domain, list(extremal(query))).items():
        assert share == pytest.approx(1, abs=1e-12), key


def test_the_search_sees_a_sensitivity_that_is_too_small():
    class Wrong(EvaluationQuery):
        def sensitivity(self, norm, *, neighbours):
            return 0.99 * super().sensitivity(norm, neighbours=neighbours)

    query = Wrong(metrics="accuracy, calibration")
    with pytest.raises(AssertionError):
        check_sensitivity(domain_of(query), list(extremal(query)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((np.full((2, 1), 1.5), np.zeros((2, 1))), r"in \[0, 1\]"),
        ((np.full((2, 1), np.nan), np.zeros((2, 1))), "finite"),
        ((np.ones((2, 1)), np.full((2, 1), 9)), "Cells of confusion"),
        ((np.ones((2, 1)), np.full((2, 1), -1)), "Cells of confusion"),
        ((np.ones((2, 1)), np.full((2, 1), 0.5)), "Cells of confusion"),
        ((np.ones((2, 2)), np.zeros((2, 1))), "must have shape"),
        ((np.ones((2, 1)), None), "must have shape"),
        ((np.ones((2, 1)), np.zeros((3, 1))), "must have shape"),
    ],
)
def test_what_is_no_record_is_refused(arguments, message):
    query = query_of("accuracy, confusion_matrix")
    sums = query.zero()
    with pytest.raises(ValueError, match=message):
        query.accumulate(sums, *arguments)
    # Who mends the batch and adds it again would count it twice.
    assert not any(np.any(part) for part in sums)


def test_shares_add_up_without_rounding():
    """So nothing is added to the noise for it: in any order, the same."""
    rng = np.random.default_rng(0)
    query = query_of("mean_absolute_error")
    values = rng.random((5000, 1))
    (sums,) = query.accumulate(query.zero(), values)
    (other,) = query.accumulate(query.zero(), values[::-1])
    whole = np.floor(values / GRID).astype(np.int64)
    exact = [whole.sum(), (2**20 - whole).sum()]
    np.testing.assert_array_equal(sums[0] / GRID, exact)
    np.testing.assert_array_equal(sums, other)
    assert query.rounding_error("l1") == query.rounding_error("l2") == 0


# What is computed of a release ------------------------------------------------


def evaluation(query, statistics, mechanism, neighbours="add_remove"):
    return Evaluation(
        statistics=dict(zip(query.names, statistics)),
        query=query,
        mechanism=mechanism,
        neighbours=neighbours,
        private=True,
    )


NEARLY_NONE = LaplaceMechanism(sensitivity=1.0, epsilon=1e6)


def test_without_noise_the_metrics_are_those_of_the_records():
    rng = np.random.default_rng(1)
    n, classes, bins = 400, 3, 5
    truth, said = rng.integers(0, classes, (2, n))
    sure = rng.random(n)
    right = truth == said
    query = EvaluationQuery(
        metrics="accuracy, confusion_matrix, calibration",
        classes=classes,
        bins=bins,
    )
    bin_ = (sure * bins).astype(int)
    cells = np.stack([truth * classes + said, 2 * bin_ + ~right], axis=1)
    sums = query.accumulate(query.zero(), right[:, None].astype(float), cells)
    found = evaluation(query, sums, NEARLY_NONE)
    for of in ("records", "population"):
        accuracy = found.mean("accuracy", of=of)
        assert accuracy.value == pytest.approx(right.mean())
        assert accuracy.low < right.mean() < accuracy.high
    assert found.mean("accuracy").high - right.mean() < 1e-3
    expected = np.zeros((classes, classes))
    np.add.at(expected, (truth, said), 1)
    np.testing.assert_array_equal(found.confusion_matrix(), expected)
    middles = (np.arange(bins) + 0.5) / bins
    gap = [
        abs(right[bin_ == b].sum() - m * (bin_ == b).sum())
        for b, m in enumerate(middles)
    ]
    error = found.calibration_error()
    assert error.value == pytest.approx(sum(gap) / n)
    assert error.low - 1e-3 < error.value < error.high + 1e-3
    rows = found.reliability()
    assert [row["records"] for row in rows] == [
        (bin_ == b).sum() for b in range(bins)
    ]
    assert rows[2]["confidence"] == pytest.approx((0.4, 0.6))
    assert rows[2]["accuracy"].value == pytest.approx(right[bin_ == 2].mean())
    with pytest.raises(ValueError, match="was not evaluated"):
        found.mean("mean_squared_error")
    with pytest.raises(ValueError, match="`of` must be"):
        found.mean("accuracy", of="everybody")
    with pytest.raises(ValueError, match="`level` must be"):
        found.mean("accuracy", level=1.0)


def test_errors_have_the_units_of_the_numbers():
    query = EvaluationQuery(
        metrics="mean_absolute_error, mean_squared_error", low=-1.0, high=3.0
    )
    shares_ = np.array([[1 - 0.25, 1 - 0.25**2], [1.0, 1.0]])
    sums = query.accumulate(query.zero(), shares_)
    found = evaluation(query, sums, NEARLY_NONE)
    absolute = found.mean("mean_absolute_error")
    assert absolute.value == pytest.approx(0.5, abs=1e-4)
    assert absolute.low < 0.5 < absolute.high
    assert found.mean("mean_squared_error").value == pytest.approx(
        0.5, abs=1e-4
    )


def test_recall_and_precision_are_those_of_the_table():
    matrix = np.array([[70.0, 20, 10], [5, 40, 5], [0, 0, 50]])
    query = query_of("confusion_matrix")
    found = evaluation(query, [matrix], NEARLY_NONE)
    for of in ("records", "population"):
        for name, sums in (("recall", 1), ("precision", 0)):
            wanted = np.diag(matrix) / matrix.sum(axis=sums)
            for one, value in zip(getattr(found, name)(of=of), wanted):
                assert one.value == pytest.approx(value)
                assert one.low <= value <= one.high <= 1
                assert (one.high - one.low < 1e-4) == (of == "records")
        balanced = found.balanced_accuracy(of=of)
        assert balanced.value == pytest.approx((0.7 + 0.8 + 1) / 3)
        assert found.mean("accuracy", of=of).value == pytest.approx(0.8)
    assert "balanced accuracy: 0.8333" in repr(found)


def test_a_class_without_records_does_not_hide_the_others():
    """Its recall may be anything from 0 to 1, and no more."""
    noise = LaplaceMechanism(sensitivity=1.0, epsilon=1.0)
    matrix = np.array([[-3.0, 1.0, 2.5], [2, 900, 98], [3, 1, 996]])
    found = evaluation(query_of("confusion_matrix"), [matrix], noise)
    balanced = found.balanced_accuracy()
    assert 0.62 < balanced.low <= balanced.value < 0.98
    assert 0.95 < balanced.high < 0.99


def test_an_auc_has_the_true_one_inside_of_its_ties():
    query = query_of("auc")
    table = np.zeros((2, 20))
    table[0, 3:6], table[1, 4:7] = (30, 20, 10), (5, 15, 40)
    found = evaluation(query, [table], NEARLY_NONE).auc()
    apart = 5 * 30 + 15 * 50 + 40 * 60
    least, most = apart / 3600, (apart + 5 * 20 + 15 * 10) / 3600
    assert found.low == pytest.approx(least, abs=1e-3)
    assert found.high == pytest.approx(most, abs=1e-3)
    assert found.value == pytest.approx((least + most) / 2)


def test_a_threshold_reaches_the_recall_from_there_on():
    """Edges are even in the angle; noise that dips below the recall once more
    moves the threshold down."""
    query = query_of("auc")
    table = np.zeros((2, 20))
    table[1, [3, 9, 15, 18]] = 10, 30, 40, 20
    found = evaluation(query, [table], NEARLY_NONE)
    for recall, edge in ((0.15, 18), (0.25, 15), (0.7, 9), (0.95, 3)):
        known = np.sin(np.pi / 2 * edge / 20) ** 2
        assert found.threshold(recall) == pytest.approx(known)
    table[1, [16, 17]] = 15, -15
    dipped = evaluation(query, [table], NEARLY_NONE)
    assert dipped.threshold(0.15) == pytest.approx(np.sin(0.4 * np.pi) ** 2)
    hidden = evaluation(query, [-table], NEARLY_NONE)
    assert hidden.threshold(0.5) == 0
    with pytest.raises(ValueError, match="`recall` must be"):
        found.threshold(0)
    with pytest.raises(ValueError, match="`auc` was not evaluated"):
        evaluation(query_of("accuracy"), [[[3, 1]]], NEARLY_NONE).threshold(0.5)


@pytest.mark.parametrize("records", [0, 300])
def test_r2_and_log_loss_are_those_of_the_records(records):
    rng = np.random.default_rng(0)
    y = rng.normal(1.0, 0.5, 300)
    said = 0.8 * y + rng.normal(0, 0.2, 300)
    low, high = -1.0, 3.0
    query = EvaluationQuery(
        metrics="r2, mean_absolute_error", low=low, high=high, records=records
    )
    of = agreement(said, y, low, high, True)
    shares_ = np.stack([of[name] for name in query.means], axis=1)
    sums = query.accumulate(query.zero(), shares_)
    found = evaluation(query, sums, NEARLY_NONE)
    y, said = np.clip(y, low, high), np.clip(said, low, high)
    true = 1 - np.mean((y - said) ** 2) / np.var(y)
    assert found.r2().value == pytest.approx(true, abs=1e-3)
    # Shares are cut to 2^-20.
    assert found.r2().low - 1e-4 < true < found.r2().high + 1e-4
    query = EvaluationQuery(metrics="log_loss", records=records)
    sums = query.accumulate(query.zero(), np.full((300, 1), 0.75))
    found = evaluation(query, sums, NEARLY_NONE).mean("log_loss")
    assert found.value == pytest.approx(-np.log(0.01) / 4)


def test_rows_of_the_training_say_nothing_of_others():
    query = EvaluationQuery(metrics="confusion_matrix", rows=IN_SAMPLE)
    found = evaluation(query, [np.full((2, 2), 9.0)], NEARLY_NONE)
    assert "(in sample)" in query.uses and "population" not in repr(found)
    for ask in (found.recall, found.balanced_accuracy):
        with pytest.raises(ValueError, match="trained on these rows"):
            ask(of="population")
    with pytest.raises(ValueError, match="2 if `metrics` has an AUC"):
        EvaluationQuery(metrics="auc", classes=3)


def test_noise_that_hides_everything_says_so():
    query = query_of("accuracy, calibration")
    noise = LaplaceMechanism(sensitivity=2.0, epsilon=1e-3)
    sums = [np.full((1, 2), -50.0), np.full((4, 2), -50.0)]
    found = evaluation(query, sums, noise)
    others = [np.full((3, 2), -50.0), np.full((3, 3), -50.0)]
    numbers = evaluation(query_of("r2"), others, noise).r2()
    assert np.isnan(numbers.value) and numbers.high == 1
    assert numbers.low == -np.inf
    for rate in evaluation(
        query_of("confusion_matrix"), others[1:], noise
    ).recall():
        assert np.isnan(rate.value) and (rate.low, rate.high) == (0, 1)
    for of in ("records", "population"):
        accuracy = found.mean("accuracy", of=of)
        assert np.isnan(accuracy.value)
        assert (accuracy.low, accuracy.high) == (0.0, 1.0)
    error = found.calibration_error()
    assert (error.low, error.high) == (0.0, 1.0)
    assert "nan" in repr(found)


# Attack -----------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_an_audit_sees_epsilon_and_half_the_noise(neighbours):
    """The best test on the worst pair; a fresh seed passes with 99%."""
    query = query_of("accuracy, calibration", records=0)
    budget = PrivacyBudget(1.0, 0.0)
    mechanism = calibrate(query, budget, neighbours=neighbours)
    one = (np.ones((1, 1)), np.array([[0]]))
    other = (np.zeros((1, 1)), np.array([[1]]))

    def found(mechanism):
        return audit_objective(
            query,
            mechanism,
            budget,
            one,
            None if neighbours == "add_remove" else other,
            noise=NoiseSource(reproducible_noise=1),
            runs=20_000,
        )

    audit = found(mechanism)
    assert audit.reach == pytest.approx(1)
    assert 0.5 < audit.bound.epsilon <= 1.0
    halved = dataclasses.replace(mechanism, epsilon=2.0)
    assert found(halved).bound.epsilon > 1.0


def test_every_metric_is_asked_somewhere():
    assert set(itertools.chain(*ASKED)) == set(METRICS)
