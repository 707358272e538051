"""The noise that is drawn is that of the ledger's entry, in every form.

Two things, for whole fits under every relation, unit and sampling:

* how much noise is in what a fit publishes: as much as its entry says. Half,
  two thirds, three halves and twice of it are rejected;
* how far neighbouring records move what is released: not farther than the
  sensitivity that the entry states, and an extremal pair reaches it.

Steps are looked at from outside, through the weights that plain descent leads
to: records of zeros under layers without a bias have a gradient of zero, so
that what moves the weights is noise alone. Releases are looked at where their
noise is drawn; `test_neighbours_of_models.py` moves their records.
"""

import math

import keras
import numpy as np
import pytest
from keras import layers as L
from private_forms import FORMS, LABELS, RECORDS, records_of
from scipy import stats

import keras_fm as fm
from keras_fm.kernel import mechanisms
from keras_fm.papers.dpmac import coefficient_sums
from keras_fm.per_example import sum_noise

N, D, H, M = 40, 60, 20, 55
# Numbers that a scale is estimated from, at least.
ENOUGH = 1000
# Of every question whether a scale is right: the noise is secret, so no seed
# keeps a test from failing. One below asks five at most.
FALSE_ALARM = 1e-7
WRONG = (0.5, 2 / 3, 1.5, 2.0)

pytestmark = [
    pytest.mark.usefixtures("untraced", "forgetful"),
    pytest.mark.backend,
    pytest.mark.optimised,
]


def check_scale(noise, laplace=False):
    """That numbers have the deviation 1 (of Laplace noise, the scale 1), and
    that wrong ones would not pass."""
    noise = np.ravel(noise).astype("float64")
    assert noise.size >= ENOUGH
    total = np.sum(2 * np.abs(noise) if laplace else noise**2)
    degrees = noise.size * (2 if laplace else 1)
    power = 1 if laplace else 2
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], degrees)
    assert low <= total <= high, (total / degrees) ** (1 / power)
    for wrong in WRONG:
        assert not low <= wrong**power * total <= high


# Steps -----------------------------------------------------------------------


def stack():
    """Linear layers, whose outputs of a record of zeros are zeros."""
    keras.utils.set_random_seed(1)
    return [L.Dense(H, use_bias=False), L.Dense(M, use_bias=False)]


def gradients(**arguments):
    return made(fm.models.GradientNet, **{"clip": 0.1, **arguments})


def coordinates(**arguments):
    return made(fm.models.DPMAC, z_steps=2, **{"clip": [0.1, 0.7], **arguments})


def made(kind, eagerly=False, **arguments):
    model = kind((D,), stack(), loss="squared_error", **arguments)
    model.compile(keras.optimizers.SGD(1.0), run_eagerly=eagerly)
    return model


STEPPED = {
    "one clip": gradients,
    "divided by norms": lambda **more: gradients(clip=None, **more),
    "auxiliary coordinates": coordinates,
}
# Relation, sampling, and how many records an owner has; 0 without owners.
READ = {
    "add_remove, samples": ("add_remove", "poisson", 0),
    "add_remove, samples of owners": ("add_remove", "poisson", 2),
    "add_remove, all": ("add_remove", "full", 0),
    "add_remove, all owners": ("add_remove", "full", 2),
    "replace_one, all": ("replace_one", "full", 0),
    "replace_one, all owners": ("replace_one", "full", 2),
}


def taken(form, read, x, y, steps, seed=None, epsilon=2.0, **arguments):
    """What a fit takes off the weights of each layer, as a sum over records
    in units of the layer's clip, and the entry that pays for it."""
    relation, sampling, owned = READ[read]
    unit, units = {}, len(x) // max(owned, 1)
    if owned:
        owners = np.arange(len(x)) // owned
        unit = {"unit": fm.Unit(owners=owners)}
        arguments["rows_per_owner"] = owned
    model = STEPPED[form](**arguments)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(epsilon, 1e-5),
        guarantee=fm.Proven(neighbours=relation, **unit),
        reproducible_noise=seed,
    )
    size = units if sampling == "full" else units - 1
    found = moved(model, x, y, size, steps, private)
    return found, private.ledger.entries[-1].build_mechanism()


def moved(model, x, y, size, steps, private):
    before = model.get_weights()
    model.fit(
        x,
        y,
        batch_size=size,
        steps_per_epoch=steps,
        callbacks=[private],
        verbose=0,
    )
    clips = [model.clip or 1.0] * len(before)
    if isinstance(model, fm.models.DPMAC):
        clips = [clip for _, _, clip in model.partitions]
    return [
        size * (a - b).ravel() / clip
        for a, b, clip in zip(before, model.get_weights(), clips)
    ]


def nothing(n=N):
    return np.zeros((n, D), "float32"), np.zeros((n, M), "float32")


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("form", STEPPED)
def test_the_noise_of_steps_is_that_of_their_entry(form, read):
    found, charged = taken(form, read, *nothing(), steps=3)
    assert charged.steps == 3
    found = [part / (charged.stddev * math.sqrt(3)) for part in found]
    for part in [*found, np.concatenate(found)]:
        check_scale(part)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_published_steps_draw_what_their_entry_says(relation):
    """On shuffled batches, or on all records."""
    (x, y), lot = nothing(), 10 if relation == "add_remove" else N
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(2.0, 1e-5),
        guarantee=fm.Published(lot=lot, neighbours=relation),
    )
    found = moved(coordinates(), x, y, lot, 4, private)
    entry = private.ledger.entries[-1]
    assert entry.guarantee == "claimed" and entry.neighbours == relation
    stddev = (
        entry.mechanism["sensitivity"] * entry.mechanism["noise_multiplier"]
    )
    check_scale(np.concatenate(found) / (stddev * math.sqrt(4)))


# A large record whose label is far to either side of what is predicted.
LARGE = np.full((1, D), 1e3, "float32")
AWAY = np.full((1, M), 1e7, "float32")


def neighbours(read):
    """The records of two data sets that differ in one unit."""
    relation, _, owned = READ[read]
    rows, (x, y) = max(owned, 1), nothing()
    one = (
        np.concatenate([x, np.repeat(LARGE, rows, axis=0)]),
        np.concatenate([y, np.repeat(AWAY, rows, axis=0)]),
    )
    if relation == "add_remove":
        return one, (x, y)
    other = np.concatenate([y, np.repeat(-AWAY, rows, axis=0)])
    return one, (one[0], other)


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("form", STEPPED)
def test_no_unit_moves_a_step_by_more_than_was_charged(form, read):
    """One step from the same weights: what is left of the difference is that
    of the sums."""
    sums = []
    for x, y in neighbours(read):
        # The unit is in the sample of this seed.
        found, charged = taken(form, read, x, y, steps=1, seed=1)
        sums.append(np.concatenate(found))
    far = np.linalg.norm(sums[0] - sums[1]) / charged.sensitivity
    assert 0.999 < far <= 1 + 1e-4


def of_second_order(relation, x, y, monkeypatch):
    """The sums of a step of second order in units of their thresholds, the
    noise on them, what the Newton steps are told of it, and what was
    charged."""
    draw, newton = sum_noise.noisy, coefficient_sums.newton_direction
    seen, told = [], []

    def array(v):
        return np.array(keras.ops.convert_to_numpy(v))

    def noisy(mechanism, sums, keys, symmetric=None):
        found = draw(mechanism, sums, keys, symmetric)
        seen.append(
            [(array(s), array(v) - array(s)) for s, v in zip(sums, found)]
        )
        return found

    def solved(first, second, noise, damping):
        told.append(noise)
        return newton(first, second, noise, damping)

    monkeypatch.setattr(sum_noise, "noisy", noisy)
    monkeypatch.setattr(coefficient_sums, "newton_direction", solved)
    _, charged = taken(
        "auxiliary coordinates",
        f"{relation}, all",
        x,
        y,
        steps=1,
        epsilon=60.0,
        eagerly=True,
        order=2,
        curvature_clip=[0.3, 0.2],
    )
    sums, noise = zip(*seen[0])
    return sums, noise, told[:2], charged


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_second_derivatives_have_the_noise_of_their_entry(
    relation, monkeypatch
):
    _, noise, told, charged = of_second_order(relation, *nothing(), monkeypatch)
    first = [n for n in noise if n.ndim == 2]
    check_scale(np.concatenate([n.ravel() for n in first]) / charged.stddev)
    for drawn in (n for n in noise if n.ndim == 3):
        m = drawn.shape[-1]
        diagonal = drawn[:, range(m), range(m)].ravel()
        upper = (
            math.sqrt(2) * drawn[(slice(None), *np.triu_indices(m, 1))].ravel()
        )
        check_scale(upper / charged.stddev)
        diagonal = np.concatenate([diagonal, upper])
        check_scale(diagonal / charged.stddev)
    # The ridge of the Newton step is half the spectral edge of that noise.
    wanted = [charged.stddev * clip / N for clip in (0.3, 0.2)]
    np.testing.assert_allclose(told, wanted, rtol=1e-6)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
def test_no_record_moves_second_derivatives_by_more_than_was_charged(
    relation, monkeypatch
):
    """Second derivatives of these linear layers are the same on either side,
    so a replaced record moves the first ones alone."""
    sums = []
    for x, y in neighbours(f"{relation}, all"):
        found, _, _, charged = of_second_order(relation, x, y, monkeypatch)
        sums.append(np.concatenate([s.ravel() for s in found]))
    far = np.linalg.norm(sums[0] - sums[1]) / charged.sensitivity
    assert far <= 1 + 1e-4
    assert far > (0.999 if relation == "add_remove" else 0.999 * 2**-0.5)


# Releases --------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """List of `(mechanism, noise)` of every vector that was perturbed, drawn
    again where it is short until there are numbers enough."""
    perturb, found = mechanisms.Mechanism.perturb, []

    def watched(self, exact, source, **arguments):
        exact = np.asarray(exact, np.float64)
        times = -(-ENOUGH // exact.size)
        noisy = [
            perturb(self, exact, source, **arguments) for _ in range(times)
        ]
        found.append((self, np.concatenate([v - exact for v in noisy])))
        return noisy[0]

    monkeypatch.setattr(mechanisms.Mechanism, "perturb", watched)
    return found


def check_drawn(drawn, ledger):
    """That as much noise was drawn as the ledger's entries say: one vector
    for each, or for each of their steps."""
    charged = [
        entry.build_mechanism()
        for entry in ledger.entries
        for _ in range(entry.mechanism.get("steps", 1))
    ]
    assert len(drawn) == len(charged) > 0
    for (mechanism, noise), paid in zip(drawn, charged):
        # The limit to which `test_neighbours_of_models.py` holds releases.
        assert mechanism == paid
        laplace = isinstance(paid, mechanisms.LaplaceMechanism)
        scale = paid.scale if laplace else paid.stddev
        check_scale(noise / scale, laplace)


RELEASED = [form for form in FORMS if "published" not in form]


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("form", RELEASED)
def test_the_noise_of_releases_is_that_of_their_entries(
    drawn, form, neighbours, owned
):
    make, arguments = FORMS[form]
    x = records_of(form)
    unit = {"unit": fm.Unit(owners=np.arange(len(x)) // 2)} if owned else {}
    private = fm.callbacks.PrivateModel(
        arguments.get("budget", fm.PrivacyBudget(4.0, 1e-5)),
        data=(x, LABELS),
        guarantee=fm.Proven(neighbours=neighbours, **unit),
    )
    make().fit(x[:8], LABELS[:8], verbose=0, callbacks=[private])
    check_drawn(drawn, private.ledger)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_noise_of_labels_alone_is_that_of_its_entry(drawn, delta):
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(4.0, delta),
        data=(RECORDS, LABELS),
        guarantee=fm.Proven(neighbours="replace_label"),
    )
    model = FORMS["dense"][0]()
    model.fit(RECORDS, LABELS, verbose=0, callbacks=[private])
    check_drawn(drawn, private.ledger)


@pytest.mark.parametrize("loss", [None, "cross_entropy"])
def test_the_noise_of_rounds_on_samples_is_that_of_their_entry(drawn, loss):
    """Whitened by a release of their own, too."""
    rounds = fm.Rounds(rounds=3, batch_size=20, loss=loss)
    private = fm.callbacks.PrivateModel(
        fm.PrivacyBudget(4.0, 1e-5), data=(RECORDS, LABELS)
    )
    model = FORMS["dense"][0](rounds=rounds)
    model.fit(RECORDS, LABELS, verbose=0, callbacks=[private])
    assert len(private.ledger.entries) == (1 if loss is None else 2)
    check_drawn(drawn, private.ledger)


def test_the_noise_of_learned_thresholds_is_that_of_their_entry(drawn):
    """The histogram of norms; the steps draw theirs by themselves."""
    # So much, and so many, that their counts stand out.
    private = fm.callbacks.PrivateModel(fm.PrivacyBudget(100.0, 1e-5))
    model = coordinates(clip="histogram")
    model.fit(*nothing(10 * N), batch_size=N, callbacks=[private], verbose=0)
    first = private.ledger.entries[0]
    assert [mechanism for mechanism, _ in drawn] == [first.build_mechanism()]
    check_scale(drawn[0][1] / first.build_mechanism().stddev)


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_the_noise_of_estimators_is_that_of_their_entries(
    drawn, kind, neighbours
):
    common = {
        "epsilon": 3.0,
        "delta": 1e-5,
        "bounds": (0.0, 1.0),
        "neighbours": neighbours,
    }
    if kind == "labels":
        estimator = fm.estimators.PrivateClassifier(classes=[0, 1, 2], **common)
        estimator.fit(RECORDS, LABELS)
    else:
        estimator = fm.estimators.PrivateRegressor(
            target_bounds=(0.0, 2.0), **common
        )
        estimator.fit(RECORDS, LABELS.astype(float))
    check_drawn(drawn, estimator.ledger_)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_the_noise_of_private_evaluation_is_that_of_its_entry(
    drawn, neighbours, delta
):
    ledger = fm.Ledger(fm.PrivacyBudget(1.0, delta), neighbours=neighbours)
    fm.evaluation.private_evaluate(
        None,
        (LABELS, LABELS),
        ledger=ledger,
        share=0.5,
        classes=3,
        public="a fixed rule",
    )
    check_drawn(drawn, ledger)


@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_a_private_choice_is_made_by_its_entry(monkeypatch, neighbours):
    """Its law is that of its mechanism: `tests/evaluation/test_choice.py`."""
    perturb, found = mechanisms.PermuteAndFlip.perturb, []

    def watched(self, *arguments, **keywords):
        found.append(self)
        return perturb(self, *arguments, **keywords)

    monkeypatch.setattr(mechanisms.PermuteAndFlip, "perturb", watched)
    ledger = fm.Ledger(fm.PrivacyBudget(1.0, 0.0), neighbours=neighbours)
    others = (LABELS + 1) % 3
    fm.evaluation.private_choice(
        [lambda x: x[:, 0].astype(int), lambda x: x[:, 1].astype(int)],
        (np.stack([LABELS, others], axis=1).astype("float32"), LABELS),
        ledger=ledger,
        share=1.0,
        classes=3,
        public="a fixed rule",
    )
    assert found == [ledger.entries[0].build_mechanism()]


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="jax-privacy needs JAX"
)
@pytest.mark.parametrize("neighbours", ["add_remove", "replace_one"])
def test_the_noise_of_dp_sgd_is_that_of_its_entry(neighbours):
    pytest.importorskip("jax_privacy")
    from keras_fm.lab.baselines import DPSGDConfig, JaxDPSGDClassifier

    keras.utils.set_random_seed(0)
    layer = L.Dense(2 * H, use_bias=False)
    model = keras.Sequential([keras.Input((D,)), layer])
    before = model.get_weights()[0]
    config = DPSGDConfig(
        l2_norm_clip=0.3,
        batch_size=None,
        sampling="full",
        steps=2,
        learning_rate=1.0,
        momentum=0.0,
        optimizer="sgd",
    )
    fit = JaxDPSGDClassifier(model, config, 2.0, 1e-5, neighbours=neighbours)
    x, labels = np.zeros((N, D), "float32"), np.arange(N) % 3
    after = fit.fit(x, labels).to_keras().get_weights()[0]
    charged = fit.ledger.entries[0].build_mechanism()
    moves = 2 if neighbours == "replace_one" else 1
    assert charged.sensitivity == pytest.approx(moves * 0.3)
    check_scale(N * (before - after) / (charged.stddev * math.sqrt(2)))
