"""Published AdLM: noise by relevance, claimed, on whatever backend."""

import functools
from fractions import Fraction

import keras
import numpy as np
import pytest
from scipy import stats

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.kernel import mechanisms
from keras_fm.papers.adlm import claims, relevance
from keras_fm.papers.adlm.claims import PublishedAdLM
from keras_fm.training.published_plan import PublishedPlan

pytestmark = pytest.mark.full

EPSILON, BATCH, N = 2.0, 50, 300


def array(x):
    return keras.ops.convert_to_numpy(x)


def dense_records(seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(N) % 3
    x = rng.uniform(0, 0.3, size=(N, 6)).astype("float32")
    x[np.arange(N), y] += 0.7
    return x, y


def image_records(seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(N) % 3
    x = rng.uniform(0, 0.3, size=(N, 6, 5, 2)).astype("float32")
    x[np.arange(N), 2 * y, 1] += 0.7
    return x, y


def compiled(layers, optimizer="adam"):
    model = keras.Sequential(layers)
    model.compile(optimizer, fm.losses.TaylorCrossEntropy())
    return model


def dense_model(optimizer="adam", **kwargs):
    keras.utils.set_random_seed(0)
    kwargs = {"activation": "sigmoid"} | kwargs
    return compiled(
        [
            keras.Input((6,)),
            fm.layers.PerturbedAffine(4, name="first", **kwargs),
            fm.layers.PrivateDense(3, name="head"),
        ],
        optimizer,
    )


def conv_model(optimizer="adam", **kwargs):
    keras.utils.set_random_seed(0)
    return compiled(
        [
            keras.Input((6, 5, 2)),
            fm.layers.PerturbedConv2D(
                3, 3, activation="relu", name="first", **kwargs
            ),
            keras.layers.MaxPooling2D(),
            fm.layers.LocalResponseNormalization(),
            keras.layers.Flatten(),
            fm.layers.PrivateDense(3, name="head"),
        ],
        optimizer,
    )


KINDS = {
    # Model, records, d, and Delta_h0 by hand: 2 |h0| d.
    "dense": (dense_model, dense_records, 6, 2 * 4 * 6),
    "conv": (conv_model, image_records, 60, 2 * 3 * 30 * 60),
}
both_kinds = pytest.mark.parametrize("kind", KINDS)


def twin_of(model, optimizer="adam"):
    twin = fm.models.unprotected_twin(model)
    twin.compile(optimizer, fm.losses.TaylorCrossEntropy())
    return twin


@functools.cache
def trained_weights(kind):
    build, records, _, _ = KINDS[kind]
    keras.utils.set_random_seed(0)
    model = twin_of(build())
    model.fit(*records(), batch_size=BATCH, epochs=2, verbose=0)
    return model.get_weights()


def pretrained(kind):
    """A trained twin, as an adaptive layer wants it."""
    twin = fm.models.unprotected_twin(KINDS[kind][0]())
    twin.set_weights(trained_weights(kind))
    return twin


def published(seed=3, epsilon=EPSILON, data=None, settings=None, **fields):
    guarantee = fm.Published(lot=BATCH, settings=settings, **fields)
    return PrivateModel(
        epsilon, 0.0, data=data, guarantee=guarantee, reproducible_noise=seed
    )


def fit(model, data, p, **kwargs):
    return model.fit(
        *data, batch_size=BATCH, callbacks=[p], verbose=0, **kwargs
    )


def fitted(kind="dense", epochs=1, settings=None, **kwargs):
    """A model after one published fit, its callback and its records."""
    build, records, _, _ = KINDS[kind]
    data, model = records(), build()
    settings = PublishedAdLM(relevance_of=pretrained(kind), **settings or {})
    p = published(data=data, settings=settings, **kwargs)
    fit(model, data, p, epochs=epochs)
    return model, p, data


def plan_of(
    model,
    seed=3,
    epsilon=EPSILON,
    data=None,
    neighbours="replace_one",
    noise=None,
    settings=None,
):
    return PublishedPlan(
        model,
        data=data,
        ledger=fm.Ledger(fm.PrivacyBudget(epsilon, 0.0), neighbours=neighbours),
        noise=noise or mechanisms.NoiseSource(seed),
        guarantee=fm.Published(
            lot=BATCH, settings=settings or PublishedAdLM(adaptive=True)
        ),
    )


class Scales:
    """A source of no noise that keeps the scales it is asked for."""

    reproducible = False

    def __init__(self):
        self.asked = []

    def generator(self):
        return self

    def laplace(self, loc, scale, shape):
        self.asked.append(np.broadcast_to(scale, shape))
        return np.zeros(shape)


def released_average(model, average, name="first", n=N):
    """The model, as if this were the relevance of its records."""
    layer = model.get_layer(name)
    layer._average_relevance = lambda *_: (np.ravel(average), n)
    return model


def input_scales(model, released=None, name="first", **kwargs):
    """Scales of the noise on the inputs of a layer, in a new model."""
    if released is not None:
        released_average(model, released)
    scales = Scales()
    plan = plan_of(model, noise=scales, **kwargs)
    names = [c.name for _, c in plan._open()]
    plan.carry_out()
    # One of the relevance; for the others input and bias, or two orders.
    at = 0
    for found in names[: names.index(name)]:
        at += 1 if "relevance" in found else 2
    return scales.asked[at]


def hidden(layer):
    return {k: array(v) for k, v in layer._hidden.variables.items()}


def noises(model):
    return [v for layer in model.layers if getattr(layer, "_hidden", None)
            for v in hidden(layer).values()]  # fmt: skip


# Scales, to the last digit --------------------


def exact_scales(released, kind, epsilon2, floor="1e-5", half=1):
    """Delta_h0 / eps_j / |L| in rational numbers."""
    _, _, d, sensitivity = KINDS[kind]
    floor = Fraction(float(floor))
    size = [max(abs(Fraction(r)), floor) for r in released.ravel().tolist()]
    assert len(size) == d
    total = sum(size)
    return [
        Fraction(sensitivity, half) / (epsilon2 * d * s / total) / BATCH
        for s in size
    ]


def check_scales(made, exact):
    for value, wanted in zip(made.ravel().tolist(), exact, strict=True):
        assert abs(Fraction(value) - wanted) <= wanted * Fraction(1, 10**15)


@both_kinds
@pytest.mark.once
def test_every_feature_has_the_papers_scale(kind):
    model, p, _ = fitted(kind)
    d = KINDS[kind][2]
    assert p.relevance.size == d and np.all(np.isfinite(p.relevance))
    scales = input_scales(KINDS[kind][0](), p.relevance)
    assert scales.shape == model.input_shape[1:]
    check_scales(scales, exact_scales(p.relevance, kind, Fraction(1, 2)))
    # Less noise where the relevance is larger.
    order = np.argsort(np.abs(p.relevance).ravel())
    assert np.all(np.diff(scales.ravel()[order]) <= 0)
    assert np.unique(scales).size > 1


def test_scales_under_add_remove_are_half():
    released = np.array([0.5, -0.25, 0.1, 0.0, 1.0, 0.75])
    made = input_scales(dense_model(), released, neighbours="add_remove")
    check_scales(made, exact_scales(released, "dense", Fraction(1, 2), half=2))


# The fixed noise, over many draws --------------------


def test_noise_follows_the_scales():
    # Fixed seed, the same draws on every backend. Mean of 400 |Laplace(1)|
    # is 1 +- 0.05, so a feature's false alarm is below 1e-4, and 2/3 and
    # 3/2 of a scale are rejected. Kolmogorov-Smirnov: false alarm 1e-3.
    average = np.array([1.0, 0.5, 0.25, 0.125, 0.01, 0.0])
    model = released_average(dense_model(), average)
    plan = plan_of(model, epsilon=1e6)
    first, head = model.layers
    epsilon = Fraction(EPSILON)
    # Scales at EPSILON from a ledger that lets them pass.
    plan.epsilons = {k: v * EPSILON / 1e6 for k, v in plan.epsilons.items()}
    drawn = {k: [] for k in ("relevance", "input", "bias", "linear", "diag")}
    ledger = plan.ledger
    for _ in range(400):
        for layer in (first, head):
            layer._hidden.variables.clear()
        # Each in a ledger of its own: one of thousands of entries is slow.
        plan.ledger = fm.Ledger(ledger.budget, neighbours=ledger.neighbours)
        plan.carry_out()
        released = first.relevance
        drawn["relevance"].append(released - average)
        exact = exact_scales(released, "dense", epsilon / 4)
        scales = np.array([float(s) for s in exact])
        drawn["input"].append(hidden(first)["input_noise"] / scales)
        drawn["bias"].append(hidden(first)["bias_noise"])
        drawn["linear"].append(hidden(head)["linear_noise"].ravel())
        quadratic = hidden(head)["quadratic_noise"]
        np.testing.assert_array_equal(quadratic, quadratic.swapaxes(1, 2))
        diagonal = np.diagonal(quadratic, axis1=1, axis2=2)
        drawn["diag"].append(diagonal.ravel())
    # Delta / eps by hand: 2 d / n / (1/2); 2 |h0| d / (1/2) / |L|; and
    # M (b + b^2 / 4) / 1 / |L| with b = 4 + 1 features.
    loss = 3 * (5 + 25 / 4) / 50
    wanted = {
        "relevance": 2 * 6 / 300 / 0.5,
        "input": 1.0,
        "bias": 48 / 0.5 / 50,
        "linear": loss,
        "diag": loss,
    }
    for name, values in drawn.items():
        values = np.stack(values) / wanted[name]
        sizes = np.abs(values).mean(axis=0)
        assert np.all(np.abs(sizes - 1) < 0.2), name
        assert stats.kstest(values.ravel(), stats.laplace.cdf).pvalue > 1e-3
        for wrong in (2 / 3, 3 / 2):
            assert np.all(np.abs(sizes / wrong - 1) > 0.2)
            cdf = stats.laplace(scale=wrong).cdf
            assert stats.kstest(values.ravel(), cdf).pvalue < 1e-6


def test_noise_of_many_features_in_one_fit():
    # Fixed seed. Each of 2000 features by its own scale; equal scales (the
    # identical noise of ILM) are rejected.
    d = 2000
    model = compiled(
        [
            keras.Input((d,)),
            fm.layers.PerturbedAffine(2, activation="sigmoid", name="first"),
            fm.layers.PrivateDense(2),
        ]
    )
    average = np.geomspace(1e-3, 1, d)
    plan_of(released_average(model, average, n=10**9)).carry_out()
    released = model.get_layer("first").relevance
    np.testing.assert_allclose(released, average, atol=1e-3)
    drawn = hidden(model.get_layer("first"))["input_noise"]
    for layer in model.layers:
        layer._hidden.variables.clear()
    own = drawn / input_scales(model, released)
    assert stats.kstest(own, stats.laplace.cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        cdf = stats.laplace(scale=wrong).cdf
        assert stats.kstest(own, cdf).pvalue < 1e-6
    equal = drawn / np.abs(drawn).mean()
    assert stats.kstest(equal, stats.laplace.cdf).pvalue < 1e-6


@both_kinds
def test_per_step_keeps_the_scales_instead_of_a_draw(kind):
    model, p, _ = fitted(kind, settings={"noise": "per_step"})
    kept = hidden(model.get_layer("first"))
    scales = input_scales(KINDS[kind][0](), p.relevance)
    np.testing.assert_allclose(kept["input_noise"], scales, rtol=1e-6)
    bias = KINDS[kind][3] / 0.5 / BATCH
    np.testing.assert_allclose(kept["bias_noise"], bias, rtol=1e-6)
    assert "drawn again at every step" in p.ledger.entries[1].uses


def test_training_sees_the_shifted_inputs_and_the_perturbed_loss():
    x, y = (a[:BATCH] for a in dense_records())
    model = dense_model(keras.optimizers.SGD(0.0))
    settings = PublishedAdLM(relevance_of=pretrained("dense"))
    loss = fit(model, (x, y), published(data=(x, y), settings=settings))
    first, head = (hidden(layer) for layer in model.layers)
    kernel, bias, out, out_bias = model.get_weights()
    plain = compiled([keras.Input((6,)), *dense_model().layers])
    plain.set_weights([kernel, bias + first["bias_noise"], out, out_bias])
    shifted = plain.evaluate(x + first["input_noise"], y, verbose=0)
    w = np.concatenate([out, out_bias[None] / 0.1])
    added = np.sum(head["linear_noise"] * w) + np.einsum(
        "ik,kij,jk->", w, head["quadratic_noise"], w
    )
    assert abs(shifted - model.evaluate(x, y, verbose=0)) > 1e-2
    np.testing.assert_allclose(
        loss.history["loss"][0], shifted + added, rtol=1e-3
    )


# The relevance --------------------


def average_of(model, network, data):
    settings = PublishedAdLM(relevance_of=network)
    plan = plan_of(model, data=data, settings=settings)
    return model.get_layer("first")._average_relevance(plan, settings)


@both_kinds
def test_average_relevance_is_that_of_the_pretrained_network(kind):
    build, records, d, _ = KINDS[kind]
    x, y = records()
    model = build()
    network = pretrained(kind)
    average, count = average_of(model, network, (x, y))
    assert count == N and average.shape == (d,)
    rows = relevance.layer_wise(network, x).reshape(N, d)
    wanted = claims.normalised_relevance(rows).mean(axis=0)
    np.testing.assert_allclose(average, wanted, atol=1e-5)
    assert np.all((average >= 0) & (average <= 1))
    # It depends on the network, not on the model to be trained.
    other = average_of(model, build(), (x, y))[0]
    assert np.abs(other - average).max() > 1e-3


def test_relevance_is_taken_at_the_perturbed_layer():
    keras.utils.set_random_seed(0)
    model = compiled(
        [
            keras.Input((3, 2)),
            keras.layers.Permute((2, 1)),
            keras.layers.Flatten(),
            fm.layers.PerturbedAffine(4, activation="sigmoid", name="first"),
            fm.layers.PrivateDense(3),
        ]
    )
    x, y = dense_records()
    x = x.reshape(N, 3, 2)
    found = average_of(model, model, (x, y))[0]
    rows = relevance.layer_wise(model, x).transpose(0, 2, 1).reshape(N, 6)
    wanted = claims.normalised_relevance(rows).mean(axis=0)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def exact_average(form, x, network):
    rows = relevance.layer_wise(network, x, layer="first").astype("float64")
    if form == "paper":
        return claims.normalised_relevance(rows).mean(axis=0)
    mean = rows.mean(axis=0)
    return ((mean - mean.min()) / (mean.max() - mean.min())) ** 4


@pytest.mark.parametrize("form", ["paper", "code"])
def test_relevance_is_normalised_before_the_noise(form):
    data = dense_records()
    network = pretrained("dense")
    model = dense_model()
    settings = PublishedAdLM(form=form, relevance_of=network)
    plan_of(model, data=data, settings=settings).carry_out()
    found = model.get_layer("first").relevance
    noise = mechanisms.NoiseSource(3).generator().laplace(0.0, 0.08, 6)
    wanted = exact_average(form, data[0], network)
    np.testing.assert_allclose(found, wanted + noise, atol=1e-5)


# The ledger --------------------


@both_kinds
@pytest.mark.parametrize("shares", [None, (0.2, 0.3, 0.5)])
@pytest.mark.once
def test_three_claims_make_the_budget_and_nothing_is_proven(kind, shares):
    model, p, _ = fitted(kind, shares=shares)
    _, _, d, sensitivity = KINDS[kind]
    entries = p.ledger.entries
    assert [e.name for e in entries] == ["first (relevance)", "first", "head"]
    parts = shares or (0.25, 0.25, 0.5)
    claimed = [e.mechanism["claimed_epsilon"] for e in entries]
    assert claimed == [part * EPSILON for part in parts]
    assert p.ledger.claimed_epsilon() == pytest.approx(EPSILON, rel=1e-12)
    assert p.ledger.epsilon() == np.inf and p.ledger.remaining() == 0
    b = model.layers[-1].num_features
    loss = 3 * (b + b**2 / 4)
    scales = [2 * d / N, sensitivity, loss]
    for entry, part, scale in zip(entries, parts, scales):
        assert entry.guarantee == "claimed"
        assert entry.neighbours == "replace_one"
        assert entry.mechanism["laplace_scale"] == pytest.approx(
            scale / (part * EPSILON), rel=1e-15
        )
    assert "lot_size" not in entries[0].mechanism
    assert all(e.mechanism["lot_size"] == BATCH for e in entries[1:])
    assert "pre-trained on the records" in entries[0].uses


# Fewer perturbations --------------------


@both_kinds
@pytest.mark.once
def test_identical_noise_keeps_equal_shares(kind):
    build, records, _, sensitivity = KINDS[kind]
    data, model = records(), build()
    p = published()
    fit(model, data, p)
    entries = p.ledger.entries
    assert [e.name for e in entries] == ["first", "head"]
    assert [e.mechanism["claimed_epsilon"] for e in entries] == [1.0, 1.0]
    assert p.relevance is None
    scales = input_scales(build(), settings=PublishedAdLM())
    assert scales.shape == model.input_shape[1:]
    np.testing.assert_allclose(scales, sensitivity / 1.0 / BATCH, rtol=1e-15)
    assert p.ledger.epsilon() == np.inf


def test_linear_order_alone_leaves_the_quadratic_noise_zero():
    model, p, _ = fitted(orders=("linear",))
    head = hidden(model.layers[-1])
    assert np.all(head["linear_noise"] != 0)
    assert np.all(head["quadratic_noise"] == 0)
    assert "on the linear coefficients" in p.ledger.entries[2].uses
    model, _, _ = fitted(orders=("quadratic",))
    head = hidden(model.layers[-1])
    assert np.all(head["linear_noise"] == 0)
    assert np.all(head["quadratic_noise"] != 0)


# Refusals, before anything is charged --------------------


@pytest.mark.parametrize(
    "network, match",
    [
        (None, r"relevance_of=twin"),
        (
            keras.Sequential([keras.Input((6,)), keras.layers.Dense(5)]),
            None,
        ),
        (
            keras.Sequential(
                [keras.Input((6,)), keras.layers.Reshape((6, 1))]
                + [keras.layers.LSTM(3)]
            ),
            "LSTM.*no relevance rule",
        ),
    ],
)
def test_networks_whose_relevance_it_may_follow(network, match):
    data = dense_records()
    settings = PublishedAdLM(adaptive=True, relevance_of=network)
    model, p = dense_model(), published(data=data, settings=settings)
    if match is None:
        fit(model, data, p)
        assert p.relevance.shape == (6,)
        return
    with pytest.raises(ValueError, match=match):
        fit(model, data, p)
    assert not p.ledger.entries and p.relevance is None and not noises(model)


@pytest.mark.once
def test_a_proven_model_refuses_perturbed_convolutions():
    x, y = image_records()
    model = conv_model()
    p = PrivateModel(fm.PrivacyBudget(3.0, 1e-5), data=(x, y))
    with pytest.raises(
        ValueError,
        match=r"'first' \(PerturbedConv2D\) cannot be part of a proven "
        r"model.*\(or Conv2D\)",
    ):
        model.fit(x, y, callbacks=[p], verbose=0)
    assert not p.ledger.entries
