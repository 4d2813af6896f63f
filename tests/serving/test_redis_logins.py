"""Redis below memory behind a password or TLS, and addresses that lead to none."""

import subprocess

import pytest
import tensorflow as tf
from serving.square_tables import assert_answers, some_keys, tiered
from support.servers.loopback import free_port


def test_passwords(squares, new_redis, monkeypatch):
    # Given a server with a password, and a user with another
    redis = new_redis("--requirepass", "open,sesame")
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


def test_tls(squares, new_redis, tmp_path):
    # Given a server with a certificate, which it signed itself, that wants one of clients, too
    own, key = tmp_path / "own.pem", tmp_path / "key.pem"
    new = ["-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=redis"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(own)]
    subprocess.run(["openssl", "req", "-x509", *new, *files], check=True, capture_output=True)
    port = free_port()
    given = ("--tls-cert-file", own, "--tls-key-file", key, "--tls-ca-cert-file", own)
    new_redis("--tls-port", str(port), *map(str, given))
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
