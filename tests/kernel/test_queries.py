"""What every query holds to that asks records once, whoever asks."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from neighbours import NORMS, contribution, labels_alone

from keras_fm.core.column_moments import ColumnMomentsQuery
from keras_fm.core.second_moment import SecondMomentQuery
from keras_fm.evaluation.evaluation_query import EvaluationQuery
from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.heads.squared_error import SquaredErrorQuery
from keras_fm.kernel.budget import PrivacyBudget
from keras_fm.kernel.ledger.ledger import BudgetExceededError, Ledger
from keras_fm.kernel.ledger.noisy_statistics import RELEASES, Release
from keras_fm.kernel.mechanisms import (
    GaussianMechanism,
    LaplaceMechanism,
    NoiseSource,
)
from keras_fm.kernel.release import calibrate, release
from keras_fm.papers.adlm.relevance_query import RelevanceQuery
from keras_fm.papers.dpa.reconstruction import ReconstructionQuery
from keras_fm.papers.pcdbn.patch_clusters import PatchClustersQuery
from keras_fm.papers.pcdbn.patch_moments import PatchMomentQuery
from keras_fm.preprocessing.column_histogram import ColumnHistogramQuery

N = 40


def rows(rng, *shape, bound=1.0):
    """Rows well inside a ball."""
    found = rng.normal(size=(N, *shape))
    lengths = np.linalg.norm(found, axis=-1, keepdims=True)
    return 0.9 * bound * found / np.maximum(lengths, bound)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A query, and arrays of records that it takes."""

    query: Any
    draw: Callable

    def records(self, seed=0):
        return self.draw(np.random.default_rng(seed))

    @property
    def relation(self):
        alone = labels_alone(self.query)
        return "replace_label" if alone else "replace_one"


def patches(rng):
    return (np.concatenate([rows(rng, 3, 2), np.full((N, 3, 1), 0.5)], -1),)


KINDS = {
    "classes": Kind(
        CrossEntropyQuery(num_features=4, num_outputs=3, quadratic_scale=0.7),
        lambda rng: (rows(rng, 4), rng.integers(0, 3, N)),
    ),
    "two classes": Kind(
        CrossEntropyQuery(num_features=4, num_outputs=1),
        lambda rng: (rows(rng, 4), rng.integers(0, 2, N)),
    ),
    "sparse records": Kind(
        CrossEntropyQuery(num_features=4, num_outputs=3, feature_l1_bound=1.5),
        lambda rng: (0.7 * rows(rng, 4), rng.integers(0, 3, N)),
    ),
    "labels alone": Kind(
        CrossEntropyQuery(num_features=4, num_outputs=3, public_features=True),
        lambda rng: (rows(rng, 4), rng.integers(0, 3, N)),
    ),
    "several labels": Kind(
        CrossEntropyQuery(num_features=4, num_outputs=3, independent=True),
        lambda rng: (rows(rng, 4), rng.integers(0, 2, (N, 3))),
    ),
    "numbers": Kind(
        SquaredErrorQuery(
            num_features=4, num_outputs=2, target_bounds=[(0, 1), (-3, 9)]
        ),
        lambda rng: (rows(rng, 4), rng.random((N, 2))),
    ),
    "reconstruction": Kind(
        ReconstructionQuery(num_features=4, num_visible=3, visible_bound=2.0),
        lambda rng: (rows(rng, 4), 0.5 + rows(rng, 3, bound=2.0)),
    ),
    "second moment": Kind(
        SecondMomentQuery(num_features=4, reach=2),
        lambda rng: (rows(rng, 4),),
    ),
    "relevance, L1": Kind(
        RelevanceQuery(num_features=5, ball="l1"),
        lambda rng: (rng.normal(size=(N, 5)),),
    ),
    "relevance, L2": Kind(
        RelevanceQuery(num_features=5, ball="l2"),
        lambda rng: (rng.normal(size=(N, 5)),),
    ),
    **{
        f"patches, order {order}": Kind(
            PatchMomentQuery(
                num_features=3, order=order, feature_bound=1.2, constant=0.5
            ),
            patches,
        )
        for order in (2, 3, 4)
    },
    "patches by direction": Kind(
        PatchClustersQuery(directions=2, components=3, clip=0.5),
        lambda rng: (rng.normal(size=(N, 2, 3)),),
    ),
    "histograms": Kind(
        ColumnHistogramQuery(num_columns=4, num_bins=5, reach=1),
        lambda rng: (rng.uniform(-1, 1, (N, 4)),),
    ),
    "columns": Kind(
        ColumnMomentsQuery(num_columns=4),
        lambda rng: (rng.uniform(-1, 1, (N, 4)),),
    ),
    "columns, places": Kind(
        ColumnMomentsQuery(num_columns=4, missing=True, reach=1),
        lambda rng: (rng.uniform(-1, 1, (N, 3, 4)),),
    ),
    "evaluation": Kind(
        EvaluationQuery(metrics="accuracy, confusion_matrix", classes=3),
        lambda rng: (rng.random((N, 1)), rng.integers(0, 9, (N, 1))),
    ),
    "evaluation of numbers": Kind(
        EvaluationQuery(
            metrics="mean_absolute_error, mean_squared_error", records=N
        ),
        lambda rng: (rng.random((N, 2)),),
    ),
}
every_kind = pytest.mark.parametrize("name", KINDS)


def part(records, chosen):
    return tuple(a[chosen] for a in records)


def summed(query, *batches):
    statistics = query.zero()
    for batch in batches:
        statistics = query.accumulate(statistics, *batch)
    return statistics


def as_numpy(value):
    casts = {bool: np.bool_, int: np.int64, float: np.float64}
    return casts.get(type(value), lambda v: v)(value)


@every_kind
def test_a_config_is_all_of_it(name):
    query = KINDS[name].query
    names = {field.name for field in dataclasses.fields(query)}
    others = {"grouped": True, "reach": 4}
    if labels_alone(query):
        # One label of one record is the unit.
        others = {"nonnegative": True}
    other = {key: others[key] for key in names & others.keys()}
    for each in (query, dataclasses.replace(query, **other)):
        config = json.loads(json.dumps(each.config()))
        assert type(query)(**config) == each
        # NumPy's numbers are taken, and not kept.
        given = {key: as_numpy(value) for key, value in config.items()}
        made = type(query)(**given)
        assert made == each
        kinds = {type(value) for value in made.config().values()}
        assert kinds <= {int, float, bool, str, tuple, type(None)}


@every_kind
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_batches_add_up_to_one_pass_in_float64(name, dtype):
    query = KINDS[name].query
    h, *others = KINDS[name].records()
    records = (h.astype(dtype), *others)
    whole = summed(query, records)
    cuts = (slice(0, 17), slice(17, 17), slice(17, 23), slice(23, N))
    parts = summed(query, *(part(records, cut) for cut in cuts))
    exact = summed(query, (records[0].astype(np.float64), *others))
    for found in (parts, exact):
        for a, b in zip(found, whole, strict=True):
            assert a.dtype == b.dtype == np.float64
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


@every_kind
@pytest.mark.parametrize("norm", NORMS)
def test_what_a_record_adds_does_not_depend_on_the_others(name, norm):
    query, records = KINDS[name].query, KINDS[name].records()

    def vector(chosen):
        return query.pack(summed(query, part(records, chosen)), norm)

    one, other = (contribution(query, part(records, [i]), norm) for i in (0, 1))
    rest = np.arange(2, N)
    with_one, with_other = (vector(np.r_[i, rest]) for i in (0, 1))
    np.testing.assert_allclose(with_one - vector(rest), one, atol=1e-11)
    np.testing.assert_allclose(with_one - with_other, one - other, atol=1e-11)


@every_kind
@pytest.mark.parametrize("norm", NORMS)
def test_a_vector_is_a_copy_and_holds_everything(name, norm):
    query = KINDS[name].query
    statistics = summed(query, KINDS[name].records())
    vector = query.pack(statistics, norm)
    assert vector.shape == (query.size,) and vector.dtype == np.float64
    found = query.unpack(vector.copy(), norm)
    assert tuple(a.shape for a in found) == query.shapes
    assert len(found) == len(query.names)
    np.testing.assert_allclose(query.pack(found, norm), vector, rtol=1e-13)
    # A release adds its noise in place: not to the sums.
    kept = [a.copy() for a in statistics]
    vector += 1.0
    for a, b in zip(statistics, kept):
        np.testing.assert_array_equal(a, b)


# A release ------------------------------------------------------------------


def ledger_of(name, delta):
    relation = KINDS[name].relation
    return Ledger(PrivacyBudget(1.0, delta), neighbours=relation)


def released(query, batches, ledger, **kwargs):
    mechanism = calibrate(query, ledger.budget, neighbours=ledger.neighbours)
    return release(
        query,
        batches,
        **{
            "mechanism": mechanism,
            "ledger": ledger,
            "name": "part",
            "noise": NoiseSource(1),
            **kwargs,
        },
    )


def untouched():
    pytest.fail("the records were read")
    yield


@every_kind
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_release_is_charged_once_and_kept_in_a_file(name, delta, tmp_path):
    query, records = KINDS[name].query, KINDS[name].records()
    ledger = ledger_of(name, delta)
    halves = (part(records, slice(i, i + N // 2)) for i in (0, N // 2))
    found = released(query, halves, ledger, noise=NoiseSource(), notes=["40"])
    assert type(found) is RELEASES[type(query)]
    (entry,) = ledger.entries
    assert entry.name == "part" and entry.guarantee == "proven"
    assert entry.uses == query.uses and entry.proof == query.proof
    assert entry.notes == ("40",) and entry.private and found.private
    assert entry.neighbours == found.neighbours == KINDS[name].relation
    assert entry.build_mechanism() == found.mechanism
    norm = found.mechanism.norm
    assert found.mechanism.sensitivity == query.sensitivity(
        norm, neighbours=KINDS[name].relation
    )
    assert ledger.epsilon() == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(BudgetExceededError):
        released(query, untouched(), ledger)
    assert ledger.entries == (entry,)
    found.save(tmp_path / "release")
    loaded = Release.load(tmp_path / "release")
    assert type(loaded) is type(found) and repr(loaded) == repr(found)
    for field in ("query", "mechanism", "neighbours", "private"):
        assert getattr(loaded, field) == getattr(found, field)
    assert loaded.statistics.keys() == found.statistics.keys()
    for key, values in found.statistics.items():
        np.testing.assert_array_equal(loaded.statistics[key], values)


@every_kind
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_refused_before_the_charge(name, bad):
    query, ledger = KINDS[name].query, ledger_of(name, 1e-5)
    good, spoiled = KINDS[name].records(), KINDS[name].records(1)
    if name == "norms" and bad == np.inf:
        pytest.skip("as long as can be: counted at the end")
    if name == "columns, places" and np.isnan(bad):
        pytest.skip("missing: not counted")
    spoiled[0].flat[-2] = bad
    with pytest.raises(ValueError, match="finite|Norms must be numbers"):
        released(query, [good, spoiled], ledger)
    assert ledger.entries == ()


@every_kind
def test_less_noise_than_the_sensitivity_asks_for_is_refused(name):
    query, ledger = KINDS[name].query, ledger_of(name, 1e-5)
    l1, l2 = (
        query.sensitivity(norm, neighbours=KINDS[name].relation) * (1 - 1e-6)
        for norm in ("l1", "l2")
    )
    for weak in (
        LaplaceMechanism(sensitivity=l1, epsilon=0.1),
        GaussianMechanism(sensitivity=l2, noise_multiplier=9.0),
    ):
        with pytest.raises(ValueError, match="sensitivity .* is below"):
            released(query, untouched(), ledger, mechanism=weak)
    assert ledger.entries == ()
