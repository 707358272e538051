"""Records in an order that stays, with correlated noise.

The sensitivity is compared with all patterns of small cases and with
jax-privacy's; the noise that is drawn, and what a record moves, with the
ledger's entry, in whole fits.
"""

import contextlib
import functools
import itertools
import math

import keras
import layer_moves
import numpy as np
import pytest
from layer_moves import D, H, N, network, nothing
from scipy import stats

import keras_fm as fm
from keras_fm.kernel.access import sampling
from keras_fm.kernel.mechanisms import GaussianMechanism, NoiseSource
from keras_fm.kernel.planning import calibration
from keras_fm.lab.auditing import white_box
from keras_fm.per_example.given_records import GivenRecords
from keras_fm.per_example.participation import CorrelatedNoise
from keras_fm.per_example.poisson_samples import KEYS, RECORDS, OrderedSamples

pytestmark = [
    pytest.mark.full,
    pytest.mark.backend,
    pytest.mark.usefixtures("forgetful"),
]

BACKEND = keras.backend.backend()


def strategy(bands, steps):
    """The matrix that the noise is independent under: by the square root of
    the matrix of differences, cut to its bands."""
    root = np.eye(steps)
    for j in range(1, steps):
        value = math.prod((i - 1.5) / i for i in range(1, j + 1))
        root += value * np.eye(steps, k=-j) * (j < bands)
    return np.linalg.inv(root)


# Numbers ---------------------------------------------------------------------


@pytest.mark.once
def test_all_bands_are_a_square_root():
    weights = CorrelatedNoise(9, 9, 9).weights
    np.testing.assert_allclose(
        np.convolve(weights, weights)[:9], [1, -1, *[0] * 7], atol=1e-12
    )


@pytest.mark.once
@pytest.mark.parametrize("bands", [1, 2, 3, 7])
@pytest.mark.parametrize("separation, passes", [(3, 2), (2, 4), (1, 5), (7, 1)])
def test_no_pattern_moves_more_than_the_sensitivity(bands, separation, passes):
    """All sets of steps of a record, with all signs and with contributions in
    several directions; one pattern reaches the bound."""
    steps = separation * passes
    noise = CorrelatedNoise(bands, separation, steps)
    matrix, rng, most = strategy(bands, steps), np.random.default_rng(0), 0.0
    for first in range(separation):
        own = range(first, steps, separation)
        for signs in itertools.product((-1, 0, 1), repeat=passes):
            change = np.zeros((steps, 1))
            change[own, 0] = signs
            most = max(most, np.linalg.norm(matrix @ change))
        for _ in range(20):
            change = np.zeros((steps, 3))
            change[own] = rng.normal(size=(passes, 3))
            change /= np.maximum(np.linalg.norm(change, axis=1), 1)[:, None]
            most = max(most, np.linalg.norm(matrix @ change))
    assert most <= noise.sensitivity <= most * (1 + 1e-5)
    sums = np.tril(np.ones((steps, steps))) @ np.linalg.inv(matrix)
    error = noise.sensitivity * math.sqrt(np.sum(sums**2) / steps)
    assert noise.error == pytest.approx(error, rel=1e-9)


@pytest.mark.skipif(BACKEND != "jax", reason="jax-privacy needs JAX")
@pytest.mark.parametrize("bands", [1, 4, 30])
@pytest.mark.parametrize("separation, passes", [(30, 1), (10, 3), (2, 15)])
def test_the_sensitivity_is_that_of_jax_privacy(bands, separation, passes):
    factorization = pytest.importorskip("jax_privacy.matrix_factorization")
    steps = separation * passes
    column = np.asarray(strategy(bands, steps)[:, 0], "float32")
    theirs = factorization.toeplitz.minsep_sensitivity_squared(
        column, min_sep=separation, max_participations=passes, n=steps
    )
    ours = CorrelatedNoise(bands, separation, steps).sensitivity
    assert ours == pytest.approx(math.sqrt(theirs), rel=1e-4)


@pytest.mark.once
def test_bands_are_chosen_by_the_error_of_sums():
    chosen = fm.Participation().noise(100, 400)
    assert chosen.bands == 16
    assert chosen.error < CorrelatedNoise(1, 100, 400).error / 3
    # Where all records are in every step, nothing is gained.
    assert fm.Participation().noise(1, 20).bands == 1
    assert fm.Participation(bands=9).noise(2, 4).bands == 4


# Batches ---------------------------------------------------------------------


def ordered(bands=3, shuffle=True, seed=None):
    plan = sampling.plan(
        N, sampling="shuffled", batch_size=6, steps=8, delta=1e-5
    )
    taken = [0]
    given = GivenRecords(np.arange(float(N))[:, None], batch_size=6)
    samples = OrderedSamples(
        given,
        plan,
        6,
        (2, 2),
        "int64",
        seed=seed,
        per_epoch=4,
        bands=bands,
        taken=lambda: taken[0],
        shuffle=shuffle,
    )
    return samples, taken


@pytest.mark.once
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pass_takes_the_same_records_in_the_same_steps(shuffle):
    samples, taken = ordered(shuffle=shuffle)
    passes = []
    for _ in range(2):
        batches = []
        for index in range(4):
            (x,) = samples[index]
            held = x["factors"] > 0
            batches.append(np.array(x[RECORDS])[held, 0].tolist())
            taken[0] += 1
        samples.on_epoch_end()
        passes.append(batches)
    assert passes[0] == passes[1]
    found = sum(passes[0], [])
    assert sorted(found) == list(range(N))
    assert (found == sorted(found)) != shuffle


@pytest.mark.once
def test_a_step_has_one_noise_and_knows_that_of_those_before():
    samples, taken = ordered()
    own = []
    for step in range(8):
        if not step % 4:
            # Before an epoch Keras may ask, and say that it ended.
            samples[0]
            samples.on_epoch_end()
        keys, again = (samples[step % 4][0][KEYS] for _ in range(2))
        # Two streams of the map, then those of two earlier steps.
        assert keys.shape == (6, 4, 2)
        for stream in (0, 2, 3):
            np.testing.assert_array_equal(keys[:, stream], again[:, stream])
        own.append(keys[:, 0])
        for back, stream in ((1, 2), (2, 3)):
            before = own[step - back] if step >= back else np.zeros((6, 2))
            np.testing.assert_array_equal(keys[:, stream], before)
        taken[0] += 1
    assert len({v.tobytes() for v in own}) == 8 and np.min(own) > 0
    taken[0] = 6
    with pytest.raises(RuntimeError, match="noise cannot be drawn twice"):
        samples[1]
    first, second = (ordered()[0][0][0][KEYS] for _ in range(2))
    assert not np.any(np.all(first[:, 0] == second[:, 0], axis=-1))
    first, second = (ordered(seed=3)[0][0][0][KEYS] for _ in range(2))
    np.testing.assert_array_equal(first, second)


# Whole fits ------------------------------------------------------------------


def fitted(x, y, neighbours="add_remove", bands=3, owned=None):
    """What the steps of a fit took off the weights, in clips, and the entry."""
    budget = fm.callbacks.PrivateModel(
        8.0, 1e-5, guarantee=fm.Proven(neighbours=neighbours)
    )
    found = layer_moves.moves(
        network(owned),
        x,
        y,
        budget,
        batch_size=6,
        owned=owned,
        participation=fm.Participation(bands=bands),
        shuffle=False,
    )
    (entry,) = budget.ledger.entries
    return found, entry


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("owned", [None, 2])
def test_the_noise_is_that_of_the_entry(neighbours, owned):
    """Steps of a gradient of zero are noise. Under the matrix of the proof it
    is independent, of the deviation that was charged; under others it is
    not."""
    x, y = nothing(N * (owned or 1))
    moves, entry = fitted(x, y, neighbours, owned=owned)
    charged = entry.build_mechanism()
    assert isinstance(charged, GaussianMechanism) and len(moves) == 8
    passed = {}
    for bands in (1, 2, 3):
        noise = strategy(bands, 8) @ moves / charged.stddev
        passed[bands] = layer_moves.are_independent(noise)
    assert passed == {1: False, 2: False, 3: True}


@pytest.mark.skipif(BACKEND == "torch", reason="it runs step by step")
def test_steps_that_run_together_have_the_same_noise():
    """An odd number of steps a pass, run in pairs."""
    x, y = nothing(17)
    private = network(steps_per_execution=2)
    budget = fm.callbacks.PrivateModel(8.0, 1e-5)
    before = private.model.get_weights()[0].ravel()
    private.fit(
        x,
        y,
        batch_size=6,
        epochs=2,
        verbose=0,
        callbacks=[budget],
        participation=fm.Participation(bands=6),
    )
    moved = (before - private.model.get_weights()[0].ravel()) * 12
    stddev = budget.ledger.entries[0].build_mechanism().stddev
    # The sum of all steps: how often the noise of each is in it.
    sums = np.ones(6) @ np.linalg.inv(strategy(6, 6))
    scale = np.linalg.norm(sums) * stddev
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], H * D)
    assert low < np.sum((moved / scale) ** 2) < high


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("place", [0, N - 1])
def test_no_record_moves_all_steps_by_more_than_was_charged(neighbours, place):
    """Gradients of all other records are zero, whatever the weights are, and
    the direction of this one's stays."""
    sums = []
    for label in (1e7, 0.0 if neighbours == "add_remove" else -1e7):
        x, y = nothing()
        x[place], y[place] = 1e3 * (label != 0), label
        moves, entry = fitted(x, y, neighbours)
        sums.append(moves)
    change = strategy(3, 8) @ (sums[0] - sums[1])
    far = np.linalg.norm(change) / entry.build_mechanism().sensitivity
    assert 0.7 < far <= 1 and (far > 0.999) == (place < 6)


@pytest.mark.once
def test_an_audit_finds_no_more_than_was_charged():
    """The best test of what a record moves in three passes shows less than
    the epsilon of the entry, and more than that of one pass."""
    delta = 1e-2
    found = {}
    for passes in (3, 1):
        paid = CorrelatedNoise(3, 4, 4 * passes)
        mechanism = GaussianMechanism(
            sensitivity=paid.sensitivity,
            noise_multiplier=calibration.gaussian_multiplier(1.0, delta),
        )
        change = np.zeros(12)
        change[::4] = 1
        found[passes] = white_box.release_epsilon(
            mechanism,
            strategy(3, 12) @ change,
            noise=NoiseSource(1),
            delta=delta,
            runs=200_000,
        ).epsilon
    assert 0.7 < found[3] < 1 < found[1]


@pytest.mark.once
@pytest.mark.parametrize(
    "change, words",
    [
        ({"participation": fm.Participation(min_separation=5)}, "has 4"),
        ({"participation": "ordered"}, r"fm\.Participation"),
        ({"steps_per_epoch": 3}, "uses every record once"),
        ({"kind": fm.models.DPMAC}, "proven steps of `make_private`"),
    ],
)
def test_what_is_refused_charges_nothing(change, words):
    budget, private = fm.callbacks.PrivateModel(8.0, 1e-5), network()
    kind = change.pop("kind", None)
    if kind is not None:
        layers = [keras.layers.Dense(H, use_bias=False)]
        private = kind((D,), layers, loss="squared_error")
        private.compile("sgd")
    given = {"participation": fm.Participation(), **change}
    with pytest.raises(ValueError, match=words):
        private.fit(
            *nothing(), batch_size=6, verbose=0, callbacks=[budget], **given
        )
    assert not budget.ledger.entries


@pytest.mark.once
@pytest.mark.parametrize("name", ["min_separation", "bands"])
def test_numbers_of_a_participation(name):
    with pytest.raises(ValueError, match=name):
        fm.Participation(**{name: 0})


@pytest.mark.once
def test_the_statement_says_how_records_are_taken():
    _, entry = fitted(*nothing())
    assert "each record in one step of 4" in entry.uses
    assert "correlated over 3 step(s)" in entry.uses
    assert any("the place of each record" in note for note in entry.notes)
    budget = fm.callbacks.PrivateModel(8.0, 1e-5)
    plan = functools.partial(budget.plan, network(), N, batch_size=6, epochs=2)
    text = plan(participation=fm.Participation(bands=3))
    assert "noise correlated over 3 step(s)" in text and "8 step(s)" in text


class _Cut(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def test_a_fit_that_was_cut_off_goes_on_and_pays_again(tmp_path):
    """From the weights of its backup, with noise of its own: earlier noise,
    that steps would take back, is secret and on no disk."""
    weights, path = [], tmp_path / "privacy.json"
    for cut in (True, False):
        budget = fm.callbacks.PrivateModel(
            8.0, 1e-3, ledger=path, guarantee=fm.Proven(spends=0.5)
        )
        noting = layer_moves.Noting()
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        with contextlib.suppress(KeyboardInterrupt):
            network().fit(
                *nothing(),
                batch_size=6,
                epochs=4,
                verbose=0,
                participation=fm.Participation(bands=3),
                callbacks=[backup, budget, noting, *[_Cut()] * cut],
            )
        weights.append(np.array(noting.weights))
    first, second = budget.ledger.entries
    assert first.mechanism == second.mechanism
    np.testing.assert_array_equal(weights[0][-1], weights[1][0])
    stddev = second.build_mechanism().stddev
    steps = [-np.diff(w, axis=0) * 6 / layer_moves.CLIP for w in weights]
    noise = [strategy(3, 8) @ moved / stddev for moved in steps]
    assert layer_moves.are_independent(np.concatenate(noise))


@pytest.mark.once
def test_what_is_shown_of_the_steps_so_far():
    """All steps cost what the ledger says. Records of zeros have no gradient:
    the noisy mean is as long as the noise in it is expected to be, within
    six standard deviations of the mean of 8 lengths of 10,000 numbers."""
    private, seen = network(), []
    budget = fm.callbacks.PrivateModel(2.0, 1e-5)

    def note(*arguments):
        seen.append(private.step_numbers())

    private.fit(
        *nothing(24),
        batch_size=3,
        epochs=3,
        verbose=0,
        callbacks=[budget, keras.callbacks.LambdaCallback(on_epoch_end=note)],
        participation=fm.Participation(bands=2),
    )
    epsilons = [
        value
        for _, numbers in seen
        for name, value in numbers.items()
        if "epsilon" in name
    ]
    assert [taken for taken, _ in seen] == [8, 16, 24]
    assert epsilons == sorted(epsilons) and epsilons[0] < 1.5
    assert epsilons[-1] == pytest.approx(budget.ledger.epsilon(), rel=1e-3)
    last = seen[-1][1]
    length, noise = (v for k, v in last.items() if "length" in k)
    assert length == pytest.approx(noise, rel=6 / math.sqrt(2 * 8 * D * H))
