"""StepNoise: fresh noise for every step, and how many there may be."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer, check_saved
from scipy import stats

from keras_fm.kernel.noise_mechanisms import GaussianMechanism
from keras_fm.stacks.step_noise import StepNoise

X = np.random.default_rng(0).normal(size=(5, 7)).astype("float32")


def array(x):
    return ops.convert_to_numpy(x)


def noise(multiplier=1.0, sensitivity=1.0):
    """What an entry of a ledger would say."""
    return GaussianMechanism(
        sensitivity=sensitivity, noise_multiplier=multiplier
    )


def fixed(multiplier=1.0, batch=1.0, steps=100, unprotected=True, **kwargs):
    """A layer that may take all its steps, as no fit has them."""
    layer = StepNoise(unprotected=unprotected)
    layer.build((None, 7))
    layer.fix(noise(multiplier), batch, steps, **kwargs)
    layer.allow(steps)
    return layer


def step(layer, shape=(50, 40), value=0.0, symmetric=False):
    sums = [ops.full(shape, value)]
    return array(layer.release(sums, [symmetric])[0])


def test_layer_is_a_keras_citizen(tmp_path):
    check_layer(StepNoise, X, private=True)
    check_saved(StepNoise(), X, tmp_path / "m.keras")


@pytest.mark.parametrize("sensitivity", [0.5, 2 * 2**0.5])
def test_mean_and_variance(sensitivity):
    """The noise is that of the mechanism, whatever its sensitivity is."""
    # Fixed seed. False alarm 1e-3; a scale off by 10 % is rejected.
    layer = StepNoise(unprotected=True)
    layer.build((None, 7))
    layer.fix(noise(3.0, sensitivity), 20.0, 1, seed=5)
    layer.allow(1)
    found = step(layer, (100, 200), value=7.0)
    deviation = 3.0 * sensitivity / 20
    assert layer.deviation == pytest.approx(deviation)
    normal = stats.norm(7 / 20, deviation)
    assert stats.kstest(found.ravel(), normal.cdf).pvalue > 1e-3
    for wrong in (0.9, 1.1):
        other = stats.norm(7 / 20, wrong * deviation)
        assert stats.kstest(found.ravel(), other.cdf).pvalue < 1e-3


def test_symmetric_noise_has_the_density_of_the_frobenius_norm():
    # Fixed seed; 20000 draws, so a variance is off by 5 % in one of 1e6.
    drawn = step(fixed(seed=1), (20000, 3, 3), symmetric=True)
    np.testing.assert_array_equal(drawn, np.swapaxes(drawn, 1, 2))
    entries = drawn[:, [0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
    wanted = np.diag([1, 1, 1, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(np.cov(entries.T), wanted, atol=0.05)


def test_steps_tensors_and_models_have_their_own_noise():
    layer = fixed()
    sums = [ops.zeros((50, 40))] * 2
    draws = [array(d) for d in layer.release(sums, [False] * 2)]
    draws += [step(layer), step(fixed()), step(fixed())]
    for i, first in enumerate(draws):
        assert len(np.unique(first)) > 1900
        for second in draws[:i]:
            # 2000 pairs: beyond 0.15 by chance in one of 1e10.
            assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.15


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="float64 in a process of its own"
)
def test_noise_is_as_fine_as_what_it_hides():
    """float32 noise on float64 sums told which of two sums it was: what is
    left without the right one has 24 bits."""
    sums = [ops.full((40,), 0.1, dtype="float64")]
    layer = fixed(3.0)
    made = array(layer.release(sums, [False])[0])
    assert made.dtype == "float64"
    drawn = (made - 0.1) / 3.0
    off = abs(drawn.astype("float32") - drawn) / abs(drawn)
    assert np.median(off) > 1e-9


def test_equal_seeds_give_equal_noise_and_a_pause_does_not_repeat_it():
    first, second = fixed(seed=3), fixed(seed=3)
    one = step(first)
    np.testing.assert_array_equal(one, step(second))
    second.fix(noise(), 1.0, 100, seed=3)
    assert np.abs(step(first) - step(second)).max() > 0.1
    assert np.abs(one - step(fixed(seed=4))).max() > 0.1


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow",
    reason="others have a host generator",
)
def test_both_words_of_the_seed_count():
    layer = fixed()
    words = np.array([[11, 500], [12, 500], [11, 900], [500, 11]])
    found = []
    for pair in words:
        layer._get_hidden("seed").assign(pair)
        found.append(step(layer, (20,)))
    for i in range(4):
        for j in range(i):
            assert np.abs(found[i] - found[j]).max() > 0.1


def test_the_words_come_from_the_operating_system(monkeypatch):
    from keras_fm.stacks import step_noise

    asked = []

    def randbits(bits):
        asked.append(bits)
        return 99

    monkeypatch.setattr(step_noise.secrets, "randbits", randbits)
    first, second = fixed(), fixed()
    assert asked == [128, 128]
    np.testing.assert_array_equal(step(first), step(second))


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="others run every step"
)
def test_no_compiled_step_holds_words_of_the_host():
    """They would be the same in every run: noise that is drawn once."""
    import jax

    layer = fixed()
    with pytest.raises(ValueError, match="key of its batch"):
        jax.jit(lambda v: layer.release([v], [False]))(ops.zeros((3,)))

    @jax.jit
    def of_batch(key, value):
        with layer.on_batch(key):
            return layer.release([value])[0], layer.release([value])[0]

    drawn = [
        array(v)
        for _ in range(2)
        for v in of_batch(layer.key_of_batch(), ops.zeros((3,)))
    ]
    assert len(np.unique(np.stack(drawn))) == 12


# Counting --------------------


def test_steps_beyond_the_allowed_release_nothing():
    layer = fixed(steps=2)
    assert np.abs(step(layer, value=5.0)).max() > 0
    assert np.abs(step(layer, value=np.nan)).max() != 0
    for value in (5.0, np.nan):
        assert np.all(step(layer, value=value) == 0)
    assert (layer.steps_taken, layer.steps_allowed) == (2, 2)
    assert layer.steps_refused == 2


def test_steps_are_allowed_for_a_while_only():
    layer = fixed(steps=10)
    layer.allow(0)
    assert np.all(step(layer, value=5.0) == 0)
    layer.allow(2)
    assert [np.any(step(layer)) for _ in range(3)] == [True, True, False]
    # Those that were not taken are not kept for later.
    layer.allow(3)
    step(layer)
    layer.allow(1)
    assert [np.any(step(layer)) for _ in range(2)] == [True, False]
    assert (layer.steps_taken, layer.steps_allowed) == (4, 10)
    layer.allow(3)
    layer.disarm()
    assert np.all(step(layer, value=5.0) == 0)


def test_a_call_in_training_needs_an_armed_layer():
    layer, callback = StepNoise(), object()
    np.testing.assert_array_equal(array(layer(X)), X)
    with pytest.raises(ValueError, match="has no noise.*unprotected=True"):
        layer(X, training=True)
    layer.arm(callback)
    with pytest.raises(ValueError, match="has no noise"):
        layer(X, training=True)
    layer.fix(noise(), 1.0, 3)
    np.testing.assert_array_equal(array(layer(X, training=True)), X)
    assert layer.armed_by is callback
    layer.disarm()
    with pytest.raises(ValueError, match="in a fit with its ledger only"):
        layer(X, training=True)
    twin = StepNoise(unprotected=True)
    np.testing.assert_array_equal(array(twin(X, training=True)), X)


def test_the_twin_takes_no_ledger_and_no_file_with_one(tmp_path):
    twin = StepNoise(unprotected=True)
    model = keras.Sequential([keras.Input((7,)), twin])
    with pytest.raises(ValueError, match="twin is never released"):
        twin.fix(noise(), 1.0, 3, ledger_json="{}")
    released = fixed(unprotected=False, ledger_json="{}")
    step(released)
    path = tmp_path / "m.weights.h5"
    keras.Sequential([keras.Input((7,)), released]).save_weights(path)
    with pytest.raises(ValueError, match="file holds a release"):
        model.load_weights(path)
    # Nothing is left of either.
    assert not twin.is_perturbed and not twin.has_seed
    assert (twin.steps_taken, twin.steps_allowed) == (0, 0)
    again = saved(twin, tmp_path / "twin.keras").layers[0]
    assert again.unprotected and again.get_config()["unprotected"]


@pytest.mark.parametrize("published", [False, True])
def test_a_file_says_whether_the_steps_are_proven(published, tmp_path):
    layer = fixed(
        unprotected=False, ledger_json='{"a": 1}', published=published
    )
    loaded = saved(layer, tmp_path / "m.keras").layers[0]
    assert loaded.is_released and loaded.published == published


def test_noise_is_not_fixed_twice_while_steps_are_allowed():
    layer = fixed(2.0, 10.0, 3, unprotected=False)
    step(layer)
    for multiplier, batch in ((1.0, 10.0), (2.0, 9.0)):
        with pytest.raises(ValueError, match="2 of its steps are still"):
            layer.fix(noise(multiplier), batch, 3)
    with pytest.raises(ValueError, match="must be greater"):
        layer.fix(noise(2.0), 10.0, 1)
    layer.fix(noise(2.0), 10.0, 5, ledger_json='{"a": 1}')
    assert (layer.steps_taken, layer.steps_allowed) == (1, 5)
    layer.allow(4)
    for _ in range(4):
        step(layer)
    # All taken: another run may have other noise.
    layer.fix(noise(), 3.0, 6)
    assert layer.noise_multiplier == 1.0 and layer.expected_batch_size == 3.0
    assert layer.ledger_json == '{"a": 1}'


def saved(layer, path):
    model = keras.Sequential([keras.Input((7,)), layer])
    model.save(path)
    return keras.saving.load_model(path)


def test_counts_and_facts_are_saved_seeds_are_not(tmp_path):
    layer = fixed(2.0, 10.0, 3, unprotected=False, ledger_json='{"a": 1}')
    step(layer)
    loaded = saved(layer, tmp_path / "m.keras").layers[0]
    assert (loaded.steps_taken, loaded.steps_allowed) == (1, 3)
    assert loaded.is_perturbed and not loaded.has_seed
    assert loaded.ledger_json == '{"a": 1}'
    if keras.backend.backend() == "tensorflow":
        assert not np.any(array(loaded._get_hidden("seed")))
    with pytest.raises(ValueError, match="still"):
        loaded.fix(noise(1.0), 10.0, 3)
    loaded.fix(noise(2.0), 10.0, 3)
    assert loaded.has_seed
    for name in ("noise_multiplier", "expected_batch_size", "steps_taken"):
        assert getattr(loaded, name) == getattr(layer, name)
    plain = saved(StepNoise(), tmp_path / "plain.keras").layers[0]
    assert not plain.is_perturbed and plain.ledger_json is None
    # What a step may do is in no file.
    assert np.all(step(loaded) == 0) and loaded.armed_by is None


def test_counts_never_go_back(tmp_path):
    layer = fixed(steps=5)
    model = keras.Sequential([keras.Input((7,)), layer])
    weights = model.get_weights()
    step(layer)
    model.save_weights(tmp_path / "m.weights.h5")
    step(layer)
    model.set_weights(weights)
    model.load_weights(tmp_path / "m.weights.h5")
    assert layer.steps_taken == 2
    other = keras.Sequential([keras.Input((7,)), fixed(9.0)])
    with pytest.raises(ValueError, match="under other noise"):
        other.load_weights(tmp_path / "m.weights.h5")


def test_state_is_in_no_weight_config_or_repr():
    layer = fixed(seed=4)
    assert layer.weights == [] and layer.get_weights() == []
    # The state of steps on JAX: four counts.
    assert len(layer.variables) == (
        4 if keras.backend.backend() == "jax" else 0
    )
    words = np.random.SeedSequence([4, 0]).generate_state(2) % (2**31 - 2)
    text = f"{layer!r}{layer.variables}{layer.get_config()}{vars(layer)}"
    assert not any(str(word) in text for word in words)


@pytest.mark.parametrize(
    "values, match",
    [
        ((-1.0, 1), "`expected_batch_size`"),
        ((float("inf"), 1), "`expected_batch_size`"),
        ((1.0, 0), "`steps`"),
        ((1.0, 1.5), "`steps`"),
        ((1.0, 1, -1), "`seed`"),
        ((1.0, 1, "a"), "`seed`"),
    ],
)
def test_errors(values, match):
    layer = StepNoise()
    layer.build((None, 7))
    with pytest.raises(ValueError, match=match):
        layer.fix(noise(), *values)
    assert not layer.is_perturbed
