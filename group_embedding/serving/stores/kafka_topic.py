"""Versions in a Kafka topic: chunks of files, and one commit record for each version.

Commit records are in partition 0, chunks in the last partition. A commit record names the offsets
of the chunks, so that a reader that needs a version fetches these alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from group_embedding.serving.stores import kafka_records
from group_embedding.serving.stores.chunks import chunks_of, num_chunks
from group_embedding.serving.stores.interface import VersionStore
from group_embedding.serving.stores.kafka_client import (
    CONNECT_SECONDS,
    KafkaClient,
    NoAnswer,
    UnknownTopic,
)
from group_embedding.serving.stores.kafka_records import Commit, CommitLog
from group_embedding.serving.stores.records import DamagedVersion, FileEntry
from group_embedding.serving.stores.targets import TargetError

_LOST_SECONDS = 1.0  # after which a record that does not come is not there


class KafkaTopic(VersionStore):
    """The versions in a topic.

    Args:
        url: As of `KafkaClient`.
    """

    def __init__(self, url: str) -> None:
        self._client = KafkaClient(url)
        self.url = self._client.url
        self._no_answer = f"did not answer within {self._client.timeout:g} s"
        self._log = CommitLog()
        self._tail: Any = None  # reads commit records
        self._next = 0  # offset of the record that `_tail` gives next
        self._has_reached_end = False  # since `_tail` began
        self._was_woken = False  # whether `wait` has seen a version that `newest` has not told
        self._data: Any = None  # reads chunks
        self._data_next = -1  # as `_next`; -1: not known
        self._data_partition = 0
        self._least = -1  # no chunk that is written next has a lower offset; -1: not known

    def connect(self) -> None:
        if self._tail is None:
            with self._client.errors(f"did not answer within {CONNECT_SECONDS:g} s"):
                self._data_partition = self._client.num_partitions() - 1
                self._tail, self._data = self._client.consumer(), self._client.consumer()
                self._seek(self._next)

    def versions(self) -> list[int]:
        self.newest()
        return sorted(self._log.versions)

    def newest(self) -> int:
        self.connect()
        if self._was_woken:  # there is something new: what is behind it comes by the next call
            self._was_woken = False
            return self._log.newest
        try:
            try:
                self._look()
            except UnknownTopic:  # it is gone, or the broker has just started
                self.close()
                self.connect()
                self._look()
        except TargetError:
            self.close()  # the next call connects
            raise
        return self._log.newest

    def record(self, version: int) -> bytes:
        return self._commit(version).content

    def read(self, version: int, number: int, file: FileEntry) -> Iterator[bytes]:
        commit = self._commit(version)
        count = num_chunks(file.bytes, commit.chunk_bytes)
        with self._client.errors(self._no_answer):
            if count and self._data_next != commit.offsets[number]:
                self._seek_data(version, commit.offsets[number])
            for index in range(count):
                yield self._chunk(kafka_records.chunk_key(commit.attempt, number, index))

    def write(self, version: int, record: bytes, files: Sequence[tuple[FileEntry, str]]) -> None:
        self.connect()
        attempt = secrets.token_bytes(kafka_records.ATTEMPT_BYTES)
        try:
            with self._client.errors(f"did not acknowledge version {version}"):
                offsets = self._write_chunks(attempt, files)
                sent = self._client.deliveries(0)
                value = kafka_records.encode_commit(attempt, offsets, record)
                sent.add(kafka_records.COMMIT_KEY, value)
                sent.finish()
                self._read_commits(sent.offset_of(0, least=-1) + 1)
                if version not in self._log.versions:  # the offset is not known
                    self._read_to_end()
        except BaseException:
            # A record that is queued would come behind those of the next version.
            self._client.forget_producer()
            raise
        found = self._log.versions.get(version)
        if found is None or found.attempt != attempt:
            raise TargetError(
                f"target '{self.url}': expected version {version} to be new, got one of another "
                "publisher"
            )

    def remove(self, version: int) -> None:
        """Nothing: the topic's retention removes records."""

    def wait(self, seconds: float) -> None:
        known = self._log.newest
        self._take(self._tail.poll(seconds))
        self._was_woken = self._log.newest != known

    def position(self, version: int) -> str:
        commit = self._log.versions.get(version)
        return "" if commit is None else str(commit.offset + 1)

    def start_after(self, version: int, position: str) -> None:
        if position:
            self._log, self._next = CommitLog(version), int(position)
            if self._tail is not None:
                self._seek(self._next)

    def close(self) -> None:
        for consumer in (self._tail, self._data):
            if consumer is not None:
                consumer.close()
        self._tail = self._data = None
        self._data_next = self._least = -1
        self._client.forget_producer()

    def _seek(self, offset):
        self._client.assign(self._tail, 0, offset)
        self._next = offset
        self._has_reached_end = False

    def _look(self):
        """Takes the commit records that are new."""
        with self._client.errors(self._no_answer):
            # Asked through the consumer that does not wait for records of this partition: a broker
            # answers a connection's requests one by one.
            low, high = self._client.ends(self._data, 0)
            if self._next < low or (self._next > high and not self._has_last()):
                # Records expired, or the topic was made anew.
                self._log = CommitLog()
                self._least = -1
                self._client.forget_producer()
                self._seek(low)
            self._read_commits(high)
            if not self._has_reached_end:
                self._read_to_end()
                self._has_reached_end = True

    def _read_to_end(self):
        """Takes the commit records behind the end that a broker told, which may be an old one."""
        message = self._tail.poll(_LOST_SECONDS)
        while message is not None and message.error() is None:
            self._take(message)
            message = self._tail.poll(_LOST_SECONDS)

    def _has_last(self):
        """Returns whether the topic still has the record that was read last.

        A broker that has just become the leader may tell an end that lies before it.
        """
        consumer = self._client.consumer()
        try:
            self._client.assign(consumer, 0, self._next - 1)
            message = consumer.poll(_LOST_SECONDS)
            is_read = message is not None and message.error() is None
            return is_read and message.offset() == self._next - 1
        finally:
            consumer.close()

    def _read_commits(self, end):
        """Takes the commit records before an offset."""
        deadline = time.monotonic() + self._client.timeout
        while self._next < end:
            before = self._next
            self._take(self._tail.poll(0.1))
            if self._next > before:
                deadline = time.monotonic() + self._client.timeout
            elif time.monotonic() > deadline:
                raise NoAnswer(f"no record at offset {before}")

    def _take(self, message):
        if message is None or message.error() is not None:
            return  # of a broker that is away: `newest` raises
        self._next = message.offset() + 1
        commit = kafka_records.decode_commit(message.key(), message.value(), message.offset())
        if commit is not None:
            self._log.take(commit)

    def _commit(self, version) -> Commit:
        if version not in self._log.versions:
            self.newest()
        if version not in self._log.versions and version <= self._log.newest:
            self._read_again(version)
        if version not in self._log.versions:
            raise FileNotFoundError(f"'{self.url}' has no version {version}")
        return self._log.versions[version]

    def _read_again(self, version):
        """Reads the topic from its beginning for a version before those that are known."""
        known, following = self._log, self._next
        self._log = CommitLog(keeps_all=True)
        try:
            with self._client.errors(self._no_answer):
                self._seek(self._client.ends(self._tail, 0)[0])
                self._read_commits(following)
                found = self._log.versions.items()
                known.versions.update((v, commit) for v, commit in found if v >= version)
        finally:
            self._log = known
            self._seek(following)

    def _write_chunks(self, attempt, files):
        """Writes all files; returns for each the lowest offset that its first chunk can have."""
        if self._least < 0:
            self._least = self._client.ends(self._data, self._data_partition)[1]
        sent, firsts = self._client.deliveries(self._data_partition), []
        for number, (_, path) in enumerate(files):
            firsts.append(sent.count)
            for index, chunk in enumerate(chunks_of(path, kafka_records.CHUNK_BYTES)):
                sent.add(kafka_records.chunk_key(attempt, number, index), chunk)
        sent.finish()
        offsets = [sent.offset_of(first, self._least) for first in firsts]
        self._least = sent.offset_of(sent.count, self._least)
        return offsets

    def _seek_data(self, version, offset):
        if offset < self._client.ends(self._data, self._data_partition)[0]:
            raise FileNotFoundError(f"'{self.url}': the chunks of version {version} have expired")
        self._client.assign(self._data, self._data_partition, offset)

    def _chunk(self, key):
        """The value of the next chunk with a key."""
        deadline = time.monotonic() + self._client.timeout
        while time.monotonic() < deadline:
            message = self._data.poll(0.1)
            if message is None or message.error() is not None:
                continue
            self._data_next = message.offset() + 1
            if message.key() == key:
                return message.value()
        self._data_next = -1
        self._client.ends(self._data, self._data_partition)  # raises if the broker is away
        raise DamagedVersion(f"'{self.url}' lacks a chunk, which its broker had acknowledged")
