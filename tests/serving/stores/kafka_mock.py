"""librdkafka's own mock of a Kafka cluster, which injects errors; through ctypes."""

import ctypes
from pathlib import Path

import confluent_kafka

PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2  # kinds of requests


class MockCluster:
    """Brokers in this process, while a `with` block runs.

    Attributes:
        address: of all brokers.
    """

    def __init__(self, num_brokers=3):
        libraries = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
        (library,) = libraries.glob("librdkafka-*.so*")
        self._lib = ctypes.CDLL(str(library))
        for name in ("conf_new", "new", "handle_mock_cluster"):
            getattr(self._lib, f"rd_kafka_{name}").restype = ctypes.c_void_p
        self._lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        why = ctypes.create_string_buffer(500)
        conf = ctypes.c_void_p(self._lib.rd_kafka_conf_new())
        for name, value in (("test.mock.num.brokers", num_brokers), ("log_level", 0)):
            given = name.encode(), str(value).encode()
            assert self._lib.rd_kafka_conf_set(conf, *given, why, len(why)) == 0, why.value
        self._client = ctypes.c_void_p(self._lib.rd_kafka_new(0, conf, why, len(why)))
        assert self._client, why.value
        self._cluster = ctypes.c_void_p(self._lib.rd_kafka_handle_mock_cluster(self._client))
        self.address = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def make_topic(self, name, num_partitions=2):
        """The mock makes none when it is asked as brokers are."""
        made = self._lib.rd_kafka_mock_topic_create(self._cluster, name.encode(), num_partitions, 1)
        assert made == 0

    def answer(self, kind, *errors):
        """Answers the next requests of a kind with errors, numbers of `KafkaError`."""
        numbers = (ctypes.c_int * len(errors))(*errors)
        self._lib.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(kind), ctypes.c_size_t(len(errors)), numbers
        )

    def delay(self, milliseconds):
        """Delays all answers of the brokers by so long."""
        for broker in (1, 2, 3):
            self._lib.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._lib.rd_kafka_destroy(self._client)
