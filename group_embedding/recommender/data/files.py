"""Files of samples: their names, and the one module that opens them."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from collections.abc import Sequence

from group_embedding.files import (
    DataSourceParams,
    FileSystemError,
    exists,
    is_remote,
    local_copy,
    open_file,
    remote_files,
    size_of,
    url_of,
    version_of,
)

__all__ = [
    "arrow",
    "exists",
    "find_files",
    "local_copy",
    "naming",
    "open_file",
    "open_for_arrow",
    "remembered",
    "size_of",
]


def find_files(
    paths: str | os.PathLike | Sequence[str | os.PathLike],
    data_source: DataSourceParams | None = None,
) -> list[str]:
    """The files that paths, folders and globs name.

    Args:
        paths: one or several, of this machine or URLs (`s3://`, `gs://`, `hdfs://`, ...); a folder
            stands for all files below it, in the order of their names, without those whose name,
            or whose folder's name, begins with "." or "_".
        data_source: the file system of paths without a scheme; None: this machine's.

    Returns:
        The files' paths, in the order of `paths`.

    Raises:
        FileNotFoundError: a path, a folder or a glob has no file.
        ImportError: the client of a file system is not installed.
        OSError: a file system cannot be reached; the message names the URL.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    found = [file for path in paths for file in _files_of(url_of(path, data_source))]
    if not found:
        raise FileNotFoundError("files: expected one path, folder or glob, or more, got none")
    return found


def _files_of(path):
    if remote_files.is_folder(path):
        files = _files_below(path)
    elif exists(path):
        return [path]
    else:
        names = (
            remote_files.glob(path) if is_remote(path) else sorted(glob.glob(path, recursive=True))
        )
        files = [file for name in names for file in _files_of(name)]
    if not files:
        kind = (
            "folder with files"
            if remote_files.is_folder(path)
            else "file, a folder or a glob of some"
        )
        raise FileNotFoundError(f"files: expected a {kind}, got '{path}', which has none")
    return files


def _files_below(folder):
    if is_remote(folder):
        below = sorted(remote_files.files_below(folder), key=_order_of_walks)
        return [remote_files.join(folder, path) for path in below if not _is_hidden(path)]
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        files += [os.path.join(parent, name) for name in sorted(names) if name[0] not in "._"]
    return files


def _order_of_walks(path):
    """Sorts paths as `os.walk` does: the files of a folder before those of folders in it."""
    *folders, name = path.split("/")
    return [*((1, folder) for folder in folders), (0, name)]


def _is_hidden(path):
    return any(name[:1] in ("", ".", "_") for name in path.split("/"))


def open_for_arrow(path):
    """A file of Arrow, to read: reads of local files do not hold Python's lock."""
    if is_remote(path):
        return arrow().PythonFile(remote_files.RemoteFile(path), mode="r")
    return arrow().OSFile(path, "rb")


@contextlib.contextmanager
def naming(path):
    """Inside, an error of Arrow, or of the file system, names the file."""
    try:
        yield
    except FileSystemError:
        raise  # it names the file
    except (arrow().ArrowException, OSError) as error:
        raise ValueError(f"{path}: expected a file that can be read, got: {error}") from error


def remembered(function):
    """Keeps what a function of a path returned, for some files, until a file is written again."""
    kept = functools.lru_cache(maxsize=256)(lambda path, version: function(path))
    return functools.wraps(function)(lambda path: kept(path, version_of(path)))


@functools.cache
def arrow():
    """The package pyarrow.

    Raises:
        ImportError: it is missing.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "ge.data reads Parquet and CSV by pyarrow: pip install group_embedding[parquet]"
        ) from error
    return pyarrow
