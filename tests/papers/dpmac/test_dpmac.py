"""DPMAC: its twin, its noisy steps, and one budget for what is below them."""

import keras
import numpy as np
import pytest
from keras import layers as L
from sklearn import datasets

import keras_fm as fm
from keras_fm.papers.dpmac.dpmac import DPMAC
from keras_fm.per_example import learned_clips, sum_noise

pytestmark = [pytest.mark.full, pytest.mark.optimised]

BACKEND = keras.backend.backend()
X = np.random.default_rng(0).normal(size=(24, 7)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 24)


def array(x):
    return keras.ops.convert_to_numpy(x)


def small(loss="binary_crossentropy", seed=0, optimizer=None, **kwargs):
    """A twin, unless it is asked for otherwise."""
    kwargs.setdefault("unprotected", True)
    keras.utils.set_random_seed(seed)
    last = "tanh" if loss == "squared_error" else None
    units = 7 if loss == "squared_error" else 3
    stack = [L.Dense(5, activation="relu"), L.Dense(units, activation=last)]
    model = DPMAC((7,), stack, loss=loss, z_steps=kwargs.pop("z_steps", 4),
                  **kwargs)  # fmt: skip
    model.compile(optimizer or keras.optimizers.SGD(1.0))
    return model


def weights_of(model):
    return [array(w) for w in model.model.trainable_variables]


def descent(model, x=X, y=Y, **kwargs):
    """What one step of SGD(1) takes off the weights, and the logs."""
    before = weights_of(model)
    logs = model.fit(
        x, y, batch_size=len(x), shuffle=False, verbose=0, **kwargs
    ).history
    return [a - b for a, b in zip(before, weights_of(model))], logs


def mean_loss(model, x, y, weights=None):
    a = model.predict(x, verbose=0).astype(float)
    losses = np.sum(np.logaddexp(a, 0) - np.eye(3)[y] * a, axis=1)
    return np.average(losses, weights=weights)


# The non-private twin --------------------


def test_the_gradient_is_the_mean_coefficient_and_the_loss_the_mean_loss():
    model = small(penalty=0.5)
    mask = np.array([1.0] * 20 + [0.0] * 4)
    sums = sum(model.coefficient_sums(X, Y, mask, clipped=False), [])
    wanted = mean_loss(model, X, Y, mask)
    taken, logs = descent(model, sample_weight=mask)
    assert logs["loss"][0] == pytest.approx(wanted, rel=1e-4)
    for change, value in zip(taken, sums):
        np.testing.assert_allclose(change, value / 20, atol=1e-5)
    wanted = mean_loss(model, X, Y)
    found = model.evaluate(X, Y, verbose=0)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_regularizers_of_weights_are_added():
    model = small()
    plain, _ = descent(model)
    keras.utils.set_random_seed(0)
    penalty = keras.regularizers.L2(0.1)
    stack = [
        L.Dense(5, activation="relu", kernel_regularizer=penalty),
        L.Dense(3),
    ]
    model = DPMAC((7,), stack, z_steps=4, unprotected=True)
    model.compile(keras.optimizers.SGD(1.0))
    kernel = weights_of(model)[0]
    taken, logs = descent(model)
    np.testing.assert_allclose(taken[0], plain[0] + 0.2 * kernel, atol=1e-5)
    np.testing.assert_allclose(taken[2], plain[2], atol=1e-5)


def test_a_newton_step_solves_the_damped_system():
    model = small(order=2, curvature_clip=1.0, damping=0.3)
    sums = model.coefficient_sums(X, Y, clipped=False)
    taken, _ = descent(model)
    for layer in range(2):
        kernel, bias = sums[2 * layer]
        first = np.vstack([kernel, bias]).astype(float) / 24
        for unit, second in enumerate(sums[2 * layer + 1][0].astype(float)):
            # All curvatures of ReLU and cross-entropy are at least 0.
            ridge = second / 24 + 0.3 * np.eye(len(second))
            wanted = np.linalg.solve(ridge, first[:, unit])
            kernel, bias = taken[2 * layer : 2 * layer + 2]
            found = np.append(kernel[:, unit], bias[unit])
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def digits(count=800):
    x, y = datasets.load_digits(return_X_y=True)
    return (x[:count] / 16).astype("float32"), y[:count]


@pytest.mark.parametrize(
    "loss, kwargs, optimizer",
    [
        ("binary_crossentropy", {}, keras.optimizers.Adam(0.01)),
        ("categorical_crossentropy", {}, keras.optimizers.Adam(0.01)),
        (
            "binary_crossentropy",
            {"order": 2, "curvature_clip": 1.0, "damping": 0.03},
            keras.optimizers.SGD(1.0),
        ),
    ],
)
def test_the_twin_learns_digits(loss, kwargs, optimizer):
    keras.utils.set_random_seed(0)
    x, y = digits()
    stack = [L.Dense(30, activation="relu"), L.Dense(10)]
    model = DPMAC((64,), stack, loss=loss, z_steps=10, unprotected=True,
                  **kwargs)  # fmt: skip
    model.compile(optimizer, metrics=["accuracy"])
    epochs = 5 if kwargs else 15
    model.fit(x, y, batch_size=100, epochs=epochs, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] > 0.9


@pytest.mark.parametrize("one_hot", [False, True])
def test_accuracy_of_classes(one_hot):
    model = small()
    model.compile("sgd", metrics=["accuracy"])
    y = np.eye(3, dtype="float32")[Y] if one_hot else Y
    right = np.mean(model.predict(X, verbose=0).argmax(1) == Y)
    assert model.evaluate(X, y, verbose=0)[1] == pytest.approx(right)


@pytest.mark.parametrize("shape", [(24,), (24, 1)])
def test_accuracy_of_one_logit(shape):
    model = DPMAC((7,), [L.Dense(1)], unprotected=True)
    model.compile("sgd", metrics=["accuracy"])
    y = (Y > 0).astype("float32")
    right = np.mean((model.predict(X, verbose=0)[:, 0] > 0) == y)
    found = model.evaluate(X, y.reshape(shape), verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(right)
    assert np.isfinite(model.fit(X, y, verbose=0).history["loss"][0])


def test_integers_and_one_hot_labels_are_the_same():
    model = small()
    wanted = model.coefficient_sums(X, Y)
    for y in (np.eye(3)[Y], Y[:, None]):
        for part, right in zip(model.coefficient_sums(X, y), wanted):
            for a, b in zip(part, right):
                np.testing.assert_array_equal(a, b)


def test_one_layer_is_plain_gradient_descent():
    keras.utils.set_random_seed(0)
    head = L.Dense(3)
    model = DPMAC(
        (7,), [head], loss="categorical_crossentropy", unprotected=True
    )
    model.compile(keras.optimizers.SGD(1.0))
    taken, _ = descent(model)
    keras.utils.set_random_seed(0)
    plain = keras.Sequential([keras.Input((7,)), L.Dense(3)])
    plain.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    before = plain.get_weights()
    plain.fit(X, Y, batch_size=24, shuffle=False, verbose=0)
    for a, b, c in zip(taken, before, plain.get_weights()):
        np.testing.assert_allclose(a, b - c, atol=1e-5)


# Private fits --------------------

DELTA = 1e-5
N, INPUTS, CLASSES, BATCH = 400, 6, 3, 100
LABELS = np.random.default_rng(0).integers(0, CLASSES, N)
RECORDS = np.random.default_rng(1).normal(size=(N, INPUTS))
RECORDS = (RECORDS + 5 * np.eye(CLASSES, INPUTS)[LABELS]).astype("float32")


def build(pca=False, clip=0.5, **arguments):
    below = [fm.layers.NormalizationLayer()]
    if pca:
        below.append(fm.layers.DPPCA(4, name="dppca"))
    keras.utils.set_random_seed(0)
    model = DPMAC(
        (INPUTS,),
        [L.Dense(5, activation="tanh"), L.Dense(CLASSES)],
        below=below,
        clip=clip,
        z_steps=2,
        **arguments,
    )
    model.compile(keras.optimizers.SGD(0.5), metrics=["accuracy"])
    return model


def callback(epsilon=2.0, guarantee="proven", **arguments):
    return fm.callbacks.PrivateModel(
        epsilon=epsilon, delta=DELTA, guarantee=guarantee, **arguments
    )


def fit(model, private, epochs=2, y=LABELS, **arguments):
    return model.fit(
        RECORDS,
        y,
        batch_size=BATCH,
        epochs=epochs,
        callbacks=[private],
        verbose=0,
        **arguments,
    )


@pytest.mark.parametrize("order", [1, 2])
def test_a_noisy_step_is_the_clipped_sums_and_the_noise(order, monkeypatch):
    """Newton steps are a function of noisy sums alone."""
    more = {"curvature_clip": 0.5, "damping": 0.2} if order == 2 else {}
    model = small(order=order, clip=0.01, unprotected=False, **more)
    sums = sum(model.coefficient_sums(X, Y), [])
    drawn = []

    def noisy(mechanism, sums, keys, symmetric=None):
        drawn.append((mechanism.stddev, symmetric))
        return sums

    monkeypatch.setattr(sum_noise, "noisy", noisy)
    taken, logs = descent(model, callbacks=[callback(8.0)])
    (stddev, symmetric), *_ = drawn
    assert set(logs) == {"charged"}
    if order == 1:
        for change, value in zip(taken, sums):
            np.testing.assert_allclose(change, value / 24, atol=1e-6)
        return
    assert symmetric == [False, False, True] * 2
    for layer in range(2):
        kernel, bias, second = (v / 24 for v in sums[3 * layer : 3 * layer + 3])
        first, size = np.vstack([kernel, bias]), len(kernel) + 1
        # Half the spectral edge of the noise.
        ridge = 0.2 + stddev * 0.5 / 24 * np.sqrt(2 * size) / 2
        for unit, matrix in enumerate(second):
            values, vectors = np.linalg.eigh(matrix.astype(float))
            inverse = 1 / (np.maximum(values, 0) + ridge)
            wanted = vectors @ (inverse * (vectors.T @ first[:, unit]))
            found = np.append(taken[2 * layer][:, unit],
                              taken[2 * layer + 1][unit])  # fmt: skip
            np.testing.assert_allclose(found, wanted, atol=2e-6)


@pytest.mark.once
def test_a_plan_meets_its_budget_just_so():
    model, private = build(pca=True), callback()
    planned = private.plan(model, RECORDS, batch_size=BATCH, epochs=2)
    assert not private.ledger.entries
    history = fit(
        model, private, validation_data=(RECORDS[:50] + 1, LABELS[:50] + 0)
    )
    pca, steps = private.ledger.entries
    assert f"multiplier {steps.mechanism['noise_multiplier']:.4g}" in planned
    assert "first: dppca (second moment)" in planned
    assert pca.name == "dppca (second moment)"
    assert steps.mechanism["steps"] == 8
    assert steps.mechanism["sampling_rate"] == BATCH / N
    assert steps.mechanism["sensitivity"] == pytest.approx(2**0.5)
    assert 1.99 < private.ledger.epsilon() <= 2.0
    # Metrics of the records are gone, those of other data stay.
    assert set(history.history) == {"charged", "val_loss", "val_accuracy"}
    assert "proven:     (epsilon = 1.99" in private.report()


def test_it_learns_what_noise_allows(tmp_path):
    model = build(clip=[0.5, 0.5])
    model.compile(keras.optimizers.Adam(0.05), metrics=["accuracy"])
    private = callback(50.0, reproducible_noise=1)
    fit(model, private, epochs=15)
    assert model.evaluate(RECORDS, LABELS, verbose=0)[1] > 0.8
    assert private.ledger.epsilon() == np.inf  # whoever has the seed
    model.save(tmp_path / "plain.keras")
    plain = keras.saving.load_model(tmp_path / "plain.keras")
    np.testing.assert_allclose(
        plain.predict(RECORDS, verbose=0),
        model.predict(RECORDS, verbose=0),
        atol=1e-5,
    )


@pytest.mark.once
def test_shuffled_batches_are_claimed():
    shuffled = fm.Published(lot=BATCH, neighbours="add_remove")
    model, private = build(pca=True), callback(guarantee=shuffled)
    fit(model, private)
    pca, steps = private.ledger.entries
    assert (pca.guarantee, steps.guarantee) == ("proven", "claimed")
    assert private.ledger.epsilon() == np.inf
    assert 1.99 < private.ledger.claimed_epsilon() <= 2.0
    assert "assumes that each record joins" in private.report()


@pytest.mark.parametrize("kind", ["proven", "published"])
@pytest.mark.parametrize("label", [-1, CLASSES, 0.5, np.nan])
@pytest.mark.once
def test_labels_of_no_class_are_refused_unspent(label, kind):
    y = LABELS.astype("float32")
    y[7] = label
    guarantee = fm.Published(lot=BATCH) if kind == "published" else kind
    private = callback(guarantee=guarantee)
    with pytest.raises(ValueError, match=r"whole numbers in \[0, 3\)|finite"):
        fit(build(), private, y=y)
    assert not private.ledger.entries


@pytest.mark.parametrize(
    "guarantee, arguments, words",
    [
        (fm.Proven(n_public=False), {}, "takes only `neighbours`"),
        (fm.Proven(neighbours="replace_one"), {}, "add_remove"),
        (
            fm.Proven(unit=fm.Unit(owners=np.arange(N))),
            {},
            "`rows_per_owner` and `owners`",
        ),
        (fm.Proven(unit=fm.Unit(reach=1)), {}, "takes only `neighbours`"),
        (fm.Published(lot=BATCH + 1), {}, "`lot` must be"),
        ("proven", {"unprotected": True}, "built with `unprotected=True`"),
        (
            fm.Proven(unit=fm.Unit(owners=np.arange(N) // 2)),
            {"clip": "histogram", "rows_per_owner": 3},
            "counts records one by one",
        ),
        (
            fm.Proven(unit=fm.Unit(owners=np.arange(N) // 2)),
            {
                "clip": "histogram",
                "rows_per_owner": 3,
                "pca": True,
            },
            "counts records one by one",
        ),
    ],
)
@pytest.mark.once
def test_unsafe_use_is_refused_before_anything_is_spent(
    guarantee, arguments, words
):
    private = callback(guarantee=guarantee)
    model = build(**arguments)
    if model.unprotected:
        with pytest.raises(ValueError, match=words):
            private.plan(model, N, batch_size=BATCH)
        return
    with pytest.raises(ValueError, match=words):
        fit(model, private)
    assert not private.ledger.entries


@pytest.mark.once
def test_a_second_fit_is_charged_again():
    model, private = build(), callback(guarantee=fm.Proven(spends=0.5))
    fit(model, private)
    once = private.ledger.epsilon()
    fit(model, private)
    assert once < private.ledger.epsilon() <= 2.0 * (1 + 1e-9)
    assert len(private.ledger.entries) == 2


@pytest.mark.once
def test_published_steps_after_a_proven_release():
    """The claim is what is left for the steps."""
    promise = fm.Published(lot=BATCH, neighbours="add_remove")
    model, private = build(), callback(guarantee=promise)
    fit(model, private, class_weight="balanced")
    assert [e.guarantee for e in private.ledger.entries] == [
        "proven",
        "claimed",
    ]
    budget = private.ledger.budget.epsilon
    assert 0.99 * budget < private.ledger.claimed_epsilon() <= budget


def test_thresholds_from_a_histogram():
    model, private = build(clip="histogram"), callback(20.0)
    norms = model.coefficient_norms(RECORDS, LABELS)
    fit(model, private)
    first, steps = private.ledger.entries
    assert first.name == "dpmac (thresholds)"
    assert first.mechanism["sensitivity"] == pytest.approx(2**0.5)
    assert 19.9 < private.ledger.epsilon() <= 20.0
    learned = [t for _, _, t in model.partitions]
    # The noise of epsilon 20 moves a median of 400 by one bin at most.
    exact = np.median(norms, axis=0)
    ratio = (1e3 / 1e-4) ** (1 / 70)
    assert np.all(learned <= exact * ratio**2.01)
    assert np.all(learned >= exact / ratio**2.01)


@pytest.mark.once
def test_norms_and_their_places():
    """Equal ratios are equal steps; what is beyond an end counts as it."""
    lengths = np.array([1e-4, 10**-0.5, 1e3])
    np.testing.assert_allclose(learned_clips.places(lengths), [-1, 0, 1])
    np.testing.assert_allclose(learned_clips.norms([-1, 0, 1]), lengths)
    beyond = np.array([0.0, 1e-9, 1e9, np.inf, np.nan])
    np.testing.assert_allclose(learned_clips.places(beyond), [-1, -1, 1, 1, 1])


@pytest.mark.once
def test_thresholds_that_noise_hides():
    model, private = build(clip="histogram"), callback(0.01)
    with pytest.raises(ValueError, match="noise hides"):
        fit(model, private)


@pytest.mark.once
def test_the_unit_may_be_an_owner():
    owners = np.random.default_rng(3).permutation(np.arange(N) // 2)
    promise = fm.Proven(unit=fm.Unit(owners=owners))
    model, private = build(rows_per_owner=3), callback(guarantee=promise)
    fit(model, private, epochs=1)
    (entry,) = private.ledger.entries
    # A hundred of two hundred owners, not of four hundred records.
    assert entry.mechanism["sampling_rate"] == 0.5
    assert "the mean of at most 3 of its rows" in entry.uses
    assert "one owner with all its rows" in private.report()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy):
    plain = small()
    keras.config.set_dtype_policy(policy)
    try:
        model = small(clip=0.1, unprotected=False)
    finally:
        keras.config.set_dtype_policy("float32")
    # Coefficients do not feel the policy.
    for part, right in zip(
        model.coefficient_sums(X, Y, clipped=False),
        plain.coefficient_sums(X, Y, clipped=False),
    ):
        assert part[0].dtype == "float32"
        np.testing.assert_allclose(part[0], right[0], atol=1e-5)
    taken, _ = descent(model, callbacks=[callback()])
    assert all(np.all(np.isfinite(v)) and np.any(v) for v in taken)


def test_thresholds_that_are_learned():
    model = small(clip="histogram", order=2)
    names = [layer.name for layer in model.private_layers]
    assert [t for *_, t in model.partitions] == [None] * 4
    model.learn_thresholds([0.1, 0.2, 0.3, 0.4])
    assert model.partitions == [
        (names[0], 1, 0.1),
        (names[0], 2, 0.2),
        (names[1], 1, 0.3),
        (names[1], 2, 0.4),
    ]
    with pytest.raises(ValueError, match="4 partitions"):
        model.learn_thresholds([1.0])


# Refusals --------------------


def stack(*first, last=None):
    return [*first, last or L.Dense(3)]


SHARED = L.Dense(7)
FROZEN = L.Dense(999, trainable=False)


@pytest.mark.parametrize(
    "layers, kwargs, match",
    [
        (stack(L.Dropout(0.5)), {}, "Dense, Conv2D.*`below`"),
        (stack(L.BatchNormalization()), {}, "Dense, Conv2D"),
        (stack(L.Conv2D(2, 1, dilation_rate=2)), {}, "dilation_rate=1"),
        (stack(keras.Sequential([L.Dense(2)])), {}, "Dense, Conv2D"),
        (stack(L.Dense(2, activation="selu")), {}, "activation='selu'"),
        (stack(L.Dense(2, activity_regularizer="l2")), {}, "activity"),
        (stack(SHARED, SHARED), {}, "twice"),
        (stack(last=L.Dense(3, activation="relu")), {}, "loss of logits"),
        (stack(last=L.Dense(1)), {"loss": "categorical_crossentropy"}, "two"),
        (stack(), {"clip": [0.1, 0.2]}, "1 trained layers"),
        (stack(), {"clip": float("nan")}, "`clip`"),
        (stack(), {"order": 2}, "`curvature_clip` must be given"),
        (stack(), {"curvature_clip": 1.0}, "`curvature_clip` must be given"),
        (stack(), {"z_optimizer": keras.optimizers.Lamb()}, "`z_optimizer`"),
        (stack(), {"below": [L.Dense(4)]}, "trainable weights"),
        (
            stack(L.Dense(3000)),
            {"order": 2, "curvature_clip": 1.0, "below": [FROZEN]},
            "3e\\+09 numbers",
        ),
        (
            [L.Reshape((7, 1, 1)), L.Conv2D(2, 1), L.Flatten(), L.Dense(3)],
            {"order": 2, "curvature_clip": 1.0},
            "Dense layers only",
        ),
    ],
)  # fmt: skip
def test_bad_arguments(layers, kwargs, match):
    with pytest.raises(ValueError, match=match):
        DPMAC((7,), layers, **kwargs)


def test_missing_labels_are_refused():
    model = small(unprotected=False)
    with pytest.raises(ValueError, match="needs labels or targets"):
        model.fit(X, verbose=0, callbacks=[callback()])
