"""Samples a second of the integer samplers, on one core.

    python benchmarks/lattice_noise.py

For both samplers at several scales: the median over repeats of the samples
per second of processor time (one thread, so a second of one core, whatever
else runs on it), and how many times longer they take than NumPy's continuous
`normal` and `laplace`, measured in turns with them. The words are those of
the operating system; the same with a seeded statistical generator shows what
they cost. Nothing here depends on values, so a second run gives numbers that
differ by the machine's noise only.
"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
from absl import app, flags  # noqa: E402

from keras_fm import lattice_noise  # noqa: E402

_SAMPLES = flags.DEFINE_integer("samples", 1_000_000, "Samples a repeat.")
_REPEATS = flags.DEFINE_integer("repeats", 9, "Repeats; medians are shown.")

# Standard deviations and scales in steps of the lattice. From 2^26 on a
# sample takes two words.
SCALES = (1, 1000, 2**20, 2**40)
LAWS = {
    "Laplace": (
        lattice_noise.DiscreteLaplace,
        lambda generator, size: generator.laplace(0.0, 3.0, size),
    ),
    "Gaussian": (
        lambda scale: lattice_noise.DiscreteGaussian(scale**2),
        lambda generator, size: generator.normal(0.0, 3.0, size),
    ),
}


def seconds(draw, *arguments):
    start = time.process_time()
    draw(*arguments)
    return time.process_time() - start


def main(_):
    size = _SAMPLES.value
    generator = np.random.default_rng(0)
    sources = lattice_noise.OSWords(), lattice_noise.SeededWords(0)
    print(
        "| law | scale, steps | table, ms | million a second | seeded | NumPy "
        "| times NumPy's time |\n|---|---|---|---|---|---|---|"
    )
    for law, (make, continuous) in LAWS.items():
        for scale in SCALES:
            build = np.median([seconds(make, scale) for _ in range(5)])
            sampler = make(scale)
            rounds = []
            for _ in range(_REPEATS.value):
                times = [
                    seconds(sampler.sample, size, source) for source in sources
                ]
                times.append(seconds(continuous, generator, size))
                rounds.append(times)
            secure, seeded, numpy = np.median(rounds, axis=0)
            ratio = np.median([r[0] / r[2] for r in rounds])
            print(
                f"| {law} | {scale} | {build * 1e3:.0f} "
                f"| {size / secure / 1e6:.1f} | {size / seeded / 1e6:.1f} "
                f"| {size / numpy / 1e6:.1f} | {ratio:.1f} |",
                flush=True,
            )
    taken = np.median([seconds(sources[0].words, size) for _ in range(9)])
    print(
        f"\nWords of the operating system alone: {size / taken / 1e6:.0f} "
        "million a second."
    )


if __name__ == "__main__":
    app.run(main)
