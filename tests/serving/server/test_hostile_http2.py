"""HTTP/2 that breaks its rules, floods or stalls: a connection may end, the server does not, its
memory is bounded, and others are answered meanwhile."""

import contextlib
import resource
import socket
import struct
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.servers import http2_frames as h2
from support.servers.server_clients import Client, predict_request

X, N = np.array([[1, 2, 3]], np.float32), np.array([1])
HEALTHY = b"\x00\x00\x00\x00\x02\x08\x01"
MOST_MIB = 96  # by which the server may grow
PROTOCOL_ERROR, ENHANCE_YOUR_CALM = 1, 11
PREDICT = b"/tensorflow.serving.PredictionService/Predict"


def memory(server):
    """MiB of the process."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.fixture(autouse=True)
def survives(shared):
    """Behind each test: the server lives, answers, and is not much larger."""
    with Client(shared) as client:
        client.predict({"x": X, "n": N})
        before = memory(shared)
        yield client
        assert shared.running(), shared.errors()
        assert client.predict({"x": X, "n": N})[1] == 7
        assert memory(shared) - before < MOST_MIB


def test_a_message_that_is_malformed_writes_no_log(shared, survives):
    # Given names that are no UTF-8
    lines = shared.errors()

    # When they are sent
    for service in ("inference.GRPCInferenceService/ModelInfer", PREDICT[1:].decode()):
        with pytest.raises(grpc.RpcError):
            survives.raw(service, b"\x0a\x01\xff")

    # Then a client cannot fill the disk by them
    assert shared.errors() == lines


def answers(shared, seconds=5):
    with h2.Connection(shared.grpc_port) as other:
        other.send(h2.call(1))
        return HEALTHY in (other.answer(1, seconds) or b"")


def test_a_plain_call(shared):
    assert answers(shared)


# CVE-2023-1428: one of these, and later fields up to more than 8 KB, ended the process.
@pytest.mark.parametrize(
    "head",
    [
        h2.fields(scheme=b"x"),
        h2.fields(b"/grpc.health.v1.Health/Check", (b"te", b"x")),
        h2.fields(b"/grpc.health.v1.Health/Check", (b"grpclb_client_stats", b"x")),
        h2.fields(b"/grpc.health.v1.Health/Check", (b"grpc-timeout", b"x")),
        h2.fields(b"/grpc.health.v1.Health/Check", (b"content-type", b"x")),
    ],
    ids=["scheme", "te", "grpclb_client_stats", "grpc-timeout", "content-type"],
)
@pytest.mark.parametrize("kilobytes", [9, 15, 40])
def test_an_odd_field_and_many_others(shared, head, kilobytes):
    # Given ten connections with a head each, in several frames
    streams = range(1, 20, 2)
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(h2.Connection(shared.grpc_port, seconds=2)) for _ in streams
        ]
        for stream, connection in zip(streams, connections):
            padding = b"".join(h2.field(b"x%d" % i, b"a" * 1000) for i in range(kilobytes))
            first, rest = (head + padding)[:8000], (head + padding)[8000:]
            connection.send(h2.frame(h2.HEADERS, 0, stream, first))
            while rest:
                part, rest = rest[:8000], rest[8000:]
                flags = 0 if rest else h2.END_HEADERS
                connection.send(h2.frame(h2.CONTINUATION, flags, stream, part))

        # When the server has had time for all
        end = time.monotonic() + 0.4
        for stream, connection in zip(streams, connections):
            connection.answer(stream, max(0.02, end - time.monotonic()))

    # Then it answers others
    assert answers(shared)


# CVE-2023-4785: connections for which there was no file descriptor ended the process.
def test_more_connections_than_the_server_may_have(start, model, tmp_path):
    server = start({"m": model(tmp_path / "1")})
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (120, 120))
    before = memory(server)
    with contextlib.ExitStack() as stack:
        # Given more connections than it has descriptors, which say nothing
        for _ in range(600):
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=1)
                stack.callback(one.close)

        # When a client comes, Then it is answered, though they stay
        assert answers(server, 15)
        assert memory(server) - before < MOST_MIB
    assert answers(server, 15)


# CVE-2023-33953: integers of HPACK without an end, strings of any length, heads without an end.
@pytest.mark.parametrize(
    "head",
    [
        b"\x00" + h2.number(1 << 31, 7),
        b"\x00\x7f" + b"\x80" * 8000,
        b"\x7f" + b"\xff" * 8000,
        b"\x3f" + b"\x80" * 8000 + b"\x01",
        b"\x3f\xe1\xff\xff\xff\x07" * 1000,
        b"\xbe",
    ],
    ids=["4 GB name", "zeros of a length", "an index", "zeros of a table", "tables", "no index"],
)
def test_numbers_of_hpack(shared, head):
    with h2.Connection(shared.grpc_port) as connection:
        connection.send(h2.frame(h2.HEADERS, 0, 1, head))
        for _ in range(200):
            if not connection.send(h2.frame(h2.CONTINUATION, 0, 1, b"\x80" * 16_000)):
                break
        assert connection.ended(5)
    assert answers(shared)


@pytest.mark.parametrize("part", [b"", h2.field(b"a", b"b" * 100)], ids=["empty", "fields"])
def test_a_head_without_an_end(shared, part):
    # Given a head, and 50,000 continuations (CVE-2024-28182 and others)
    with h2.Connection(shared.grpc_port) as connection:
        connection.send(h2.frame(h2.HEADERS, 0, 1, h2.fields()))
        flood = h2.frame(h2.CONTINUATION, 0, 1, part) * 1000
        for _ in range(50):
            connection.send(flood)

        # Then the connection ends, without an answer
        assert connection.answer(1) is None
        assert connection.ended()
    assert answers(shared)


# CVE-2023-44487, and the resets that a client makes the server send (CVE-2025-8671).
@pytest.mark.parametrize(
    "reset",
    [
        lambda stream: h2.frame(h2.RST_STREAM, 0, stream, struct.pack(">I", 8)),
        lambda stream: h2.frame(h2.WINDOW_UPDATE, 0, stream, struct.pack(">I", 0)),
        lambda stream: h2.frame(h2.WINDOW_UPDATE, 0, stream, struct.pack(">I", 2**31 - 1)),
    ],
    ids=["by the client", "by a window of 0", "by a window that is too large"],
)
def test_calls_that_are_reset_at_once(shared, reset):
    head = h2.fields(PREDICT)
    begin = time.monotonic()
    with h2.Connection(shared.grpc_port) as connection:
        for first in range(1, 60_000, 200):
            flood = b"".join(
                h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head) + reset(stream)
                for stream in range(first, first + 200, 2)
            )
            if not connection.send(flood):
                break

        # Then the server ends the connection, and says why; the last call that it saw is early
        last, why = connection.goodbye()
    assert why in (PROTOCOL_ERROR, ENHANCE_YOUR_CALM)
    assert last < 50_000
    assert answers(shared)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    "flood",
    [
        h2.frame(h2.PING, payload=b"12345678"),
        h2.frame(h2.SETTINGS),
        h2.frame(h2.SETTINGS, payload=struct.pack(">HI", 4, 65535) * 100),
        h2.frame(h2.PRIORITY, 0, 1, b"\x00\x00\x00\x03\x10"),
        h2.frame(h2.DATA, 0, 1),
        h2.frame(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
        h2.frame(200, 0, 0, b"x" * 100),
    ],
    ids=["PING", "SETTINGS", "many settings", "PRIORITY", "empty DATA", "WINDOW_UPDATE", "other"],
)
def test_floods_of_frames_by_a_client_that_reads_nothing(shared, flood):
    begin = time.monotonic()
    with h2.Connection(shared.grpc_port, seconds=2) as connection:
        connection.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, h2.fields(PREDICT)))
        for _ in range(200):
            if not connection.send(flood * 500):
                break
        assert answers(shared)
    assert time.monotonic() - begin < 30


def test_streams_beyond_the_limit(shared):
    # Given calls that stay open, more than a connection may have
    with h2.Connection(shared.grpc_port) as connection:
        for stream in range(1, 4001, 2):
            connection.send(h2.frame(h2.HEADERS, h2.END_HEADERS, stream, h2.fields(PREDICT)))

        # Then those above the limit are refused
        refused = {of for kind, _, of, _ in connection.frames(1) if kind == h2.RST_STREAM}
        assert len(refused) >= 900
        assert answers(shared)


def test_bodies_that_are_never_whole(shared):
    # Given 300 connections with calls of 90 KB, of which the last byte is missing
    body = h2.message(b"x" * 90_000)[:60_000]
    parts = [body[i : i + 16_000] for i in range(0, len(body), 16_000)]
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            connection = stack.enter_context(h2.Connection(shared.grpc_port, seconds=1))
            for stream in range(1, 200, 2):
                connection.send(h2.frame(h2.HEADERS, h2.END_HEADERS, stream, h2.fields(PREDICT)))
                for part in parts:
                    if not connection.send(h2.frame(h2.DATA, 0, stream, part)):
                        break

        # Then others are answered
        assert answers(shared)


def test_answers_that_nobody_reads(shared, survives):
    # Given calls with large answers, whose client has a window of 0
    request = predict_request({"t": np.zeros(20_000, np.float32)}, signature="same")
    call = h2.message(request.SerializeToString())
    window = struct.pack(">HI", 4, 0)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(
                h2.Connection(shared.grpc_port, seconds=2, settings=window)
            )
            for stream in range(1, 400, 2):
                connection.send(
                    h2.frame(h2.HEADERS, h2.END_HEADERS, stream, h2.fields(PREDICT))
                    + b"".join(
                        h2.frame(h2.DATA, 0, stream, call[i : i + 16_000])
                        for i in range(0, len(call), 16_000)
                    )
                    + h2.frame(h2.DATA, h2.END_STREAM, stream)
                )

        # Then others are answered
        assert answers(shared)
