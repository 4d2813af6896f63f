"""Files of samples: their names, and the one module that opens them."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from collections.abc import Sequence


def find_files(paths: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    """The files that paths, folders and globs name.

    Args:
        paths: one or several; a folder stands for all files below it, in the order of their names,
            without those whose name, or whose folder's name, begins with "." or "_".

    Returns:
        The files' paths, in the order of `paths`.

    Raises:
        FileNotFoundError: a path, a folder or a glob has no file.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    found = [file for path in paths for file in _files_of(os.fspath(path))]
    if not found:
        raise FileNotFoundError("files: expected one path, folder or glob, or more, got none")
    return found


def _files_of(path):
    if os.path.isdir(path):
        files = _files_below(path)
    elif os.path.exists(path):
        return [path]
    else:
        names = sorted(glob.glob(path, recursive=True))
        files = [file for name in names for file in _files_of(name)]
    if not files:
        kind = "folder with files" if os.path.isdir(path) else "file, a folder or a glob of some"
        raise FileNotFoundError(f"files: expected a {kind}, got '{path}', which has none")
    return files


def _files_below(folder):
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        files += [os.path.join(parent, name) for name in sorted(names) if name[0] not in "._"]
    return files


def open_file(path):
    """A binary file of Python, to read."""
    return open(path, "rb")


def open_for_arrow(path):
    """A file of Arrow, to read: its reads do not hold Python's lock."""
    return arrow().OSFile(path, "rb")


@contextlib.contextmanager
def naming(path):
    """Inside, an error of Arrow, or of the file system, names the file."""
    try:
        yield
    except (arrow().ArrowException, OSError) as error:
        raise ValueError(f"{path}: expected a file that can be read, got: {error}") from error


def size_of(path):
    """Bytes of a file."""
    return os.path.getsize(path)


def version_of(path):
    """A value that changes when a file is written again."""
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def remembered(function):
    """Keeps what a function of a path returned, for some files, until a file is written again."""
    kept = functools.lru_cache(maxsize=256)(lambda path, version: function(path))
    return functools.wraps(function)(lambda path: kept(path, version_of(path)))


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
