"""`RemoteFolder`: checkpoints of a local folder, kept on an object store or on HDFS."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import tensorflow as tf

from group_embedding.arguments import check_positive
from group_embedding.checkpoint.download import download_checkpoint
from group_embedding.checkpoint.remote_manifest import Manifest, lacking, numbers_in, read_manifest
from group_embedding.checkpoint.upload import CheckpointGoneError, Uploader
from group_embedding.files import DataSourceParams, remote_files
from group_embedding.files.data_source import url_of
from group_embedding.ranks.exchange.active import current

_POLL_SECONDS = 0.25
_LONGEST_PAUSE = 60.0  # seconds between two tries of an upload that fails


class RemoteFolder:
    """A local folder whose checkpoints are kept on an object store or on HDFS.

    Inside of its context, each checkpoint that anything finishes in the folder is uploaded by a
    thread, while training goes on: a `CheckpointManager`, a `Saver`, an Estimator with this
    `model_dir`, hooks, `BackgroundSave`. On entry the newest complete checkpoint is fetched, so
    that `tf.train.latest_checkpoint(folder)` finds it. On exit the newest one is uploaded.

    A checkpoint is there once its manifest is, which is written last: a process, or a server of the
    store, that is killed in the middle leaves the checkpoints before. A file that was uploaded for
    an earlier checkpoint is not uploaded again, so that saves of changes cost what changed. If
    checkpoints are finished faster than they are uploaded, those between are left out. An upload
    that fails warns, and is tried again.

    One process uploads to a URL at a time. Over ranks all enter the context, with a folder that
    they share; the first uploads.

    Example:

    >>> import tempfile
    >>> with ge.checkpoint.RemoteFolder("memory://shop/runs/a", tempfile.mkdtemp()) as run:
    ...     checkpoint = tf.train.Checkpoint(step=tf.Variable(7))
    ...     manager = tf.train.CheckpointManager(checkpoint, run.folder, max_to_keep=2)
    ...     _ = checkpoint.restore(manager.latest_checkpoint)
    ...     _ = manager.save()
    >>> run.checkpoints()
    ['ckpt-1']

    Args:
        url: Where checkpoints are kept: `s3://bucket/runs/a`, `gs://...`, `hdfs://host:port/...`.
        folder: The local folder; it is created.
        keep: How many checkpoints are kept at the URL.
        data_source: The file system of a `url` without a scheme.
        progress: Whether a line on stderr shows uploads and downloads.

    Raises:
        ValueError: The URL is a path of this machine.
        ImportError: The client of the file system is not installed.
    """

    def __init__(
        self,
        url: str,
        folder: str | os.PathLike,
        keep: int = 5,
        data_source: DataSourceParams | None = None,
        progress: bool = True,
    ) -> None:
        check_positive("keep", keep)
        self.url = url_of(url, data_source).rstrip("/")
        self.folder = os.fspath(folder)
        if "://" not in self.url:
            raise ValueError(f"RemoteFolder: expected a URL such as s3://bucket/run, got '{url}'")
        self._uploader = Uploader(self.url, self.folder, keep, progress)
        self._progress = progress
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._seen: Any = None  # the version of the state file whose checkpoint was uploaded
        self._error: Exception | None = None

    def __enter__(self) -> RemoteFolder:
        ranks = current()
        if ranks.rank == 0:
            os.makedirs(self.folder, exist_ok=True)
            shutil.rmtree(self._uploader.work_folder, ignore_errors=True)
            self.fetch()
            self._thread = threading.Thread(target=self._watch, name="upload", daemon=True)
            self._thread.start()
        if ranks.num_ranks > 1:
            ranks.barrier("fetched_checkpoint")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as failed:
            if error is None:
                raise
            warnings.warn(str(failed), stacklevel=2)  # the error of the context is raised

    def close(self) -> None:
        """Uploads the newest checkpoint, if it is not uploaded yet, and ends the thread.

        Raises:
            OSError: The upload failed.
        """
        if self._thread is not None:
            self._closing.set()
            self._thread.join()
            self._thread = None
            self._closing.clear()
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def upload(self, path: str | os.PathLike) -> str:
        """Uploads a checkpoint, and returns when it is complete at the URL.

        Args:
            path: What `save` returned: the prefix of a checkpoint in the folder, or one file there,
                such as Keras's `model.keras`.

        Returns:
            Its name at the URL, for `fetch`.

        Raises:
            OSError: The upload failed; the message names the URL.
        """
        return self._uploader.upload(os.fspath(path)).checkpoint

    def checkpoints(self) -> list[str]:
        """The names of the complete checkpoints at the URL, the newest last."""
        return [manifest.checkpoint for manifest in self._complete()]

    def fetch(self, name: str | None = None) -> str | None:
        """Brings a checkpoint into the folder, and makes it `tf.train.latest_checkpoint`.

        The newest one is left where it is if the folder has it, or has newer ones that were not
        uploaded any more.

        Args:
            name: One of `checkpoints()`; None: the newest.

        Returns:
            The path of the checkpoint, to be restored; None: there is none.

        Raises:
            DamagedCheckpointError: A file is not what was uploaded. Nothing in the folder changed.
            FileNotFoundError: There is no checkpoint of this name.
            OSError: The file system failed.
        """
        newest = tf.train.latest_checkpoint(self.folder)
        manifest = self._find(name)
        if name is None and (manifest is None or (newest and self._uploader.has(manifest))):
            return newest
        if manifest is None:
            raise FileNotFoundError(
                f"{self.url}: expected a checkpoint '{name}', got {self.checkpoints()}"
            )
        return download_checkpoint(self.url, manifest, self.folder, self._uploader, self._progress)

    def _find(self, name):
        """The manifest of the newest complete checkpoint of this name, or of any; None: there is
        none."""
        for manifest in reversed(list(self._complete())):
            if name in (None, manifest.checkpoint):
                return manifest
        return None

    def _complete(self) -> Iterator[Manifest]:
        """Generates the manifests whose files are all there, the newest last.

        A file goes only after the manifests that name it: one that lacks is a sign of two processes
        that uploaded here, or of somebody who tidied up.
        """
        numbers = numbers_in(self.url)
        present = remote_files.files_below(self.url) if numbers else {}
        for number in numbers:
            try:
                manifest = read_manifest(self.url, number)
            except FileNotFoundError:
                continue  # removed since, as newer ones were uploaded
            missing = lacking(manifest, present)
            if not missing:
                yield manifest
                continue
            warnings.warn(
                f"{self.url}: upload {number} ({manifest.checkpoint}) is left out, as "
                f"{missing[0]} is missing or has another length",
                stacklevel=2,
            )

    def _watch(self):
        """Uploads the newest checkpoint whenever TensorFlow's state file, which is written last,
        changes."""
        pause = wait = _POLL_SECONDS
        while True:
            closing = self._closing.wait(wait)
            seen = _version(os.path.join(self.folder, "checkpoint"))
            if seen != self._seen:
                try:
                    self._uploader.upload_newest()
                    self._seen, self._error, pause = seen, None, _POLL_SECONDS
                except CheckpointGoneError as error:
                    self._error = error  # a newer one follows
                except Exception as error:
                    self._error, pause = error, min(2 * pause, _LONGEST_PAUSE)
                    warnings.warn(f"upload: {error}; it is tried again", stacklevel=1)
            if closing:
                return
            wait = pause


def _version(path):
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
