"""Redis below memory whose answers are late, wrong or cut off: the trainer's rows, or an error that
says where and why."""

import contextlib
import re
import socket
import threading
import time

import pytest
import tensorflow as tf
from serving.square_tables import assert_answers, assert_fails, some_keys, tiered


class Relay:
    """Stands between clients and a server, and passes bytes on; or, on command, keeps them to
    itself, answers other bytes, or ends connections."""

    def __init__(self, address):
        host, port = address.split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.answer = None  # what is sent in the place of answers: bytes; b"": nothing
        self.ends = False
        self._sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._sockets += [client, server]
            for pair in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source, to, is_answer):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.ends:
                    break
                to.sendall(data if self.answer is None or not is_answer else self.answer)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def end_connections(self):
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()
        for one in self._sockets:
            one.close()


@pytest.fixture
def relay(redis_server):
    made = Relay(redis_server.address)
    yield made
    made.close()


def in_database(url, relay):
    """The URL of a test's database, by way of a relay."""
    return f"redis://{relay.address}/{url.rpartition('/')[2]}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another protocol than Redis's"),
        (b"*2\r\n$16\r\n", "expected"),
        (b"$3\r\nabc\r\n", "expected"),
        (b"*-5\r\n*999999999999999999999\r\n", "expected"),
        (b"\x00" * 9000, "another protocol than Redis's"),
        (b"-ERR unknown command\r\n" * 9, "ERR unknown command"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", "LOADING"),
        (b"", "no answer in time"),
    ],
)
def test_rubbish_and_silence_are_errors(squares, relay, redis_url, answer, why):
    # Given a model whose rows come through a relay
    with tiered(squares, in_database(redis_url, relay)) as session:
        assert_answers(session, some_keys(1))
        # When answers are others, or none
        relay.answer = answer
        assert_fails(session, relay.address, why)
        # Then the next ones are right, once the server's own come again
        relay.answer = None
        for seed in range(2, 5):
            assert_answers(session, some_keys(seed))


def test_connections_that_were_ended_are_made_again(squares, relay, redis_url):
    # Given a model with a connection
    with tiered(squares, in_database(redis_url, relay)) as session:
        for seed in range(4):
            assert_answers(session, some_keys(seed))
            # When the other side has ended it, Then the next request does not see that
            relay.end_connections()


def test_a_request_waits_no_longer_than_its_timeout(squares, relay, redis_url):
    # Given a model whose requests wait 50 ms, and a server that does not answer
    with tiered(squares, in_database(redis_url, relay), ",timeout=50ms") as session:
        relay.answer = b""
        # When it is asked, Then the error is there soon, and says why
        start = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError, match=re.escape(relay.address)):
            session.predict({"keys": some_keys(1)})
        assert time.monotonic() - start < 0.8


def test_a_load_that_loses_its_server_is_an_error(squares, relay, redis_url):
    # Given a relay that ends connections once rows are written
    relay_url = in_database(redis_url, relay)
    threading.Timer(0.02, lambda: setattr(relay, "ends", True)).start()
    # When a model is opened again and again, until that
    with pytest.raises(tf.errors.UnavailableError, match=re.escape(relay.address)):
        for _ in range(10_000):
            tiered(squares, relay_url).close()
    # Then the next one is right
    relay.ends = False
    with tiered(squares, relay_url) as session:
        assert_answers(session, some_keys(1))


@pytest.mark.soak  # 30 seconds: as long as a replica may take
def test_a_load_of_a_server_that_hangs_is_late(squares, relay, redis_url):
    # Given a server that a model has been told of, and then hangs
    url = in_database(redis_url, relay)
    with tiered(squares, url):
        relay.answer = b""
        # When another is opened, Then it is late
        with pytest.raises(tf.errors.DeadlineExceededError, match=re.escape(relay.address)):
            tiered(squares, url)
