"""Services that keep versions: one class for each."""

from __future__ import annotations

import importlib
from urllib.parse import urlsplit

from group_embedding.serving.stores.interface import VersionStore

# {scheme: (module, class)}: a module is imported, and with it its client, when it is asked for.
STORES = {
    "kafka": ("kafka_topic", "KafkaTopic"),
    **dict.fromkeys(("s3", "gs", "hdfs"), ("object_store", "ObjectStore")),
    "redis": ("redis_stream", "RedisStream"),
    "rediss": ("redis_stream", "RedisStream"),
}


def open_store(url: str) -> VersionStore:
    """The store that a URL names; it is not connected yet.

    Raises:
        ValueError: The scheme is none of the known ones, or the URL lacks a part.
        ImportError: The client library is missing; the message has the line for pip.
    """
    scheme = urlsplit(url).scheme
    if scheme not in STORES:
        known = ", ".join(f"{name}://" for name in sorted(STORES))
        raise ValueError(f"'{url}': expected one of {known}, got {scheme}://")
    module, name = STORES[scheme]
    found = importlib.import_module(f"group_embedding.serving.stores.{module}")
    return getattr(found, name)(url)


__all__ = ["STORES", "VersionStore", "open_store"]
