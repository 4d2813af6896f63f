"""One topic, through confluent-kafka: the only module that imports it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from group_embedding.serving.stores.targets import TargetError

try:
    import confluent_kafka as kafka
    from confluent_kafka import admin
except ImportError as error:
    raise ImportError(
        "kafka:// needs confluent-kafka: pip install group_embedding[kafka]"
    ) from error

CONNECT_SECONDS = 5.0
_AWAY = (
    kafka.KafkaError._TRANSPORT,
    kafka.KafkaError._TIMED_OUT,
    kafka.KafkaError._MSG_TIMED_OUT,
    kafka.KafkaError._ALL_BROKERS_DOWN,
)
_UNKNOWN = (
    kafka.KafkaError._UNKNOWN_TOPIC,
    kafka.KafkaError._UNKNOWN_PARTITION,
    kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class NoAnswer(Exception):
    """Nothing came from a broker that was asked."""


class UnknownTopic(TargetError):
    """A broker has no such topic, or does not know it yet."""


class KafkaClient:
    """The topic `kafka://BROKER[,BROKER...]/TOPIC[?OPTIONS]`.

    Args:
        url: Its options are properties of librdkafka, such as `security.protocol=ssl`, and
            `timeout`, the seconds after which a broker that does not answer is an error (10).

    Attributes:
        url: Without options.
        timeout: In seconds.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._brokers, self._topic = parts.netloc, parts.path.strip("/")
        self.url = f"kafka://{self._brokers}/{self._topic}"
        if not self._brokers or not self._topic or "/" in self._topic:
            raise ValueError(f"'{self.url}': expected kafka://BROKER[,BROKER...]/TOPIC")
        options = dict(parse_qsl(parts.query))
        self.timeout = float(options.pop("timeout", 10.0))
        self._last_error = ""
        self._producer: Any = None
        self._settings: dict[str, Any] = {
            "bootstrap.servers": self._brokers,
            "log_level": 0,
            "error_cb": self._on_error,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "socket.connection.setup.timeout.ms": 5000,
            **options,
        }

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turns errors of the library into a TargetError, which says what the brokers did."""
        try:
            yield
        except (kafka.KafkaException, NoAnswer) as error:
            cause = error.args[0]
            is_told = isinstance(cause, kafka.KafkaError)
            why = cause.str() if is_told else str(cause)
            if not is_told or cause.code() in _AWAY:  # the last failure of a connection says more
                why = self._last_error or why
            kind = UnknownTopic if is_told and cause.code() in _UNKNOWN else TargetError
            raise kind(
                f"target '{self.url}': the Kafka broker {self._brokers} {what}: {why}"
            ) from None

    def num_partitions(self) -> int:
        """The number of partitions of the topic, which is made if there is none."""
        self._last_error = ""
        client = admin.AdminClient(self._settings)
        deadline = time.monotonic() + CONNECT_SECONDS
        is_made = False
        while time.monotonic() < deadline:
            # All topics: a broker makes a topic that is asked for, with one partition.
            topics = client.list_topics(timeout=max(0.1, deadline - time.monotonic())).topics
            if self._topic in topics and topics[self._topic].partitions:
                return len(topics[self._topic].partitions)
            if not is_made:
                self._make_topic(client)
                is_made = True
            time.sleep(0.05)
        raise NoAnswer(f"it made no topic '{self._topic}'")

    def consumer(self) -> Any:
        """A consumer, whose partition `assign` says: there is no group to join."""
        return kafka.Consumer(
            {
                "group.id": "group-embedding",  # of no use, as partitions are assigned
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 100,
                "fetch.max.bytes": 8 << 20,
                "queued.max.messages.kbytes": 16 << 10,
                **self._settings,
            }
        )

    def assign(self, consumer: Any, partition: int, offset: int) -> None:
        """Lets a consumer go on at an offset."""
        consumer.assign([kafka.TopicPartition(self._topic, partition, offset)])

    def ends(self, consumer: Any, partition: int) -> tuple[int, int]:
        """The offset of the first record of a partition, and the one behind its last."""
        low, high = consumer.get_watermark_offsets(
            kafka.TopicPartition(self._topic, partition), timeout=self.timeout
        )
        self._last_error = ""
        return low, high

    def deliveries(self, partition: int) -> Deliveries:
        """Messages that go to a partition."""
        if self._producer is None:
            self._producer = kafka.Producer(
                {
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 0,
                    "message.timeout.ms": int(1000 * self.timeout),
                    "queue.buffering.max.kbytes": 16 << 10,
                    "message.max.bytes": 1_000_000,
                    **self._settings,
                }
            )
        return Deliveries(self._producer, self._topic, partition, self.timeout)

    def forget_producer(self) -> None:
        """Drops what is queued. The brokers know the next producer by another number."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _on_error(self, error):
        self._last_error = error.str()

    def _make_topic(self, client):
        """Its records lie there until the broker's retention removes them."""
        new = admin.NewTopic(self._topic, num_partitions=2, config={"cleanup.policy": "delete"})
        for made in client.create_topics([new], request_timeout=CONNECT_SECONDS).values():
            try:
                made.result()
            except kafka.KafkaException as error:
                if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise


class Deliveries:
    """Messages to one partition, and their acknowledgements. Few are in memory at a time.

    Attributes:
        count: The number of messages.
    """

    def __init__(self, producer: Any, topic: str, partition: int, timeout: float) -> None:
        self._producer, self._timeout = producer, timeout
        self._to = {"topic": topic, "partition": partition, "on_delivery": self._on_delivery}
        self._offsets: dict[int, int] = {}
        self._done = 0
        self._error: Any = None
        self.count = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Sends a message, once the queue can hold it."""
        deadline = time.monotonic() + self._timeout
        while True:
            self._check()
            try:
                self._producer.produce(key=key, value=value, **self._to)
                break
            except BufferError:
                if time.monotonic() > deadline:
                    raise NoAnswer("its queue is full") from None
                self._producer.poll(0.05)
        self.count += 1
        self._producer.poll(0)

    def finish(self) -> None:
        """Waits until all are acknowledged."""
        deadline, done = time.monotonic() + self._timeout + 1, self._done
        while self._done < self.count:
            self._check()
            self._producer.poll(0.05)
            if self._done > done:
                done, deadline = self._done, time.monotonic() + self._timeout + 1
            elif time.monotonic() > deadline:
                raise NoAnswer("no acknowledgement came")
        self._check()

    def offset_of(self, number: int, least: int) -> int:
        """The offset of a message, or a lower one: a broker that saw it twice tells none.

        Args:
            least: No message has a lower one.
        """
        for before in range(min(number, self.count - 1), -1, -1):
            if before in self._offsets:
                return self._offsets[before] + (0 if before == number else 1)
        return least

    def _check(self):
        if self._error is not None:
            raise kafka.KafkaException(self._error)

    def _on_delivery(self, error, message):
        # Messages to one partition are acknowledged in their order.
        if error is not None:
            self._error = self._error or error
        elif message.offset() is not None:
            self._offsets[self._done] = message.offset()
        self._done += 1
