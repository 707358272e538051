"""Statistics of a release: rate, growth with n, memory, batches per spill.

    python benchmarks/scale.py [--parts=overlap] [--out=DIR]

1. The statistics pass in GFLOP/s against a plain float64 matrix product of
   the same size, alternating, medians. Rates count the full product
   2 n m^2, of which one triangle is computed.
2. Seconds and peak memory for 10^4 to 10^6 records of a synthetic stream.
3. The sums of batches kept in integers against plain sums in float64.
4. Two processes with half of the records each, merged, against one (both with
   one BLAS thread).
5. Reading on while batches are summed, against a plain loop: a reader that
   waits 10 ms for each batch of 1,024 x 800, one that decompresses it, and
   one that computes scattering features of 1,024 images.
6. Features on disk, 800 of each of 10^5 and 10^6 records: CPU
   microseconds a record of making them, of one release and of each of several
   rounds, and the largest memory beside pages of files.

Parts that are not measured again keep their results in the file.
"""

import functools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib

import fit_steps
import numpy as np
from absl import app, flags

from keras_fm.kernel.partial_statistics import PartialStatistics
from keras_fm.kernel.records import prefetch
from keras_fm.public import features
from keras_fm.queries import CrossEntropyQuery

_OUT = flags.DEFINE_string("out", "docs/results", "Folder of the results.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Repetitions per median.")
_PARTS = flags.DEFINE_list("parts", None, "Only these parts of the results.")
_STREAM = flags.DEFINE_integer(
    "stream", 0, "Only stream so many records and print what it took."
)
_CACHED = flags.DEFINE_integer(
    "cached", 0, "Only read so many cached records and print what it took."
)
_BATCH = 1024


def medians(repeats, runs):
    """Of `fit_steps`, on the clock."""
    found = fit_steps.medians(repeats, runs)
    return {name: float(seconds[0]) for name, seconds in found.items()}


def records(n, m, seed=0):
    h = np.random.default_rng(seed).random((n, m), np.float32)
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    return h, np.arange(n) % 10


def passed(h, y):
    """The pass of a release over batches of records."""
    partial = PartialStatistics(
        CrossEntropyQuery(num_features=h.shape[1], num_outputs=10)
    )
    for start in range(0, len(h), _BATCH):
        rows = slice(start, start + _BATCH)
        partial.add(h[rows], y[rows])
    return partial


def rates():
    found = {}
    for m, n in ((800, 16_384), (3969, 8_192)):
        h, y = records(n, m)
        right = h.astype(np.float64)
        # A distinct operand: NumPy halves the work of `h.T @ h`.
        left = right.copy()
        took = medians(
            _REPEATS.value,
            {
                "pass": lambda h=h, y=y: passed(h, y).statistics(),
                "product": lambda a=left, b=right: a.T @ b,
            },
        )
        flop = 2 * n * m * m / 1e9
        found[f"{m} dims"] = {
            "pass_gflops": round(flop / took["pass"], 1),
            "product_gflops": round(flop / took["product"], 1),
            "ratio": round(took["product"] / took["pass"], 2),
        }
    return found


def stream(n, m=400):
    """Seconds and peak memory for n records made on the way."""
    h, y = records(8 * _BATCH, m)
    partial = PartialStatistics(
        CrossEntropyQuery(num_features=m, num_outputs=10)
    )
    start = time.perf_counter()
    for i in range(0, n, _BATCH):
        rows = slice(i % len(h), i % len(h) + min(_BATCH, n - i))
        partial.add(h[rows].copy(), y[rows])
    partial.statistics()
    return {
        "seconds": round(time.perf_counter() - start, 3),
        "peak_mib": _peak_mib(),
    }


def _peak_mib():
    """Of this process alone; `getrusage` begins with its parent's."""
    return _status("VmHWM")


def _status(field):
    with open("/proc/self/status") as f:
        (line,) = (line for line in f if line.startswith(field))
    return int(line.split()[1]) // 1024


def growth():
    """Each in a process of its own, so that peaks are its own."""
    found = {}
    for n in (10_000, 100_000, 1_000_000):
        runs = [
            json.loads(
                subprocess.run(
                    [sys.executable, __file__, f"--stream={n}"],
                    stdout=subprocess.PIPE,
                    check=True,
                ).stdout
            )
            for _ in range(3)
        ]
        seconds = statistics.median(run["seconds"] for run in runs)
        found[f"{n} records"] = {
            "seconds": seconds,
            "microseconds_per_record": round(1e6 * seconds / n, 2),
            "peak_mib": max(run["peak_mib"] for run in runs),
        }
    return found


def cached(n, m=800, inputs=64, rounds=3):
    """CPU seconds and memory of features that are on disk, for n records."""
    import keras

    import keras_fm as fm
    from keras_fm.kernel import mechanisms
    from keras_fm.kernel.access import gradient_rounds

    keras.utils.set_random_seed(0)
    body = keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(m, activation="relu", use_bias=False),
            keras.layers.UnitNormalization(),
        ]
    )
    y, found = np.arange(n) % 10, {}
    anonymous = 0

    def timed(name, run):
        start = time.process_time()
        made = run()
        seconds = time.process_time() - start
        found[name] = round(1e6 * seconds / n, 2)
        return made

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "records")
        rng = np.random.default_rng(0)
        with open(path, "wb") as f:
            for start in range(0, n, _BATCH):
                rows = min(_BATCH, n - start)
                f.write(rng.normal(size=(rows, inputs)).astype("f").tobytes())
        x = np.memmap(path, np.float32, "r", shape=(n, inputs))
        h = np.lib.format.open_memmap(
            os.path.join(folder, "features.npy"), "w+", np.float32, (n, m)
        )

        def extract():
            for start in range(0, n, _BATCH):
                rows = slice(start, start + _BATCH)
                h[rows] = body.predict(x[rows], batch_size=128, verbose=0)
            h.flush()

        timed("features", extract)
        where = h.filename, h.dtype, "r", h.offset, h.shape

        def batches():
            nonlocal anonymous
            for start in range(0, n, _BATCH):
                rows = slice(start, start + _BATCH)
                # A new map for each: what was read is not kept.
                yield np.array(np.memmap(*where)[rows]), y[rows]
                anonymous = max(anonymous, _status("RssAnon"))

        def one():
            partial = PartialStatistics(
                CrossEntropyQuery(num_features=m, num_outputs=10)
            )
            for batch in batches():
                partial.add(*batch)
            return partial.statistics()

        def opened():
            return gradient_rounds.GradientRounds(
                fm.queries.GradientQuery(
                    num_features=m, num_outputs=10, clip=0.1
                ),
                batches,
                mechanism=mechanisms.SampledGaussianMechanism(
                    sensitivity=0.1,
                    noise_multiplier=100.0,
                    sampling_rate=1.0,
                    steps=rounds,
                ),
                ledger=fm.Ledger(
                    fm.PrivacyBudget(9.0, 1e-5), neighbours="add_remove"
                ),
                name="output",
                noise=mechanisms.NoiseSource(),
            )

        timed("one release", one)
        many = timed("looking at all, before many rounds", opened)
        weights = np.zeros((m, 10))
        for read in range(rounds):
            noisy = timed(
                f"read {read + 1} of many", functools.partial(many, weights)
            )
            weights = weights - noisy / n
    found["largest memory without files' pages, MiB"] = anonymous
    return found


def disk():
    return {
        f"{n} records": json.loads(
            subprocess.run(
                [sys.executable, __file__, f"--cached={n}"],
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
        )
        for n in (100_000, 1_000_000)
    }


def spills(m=800, batches=16):
    """What it costs to keep the sums of 16 batches of 1,024 exact."""
    h, y = records(_BATCH, m)
    objective = CrossEntropyQuery(num_features=m, num_outputs=10)

    def plain():
        sums = objective.zero()
        for _ in range(batches):
            sums = objective.accumulate(sums, h, y, exact=True)

    def exact():
        partial = PartialStatistics(objective)
        for _ in range(batches):
            partial.add(h, y)
        partial.statistics()

    took = medians(_REPEATS.value, {"plain": plain, "exact": exact})
    base = took["plain"]
    return {name: round(s / base, 3) for name, s in took.items()}


def _share(bounds):
    h, y = records(65_536, 400)
    start = time.perf_counter()
    sent = passed(h[slice(*bounds)], y[slice(*bounds)]).to_bytes()
    return time.perf_counter() - start, sent


def processes():
    """Time of the slower half, and of merging, over that of one process."""
    context = multiprocessing.get_context("spawn")
    # Of each process that is started from here on.
    os.environ["OMP_NUM_THREADS"] = "1"
    objective = CrossEntropyQuery(num_features=400, num_outputs=10)
    ratios = []
    with context.Pool(2) as pool:
        pool.map(_share, [(0, 1024), (0, 1024)])
        for _ in range(_REPEATS.value):
            ((alone, _),) = pool.map(_share, [(0, 65_536)])
            halves = pool.map(_share, [(0, 32_768), (32_768, 65_536)])
            start = time.perf_counter()
            one, other = (
                PartialStatistics.from_bytes(sent, objective)
                for _, sent in halves
            )
            one.merge(other)
            merging = time.perf_counter() - start
            ratios.append(alone / (max(s for s, _ in halves) + merging))
    return round(statistics.median(ratios), 2)


def overlap(m=800, batches=16):
    """Seconds of a plain loop over seconds with reading meanwhile."""
    h, y = records(_BATCH, m)
    packed = zlib.compress(h.tobytes(), 1)
    images = np.random.default_rng(0).random((_BATCH, 28, 28, 1), np.float32)
    body = features.build("scattering", images.shape[1:], units=m)

    def waiting():
        for _ in range(batches):
            time.sleep(0.01)
            yield h, y

    def unpacking():
        for _ in range(batches):
            rows = np.frombuffer(zlib.decompress(packed), np.float32)
            yield rows.reshape(h.shape), y

    def scattering():
        for _ in range(batches // 4):
            yield features.extract(body, images), y

    def plain(read, take):
        for batch in read:
            take(*batch)

    def run(way, reader):
        partial = PartialStatistics(
            CrossEntropyQuery(num_features=m, num_outputs=10)
        )
        way(reader(), partial.add)
        return partial.statistics()

    found = {}
    for reader in (waiting, unpacking, scattering):
        took = medians(
            _REPEATS.value,
            {
                "plain": lambda r=reader: run(plain, r),
                "meanwhile": lambda r=reader: run(prefetch, r),
            },
        )
        found[reader.__name__] = round(took["plain"] / took["meanwhile"], 2)
    return found


_ALL = {
    "rates": ("statistics pass / dgemm of the same size", rates),
    "growth": ("stream of records of 400 features", growth),
    "spills": ("sums of 16 batches of 1,024 x 800, over plain float64", spills),
    "processes": (
        "one process / two with half of the records each",
        processes,
    ),
    "overlap": ("plain loop / reading on meanwhile", overlap),
    "disk": ("800 features on disk, CPU microseconds a record", disk),
}


def main(_):
    if _STREAM.value:
        print(json.dumps(stream(_STREAM.value)))
        return
    if _CACHED.value:
        print(json.dumps(cached(_CACHED.value)))
        return
    path = os.path.join(_OUT.value, "scale.json")
    results = {}
    if _PARTS.value and os.path.exists(path):
        with open(path) as f:
            results = json.load(f)
    results["cores"] = os.cpu_count()
    for part in _PARTS.value or _ALL:
        title, measured = _ALL[part]
        results[title] = measured()
    text = json.dumps(results, indent=1)
    print(text)
    os.makedirs(_OUT.value, exist_ok=True)
    with open(path, "w") as f:
        f.write(text + "\n")


if __name__ == "__main__":
    app.run(main)
