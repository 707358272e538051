"""A line that says what runs now: one that is replaced on a terminal, else
one for each method."""

import sys
import time


class Progress:
    """Tells of runs as they begin and end.

    Args:
        unit: str, what is counted.
        named: function from a request to the words for it.
        stream: where to; `None` for standard error, "" for nowhere.
    """

    def __init__(self, unit, named, stream=None):
        self._unit, self._named = unit, named
        self._stream = sys.stderr if stream is None else stream
        self._total = self._done = 0
        self._last = ""

    def say(self, notes):
        """A line for each, which stays."""
        if self._stream:
            self._stream.write("".join(f"{note}\n" for note in notes))

    def start(self, total, done):
        """So many in all, of which so many are there already."""
        self._total, self._done = total, done
        self._begin = time.monotonic()
        if done:
            self._line(f"{done} of {total} {self._unit} are kept from before")

    def began(self, request):
        """Called when a request begins, from whatever thread."""
        words = self._named(request)
        if words != self._last:
            self._last = words
            seconds = time.monotonic() - self._begin
            self._line(
                f"{self._done} of {self._total} {self._unit} in "
                f"{seconds:.0f} s; now {words}"
            )

    def done(self):
        """One more is there."""
        self._done += 1

    def end(self):
        """The terminal's line is empty again."""
        if self._total and self._is_terminal():
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _is_terminal(self):
        return self._stream and self._stream.isatty()

    def _line(self, text):
        if not self._stream:
            return
        if self._is_terminal():
            text = f"\r\x1b[K{text[:100]}"
        else:
            text += "\n"
        self._stream.write(text)
        self._stream.flush()
