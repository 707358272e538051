"""What a fit with PrivateEncoder layers promises beside what it shares with
others (test_pretrained_rooms.py): proven and published."""

import numpy as np
import pytest
from fit_checks import Reader, names
from pretrained_rooms import (
    DELTA,
    DPA,
    array,
    hidden_of,
    planned,
    private,
)

import keras_fm as fm
from keras_fm.papers.dpa import claims

N, D = DPA.number, 6
records, model, by_hand = DPA.records, DPA.model, DPA.by_hand
fit, fitted, refused = DPA.fit, DPA.fitted, DPA.refused
published_model, published = DPA.published_model, DPA.published_private

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.full]


# Proven: order, budget and plan --------------------


@pytest.mark.parametrize("source", ["moments", "random"])
@pytest.mark.once
def test_sensitivities_by_hand(source):
    for neighbours, factor in (("add_remove", 1), ("replace_one", 2**0.5)):
        p = private(records(), delta=DELTA, neighbours=neighbours)
        m = model(units=None, source=source, rounds=2)
        p.plan(m.autoencoder())
        first, second = planned(p)
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


# Proven: no record moves a weight --------------------


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


# Proven: crashes --------------------


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


# Published --------------------


@pytest.mark.parametrize(
    "noise_on, shares", [("coefficients", None), ("hidden", (0.2, 0.3, 0.5))]
)
@pytest.mark.once
def test_claims_make_the_budget_and_nothing_is_proven(noise_on, shares):
    x, y = records()
    settings = fm.models.PublishedDPA(noise_on=noise_on)
    m = published_model(guarantee=settings)
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
    assert where in entries[0].uses
    report = p.report()
    assert "proven:     (epsilon = inf" in report
    assert "\nwhy:        The codes depend on the encoder's weights" in report
    assert entries[0].proof == claims.RECONSTRUCTION_REASON
    assert report.count("docs/guarantees.md") == 4


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
    m = published_model(
        hidden=(400,), guarantee=fm.models.PublishedDPA(noise_on="hidden")
    )
    p = published(m, (x, y), epsilon=8.0)
    m.pretrain(x, p, epochs=1)
    hidden = hidden_of(m.encoders[0])["hidden_noise"]
    scale = 6 * (400 + 40_000) / 4.0 / N
    assert hidden.shape == (400,)
    assert np.abs(hidden).mean() == pytest.approx(scale, rel=5 / 20)
