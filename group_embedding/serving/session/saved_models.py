"""SavedModels at URLs: exported there by way of a local folder, and opened by a local copy."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator

from group_embedding.files import (
    DataSourceParams,
    FileSystemError,
    ProgressLine,
    StoredFile,
    is_remote,
    join,
    receive_files,
    remote_files,
    send_files,
    url_of,
)

_MODEL = "saved_model.pb"  # written last: with it the model exists
# TensorFlow Serving leaves files of this folder alone.
_MANIFEST = "assets.extra/manifest.json"


@contextlib.contextmanager
def export_to(
    url: str, data_source: DataSourceParams | None = None, progress: bool = True
) -> Iterator[str]:
    """Has a SavedModel that is written into a local folder uploaded.

    At the end of the context the folder's files are uploaded, `saved_model.pb` last: readers find a
    whole model, or none. After an error in the context nothing is uploaded. A path of this machine
    is itself the folder.

    Example:

    >>> with ge.serving.export_to("memory://shop/models/7") as folder:
    ...     tf.saved_model.save(tf.Module(), folder)
    >>> with ge.serving.local_model("memory://shop/models/7") as folder:
    ...     model = tf.saved_model.load(folder)

    Args:
        url: Where the model is to be, a folder that has no model yet.
        data_source: The file system of a `url` without a scheme.
        progress: Whether a line on stderr shows the upload.

    Yields:
        The local folder, which is removed afterwards.

    Raises:
        FileExistsError: There is a model at the URL.
        OSError: The file system failed; the message names the URL.
    """
    url = url_of(url, data_source)
    if not is_remote(url):
        yield url
        return
    url = url.rstrip("/")
    if remote_files.exists(join(url, _MODEL)):
        raise FileExistsError(f"{url}: expected a folder without a model, got one that has one")
    with tempfile.TemporaryDirectory(prefix="group_embedding_") as work:
        folder = os.path.join(work, url.rpartition("/")[2])
        yield folder
        _upload(folder, url, progress)


@contextlib.contextmanager
def local_model(
    url: str | bytes | os.PathLike,
    data_source: DataSourceParams | None = None,
    progress: bool = True,
) -> Iterator[str]:
    """A local copy of a SavedModel, inside of the context; a path of this machine is itself it.

    Args:
        url: The folder of the model. What `export_to` wrote is verified by its checksums; a model
            that another program wrote is copied as it is.
        data_source: The file system of a `url` without a scheme.
        progress: Whether a line on stderr shows the download.

    Yields:
        The folder. Its name is that at the URL, which may be the model's version.

    Raises:
        FileNotFoundError: There is no model.
        OSError: The file system failed, or a file is not what was uploaded; the message names it.
    """
    url = url_of(os.fsdecode(url), data_source)
    if not is_remote(url):
        yield url
        return
    url = url.rstrip("/")
    with tempfile.TemporaryDirectory(prefix="group_embedding_") as work:
        folder = os.path.join(work, url.rpartition("/")[2])
        _download(url, folder, progress)
        yield folder


def _upload(folder, url, progress):
    paths = [
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    ]
    if _MODEL not in paths:
        raise FileNotFoundError(f"{url}: expected a SavedModel in the folder, got {sorted(paths)}")
    remote_files.remove(url)  # leftovers of an upload that was killed
    sources = {path: os.path.join(folder, path) for path in sorted(paths)}
    total = sum(os.path.getsize(source) for source in sources.values())
    model = {_MODEL: sources.pop(_MODEL)}
    with ProgressLine(f"{url}: upload", total, progress) as line:
        sent = send_files(url, sources, line.add)
        with open(model[_MODEL], "rb") as file:
            content = file.read()
        checksum = hashlib.sha256(content).hexdigest()
        sent[_MODEL] = StoredFile(_MODEL, len(content), checksum)
        files = {path: {"bytes": s.bytes, "sha256": s.sha256} for path, s in sent.items()}
        remote_files.write_file(join(url, _MANIFEST), json.dumps({"files": files}).encode())
        send_files(url, model, line.add)


def _download(url, folder, progress):
    present = remote_files.files_below(url)
    if _MODEL not in present and "saved_model.pbtxt" not in present:
        raise FileNotFoundError(f"{url}: expected a SavedModel, got a folder without {_MODEL}")
    expected = _read_manifest(url) if _MANIFEST in present else {}
    for path, file in expected.items():
        if present.get(path) != file["bytes"]:
            raise FileSystemError(
                f"{join(url, path)}: expected {file['bytes']} bytes, as exported, got "
                f"{present.get(path, 'no file')}"
            )
    targets = {}
    for path in sorted(set(expected or present) - {_MANIFEST}):
        target = remote_files.path_below(folder, path, url)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        checksum = expected[path]["sha256"] if expected else ""
        targets[target] = StoredFile(path, present[path], checksum)
    total = sum(file.bytes for file in targets.values())
    with ProgressLine(f"{url}: fetch", total, progress) as line:
        receive_files(url, targets, line.add, _damaged)


def _damaged(text):
    return FileSystemError(f"{text}; export the model again")


def _read_manifest(url):
    path = join(url, _MANIFEST)
    with remote_files.open_file(path) as file:
        content = file.read()
    try:
        files = json.loads(content)["files"]
        for name, one in files.items():
            if int(one["bytes"]) < 0 or len(one["sha256"]) != 64:
                raise ValueError(name)
        return files
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileSystemError(f"{path}: expected the manifest of a model, got: {error!r}") from None
