"""Real services, one of each for all tests of a process."""

import uuid

import pytest
from kafka_broker import KafkaBroker
from redis_server import RedisServer


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory):
    pytest.importorskip("confluent_kafka")
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    pytest.importorskip("redis")
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["kafka", "redis", "s3"])
def url(request):
    """The URL of a store without versions, in each service."""
    name = f"versions-{uuid.uuid4().hex}"
    if request.param in ("s3", "hdfs", "gs"):
        return request.getfixturevalue(f"{request.param}_folder")
    if request.param == "kafka":
        return f"kafka://{request.getfixturevalue('kafka_broker').address}/{name}"
    return f"redis://{request.getfixturevalue('redis_server').address}/{name}"
