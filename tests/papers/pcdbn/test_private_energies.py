"""What a fit with ChebyshevCRBM layers promises beside what it shares with
others (test_pretrained_rooms.py): proven and published."""

import functools

import keras
import numpy as np
import pytest
from fit_checks import names
from pretrained_rooms import (
    DELTA,
    PCDBN,
    array,
    assert_equal,
    compiled,
    hidden_of,
    planned,
    private,
)

import keras_fm as fm
from keras_fm.layers import ChebyshevCRBM
from keras_fm.models import PublishedCDBN
from keras_fm.papers.pcdbn import filters

N, SIDE = PCDBN.number, 6
records, model, by_hand = PCDBN.records, PCDBN.model, PCDBN.by_hand
fit, fitted, train = PCDBN.fit, PCDBN.fitted, PCDBN.train
refused = PCDBN.refused
published_model, published = PCDBN.published_model, PCDBN.published_private
ORDER_4 = {"maps": ((12, 3),), "moment_order": 4}
ONE = PCDBN.one

pytestmark = [
    pytest.mark.usefixtures("untraced", "small_batches"),
    pytest.mark.full,
]


# Proven: order, budget and plan --------------------


@pytest.mark.once
def test_sensitivities_by_hand():
    for order in (2, 4):
        for neighbours, factor in (("add_remove", 1), ("replace_one", 2**0.5)):
            p = private(records(), delta=DELTA, neighbours=neighbours)
            m = model(units=None, moment_order=order)
            p.plan(m.energy_model())
            first, second = planned(p)
            for entry, layer, power in zip((first, second), m.rbms, (order, 2)):
                # No shorter than its constant: replaced records may be
                # orthogonal.
                assert layer.constant <= layer.input_bound
                square = layer.input_bound**2 + layer.constant**2
                assert entry.mechanism["sensitivity"] == pytest.approx(
                    square ** (power / 2) * factor
                )
                assert entry.neighbours == neighbours


# Proven: no record moves a weight --------------------


@pytest.mark.parametrize("arguments", [{}, ORDER_4])
def test_rbms_are_functions_of_their_releases_alone(tmp_path, arguments):
    m, p = fitted(**arguments, units=None)
    for layer in m.rbms:
        p.releases[layer.name].save(tmp_path / "release.npz")
        release = fm.Release.load(tmp_path / "release.npz")
        twin = type(layer).from_config(layer.get_config())
        twin.build((None, *layer.record_shape))
        twin.set_filters(*filters.learn(release, **layer.learning))
        assert_equal(layer.get_weights(), twin.get_weights())


def test_nothing_is_left_of_training_without_protection():
    """The visible units' biases once survived a release."""
    x, _ = records()
    m = model(units=None)
    (rbm, _) = m.rbms
    rbm.trainable = True
    stage = m.energy_model(1)
    stage.compile(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="has no release, so training it"):
        stage.fit(x, verbose=0)
    # Whatever its weights are from.
    rbm.set_weights([w + 0.1 for w in rbm.get_weights()])
    rbm.trainable = False
    m.pretrain(x, private(x))
    assert rbm.is_released
    np.testing.assert_array_equal(rbm.get_weights()[2], 0)


# Proven: neighbouring data --------------------

ADVERSARIAL = {
    "random": lambda rng: rng.uniform(size=(SIDE, SIDE, 1)),
    "binary": lambda rng: rng.integers(0, 2, (SIDE, SIDE, 1)),
    "white": lambda rng: np.ones((SIDE, SIDE, 1)),
    "black": lambda rng: np.zeros((SIDE, SIDE, 1)),
    "huge": lambda rng: rng.normal(0, 1e6, (SIDE, SIDE, 1)),
    "huge and white": lambda rng: np.full((SIDE, SIDE, 1), 1e30),
    "one pixel": lambda rng: np.eye(SIDE * SIDE)[rng.integers(
        SIDE * SIDE)].reshape(SIDE, SIDE, 1),
    "negative": lambda rng: np.full((SIDE, SIDE, 1), -5.0),
}  # fmt: skip


@functools.cache
def steps_of(neighbours, order, box):
    """The steps of both RBMs; the first one has its release already, so
    that the second one's inputs are given."""
    x, _ = records()
    if box:
        m = model(units=None, moment_order=order)
        m.pretrain(x, private(x, 50.0))
    else:
        # Nothing but the patch bound holds these pixels.
        layer = ChebyshevCRBM(5, 3, moment_order=order, name="crbm_1")
        inputs = keras.Input((SIDE, SIDE, 1))
        m = keras.Model(inputs, layer(inputs))
    view = m.energy_model() if box else m
    p = private(x, neighbours=neighbours)
    p.new_release = True
    p.set_model(view)
    return p, p._make_plan()


def statistic(plan, index, data):
    plan.data = data.astype("float32")
    planned = plan.to_release[index]
    found = planned.query.zero()
    for batch in planned.read():
        found = planned.query.accumulate(found, *batch, clip=planned.clip)
    return planned, found


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    "order, box, layer", [(2, True, 0), (2, True, 1), (4, True, 0),
                          (2, False, 0), (4, False, 0)],
)  # fmt: skip
def test_neighbouring_data_move_a_release_by_its_sensitivity_at_most(
    neighbours, order, box, layer
):
    p, plan = steps_of(neighbours, order, box)
    x, _ = records(9)
    rng = np.random.default_rng(0)
    found = {"l1": [], "l2": []}
    for first in ADVERSARIAL:
        others = ADVERSARIAL if neighbours == "replace_one" else [None]
        for second in others:
            one = np.concatenate([x, ADVERSARIAL[first](rng)[None]])
            two = x
            if second is not None:
                two = np.concatenate([x, ADVERSARIAL[second](rng)[None]])
            step, a = statistic(plan, layer, one)
            _, b = statistic(plan, layer, two)
            for norm, power in (("l1", 1), ("l2", 2)):
                found[norm].append(
                    np.linalg.norm(
                        step.query.pack(a, norm) - step.query.pack(b, norm),
                        power,
                    )
                )
    for norm in found:
        bound = step.query.sensitivity(norm, neighbours=neighbours)
        assert max(found[norm]) <= bound * (1 + 1e-9)
        if norm == "l2" and layer == 0:
            # And a record does come near it.
            assert max(found[norm]) > 0.4 * bound
    # The ledger's entry is about this bound.
    entry = plan.entries()[layer]
    norm = "l1" if entry.mechanism["mechanism"] == "LaplaceMechanism" else "l2"
    assert entry.mechanism["sensitivity"] == pytest.approx(
        step.query.sensitivity(norm, neighbours=neighbours)
    )


@pytest.mark.once
def test_a_whole_release_of_neighbouring_data():
    """Equal noise cancels in the difference of two releases."""
    x, _ = records()
    found = []
    for data in (x, x[:-1]):
        p = private(data, delta=DELTA, seed=5)
        model(units=None, **ONE).pretrain(data, p)
        found.append(p.releases["crbm_1"])
    objective = found[0].query
    a, b = (objective.pack([r.statistics["moments"]], "l2") for r in found)
    bound = p.ledger.entries[0].mechanism["sensitivity"]
    assert 0.05 * bound < np.linalg.norm(a - b) <= bound * (1 + 1e-9)


# Proven: what the filters are --------------------


def brute_patches(images, kernel, stride):
    """Patches of zero-padded images, one by one."""
    images = np.asarray(images, float)
    n, height, width, channels = images.shape
    missing = (-(-height // stride) - 1) * stride + kernel - height
    before = max(missing, 0) // 2
    found = []
    for image in images:
        for i in range(0, height, stride):
            for j in range(0, width, stride):
                patch = np.zeros((kernel, kernel, channels))
                for a in range(kernel):
                    for b in range(kernel):
                        r, c = i + a - before, j + b - before
                        if 0 <= r < height and 0 <= c < width:
                            patch[a, b] = image[r, c]
                found.append(patch.ravel())
    return np.array(found)


def test_much_budget_gives_the_principal_components_of_the_bars():
    x, y = records()
    m = model(maps=((4, 3),), units=None)
    m.pretrain(x, private(x, 1e6))
    layer = m.rbms[0]
    v = brute_patches(x, 3, (layer.moment_strides or layer.strides)[0])
    lengths = np.linalg.norm(v, axis=1)
    v /= np.maximum(1, lengths / layer.input_bound)[:, None]
    values, vectors = np.linalg.eigh(np.cov(v.T, bias=True))
    kernel, bias, _ = layer.get_weights()
    kernel = kernel.reshape(9, 4)
    overlap = np.abs(
        np.sum(kernel * vectors[:, ::-1][:, :4], axis=0)
    ) / np.linalg.norm(kernel, axis=0)
    np.testing.assert_allclose(overlap, 1, atol=1e-3)
    # Responses of unit variance, half active above the mean.
    responses = v @ kernel + bias
    np.testing.assert_allclose(responses.std(axis=0), 1, rtol=1e-3)
    np.testing.assert_allclose(
        responses.mean(axis=0), -layer.sparsity, atol=2e-3
    )


# Two layers of RBMs, or one; chance is 1/3, and so much budget leaves no
# noise that matters.


# Proven: refusals before anything is charged --------------------


@pytest.mark.once
def test_rbms_that_no_release_can_teach():
    mixing = ChebyshevCRBM(4, 3, normalization="batch", name="maps")
    refused("largest response of a batch, which mixes", by_hand(mixing))
    many = ChebyshevCRBM(19, 3, name="maps")
    refused("at most 18 filters. Received: filters=19", by_hand(many))
    large = ChebyshevCRBM(4, 6, moment_order=4, name="maps")
    deep = by_hand(large, body=[keras.layers.ReLU()])
    assert private(records()).plan(deep)
    wide = ChebyshevCRBM(4, 5, moment_order=4, name="wide")
    deep = by_hand(ChebyshevCRBM(9, 3), body=[wide])
    refused("are 111607501 numbers. Use `moment_order=2`", deep)
    inputs = keras.Input((SIDE, SIDE, 1))
    conditioned = ChebyshevCRBM(4, 3, conditions=2, name="maps")
    maps = conditioned([inputs, inputs[:, 0, :2, 0]])
    features = fm.layers.NormalizationLayer()(keras.layers.Flatten()(maps))
    m = compiled(keras.Model(inputs, fm.layers.PrivateDense(3)(features)))
    refused("dynamic biases, whose weights would be", m)


# Seeds and files --------------------

SEEDED = {"seed": 0, "delta": DELTA}
GOLDEN = [
    [1.92203, 0.75257, 0.71837],
    [-0.90710, 1.99334, 0.51542],
    [2.37333, 1.40279, 2.81970],
    [0.42082, 2.71014, -0.14420],
    [2.60718, 2.12981, 2.08696],
]


def test_releases_agree_between_backends():
    # Computed once on the TensorFlow backend by the lines below.
    first = ChebyshevCRBM(
        4, 3, gain=5.0, patch_bound=1.0, moment_order=4, sparsity=1.0,
        name="first",
    )  # fmt: skip
    second = ChebyshevCRBM(
        4, 2, patch_bound=0.5, centre=0.5, sparsity=1.0, name="second"
    )
    data = records()
    m, p = by_hand(first, body=[second]), private(data, 1e3, **SEEDED)
    fit(m, data, p)
    assert p.ledger.epsilon() == np.inf and "NOT PRIVATE" in p.report()
    found = [
        p.releases["first"].statistics["moments"][:3],
        first.get_weights()[0][0, 0, 0, :3],
        p.releases["second"].statistics["moments"][:3],
        second.get_weights()[0][0, 0, 0, :3],
        p.release.linear[0],
    ]
    for a, b in zip(found, GOLDEN, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


# Published --------------------


def deltas_by_hand(m, form):
    """Lemma 2 of both RBMs, and M (b + b^2 / 4) of the output layer. The
    paper's layers do not pad: of 6 x 6 pixels 3 x 3 leave 4 x 4 places."""
    places = [(36, 36), (9, 45)]
    if form == "paper":
        places = [(16, 36), (1, 20)]
    found = []
    for (positions, inputs), patch, layer in zip(places, (9, 20), m.rbms):
        if form == "code":
            found.append(2.0 * (positions + inputs))
            continue
        s = patch + 1.0
        z = max(s, (2 + 1e-4 * 5 * s**2) ** 0.75)
        coefficients = layer.approximation.coefficients
        series = sum(abs(a) * (s / z) ** i for i, a in enumerate(coefficients))
        found.append(2 * (positions * s * series + inputs))
    return [*found, 3 * (6 + 36 / 4)]


@pytest.mark.parametrize(
    "form, shares, lot",
    [
        ("paper", None, 60),
        ("paper", (0.2, 0.3, 0.5), "data"),
        ("code", None, 60),
    ],
)
@pytest.mark.once
def test_claims_make_the_budget_and_nothing_is_proven(form, shares, lot):
    x, y = records()
    m = published_model(guarantee=PublishedCDBN(form=form))
    p = published(m, (x, y), shares=shares, lot=lot)
    text = p.plan(m)
    parts = shares or (1 / 3,) * 3
    m.pretrain(x, p, epochs=1, batch_size=60)
    assert names(p) == ["crbm_1", "crbm_2"]
    assert p.ledger.claimed_epsilon() == pytest.approx(2 * sum(parts[:2]))
    m.fit(x, y, batch_size=60, callbacks=[p], verbose=0)
    entries = p.ledger.entries
    assert names(p) == ["crbm_1", "crbm_2", "output"]
    for entry, part, delta in zip(entries, parts, deltas_by_hand(m, form)):
        assert entry.guarantee == "claimed" and not entry.private
        assert entry.neighbours == "replace_one"
        assert entry.mechanism["claimed_epsilon"] == pytest.approx(part * 2)
        assert entry.mechanism["laplace_scale"] == pytest.approx(
            delta / (part * 2)
        )
        assert entry.mechanism["lot_size"] == (N if lot == "data" else 60)
        assert f"{entry.name} (claimed)" in text
    assert p.ledger.claimed_epsilon() == pytest.approx(2.0, rel=1e-12)
    assert p.ledger.epsilon() == np.inf and p.ledger.remaining() == 0
    assert "proven:     (epsilon = inf" in p.report()
    again = "drawn again at every step" in entries[0].uses
    assert again == (form == "code") and "contrastive" in entries[0].uses
    assert ("quadratic" in entries[2].uses) == (form == "paper")


def test_noise_has_the_claimed_scale_over_the_lot():
    """Mean |Laplace(s)| is s: five standard errors, false alarm < 1e-6."""
    data = records()
    m = published_model(maps=((64, 3),))
    p = published(m, data)
    m.pretrain(data[0], p, epochs=1, batch_size=60)
    noise = hidden_of(m.rbms[0])["coefficient_noise"]
    assert noise.shape == (8, 64)
    scale = p.ledger.entries[0].mechanism["laplace_scale"] / 60
    assert np.abs(noise).mean() == pytest.approx(scale, rel=5 / noise.size**0.5)
    # The authors' code keeps the scales and draws at every step.
    m = published_model(guarantee=PublishedCDBN(form="code"), maps=((64, 3),))
    p = published(m, data)
    m.pretrain(data[0], p, epochs=1, batch_size=60)
    layer = m.rbms[0]
    scale = p.ledger.entries[0].mechanism["laplace_scale"] / 60
    hidden = hidden_of(layer)
    np.testing.assert_allclose(hidden["coefficient_noise"], scale, rtol=1e-6)
    layer.trainable = True
    a, b = (array(layer(data[0], training=True)) for _ in range(2))
    assert np.abs(a - b).max() > 1e-3


@pytest.mark.parametrize("form", ["paper", "code"])
def test_a_traced_published_fit_sees_its_noise(form):
    """Noise is fixed after Keras could have traced a step without it."""
    x, y = records(60)
    found = []
    for epsilon in (1e6, 2.0):
        m = published_model(
            guarantee=PublishedCDBN(form=form),
            maps=((5, 3),),
            optimizer=keras.optimizers.SGD(0.0),
        )
        p = published(m, (x, y), epsilon)
        histories = m.pretrain(
            x, p, epochs=1, batch_size=60, optimizer=keras.optimizers.SGD(0.0)
        )
        histories.append(m.fit(x, y, batch_size=60, callbacks=[p], verbose=0))
        found.append([h.history["loss"][0] for h in histories])
    assert np.all(np.abs(np.subtract(*found)) > 1e-3)
