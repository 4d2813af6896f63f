"""Messages whose bytes would become a hundred times as many in memory: they are refused before they
are read, and what is within the limit is answered."""

import http.client
import json
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.servers.server_clients import Client

PREDICT = "tensorflow.serving.PredictionService/Predict"
INFER = "inference.GRPCInferenceService/ModelInfer"
MEGABYTES = 24
MOST_MIB = 100  # more than the message twice: as it is read, and as it is counted
X, N = np.array([[1, 2, 3]], np.float32), np.array([1])


def peak(server):
    """MiB of the process, at most so far."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def varint(value):
    low, high = value & 127, value >> 7
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def field(number, content):
    """A field of protobuf that has a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def many(number):
    """Empty strings, or objects without a field."""
    return bytes([number << 3 | 2, 0]) * (MEGABYTES * 500_000)


def predict(tensor):
    return field(1, field(1, b"m")) + field(2, field(1, b"x") + field(2, b"\x08\x07" + tensor))


@pytest.fixture(scope="module")
def server(double, tmp_path_factory):
    from group_embedding.serving.server import ServerProcess

    path = tmp_path_factory.mktemp("model") / "7"
    path.mkdir()
    (path / "saved_model.pb").touch()
    with ServerProcess({"m": path.parent}, "--library", str(double)) as one:
        yield one
        assert one.running(), one.errors()


@pytest.fixture(autouse=True)
def answers(server):
    """Behind each test the server answers, and has not taken much memory."""
    with Client(server) as client:
        client.predict({"x": X, "n": N})
        before = peak(server)
        yield client
        assert client.predict({"x": X, "n": N})[1] == 7
        assert peak(server) - before < MOST_MIB


@pytest.mark.parametrize(
    ("method", "message"),
    [
        pytest.param(PREDICT, lambda: predict(many(8)), id="strings"),
        pytest.param(PREDICT, lambda: predict(field(2, many(2))), id="dims"),
        pytest.param(PREDICT, lambda: field(1, field(1, b"m")) + many(2), id="inputs"),
        pytest.param(PREDICT, lambda: field(1, field(1, b"m")) + many(3), id="output filter"),
        pytest.param(PREDICT, lambda: many(15), id="unknown fields"),
        pytest.param(PREDICT, lambda: b"\x7b\x7c" * 10**7, id="unknown groups"),
        pytest.param(INFER, lambda: field(1, b"m") + many(5), id="infer: inputs"),
        pytest.param(INFER, lambda: field(1, b"m") + many(6), id="infer: outputs"),
        pytest.param(INFER, lambda: field(1, b"m") + many(4), id="infer: parameters"),
        pytest.param(INFER, lambda: field(1, b"m") + many(7), id="infer: raw contents"),
        pytest.param(
            INFER,
            lambda: field(1, b"m") + field(5, field(1, b"x") + field(5, many(8))),
            id="infer: strings",
        ),
    ],
)
def test_small_parts_of_a_message_are_counted(answers, method, message):
    # Given a message of a few megabytes, of millions of parts that have no content
    sent = message()

    # When it is sent
    with pytest.raises(grpc.RpcError) as refused:
        answers.raw(method, sent)

    # Then it is refused by what it would take, not by what it says
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused.value
    assert "bytes of memory" in refused.value.details()


@pytest.mark.parametrize("part", ['"",', "[],", "{},", "1,"])
def test_values_of_json_are_counted(server, part):
    body = '{"instances": [' + part * 17_000_000 + "1]}"
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=20)

    connection.request("POST", "/v1/models/m:predict", body)
    answer = connection.getresponse()

    assert answer.status == 413
    assert "16777216 values" in json.loads(answer.read())["error"]


def test_the_thread_of_connections_reads_short_messages_only(answers):
    with pytest.raises(grpc.RpcError) as refused:
        answers.raw("grpc.health.v1.Health/Check", field(1, b"x" * 70_000))

    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_many_short_strings_are_within_the_limit(answers):
    # Given 200,000 strings, each of 20 bytes
    strings = field(8, b"s" * 20) * 200_000

    # When they are sent as a tensor of one
    with pytest.raises(grpc.RpcError) as refused:
        answers.raw(PREDICT, predict(strings))

    # Then they are read, and told to be too many for it
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "got 200000" in refused.value.details()
