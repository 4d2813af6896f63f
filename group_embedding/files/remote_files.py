"""Files of this machine and of others, by path or URL: list, read, write, remove."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from group_embedding.files.connections import (
    FileSystemError,
    connect,
    is_remote,
    join,
    local_path,
    naming,
    root_of,
)

# Bytes that are fetched ahead where a file is read a little at a time.
BUFFER_BYTES = 256 << 10
_PIECE_BYTES = 8 << 20  # of a copy
# What of a client's description of a file changes when it is written again.
_VERSIONS = (
    *("ETag", "etag", "md5Hash", "generation", "modification_time", "mtime", "LastModified"),
    "created",
)


def _ignore(_):
    pass


def exists(path: str) -> bool:
    """Returns whether a file or a folder is there."""
    if not is_remote(path):
        return os.path.exists(local_path(path))
    files, inside = connect(path)
    with naming(path):
        return files.exists(inside)


def is_folder(path: str) -> bool:
    """Returns whether a path is a folder; in object stores, whether a file lies below it."""
    if not is_remote(path):
        return os.path.isdir(local_path(path))
    files, inside = connect(path)
    with naming(path):
        return files.isdir(inside)


def size_of(path: str) -> int:
    """Bytes of a file."""
    if not is_remote(path):
        return os.path.getsize(local_path(path))
    return _info(path)["size"]


def version_of(path: str) -> tuple[Any, ...]:
    """A value that changes when a file is written again."""
    if not is_remote(path):
        stat = os.stat(local_path(path))
        return stat.st_size, stat.st_mtime_ns
    info = _info(path)
    known = [name for name in _VERSIONS if name in info]
    return info["size"], *(str(info[name]) for name in known)


def list_folder(url: str) -> list[str]:
    """The names in a remote folder, of files and folders, sorted; none if it is not there."""
    files, inside = connect(url)
    try:
        with naming(url):
            found = files.ls(inside, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    below = inside.rstrip("/") + "/"
    names = {path.rstrip("/")[len(below) :] for path in found if path.startswith(below)}
    return sorted(names - {""})


def files_below(url: str) -> dict[str, int]:
    """{path below the folder: bytes} of all files of a remote folder; none if it is not there."""
    files, inside = connect(url)
    try:
        with naming(url):
            found = files.find(inside, detail=True)
    except FileNotFoundError:
        return {}
    below = inside.rstrip("/") + "/"
    return {
        path[len(below) :]: info["size"] for path, info in found.items() if path.startswith(below)
    }


def glob(url: str) -> list[str]:
    """The URLs of the files and folders that a pattern names, sorted."""
    files, inside = connect(url)
    with naming(url):
        found = sorted(files.glob(inside))
    return [root_of(url, inside) + path for path in found]


def open_file(path: str, buffer_bytes: int = BUFFER_BYTES) -> BinaryIO:
    """A file to read. `buffer_bytes` of a remote one are fetched at a time, or as many as are read
    at once."""
    if not is_remote(path):
        return open(local_path(path), "rb")
    return io.BufferedReader(RemoteFile(path), buffer_bytes)


class RemoteFile(io.RawIOBase):
    """A remote file: each read is one request for its bytes."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, (self._files, self._path) = url, connect(url)
        self._size, self._at = size_of(url), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        with naming(self._url):
            content = self._files.cat_file(self._path, start=self._at, end=end)
        if len(content) != end - self._at:
            raise OSError(
                f"{self._url}: expected {end - self._at} bytes at {self._at}, got {len(content)}; "
                "the file has changed"
            )
        buffer[: len(content)] = content
        self._at = end
        return len(content)


def write_file(url: str, content: bytes) -> None:
    """Writes a remote file: it has the whole content, or it is not there (or is as it was)."""
    _write(url, io.BytesIO(content))


def upload(
    path: str,
    url: str,
    on_bytes: Callable[[int], None] = _ignore,
    on_piece: Callable[[bytes], object] = _ignore,
) -> None:
    """Copies a file of this machine: the copy is whole, or it is not there (or is as it was).

    Args:
        on_bytes: Called with the number of bytes after each piece that was handed over.
        on_piece: Called with each piece, in order.
    """
    with open(path, "rb") as source:
        _write(url, source, on_bytes, on_piece)


def _write(url, source, on_bytes=_ignore, on_piece=_ignore):
    files, inside = connect(url)
    with naming(url):
        if _commits(files):
            target = files.open(inside, "wb", autocommit=False)
            try:
                _copy(source, target, on_bytes, on_piece)
                target.close()
                target.commit()
            except BaseException:
                with contextlib.suppress(Exception):
                    target.discard()
                raise
            return
        written = f"{inside}.{secrets.token_hex(4)}.tmp"
        files.makedirs(inside.rpartition("/")[0], exist_ok=True)
        try:
            with files.open(written, "wb") as target:
                _copy(source, target, on_bytes, on_piece)
            over = {"overwrite": True} if "hdfs" in _protocols(files) else {}
            files.mv(written, inside, **over)
        except BaseException:
            with contextlib.suppress(Exception):
                files.rm(written)
            raise


def download(
    url: str,
    path: str,
    on_bytes: Callable[[int], None] = _ignore,
    on_piece: Callable[[bytes], object] = _ignore,
) -> None:
    """Copies a remote file to this machine; what a failure leaves at `path` is not whole."""
    with open_file(url, _PIECE_BYTES) as source, open(path, "wb") as target:
        _copy(source, target, on_bytes, on_piece)


def path_below(folder: str, path: str, url: str) -> str:
    """The path of a copy in a local folder.

    Args:
        path: The path of the file below `url`, in the words of a listing or a manifest there.

    Raises:
        FileSystemError: It leads out of the folder.
    """
    if path.startswith("/") or not path or {"..", ".", ""} & set(path.split("/")):
        raise FileSystemError(f"{url}: expected names of files below this folder, got '{path}'")
    return os.path.join(folder, *path.split("/"))


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """A path of this machine with the content of a file, inside of the context."""
    if not is_remote(path):
        yield local_path(path)
        return
    with tempfile.TemporaryDirectory(prefix="group_embedding_") as folder:
        copy = os.path.join(folder, os.path.basename(path))
        download(path, copy)
        yield copy


def remove(url: str) -> None:
    """Removes a remote file or folder; it is no error if there is none."""
    files, inside = connect(url)
    with contextlib.suppress(FileNotFoundError), naming(url):
        files.rm(inside, recursive=True)


def _info(url):
    files, inside = connect(url)
    with naming(url):
        return files.info(inside)


def _copy(source, target, on_bytes, on_piece):
    while True:
        piece = source.read(_PIECE_BYTES)
        if not piece:
            return
        on_piece(piece)
        target.write(piece)
        on_bytes(len(piece))


def _commits(files):
    """Returns whether a file appears when its writer commits it, as in object stores."""
    return bool({"s3", "gs"} & _protocols(files))


def _protocols(files):
    return {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)


__all__ = [
    "download",
    "exists",
    "files_below",
    "glob",
    "is_folder",
    "join",
    "list_folder",
    "local_copy",
    "open_file",
    "remove",
    "size_of",
    "upload",
    "version_of",
    "write_file",
]
