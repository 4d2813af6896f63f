"""URLs and the file systems behind them: the one module that imports fsspec and its clients."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

# By scheme, the module of its client and the extra that installs it.
_CLIENTS = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "gcs": ("gcsfs", "gs"),
    "hdfs": ("hdfs_native", "hdfs"),
    "viewfs": ("hdfs_native", "hdfs"),
}
# Listings are asked for anew: other processes write meanwhile.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "s3fs": {
        "use_listings_cache": False,
        "config_kwargs": {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}},
    },
    "gcsfs": {"use_listings_cache": False},
    # Without a cluster's own files: a namenode that is away is an error after 2 s, not 6 minutes.
    "hdfs_native": {
        "dfs.client.failover.max.attempts": "3",
        "dfs.client.failover.sleep.base.millis": "200",
        "dfs.client.failover.sleep.max.millis": "1000",
    },
}
_FILES_OF_HADOOP = ("HADOOP_CONF_DIR", "HADOOP_HOME")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_options: dict[str, dict[str, Any]] = {}  # by scheme and host or bucket, of `set_options`
# Clients of HDFS, which fsspec forgets in a forked process. They must not end there, as they would
# wait for threads that it does not have.
_kept: dict[int, Any] = {}


class FileSystemError(OSError):
    """A file system failed; the message names the URL and the reason."""


def is_remote(path: str | os.PathLike) -> bool:
    """Returns whether a path is a URL of another file system than this machine's."""
    path = os.fspath(path)
    return isinstance(path, str) and bool(_SCHEME.match(path)) and not path.startswith("file://")


def local_path(path: str | os.PathLike) -> str:
    """A path of this machine, without `file://`; a URL of another file system as it is."""
    path = os.fspath(path)
    if not path.startswith("file://"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{path}: expected file:///path, got the host '{parts.netloc}'")
    return unquote(parts.path)


def set_options(url: str, options: dict[str, Any]) -> None:
    """Sets what fsspec is given for all URLs of this one's host, or bucket, in this process.

    Args:
        options: Names and values of the arguments of the fsspec file system.
    """
    _options[_host_of(url)] = dict(options)


def connect(url: str) -> tuple[Any, str]:
    """(an fsspec file system, the path in it) of a URL.

    Settings are those of the client: the environment (`AWS_ENDPOINT_URL_S3`, `HADOOP_CONF_DIR`,
    `GOOGLE_APPLICATION_CREDENTIALS`, ...), fsspec's config, and `set_options`.

    Raises:
        ImportError: The client is not installed; the message has pip's line.
        FileSystemError: The file system refuses its settings.
    """
    scheme = url.partition("://")[0]
    module, extra = _CLIENTS.get(scheme, ("fsspec", "s3"))
    for needed in ("fsspec", module):
        if importlib.util.find_spec(needed) is None:
            needed = needed.replace("_", "-")
            raise ImportError(f"{url} needs {needed}: pip install group_embedding[{extra}]")
    import fsspec

    has_files = module == "hdfs_native" and any(name in os.environ for name in _FILES_OF_HADOOP)
    defaults = {} if has_files else _DEFAULTS.get(module, {})
    configured = fsspec.config.conf.get(scheme, {})
    options = {**defaults, **configured, **_options.get(_host_of(url), {})}
    with naming(url):
        files, path = fsspec.core.url_to_fs(url, **options)
    if module == "hdfs_native":
        _kept[id(files)] = files
    return files, path


def root_of(url: str, path: str) -> str:
    """The start of a URL, before the path that `connect` returns: `s3://`, `hdfs://host:port`."""
    url = url.rstrip("/")
    return url[: len(url) - len(path)] if path and url.endswith(path) else url


def join(folder: str, *names: str) -> str:
    """A path or a URL below a folder."""
    return (
        "/".join([folder.rstrip("/"), *names])
        if is_remote(folder)
        else os.path.join(folder, *names)
    )


@contextlib.contextmanager
def naming(url: str) -> Iterator[None]:
    """Inside, whatever a client raises becomes an OSError that names the URL.

    Raises:
        FileNotFoundError, FileExistsError, PermissionError: As the client says.
        FileSystemError: Another error.
    """
    try:
        yield
    except (FileSystemError, ImportError):
        raise
    except (FileNotFoundError, FileExistsError, PermissionError) as error:
        raise type(error)(f"{url}: {_words_of(error)}") from error
    except Exception as error:
        raise FileSystemError(f"{url}: {_words_of(error)}") from error


def _host_of(url):
    scheme, _, path = url.partition("://")
    return f"{scheme}://{path.partition('/')[0]}"


def _words_of(error):
    """The message of a client's error, without long lists of servers."""
    said = str(error) or type(error).__name__
    names = {"FileNotFoundError": "there is no such file", "FileExistsError": "it exists already"}
    if isinstance(error, (FileNotFoundError, FileExistsError)):
        return names[next(k.__name__ for k in type(error).__mro__ if k.__name__ in names)]
    return said if len(said) <= 300 else said[:300] + " ..."
