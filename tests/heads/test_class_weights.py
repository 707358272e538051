"""Weights of classes: what they multiply, that no bound moves, what is said."""

import keras
import numpy as np
import pytest
from linear_records import records
from neighbours import Domain, check_sensitivity, extremal_of_outputs, to_ball

import keras_fm as fm
from keras_fm.heads import class_weights
from keras_fm.heads.cross_entropy import CrossEntropyQuery
from keras_fm.heads.gradient_query import GradientQuery

pytestmark = pytest.mark.once

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(800, 4)) / 4).astype("float32")
Y = (np.arange(800) < 100).astype(int)


def domain(outputs, weights, **kwargs):
    query = CrossEntropyQuery(
        num_features=3,
        num_outputs=outputs,
        feature_bound=1.7,
        class_weights=weights,
        **kwargs,
    )

    def inside(v):
        return np.append(to_ball(v[:3], 1.7, query.nonnegative, None), v[3:])

    def arguments(v):
        labels = np.floor(np.abs(v[3:])).astype(int)
        return v[None, :3], labels % max(2, outputs)

    return Domain(query, 4, inside, arguments)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize(
    "outputs, weights", [(1, (0.2, 1.0)), (3, (1.0, 0.0, 0.6))]
)
def test_no_neighbouring_pair_exceeds_a_bound(outputs, weights, nonnegative):
    found = domain(outputs, weights, nonnegative=nonnegative)
    extremal = list(extremal_of_outputs(found.query))
    check_sensitivity(found, extremal, [outputs, 7])
    # The search sees a weight that is a little too large.
    object.__setattr__(found.query, "class_weights", (1.05,) * len(weights))
    with pytest.raises(AssertionError):
        check_sensitivity(found, extremal, [outputs, 7])


@pytest.mark.parametrize("exact", [False, True])
def test_one_release_sums_weighted_records(exact):
    h, y = records()
    weights = (0.25, 1.0, 0.0)
    query = CrossEntropyQuery(
        num_features=4, num_outputs=3, class_weights=weights
    )
    found = query.accumulate(query.zero(), h, y, exact=exact)
    w = np.array(weights)[y][:, None]
    near = 1e-3 if exact else 1e-12
    np.testing.assert_allclose(
        np.triu(found[0]), np.triu((w * h).T @ h), atol=near
    )
    np.testing.assert_allclose(found[1], (w * h).T @ np.eye(3)[y], atol=near)
    assert "weight of its class (0.25, 1, 0)" in query.uses


@pytest.mark.parametrize("loss", ["cross_entropy", "crammer_singer"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_rounds_multiply_after_the_clip(outputs, loss):
    h, y = records(outputs=outputs)
    weights = (0.3, 1.0, 0.0)[: max(2, outputs)]
    made = [
        GradientQuery(
            num_features=4,
            num_outputs=outputs,
            clip=0.1,
            loss=loss,
            class_weights=given,
        )
        for given in (None, weights)
    ]
    at = RNG.normal(size=(4, outputs))
    for one in range(len(h)):
        plain, weighed = (
            q.total(*q.check_records(h[[one]], y[[one]]), at) for q in made
        )
        np.testing.assert_allclose(
            weighed, plain * weights[y[one]], atol=0.1 * 2.0**-22
        )
        assert np.linalg.norm(weighed) <= 0.1 * weights[y[one]]


def test_an_owner_is_clipped_after_the_weights():
    h, y = records()
    query = GradientQuery(
        num_features=4,
        num_outputs=3,
        clip=0.1,
        grouped=True,
        class_weights=(0.5, 1.0, 0.2),
    )
    made = query.check_records(h, y, owners=np.zeros(len(h)))
    assert np.linalg.norm(query.total(*made[:2], np.ones((4, 3)), made[2])) <= (
        0.1
    )


# A whole fit ------------------------------------------------------------------


def fitted(class_weight, budget=(50.0, 1e-6), rounds=None, x=X, y=Y, **kwargs):
    head = fm.layers.PrivateDense(
        1, class_weight=class_weight, rounds=rounds, name="head"
    )
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            fm.layers.NormalizationLayer(mode="ball"),
            head,
        ]
    )
    model.compile("sgd", fm.losses.TaylorCrossEntropy())
    private = fm.callbacks.PrivateModel(*budget, data=(x, y), **kwargs)
    plan = private.plan(model)
    model.fit(x, y, verbose=0, callbacks=[private])
    return model, private, plan


@pytest.mark.parametrize("rounds", [None, 3])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_balanced_classes_are_released_first(rounds, relation):
    """Counts of 100 and 700 are 8 deviations off once in 10^15 runs."""
    guarantee = fm.Proven(neighbours=relation)
    _, private, plan = fitted("balanced", rounds=rounds, guarantee=guarantee)
    counts, head = private.ledger.entries
    assert counts.name == class_weights.NAME and head.name == "head"
    assert plan.index(class_weights.NAME) < plan.index("head (proven)")
    noise = counts.build_mechanism().stddev
    assert noise < 8
    (common, rare) = private.release.query.class_weights
    assert rare == 1
    assert abs(common - 1 / 7) < 8 * noise * (1 / 700 + 100 / 700**2)
    assert f"of its class ({common:.4g}, 1)" in head.uses
    assert "weights of classes: released" in head.notes
    assert 49 < private.epsilon() <= 50


def test_balanced_classes_without_a_delta():
    _, private, _ = fitted("balanced", budget=(5.0, 0.0))
    counts, _ = private.ledger.entries
    assert counts.build_mechanism().epsilon == pytest.approx(0.05 * 5)
    assert private.epsilon() == pytest.approx(5)


def test_public_weights_cost_nothing_and_move_no_noise(tmp_path):
    model, private, _ = fitted({0: 0.5, 1: 4.0})
    _, plain, _ = fitted(None)
    (entry,), (other,) = private.ledger.entries, plain.ledger.entries
    assert entry.mechanism == other.mechanism
    assert "weights of classes: public, by declaration" in entry.notes
    assert private.release.query.class_weights == (0.125, 1.0)
    copied = keras.layers.deserialize(keras.layers.serialize(model.layers[-1]))
    assert copied.class_weight == (0.125, 1.0)
    found = fm.layers.PrivateDense(1, class_weight="balanced", name="head")
    found.build((None, 4))
    _, balanced, _ = fitted("balanced")
    path = tmp_path / "release.npz"
    balanced.release.save(path)
    found.learn(fm.Release.load(path), balanced.ledger)
    assert found.is_released


def test_noise_drawn_is_noise_charged():
    """Records that weigh nothing leave noise alone: 1,377 numbers, off by
    10 % less than once in a million runs."""
    x = np.ones((40, 50), "float32")
    _, private, _ = fitted({0: 0.0}, budget=(1, 1e-6), x=x, y=np.zeros(40))
    release = private.release
    drawn = release.query.pack(tuple(release.statistics.values()), "l2")
    assert drawn.size == 1377
    wanted = private.ledger.entries[0].build_mechanism().stddev
    assert drawn.std() == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"class_weight": "auto"}, '"balanced", or a dict from classes'),
        ({"class_weight": {2: 1.0}}, "classes, 0 to 1, to"),
        ({"class_weight": {0: -1.0}}, "at least 0"),
        ({"class_weight": {0: np.nan}}, "at least 0"),
        ({"class_weight": {0: 0.0, 1: 0.0}}, "the largest of"),
        ({"class_weight": [1.0]}, "a dict from classes"),
        (
            {"class_weight": "balanced", "loss": "binary_cross_entropy"},
            "no classes are predicted",
        ),
    ],
)
def test_what_are_no_weights_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fm.layers.PrivateDense(1, **arguments)


def test_queries_refuse_weights_above_one_and_public_features():
    for make in (CrossEntropyQuery, GradientQuery):
        with pytest.raises(ValueError, match=r"in \[0, 1\]"):
            make(num_features=2, num_outputs=1, class_weights=(1.0, 2.0))
    with pytest.raises(ValueError, match="must not be combined"):
        CrossEntropyQuery(
            num_features=2,
            num_outputs=1,
            class_weights=(1.0, 0.5),
            public_features=True,
        )
    guarantee = fm.Proven(neighbours="replace_label")
    with pytest.raises(ValueError, match="weighs features by labels"):
        fitted({0: 0.5}, guarantee=guarantee)
