"""The databases of HPS's configuration file, and its update source, as tiers and a source here."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote

from group_embedding.compat.hps import keys as known


class Databases:
    """The rows below memory, how many are in memory, and the Kafka that a server follows.

    Args:
        path: of the file, for messages.
        volatile: the object `volatile_db`.
        persistent: the object `persistent_db`.
        source: the object `update_source`.
    """

    def __init__(
        self,
        path: str,
        volatile: dict[str, Any],
        persistent: dict[str, Any],
        source: dict[str, Any],
    ) -> None:
        self._path = path
        self._volatile, self._persistent, self._source = volatile, persistent, source

    @property
    def filters(self) -> list[list[str] | None]:
        """The update filters of each database that there is; None: HPS's default."""
        return [
            database.get("update_filters")
            for database in (self._volatile, self._persistent)
            if database.get("type", known.DISABLED[0]) not in known.DISABLED
        ]

    def _kind_of_volatile(self):
        kinds = {"none": known.DISABLED, "memory": known.IN_MEMORY, "redis": known.REDIS}
        return self._kind("volatile_db", self._volatile, kinds, "disabled")

    def memory(self, models: list[dict[str, Any]]) -> tuple[float, int | None]:
        """(The share of the rows in memory, the most rows of a table or None)."""
        kind = self._kind_of_volatile()
        if kind == "redis":  # above it HPS has its GPU cache alone
            caches = [one.get("gpucacheper", 0.2) for one in models if one.get("gpucache", True)]
            return max(caches, default=0.0), None
        share = self._volatile.get("initial_cache_rate", 1.0)
        if not 0 <= share <= 1:
            raise self._wrong("volatile_db.initial_cache_rate", "0 to 1", share)
        if kind == "none" or "overflow_margin" not in self._volatile:
            return share, None
        # HPS's default is that of the machine that built it.
        parts = self._volatile.get("num_partitions", min(os.cpu_count() or 1, 16))
        return share, max(1, self._volatile["overflow_margin"] * parts)

    def insert(self, models: list[dict[str, Any]]) -> str:
        """When rows that are read below come into memory: `insert=` of --tiers.

        HPS lets a request wait for that while its cache has fewer of the keys than the threshold.
        Once it has more, as it has when it is warm, other requests' rows come in the background;
        HPS answers these with the default row, where this server reads them all the same.
        """
        caches = [one.get("hit_rate_threshold", 0.9) for one in models if one.get("gpucache", True)]
        return "background" if any(threshold < 1 for threshold in caches) else "at_once"

    def below(self) -> str:
        kinds = {"none": known.DISABLED, "rocksdb": known.ROCKSDB}
        has_rocksdb = self._kind("persistent_db", self._persistent, kinds, "disabled") == "rocksdb"
        if self._kind_of_volatile() == "redis":
            if has_rocksdb:
                raise self._wrong(
                    "persistent_db.type",
                    "disabled, as rows below memory are in Redis or in RocksDB",
                    self._persistent["type"],
                )
            return "redis=" + self._redis()
        if not has_rocksdb:
            return ""
        if self._persistent.get("read_only"):
            raise self._wrong(
                "persistent_db.read_only",
                "false, as one server has the folder; give each server its own",
                True,
            )
        return "rocksdb=" + self._persistent.get("path", "/tmp/rocksdb").rstrip("/") + "-ge"

    def _redis(self):
        """Addresses, or a URL where there is a user or TLS; the password is not in it."""
        addresses = self._volatile.get("address", "127.0.0.1:7000")
        user = self._volatile.get("user_name", "default")
        login = "" if user in ("", "default") else f"{quote(user, safe='')}:@"
        if not self._volatile.get("enable_tls", False):
            return f"redis://{login}{addresses}" if login else addresses
        if "tls_server_name_identification" in self._volatile:
            raise self._wrong(
                "volatile_db.tls_server_name_identification",
                "none, as the name in the certificate is that in the address",
                self._volatile["tls_server_name_identification"],
            )
        files = {
            "ssl_ca_certs": self._volatile.get("tls_ca_certificate"),
            "ssl_certfile": self._volatile.get("tls_client_certificate"),
            "ssl_keyfile": self._volatile.get("tls_client_key"),
        }
        options = "&".join(f"{name}={file}" for name, file in files.items() if file)
        return f"rediss://{login}{addresses}" + (f"?{options}" if options else "")

    def brokers(self) -> str:
        kinds = {"none": known.NO_SOURCE, "kafka": known.KAFKA}
        if self._kind("update_source", self._source, kinds, "null") == "none":
            return ""
        brokers = self._source.get("brokers", "127.0.0.1:9092").split(";")
        if not all(re.fullmatch(r"[^\s:,/]+(:\d+)?", broker) for broker in brokers):
            raise self._wrong(
                "update_source.brokers", "HOST:PORT[;HOST:PORT]", self._source["brokers"]
            )
        return ",".join(brokers)

    def _wrong(self, key, expected, got):
        return ValueError(f"{self._path}, {key}: expected {expected}, got {got!r}")

    def _kind(self, owner, values, allowed, default):
        """The kind of a database: the name of the group of words that its type is of."""
        word = values.get("type", default)
        for name, words in allowed.items():
            if word in words:
                return name
        words = [words[0] for words in allowed.values()]
        raise self._wrong(f"{owner}.type", f"one of {', '.join(words)}", word)
