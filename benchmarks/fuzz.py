"""How many spoiled files the loaders took or refused, and nothing else.

    python benchmarks/fuzz.py --seconds 20

Every loader is given spoiled copies of a valid file: it may return or raise
a ValueError within the memory limit. With atheris installed, each loader is
also searched by coverage (`--atheris`), one process for each.
"""

import argparse
import collections
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "trust"))

_MEMORY = 4 << 30


def _targets():
    import faulty_releases

    # Not the whole package: fewer imports before the first file.
    faulty_releases.import_core()
    import hostile_files

    return hostile_files


def by_chance(seconds, seed):
    """Dict from loaders to counts, of spoiled files."""
    import numpy as np

    hostile = _targets()
    rng, found = np.random.default_rng(seed), {}
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=folder) as folder:
        for name, (make, load) in hostile.TARGETS.items():
            raw, counts = make(), collections.Counter()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                spoiled = hostile.spoiled(raw, rng)
                begin = time.monotonic()
                accepted = hostile.is_accepted(load, spoiled, folder)
                counts["accepted" if accepted else "refused"] += 1
                counts["slowest_ms"] = max(
                    counts["slowest_ms"],
                    round(1000 * (time.monotonic() - begin)),
                )
            found[name] = dict(counts)
            print(name, found[name], flush=True)
    return found


def by_coverage(name, seconds):
    """Runs atheris on one loader; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["keras_fm", "json", "csv"]):
        hostile = _targets()
    make, load = hostile.TARGETS[name]
    folder = tempfile.mkdtemp()
    corpus = os.path.join(folder, "corpus")
    os.mkdir(corpus)
    with open(os.path.join(corpus, "valid"), "wb") as f:
        f.write(make())

    def one(raw):
        hostile.is_accepted(load, raw, folder)

    atheris.Setup(
        [sys.argv[0], corpus, f"-max_total_time={seconds}", "-max_len=4096"],
        one,
    )
    atheris.Fuzz()


def all_by_coverage(seconds):
    """Dict from loaders to counts; a crash is an error."""
    found = {}
    for name in _targets().TARGETS:
        done = subprocess.run(
            [
                *(sys.executable, __file__, "--one", name),
                *("--seconds", str(seconds)),
            ],
            capture_output=True,
            text=True,
        )
        text = done.stdout + done.stderr
        runs = re.search(r"Done (\d+) runs", text)
        if done.returncode or runs is None:
            raise AssertionError(f"{name}:\n{text[-3000:]}")
        found[name] = {"tried": int(runs[1])}
        print(name, found[name], flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="docs/results")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    if options.one:
        by_coverage(options.one, options.seconds)
        return
    from results_file import ResultsFile

    results = ResultsFile(options.out, "trust", ("what",))
    searches = {
        "spoiled files": lambda: by_chance(options.seconds, options.seed)
    }
    if options.atheris:
        searches = {"atheris": lambda: all_by_coverage(options.seconds)}
    for kind, search in searches.items():
        for name, counts in search().items():
            what = f"{kind}: {name}"
            results.rows = [r for r in results.rows if r["what"] != what]
            results.add((what,), None, **counts)


if __name__ == "__main__":
    main()
