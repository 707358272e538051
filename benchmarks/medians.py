"""Times of several functions, side by side."""

import statistics
import time


def medians(repeats, runs):
    """Median seconds of functions, taken in turn, after one call of each."""
    seconds = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(s) for name, s in seconds.items()}
