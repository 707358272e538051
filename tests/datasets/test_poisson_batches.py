"""Poisson batches: their law, their padding, and Keras fits on them.

Statistical tests use fixed seeds; each states how often a fresh one fails.
"""

import concurrent.futures
import functools
import importlib.util
import math
import pickle
import re

import keras
import numpy as np
import pytest

from keras_fm.datasets import PoissonBatches
from keras_fm.kernel.reads import sampling

N = 60


def data(n=N):
    # Every record is recognisable, and none is a row of zeros.
    x = np.arange(1, n + 1, dtype="float32")[:, None] * [1.0, 2.0]
    return x.astype("float32"), np.arange(n)


def make(**changes):
    x, y = data()
    return PoissonBatches(
        x, y, **{"batch_size": 20, "capacity": 50, "seed": 0, **changes}
    )


def records(batch):
    x, y, mask = batch
    rows = mask == 1
    np.testing.assert_array_equal(x[rows], data()[0][y[rows]])
    return y[rows]


def test_a_batch_is_the_records_and_then_zeros():
    batches = make()
    x, y, mask = batches[0]
    assert x.shape == (50, 2) and x.dtype == np.float32
    assert y.shape == (50,) and y.dtype == data()[1].dtype
    assert mask.shape == (50,) and mask.dtype == np.float32
    size = int(mask.sum())
    assert 0 < size < 50
    np.testing.assert_array_equal(mask, np.arange(50) < size)
    assert np.all(np.diff(records((x, y, mask))) > 0)
    assert not x[size:].any() and not y[size:].any()


def test_every_item_is_a_fresh_sample_of_independent_records():
    batches, draws = make(), 4000
    member = np.zeros((draws, N))
    for row in member:
        row[records(batches[0])] = 1
    # 60 counts, 1,770 + 3,600 correlations, all nearly normal; 6 standard
    # deviations: one seed in 10^5 fails.
    centred = (member - 1 / 3) / math.sqrt(2 / 9)
    assert np.abs(centred.sum(axis=0)).max() < 6 * math.sqrt(draws)
    between = centred.T @ centred / math.sqrt(draws)
    assert np.abs(between[np.triu_indices(N, 1)]).max() < 6
    lagged = centred[1:].T @ centred[:-1] / math.sqrt(draws)
    assert np.abs(lagged).max() < 6
    # The sum of squares of 4,000 sizes, variance 60 * 2 / 9, has a relative
    # standard deviation of 0.0224: within 5 of them.
    assert abs(np.var(member.sum(axis=1)) / (N * 2 / 9) - 1) < 5 * 0.0224


def test_threads_neither_repeat_nor_lose_samples():
    one, many = make(), make()
    alone = [tuple(records(one[i])) for i in range(400)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: tuple(records(many[i])), range(400)))
    assert sorted(alone) == sorted(together)
    assert len(set(alone)) == 400


def test_without_a_seed_nothing_repeats():
    """Nor with a seed of NumPy's or Keras' own, nor in a copied process."""
    batches = make(seed=None)
    copied = pickle.loads(pickle.dumps(batches))
    draws = set()
    for source in (batches, copied, make(seed=None)):
        keras.utils.set_random_seed(3)
        draws.add(tuple(records(source[0])))
    # Two samples of 60 records agree with probability (5/9)^60 < 1e-15.
    assert len(draws) == 3
    assert not batches.reproducible
    assert make(seed=0).reproducible
    np.testing.assert_array_equal(records(make()[0]), records(make()[1]))
    assert tuple(records(make(seed=1)[0])) != tuple(records(make()[0]))


def test_public_facts():
    batches = make()
    assert batches.n == N and batches.batch_size == 20
    assert batches.sampling_rate == 1 / 3
    assert batches.steps_per_epoch == batches.num_batches == 3
    assert batches.sampling == "poisson"
    assert make(batch_size=45).steps_per_epoch == 1
    assert make(steps_per_epoch=7).num_batches == 7
    # One of 10^6 batches of the default overflows with probability 1e-12.
    batches = PoissonBatches(np.ones((5000, 1)), batch_size=500)
    assert batches.capacity == sampling.capacity(5000, 0.1, 1e-18)
    assert sampling.overflow_bound(5000, 0.1, batches.capacity) <= 1e-18


def test_the_plan_has_the_capacity_of_the_data_set():
    batches = make(capacity=55)
    plan = batches.plan(steps=12, delta=1e-5, epsilon=2.0)
    assert plan.n == N and plan.steps == 12 and plan.capacity == 55
    assert plan.sampling_rate == 1 / 3 and plan.expected_batch_size == 20
    one = sampling.overflow_bound(N, 1 / 3, 55)
    assert plan.overflow_probability == pytest.approx(12 * one)
    assert plan.overflow_probability > 0
    # The default pays little for long runs and large epsilons.
    batches = PoissonBatches(np.ones((5000, 1)), batch_size=500)
    plan = batches.plan(steps=10**5, delta=1e-5)
    assert plan.overflow_probability * (1 + math.exp(8)) < 1e-9
    full = make(sampling="full", batch_size=None, capacity=None)
    plan = full.plan(steps=2, delta=1e-5)
    assert plan.sampling_rate == 1 and plan.overflow_probability == 0
    with pytest.raises(ValueError, match="capacity=22, of which"):
        make(capacity=22).plan(steps=1, delta=1e-5)


def test_full_batches_hold_every_record():
    batches = make(sampling="full", batch_size=None, capacity=None)
    assert batches.capacity == N and batches.steps_per_epoch == 1
    np.testing.assert_array_equal(records(batches[0]), np.arange(N))
    every = make(batch_size=N, capacity=None)
    np.testing.assert_array_equal(records(every[0]), np.arange(N))


def test_a_sample_beyond_the_capacity_is_an_error():
    with pytest.raises(RuntimeError, match="exceeded its capacity of 20"):
        for _ in range(100):
            make(capacity=20, seed=4)[0]
            make(capacity=20, seed=None)[0]


def test_several_inputs_and_no_targets():
    x, y = data()
    batches = PoissonBatches(
        {"a": x, "b": y}, (y, x), batch_size=20, capacity=50, seed=1
    )
    inputs, targets, mask = batches[0]
    np.testing.assert_array_equal(inputs["a"], targets[1])
    np.testing.assert_array_equal(inputs["b"], targets[0])
    rows = inputs["b"][mask == 1]
    np.testing.assert_array_equal(inputs["a"][mask == 1], x[rows])
    inputs, targets, _ = PoissonBatches(x, batch_size=20)[0]
    np.testing.assert_array_equal(inputs, targets)


# Keras ----------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_a_plain_model_learns_from_them(workers):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(
        keras.optimizers.Adam(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    batches = PoissonBatches(
        x, y, batch_size=50, capacity=110, seed=0, workers=workers
    )
    history = model.fit(batches, epochs=8, verbose=0).history
    assert history["accuracy"][-1] > 0.9 > history["accuracy"][0]
    assert int(model.optimizer.iterations) == 80
    _, accuracy = model.evaluate(x, y, verbose=0)
    assert accuracy > 0.9


def test_an_autoencoder_and_two_inputs_learn_from_them():
    keras.utils.set_random_seed(0)
    x, _ = data()
    x /= x.max()
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.05), "mse")
    batches = PoissonBatches(x, batch_size=20, steps_per_epoch=10, seed=0)
    losses = model.fit(batches, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < 0.3 * losses[0]
    inputs = {name: keras.Input((2,), name=name) for name in "ab"}
    outputs = keras.layers.Dense(1)(
        keras.layers.Concatenate()(list(inputs.values()))
    )
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    batches = PoissonBatches({"a": x, "b": x}, x[:, :1], batch_size=20, seed=0)
    before = model.get_weights()[0]
    model.fit(batches, verbose=0)
    assert np.abs(model.get_weights()[0] - before).max() > 1e-4


@pytest.mark.parametrize(
    "reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"]
)
def test_what_keras_divides_the_loss_by(reduction):
    """As documented: by rows, by nothing, by the (private) true size."""
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    # The gradient of |far - output| is -x, wherever the output is.
    model.compile(
        keras.optimizers.SGD(1.0),
        keras.losses.MeanAbsoluteError(reduction=reduction),
    )
    x, far = data()[0], np.full((N, 1), 1e6, "float32")
    x, y, mask = PoissonBatches(x, far, batch_size=20, capacity=50, seed=5)[0]
    size = int(mask.sum())
    assert size not in (20, 50)
    model.train_on_batch(x, y, sample_weight=mask)
    divisor = {
        "sum_over_batch_size": 50,
        "sum": 1,
        "mean_with_sample_weight": size,
    }[reduction]
    np.testing.assert_allclose(
        model.get_weights()[0][:, 0], x.sum(axis=0) / divisor, rtol=1e-5
    )


# Arguments ------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch_size": 61}, "must not exceed the number of records"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"batch_size": None}, "`batch_size` must be None with"),
        ({"sampling": "full"}, "`batch_size` must be None with"),
        ({"sampling": "shuffled"}, '`sampling` must be "poisson" or "full"'),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be an integer"),
        ({"steps_per_epoch": 1.5}, "`steps_per_epoch` must be an integer"),
        ({"capacity": 19}, "`capacity` must be an integer of at least 20"),
        ({"capacity": math.inf}, "`capacity` must be an integer"),
        ({"seed": -1}, "`seed` must be a non-negative integer"),
        ({"seed": 1.0}, "`seed` must be a non-negative integer"),
        ({"use_multiprocessing": True}, "Processes would repeat"),
    ],
)
def test_argument_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_must_be_finite(bad):
    x, y = data()
    broken = x.copy()
    broken[7, 1] = bad
    with pytest.raises(ValueError, match="`x` must be finite"):
        PoissonBatches(broken, y, batch_size=20)
    with pytest.raises(ValueError, match="`x` must be finite"):
        PoissonBatches((x, broken), y, batch_size=20)
    with pytest.raises(ValueError, match="`y` must be finite"):
        PoissonBatches(x, broken, batch_size=20)


def test_arrays_must_fit():
    x, y = data()
    with pytest.raises(ValueError, match="same number of records"):
        PoissonBatches(x, y[:-1], batch_size=20)
    with pytest.raises(ValueError, match="same number of records"):
        PoissonBatches((x, x[:-1]), batch_size=20)
    for empty in (np.zeros((0, 2)), ()):
        with pytest.raises(ValueError, match="at least one record"):
            PoissonBatches(empty, batch_size=20)
    with pytest.raises(ValueError, match="`x` must hold records along"):
        PoissonBatches(np.float32(1), batch_size=20)
    with pytest.raises(ValueError, match="`y` is a masked array"):
        PoissonBatches(x, np.ma.array(y), batch_size=20)
    with pytest.raises(ValueError, match="must hold numbers"):
        PoissonBatches([None, None], batch_size=1)


def test_another_order_of_bytes():
    x, y = data()
    found = (
        make(),
        PoissonBatches(
            x.astype(">f4"), y.astype(">i8"), batch_size=20, capacity=50, seed=0
        ),
    )
    for a, b in zip(*(batches[0] for batches in found)):
        assert a.dtype == b.dtype and b.dtype.isnative
        np.testing.assert_array_equal(a, b)


# Owners ----------------------------------------------------------------------

OWNERS = np.random.default_rng(5).permutation(np.repeat(np.arange(24), 3)[:N])


def owned(**changes):
    given = {"owners": OWNERS, "rows_per_owner": 4, "capacity": None}
    return make(**{"batch_size": 8, **given, **changes})


def test_an_owner_joins_with_all_records_or_with_none():
    """A false alarm in 1e-6: 4,000 owner draws."""
    batches, owners = owned(), np.unique(OWNERS)
    assert batches.n == len(owners) == 20 and batches.sampling_rate == 0.4
    joined = []
    for _ in range(200):
        x, y, mask = batches[0]
        found = y[mask > 0]
        counts = {o: np.sum(OWNERS[found] == o) for o in OWNERS[found]}
        assert all(counts[o] == np.sum(OWNERS == o) for o in counts)
        # Together they weigh as much as one record.
        for o in counts:
            weight = mask[: len(found)][OWNERS[found] == o].sum()
            assert weight == pytest.approx(1.0, rel=1e-6)
        np.testing.assert_array_equal(x[: len(found)], data()[0][found])
        assert not x[len(found) :].any() and not mask[len(found) :].any()
        joined.append(len(counts))
    width = 4.9 * math.sqrt(0.4 * 0.6 / 4000)
    assert abs(np.sum(joined) / 4000 - 0.4) < width


def test_the_rows_of_owners_and_their_overflow():
    batches = owned(capacity=64)
    # Sixteen owners of four records fit.
    plan = batches.plan(steps=3, delta=0.5)
    assert plan.capacity == 16 and plan.n == 20
    bound = sampling.overflow_bound(20, 0.4, 16)
    assert plan.overflow_probability == pytest.approx(3 * bound)
    everyone = owned(batch_size=None, sampling="full")
    assert everyone.capacity == 80
    assert np.isclose(everyone[0][2].sum(), 20)
    assert everyone.owners is not None and make().owners is None


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"rows_per_owner": None}, "need `rows_per_owner`"),
        ({"owners": None}, "belongs to `owners`"),
        ({"rows_per_owner": 2}, "more records than `rows_per_owner`"),
        ({"owners": OWNERS[1:]}, "one id for each record"),
        ({"owners": np.where(OWNERS == 0, np.nan, OWNERS)}, "one id for each"),
        ({"capacity": 31}, "capacity"),
        ({"batch_size": 21}, "must not exceed"),
    ],
)
def test_owners_that_cannot_be_sampled(changes, match):
    with pytest.raises(ValueError, match=match):
        owned(**changes)


def test_views_of_a_record_are_made_from_it_alone():
    """Rows of a record stand together, each from a call of its own."""
    x = np.arange(40.0).reshape(20, 2)

    def augment(record, rng):
        return record + rng.uniform(0, 0.5)

    batches = PoissonBatches(
        x, np.arange(20), batch_size=8, augment=augment, views=3
    )
    rows, y, mask = batches[0]
    assert len(rows) == len(y) == len(mask) == 3 * batches.capacity
    count = int(mask.sum())
    assert count % 3 == 0
    np.testing.assert_array_equal(mask[:count], 1)
    assert not rows[count:].any() and not mask[count:].any()
    for i in range(0, count, 3):
        assert len(set(y[i : i + 3])) == 1
        added = rows[i : i + 3] - x[y[i]]
        # New numbers for every view, and not for its entries.
        assert np.all((0 <= added) & (added < 0.5))
        np.testing.assert_allclose(added[:, 0], added[:, 1])
        assert len(set(added[:, 0])) == 3
    np.testing.assert_array_equal(x, np.arange(40.0).reshape(20, 2))
    # Without targets they are the rows, of the same draws.
    rows, same, _ = PoissonBatches(x, batch_size=8, augment=augment, views=2)[0]
    assert rows is same


@pytest.mark.parametrize(
    "x, given, match",
    [
        (np.ones((9, 2)), {"views": 2}, "give both"),
        (np.ones((9, 2)), {"augment": lambda x, rng: x}, "give both"),
        (
            (np.ones((9, 2)), np.ones(9)),
            {"augment": lambda x, rng: x, "views": 2},
            "one array",
        ),
        (np.ones((9, 2)), {"views": 0}, "views"),
    ],
)
def test_views_that_cannot_be_made(x, given, match):
    with pytest.raises(ValueError, match=match):
        PoissonBatches(x, batch_size=3, **given)


def test_views_come_from_a_generator_of_the_records_own():
    """What one record draws moves no other's views, nor the next sample."""
    x = np.zeros((8, 2))
    x[3] = 1.0

    def sampled(greedy):
        def augment(record, rng):
            rng.random(100 if greedy and record[0] == 1.0 else 1)
            return record + rng.random()

        given = {"augment": augment, "views": 2, "seed": 1}
        batches = PoissonBatches(x, np.arange(8), batch_size=5, **given)
        return [batches[0] for _ in range(4)]

    met = 0
    for (a, y, _), (b, same, _) in zip(sampled(False), sampled(True)):
        np.testing.assert_array_equal(y, same)
        other = y != 3
        np.testing.assert_array_equal(a[other], b[other])
        assert len(set(a[a.any(1)][:, 0])) == len(a[a.any(1)])
        met += np.any(y == 3)
    assert met


def mixed_with_the_one_before():
    before = []

    def augment(record, rng):
        before.append(record)
        return (record + before[max(0, len(before) - 2)]) / 2

    return augment


def written_over(record, rng):
    record += 1
    return record


@pytest.mark.parametrize(
    "augment, match",
    [
        (lambda record, rng: record[:1], "of the shape it was"),
        (mixed_with_the_one_before(), "whatever it was given"),
        (
            lambda record, rng: record + np.random.rand(),
            "draw all chance from the generator",
        ),
        (written_over, "read-only"),
    ],
)
def test_a_function_that_makes_no_views_of_one_record(augment, match):
    with pytest.raises(ValueError, match=match):
        PoissonBatches(
            np.ones((9, 5)), sampling="full", augment=augment, views=2
        )


def test_views_are_not_rounded():
    with pytest.raises(ValueError, match="Give x as floats"):
        PoissonBatches(
            np.ones((9, 5), "uint8"),
            sampling="full",
            augment=lambda record, rng: record + rng.random(5),
            views=2,
        )


def test_no_error_shows_what_a_function_holds():
    def drawn_elsewhere(x, rng, other):
        return x + np.random.rand()

    held = functools.partial(drawn_elsewhere, other=np.full(3, 1234.5))
    for views in (1, 2):
        with pytest.raises(ValueError, match="augment") as e:
            PoissonBatches(
                np.ones((9, 5)), sampling="full", augment=held, views=views
            )
        assert "1234" not in str(e.value)


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize(
    "failing",
    [
        lambda record: record[int(record[0])],
        lambda record: record[: int(record[0]) - 4320],
    ],
)
def test_no_error_shows_a_record_that_no_view_is_made_of(failing, views):
    def augment(record, rng):
        return failing(record) if record[0] > 1 else record

    x = np.ones((9, 5))
    x[4] = 4321.0
    batches = PoissonBatches(x, sampling="full", augment=augment, views=views)
    with pytest.raises(ValueError, match="failed on a record") as e:
        batches[0]
    assert "4321" not in str(e.value)
    assert e.value.__context__ is None and e.value.__cause__ is None


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX alone")
@pytest.mark.parametrize("large", [2**31, -(2**31) - 1])
def test_whole_numbers_that_jax_wraps_round_are_refused(large):
    x = [[1], [large], [3]]
    with pytest.raises(ValueError, match="beyond 32 bits"):
        PoissonBatches(x, batch_size=1)
    PoissonBatches(np.array(x, "float64"), batch_size=1)
    PoissonBatches([[1], [2**31 - 1], [-(2**31)]], batch_size=1)


def data_sets():
    """Data sets, loaders and the code that collects their batches."""
    x, y = np.ones((40, 3), "float32"), np.arange(40)

    class Batches(keras.utils.PyDataset):
        num_batches = 4

        def __getitem__(self, index):
            rows = slice(10 * index, 10 * index + 10)
            return x[rows], y[rows]

    yield Batches()
    if importlib.util.find_spec("torch") is not None:
        from torch.utils import data

        yield data.DataLoader([*zip(x, y)], batch_size=16)
    if importlib.util.find_spec("tensorflow") is not None:
        import tensorflow as tf

        yield tf.data.Dataset.from_tensor_slices((x, y)).batch(32)


def test_a_data_set_is_sent_to_arrays():
    """It said "call `.batch()`" where that was called."""
    for dataset in data_sets():
        for given in ((dataset,), (np.ones((40, 3)), dataset)):
            with pytest.raises(ValueError, match="not a data set") as e:
                PoissonBatches(*given, batch_size=8)
            assert type(dataset).__name__ in str(e.value)
        code = re.search(r"batches: `x, y = (.*?)`,", str(e.value)).group(1)
        x, y = eval(code, {"np": np, "dataset": dataset})
        assert x.shape == (40, 3) and sorted(y.tolist()) == list(range(40))
        PoissonBatches(x, y, batch_size=8)
