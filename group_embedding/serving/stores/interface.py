"""The interface of a store of versions."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

from group_embedding.serving.stores.records import FileEntry


class VersionStore(abc.ABC):
    """Versions that lie elsewhere: in a topic, a Redis stream, or a bucket.

    A version exists once `write` has returned. Methods raise `TargetError` or `OSError` where the
    store does not answer within its time-out; a message names the address. Not thread-safe.

    Attributes:
        url: The store's URL, without password and options.
    """

    url: str

    @abc.abstractmethod
    def connect(self) -> None:
        """Makes sure that the store answers, and that versions can be written there.

        Raises:
            TargetError: It does not, within 5 seconds.
        """

    @abc.abstractmethod
    def versions(self) -> list[int]:
        """The numbers of all versions, rising."""

    @abc.abstractmethod
    def newest(self) -> int:
        """The number of the newest version; 0: there is none."""

    @abc.abstractmethod
    def record(self, version: int) -> bytes:
        """The content of a version's `COMMIT`.

        Raises:
            FileNotFoundError: The version is gone.
        """

    @abc.abstractmethod
    def read(self, version: int, number: int, file: FileEntry) -> Iterator[bytes]:
        """The blocks of a file.

        Args:
            number: Which of the record's files it is.
            file: The file.

        Raises:
            FileNotFoundError: The file is gone.
        """

    @abc.abstractmethod
    def write(self, version: int, record: bytes, files: Sequence[tuple[FileEntry, str]]) -> None:
        """Writes the files of a version, and makes it exist.

        Args:
            record: The content of its `COMMIT`.
            files: The record's files, with their local paths.

        Raises:
            TargetError: Another publisher's version has the number.
        """

    @abc.abstractmethod
    def remove(self, version: int) -> None:
        """Removes a version: first it no longer exists, then its files go."""

    @abc.abstractmethod
    def wait(self, seconds: float) -> None:
        """Waits so long at most for another version than those that `newest` has seen."""

    def position(self, version: int) -> str:
        """The position of the version behind this one, as `start_after` takes it; "": unknown."""
        del version
        return ""

    def start_after(self, version: int, position: str) -> None:
        """Spares the store's reader what lies in front of a position. Called first."""
        del version, position

    @abc.abstractmethod
    def close(self) -> None:
        """Ends connections."""
