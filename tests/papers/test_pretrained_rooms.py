"""What a fit promises whose layers learn from releases of their own, of
PrivateEncoder and ChebyshevCRBM: proven and published."""

import itertools
import zipfile

import keras
import numpy as np
import pytest
from fit_checks import Reader, Unreadable, names
from layer_checks import stored
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

# Compiled in tests of this name alone; see `untraced`.
TRACED = "traced"
pytestmark = pytest.mark.usefixtures("untraced", "small_batches")
every_room = pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)


def weights_of(layers):
    return [w for layer in layers for w in layer.get_weights()]


def statistic(release):
    """What was released, as the vector that its sensitivity is about."""
    return release.objective.pack(list(release.statistics.values()), "l2")


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
        assert before.reads == charged.reads and before.reads in text
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


@every_room
def test_an_ordinary_sequential_model(room):
    data = room.records()
    m, p = room.by_hand(room.part()), private(data)
    room.fit(m, data, p)
    assert names(p) == [f"part ({room.reads})", "output"]
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON
    if room is PCDBN:
        found = [e.mechanism["epsilon"] for e in p.ledger.entries]
        np.testing.assert_allclose(found, [0.05 * EPSILON, 0.95 * EPSILON])
    assert "weights of layer 'part': from its own release" in p.report()


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


# Proven: later fits --------------------


@pytest.mark.once
@every_room
def test_a_layer_whose_ledger_is_unknown_is_refused(room, tmp_path):
    data, m = room.records(), room.model(**room.two)
    with pytest.raises(OSError):
        room.fit(m, data, private(Reader(data, fails=2)))
    # The first layer is released, nothing else is.
    m.save(tmp_path / "m.keras")
    loaded = compiled(keras.saving.load_model(tmp_path / "m.keras"))
    first, second = room.parts(loaded)
    assert first.is_released and not second.is_released
    p = private(Unreadable())
    with pytest.raises(
        ValueError, match=f"'{first.name}' was released by another Private"
    ):
        room.fit(loaded, data, p)
    assert not p.ledger.entries
    # Its ledger continued: the rest of the budget is for the others.
    kept = first.get_weights()
    p = PrivateModel(fm.Ledger.from_json(first.ledger_json), data=data)
    wanted = [f"{layer.name} ({room.reads})" for layer in (first, second)]
    assert names(p) == wanted[:1]
    text = p.plan(loaded)
    assert wanted[0] not in text and wanted[1] in text
    room.fit(loaded, data, p)
    assert names(p) == [*wanted, "output"]
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON * (1 + 1e-9)
    assert_equal(kept, first.get_weights())
    # Nothing is left for a further reading, by whatever callback.
    rest = PrivateModel(
        fm.Ledger.from_json(p.ledger.to_json()), data=Unreadable()
    )
    rest.new_release = True
    with pytest.raises(fm.BudgetExceededError, match="Nothing was read"):
        room.fit(loaded, data, rest)


@pytest.mark.once
@pytest.mark.parametrize(
    "room, arguments, fails",
    [
        (DPA, DPA.two, 3),
        (DPA, RANDOM | {"rounds": 2}, 3),
        (PCDBN, {}, 2),
        (PCDBN, {}, 3),
        (PCDBN, {}, 4),
    ],
)
def test_a_crash_keeps_what_was_spent(room, arguments, fails):
    data = room.records()
    reader = Reader(data, fails=fails)
    m, p = room.model(**arguments), private(reader)
    p.plan(m)
    wanted = [e.name for e in planned(p)]
    parts = {layer.name: layer for layer in m.layers if layer.name in {
        name.partition(" ")[0] for name in wanted}}  # fmt: skip
    before = {name: layer.get_weights() for name, layer in parts.items()}
    with pytest.raises(OSError, match="disk"):
        room.fit(m, data, p)
    assert names(p) == wanted[: fails - 1]
    assert 0 < p.ledger.epsilon() < EPSILON
    missing = {name.partition(" ")[0] for name in wanted[fails - 1 :]}
    for name, layer in parts.items():
        assert layer.is_released == (name not in missing)
        moved = np.abs(layer.get_weights()[0] - before[name][0]).max() > 1e-6
        assert moved == (name not in missing)
    assert_equal(before["output"], parts["output"].get_weights())
    done = [layer for name, layer in parts.items() if name not in missing]
    kept = weights_of(done)
    room.fit(m, data, p)
    assert names(p) == wanted and reader.passes == len(wanted) + 1
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON * (1 + 1e-9)
    assert_equal(kept, weights_of(done))


# Proven: refusals before anything is charged --------------------


@pytest.mark.once
@pytest.mark.parametrize(
    "room, arguments",
    [(DPA, DPA.two), (DPA, RANDOM), (PCDBN, PCDBN.two)],
)
def test_bad_records_without_labels(room, arguments):
    x, _ = room.records()
    bad = x.copy()
    bad[100].flat[2] = np.nan
    m = room.model(units=None, **arguments)
    room.refused("NaN or infinite", m, bad)
    room.refused("must have shape", m, x[:, :5])


@pytest.mark.once
@every_room
def test_forms_do_not_mix(room):
    data, one = room.records(), room.one
    trainable = "is of the published form"
    room.refused(trainable, room.by_hand(room.part(trainable=True)))
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


@pytest.mark.once
@every_room
def test_layers_must_be_in_the_model_itself_and_called_once(room):
    shape = room.records(1)[0].shape[1:]
    nested = keras.Sequential([keras.Input(shape), room.part()], name="nested")
    words = f"{room.kind} 'part' must be in the model itself"
    room.refused(words, room.by_hand(nested))
    twice = room.part(shape[0] if room is DPA else 1)
    inputs = keras.Input(shape)
    flat = keras.layers.Flatten()(twice(twice(inputs)))
    features = fm.layers.NormalizationLayer()(flat)
    m = keras.Model(inputs, fm.layers.PrivateDense(3)(features))
    room.refused("'part' must be called once", compiled(m))


@pytest.mark.once
@every_room
def test_unsafe_layers_around(room):
    for body, match in (
        (
            fm.layers.RelevanceScaling(),
            "PrivateEncoder, ChebyshevCRBM and DPPCA layers or a "
            "RelevanceScaling layer, not both",
        ),
        (keras.layers.Dense(4), "trainable weights"),
        (fm.layers.NormalizationLayer(mode="batch"), "mixes records"),
        (keras.layers.BatchNormalization(), "mixes records"),
    ):
        room.refused(match, room.by_hand(room.part(), body=[body]))


# Proven: without labels, in every form --------------------


@every_room
def test_every_form_of_unlabelled_data_gives_the_same_release(room):
    x, _ = room.records()
    third = len(x) // 3

    class Py(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return (x[third * i : third * (i + 1)],)

    def generator():
        yield x[:70]
        yield x[70:], np.zeros(len(x) - 70)

    forms = [x, (x,), (x, x), Py(), generator]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        forms.append(tf.data.Dataset.from_tensor_slices(x).batch(64))
        forms.append(tf.data.Dataset.from_tensor_slices((x, x)).batch(64))
    found = []
    for data in forms:
        m, p = room.model(units=None, **room.one), private(data, seed=0)
        m.pretrain(x, p)
        assert len(names(p)) == 1
        found.append(statistic(first_of(m, p, room)))
    for moments in found[1:]:
        np.testing.assert_allclose(moments, found[0], atol=1e-3)


@pytest.mark.once
@pytest.mark.parametrize(
    "room, arguments", [(DPA, {}), (DPA, RANDOM), (PCDBN, {"dense": 0})]
)
def test_padding_of_the_last_batch_is_not_counted(room, arguments):
    for n in (1, 83, 1030):
        x, y = room.records(n)
        m, p = room.model(**arguments), private((x, y), 1e6)
        with np.errstate(all="ignore"):
            room.fit(m, (x, y), p)
        for layer in room.parts(m):
            release = p.releases[layer.name]
            if room is PCDBN:
                count = release.count()
            else:
                constant = layer.bias_feature
                if arguments:
                    constant = layer.code_features(np.zeros((1, 4)))[0, -1]
                count = release.quadratic[-1, -1] / constant**2
            # Noise is larger with a probability below 1e-18.
            assert count == pytest.approx(n, abs=0.1)


# Pre-training --------------------


@every_room
def test_pretraining_of_the_proven_form(room):
    data, m = room.records(), room.model(units=None, **room.two)
    with pytest.raises(ValueError, match="learn from a release only"):
        m.pretrain(data[0])
    if room is DPA:
        with pytest.raises(ValueError, match="`loss` belongs to the non-priv"):
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
@every_room
def test_owners_in_any_order_give_the_same_release(room):
    x, _ = room.records()
    owners = np.arange(len(x)) % 30
    order = np.random.default_rng(0).permutation(len(x))
    found = []
    for rows, ids in (
        (slice(None), owners),
        (slice(None), owners.astype(str)),
        (order, owners[order]),
    ):
        m = room.model(units=None, **room.one)
        p = released(room, m, x[rows], owners=ids)
        found.append(statistic(first_of(m, p, room)))
    for moments in found[1:]:
        np.testing.assert_allclose(moments, found[0], atol=1e-4)


@pytest.mark.once
@every_room
def test_owners_are_named(room):
    x, y = room.records()
    owners = np.arange(len(x)) // 5
    for unit, wanted in (
        ({"owners": owners}, "one owner with all its rows"),
        (
            {"owners": owners, "words": "one pupil in all waves"},
            "one owner with all its rows (ids given as `owners`), by "
            "declaration one pupil in all waves\n",
        ),
    ):
        p = private(
            (x, y), delta=DELTA, notes=("n = 300",), unit=fm.Unit(**unit)
        )
        room.fit(room.model(**room.one), (x, y), p)
        text = p.report()
        assert f"unit:       {wanted}" in text
        assert text.count("each owner's sum scaled back") == 2
        assert text.count("note:      n = 300") == 2
    p = released(room, room.model(**room.one), (x, y))
    assert "one record (one row" in p.report()


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
def test_the_published_plan_reads_nothing(room):
    class Counted(Unreadable):
        def __len__(self):
            return room.number

    data = Counted() if room.lot == "data" else Unreadable()
    m = room.published_model()
    p = room.published_private(m, (data, data))
    text = p.plan(m)
    assert text.count("(claimed)") == 3 and not p.ledger.entries
    lot = room.number if room.lot == "data" else room.lot
    assert f"lot_size {lot}" in text
    view = p.plan(m.autoencoder(1) if room is DPA else m.energy_model(1))
    assert view.count("(claimed)") == 1
    assert room.parts(m)[0].name in view
    assert view.splitlines()[1] == text.splitlines()[1]


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


@pytest.mark.once
@every_room
def test_wrong_published_shares(room):
    data, m = room.records(), room.published_model()
    p = room.published_private(m, data, shares=(0.5, 0.5))
    last = room.parts(m)[1].name
    for only in ({"pretrain": False}, {"fit": False}):
        with pytest.raises(
            ValueError, match=f"each of the perturbations.*'{last}', 'output'"
        ):
            room.train(m, data, p, **only)
    assert not p.ledger.entries
    assert not any(part.is_perturbed for part in room.parts(m))


@pytest.mark.parametrize(
    "room, arguments",
    [(DPA, {}), (PCDBN, {"form": "paper"}), (PCDBN, {"form": "code"})],
)
def test_published_noise_never_reaches_a_file(tmp_path, room, arguments):
    data, m = room.records(), room.published_model(**arguments)
    p = room.published_private(m, data, seed=None)
    room.train(m, data, p)
    m.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        archive.extractall(tmp_path)
    numbers = stored(tmp_path / "model.weights.h5", "fiu")
    layers = [*room.parts(m), m.get_layer("output")]
    secret = np.concatenate(
        [v.ravel() for e in layers for v in hidden_of(e).values()]
    )
    secret = secret[secret != 0]
    assert secret.size > 50 and not np.isin(secret, numbers).any()
    text = repr(m.variables) + str(m.get_config())
    large = secret[(np.abs(secret) > 5) & (np.abs(secret) < 1e4)]
    assert not any(f"{v:.4f}" in text for v in large)
    if room is PCDBN:
        assert large.size > 1
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert not any(part.is_perturbed for part in room.parts(loaded))
    if room is PCDBN:
        # Pre-trained RBMs rest in the loaded model too.
        assert not any(part.trainable for part in room.parts(loaded))
    x = data[0]
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), m.predict(x, verbose=0)
    )
