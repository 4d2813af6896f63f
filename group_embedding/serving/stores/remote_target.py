"""A target whose versions lie in a store: they are put together in a folder of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from typing import BinaryIO

from group_embedding.serving.stores import records
from group_embedding.serving.stores.interface import VersionStore
from group_embedding.serving.stores.targets import BASE_RECORD, COMMIT, FileTarget, Target


class RemoteTarget(Target):
    """A store of versions, used as a target.

    A version is written to a folder, and goes to the store when it is committed. The newest base
    and the deltas since stay in the folder, as the next base is written from them. Versions of
    others are fetched when their files are opened.

    Args:
        store: Where the versions lie.
        folder: An existing folder, which others may share; None: a temporary one.
    """

    def __init__(self, store: VersionStore, folder: str | None = None) -> None:
        self.url = store.url
        self._store = store
        self._finalizer = None
        if folder is None:
            folder = tempfile.mkdtemp(prefix="ge-versions-")
            self._finalizer = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._local = FileTarget(folder, is_durable=False)

    def lock(self) -> None:
        """Any publisher may begin: a version goes to whoever is first with its number, and the
        other publisher learns that."""
        self._store.connect()

    def versions(self) -> list[int]:
        return self._store.versions()

    def newest(self) -> int:
        return self._store.newest()

    def record(self, version: int) -> bytes:
        return self._store.record(version)

    def put(self, version: int, name: str, content: bytes) -> None:
        self._local.put(version, name, content)

    def put_file(self, version: int, name: str, path: str) -> None:
        self._local.put_file(version, name, path)

    def put_base(self, version: int, folder: str) -> None:
        self._local.put_base(version, folder)

    def work_folder(self) -> str:
        return self._local.work_folder()

    def uncommitted(self) -> Target:
        return self._local

    def commit(self, version: int, record: bytes) -> None:
        decoded = records.decode(record, self.path(version, COMMIT))
        files = [(file, self._path_of(version, file)) for file in decoded.files]
        self._store.write(version, record, files)
        self._local.commit(version, record)
        if decoded.kind == records.BASE:
            for former in self._local.versions():
                if former < version:
                    self._local.remove(former)

    def names(self, version: int) -> list[str]:
        return self._local.names(version)

    def path(self, version: int, name: str) -> str:
        return self._local.path(version, name)

    def base_path(self, version: int) -> str:
        path = self._local.base_path(version)
        if not os.path.exists(os.path.join(path, BASE_RECORD)):
            with contextlib.suppress(FileNotFoundError):
                self._fetch_base(version)
        return path

    def open(self, path: str) -> BinaryIO:
        if not os.path.exists(path):
            folder, name = os.path.split(path)
            number = os.path.basename(folder)
            if number.isdigit():
                self._fetch(int(number), name, path)
        return open(path, "rb")

    def remove(self, version: int) -> None:
        self._store.remove(version)

    def remove_leftovers(self, named: set[str]) -> None:
        """Nothing: a store ends its leftovers itself."""

    def close(self) -> None:
        self._store.close()
        if self._finalizer is not None:
            self._finalizer()

    def _path_of(self, version, file):
        if file.kind == records.MODEL_FILE:
            return os.path.join(self._local.base_path(version), file.path)
        return self._local.path(version, file.path)

    def _fetch(self, version, name, path):
        """Fetches a file of a version."""
        for number, file in self._files(version):
            if file.kind != records.MODEL_FILE and file.path == name:
                self._write(version, number, file, path)

    def _fetch_base(self, version):
        folder = self.work_folder()
        for number, file in self._files(version):
            if file.kind == records.MODEL_FILE:
                self._write(version, number, file, os.path.join(folder, file.path))
        self._local.put_base(version, folder)

    def _files(self, version):
        record = records.decode(self._store.record(version), self.path(version, COMMIT))
        return enumerate(record.files)

    def _write(self, version, number, file, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as written:
            for block in self._store.read(version, number, file):
                written.write(block)
