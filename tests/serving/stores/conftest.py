"""Real services, one of each for all tests of a process."""

import uuid

import pytest
from kafka_broker import KafkaBroker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory):
    pytest.importorskip("confluent_kafka")
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(params=["kafka"])
def url(request):
    """The URL of a store without versions, in each service."""
    name = f"versions-{uuid.uuid4().hex}"
    if request.param == "kafka":
        return f"kafka://{request.getfixturevalue('kafka_broker').address}/{name}"
    raise AssertionError(request.param)
