"""Kafka's brokers fail: real ones that are killed, and librdkafka's, which inject errors."""

import time
import uuid

import pytest
from support.cases.written_versions import Writer, bytes_of
from support.servers.kafka_broker import KafkaBroker
from support.servers.loopback import free_port

kafka = pytest.importorskip("confluent_kafka")
from confluent_kafka import admin  # noqa: E402
from serving.stores.kafka_mock import (  # noqa: E402
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    MockCluster,
)

from group_embedding.serving import TargetError, open_target  # noqa: E402
from group_embedding.serving.mirror.mirror import Mirror  # noqa: E402
from group_embedding.serving.stores import kafka_client, open_store  # noqa: E402
from group_embedding.serving.stores.kafka_topic import KafkaTopic  # noqa: E402
from group_embedding.serving.stores.targets import FileTarget  # noqa: E402
from group_embedding.serving.versions.deltas import NotConsecutive  # noqa: E402


@pytest.fixture
def broker(tmp_path):
    """A broker that a test may kill."""
    with KafkaBroker(tmp_path) as one:
        yield one


def follow(url, folder):
    """The newest version that a new mirror of the store brings to a folder."""
    source, target = open_store(url), FileTarget(str(folder))
    try:
        return Mirror(source, target).follow()
    finally:
        source.close()
        target.close()


def test_without_a_broker_a_publisher_does_not_start_and_names_it(tmp_path):
    # Given an address on which nobody listens, and a URL with a password
    address = f"127.0.0.1:{free_port()}"
    options = "security.protocol=sasl_plaintext&sasl.mechanism=PLAIN&sasl.username=me"
    url = f"kafka://{address}/clicks?{options}&sasl.password=secret"

    # When a publisher starts, Then it names the address within five seconds, and no password
    begin = time.monotonic()
    with pytest.raises(TargetError, match=f"broker {address} did not answer within 5 s") as told:
        Writer(url, tmp_path)
    assert time.monotonic() - begin < 6
    assert "secret" not in str(told.value)


def test_an_option_that_the_client_lacks_is_named():
    # Given a URL with an option that librdkafka does not have
    target = open_target("kafka://127.0.0.1:1/clicks?no.such.option=1")

    # When it is used, Then the option is named
    with pytest.raises(TargetError, match="no.such.option"):
        target.lock()


@pytest.mark.parametrize("url", ["kafka://", "kafka://broker", "kafka:///topic", "kafka://b/a/b"])
def test_a_url_without_broker_or_topic_is_refused(url):
    with pytest.raises(ValueError, match="expected kafka://BROKER"):
        open_target(url)


@pytest.mark.slow
def test_a_broker_that_is_killed_is_named_and_nothing_is_lost(broker, tmp_path):
    # Given a publisher at version 2
    url = f"kafka://{broker.address}/clicks?timeout=2"
    writer = Writer(url, tmp_path)
    writer.base()
    writer.delta()

    # When the broker is gone
    broker.stop()
    begin = time.monotonic()
    with pytest.raises(TargetError, match=f"the Kafka broker {broker.address} did not"):
        writer.delta()

    # Then the error came in time; and once a broker is there whose disk was lost, the publisher
    # gets that error, and goes on with a base whose number is higher
    assert time.monotonic() - begin < 6
    broker.start()
    with pytest.raises(TargetError, match="expected version 2, which it had acknowledged, got 0"):
        writer.delta()
    writer.base()
    writer.delta()
    assert follow(url, tmp_path / "mirror") == 4
    writer.close()


@pytest.mark.slow
def test_a_mirror_outlives_a_broker_that_loses_its_disk(broker, tmp_path):
    # Given a mirror at version 2
    url = f"kafka://{broker.address}/clicks?timeout=2"
    writer = Writer(url, tmp_path)
    writer.base()
    writer.delta()
    source, target = open_store(url), FileTarget(str(tmp_path / "mirror"))
    mirror = Mirror(source, target)
    mirror.follow()

    # When the broker is killed, and starts without its topics
    broker.stop()
    with pytest.raises(TargetError, match=broker.address):
        mirror.follow()
    broker.start()

    # Then the mirror keeps what it has, and goes on with the next base
    assert mirror.follow() == 2
    writer.base()
    assert mirror.follow() == 3
    assert bytes_of(target, 3) == bytes_of(writer.target, 3)
    source.close()


def test_versions_of_a_topic_made_anew_do_not_take_the_place_of_later_ones(broker, tmp_path):
    # Given a mirror at version 2, whose trainer and broker then lose everything
    url = f"kafka://{broker.address}/clicks?timeout=2"
    writer = Writer(url, tmp_path / "first")
    writer.base()
    writer.delta()
    source, target = open_store(url), FileTarget(str(tmp_path / "mirror"))
    mirror = Mirror(source, target)
    mirror.follow()
    broker.stop()
    broker.start()

    # When another trainer publishes version 1, Then the mirror refuses it, and says what to do
    Writer(url, tmp_path / "second").base()
    with pytest.raises(ValueError, match="it was made anew; stop the mirror, and remove"):
        mirror.follow()
    assert target.newest() == 2
    source.close()


def test_a_topic_of_one_partition_that_somebody_made_works(kafka_broker, tmp_path):
    # Given a topic of one partition, in which there is a record of somebody else
    topic = f"one-{uuid.uuid4().hex}"
    client = admin.AdminClient({"bootstrap.servers": kafka_broker.address})
    client.create_topics([admin.NewTopic(topic, 1, 1)])[topic].result(5)
    producer = kafka.Producer({"bootstrap.servers": kafka_broker.address})
    producer.produce(topic, b"not a version", b"commit")
    assert producer.flush(5) == 0

    # When versions are published there
    url = f"kafka://{kafka_broker.address}/{topic}"
    writer = Writer(url, tmp_path)
    writer.base()
    writer.delta()

    # Then they are mirrored
    assert follow(url, tmp_path / "mirror") == 2
    writer.close()


def test_a_chunk_that_the_broker_lost_is_told_until_a_base_comes(
    kafka_broker, tmp_path, monkeypatch
):
    # Given a mirror at version 2, and a version whose chunks are not in the topic
    url = f"kafka://{kafka_broker.address}/lost-{uuid.uuid4().hex}"
    writer, target = Writer(url, tmp_path), FileTarget(str(tmp_path / "mirror"))
    writer.base()
    writer.delta()
    mirror = Mirror(open_store(f"{url}?timeout=2"), target)
    mirror.follow()
    with monkeypatch.context() as lost:
        lost.setattr(KafkaTopic, "_write_chunks", lambda self, attempt, files: [0] * len(files))
        writer.delta()
    writer.delta()

    # When it is followed, Then the mirror says so, and goes on with the next base
    with pytest.raises(NotConsecutive, match="lacks a chunk, which its broker had acknowledged"):
        mirror.follow()
    assert mirror.version == 2
    writer.base()
    writer.delta()
    assert mirror.follow() == 6
    writer.close()


def test_an_older_version_is_found_by_a_reader_that_began_behind_it(kafka_broker, tmp_path):
    # Given a store of five versions, and a reader that begins behind the fourth
    url = f"kafka://{kafka_broker.address}/older-{uuid.uuid4().hex}"
    writer, store = Writer(url, tmp_path), KafkaTopic(url)
    writer.base()
    for _ in range(4):
        writer.delta()
    store.start_after(4, writer.target._store.position(4))

    # When it is asked for one in front of that, Then it finds it, and goes on behind the newest
    assert store.versions() == [5]
    assert store.record(2) == writer.target.record(2)
    writer.delta()
    assert store.newest() == 6
    store.close()
    writer.close()


@pytest.fixture
def cluster():
    """librdkafka's mock of three brokers, with the topic "clicks"."""
    with MockCluster() as mock:
        mock.make_topic("clicks")
        yield mock


def test_versions_go_through_a_cluster_of_several_brokers(cluster, tmp_path):
    # Given three brokers, and a list of them whose first one is away
    url = f"kafka://127.0.0.1:{free_port()},{cluster.address}/clicks?timeout=5"

    # When versions are published, Then they are mirrored
    writer = Writer(url, tmp_path)
    writer.base()
    writer.delta()
    assert follow(url, tmp_path / "mirror") == 2
    writer.close()


@pytest.mark.parametrize(
    "kind, error",
    [
        (PRODUCE, kafka.KafkaError.NOT_LEADER_FOR_PARTITION),
        (PRODUCE, kafka.KafkaError.REQUEST_TIMED_OUT),
        (PRODUCE, kafka.KafkaError.NOT_ENOUGH_REPLICAS),
        (FETCH, kafka.KafkaError.NOT_LEADER_FOR_PARTITION),
        (LIST_OFFSETS, kafka.KafkaError.LEADER_NOT_AVAILABLE),
    ],
)
def test_errors_that_pass_are_not_noticed(cluster, tmp_path, kind, error):
    # Given brokers that answer the next two requests of a kind with an error that passes
    url = f"kafka://{cluster.address}/clicks?timeout=10"
    writer = Writer(url, tmp_path)
    writer.base()
    cluster.answer(kind, error, error)

    # When versions are published and mirrored, Then each is there once
    writer.delta()
    assert follow(url, tmp_path / "mirror") == 2
    assert writer.target.versions() == [1, 2]
    writer.close()


@pytest.mark.parametrize(
    "error, why",
    [
        (kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, "authorization failed"),
        (kafka.KafkaError.MSG_SIZE_TOO_LARGE, "[Mm]essage size too large"),
    ],
)
def test_brokers_that_refuse_are_named_and_the_next_version_has_it_all(
    cluster, tmp_path, error, why
):
    # Given a publisher at version 1
    url = f"kafka://{cluster.address}/clicks?timeout=3"
    writer = Writer(url, tmp_path)
    writer.base()

    # When the brokers refuse the next version
    cluster.answer(PRODUCE, error)
    with pytest.raises(TargetError, match=f"did not acknowledge version 2: .*{why}"):
        writer.delta()

    # Then the one after it is version 2, without a trace of the one that was refused
    assert writer.delta().version == 2
    assert follow(url, tmp_path / "mirror") == 2
    assert bytes_of(FileTarget(str(tmp_path / "mirror")), 2) == bytes_of(writer.target, 2)
    writer.close()


@pytest.mark.slow
def test_brokers_that_are_slow_do_not_hang_a_publisher(cluster, tmp_path):
    # Given brokers that take ten seconds for an answer
    url = f"kafka://{cluster.address}/clicks?timeout=2"
    writer = Writer(url, tmp_path)
    writer.base()
    cluster.delay(10_000)

    # When a version is published, Then an error that names them comes in time
    begin = time.monotonic()
    with pytest.raises(TargetError, match=cluster.address.split(",")[0]):
        writer.delta()
    assert time.monotonic() - begin < 6


def test_offsets_that_brokers_do_not_tell_are_taken_from_the_message_before():
    # Given three messages, of which a broker had seen the first and the last before
    class Acknowledged:
        def __init__(self, offset):
            self.offset = lambda: offset

    sent = kafka_client.Deliveries(producer=None, topic="t", partition=1, timeout=1)
    for offset in (None, 41, None):
        sent.count += 1
        sent._on_delivery(None, Acknowledged(offset))

    # When their offsets are asked for, Then each is the offset, or a lower one
    assert [sent.offset_of(number, least=7) for number in range(4)] == [7, 41, 42, 42]
