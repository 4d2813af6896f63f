"""Files that are copied to and from a URL, several at a time, with checksums: what checkpoints in
remote folders and SavedModels at URLs share."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from group_embedding.files import remote_files

_THREADS = 4


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file at a URL.

    Attributes:
      stored: Its path below the URL.
      bytes: Its length.
      sha256: The checksum of its content, as hexadecimal digits; "": not known.
    """

    stored: str
    bytes: int
    sha256: str


def send_files(
    url: str, sources: Mapping[str, str], on_bytes: Callable[[int], None]
) -> dict[str, StoredFile]:
    """Uploads files.

    Args:
        sources: {path below the URL: path of this machine}.
        on_bytes: Called, by several threads, with the number of bytes after each piece.

    Returns:
        {path below the URL: the file that is there now}.
    """

    def send(stored):
        checksum, source = hashlib.sha256(), sources[stored]
        remote_files.upload(source, remote_files.join(url, stored), on_bytes, checksum.update)
        return StoredFile(stored, os.path.getsize(source), checksum.hexdigest())

    return dict(zip(sources, _at_a_time(send, sources)))


def receive_files(
    url: str,
    targets: Mapping[str, StoredFile],
    on_bytes: Callable[[int], None],
    damaged: Callable[[str], Exception],
) -> None:
    """Downloads files, and compares them with their checksums.

    Args:
        targets: {path of this machine, in a folder that is there: the file at the URL}.
        on_bytes: As of `send_files`.
        damaged: Makes the error of a file that is not what was stored, of a text that names it.
    """

    def receive(target):
        file, checksum = targets[target], hashlib.sha256()
        path = remote_files.join(url, file.stored)
        remote_files.download(path, target, on_bytes, checksum.update)
        if file.sha256 and checksum.hexdigest() != file.sha256:
            raise damaged(
                f"{path}: expected sha256 {file.sha256[:16]}..., as it was stored, got "
                f"{checksum.hexdigest()[:16]}..."
            )

    _at_a_time(receive, targets)


def _at_a_time(function: Callable[[str], Any], values: Iterable[str]) -> list[Any]:
    """The results of a function for all values, of which some run side by side."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, values))
