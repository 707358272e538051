"""Published AdLM: noise by relevance, claimed, on whatever backend."""

import functools
import pathlib
from fractions import Fraction

import keras
import numpy as np
import pytest
from fit_checks import Unreadable
from layer_checks import everything_saved
from scipy import stats

import keras_fm as fm
from keras_fm.callbacks import PrivateModel
from keras_fm.kernel import mechanisms
from keras_fm.papers.adlm import claims, relevance
from keras_fm.training.published_plan import PublishedPlan

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


def box():
    """What the claims need: inputs in [0, 1]."""
    return fm.layers.NormalizationLayer((0.0, 1.0), "linf", name="box")


def dense_model(optimizer="adam", **kwargs):
    keras.utils.set_random_seed(0)
    kwargs = {"adaptive": True, "activation": "sigmoid"} | kwargs
    return compiled(
        [
            keras.Input((6,)),
            box(),
            fm.layers.PerturbedAffine(4, name="first", **kwargs),
            fm.layers.PrivateDense(3, name="head"),
        ],
        optimizer,
    )


def conv_model(optimizer="adam", **kwargs):
    keras.utils.set_random_seed(0)
    kwargs = {"adaptive": True, "activation": "relu"} | kwargs
    return compiled(
        [
            keras.Input((6, 5, 2)),
            box(),
            fm.layers.PerturbedConv2D(
                3, 3, sensitivity="patch", name="first", **kwargs
            ),
            keras.layers.MaxPooling2D(),
            fm.layers.LocalResponseNormalization(),
            keras.layers.Flatten(),
            fm.layers.PrivateDense(3, name="head"),
        ],
        optimizer,
    )


KINDS = {
    # Model, records, d, and Delta_h0 by hand: 2 |h0| d; 2 positions patch.
    "dense": (dense_model, dense_records, 6, 2 * 4 * 6),
    "conv": (conv_model, image_records, 60, 2 * 30 * 18),
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


def following(model, network, name="first"):
    """The model, whose adaptive layer follows a network's relevance."""
    model.get_layer(name).relevance_of(network)
    return model


def published(seed=3, epsilon=EPSILON, data=None, **fields):
    return PrivateModel(
        epsilon,
        0.0,
        data=data,
        guarantee=fm.Published(**{"lot": BATCH} | fields),
        reproducible_noise=seed,
    )


def fit(model, data, p, **kwargs):
    return model.fit(
        *data, batch_size=BATCH, callbacks=[p], verbose=0, **kwargs
    )


def fitted(kind="dense", epochs=1, make=None, **kwargs):
    """A model after one published fit, its callback and its records."""
    build, records, _, _ = KINDS[kind]
    data = records()
    model = following(make or build(), pretrained(kind))
    p = published(data=data, **kwargs)
    fit(model, data, p, epochs=epochs)
    return model, p, data


def plan_of(
    model,
    seed=3,
    epsilon=EPSILON,
    data=None,
    neighbours="replace_one",
    noise=None,
):
    return PublishedPlan(
        model,
        data=data,
        ledger=fm.Ledger(fm.PrivacyBudget(epsilon, 0.0), neighbours=neighbours),
        noise=noise or mechanisms.NoiseSource(seed),
        guarantee=fm.Published(lot=BATCH),
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
    layer._check_pretrained = lambda publishing: None
    layer._average_relevance = lambda publishing: (np.ravel(average), n)
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


def test_the_floor_bounds_the_scales():
    released = np.array([0.5, -0.25, 0.1, 0.0, 1.0, 0.75])
    made = input_scales(dense_model(relevance_floor=0.25), released)
    check_scales(made, exact_scales(released, "dense", Fraction(1, 2), "0.25"))
    assert made[1] == made[2] == made[3] == made.max()
    # All below the floor: everything equal.
    made = input_scales(dense_model(relevance_floor=9.0), released)
    assert np.unique(made).size == 1


@both_kinds
def test_a_fit_draws_what_the_plan_draws(kind):
    model, p, data = fitted(kind)
    other = following(KINDS[kind][0](), pretrained(kind))
    plan_of(other, data=data).carry_out()
    np.testing.assert_array_equal(other.get_layer("first").relevance,
                                  p.relevance)  # fmt: skip
    first, second = noises(model), noises(other)
    assert len(first) == len(second) == 4
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)
        assert np.all(a != 0)


# The fixed noise, over many draws --------------------


def test_noise_follows_the_scales():
    # Fixed seed, the same draws on every backend. Mean of 400 |Laplace(1)|
    # is 1 +- 0.05, so a feature's false alarm is below 1e-4, and 2/3 and
    # 3/2 of a scale are rejected. Kolmogorov-Smirnov: false alarm 1e-3.
    average = np.array([1.0, 0.5, 0.25, 0.125, 0.01, 0.0])
    model = released_average(dense_model(), average)
    plan = plan_of(model, epsilon=1e6)
    _, first, head = model.layers
    epsilon = Fraction(EPSILON)
    # Scales at EPSILON from a ledger that lets 400 releases pass.
    plan.epsilons = {k: v * EPSILON / 1e6 for k, v in plan.epsilons.items()}
    drawn = {k: [] for k in ("relevance", "input", "bias", "linear", "diag")}
    for _ in range(400):
        for layer in (first, head):
            layer._hidden.variables.clear()
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
            box(),
            fm.layers.PerturbedAffine(
                2, activation="sigmoid", adaptive=True, name="first"
            ),
            fm.layers.PrivateDense(2),
        ]
    )
    average = np.geomspace(1e-3, 1, d)
    plan_of(released_average(model, average, n=10**9)).carry_out()
    released = model.layers[1].relevance
    np.testing.assert_allclose(released, average, atol=1e-3)
    drawn = hidden(model.layers[1])["input_noise"]
    for layer in model.layers[1:]:
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
    make = KINDS[kind][0](noise="per_step")
    model, p, _ = fitted(kind, make=make)
    kept = hidden(model.layers[1])
    scales = input_scales(KINDS[kind][0](), p.relevance)
    np.testing.assert_allclose(kept["input_noise"], scales, rtol=1e-6)
    bias = KINDS[kind][3] / 0.5 / BATCH
    np.testing.assert_allclose(kept["bias_noise"], bias, rtol=1e-6)
    assert "drawn again at every step" in p.ledger.entries[1].reads


def test_training_sees_the_shifted_inputs_and_the_perturbed_loss():
    x, y = (a[:BATCH] for a in dense_records())
    model = dense_model(keras.optimizers.SGD(0.0))
    following(model, pretrained("dense"))
    loss = fit(model, (x, y), published(data=(x, y)))
    first, head = (hidden(layer) for layer in model.layers[1:])
    kernel, bias, out, out_bias = model.get_weights()
    plain = compiled([keras.Input((6,)), *dense_model().layers[1:]])
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
    layer = following(model, network).get_layer("first")
    return layer._average_relevance(plan_of(model, data=data))


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
            box(),
            fm.layers.PerturbedAffine(
                4, activation="sigmoid", adaptive=True, name="first"
            ),
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
    model = following(dense_model(relevance_form=form), network)
    plan_of(model, data=data).carry_out()
    found = model.get_layer("first").relevance
    noise = mechanisms.NoiseSource(3).generator().laplace(0.0, 0.08, 6)
    wanted = exact_average(form, data[0], network)
    np.testing.assert_allclose(found, wanted + noise, atol=1e-5)


def test_relevance_form_reaches_the_fit():
    _, paper, data = fitted()
    _, code, _ = fitted(make=dense_model(relevance_form="code"))
    network = pretrained("dense")
    np.testing.assert_allclose(
        paper.relevance - code.relevance,
        exact_average("paper", data[0], network)
        - exact_average("code", data[0], network),
        atol=1e-5,
    )
    assert np.abs(paper.relevance - code.relevance).max() > 1e-2


def test_any_model_with_the_same_inputs_will_do():
    data = dense_records()
    network = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(5, "relu"),
         keras.layers.Dense(3, "softmax")]
    )  # fmt: skip
    model, p = following(dense_model(), network), published(data=data)
    fit(model, data, p)
    rows = relevance.layer_wise(network, data[0])
    average = claims.normalised_relevance(rows).mean(axis=0)
    noise = mechanisms.NoiseSource(3).generator().laplace(0.0, 0.08, 6)
    np.testing.assert_allclose(p.relevance, average + noise, atol=1e-5)


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
    assert "pre-trained on the records" in entries[0].reads


def test_every_reason_is_a_sentence_and_names_the_document():
    _, p, _ = fitted()
    reasons = [e.proof for e in p.ledger.entries]
    assert len(set(reasons)) == 3
    for reason in reasons:
        assert reason.startswith("none. ")
        sentence, _, place = reason.removeprefix("none. ").partition("; ")
        assert len(sentence.split()) > 10 and sentence[0].isupper()
        assert place == "see docs/guarantees.md"
    root = pathlib.Path(fm.__file__).parents[1]
    if (root / "docs").exists():
        assert (root / "docs/guarantees.md").exists()


@pytest.mark.once
def test_the_report_says_claimed_and_proven_infinity():
    _, p, _ = fitted()
    text = p.report()
    assert "proven:     (epsilon = inf" in text and "no valid proof" in text
    assert "claimed:    (epsilon = 2, " in text and "not a guarantee" in text
    # Once at the top, once for each perturbation.
    assert text.count("docs/guarantees.md") == 4
    assert "\nwhy:        The network whose relevance" in text
    assert "NOT PRIVATE" in text and "covered:" not in text
    secret = mechanisms.NoiseSource(3).generator().laplace(0.0, 0.08, 6)
    assert not any(f"{v:.4g}" in text for v in [*p.relevance, *secret])


def test_a_secret_seed_is_not_labelled_reproducible():
    _, p, _ = fitted(seed=None)
    assert all(e.private for e in p.ledger.entries)
    assert "NOT PRIVATE" not in p.report()
    assert p.ledger.epsilon() == np.inf


@pytest.mark.once
def test_the_plan_reads_nothing():
    p = published(data=Unreadable())
    text = p.plan(following(dense_model(), Unreadable()))
    assert "first (relevance) (claimed): claimed_epsilon 0.5" in text
    assert "head (claimed): claimed_epsilon 1, laplace_scale 33.75" in text
    assert not p.ledger.entries


@pytest.mark.once
def test_second_fit_draws_and_charges_nothing():
    model, p, data = fitted(epochs=2)
    first, released = noises(model), p.relevance.copy()
    p.data = Unreadable()
    fit(following(model, Unreadable()), data, p)
    for a, b in zip(first, noises(model)):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(p.relevance, released)
    assert len(p.ledger.entries) == 3 and len(first) == 4


# Fewer perturbations --------------------


@both_kinds
@pytest.mark.once
def test_identical_noise_keeps_equal_shares(kind):
    build, records, _, sensitivity = KINDS[kind]
    data, model = records(), build(adaptive=False)
    p = published()
    fit(model, data, p)
    entries = p.ledger.entries
    assert [e.name for e in entries] == ["first", "head"]
    assert [e.mechanism["claimed_epsilon"] for e in entries] == [1.0, 1.0]
    assert p.relevance is None
    scales = input_scales(build(adaptive=False))
    assert scales.shape == model.input_shape[1:]
    np.testing.assert_allclose(scales, sensitivity / 1.0 / BATCH, rtol=1e-15)
    assert p.ledger.epsilon() == np.inf


@pytest.mark.once
def test_adaptive_beside_identical_layers_share_equally():
    keras.utils.set_random_seed(0)
    model = compiled(
        [
            keras.Input((6,)),
            box(),
            fm.layers.PerturbedAffine(
                4, activation="sigmoid", adaptive=True, name="first"
            ),
            fm.layers.PerturbedAffine(5, activation="sigmoid", name="second"),
            fm.layers.PrivateDense(3, name="head"),
        ]
    )
    plan = plan_of(model)
    assert plan.epsilons == {
        "first (relevance)": 0.5, "first": 0.5, "second": 0.5, "head": 0.5,
    }  # fmt: skip
    average = np.array([1.0, 2, 3, 4, 5, 6])
    assert np.unique(input_scales(model, average)).size == 6
    for layer in model.layers[1:]:
        layer._hidden.variables.clear()
    scales = input_scales(model, average, name="second")
    np.testing.assert_allclose(scales, 2 * 5 * 4 / 0.5 / BATCH)


def test_linear_order_alone_leaves_the_quadratic_noise_zero():
    model, p, _ = fitted(orders=("linear",))
    head = hidden(model.layers[-1])
    assert np.all(head["linear_noise"] != 0)
    assert np.all(head["quadratic_noise"] == 0)
    assert "on the linear coefficients" in p.ledger.entries[2].reads
    model, _, _ = fitted(orders=("quadratic",))
    head = hidden(model.layers[-1])
    assert np.all(head["linear_noise"] == 0)
    assert np.all(head["quadratic_noise"] != 0)


# Files --------------------


@both_kinds
@pytest.mark.parametrize("noise", ["once", "per_step"])
def test_no_noise_in_a_file_and_a_loaded_model_predicts_the_same(
    kind, noise, tmp_path
):
    model, p, data = fitted(kind, make=KINDS[kind][0](noise=noise))
    secret = np.concatenate([v.ravel() for v in noises(model)])
    secret = np.concatenate([secret, p.relevance.ravel().astype("float32")])
    secret = secret[secret != 0]
    assert secret.size > KINDS[kind][2]
    numbers, content = everything_saved(model, tmp_path)
    assert numbers.size > 40 and not np.isin(secret, numbers).any()
    text = str(content) + repr(model.variables) + repr(p.__dict__["_noise"])
    assert not any(repr(float(v)) in text for v in secret)
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert not loaded.layers[1].is_perturbed
    assert not loaded.layers[-1].is_perturbed
    assert loaded.layers[1].adaptive and loaded.layers[1].noise == noise
    np.testing.assert_array_equal(
        loaded.predict(data[0], verbose=0), model.predict(data[0], verbose=0)
    )
    with pytest.raises(ValueError, match="has no release, so training it"):
        loaded.fit(*data, batch_size=BATCH, verbose=0)


@both_kinds
def test_inference_has_no_noise(kind):
    model, _, (x, _) = fitted(kind)
    plain = twin_of(KINDS[kind][0]())
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(
        model.predict(x, verbose=0), plain.predict(x, verbose=0)
    )
    noisy = array(model(x[:8], training=True))
    assert np.abs(noisy - array(plain(x[:8], training=True))).max() > 1e-3


# Refusals, all before anything is charged --------------------


def refused(match, p, model=None, data=None, error=ValueError):
    model = model or following(dense_model(), dense_model())
    with pytest.raises(error, match=match):
        fit(model, data or dense_records(), p)
    assert not p.ledger.entries, "something was charged"
    assert p.relevance is None and not noises(model)


def test_without_its_noise_it_does_not_train():
    model, data = dense_model(), dense_records()
    before = model.get_weights()
    with pytest.raises(ValueError, match="'first' has no release, so train"):
        model.fit(*data, batch_size=BATCH, verbose=0)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)
    # And what was trained without is never perturbed.
    twin = pretrained("dense")
    twin.compile("adam", fm.losses.TaylorCrossEntropy())
    refused("built with `unprotected=True`", published(data=data), twin)


@pytest.mark.once
def test_missing_network_or_records():
    data = dense_records()
    match = r"Layer 'first' has `adaptive=True`.*relevance_of\(twin\)`"
    refused(match, published(data=data), dense_model())
    refused(match, published())
    refused(match, published(), dense_model())
    refused(match, published(), conv_model(), image_records())


def test_a_network_of_other_inputs():
    data = dense_records()
    wide = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5),
            fm.layers.PerturbedAffine(4, name="first"),
            fm.layers.PrivateDense(3),
        ]
    )
    refused("has 5 entries, but layer 'first' has 6 input feat.*unprotected",
            published(data=data), following(dense_model(), wide))  # fmt: skip
    narrow = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    refused("must have the model's inputs", published(data=data),
            following(dense_model(), narrow))  # fmt: skip
    refused("must be a built and trained Keras model", published(data=data),
            following(dense_model(), "net"))  # fmt: skip
    empty = (data[0][:0], data[1][:0])
    refused("holds no record", published(data=empty))


def test_a_network_without_rules():
    network = keras.Sequential(
        [keras.Input((6,)), keras.layers.Reshape((6, 1)),
         keras.layers.LSTM(3)]
    )  # fmt: skip
    refused("LSTM.*no relevance rule", published(data=dense_records()),
            following(dense_model(), network))  # fmt: skip


@pytest.mark.once
def test_wrong_number_of_shares():
    for shares in ((0.5, 0.5), (0.25,) * 4):
        p = published(data=Unreadable(), shares=shares)
        refused("`shares` must hold one share.*'first \\(relevance\\)'", p)
    refused("`shares` must hold one share",
            published(shares=(0.25, 0.25, 0.5)),
            dense_model(adaptive=False))  # fmt: skip


@pytest.mark.once
def test_a_spent_budget_reads_nothing():
    p = published(data=Unreadable())
    p.ledger.charge(
        [
            fm.LedgerEntry(
                name="earlier",
                guarantee="claimed",
                neighbours="replace_one",
                mechanism={"claimed_epsilon": 0.1},
                reads="nothing",
                proof="none",
            )
        ]
    )
    model = following(dense_model(), dense_model())
    with pytest.raises(fm.BudgetExceededError, match="Nothing was read"):
        fit(model, dense_records(), p)
    assert len(p.ledger.entries) == 1 and not noises(model)


def test_another_lot_size():
    p = published(data=Unreadable(), lot=49)
    refused("same `batch_size`.*49 and 50", p)


@pytest.mark.parametrize(
    "fields, match",
    [
        ({"shares": (0.5, 0.5, 0.5)}, "greater than 0 and sum to 1"),
        ({"shares": (0.0, 0.5, 0.5)}, "greater than 0 and sum to 1"),
        ({"shares": (-0.5, 0.5, 1.0)}, "greater than 0 and sum to 1"),
        ({"shares": (float("nan"), 0.5, 0.5)}, "greater than 0 and sum"),
        ({"shares": ()}, "greater than 0 and sum to 1"),
        ({"orders": ()}, "`orders`.*must name"),
        ({"orders": ("cubic",)}, "`orders`.*must name"),
        ({"lot": 0}, "pass the `batch_size`"),
    ],
)
def test_bad_arguments(fields, match):
    with pytest.raises(ValueError, match=match):
        published(**fields)


@pytest.mark.once
def test_a_proven_model_refuses_perturbed_convolutions():
    x, y = image_records()
    model = conv_model(adaptive=False)
    p = PrivateModel(fm.PrivacyBudget(3.0, 1e-5), data=(x, y))
    with pytest.raises(
        ValueError,
        match=r"'first' \(PerturbedConv2D\) cannot be part of a proven "
        r"model.*\(or Conv2D\)",
    ):
        model.fit(x, y, callbacks=[p], verbose=0)
    assert not p.ledger.entries
