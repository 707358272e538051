"""What a fit promises whose layers learn from releases of their own, of
PrivateEncoder and ChebyshevCRBM: proven and published."""

import itertools

import keras
import numpy as np
import pytest
from fit_checks import Reader, Unreadable, names
from pretrained_rooms import (
    DELTA,
    DPA,
    EPSILON,
    PCDBN,
    ROOMS,
    array,
    assert_equal,
    compiled,
    hidden_of,
    planned,
    private,
)

import keras_fm as fm
from keras_fm.callbacks import PrivateModel

pytestmark = [
    pytest.mark.usefixtures("untraced", "small_batches"),
    pytest.mark.full,
]
every_room = pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)


def statistic(release):
    """What was released, as the vector that its sensitivity is about."""
    return release.query.pack(list(release.statistics.values()), "l2")


def first_of(m, p, room):
    """The release of the first layer."""
    return p.releases[room.parts(m)[0].name]


# Proven: order, budget and plan --------------------

RANDOM = {"source": "random"}
FIRST, SECOND = "crbm_1 (patch moments)", "crbm_2 (patch moments)"
DENSE = "dense (moments)"
# Room, arguments, delta, releases and, where they are plain, their shares.
KINDS = {
    "one": (DPA, {}, DELTA, ["encoder_1 (moments)", "output"], None),
    "one, pure": (DPA, {}, 0.0, ["encoder_1 (moments)", "output"], None),
    "two": (
        DPA, {"hidden": (4, 3), "units": None}, DELTA,
        ["encoder_1 (moments)", "encoder_2 (moments)"], None,
    ),
    "mixed": (
        DPA, {"hidden": ((9, 3),)}, DELTA,
        ["encoder_1 (moments)", "output"], None,
    ),
    "moments twice": (
        DPA, {"rounds": 2, "units": None}, DELTA,
        ["encoder_1 (moments)", "encoder_1 (round 2)"], None,
    ),
    "random": (
        DPA, RANDOM, DELTA, ["encoder_1 (reconstruction)", "output"], None,
    ),
    "random twice, pure": (
        DPA, RANDOM | {"rounds": 2, "units": None}, 0.0,
        ["encoder_1 (round 1)", "encoder_1 (round 2)"], None,
    ),
    "random thrice": (
        DPA, RANDOM | {"rounds": 3, "hidden": (4, 3)}, DELTA,
        [*(f"encoder_{k} (round {r})" for k in (1, 2) for r in (1, 2, 3)),
         "output"], None,
    ),
    "labelled": (
        PCDBN, {}, 0.0, [FIRST, SECOND, DENSE, "output"],
        [0.05, 0.05, 0.3, 0.6],
    ),
    "labelled, with a delta": (
        PCDBN, {}, DELTA, [FIRST, SECOND, DENSE, "output"],
        [0.05, 0.05, 0.3, 0.6],
    ),
    "no dense": (
        PCDBN, {"dense": 0}, 0.0, [FIRST, SECOND, "output"],
        [0.05, 0.05, 0.9],
    ),
    "unlabelled": (PCDBN, {"units": None}, 0.0, [FIRST, SECOND], [0.5, 0.5]),
    "order 4": (
        PCDBN, {"maps": ((12, 3),), "moment_order": 4}, 0.0,
        [FIRST, DENSE, "output"], [0.05, 0.3, 0.65],
    ),
}  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
def test_releases_compose_to_the_budget_and_are_what_the_plan_said(kind):
    room, arguments, delta, wanted, shares = KINDS[kind]
    m, p = room.model(**arguments), private(Unreadable(), delta=delta)
    text = p.plan(m if "output" in wanted else room.view(m))
    plan = planned(p)
    assert not p.ledger.entries
    p.data = Reader(room.records())
    room.fit(m, room.records(), p)
    assert names(p) == [e.name for e in plan] == wanted
    for before, charged in zip(plan, p.ledger.entries):
        assert before.mechanism == charged.mechanism
        assert before.uses == charged.uses and before.uses in text
        assert before.notes == charged.notes
        assert f"{before.name} (proven)" in text
        assert charged.guarantee == "proven" and charged.private
    if shares and delta:
        found = [e.mechanism["noise_multiplier"] ** -2.0 for e in plan]
        np.testing.assert_allclose(np.divide(found, sum(found)), shares)
    elif shares:
        found = [e.mechanism["epsilon"] for e in plan]
        np.testing.assert_allclose(np.divide(found, EPSILON), shares)
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON * (1 + 1e-9)
    assert p.ledger.claimed_epsilon() == p.ledger.epsilon()
    assert set(p.releases) == {name.partition(" ")[0] for name in wanted}
    assert (p.release is not None) == ("output" in wanted)
    for layer in m.layers:
        if layer.name in p.releases:
            assert layer.is_released
            # Every part says what all of them cost.
            assert layer.ledger_json == p.ledger.to_json()
    # One pass for each.
    assert p.data.passes == len(wanted)


# Proven: no record moves a weight --------------------


@pytest.mark.parametrize(
    "room, arguments, fill",
    [
        (DPA, DPA.two, np.nan),
        (DPA, RANDOM | {"rounds": 2}, 0.0),
        (PCDBN, {}, 0.0),
        (PCDBN, {}, np.nan),
    ],
)
def test_traced_training_is_the_same_with_the_records_replaced(
    tmp_path, room, arguments, fill
):
    x, y = room.records()
    m = room.model(**arguments)
    p = private((x, y), start="current")
    m.fit(x, y, shuffle=False, callbacks=[p], verbose=0)
    m.save(tmp_path / "m.keras")
    begin = [w.copy() for w in m.get_weights()]
    m.fit(x, y, epochs=3, shuffle=False, callbacks=[p], verbose=0)
    other = keras.saving.load_model(tmp_path / "m.keras")
    other.fit(x * 0 + fill, y * 0, epochs=3, shuffle=False, verbose=0)
    moved = [
        w.path
        for w, b in zip(m.weights, begin)
        if np.abs(array(w) - b).max() > 1e-4
    ]
    # The output layer, and no variable of what was released before it.
    assert len(moved) == 2 and all("output" in path for path in moved)
    held, same = everything(m), everything(other)
    assert len(held) == len(same) > len(begin)
    for a, b in zip(held, same):
        np.testing.assert_array_equal(array(a), array(b))


def everything(model):
    """All variables, with those that layers hide: of their releases."""
    hidden = [
        variable
        for layer in model._flatten_layers()
        if hasattr(layer, "_hidden")
        for variable in layer._hidden.variables.values()
    ]
    return [*model.weights, *hidden]


# Proven: refusals before anything is charged --------------------


@pytest.mark.once
@every_room
def test_forms_do_not_mix(room):
    data, one = room.records(), room.one
    trainable = "is of the published form"
    room.refused(trainable, room.by_hand(room.part(guarantee="published")))
    # A model of the published form in a proven fit, before and after.
    for units in (3, None):
        m = room.published_model(units=units)
        room.refused(trainable, m)
    m = room.published_model()
    room.train(m, data, room.published_private(m, data), fit=False)
    assert all(part.is_perturbed for part in room.parts(m))
    for trains in (True, False):
        room.parts(m)[0].trainable = trains
        room.refused("carries published noise", m)
    # A model of the proven form, released or not, in a published fit.
    for units in (3, None):
        for m in (
            room.model(units, **one),
            room.fitted(units=units, **one)[0],
        ):
            p = PrivateModel(
                2.0, 0.0, data=data, guarantee=fm.Published(lot="data")
            )
            words = f"{room.kind} '.*' is of the proven form"
            with pytest.raises(ValueError, match=words):
                room.fit(m, data, p)
            with pytest.raises(ValueError, match=words):
                m.pretrain(data[0], p)
            assert not p.ledger.entries
            assert not any(part.is_perturbed for part in room.parts(m))


# Pre-training --------------------


@every_room
def test_pretraining_of_the_proven_form(room):
    data, m = room.records(), room.model(units=None, **room.two)
    with pytest.raises(ValueError, match="learn from a release only"):
        m.pretrain(data[0])
    if room is DPA:
        with pytest.raises(ValueError, match="`loss` is for the non-priv"):
            m.pretrain(data[0], private(data[0]), loss="mse")
    assert not any(part.is_released for part in room.parts(m))
    histories = m.pretrain(data[0], private(data[0]))
    # What it would log is the records' own: nothing is left of it.
    assert [h.history for h in histories] == [{"loss": [0.0]}]
    assert all(part.is_released for part in room.parts(m))
    assert not m.trainable_weights


@every_room
def test_the_first_layer_does_not_move_while_the_second_trains(
    room, monkeypatch
):
    x, _ = room.records()
    m = room.published_model(units=None, unprotected=True)
    kind, kept = type(room.view(m)), []
    fit = kind.fit

    def watched(self, *args, **kwargs):
        kept.append([part.get_weights() for part in room.parts(m)])
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(kind, "fit", watched)
    m.pretrain(x, epochs=1, optimizer=keras.optimizers.Adam(0.01))
    kept.append([part.get_weights() for part in room.parts(m)])

    def moved(fit, part):
        pairs = zip(kept[fit][part], kept[fit + 1][part])
        return [np.abs(u - v).max() > 1e-4 for u, v in pairs]

    for trained, part in itertools.product((0, 1), (0, 1)):
        assert moved(trained, part) == [trained == part] * 3


# Owners --------------------


def released(room, m, data, **unit):
    p = private(data, delta=DELTA, seed=5, unit=fm.Unit(**unit))
    room.fit(m, data if isinstance(data, tuple) else (data, data), p)
    return p


@pytest.mark.once
@pytest.mark.parametrize(
    "room, arguments",
    [
        (DPA, {"units": None}),
        (DPA, RANDOM),
        (PCDBN, PCDBN.one | {"units": None}),
        (PCDBN, PCDBN.one | {"moment_order": 4}),
    ],
)
def test_an_owner_of_many_records_counts_as_one(room, arguments):
    x, y = room.records()
    # More records than a batch has, so that the owner's is a long one.
    copies = np.full(100, 7)
    many = np.concatenate([np.arange(len(x)), copies])
    without = np.delete(np.arange(len(x)), 7)

    def run(rows, owners):
        m = room.model(**arguments)
        data = (x[rows], y[rows]) if arguments.get("units", 3) else x[rows]
        p = released(room, m, data, owners=owners)
        return p, statistic(first_of(m, p, room))

    # The first release: later ones see other filters. Equal noise cancels.
    _, base = run(without, without)
    owned, moved = run(many, many)
    plain, moved_more = run(many, None)
    bound = owned.ledger.entries[0].mechanism["sensitivity"]
    assert bound == plain.ledger.entries[0].mechanism["sensitivity"]
    # Rounding to the lattice moves the two apart by 2^-14 of it at most.
    distance = np.linalg.norm(moved - base)
    assert 0.3 * bound < distance <= bound * (1 + 2**-13)
    assert np.linalg.norm(moved_more - base) > 5 * bound


@pytest.mark.once
@pytest.mark.parametrize(
    "room, arguments, factors",
    [
        # Replacing an owner: two sums of squares, or two sums of anything.
        (DPA, {}, [2**0.5, 2]),
        (DPA, RANDOM | {"rounds": 2}, [2, 2, 2]),
        (PCDBN, PCDBN.two | {"moment_order": 4}, [2**0.5, 2**0.5, 2]),
    ],
)
def test_owners_and_reach_raise_the_sensitivity(room, arguments, factors):
    owners = np.arange(room.number) // 5

    def sensitivities(neighbours=None, **unit):
        p = private(
            Unreadable(),
            delta=DELTA,
            unit=fm.Unit(**unit),
            neighbours=neighbours,
        )
        text = p.plan(room.model(**arguments))
        reach = unit.get("reach")
        told = text.count(f"at most {reach} other units")
        assert told == (len(factors) if reach else 0)
        return np.array([e.mechanism["sensitivity"] for e in planned(p)])

    alone = sensitivities()
    replaced = sensitivities("replace_one")
    np.testing.assert_allclose(sensitivities(reach=1), alone + replaced)
    np.testing.assert_allclose(sensitivities(reach=3), alone + 3 * replaced)
    np.testing.assert_allclose(sensitivities(owners=owners), alone)
    all_replaced = sensitivities("replace_one", owners=owners)
    np.testing.assert_allclose(all_replaced, alone * factors)
    np.testing.assert_allclose(
        sensitivities(owners=owners, reach=2), alone + 2 * all_replaced
    )


# Published --------------------


@pytest.mark.once
@every_room
def test_a_second_published_fit_draws_and_charges_nothing(room):
    data, m, found = room.records(), room.published_model(), []
    p = room.published_private(m, data)
    for _ in range(2):
        room.train(m, data, p)
        noise = [v for e in m.layers if hasattr(e, "_hidden")
                 for v in hidden_of(e).values()]  # fmt: skip
        found.append(noise)
    assert len(p.ledger.entries) == 3
    assert_equal(*found)
    assert len(found[0]) == (6 if room is DPA else 4)


@pytest.mark.once
@every_room
def test_a_published_fit_without_pretraining_is_refused(room):
    """It once trained RBMs on the records without their noise."""
    data, m = room.records(), room.published_model()
    p, before = room.published_private(m, data), m.get_weights()
    with pytest.raises(ValueError, match=r"first: `model.pretrain\(x, priv"):
        room.train(m, data, p, pretrain=False)
    assert not p.ledger.entries
    parts = [*room.parts(m), m.get_layer("output")]
    assert not any(part.is_perturbed for part in parts)
    assert_equal(before, m.get_weights())


@pytest.mark.once
@every_room
def test_layers_are_pretrained_without_noise_in_a_twin_alone(room):
    data, m = room.records(), room.published_model()
    before = m.get_weights()
    for train in (
        lambda: m.pretrain(data[0], epochs=1),
        lambda: m.fit(*data, verbose=0),
    ):
        with pytest.raises(ValueError, match="has no release, so training it"):
            train()
    assert_equal(before, m.get_weights())
    twin = compiled(fm.models.unprotected_twin(m))
    assert type(twin) is type(m)
    parts = [*room.parts(twin), twin.get_layer("output")]
    assert all(part.unprotected for part in parts)
    twin.pretrain(data[0], epochs=1)
    twin.fit(*data, verbose=0)
    p = room.published_private(twin, data)
    for only in ({"pretrain": False}, {}):
        with pytest.raises(ValueError, match="built with `unprotected=True`"):
            room.train(twin, data, p, **only)
    assert not p.ledger.entries
    assert not any(part.is_perturbed for part in parts)
