"""What exact noise costs: samples a second, and whole releases.

    python benchmarks/lattice_noise.py

For both samplers at several scales: the median over repeats of the samples
per second of processor time (one thread, so a second of one core, whatever
else runs on it), and how many times longer they take than NumPy's continuous
`normal` and `laplace`, measured in turns with them.

The second table is the path of a release, from an exact vector to a noisy one:
`Mechanism.perturb` (rounding, integer noise, back to floats) against NumPy's
`exact + normal(...)` and `exact + laplace(...)`.
"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from absl import app, flags  # noqa: E402

from keras_fm.kernel import discrete_noise, mechanisms

_SAMPLES = flags.DEFINE_integer("samples", 1_000_000, "Samples a repeat.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Repeats; medians are shown.")

# Standard deviations and scales in steps of the lattice. From 2^26 on a
# sample takes two words.
SCALES = (1, 1000, 2**20, 2**40)
SIZES = (10**4, 10**5, 10**6, 10**7)
LAWS = {
    "Laplace": (
        discrete_noise.DiscreteLaplace,
        lambda generator, size: generator.laplace(0.0, 3.0, size),
    ),
    "Gaussian": (
        lambda scale: discrete_noise.DiscreteGaussian(scale**2),
        lambda generator, size: generator.normal(0.0, 3.0, size),
    ),
}


def seconds(draw, *arguments):
    start = time.process_time()
    draw(*arguments)
    return time.process_time() - start


def main(_):
    size, generator = _SAMPLES.value, np.random.default_rng(0)
    source = discrete_noise.OSWords()
    print(
        "| law | scale, steps | million a second | times NumPy's time |\n"
        "|---|---|---|---|"
    )
    for law, (make, continuous) in LAWS.items():
        for scale in SCALES:
            sampler = make(scale)
            rounds = [
                (
                    seconds(sampler.sample, size, source),
                    seconds(continuous, generator, size),
                )
                for _ in range(_REPEATS.value)
            ]
            secure = np.median([ours for ours, _ in rounds])
            ratio = np.median([ours / numpy for ours, numpy in rounds])
            print(
                f"| {law} | {scale} | {size / secure / 1e6:.1f} "
                f"| {ratio:.1f} |",
                flush=True,
            )
    releases(generator)


def add_noise(exact, draw):
    return exact + draw(exact.size)


def releases(generator):
    """Prints the table of releases."""
    print(
        "\n| law | size | secure, ms | NumPy, ms | times NumPy's time |\n"
        "|---|---|---|---|---|"
    )
    for mechanism, draw in (
        (
            mechanisms.GaussianMechanism(sensitivity=1.0, noise_multiplier=4.0),
            lambda size: generator.normal(0.0, 4.0, size),
        ),
        (
            mechanisms.LaplaceMechanism(sensitivity=1.0, epsilon=0.25),
            lambda size: generator.laplace(0.0, 4.0, size),
        ),
    ):
        source = mechanisms.NoiseSource()
        for size in SIZES:
            exact = generator.normal(0.0, 100.0, size)
            # The table of the sampler is built once for each mechanism.
            mechanism.perturb(exact[:1], source, dimension=size)
            rounds = []
            for _ in range(max(3, min(_REPEATS.value, 10**8 // size))):
                rounds.append(
                    (
                        seconds(mechanism.perturb, exact, source),
                        seconds(add_noise, exact, draw),
                    )
                )
            secure, numpy = np.median(rounds, axis=0)
            print(
                f"| {type(mechanism).__name__} | {size} "
                f"| {secure * 1e3:.1f} | {numpy * 1e3:.1f} "
                f"| {np.median([s / n for s, n in rounds]):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    app.run(main)
