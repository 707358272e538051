"""Seconds, CPU seconds and memory of a `with` block."""

import math
import os
import threading
import time


class Watch:
    """Measures a `with` block.

    Attributes:
        seconds: float, of the wall clock.
        cpu_seconds: float, of all threads of this process together.
        peak_mib: float, peak resident memory above that at the start,
            sampled every 10 ms from the operating system; NaN where it does
            not tell (no /proc).
    """

    def __enter__(self):
        self._stop = threading.Event()
        self._start = self._peak = _resident_mib()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        self._begin = time.perf_counter()
        self._cpu = time.process_time()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self._begin
        self.cpu_seconds = time.process_time() - self._cpu
        self._stop.set()
        self._thread.join()
        self._peak = max(self._peak, _resident_mib())
        self.peak_mib = self._peak - self._start

    def _sample(self):
        while not self._stop.wait(0.01):
            self._peak = max(self._peak, _resident_mib())


def _resident_mib():
    try:
        with open("/proc/self/statm") as f:
            pages = int(f.read().split()[1])
    except OSError:
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
