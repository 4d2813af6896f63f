"""One line on stderr that shows how far a copy is."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

_SECONDS = 0.5  # between two updates


class ProgressLine:
    """Shows bytes that were copied, of how many, and the rate: at a terminal as they come,
    elsewhere once, at the end.

    Args:
        label: What is copied.
        total: Bytes.
        shown: Whether anything is written.
    """

    def __init__(self, label: str, total: int, shown: bool = True) -> None:
        self._label, self._total, self._shown = label, total, shown
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
        if self._shown:
            self._write("" if error is None else ", failed", "\n")

    def add(self, num_bytes: int) -> None:
        """Counts bytes; any thread may call it."""
        with self._lock:
            self._done += num_bytes
            now = time.monotonic()
            if self._shown and sys.stderr.isatty() and now - self._last > _SECONDS:
                self._last = now
                self._write("", "")

    def _write(self, outcome, end):
        seconds = max(time.monotonic() - self._begin, 1e-3)
        start = "\r\x1b[K" if sys.stderr.isatty() else ""
        share = self._done / self._total if self._total else 1
        line = (
            f"{self._label}, {_size(self._done)} of {_size(self._total)} ({share:.0%}), "
            f"{_size(self._done / seconds)}/s{outcome}"
        )
        print(f"{start}{line}", end=end, file=sys.stderr, flush=True)


def _size(num_bytes):
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} GB"
