"""Steps in order with correlated noise, beside Poisson samples.

    KERAS_BACKEND=torch python benchmarks/streams.py [--out=DIR]

0. With `--costs` and nothing else (it needs jax-privacy): the noise for
   epsilon 1 at delta 0.01 of 20 steps a pass, what jax-privacy's accountants
   say of that noise, and what the best test finds in 100,000 runs.
1. A linear model of USPS (5,000 digits of 256 pixels), batches of 256: test
   accuracy at one epsilon and number of passes, for both kinds of
   `participation=` and for Poisson samples. Each has the best of its learning
   rates, by one fit of 4,000 of the training rows and the accuracy of the
   others.
2. Seconds and the largest memory of one pass over a generator of 10^5 and
   10^6 records of 100 numbers, none of which is kept.

Parts that are in the file are not measured again.
"""

import resource
import subprocess
import sys
import time

import numpy as np
from absl import app, flags
from results_file import ResultsFile

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_DRAWS = flags.DEFINE_integer("draws", 5, "Fits of each setting.")
_STREAM = flags.DEFINE_integer(
    "stream", 0, "Only stream so many records and print what it took."
)
_COSTS = flags.DEFINE_bool("costs", False, "Only what noise costs.")
RATES = (0.5, 2.0, 8.0, 32.0)
CHOOSING = 4_000
EPSILONS, PASSES = (2.0, 8.0), (1, 4, 16)
WAYS = ("in order", "Poisson samples", "balls in bins")
STEPS, DELTA = 20, 1e-2


def compiled(inputs, rate):
    import keras

    import keras_fm as fm

    layer = keras.layers.Dense(10, activation="softmax")
    model = keras.Sequential([keras.Input((inputs,)), layer])
    private = fm.make_private(model)
    private.compile(
        keras.optimizers.SGD(rate), "sparse_categorical_crossentropy"
    )
    return private


def participation(way):
    import keras_fm as fm

    kinds = {WAYS[0]: fm.Participation, WAYS[2]: fm.BallsInBins}
    return kinds[way]() if way in kinds else None


def accuracy(data, way, epsilon, passes, rate, seed):
    """Of test rows after one fit, and its ledger."""
    import keras

    import keras_fm as fm

    (x, y), (x_test, y_test) = data
    keras.utils.set_random_seed(seed)
    private = compiled(x.shape[1], rate)
    budget = fm.callbacks.PrivateModel(epsilon, 1e-5)
    private.fit(
        x,
        y,
        batch_size=256,
        epochs=passes,
        verbose=0,
        callbacks=[budget],
        participation=participation(way),
    )
    said = private.model.predict(x_test, verbose=0).argmax(axis=1)
    return float(np.mean(said == y_test)), budget.ledger


def accuracies(file):
    import keras_fm as fm

    data = [
        (x.reshape(len(x), -1).astype("float32"), y)
        for x, y in fm.datasets.load("usps")
    ]
    (x, y), _ = data
    parts = slice(CHOOSING), slice(CHOOSING, None)
    choosing = [(x[part], y[part]) for part in parts]
    for epsilon in EPSILONS:
        for passes in PASSES:
            for way in WAYS:
                key = ("accuracy", epsilon, passes, way)
                if file.has(*key):
                    continue
                rate = max(
                    RATES,
                    key=lambda rate: accuracy(
                        choosing, way, epsilon, passes, rate, 0
                    )[0],
                )
                runs = [
                    accuracy(data, way, epsilon, passes, rate, seed)
                    for seed in range(1, 1 + _DRAWS.value)
                ]
                found = [one for one, _ in runs]
                file.add(key, runs[0][1], rate=rate, accuracy=found)


def noise_for(way, passes):
    """The mechanism of so many passes, and the noise of a step in clips."""
    import keras_fm as fm
    from keras_fm.kernel.access import sampling
    from keras_fm.kernel.mechanisms import GaussianMechanism
    from keras_fm.per_example.participation import BinsPlan

    budget = fm.PrivacyBudget(1.0, DELTA)
    if way == WAYS[0]:
        noise = fm.Participation().noise(STEPS, STEPS * passes)
        multiplier = sampling.noise_multiplier(
            (1.0, 1), budget, neighbours="add_remove"
        )
        return (
            GaussianMechanism(sensitivity=1.0, noise_multiplier=multiplier),
            multiplier * noise.sensitivity,
        )
    plan = BinsPlan if way == WAYS[2] else sampling.SamplingPlan
    plan = plan(
        n=100 * STEPS,
        sampling="poisson",
        expected_batch_size=100,
        capacity=100 * STEPS,
        sampling_rate=1 / STEPS,
        steps=STEPS * passes,
    )
    multiplier = sampling.noise_multiplier(
        plan, budget, neighbours="add_remove"
    )
    return plan.mechanism(multiplier), multiplier


def theirs(way, passes, stddev):
    """The epsilon of jax-privacy for that noise."""
    from jax_privacy import accounting, batch_selection, matrix_factorization
    from jax_privacy.experimental.monte_carlo import sample_generation
    from scipy import optimize

    import keras_fm as fm

    config = accounting.PldAccountantConfig()
    accountant = accounting.DpsgdTrainingAccountant
    if way == WAYS[2]:
        # Theirs takes the same bins in every epoch: epochs of draws of one.
        strategy = batch_selection.BallsInBinsSampling(STEPS, STEPS)

        def excess(losses):
            return lambda e: np.maximum(-np.expm1(e - losses), 0).mean() - DELTA

        return max(
            optimize.brentq(excess(losses), 0, 20)
            for losses in (
                sum(
                    sample_generation.get_privacy_loss_sample(
                        strategy, stddev, np.ones(1), seed, there, 50_000
                    )[0]
                    for seed in range(passes)
                )
                for there in (True, False)
            )
        )
    if way == WAYS[0]:
        noise = fm.Participation().noise(STEPS, STEPS * passes)
        column = np.asarray(noise._column(), "float32")
        squared = matrix_factorization.toeplitz.minsep_sensitivity_squared(
            column, STEPS, passes, STEPS * passes
        )
        stddev /= float(squared) ** 0.5
        accountant = accounting.SingleReleaseTrainingAccountant
    params = accounting.DpParams(
        noise_multipliers=stddev,
        num_samples=100 * STEPS,
        delta=DELTA,
        batch_size=100,
    )
    return float(accountant(config).compute_epsilon(STEPS * passes, params))


def costs(file):
    from keras_fm.kernel.mechanisms import NoiseSource, compose_epsilon
    from keras_fm.lab.auditing import white_box

    for passes in PASSES[:2]:
        for way in WAYS:
            if file.has("cost", 1.0, passes, way):
                continue
            mechanism, stddev = noise_for(way, passes)
            found = white_box.release_epsilon(
                mechanism,
                np.ones(1),
                noise=NoiseSource(1),
                delta=DELTA,
                runs=100_000,
            )
            file.add(
                ("cost", 1.0, passes, way),
                None,
                noise=stddev,
                ours=compose_epsilon([mechanism], DELTA),
                jax_privacy=theirs(way, passes, stddev),
                found=found.epsilon,
            )


def stream(n):
    """One pass over a generator; prints seconds and MiB."""
    import keras_fm as fm

    size, weights = 250, np.random.default_rng(0).normal(size=(100, 10))

    def batches():
        rng = np.random.default_rng(1)
        for _ in range(n // size):
            x = rng.normal(size=(size, 100)).astype("float32")
            yield x, (x @ weights).argmax(axis=1)

    budget = fm.callbacks.PrivateModel(2.0, 1e-7)
    start = time.monotonic()
    compiled(100, 1.0).fit(
        batches,
        batch_size=size,
        steps_per_epoch=n // size,
        verbose=0,
        callbacks=[budget],
        participation=fm.Participation(),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(time.monotonic() - start, peak)


def main(_):
    if _STREAM.value:
        return stream(_STREAM.value)
    file = ResultsFile(
        _OUT.value, "streams", ("part", "epsilon", "passes", "way")
    )
    if _COSTS.value:
        return costs(file)
    for n in (100_000, 1_000_000):
        if not file.has("memory", 2.0, n, WAYS[0]):
            told = subprocess.run(
                [sys.executable, __file__, f"--stream={n}"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.split()
            seconds, peak = (float(v) for v in told[-2:])
            file.add(
                ("memory", 2.0, n, WAYS[0]), None, seconds=seconds, MiB=peak
            )
    accuracies(file)


if __name__ == "__main__":
    app.run(main)
