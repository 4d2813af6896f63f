"""Uploads of checkpoints: files first, several at a time, then the manifest."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import secrets
import shutil
import threading
import warnings
from typing import Any

import tensorflow as tf

from group_embedding.checkpoint.remote_manifest import (
    FILES,
    DamagedCheckpointError,
    Manifest,
    lacking,
    numbers_in,
    path_of,
    read_manifest,
    write_manifest,
)
from group_embedding.files import remote_files
from group_embedding.files.connections import FileSystemError
from group_embedding.files.progress_line import ProgressLine
from group_embedding.files.transfers import StoredFile, send_files

_RECORD = ".remote.json"


class CheckpointGoneError(FileNotFoundError):
    """A local checkpoint was deleted before its files had a second name."""


class Uploader:
    """Uploads checkpoints of one local folder to one URL.

    Attributes:
      work_folder: Where files that are uploaded, or fetched, have a second name, so that nobody
        deletes them meanwhile.
    """

    def __init__(self, url: str, folder: str, keep: int, progress: bool) -> None:
        self._url, self._folder, self._keep, self._progress = url, folder, keep, progress
        self._lock, self._token = threading.Lock(), secrets.token_hex(2)
        self.work_folder = os.path.join(folder, ".remote")
        # By the identity of a local file, its copy.
        self._known = {
            tuple(noted[:4]): StoredFile(*noted[4:]) for noted in self._record().get("files", ())
        }

    def has(self, manifest: Manifest) -> bool:
        """Returns whether the folder has this upload or a later one, as written down in it."""
        return self._record().get("number", 0) >= manifest.number

    def note(self, manifest: Manifest) -> None:
        """Writes down that the folder has this upload, and which of its files came from where."""
        for name, file in manifest.files.items():
            identity = identity_of(os.path.join(self._folder, name))
            if identity is not None and identity[-1] == file.bytes:
                self._known[identity] = file
        known = [[*identity, *dataclasses.astuple(file)] for identity, file in self._known.items()]
        record = {"url": self._url, "number": manifest.number, "files": known}
        path = os.path.join(self._folder, _RECORD)
        with open(f"{path}.new", "w") as written:
            json.dump(record, written)
        os.replace(f"{path}.new", path)

    def _record(self):
        """The last note, a dict; empty: there is none, or it is of another URL."""
        try:
            with open(os.path.join(self._folder, _RECORD)) as file:
                record = json.load(file)
            return record if record["url"] == self._url else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def upload_newest(self) -> None:
        """Uploads the folder's newest checkpoint, unless its files were uploaded or fetched as they
        are."""
        with self._lock:
            path = tf.train.latest_checkpoint(self._folder)
            if path is not None and not self._knows(files_of(path, self._folder)):
                self._upload_linked(path)

    def upload(self, path: str) -> Manifest:
        """Uploads a checkpoint; see `RemoteFolder.upload`."""
        with self._lock:
            numbers, names = numbers_in(self._url), files_of(path, self._folder)
            if numbers and names and self._knows(names):
                newest = read_manifest(self._url, numbers[-1])
                if newest.files == {name: self._copy_of(name) for name in names}:
                    return newest  # the thread was faster
            return self._upload_linked(path)

    def _copy_of(self, name):
        return self._known.get(identity_of(os.path.join(self._folder, name)))

    def _knows(self, names):
        return all(self._copy_of(name) is not None for name in names)

    def _upload_linked(self, path):
        links = os.path.join(self.work_folder, "uploading")
        shutil.rmtree(links, ignore_errors=True)
        os.makedirs(links)
        try:
            return self._upload(path, links)
        finally:
            shutil.rmtree(links, ignore_errors=True)

    def _upload(self, path, links):
        name = os.path.relpath(path, self._folder)
        if name.startswith(".."):
            raise ValueError(f"upload: expected a checkpoint in {self._folder}, got '{path}'")
        numbers = numbers_in(self._url)
        number = max([self._record().get("number", 0), *numbers]) + 1
        present = remote_files.files_below(self._url)
        self._known = {
            identity: file
            for identity, file in self._known.items()
            if present.get(file.stored) == file.bytes
        }
        files: dict[str, StoredFile] = {}
        while True:  # the graph of a Saver (.meta) may be written behind the state file
            more = [one for one in files_of(path, self._folder) if one not in files]
            if not more:
                break
            files.update(self._upload_files(number, more, links))
        if not files:
            raise FileNotFoundError(f"upload: expected a checkpoint, got '{path}', which has none")
        manifest = Manifest(number, name, files)
        present = remote_files.files_below(self._url)
        missing = lacking(manifest, present)
        if missing:
            raise FileSystemError(
                f"{self._url}: expected the files that were uploaded, but lacks {missing[0]}"
            )
        write_manifest(self._url, manifest)
        self.note(manifest)
        self._remove_old([*numbers, number], present)
        return manifest

    def _upload_files(self, number, names, links):
        """{name: StoredFile}"""
        sources = {}
        for name in names:
            source = os.path.join(links, name.replace(os.sep, "|"))
            link_or_copy(os.path.join(self._folder, name), source)
            sources[name] = source
        new = {
            f"{FILES}/{number:08}-{self._token}/{name}": source
            for name, source in sources.items()
            if identity_of(source) not in self._known
        }
        total = sum(os.path.getsize(source) for source in new.values())
        with ProgressLine(f"{self._url}: upload {number}", total, self._progress) as line:
            sent = send_files(self._url, new, line.add)
        for stored, file in sent.items():
            self._known[identity_of(new[stored])] = file
        return {name: self._known[identity_of(source)] for name, source in sources.items()}

    def _remove_old(self, numbers, present):
        """Removes manifests beyond those that are kept, then files that no manifest names: also
        those that a killed upload left."""
        try:
            kept = [read_manifest(self._url, number) for number in numbers[-self._keep :]]
        except DamagedCheckpointError as error:
            warnings.warn(f"{error}; old files are kept, as it may name them", stacklevel=1)
            return
        named = {file.stored for manifest in kept for file in manifest.files.values()}
        for number in numbers[: -self._keep]:
            remote_files.remove(remote_files.join(self._url, path_of(number)))
        for stored in present:
            if stored.startswith(f"{FILES}/") and stored not in named:
                remote_files.remove(remote_files.join(self._url, stored))


def files_of(path: str, folder: str) -> list[str]:
    """The names of a checkpoint's files below a folder, sorted, the `.index` last."""
    found = [path] if os.path.isfile(path) else glob.glob(f"{glob.escape(path)}.*")
    whole = [file for file in found if os.path.isfile(file) and not file.endswith(".tmp")]
    return sorted((os.path.relpath(file, folder) for file in whole), key=index_last)


def index_last(name):
    return name.endswith(".index"), name


def identity_of(path: str) -> Any:
    """A value that all names of one file share, and that changes when it is written again."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def link_or_copy(path: str, link: str) -> None:
    """Gives a file a second name; where the file system has no hard links, copies it."""
    try:
        os.link(path, link)
    except FileNotFoundError:
        raise CheckpointGoneError(f"{path}: the file was deleted while it was uploaded") from None
    except OSError:
        shutil.copy2(path, link)
