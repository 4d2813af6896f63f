"""The files by which a mirror tells servers how its source is, and remembers its position."""

from __future__ import annotations

import contextlib
import os
import sys
import time

SOURCE = "SOURCE"  # three lines: seconds since 1970, "up" or "down", what is wrong
POSITION = "POSITION"  # a version, and the position in the source of the next one
_SECONDS = 1.0  # between two writes of the same


class MirrorStatus:
    """The files `SOURCE` and `POSITION` in a mirror's folder.

    Args:
        folder: The folder; None: of a target elsewhere, whose state goes to stderr alone.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._told: tuple[bool, str] = (True, "")
        self._time = 0.0

    def tell(self, is_up: bool, error: str = "") -> None:
        """Tells whether the source answers, and what is wrong with it or its versions."""
        error = " ".join(error.split())
        is_new = (is_up, error) != self._told
        if is_new:
            print(f"group_embedding: {error or 'the source is back'}", file=sys.stderr, flush=True)
        self._told = is_up, error
        if is_new or time.time() - self._time >= _SECONDS:
            self._write_source()

    def tell_alive(self) -> None:
        """Tells during a long copy that the mirror works."""
        if time.time() - self._time >= _SECONDS:
            self._write_source()

    def keep_position(self, version: int, position: str) -> None:
        """Remembers the position in the source of the version behind this one."""
        self._write(POSITION, f"{version} {position}\n")

    def position(self, version: int) -> str:
        """The position that was remembered for a version; "": none."""
        with contextlib.suppress(OSError, ValueError):
            with open(os.path.join(self._folder or "", POSITION)) as file:
                of, position = file.read().split()
            return position if int(of) == version else ""
        return ""

    def _write_source(self):
        self._time = time.time()
        is_up, error = self._told
        self._write(SOURCE, f"{self._time:.3f}\n{'up' if is_up else 'down'}\n{error}\n")

    def _write(self, name, text):
        if self._folder is None:
            return
        path = os.path.join(self._folder, name)
        # The copy that fails reports a full disk.
        with contextlib.suppress(OSError):
            with open(f"{path}.tmp", "w") as file:
                file.write(text)
            os.replace(f"{path}.tmp", path)
