"""What a fit with PrivateEncoder layers promises: proven and published."""

import functools
import zipfile

import keras
import numpy as np
import pytest
from fit_checks import Reader, Unreadable, names

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.papers.dpa import claims

EPSILON, DELTA, N, D = 3.0, 1e-5, 300, 6


# Compiled in tests of this name alone; see `untraced`.
TRACED = "traced"
pytestmark = pytest.mark.usefixtures("untraced")


@functools.cache
def _records(n, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.uniform(0, 0.3, size=(n, D)).astype("float32")
    x[np.arange(n), y] += 0.7
    x[:, 3] = x[:, 0]
    return x, y


def records(n=N, seed=0):
    x, y = _records(n, seed)
    return x.copy(), y.copy()


def array(x):
    return keras.ops.convert_to_numpy(x)


def model(hidden=(4,), units=3, optimizer="adam", **kwargs):
    keras.utils.set_random_seed(1)
    if kwargs.get("guarantee") != "published":
        kwargs = {"input_bound": 1.5} | kwargs
    m = fm.models.DeepPrivateAutoencoder((D,), hidden, units, **kwargs)
    if units:
        compiled(m, optimizer)
    return m


def compiled(m, optimizer="adam"):
    m.compile(optimizer, fm.losses.TaylorCrossEntropy(), metrics=["accuracy"])
    return m


def by_hand(encoder=None, body=(), units=3):
    """Encoders and output layer of an ordinary sequential model."""
    keras.utils.set_random_seed(1)
    return compiled(
        keras.Sequential(
            [
                keras.Input((D,)),
                encoder
                or fm.layers.PrivateEncoder(4, input_bound=1.5, name="encoder"),
                *body,
                fm.layers.NormalizationLayer(),
                fm.layers.PrivateDense(units, name="output"),
            ]
        )
    )


def private(data, epsilon=EPSILON, delta=0.0, seed=None, notes=(), **proven):
    # Pure epsilons add up in no time; privacy losses take a while.
    return PrivateModel(
        fm.PrivacyBudget(epsilon, delta),
        data,
        fm.Proven(**proven),
        notes=notes,
        reproducible_noise=seed,
    )


def fit(m, data, p, epochs=1, **kwargs):
    """One fit: of the model, or of its encoders if it has no labels."""
    x, y = data
    if getattr(m, "_arguments", {}).get("units", 3) is None:
        return m.pretrain(x, p)
    kwargs = {"batch_size": 100, "verbose": 0} | kwargs
    return m.fit(x, y, epochs=epochs, callbacks=[p], **kwargs)


def fitted(epsilon=EPSILON, callback=None, **kwargs):
    data = records()
    m = model(**kwargs)
    p = private(data, epsilon, **(callback or {}))
    fit(m, data, p)
    return m, p


# Proven: order, budget and plan --------------------

HEAD = ["output"]
KINDS = {
    "one": ({}, ["encoder_1 (moments)"]),
    "two": ({"hidden": (4, 3)}, ["encoder_1 (moments)",
                                 "encoder_2 (moments)"]),
    "mixed": ({"hidden": ((9, 3),)}, ["encoder_1 (moments)"]),
    "moments twice": ({"rounds": 2}, ["encoder_1 (moments)",
                                      "encoder_1 (round 2)"]),
    "random": ({"source": "random"}, ["encoder_1 (reconstruction)"]),
    "random twice": (
        {"source": "random", "rounds": 2},
        ["encoder_1 (round 1)", "encoder_1 (round 2)"],
    ),
    "random thrice": (
        {"source": "random", "rounds": 3, "hidden": (4, 3)},
        [f"encoder_{k} (round {r})" for k in (1, 2) for r in (1, 2, 3)],
    ),
}  # fmt: skip
# With an output layer on top, or without labels.
EVERY_KIND = [
    ("one", 3),
    ("two", None),
    ("mixed", 3),
    ("moments twice", None),
    ("random", 3),
    ("random twice", None),
    ("random thrice", 3),
]


@functools.cache
def planned_and_fitted(kind, units, delta=DELTA):
    """A plan made without reading, and the fit it belongs to. What the
    tests do afterwards costs nothing and changes no encoder."""
    m = model(units=units, **KINDS[kind][0])
    p = private(Unreadable(), delta=delta)
    text = p.plan(m if units else m.autoencoder())
    plan = p._make_plan().entries()
    assert not p.ledger.entries
    p.data = Reader(records())
    fit(m, records(), p)
    return m, p, text, plan


@pytest.mark.parametrize(
    "kind, units, delta",
    [
        *((*kind, DELTA) for kind in EVERY_KIND),
        ("one", 3, 0.0),
        ("random twice", None, 0.0),
    ],
)
@pytest.mark.once
def test_releases_compose_to_the_budget_and_are_what_the_plan_said(
    kind, units, delta
):
    wanted = KINDS[kind][1]
    m, p, text, plan = planned_and_fitted(kind, units, delta)
    wanted = wanted + HEAD if units else wanted
    assert names(p) == wanted
    assert [e.name for e in plan] == wanted
    for planned, charged in zip(plan, p.ledger.entries):
        assert planned.mechanism == charged.mechanism
        assert planned.reads == charged.reads and planned.reads in text
        assert planned.notes == charged.notes
        assert f"{planned.name} (proven)" in text
        assert charged.guarantee == "proven" and charged.private
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON * (1 + 1e-9)
    assert p.ledger.claimed_epsilon() == p.ledger.epsilon()
    assert set(p.releases) == {e.name for e in m.encoders} | (
        {"output"} if units else set()
    )
    assert (p.release is not None) == bool(units)
    for encoder in m.encoders:
        assert encoder.is_released
        # Every part says what all of them cost.
        assert encoder.ledger_json == p.ledger.to_json()


@pytest.mark.once
def test_shares():
    inverse = []
    for shares in (None, (0.1, 0.2, 0.7)):
        m, p = fitted(
            hidden=(4, 3), callback={"shares": shares, "delta": DELTA}
        )
        spent = [
            e.mechanism["noise_multiplier"] ** -2.0 for e in p.ledger.entries
        ]
        inverse.append(np.array(spent) / np.sum(spent))
    np.testing.assert_allclose(inverse[0], [0.15, 0.15, 0.7])
    np.testing.assert_allclose(inverse[1], [0.1, 0.2, 0.7])
    p = private(Unreadable(), shares=(0.3, 0.7))
    with pytest.raises(
        ValueError, match=r"each of the 3 releases.*'encoder_2 \(moments\)'"
    ):
        p.plan(model(hidden=(4, 3)))


@pytest.mark.once
def test_rounds_share_what_their_encoder_gets():
    kwargs = {"hidden": (4, 3), "source": "random", "rounds": 2}
    m, p = fitted(callback={"delta": DELTA}, **kwargs)
    spent = np.array(
        [e.mechanism["noise_multiplier"] ** -2.0 for e in p.ledger.entries]
    )
    np.testing.assert_allclose(spent / spent.sum(), [0.075] * 4 + [0.7])


@pytest.mark.parametrize("source", ["moments", "random"])
@pytest.mark.once
def test_sensitivities_by_hand(source):
    for neighbours, factor in (("add_remove", 1), ("replace_one", 2**0.5)):
        p = private(records(), delta=DELTA, neighbours=neighbours)
        m = model(units=None, source=source, rounds=2)
        p.plan(m.autoencoder())
        first, second = p._make_plan().entries()
        layer = m.encoders[0]
        moments = layer.input_bound**2 + layer.bias_feature**2
        c, t = layer.code_bound, layer.input_bound
        # alpha = C / T: A and S weigh the same, C T each.
        decoder = 2**0.5 * c * t
        if neighbours == "replace_one":
            alpha = c / t
            s = min(alpha**2 * t**2 / 2, c**2)
            decoder = np.sqrt(
                2 * (c**4 - s**2) / alpha**2 + 2 * c**2 * t**2 + 2 * s * t**2
            )
        wanted = moments * factor if source == "moments" else decoder
        assert first.mechanism["sensitivity"] == pytest.approx(wanted)
        assert second.mechanism["sensitivity"] == pytest.approx(decoder)
        assert first.neighbours == neighbours


def test_an_ordinary_sequential_model():
    data = records()
    m, p = by_hand(), private(data)
    fit(m, data, p)
    assert names(p) == ["encoder (moments)", "output"]
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON
    assert "weights of layer 'encoder': from its own release" in p.report()


# Proven: no record moves a weight --------------------


@pytest.mark.parametrize("kind, fill", [("two", np.nan), ("random twice", 0.0)])
def test_traced_training_is_the_same_with_the_records_replaced(
    tmp_path, kind, fill
):
    x, y = records()
    m = model(**KINDS[kind][0])
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
    # The output layer, and no variable of an encoder.
    assert len(moved) == 2 and all("output" in path for path in moved)
    assert len(m.variables) == len(other.variables) > len(begin)
    for a, b in zip(m.variables, other.variables):
        np.testing.assert_array_equal(array(a), array(b))


def test_the_released_model_is_made_of_its_releases_alone():
    """The encoder is a function of the released moments and constants."""
    m, p = fitted(units=None)
    layer, release = m.encoders[0], p.releases["encoder_1"]
    twin = type(layer).from_config(layer.get_config())
    twin.build((None, D))
    constant = layer.bias_feature
    mean, directions, variances = release.principal(D, constant)
    edge = release.noise_edge() / release.moments(constant)[2]
    twin.set_principal(
        mean, directions, variances, int(np.sum(variances > edge))
    )
    for a, b in zip(layer.get_weights(), twin.get_weights()):
        np.testing.assert_array_equal(a, b)


def test_much_budget_gives_the_principal_components():
    x, _ = records()
    m, p = fitted(1e5, units=None, hidden=(3,))
    variances, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
    kernel = m.encoders[0].get_weights()[0]
    kernel = kernel / np.linalg.norm(kernel, axis=0)
    overlap = np.abs(np.sum(kernel * vectors[:, ::-1][:, :3], axis=0))
    np.testing.assert_allclose(overlap, 1, atol=1e-2)
    error = np.mean((m.reconstruct(x) - x) ** 2)
    assert error < 1.05 * variances[:3].sum() / D


@pytest.mark.parametrize(
    "rounds, form",
    [(1, "squared_error"), (1, "cross_entropy"), (2, "squared_error")],
)
def test_coefficients_are_those_of_the_last_rounds_codes(rounds, form):
    x, y = records()
    encoder = fm.layers.PrivateEncoder(
        4, source="random", rounds=rounds, input_bound=1.5, form=form,
        gain=0.3, name="encoder",
    )  # fmt: skip
    m, p = by_hand(encoder), private((x, y), 1e6, DELTA)
    start = encoder.get_weights()[0]
    fit(m, (x, y), p)
    assert np.array_equal(start, encoder.get_weights()[0]) == (rounds == 1)
    release = p.releases["encoder"]
    h = encoder.code_features(array(encoder(x)))
    centre = 0.5 if form == "cross_entropy" else 0.0
    # Sums over 300 records of order 300; noise of about 1e-2.
    np.testing.assert_allclose(release.quadratic, h.T @ h, atol=0.05)
    np.testing.assert_allclose(release.linear, h.T @ (x - centre), atol=0.05)
    twin = type(encoder).from_config(encoder.get_config())
    twin.build((None, D))
    weights = release.minimise(p.guarantee.ridge_factor)[1]
    twin.set_decoder(weights / (4 if form == "cross_entropy" else 1), centre)
    for a, b in zip(encoder.get_weights()[2:], twin.get_weights()[2:]):
        np.testing.assert_array_equal(a, b)
    if rounds == 1:  # few codes are scaled back
        error = np.mean((array(encoder.decode(encoder(x))) - x) ** 2)
        assert error < 0.3 * np.var(x)


def test_visible_inputs_of_a_released_encoder():
    x, y = records()
    for source in ("moments", "random"):
        encoder = fm.layers.PrivateEncoder(
            6, source=source, visible=(3, 5), input_bound=1.5, name="encoder"
        )
        m, p = by_hand(encoder), private((x, y), 1e6)
        fit(m, (x, y), p)
        found = array(encoder.decode(encoder(x)))
        assert found.shape == (N, 2)
        assert np.mean((found - x[:, 3:5]) ** 2) < 0.05 * np.var(x[:, 3:5])


# Proven: later fits --------------------


@pytest.mark.once
def test_an_encoder_whose_ledger_is_unknown_is_refused(tmp_path):
    data = records()
    m = model()
    with pytest.raises(OSError):
        fit(m, data, private(Reader(data, fails=2)))
    # The encoder is released, the output layer is not.
    m.save(tmp_path / "m.keras")
    loaded = compiled(keras.saving.load_model(tmp_path / "m.keras"))
    p = private(Unreadable())
    with pytest.raises(
        ValueError, match="'encoder_1' was released by another PrivateModel"
    ):
        fit(loaded, data, p)
    assert not p.ledger.entries
    # Its ledger continued: the rest of the budget is for the output layer.
    encoder = loaded.encoders[0]
    kept = encoder.get_weights()
    p = PrivateModel(fm.Ledger.from_json(encoder.ledger_json), data=data)
    assert p.ledger.entries[0].name == "encoder_1 (moments)"
    assert "encoder_1 (moments)" not in p.plan(loaded)
    fit(loaded, data, p)
    assert names(p) == ["encoder_1 (moments)", "output"]
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON
    for a, b in zip(kept, encoder.get_weights()):
        np.testing.assert_array_equal(a, b)
    # Nothing is left for a third reading, by whatever callback.
    rest = PrivateModel(fm.Ledger.from_json(p.ledger.to_json()), Unreadable())
    rest.new_release = True
    with pytest.raises(fm.BudgetExceededError, match="Nothing was read"):
        fit(loaded, data, rest)


@pytest.mark.once
def test_a_ledger_that_is_continued_keeps_its_relation_and_unit():
    _, p = fitted(units=None)
    for guarantee, match in (
        (fm.Proven(neighbours="replace_one"), "`neighbours` is that of the"),
        (fm.Proven(unit=fm.Unit(words="a user")), "`unit` is that of the"),
    ):
        with pytest.raises(ValueError, match=match):
            PrivateModel(p.ledger, records(), guarantee)
    assert PrivateModel(p.ledger, data=records()).ledger is p.ledger


# Proven: crashes --------------------


@pytest.mark.parametrize("kind", ["two", "random twice"])
@pytest.mark.once
def test_a_crash_in_the_last_pass_keeps_what_was_spent(kind):
    data = records()
    encoders = KINDS[kind][1]
    reader = Reader(data, fails=len(encoders) + 1)
    m = model(**KINDS[kind][0])
    head = m.get_layer("output").get_weights()
    p = private(reader)
    with pytest.raises(OSError, match="disk"):
        fit(m, data, p)
    assert names(p) == encoders
    spent = p.ledger.epsilon()
    assert 0 < spent < EPSILON
    for a, b in zip(head, m.get_layer("output").get_weights()):
        np.testing.assert_array_equal(a, b)
    kept = [w for e in m.encoders for w in e.get_weights()]
    fit(m, data, p)
    assert names(p) == encoders + HEAD
    assert reader.passes == len(encoders) + 2
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON
    for a, b in zip(kept, (w for e in m.encoders for w in e.get_weights())):
        np.testing.assert_array_equal(a, b)


@pytest.mark.once
def test_a_crash_between_rounds_leaves_encoder_and_decoder_of_one_round():
    data = records()
    reader = Reader(data, fails=2)
    m = model(units=None, source="random", rounds=2)
    start = m.encoders[0].get_weights()[0]
    p = private(reader)
    with pytest.raises(OSError, match="disk"):
        fit(m, data, p)
    assert names(p) == ["encoder_1 (round 1)"]
    np.testing.assert_array_equal(m.encoders[0].get_weights()[0], start)
    fit(m, data, p)  # what was released is used
    assert reader.passes == 2 and len(p.ledger.entries) == 1


# Proven: refusals before anything is charged --------------------


def refused(match, m, data=None, fitted_on=None, **kwargs):
    p = private(records() if data is None else data, **kwargs)
    with pytest.raises(ValueError, match=match):
        fit(m, fitted_on or records(), p)
    assert not p.ledger.entries, "something was charged"
    for layer in m._flatten_layers():
        assert not getattr(layer, "is_released", False)


@pytest.mark.parametrize("kind", ["two", "random"])
@pytest.mark.once
def test_bad_records_without_labels(kind):
    kwargs = KINDS[kind][0]
    x, _ = records()
    bad = x.copy()
    bad[5, 2] = np.nan
    refused("NaN or infinite", model(units=None, **kwargs), bad)
    refused("must have shape", model(units=None, **kwargs), x[:, :5])


@pytest.mark.once
def test_records_outside_the_public_bound():
    x, y = records()
    tight = fm.layers.PrivateEncoder(4, input_bound=0.5, name="encoder")
    refused("outside the public L2 bound", by_hand(tight))
    clipped = fm.layers.PrivateEncoder(
        4, input_bound=0.5, clip=True, name="encoder"
    )
    m, p = by_hand(clipped), private((x, y), 1e6)
    fit(m, (x, y), p)
    # No record adds more than the squared bound.
    trace = np.trace(p.releases["encoder"].quadratic)
    assert trace == pytest.approx(N * clipped.moment_bound**2, rel=1e-3)


@pytest.mark.once
def test_forms_do_not_mix():
    trainable = fm.layers.PrivateEncoder(
        4, tied=True, trainable=True, name="encoder"
    )
    refused("'encoder'.*has trainable weights", by_hand(trainable))
    data = records()
    m = model(guarantee="published")
    p = PrivateModel(2.0, data, m.guarantee())
    m.pretrain(data[0], p, epochs=1)
    assert m.encoders[0].is_perturbed
    for trains in (True, False):
        m.encoders[0].trainable = trains
        refused("carries published noise", m)
    # And a model of the proven form, released or not, in a published fit.
    for m in (model(), model(units=None)):
        p = PrivateModel(2.0, data, fm.Published(lot="data"))
        with pytest.raises(
            ValueError, match="PrivateEncoder 'encoder_1' is of the proven form"
        ):
            fit(m, data, p)
        assert not p.ledger.entries and not m.encoders[0].is_perturbed
    m, _ = fitted()
    p = PrivateModel(2.0, data, fm.Published(lot="data"))
    with pytest.raises(ValueError, match="proven"):
        fit(m, data, p)
    m, _ = fitted(units=None)
    with pytest.raises(ValueError, match="is of the proven form"):
        fit(m, data, p)
    assert not p.ledger.entries


@pytest.mark.once
def test_encoders_must_be_in_the_model_itself_and_called_once():
    encoder = fm.layers.PrivateEncoder(4, input_bound=1.5, name="encoder")
    nested = keras.Sequential([keras.Input((D,)), encoder], name="nested")
    refused("'encoder' must be in the model itself", by_hand(nested))
    twice = fm.layers.PrivateEncoder(D, input_bound=1.5, name="encoder")
    inputs = keras.Input((D,))
    features = fm.layers.NormalizationLayer()(twice(twice(inputs)))
    m = keras.Model(inputs, fm.layers.PrivateDense(3)(features))
    refused("'encoder' must be called once", compiled(m))


@pytest.mark.once
def test_relevance_scaling_and_encoders_exclude_each_other():
    refused(
        "PrivateEncoder, ChebyshevCRBM and DPPCA layers or a "
        "RelevanceScaling layer, not both",
        by_hand(body=[fm.layers.RelevanceScaling()]),
    )


@pytest.mark.once
def test_unsafe_layers_around_an_encoder():
    refused("trainable weights", by_hand(body=[keras.layers.Dense(4)]))
    refused("mixes records", by_hand(body=[
        fm.layers.NormalizationLayer(mode="batch")]))  # fmt: skip


# Proven: without labels --------------------


def test_every_form_of_unlabelled_data_gives_the_same_release():
    x, _ = records()

    class Py(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return (x[100 * i : 100 * i + 100],)

    def generator():
        yield x[:70]
        yield x[70:], np.zeros(N - 70)

    forms = [x, (x,), (x, x), Py(), generator]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        forms.append(tf.data.Dataset.from_tensor_slices(x).batch(64))
        forms.append(tf.data.Dataset.from_tensor_slices((x, x)).batch(64))
    found = []
    for data in forms:
        m, p = model(units=None), private(data, seed=0)
        m.pretrain(x, p)
        assert names(p) == ["encoder_1 (moments)"]
        found.append(p.releases["encoder_1"].quadratic)
    for quadratic in found[1:]:
        np.testing.assert_allclose(quadratic, found[0], atol=1e-3)


@pytest.mark.once
def test_one_label_less_is_not_enough_for_a_labelled_model():
    x, _ = records()
    refused("x, y", model(), x)


@pytest.mark.once
def test_padding_of_the_last_batch_is_not_counted():
    for n in (1, 1030):
        x, y = records(n)
        for source in ("moments", "random"):
            p = private((x, y), 1e6)
            m = by_hand(fm.layers.PrivateEncoder(
                4, source=source, input_bound=1.5, name="encoder",
            ))  # fmt: skip
            with np.errstate(all="ignore"):
                fit(m, (x, y), p)
            corner = p.releases["encoder"].quadratic[-1, -1]
            layer = m.layers[0]
            constant = layer.bias_feature
            if source == "random":
                constant = layer.code_features(np.zeros((1, 4)))[0, -1]
            assert corner == pytest.approx(n * constant**2, abs=0.02)


# Seeds and files --------------------


GOLDEN = [
    [81.19749, 27.47918, 28.75867],
    [0.59961, -0.0297, 0.17119, 0.55401],
    [2.24833, 5.51086, 1.76961, -8.40687, 5.565],
    [30.69307, -45.20538, 15.84586, 43.11348, -40.89389, -65.22897],
]
GOLDEN_RANDOM = [-81.90842, -60.66552, -41.84449]


SEEDED = {"seed": 0, "delta": DELTA}


def test_releases_agree_between_backends():
    # Computed once on the TensorFlow backend by the lines below.
    m, p = fitted(20.0, hidden=(4, (5, 3)), callback=SEEDED)
    assert p.ledger.epsilon() == np.inf and "NOT PRIVATE" in p.report()
    first, second = m.encoders
    found = [
        p.releases["encoder_1"].quadratic[0, :3],
        first.get_weights()[0][0],
        second.get_weights()[0][0],
        p.release.linear[:2].ravel(),
    ]
    for a, b in zip(found, GOLDEN):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    random = fitted(20.0, source="random", rounds=2, callback=SEEDED)[1]
    np.testing.assert_allclose(
        random.releases["encoder_1"].linear[0, :3], GOLDEN_RANDOM, atol=1e-3
    )


def test_a_saved_model_holds_no_raw_statistic(tmp_path):
    x, _ = records()
    m, p = fitted(units=None, hidden=(6,))
    m.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        archive.extract("model.weights.h5", tmp_path)
    import h5py

    stored = []
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file.visititems(
            lambda _, v: (
                stored.append(np.ravel(v))
                if isinstance(v, h5py.Dataset) and v.dtype.kind == "f"
                else None
            )
        )
    # Kernel, bias and the decoder's two; the release itself is not kept.
    assert sum(v.size for v in stored) == 2 * 36 + 2 * 6
    raw = m.encoders[0].augment(x).astype("float64")
    raw = (raw.T @ raw).ravel()
    stored = np.concatenate(
        [*stored, p.releases["encoder_1"].quadratic.ravel()]
    )
    for scale in (1.0, N):
        gaps = np.abs(stored[:, None].astype("float64") - raw / scale)
        # By chance one value of these symmetric arrays, counted four times,
        # now and then; four of them with a probability below 1e-9. What is
        # stored, all of them.
        assert np.sum(gaps < 1e-6 / scale) <= 12 < len(raw)


# Owners --------------------


def released(m, data, owners=None, epsilon=EPSILON, words=None, notes=()):
    unit = fm.Unit(owners=owners, words=words)
    p = private(data, epsilon, DELTA, 5, notes, unit=unit)
    x = data[0] if isinstance(data, tuple) else data
    fit(m, (x, data[1] if isinstance(data, tuple) else x), p)
    return p


@pytest.mark.parametrize("kind, units", [("one", None), ("random", 3)])
@pytest.mark.once
def test_an_owner_of_many_records_counts_as_one(kind, units):
    x, y = records()
    owners = np.arange(N)
    copies = np.full(50, 7)
    many_x = np.concatenate([x, x[copies]])
    many_y = np.concatenate([y, y[copies]])
    many = np.concatenate([owners, owners[copies]])
    without = np.delete(np.arange(N), 7)

    def run(rows_x, rows_y, ids):
        m = model(units=units, **KINDS[kind][0])
        data = (rows_x, rows_y) if units else rows_x
        return released(m, data, ids)

    base = run(x[without], y[without], owners[without])
    owned = run(many_x, many_y, many)
    plain = run(many_x, many_y, None)
    # The first release: later ones see other encoders. Equal noise cancels.
    bound = owned.ledger.entries[0].mechanism["sensitivity"]
    assert bound == plain.ledger.entries[0].mechanism["sensitivity"]

    def distance(p):
        a, b = p.releases["encoder_1"], base.releases["encoder_1"]
        objective = a.objective
        parts = list(a.statistics.values()), list(b.statistics.values())
        return np.linalg.norm(
            objective.pack(parts[0], "l2") - objective.pack(parts[1], "l2")
        )

    # Rounding to the lattice moves the two apart by 2^-14 of it at most.
    assert 0.3 * bound < distance(owned) <= bound * (1 + 2**-13)
    assert distance(plain) > 10 * bound


@pytest.mark.once
def test_owners_and_units_are_named():
    x, y = records()
    owners = np.arange(N) // 5
    for unit, wanted in (
        (None, "one owner with all its rows"),
        ("one pupil in all waves", "one pupil in all waves"),
    ):
        p = released(model(), (x, y), owners, words=unit, notes=("n = 300",))
        text = p.report()
        assert f"unit:       {wanted}" in text
        assert text.count("each owner's sum scaled back") == 2
        assert text.count("note:      n = 300") == 2
    assert "one record (one row" in released(model(), (x, y)).report()
    # Replacing an owner: two sums of squares, or two sums of anything.
    found = []
    for neighbours in ("add_remove", "replace_one"):
        p = private((x, y), delta=DELTA, unit=fm.Unit(owners=owners),
                    neighbours=neighbours)  # fmt: skip
        p.plan(model())
        found.append(
            [e.mechanism["sensitivity"] for e in p._make_plan().entries()]
        )
    np.testing.assert_allclose(np.divide(*found[::-1]), [2**0.5, 2])


@pytest.mark.once
def test_owners_in_any_order_give_the_same_release():
    x, _ = records()
    owners = np.arange(N) % 60
    order = np.random.default_rng(0).permutation(N)
    found = []
    for ids in (owners, owners.astype(str)):
        p = released(model(units=None), x, ids)
        found.append(p.releases["encoder_1"].quadratic)
    p = released(model(units=None), x[order], owners[order])
    found.append(p.releases["encoder_1"].quadratic)
    for quadratic in found[1:]:
        np.testing.assert_allclose(quadratic, found[0], atol=1e-4)


@pytest.mark.once
def test_owners_need_arrays_of_equal_length():
    x, y = records()
    all_but_one = fm.Unit(owners=np.arange(N - 1))
    refused("`data` must be arrays", model(), Reader((x, y)),
            unit=fm.Unit(owners=np.arange(N)))  # fmt: skip
    refused("one id for each record", model(), unit=all_but_one)
    refused("one id for each record", model(units=None), x, unit=all_but_one)
    # The published form knows records alone.
    with pytest.raises(TypeError, match="unit"):
        fm.Published(lot="data", unit=all_but_one)
    for reach in (-1, 1.5, True):
        with pytest.raises(ValueError, match="`reach` must be a positive"):
            fm.Unit(reach=reach)


@pytest.mark.once
def test_reach_raises_the_sensitivity_of_every_release():
    kwargs = KINDS["random twice"][0]
    found = []
    for reach, neighbours in ((0, None), (1, None), (3, None),
                              (0, "replace_one")):  # fmt: skip
        p = private(
            Unreadable(),
            delta=DELTA,
            unit=fm.Unit(reach=reach),
            neighbours=neighbours,
        )
        text = p.plan(model(**kwargs))
        assert ("records of at most 3 other units" in text) == (reach == 3)
        found.append(
            [e.mechanism["sensitivity"] for e in p._make_plan().entries()]
        )
    alone, one, three, replaced = np.array(found)
    np.testing.assert_allclose(one, alone + replaced)
    np.testing.assert_allclose(three, alone + 3 * replaced)
    p = private(records(), unit=fm.Unit(reach=3))
    fit(model(**kwargs), records(), p)
    assert 0.99 * EPSILON < p.ledger.epsilon() <= EPSILON


# Published --------------------


def published(m, data, epsilon=2.0, seed=3, **fields):
    return PrivateModel(
        epsilon, data, m.guarantee(**fields), reproducible_noise=seed
    )


def published_model(**kwargs):
    return model(**{"hidden": (5, 4), "guarantee": "published"} | kwargs)


def hidden_of(layer):
    return {k: array(v) for k, v in layer._hidden.variables.items()}


@pytest.mark.parametrize(
    "noise_on, shares", [("coefficients", None), ("hidden", (0.2, 0.3, 0.5))]
)
@pytest.mark.once
def test_claims_make_the_budget_and_nothing_is_proven(noise_on, shares):
    x, y = records()
    m = published_model(noise_on=noise_on)
    p = published(m, (x, y), shares=shares)
    text = p.plan(m)
    parts = shares or (1 / 3,) * 3
    m.pretrain(x, p, epochs=1)
    assert names(p) == ["encoder_1", "encoder_2"]
    assert p.ledger.claimed_epsilon() == pytest.approx(2 * sum(parts[:2]))
    m.fit(x, y, callbacks=[p], verbose=0)
    entries = p.ledger.entries
    assert names(p) == ["encoder_1", "encoder_2", "output"]
    # Delta = d (b + b^2 / 4), and M (b + b^2 / 4) for the output layer.
    deltas = [6 * (5 + 25 / 4), 5 * (4 + 4), 3 * (4 + 4)]
    for entry, part, delta in zip(entries, parts, deltas):
        assert entry.guarantee == "claimed" and not entry.private
        assert entry.neighbours == "replace_one"
        assert entry.mechanism["claimed_epsilon"] == part * 2
        assert entry.mechanism["laplace_scale"] == delta / (part * 2)
        assert entry.mechanism["lot_size"] == N
        assert f"{entry.name} (claimed)" in text
    assert p.ledger.claimed_epsilon() == pytest.approx(2.0, rel=1e-12)
    assert p.ledger.epsilon() == np.inf and p.ledger.remaining() == 0
    where = "the codes" if noise_on == "hidden" else "the coefficients of the"
    assert where in entries[0].reads
    report = p.report()
    assert "proven:     (epsilon = inf" in report
    assert "\nwhy:        The codes depend on the encoder's weights" in report
    assert entries[0].proof == claims.RECONSTRUCTION_REASON
    assert report.count("docs/guarantees.md") == 4


@pytest.mark.once
def test_the_published_plan_reads_nothing():
    class Counted(Unreadable):
        def __len__(self):
            return N

    m = published_model()
    p = published(m, (Counted(), Counted()))
    text = p.plan(m)
    assert text.count("(claimed)") == 3 and not p.ledger.entries
    assert "lot_size 300" in text
    view = p.plan(m.autoencoder(1))
    assert view.count("(claimed)") == 1 and "encoder_1" in view


def test_noise_has_the_claimed_scale_over_n():
    """Mean |Laplace(s)| is s: 8 + 5 standard errors, false alarm < 1e-6."""
    x, y = records()
    m = published_model(hidden=(20,))
    p = published(m, (x, y), epsilon=8.0)
    m.pretrain(x, p, epochs=1)
    noise = hidden_of(m.encoders[0])
    scale = 6 * (20 + 100) / 4.0 / N
    linear = noise["linear_noise"]
    assert linear.shape == (20, 6)
    assert np.abs(linear).mean() == pytest.approx(
        scale, rel=5 / linear.size**0.5
    )
    quadratic = noise["quadratic_noise"]
    assert quadratic.shape == (6, 20, 20)
    np.testing.assert_array_equal(quadratic, np.swapaxes(quadratic, 1, 2))
    diagonal = np.abs(quadratic[:, range(20), range(20)])
    assert diagonal.mean() == pytest.approx(scale, rel=5 / diagonal.size**0.5)
    # Off the diagonal the mean of two draws: standard deviation s.
    above = quadratic[(slice(None), *np.triu_indices(20, 1))]
    assert above.std() == pytest.approx(scale, rel=0.1)
    m = published_model(hidden=(400,), noise_on="hidden")
    p = published(m, (x, y), epsilon=8.0)
    m.pretrain(x, p, epochs=1)
    hidden = hidden_of(m.encoders[0])["hidden_noise"]
    scale = 6 * (400 + 40_000) / 4.0 / N
    assert hidden.shape == (400,)
    assert np.abs(hidden).mean() == pytest.approx(scale, rel=5 / 20)


@pytest.mark.once
def test_golden_scales():
    claim = functools.partial(
        claims.reconstruction_sensitivity, neighbours="replace_one"
    )
    assert claim(784, 100) == 2038400.0
    assert claim(30, 200) == 306000.0
    assert claim(1, 1) == 1.25
    assert claims.reconstruction_sensitivity(
        30, 200, neighbours="add_remove"
    ) == 153000.0  # fmt: skip
    m = model((200,), 1, guarantee="published", visible=(0, 3))
    p = published(m, records(), epsilon=1.0)
    p.plan(m)
    first, second = p._make_plan().entries()
    assert first.mechanism["laplace_scale"] == 61200.0  # 3 * 10200 / 0.5
    assert second.mechanism["laplace_scale"] == 20400.0  # 10200 / 0.5


@pytest.mark.once
def test_a_second_published_fit_draws_and_charges_nothing():
    x, y = records()
    m = published_model()
    p = published(m, (x, y))
    found = []
    for _ in range(2):
        m.pretrain(x, p, epochs=1)
        m.fit(x, y, callbacks=[p], verbose=0)
        now = [v for e in m.layers if hasattr(e, "_hidden")
               for v in hidden_of(e).values()]  # fmt: skip
        found.append(now)
    assert len(p.ledger.entries) == 3 and len(now) == 6
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)
    other = published(m, (x, y))
    with pytest.raises(ValueError, match="noise of another PrivateModel"):
        m.fit(x, y, callbacks=[other], verbose=0)
    with pytest.raises(ValueError, match="noise of another PrivateModel"):
        m.pretrain(x, other, epochs=1)
    assert not other.ledger.entries


@pytest.mark.once
def test_wrong_published_shares_and_lots():
    x, y = records()
    m = published_model()
    p = published(m, (x, y), shares=(0.5, 0.5))
    for train in (
        lambda: m.pretrain(x, p, epochs=1),
        lambda: m.fit(x, y, callbacks=[p], verbose=0),
    ):
        with pytest.raises(
            ValueError, match="each of the perturbations.*'encoder_2', 'outp"
        ):
            train()
    assert not p.ledger.entries
    assert not any(e.is_perturbed for e in m.encoders)
    with pytest.raises(ValueError, match='or `lot="data"` for the number'):
        published(m, (x, y), lot="n")
    with pytest.raises(ValueError, match="pass `data` as arrays"):
        published(m, Reader((x, y)))


def test_published_noise_never_reaches_a_file(tmp_path):
    import h5py

    x, y = records()
    m = published_model()
    p = published(m, (x, y), seed=None)
    m.pretrain(x, p, epochs=1)
    m.fit(x, y, callbacks=[p], verbose=0)
    m.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        archive.extractall(tmp_path)
    stored = []
    with h5py.File(tmp_path / "model.weights.h5") as file:
        file.visititems(
            lambda _, v: (
                stored.append(np.ravel(v))
                if isinstance(v, h5py.Dataset)
                else None
            )
        )
    stored = np.concatenate(stored).astype("float64")
    secret = np.concatenate(
        [v.ravel() for e in [*m.encoders, m.get_layer("output")]
         for v in hidden_of(e).values()]
    )  # fmt: skip
    assert secret.size > 200 and not np.isin(secret, stored).any()
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert not any(e.is_perturbed for e in loaded.encoders)
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), m.predict(x, verbose=0)
    )


@pytest.mark.once
def test_records_and_owners_are_not_added_up_in_one_ledger():
    """A continued ledger once kept its unit whatever came next."""
    budget, data = fm.PrivacyBudget(1.0, 1e-5), (np.zeros((2, 3)), np.zeros(2))
    by_record = fm.Ledger(budget, neighbours="add_remove")
    by_user = fm.Ledger(budget, neighbours="add_remove", unit="one user")
    owned = fm.Proven(unit=fm.Unit(owners=[0, 0]))
    with pytest.raises(ValueError, match="do not add up"):
        PrivateModel(by_record, data, owned)
    with pytest.raises(ValueError, match="do not add up"):
        PrivateModel(by_user, data)
    for ledger, guarantee in (
        (by_record, fm.Proven()),
        (by_user, owned),
        (by_user, fm.Proven(unit=fm.Unit(words="one user"))),
    ):
        private = PrivateModel(ledger, data, guarantee)
        assert private.ledger is ledger
