"""Requests that are nearly right get an answer or an error, and the server stays up."""

import json
import os
import random
import socket

import grpc
import numpy as np
import pytest
from support.servers.server_clients import Client, http, predict_request

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
METHODS = ["Predict", "Classify", "Regress", "GetModelMetadata"]
CODES = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "INTERNAL",  # gRPC's, of bytes that are no message
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
}
REST = b'{"signature_name": "strings", "instances": [{"b64": "AAA="}, "a"], "x": [1.5, -2e9, null]}'
WORDS = [
    b'"instances"',
    b'"inputs"',
    b'"b64"',
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b"1e999",
    b"-0",
    b"\xff",
]


@pytest.mark.parametrize("cases", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_messages(shared, cases):
    # Given right messages, and bytes that are drawn
    draw = random.Random(SEED)
    seeds = [
        predict_request({"x": np.ones([2, 3], np.float32), "n": np.array([1, 2])}),
        predict_request({"s": [b"ab", b""]}, signature="strings", outputs=["length"]),
        predict_request({"t": np.ones([2, 2], np.complex64)}, signature="same", version=7),
    ]
    seeds = [seed.SerializeToString() for seed in seeds]

    # When mutated messages are sent to each method
    with Client(shared) as client:
        codes = set()
        for _ in range(cases):
            message = mutated(draw, draw.choice(seeds))
            method = f"tensorflow.serving.PredictionService/{draw.choice(METHODS)}"
            try:
                client.raw(method, message)
            except grpc.RpcError as error:
                codes.add(error.code().name)

        # Then each got an answer or an error by name, and the server answers the next one
        assert codes <= CODES and len(codes) >= 2
        outputs, _ = client.predict({"x": np.ones([1, 3], np.float32), "n": np.array([1])})
        assert outputs["y"].tolist() == [4.0]


@pytest.mark.parametrize("cases", [150, pytest.param(10_000, marks=pytest.mark.soak)])
def test_bodies(shared, cases):
    # Given a right body, and bytes that are drawn
    draw = random.Random(SEED)
    verbs = [":predict", ":classify", ":regress", "/metadata", "", ":"]

    # When mutated bodies are sent, to paths that may be wrong
    statuses = set()
    for _ in range(cases):
        path = "/v1/models/m" + draw.choice(["", "/versions/7", "/labels/x"]) + draw.choice(verbs)
        status, text = http(shared, path, mutated(draw, REST, WORDS))
        statuses.add(status)
        if status != 200:
            assert list(json.loads(text)) == ["error"]

    # Then each got an answer or an error, and the server answers the next one
    assert statuses <= {200, 400, 404}
    assert http(shared, "/healthz")[0] == 200


@pytest.mark.parametrize("cases", [50, pytest.param(2_000, marks=pytest.mark.soak)])
def test_bytes_on_both_ports(shared, cases):
    # Given beginnings of both protocols
    draw = random.Random(SEED)
    starts = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: 10\r\n\r\n0123456789",
    ]

    # When mutated bytes are sent, and the connection ends
    for number in range(cases):
        port = (shared.grpc_port, shared.rest_port)[number % 2]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(mutated(draw, draw.choice(starts)))

    # Then the server answers the next one
    with Client(shared) as client:
        client.predict({"x": np.ones([1, 3], np.float32), "n": np.array([1])})
    assert http(shared, "/healthz")[0] == 200


def mutated(draw, seed, words=()):
    """A few changes: bytes flipped, cut out, repeated, or words put in."""
    data = bytearray(seed)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        change = draw.randrange(5 if words else 4)
        if change == 0:
            data[at : at + 1] = bytes(byte ^ 1 << draw.randrange(8) for byte in data[at : at + 1])
        elif change == 1:
            del data[at : at + draw.randint(1, 8)]
        elif change == 2:
            data[at:at] = data[at : at + draw.randint(1, 20)] * draw.randint(1, 3)
        elif change == 3:
            data[at:at] = draw.randbytes(draw.randint(1, 4))
        else:
            data[at:at] = draw.choice(words)
    return bytes(data)
