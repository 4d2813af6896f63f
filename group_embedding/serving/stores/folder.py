"""Versions in a folder of this machine, read as those of a store are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from group_embedding.serving.stores import records
from group_embedding.serving.stores.interface import VersionStore
from group_embedding.serving.stores.records import FileEntry
from group_embedding.serving.stores.targets import FileTarget, TargetError

_BLOCK_BYTES = 1 << 20
_POLL_SECONDS = 0.05


class Folder(VersionStore):
    """A target `file:///PATH` as a source; publishers write it as a `FileTarget`."""

    def __init__(self, url: str) -> None:
        self._target = FileTarget(url)
        self.url = f"file://{self._target.folder}"

    def connect(self) -> None:
        if not os.path.isdir(self._target.folder):
            raise TargetError(f"source '{self.url}': expected a folder, there is none")

    def versions(self) -> list[int]:
        return self._target.versions()

    def newest(self) -> int:
        self.connect()
        return self._target.newest()

    def record(self, version: int) -> bytes:
        return self._target.record(version)

    def read(self, version: int, number: int, file: FileEntry) -> Iterator[bytes]:
        path = self._target.path(version, file.path)
        if file.kind == records.MODEL_FILE:
            path = os.path.join(self._target.base_path(version), file.path)
        with open(path, "rb") as opened:
            while block := opened.read(_BLOCK_BYTES):
                yield block

    def write(self, version: int, record: bytes, files: Sequence[tuple[FileEntry, str]]) -> None:
        raise NotImplementedError("a folder is written by FileTarget")

    def remove(self, version: int) -> None:
        self._target.remove(version)

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, _POLL_SECONDS))

    def close(self) -> None:
        """Nothing is open."""
