"""One line on stderr that shows how far long work is."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_SECONDS = 0.5  # between two updates


class ProgressLine:
    """Shows bytes or rows that are done, of how many, and the rate: at a terminal as they come,
    elsewhere once, at the end.

    Args:
        label: What is copied.
        total: Bytes or rows.
        shown: Whether anything is written.
        unit: "bytes" or "rows".
    """

    def __init__(self, label: str, total: int, shown: bool = True, unit: str = "bytes") -> None:
        self._label, self._total, self._shown = label, total, shown
        self._size = _size if unit == "bytes" else _rows
        self._done, self._lock = 0, threading.Lock()
        self._begin = self._last = time.monotonic()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end("" if error is None else ", failed")

    def end(self, outcome: str = "") -> None:
        """Writes the line for the last time, as the end of its context does."""
        if self._shown:
            self._write(outcome, "\n")

    def add(self, count: int) -> None:
        """Counts bytes or rows; any thread may call it."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if self._shown and sys.stderr.isatty() and now - self._last > _SECONDS:
                self._last = now
                self._write("", "")

    def _write(self, outcome, end):
        seconds = max(time.monotonic() - self._begin, 1e-3)
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        share = self._done / self._total if self._total else 1
        line = (
            f"{self._label}, {self._size(self._done)} of {self._size(self._total)} ({share:.0%}), "
            f"{self._size(self._done / seconds)}/s{outcome}"
        )
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)


def _size(num_bytes):
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"


def _rows(count):
    return f"{count:,.0f} rows"
