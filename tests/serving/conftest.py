"""Real services, one of each for all tests of this folder, and a model to publish."""

import itertools
import uuid

import numpy as np
import pytest
import tensorflow as tf
from serving.serving_models import TwoTables
from serving.square_tables import Squares
from support.servers.kafka_broker import KafkaBroker
from support.servers.redis_server import RedisServer

DATABASES = itertools.count(1)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory):
    pytest.importorskip("confluent_kafka")
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis"), "--databases", "1000") as server:
        yield server


@pytest.fixture(scope="session")
def squares(tmp_path_factory):
    """The folder of a SavedModel, of Squares."""
    folder, model = tmp_path_factory.mktemp("squares") / "1", Squares()
    tf.saved_model.save(model, str(folder), signatures=model.serve)
    return folder


@pytest.fixture
def redis_url(redis_server):
    """The URL of a database that no other test uses."""
    return f"redis://{redis_server.address}/{next(DATABASES)}"


@pytest.fixture
def new_redis(tmp_path):
    """Starts servers of the test's own; they end with it."""
    started = []

    def start(*arguments):
        folder = tmp_path / f"redis-{len(started)}"
        folder.mkdir()
        started.append(RedisServer(folder, *arguments))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def random():
    return np.random.default_rng(7)


@pytest.fixture
def model(request, random):
    """A TwoTables with rows."""
    model = TwoTables(request.node.name.partition("[")[0])
    model.change(random, 200)
    return model


@pytest.fixture
def services(request):
    """The URL of a store without versions: `services(kind)`, kind "kafka", "redis", "s3" ..."""

    def url_in(kind):
        if kind in ("s3", "hdfs", "gs"):
            if kind == "s3":
                pytest.importorskip("s3fs")  # which takes seconds: before a timer runs
            return request.getfixturevalue(f"{kind}_folder")
        if kind == "redis":
            pytest.importorskip("redis")
        server = request.getfixturevalue("kafka_broker" if kind == "kafka" else "redis_server")
        return f"{kind}://{server.address}/versions-{uuid.uuid4().hex}"

    return url_in
