"""Redis below memory when it is away, empty, slow or guarded: the trainer's rows, or an error that
says where and why. test_redis_cluster.py has clusters."""

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from loopback import free_port
from redis_server import RedisServer
from square_tables import COUNT, assert_answers, assert_fails, some_keys, tiered

import group_embedding as ge
from group_embedding.serving.__main__ import main


@pytest.fixture
def server(tmp_path):
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


class Relay:
    """Stands between clients and a server, and passes bytes on; or, as it is told, keeps them to
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


def test_a_server_that_is_away_comes_back_with_its_rows(squares, server):
    # Given a server that keeps its data, and a model that was asked for some keys
    redis = server("--appendonly", "yes", "--appendfsync", "always")
    with tiered(squares, redis.address) as session:
        assert_answers(session, some_keys(1))
        for turn in range(2):
            # When it is killed, Then requests for other keys are errors that name it
            redis.stop()
            assert_fails(session, redis.address, "is Redis running there")
            # And when it is there again, Then every key has its row
            redis.start()
            for seed in range(3):
                assert_answers(session, some_keys(10 * turn + seed))


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.soak)])
def test_kills_make_no_wrong_answer(squares, server, kills):
    # Given a server that keeps its data, and threads that ask
    redis = server("--appendonly", "yes", "--appendfsync", "always")
    right, errors, wrong, stop = [], [], [], threading.Event()

    def ask(session, seed):
        while not stop.is_set():
            seed += 10
            try:
                assert_answers(session, some_keys(seed))
                right.append(seed)
            except tf.errors.UnavailableError as error:
                errors.append(str(error))
            except BaseException as error:
                wrong.append(error)
                raise

    with tiered(squares, redis.address) as session:
        threads = [threading.Thread(target=ask, args=(session, seed)) for seed in range(3)]
        for thread in threads:
            thread.start()
        # When it is killed again and again
        for _ in range(kills):
            answered, end = len(right), time.monotonic() + 60
            while len(right) < answered + 10 and not wrong and time.monotonic() < end:
                time.sleep(0.01)
            redis.stop()
            time.sleep(0.05)
            redis.start()
        stop.set()
        for thread in threads:
            thread.join()
        # Then every answer was right, or an error that names it
        assert not wrong
        assert errors and all(redis.address in error for error in errors)
        assert_answers(session, some_keys(1))


def test_a_server_that_comes_back_empty_answers_no_default_rows(squares, server, capsys):
    # Given a server that keeps nothing, and an open model
    redis = server()
    with tiered(squares, redis.address) as session:
        assert_answers(session, some_keys(1))
        # When it comes back empty, Then no trained key reads a default row
        redis.stop()
        redis.start()
        for _ in range(2):
            assert_fails(
                session, redis.address, "the rows are gone", "group_embedding.serving load"
            )
        # And when the rows are loaded again, Then the open model reads them
        assert main(["load", str(squares), "--tiers", f"memory=1kB,redis={redis.address}"]) == 0
        assert f"{2 * COUNT:,} rows of 2 tables" in capsys.readouterr().out
        for seed in range(3):
            assert_answers(session, some_keys(seed))


def test_rows_that_redis_gave_up_are_no_default_rows(squares, redis_server, redis_url):
    # Given an open model
    database = redis_url.rpartition("/")[2]
    with tiered(squares, redis_url) as session:
        assert_answers(session, some_keys(1))
        # When a table's hash is removed, as eviction does
        name = redis_server.ask("-n", database, "--raw", "KEYS", "group_embedding:rows:*same")
        assert redis_server.ask("-n", database, "DEL", name) == "1"
        # Then requests are errors
        assert_fails(session, redis_server.address, "redis_same", "the rows are gone")
    # And the next session writes them again
    with tiered(squares, redis_url) as session:
        assert_answers(session, some_keys(1))


def test_rows_in_an_earlier_form_are_written_again(squares, redis_server, redis_url):
    # Given rows that are described where a version described them that named their keys otherwise
    ask = ("-n", redis_url.rpartition("/")[2])
    tiered(squares, redis_url).close()
    for name in redis_server.ask(*ask, "--raw", "KEYS", "group_embedding:base:*").split():
        redis_server.ask(*ask, "RENAME", name, name.replace(":base:", ":table:"))
    before = redis_server.ask(*ask, "--raw", "KEYS", "group_embedding:rows:*").split()
    # When the model is opened, Then its rows are written beside them, and found
    with tiered(squares, redis_url) as session:
        assert_answers(session, some_keys(1))
    after = redis_server.ask(*ask, "--raw", "KEYS", "group_embedding:rows:*").split()
    assert len(after) == 2 * len(before) == 4


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


def test_default_rows_are_answered_and_counted_where_told(squares, server):
    # Given a model that is told to answer default rows, and whose server is away
    redis = server()
    with tiered(squares, redis.address, ",on_failure=default") as session:
        redis.stop()
        # When it is asked, Then keys that are not in memory read defaults, and are counted
        found = session.predict({"keys": np.arange(100)})["same"]
        assert (found == -1).all()
        for table in session.info()["tables"]:
            assert table["defaulted"] == 100 and table["failures"] >= 1 and table["absent"] == 0


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


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--maxmemory", "1", "--maxmemory-policy", "noeviction"), "OOM .*raise maxmemory"),
        (("--rename-command", "HSET", ""), "ERR unknown command 'HSET'"),
        (("--min-replicas-to-write", "1"), "NOREPLICAS"),
    ],
)
def test_a_server_that_takes_no_rows_is_unavailable(squares, server, arguments, why):
    # Given a server that answers, and refuses what is written
    redis = server(*arguments)
    # When a model is opened, or loaded by the command, Then the error names it and says why
    where = f"table 'redis_s.*', tier redis={redis.address}: {why}"
    with pytest.raises(tf.errors.UnavailableError, match=where):
        tiered(squares, redis.address)
    with pytest.raises(SystemExit, match=f"group_embedding: {where}"):
        main(["load", str(squares), "--tiers", f"memory=1kB,redis={redis.address}"])


@pytest.mark.soak  # 30 seconds: as long as a replica may take
def test_a_load_of_a_server_that_hangs_is_late(squares, relay, redis_url):
    # Given a server that a model has been told of, and then hangs
    url = in_database(redis_url, relay)
    with tiered(squares, url):
        relay.answer = b""
        # When another is opened, Then it is late
        with pytest.raises(tf.errors.DeadlineExceededError, match=re.escape(relay.address)):
            tiered(squares, url)


def test_processes_fill_one_database_at_a_time(squares, redis_url):
    # Given processes that open a model that nobody has loaded
    program = f"""
import numpy as np
from group_embedding.serving import InferenceSession
with InferenceSession({str(squares)!r}, tiers="memory=1kB,redis={redis_url}") as session:
    keys = np.arange({COUNT})
    assert (session.predict({{"keys": keys}})["same"][:, 3] == keys).all()
"""
    # When they open it at the same time, Then each has every row
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]


def test_old_contents_expire(tmp_path, redis_server, redis_url):
    # Given three bases of a model, opened one after the other
    ask = ["-n", redis_url.rpartition("/")[2]]
    table = ge.get_embedding_variable("redis_bases", 2)

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="keys")])
        def serve(self, keys):
            return {"rows": ge.group_embedding_lookup([self.table], [keys])[0]}

    model, fills = Model(), []
    model.table = table  # for the SavedModel
    for base in range(3):
        table.insert(np.arange(5), np.full([5, 2], base, np.float32))
        tf.saved_model.save(model, str(tmp_path / str(base)), signatures=model.serve)
        with tiered(tmp_path / str(base), redis_url) as session:
            rows = session.predict({"keys": np.arange(5)})["rows"]
            np.testing.assert_array_equal(rows, np.full([5, 2], base, np.float32))
        names = redis_server.ask(*ask, "--raw", "KEYS", "group_embedding:rows:*").split()
        fills += [name for name in names if name not in fills]
    assert len(fills) == 3
    # When their keys are asked how long they stay, Then the first one expires, the others do not
    stay = [int(redis_server.ask(*ask, "TTL", name)) for name in fills]
    assert 80_000 < stay[0] <= 86_400 and stay[1:] == [-1, -1]
    # And when the first one is opened again, Then it stays
    tiered(tmp_path / "0", redis_url).close()
    assert int(redis_server.ask(*ask, "TTL", fills[0])) == -1


def test_passwords(squares, server, monkeypatch):
    # Given a server with a password, and a user with another
    redis = server("--requirepass", "open,sesame")
    acl = ("ACL", "SETUSER", "ge", "on", ">p@ss", "~group_embedding:*", "+@all")
    redis.ask("-a", "open,sesame", "--no-auth-warning", *acl)
    # When they are given, Then the model answers
    for login in (":open%2Csesame@", "ge:p%40ss@"):
        with tiered(squares, f"redis://{login}{redis.address}") as session:
            assert_answers(session, some_keys(1))
    # And a user who may only read answers from loaded rows
    reads = ("-@all", "+hmget", "+hget", "+cluster|slots")
    redis.ask("-a", "open,sesame", "--no-auth-warning", *acl[:2], "r", "on", ">r", acl[5], *reads)
    with tiered(squares, f"redis://r:r@{redis.address}") as session:
        assert_answers(session, some_keys(3))
    # And the environment may have the password
    monkeypatch.setenv("GROUP_EMBEDDING_REDIS_PASSWORD", "open,sesame")
    with tiered(squares, redis.address) as session:
        assert_answers(session, some_keys(2))
    # And wrong ones, or none, are errors that do not repeat them
    monkeypatch.delenv("GROUP_EMBEDDING_REDIS_PASSWORD")
    for login, why in ((":hocuspocus@", "WRONGPASS"), ("", "NOAUTH")):
        with pytest.raises(tf.errors.UnavailableError, match=f"{redis.address}: {why}") as raised:
            tiered(squares, f"redis://{login}{redis.address}")
        assert "hocuspocus" not in str(raised.value) and "give a user" in str(raised.value)


def test_tls(squares, server, tmp_path):
    # Given a server with a certificate, which it signed itself, that wants one of clients, too
    own, key = tmp_path / "own.pem", tmp_path / "key.pem"
    new = ["-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=redis"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(own)]
    subprocess.run(["openssl", "req", "-x509", *new, *files], check=True, capture_output=True)
    port = free_port()
    given = ("--tls-cert-file", own, "--tls-key-file", key, "--tls-ca-cert-file", own)
    server("--tls-port", str(port), *map(str, given))
    # When a client has it, Then the model answers
    client = f"ssl_certfile={own}&ssl_keyfile={key}"
    with tiered(squares, f"rediss://127.0.0.1:{port}?ssl_ca_certs={own}&{client}") as session:
        for seed in range(3):
            assert_answers(session, some_keys(seed, 2000))
    # And clients that do not know it, name another host, or have none, are refused
    for url, why in (
        (f"rediss://127.0.0.1:{port}?{client}", "the server's certificate is not accepted"),
        (f"rediss://localhost:{port}?ssl_ca_certs={own}&{client}", "mismatch"),
        (f"rediss://127.0.0.1:{port}?ssl_ca_certs={own}", "127.0.0.1"),
        (f"redis://127.0.0.1:{port}", "127.0.0.1"),
        (f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path}/none.pem", "none.pem"),
    ):
        with pytest.raises(tf.errors.UnavailableError, match=why):
            tiered(squares, url)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("", "expected redis=HOST:PORT"),
        ("host:port", "expected redis=HOST:PORT"),
        ("host:0", "expected redis=HOST:PORT"),
        ("http://host:1", "expected redis=HOST:PORT"),
        ("redis://secret@host:1", "expected redis=HOST:PORT"),
        ("redis://u:secret@host:1/x", "number of a database"),
        ("redis://u:secret@host:1?colour=red", "expected the options db"),
        ("redis://u:secret@host:1?ssl_ca_certs=x", "rediss"),
        ("host:1,rocksdb=/tmp/x", "expected memory="),
    ],
)
def test_texts_that_are_no_redis(squares, where, why):
    with pytest.raises(ValueError, match=why) as raised:
        tiered(squares, where)
    assert "secret" not in str(raised.value)


def test_nobody_listens(squares):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(tf.errors.UnavailableError, match=f"redis={address}: Connection refused"):
        tiered(squares, address)
