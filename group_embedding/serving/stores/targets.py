"""Targets: folders and services to which versions are published, and from which they are read."""

from __future__ import annotations

import abc
import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from typing import BinaryIO
from urllib.parse import urlsplit

COMMIT = "COMMIT"
BASE_RECORD = "assets.extra/version"  # in a base
_FOLDER = re.compile(r"\d{20}$")
_EXPORT = ".export-"


class TargetError(RuntimeError):
    """A target cannot be used; the message says which one, and why."""


class Target(abc.ABC):
    """A place of versions. A version exists once it is committed.

    Methods raise `OSError` or `TargetError` where the target fails. What `put` and `put_base`
    were given survives a crash of the machine when `commit` returns.
    """

    url: str

    @abc.abstractmethod
    def lock(self) -> None:
        """Makes this process the only publisher, until `close` or its end.

        Raises:
            TargetError: Another one is.
        """

    @abc.abstractmethod
    def versions(self) -> list[int]:
        """The numbers of all versions, rising."""

    @abc.abstractmethod
    def record(self, version: int) -> bytes:
        """The content of a version's `COMMIT`."""

    @abc.abstractmethod
    def put(self, version: int, name: str, content: bytes) -> None:
        """Writes a file of a version that is not committed yet."""

    @abc.abstractmethod
    def put_file(self, version: int, name: str, path: str) -> None:
        """Makes a local file one of a version that is not committed yet. The file may be moved."""

    @abc.abstractmethod
    def put_base(self, version: int, folder: str) -> None:
        """Makes a local folder the base of a version that is not committed yet. The folder may be
        moved."""

    @abc.abstractmethod
    def work_folder(self) -> str:
        """A new, empty folder near the target, for a base. Ranks that reach the target reach it."""

    @abc.abstractmethod
    def uncommitted(self) -> Target:
        """The target in which files lie until their version is committed; ranks share it."""

    @abc.abstractmethod
    def commit(self, version: int, record: bytes) -> None:
        """Makes the version exist.

        Raises:
            TargetError: It exists.
        """

    @abc.abstractmethod
    def names(self, version: int) -> list[str]:
        """The files that were put into a version, committed or not."""

    @abc.abstractmethod
    def path(self, version: int, name: str) -> str:
        """The path of a file of a version, for messages and for `open`."""

    @abc.abstractmethod
    def base_path(self, version: int) -> str:
        """The folder of a base, a SavedModel, as TensorFlow opens it."""

    @abc.abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Opens a file to read."""

    @abc.abstractmethod
    def remove(self, version: int) -> None:
        """Removes a version: first it no longer exists, then its files go."""

    @abc.abstractmethod
    def remove_leftovers(self, named: set[str]) -> None:
        """Removes what attempts of earlier publishers left behind.

        Args:
            named: The paths of the files that versions name.
        """

    def newest(self) -> int:
        """The number of the newest version; 0: there is none."""
        return max(self.versions(), default=0)

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the lock."""


class FileTarget(Target):
    """A folder on a file system of this machine.

    Args:
        url: `file:///runs/published`, or a path.
        is_durable: Whether versions survive a crash of the machine.
    """

    def __init__(self, url: str, is_durable: bool = True) -> None:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise TargetError(
                f"target '{url}': expected file:///path or a path, got a path on the host "
                f"'{parts.netloc}'"
            )
        self.url = url
        self.folder = os.path.abspath(parts.path if parts.scheme else url)
        self._versions = os.path.join(self.folder, "versions")
        self._lock: int | None = None
        self._is_durable = is_durable

    def lock(self) -> None:
        os.makedirs(self._versions, exist_ok=True)
        handle = os.open(os.path.join(self.folder, "LOCK"), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise
            raise TargetError(
                f"target '{self.url}': expected no other publisher, got one that lives; end it, or "
                "publish to another target"
            ) from None
        self._lock = handle

    def versions(self) -> list[int]:
        try:
            names = os.listdir(self._versions)
        except FileNotFoundError:
            return []
        numbers = [int(name) for name in names if _FOLDER.match(name)]
        return sorted(n for n in numbers if os.path.exists(self.path(n, COMMIT)))

    def record(self, version: int) -> bytes:
        with open(self.path(version, COMMIT), "rb") as file:
            return file.read()

    def put(self, version: int, name: str, content: bytes) -> None:
        os.makedirs(self._folder(version), exist_ok=True)
        self._write(self.path(version, name), content)

    def put_file(self, version: int, name: str, path: str) -> None:
        os.makedirs(self._folder(version), exist_ok=True)
        shutil.move(path, self.path(version, name))
        self._sync(self.path(version, name))

    def put_base(self, version: int, folder: str) -> None:
        near = os.path.join(self.folder, _EXPORT + secrets.token_hex(4))
        try:
            shutil.move(folder, near)
            for path, _, names in os.walk(near):
                for name in names:
                    self._sync(os.path.join(path, name))
                self._sync(path)
            self._remove_base(version)  # of an attempt that was not committed
            if os.path.exists(self.base_path(version)):
                raise TargetError(
                    f"target '{self.url}': expected no '{self.base_path(version)}', got one that "
                    "no publisher wrote; publish to another target"
                )
            os.rename(near, self.base_path(version))
        except BaseException:
            shutil.rmtree(near, ignore_errors=True)
            raise
        self._sync(self.folder)

    def work_folder(self) -> str:
        os.makedirs(self._versions, exist_ok=True)
        return tempfile.mkdtemp(prefix=_EXPORT, dir=self.folder)

    def uncommitted(self) -> Target:
        return self

    def commit(self, version: int, record: bytes) -> None:
        folder = self._folder(version)
        os.makedirs(folder, exist_ok=True)
        unnamed = self.path(version, f"{COMMIT}-{secrets.token_hex(4)}")
        self._write(unnamed, record)
        self._sync(folder)
        self._sync(self._versions)
        try:
            os.link(unnamed, self.path(version, COMMIT))
        except FileExistsError:
            raise TargetError(
                f"target '{self.url}': expected version {version} to be new, got one that exists"
            ) from None
        finally:
            os.unlink(unnamed)
        self._sync(folder)
        with contextlib.suppress(OSError):  # it is a hint
            hint = os.path.join(self.folder, "LATEST")
            self._write(f"{hint}.tmp", f"{version}\n".encode())
            os.replace(f"{hint}.tmp", hint)

    def names(self, version: int) -> list[str]:
        try:
            return sorted(os.listdir(self._folder(version)))
        except FileNotFoundError:
            return []

    def path(self, version: int, name: str) -> str:
        return os.path.join(self._folder(version), name)

    def base_path(self, version: int) -> str:
        return os.path.join(self.folder, str(version))

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def remove(self, version: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(version, COMMIT))
            self._sync(self._folder(version))
        shutil.rmtree(self._folder(version), ignore_errors=True)
        self._remove_base(version)

    def remove_leftovers(self, named: set[str]) -> None:
        existing = set(self.versions())
        for name in os.listdir(self.folder):
            if name.startswith(_EXPORT):
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
            if re.fullmatch(r"[1-9]\d*", name) and int(name) not in existing:
                self._remove_base(int(name))
        for folder in filter(_FOLDER.match, os.listdir(self._versions)):
            if int(folder) not in existing:
                shutil.rmtree(os.path.join(self._versions, folder), ignore_errors=True)
                continue
            for name in self.names(int(folder)):
                if name != COMMIT and self.path(int(folder), name) not in named:
                    os.unlink(self.path(int(folder), name))

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_base(self, version):
        """Removes the base of a version, if a publisher wrote it."""
        base = self.base_path(version)
        if os.path.exists(os.path.join(base, BASE_RECORD)):
            shutil.rmtree(base, ignore_errors=True)

    def _folder(self, version):
        return os.path.join(self._versions, f"{version:020d}")

    def _write(self, path, content):
        with open(path, "wb") as file:
            file.write(content)
        self._sync(path)

    def _sync(self, path):
        """Brings a file, or the names in a folder, to the disk."""
        if not self._is_durable:
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
