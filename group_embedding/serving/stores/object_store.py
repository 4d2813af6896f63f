"""Versions in an object store or on HDFS, in the layout of a folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from group_embedding.files import create_file, join, remote_files
from group_embedding.serving.stores import records
from group_embedding.serving.stores.background_call import BackgroundCall
from group_embedding.serving.stores.interface import VersionStore
from group_embedding.serving.stores.records import FileEntry
from group_embedding.serving.stores.targets import COMMIT, TargetError

CONNECT_SECONDS = 5.0
_BLOCK_BYTES = 4 << 20
_KEPT_RECORDS = 16
_UPLOADS = 4  # at a time: HDFS takes 0.4 s to close a file


class ObjectStore(VersionStore):
    """The versions below a URL `s3://BUCKET/FOLDER`, `gs://...` or `hdfs://HOST:PORT/FOLDER`.

    Args:
        url: As fsspec has it. Keys and end points are those that its clients find.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if not self.url.partition("://")[2]:
            raise ValueError(f"'{url}': expected a bucket or host, such as s3://BUCKET/FOLDER")
        self._is_connected = False
        self._newest = 0
        self._records: dict[int, bytes] = {}

    def connect(self) -> None:
        if self._is_connected:
            return
        call = BackgroundCall(lambda: remote_files.list_folder(self.url))
        if not call.ends_within(CONNECT_SECONDS):
            raise TargetError(
                f"target '{self.url}': expected an answer within {CONNECT_SECONDS:g} s, got none"
            )
        call.result()
        self._is_connected = True

    def versions(self) -> list[int]:
        self.connect()
        paths = remote_files.files_below(join(self.url, "versions"))
        names = [path.split("/") for path in paths]
        return sorted(int(name[0]) for name in names if name[1:] == [COMMIT])

    def newest(self) -> int:
        self.connect()
        hint = self._hint()
        newest = max(hint, self._newest) if hint else max(self.versions(), default=0)
        with contextlib.suppress(FileNotFoundError):
            while True:
                self.record(newest + 1)
                newest += 1
        self._newest = newest
        return newest

    def record(self, version: int) -> bytes:
        self.connect()
        if version not in self._records:
            with remote_files.open_file(join(self._folder(version), COMMIT)) as file:
                self._records[version] = file.read()
            for known in sorted(self._records)[:-_KEPT_RECORDS]:
                del self._records[known]
        return self._records[version]

    def read(self, version: int, number: int, file: FileEntry) -> Iterator[bytes]:
        url = self._url_of(version, self.record(version), file)
        with remote_files.open_file(url, _BLOCK_BYTES) as opened:
            while block := opened.read(_BLOCK_BYTES):
                yield block

    def write(self, version: int, record: bytes, files: Sequence[tuple[FileEntry, str]]) -> None:
        self.connect()
        with ThreadPoolExecutor(_UPLOADS) as threads:
            uploads = [
                threads.submit(remote_files.upload, path, self._url_of(version, record, file))
                for file, path in files
            ]
        for upload in uploads:
            upload.result()
        try:
            create_file(join(self._folder(version), COMMIT), record)
        except FileExistsError:
            raise TargetError(
                f"target '{self.url}': expected version {version} to be new, got one of another "
                "publisher"
            ) from None
        with contextlib.suppress(OSError):  # it is a hint
            remote_files.write_file(join(self.url, "LATEST"), f"{version}\n".encode())

    def remove(self, version: int) -> None:
        self._records.pop(version, None)
        with contextlib.suppress(FileNotFoundError):
            remote_files.remove(join(self._folder(version), COMMIT))
        below = f"{version}-"
        bases = [name for name in remote_files.list_folder(self.url) if name.startswith(below)]
        for url in [self._folder(version), *(join(self.url, base) for base in bases)]:
            with contextlib.suppress(FileNotFoundError):
                remote_files.remove(url)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """Connections are fsspec's."""

    def _hint(self):
        """The version in `LATEST`, or 0."""
        try:
            with remote_files.open_file(join(self.url, "LATEST")) as file:
                return int(file.read())
        except (FileNotFoundError, ValueError):
            return 0

    def _folder(self, version):
        return join(self.url, "versions", f"{version:020d}")

    def _url_of(self, version, record, file):
        if file.kind != records.MODEL_FILE:
            return join(self._folder(version), file.path)
        # Two publishers that try one number do not write the same files.
        base_id = records.decode(record, self.url).base_id
        return join(self.url, f"{version}-{base_id:016x}", file.path)
