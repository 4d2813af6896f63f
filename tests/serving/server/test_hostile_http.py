"""HTTP that is malformed, slow, too large or meant for two readings: the server answers
the first, ends the connection, and goes on."""

import contextlib
import gzip
import json
import os
import re
import resource
import signal
import socket
import time

import pytest
from support.servers.server_clients import http, rest, wait_for

BODY = json.dumps({"instances": [{"x": [0, 1, 2], "n": 10}]}).encode()
POST = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: a\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"  # ends the connection
MOST_BYTES = 100_000  # of a message of the shared server


def post(*fields, body=BODY):
    head = POST + b"".join(field + b"\r\n" for field in fields)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*chunks, fields=()):
    head = POST + b"".join(field + b"\r\n" for field in fields)
    text = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + text + b"0\r\n\r\n"


def connect(server, seconds=20):
    return socket.create_connection(("127.0.0.1", server.rest_port), timeout=seconds)


def read(connection, seconds=20):
    """The bytes until the server ends the connection, or the time is over."""
    connection.settimeout(seconds)
    text = b""
    with contextlib.suppress(OSError):  # a server that closes at once may reset
        while part := connection.recv(1 << 16):
            text += part
        return text, True
    return text, False


def talk(server, *parts):
    """Sends the parts one after the other; the answers' statuses, and whether the server closed."""
    with connect(server) as connection:
        for part in parts:
            with contextlib.suppress(OSError):
                connection.sendall(part)
            time.sleep(0.05 if len(parts) > 1 else 0)
        text, closed = read(connection)
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+) ", text)], closed


MALFORMED = {
    "two readings: a length and chunks": (
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two codings": (
        POST + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a coding that is not chunked": (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 501),
    "chunked behind another coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "chunks in HTTP/1.0": (
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 5\r\n\r\n{}", 400),
    "a length that is no number": (POST + b"Content-Length: abc\r\n\r\n", 400),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "a length with a sign": (POST + b"Content-Length: +2\r\n\r\n{}", 400),
    "a length in hexadecimal": (POST + b"Content-Length: 0x2\r\n\r\n{}", 400),
    "a length above 2^64": (POST + b"Content-Length: 18446744073709551618\r\n\r\n{}", 400),
    "a list of lengths": (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    "a blank before a colon": (POST + b"Content-Length : 2\r\n\r\n{}", 400),
    "a body of GET": (b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 400),
    "chunks of GET": (
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a body of HEAD": (b"HEAD /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 400),
    "lines that end by LF": (b"GET /healthz HTTP/1.1\nHost: a\n\n", 400),
    "one line that ends by LF": (b"GET /healthz HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400),
    "a CR alone": (b"GET /healthz HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
    "NUL in a field": (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
    "NUL in the path": (b"GET /v1/models/m\0m HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "an encoded NUL in the path": (b"GET /v1/models/m%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "half of an encoded byte": (b"GET /v1/models/m%2 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "a folded field": (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
    "a field without a colon": (b"GET /healthz HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n", 400),
    "no Host": (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", 400),
    "HTTP/9.9": (b"GET /healthz HTTP/9.9\r\nHost: a\r\n\r\n", 505),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a chunk's extension": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n",
        400,
    ),
    "a chunk of 2^64": (
        POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n",
        400,
    ),
    "a chunk of -1": (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n", 400),
    "chunks that end by LF": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n", 400),
    "Expect": (POST + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", 417),
    "another coding of the body": (
        POST + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
        415,
    ),
    "101 fields": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 100 + b"\r\n", 431),
    "a field of 1 MB": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n", 431),
    "a path of 100 KB": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
    "a method of another kind": (b"PUT /v1/models/m HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    "a hello of TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n" + b"x" * 64, 400),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_answered_and_ends_its_connection(shared, case):
    # Given a request with one thing wrong, and another request behind it
    sent, expected = MALFORMED[case]

    # When both come
    statuses, closed = talk(shared, sent, HEALTH)

    # Then the first one alone is answered, and the server serves others
    assert statuses == [expected]
    assert closed
    assert http(shared, "/healthz")[0] == 200


def test_a_million_fields_are_refused(shared):
    lines = b"".join(b"X%d: %d\r\n" % (i, i) for i in range(100_000))

    statuses, closed = talk(shared, b"GET / HTTP/1.1\r\nHost: a\r\n" + lines * 10 + b"\r\n")

    assert statuses in ([431], [])  # the answer may be lost behind bytes that nobody reads
    assert closed


@pytest.mark.parametrize(
    "sent, statuses",
    [
        (post() * 2 + post(b"Connection: close"), [200] * 3),
        (HEALTH + post() + LAST, [200] * 3),
        (post(body=b"{}") + LAST, [400, 200]),
        (b"POST /nope HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /" + LAST, [404, 200]),
        (chunked(BODY[:5], BODY[5:]) + LAST, [200, 200]),
    ],
    ids=["predictions", "with probes", "after an error", "after a path", "after chunks"],
)
def test_pipelined_requests_are_answered_in_order(shared, sent, statuses):
    assert talk(shared, sent) == (statuses, True)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.0\r\n\r\n",
        LAST,
        b"\r\n" + LAST,
        b"GET http://elsewhere/healthz?a=b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /health%7A HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"HEAD /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ],
    ids=["1.0", "close", "empty line", "absolute", "encoded", "HEAD", "no body"],
)
def test_requests_that_are_right(shared, sent):
    assert talk(shared, sent) == ([200], True)


def test_a_client_that_expects_to_go_on(shared):
    with connect(shared) as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(BODY)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_no_ranges_no_forms_no_parts(shared):
    # Given requests that ask a web server for parts of a file, or send a form
    ranges = post(b"Range: bytes=0-3", b"Connection: close")
    many = post(b"Range: bytes=" + b",".join([b"0-"] * 1000), b"Connection: close")
    form = post(b"Content-Type: application/x-www-form-urlencoded", b"Connection: close")

    # When they are sent
    found = []
    for sent in (ranges, many, form):
        with connect(shared) as connection:
            connection.sendall(sent)
            found.append(read(connection)[0])

    # Then each is answered as without
    for text in found:
        assert text.startswith(b"HTTP/1.1 200 ")
        assert json.loads(text.partition(b"\r\n\r\n")[2])["predictions"]


PADDED = b'{"pad": "' + b" " * (2 * MOST_BYTES) + b'", ' + BODY[1:]


@pytest.mark.parametrize(
    "sent",
    [
        post(body=PADDED),
        POST + b"Content-Length: 99999999999\r\n\r\n",
        chunked(*[PADDED[i : i + 5000] for i in range(0, len(PADDED), 5000)]),
        post(b"Content-Encoding: gzip", b"Connection: close", body=gzip.compress(PADDED)),
        chunked(gzip.compress(PADDED), fields=[b"Content-Encoding: gzip", b"Connection: close"]),
    ],
    ids=["whole", "stated", "chunks", "gzip", "gzip in chunks"],
)
def test_a_body_above_the_limit_is_refused(shared, sent):
    assert talk(shared, sent) == ([413], True)
    assert rest(shared, "/v1/models/m:predict", json.loads(BODY))[0] == 200


def test_bodies_that_are_deflated(shared):
    # When requests come as gzip, as what is none, and as a part of one
    bodies = (gzip.compress(BODY), BODY, gzip.compress(BODY)[:-9])
    fields = (b"Content-Encoding: gzip", b"Connection: close")
    found = [talk(shared, post(*fields, body=body)) for body in bodies]

    # Then the first is answered
    assert found == [([200], True), ([400], True), ([400], True)]


def test_an_answer_is_deflated_for_clients_that_say_so(shared):
    rows = json.dumps({"instances": [{"x": [0, 1, 2], "n": 10}] * 500}).encode()
    fields = [b"Accept-Encoding: deflate, gzip", b"Connection: close"]
    with connect(shared) as connection:
        connection.sendall(post(*fields, body=rows))
        text, _ = read(connection)

    head, _, body = text.partition(b"\r\n\r\n")

    assert b"Content-Encoding: gzip" in head
    assert len(json.loads(gzip.decompress(body))["predictions"]) == 500


@pytest.fixture
def descriptors():
    """Enough of them for the connections of a test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nX: y\r\n",
        POST + b"Content-Length: 1000\r\n\r\n{",
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n",
    ],
    ids=["idle", "slow head", "slow body", "slow chunk"],
)
def test_slow_clients_cost_nobody_time(shared, descriptors, beginning):
    # Given more connections than the server has threads, which send slowly or nothing
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(shared)) for _ in range(320)]
        for connection in slow:
            connection.sendall(beginning)

        # When probes and requests come
        begin = time.monotonic()
        assert http(shared, "/healthz")[0] == http(shared, "/readyz")[0] == 200
        assert rest(shared, "/v1/models/m:predict", json.loads(BODY))[0] == 200

        # Then they do not wait
        assert time.monotonic() - begin < 5


def test_a_head_has_a_deadline_from_its_first_byte(shared):
    # Given a client that sends a field each second
    begin, ended = time.monotonic(), None
    with connect(shared) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
        while ended is None and time.monotonic() - begin < 30:
            with contextlib.suppress(socket.timeout):
                connection.settimeout(1)
                if connection.recv(100) == b"":
                    ended = time.monotonic() - begin
            with contextlib.suppress(OSError):
                connection.sendall(b"X: y\r\n")

    # Then its connection ends, though it never was silent
    assert ended is not None
    assert 8 < ended < 15


def test_the_oldest_idle_connection_makes_place(start, model, tmp_path):
    # Given a server that has all the connections it may have, of which the first computes
    server = start({"m": model(tmp_path / "1")}, "--rest-connections", "8")
    slow = json.dumps({"signature_name": "slow", "inputs": {"ms": [1500]}}).encode()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(server))
        first.sendall(post(body=slow))
        others = [stack.enter_context(connect(server)) for _ in range(7)]
        time.sleep(0.2)

        # When another one comes
        assert http(server, "/healthz")[0] == 200

        # Then the one that has waited longest is gone, and the request is answered
        assert read(others[0], 5) == (b"", True)
        assert read(others[-1], 0.3) == (b"", False)
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")


def test_slow_bodies_make_place_for_probes(start, model, tmp_path):
    # Given a server all of whose connections wait for the rest of a body
    server = start({"m": model(tmp_path / "1")}, "--rest-connections", "8")
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(8)]
        for connection in slow:
            connection.sendall(POST + b"Content-Length: 1000\r\n\r\n{")
        time.sleep(0.2)

        # When a probe comes, Then it is answered, in the place of the oldest of them
        assert http(server, "/healthz")[0] == 200
        assert read(slow[0], 5) == (b"", True)


def test_readiness_ends_with_the_signal_to_stop(start, model, tmp_path):
    # Given a server with a request in flight, and a connection whose request is on its way
    server = start({"m": model(tmp_path / "1")})
    slow = json.dumps({"signature_name": "slow", "inputs": {"ms": [2000]}}).encode()
    with connect(server) as connection, connect(server) as early:
        connection.sendall(post(b"Connection: close", body=slow))
        time.sleep(0.3)
        assert http(server, "/readyz")[0] == 200

        # When it is to stop
        os.kill(server.pid, signal.SIGTERM)

        # Then it is not ready, takes no new request, and answers the one in flight
        wait_for(lambda: http(server, "/readyz")[0] == 503)
        early.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert read(early)[0].startswith(b"HTTP/1.1 503 ")
        assert rest(server, "/v1/models/m:predict", json.loads(BODY))[0] == 503
        assert read(connection)[0].startswith(b"HTTP/1.1 200 ")
        wait_for(lambda: not server.running())


def test_nesting_is_bounded_by_the_limit_alone(shared):
    deep = b'{"instances": ' + b"[" * 40_000 + b"]" * 40_000 + b"}"

    assert talk(shared, post(b"Connection: close", body=deep)) == ([400], True)
