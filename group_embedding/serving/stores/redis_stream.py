"""Versions in a Redis stream: one entry for each version, and a stream of chunks for each file.

docs/reference/deltas.md has the format of the entries.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from group_embedding.serving.stores import records
from group_embedding.serving.stores.chunks import chunks_of
from group_embedding.serving.stores.interface import VersionStore
from group_embedding.serving.stores.records import FileEntry
from group_embedding.serving.stores.targets import TargetError

try:
    import redis
except ImportError as error:
    raise ImportError("redis:// needs redis: pip install group_embedding[redis]") from error

CHUNK_BYTES = 1 << 20
CONNECT_SECONDS = 5.0
_READ_CHUNKS = 4  # in one answer
_ATTEMPT_SECONDS = 3600  # chunks whose version was not committed go after so long

# KEYS: the stream, then the streams of the files. ARGV: version, whether it may follow any other
# one, attempt, content of COMMIT. Returns the newest version: the one given, if it now exists.
_COMMIT = """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
local newest = 0
if last[1] then newest = tonumber(string.match(last[1][1], '^%d+')) end
local version = tonumber(ARGV[1])
local follows = version == newest + 1 or newest == 0
if not (follows or (ARGV[2] == '1' and version > newest)) then return newest end
for i = 2, #KEYS do
  if redis.call('PERSIST', KEYS[i]) == 0 then return redis.error_reply('its chunks are gone') end
end
redis.call('XADD', KEYS[1], ARGV[1] .. '-1', 'attempt', ARGV[3], 'commit', ARGV[4])
return version
"""


class RedisStream(VersionStore):
    """The versions in a stream `redis://[USER:PASSWORD@]HOST[:PORT]/STREAM[?OPTIONS]`.

    Args:
        url: `rediss://` is TLS. Options are those of redis-py's URLs, such as `db` and
            `ssl_ca_certs`, and `timeout`, the seconds after which a server that does not answer is
            an error (10).
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = parts.netloc.rpartition("@")[2]
        self._stream = parts.path.strip("/")
        self.url = f"{parts.scheme}://{self._address}/{self._stream}"
        if not self._address or not self._stream:
            raise ValueError(f"'{self.url}': expected redis://HOST[:PORT]/STREAM")
        options = dict(item.partition("=")[::2] for item in parts.query.split("&") if item)
        self._timeout = float(options.pop("timeout", 10.0))
        query = "&".join(f"{name}={value}" for name, value in options.items())
        with self._errors("cannot be used", TypeError, ValueError):
            self._redis = redis.Redis.from_url(
                urlunsplit((parts.scheme, parts.netloc, "", query, "")),
                socket_timeout=self._timeout,
                socket_connect_timeout=min(self._timeout, CONNECT_SECONDS),
                protocol=2,  # which servers before 6.0 speak, too
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            )
        self._seen = 0  # the newest version that `newest` has told
        self._is_connected = False

    def connect(self) -> None:
        if not self._is_connected:
            # An unknown option is an error where the connection is made.
            with self._errors(f"did not answer within {CONNECT_SECONDS:g} s", TypeError):
                self._redis.ping()
            self._is_connected = True

    def versions(self) -> list[int]:
        found, first = [], "-"
        while True:
            ids = self._ask(self._redis.xrange, self._stream, first, count=500)
            found += [_version_of(entry) for entry, _ in ids]
            if len(ids) < 500:
                return found
            first = f"{found[-1]}-2"

    def newest(self) -> int:
        last = self._ask(self._redis.xrevrange, self._stream, count=1)
        self._seen = _version_of(last[0][0]) if last else 0
        return self._seen

    def record(self, version: int) -> bytes:
        return self._entry(version)[b"commit"]

    def read(self, version: int, number: int, file: FileEntry) -> Iterator[bytes]:
        key = self._key(version, self._entry(version)[b"attempt"].decode(), number)
        first, left = "-", file.bytes
        while left > 0:
            found = self._ask(self._redis.xrange, key, first, count=_READ_CHUNKS)
            if not found:
                raise FileNotFoundError(f"'{self.url}': chunks of version {version} are gone")
            for _, fields in found:
                yield fields[b""]
                left -= len(fields[b""])
            first = b"(" + found[-1][0]

    def write(self, version: int, record: bytes, files: Sequence[tuple[FileEntry, str]]) -> None:
        self.connect()
        attempt = secrets.token_hex(16)
        keys = [self._key(version, attempt, number) for number in range(len(files))]
        decoded = records.decode(record, self.url)
        is_new_base = decoded.kind == records.BASE and decoded.parent < 0
        with self._errors(f"did not acknowledge version {version}"):
            for key, (_, path) in zip(keys, files):
                self._write_chunks(key, path)
            kept = [key for key, (file, _) in zip(keys, files) if file.bytes]
            given = [self._stream, *kept, version, int(is_new_base), attempt, record]
            newest = self._redis.eval(_COMMIT, 1 + len(kept), *given)
        if newest != version or self._entry(version)[b"attempt"].decode() != attempt:
            raise TargetError(
                f"target '{self.url}': expected version {version} to be new, got one of another "
                f"publisher, whose newest is {newest}"
            )

    def remove(self, version: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            entry = self._entry(version)
            files = records.decode(entry[b"commit"], self.url).files
            self._ask(self._redis.xdel, self._stream, f"{version}-1")
            attempt = entry[b"attempt"].decode()
            for number in range(len(files)):
                key = self._key(version, attempt, number)
                self._ask(self._redis.unlink, key)

    def wait(self, seconds: float) -> None:
        # Less than the time-out of the connection, which this answer takes, too.
        block = max(1, int(1000 * min(seconds, self._timeout / 2)))
        self._ask(self._redis.xread, {self._stream: f"{self._seen}-1"}, 1, block)

    def close(self) -> None:
        self._redis.close()
        self._is_connected = False

    @contextlib.contextmanager
    def _errors(self, what, *others):
        """Turns errors of the client, and others, into a TargetError, which names the server."""
        try:
            yield
        except (redis.RedisError, OSError, *others) as error:
            if isinstance(error, (redis.AuthenticationError, redis.ResponseError)):
                what = "refuses"
            raise TargetError(
                f"target '{self.url}': the Redis server {self._address} {what}: {error}"
            ) from None

    def _ask(self, command, *arguments, **options) -> Any:
        self.connect()
        with self._errors(f"did not answer within {self._timeout:g} s"):
            return command(*arguments, **options)

    def _entry(self, version):
        number = f"{version}-1"
        found = self._ask(self._redis.xrange, self._stream, number, number)
        if not found:
            raise FileNotFoundError(f"'{self.url}' has no version {version}")
        return found[0][1]

    def _key(self, version, attempt, number):
        # The part in braces keeps the keys of a stream on one server of a cluster.
        return f"{{{self._stream}}}:{version}:{attempt}:{number}"

    def _write_chunks(self, key, path):
        for chunk in chunks_of(path, CHUNK_BYTES):
            self._redis.xadd(key, {b"": chunk})
            self._redis.expire(key, _ATTEMPT_SECONDS)


def _version_of(entry):
    return int(entry.partition(b"-")[0])
