"""The target that a URL names."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from group_embedding.serving.stores import STORES, open_store
from group_embedding.serving.stores.remote_target import RemoteTarget
from group_embedding.serving.stores.targets import FileTarget, Target


def is_local(url: str | os.PathLike[str]) -> bool:
    """Returns whether a target is a folder of this machine."""
    return urlsplit(os.fspath(url)).scheme in ("", "file")


def open_target(url: str | os.PathLike[str], folder: str | None = None) -> Target:
    """The target that a URL or a path names.

    Args:
        url: A path, `file:///path`, or the URL of a store, such as `kafka://BROKERS/TOPIC`.
        folder: Where versions of a store are put together; None: in a temporary folder.

    Raises:
        ValueError: The scheme is none of the known ones, or the URL lacks a part.
        ImportError: The store's client library is missing.
    """
    url = os.fspath(url)
    if is_local(url):
        return FileTarget(url)
    scheme = urlsplit(url).scheme
    if scheme not in STORES:
        known = ", ".join(f"{name}://" for name in sorted(["file", *STORES]))
        raise ValueError(f"target '{url}': expected a path or one of {known}, got {scheme}://")
    return RemoteTarget(open_store(url), folder)
