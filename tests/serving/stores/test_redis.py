"""Redis servers fail: killed, full, with a password, with less than they had."""

import subprocess
import threading
import time

import pytest
from support.cases.written_versions import Writer, bytes_of
from support.servers.loopback import free_port
from support.servers.redis_server import RedisServer

redis = pytest.importorskip("redis")

from group_embedding.serving import TargetError, open_target  # noqa: E402
from group_embedding.serving.mirror.mirror import Mirror  # noqa: E402
from group_embedding.serving.stores import open_store  # noqa: E402
from group_embedding.serving.stores.targets import FileTarget  # noqa: E402


@pytest.fixture
def server(tmp_path):
    """Starts a server with arguments, which a test may kill."""
    started = []

    def start(*arguments):
        started.append(RedisServer(tmp_path, *arguments))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stop()


def follow(url, folder):
    """The newest version that a new mirror of the store brings to a folder."""
    target = FileTarget(str(folder))
    try:
        return Mirror(open_store(url), target).follow()
    finally:
        target.close()


def test_without_a_server_a_publisher_does_not_start_and_names_it(tmp_path):
    # Given an address on which nobody listens, and a password
    address = f"127.0.0.1:{free_port()}"

    # When a publisher starts, Then it names the address in time, and not the password
    begin = time.monotonic()
    with pytest.raises(TargetError, match=f"the Redis server {address} did not answer") as told:
        Writer(f"redis://:secret@{address}/clicks", tmp_path)
    assert time.monotonic() - begin < 6 and "secret" not in str(told.value)


@pytest.mark.parametrize("url", ["redis://", "redis://host", "rediss:///stream"])
def test_a_url_without_host_or_stream_is_refused(url):
    with pytest.raises(ValueError, match="expected redis://HOST"):
        open_target(url)


def test_an_option_that_the_client_lacks_is_named(tmp_path):
    with pytest.raises(TargetError, match="no_such_option"):
        open_target("redis://127.0.0.1:1/clicks?no_such_option=1").lock()


def test_a_password_opens_the_server(server, tmp_path):
    # Given a server with a password
    address = server("--requirepass", "open sesame").address

    # When publishers come with the password, with another one, and without
    writer = Writer(f"redis://:open%20sesame@{address}/clicks", tmp_path)
    writer.base()
    for password, why in (
        (":wrong@", "invalid username-password"),
        ("", "Authentication required"),
    ):
        with pytest.raises(TargetError, match=f"the Redis server {address} refuses: .*{why}"):
            Writer(f"redis://{password}{address}/clicks", tmp_path)

    # Then the first one has published
    assert writer.target.versions() == [1]
    assert "sesame" not in writer.target.url


def test_rediss_is_tls(server, tmp_path):
    # Given a server with a certificate, which it signed itself
    new = ["-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", "key.pem", "-out", "own.pem"]
    command = ["openssl", "req", "-x509", *new, *names, *files]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    tls = free_port()
    server(
        *("--tls-port", str(tls), "--tls-auth-clients", "no", "--tls-cert-file", "own.pem"),
        *("--tls-key-file", "key.pem"),
    )

    # When a publisher knows the certificate, Then it publishes; and one that does not is refused
    url = f"rediss://127.0.0.1:{tls}/clicks"
    writer = Writer(f"{url}?ssl_ca_certs={tmp_path / 'own.pem'}", tmp_path)
    assert writer.base().version == 1
    with pytest.raises(TargetError, match="certificate verify failed"):
        Writer(url, tmp_path)


def test_what_a_killed_server_had_written_down_is_there_again(server, tmp_path):
    # Given a server that writes each command to its disk, and a publisher at version 2
    running = server("--appendonly", "yes", "--appendfsync", "always")
    url = f"redis://{running.address}/clicks?timeout=2"
    writer = Writer(url, tmp_path)
    writer.base()
    writer.delta()

    # When it is killed, and is there again
    running.stop()
    with pytest.raises(TargetError, match=f"the Redis server {running.address}"):
        writer.delta()
    running.start()

    # Then the next version is the third
    assert writer.delta().version == 3
    assert follow(url, tmp_path / "mirror") == 3
    target = FileTarget(str(tmp_path / "mirror"))
    for version in (2, 3):
        assert bytes_of(target, version) == bytes_of(writer.target, version)


def test_a_publisher_goes_on_where_a_server_lost_all(server, tmp_path):
    # Given a server that keeps nothing, a publisher and a mirror at version 2
    running = server()
    url = f"redis://{running.address}/clicks?timeout=2"
    writer, target = Writer(url, tmp_path), FileTarget(str(tmp_path / "mirror"))
    writer.base()
    writer.delta()
    mirror = Mirror(open_store(url), target)
    mirror.follow()

    # When it is killed, and is there again
    running.stop()
    with pytest.raises(TargetError, match=running.address):
        mirror.follow()
    running.start()
    with pytest.raises(TargetError, match="expected version 2, which it had acknowledged, got 0"):
        writer.delta()

    # Then the next base is version 3, and the mirror follows
    assert writer.base().version == 3
    assert mirror.follow() == 3


def test_a_version_that_is_another_one_with_the_same_number_is_told(server, tmp_path):
    # Given a mirror at version 1, whose server and trainer then lose everything
    running = server()
    url = f"redis://{running.address}/clicks?timeout=2"
    Writer(url, tmp_path / "first").base()
    target = FileTarget(str(tmp_path / "mirror"))
    mirror = Mirror(open_store(url), target)
    mirror.follow()
    running.stop()
    with pytest.raises(TargetError):
        mirror.follow()
    running.start()

    # When another trainer publishes its version 1
    second = Writer(url, tmp_path / "second")
    second.base(num_files=2)
    with pytest.raises(ValueError, match="the source lost versions"):
        mirror.follow()

    # Then the mirror says so, and has version 2 with the base that it is of
    second.delta()
    assert mirror.follow() == 2
    assert bytes_of(target, 1) == bytes_of(second.target, 1)


def test_a_full_server_is_named_and_the_next_version_has_it_all(server, tmp_path):
    # Given a server with little memory, which removes nothing by itself
    running = server("--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
    url = f"redis://{running.address}/clicks"
    writer = Writer(url, tmp_path)
    writer.base()

    # When a base comes that is too large
    refusal = f"the Redis server {running.address} refuses: .*maxmemory"
    with pytest.raises(TargetError, match=refusal):
        writer.base(num_files=6, size=2_000_000)

    # Then its chunks expire, and once they are gone the next version is the second
    client = redis.Redis.from_url(f"redis://{running.address}")
    leftovers = list(client.keys("*:2:*"))
    assert leftovers and all(0 < client.ttl(key) <= 3600 for key in leftovers)
    client.delete(*leftovers)
    assert writer.delta().version == 2
    assert all(client.ttl(key) == -1 for key in client.keys("*"))


def test_versions_before_the_newest_bases_leave_the_server(server, tmp_path):
    # Given three bases
    url = f"redis://{server().address}/clicks"
    writer = Writer(url, tmp_path)
    for _ in range(3):
        writer.base()

    # When the first one is removed, Then none of its keys are there
    writer.target.remove(1)
    client = redis.Redis.from_url(url.replace("/clicks", ""))
    assert writer.target.versions() == [2, 3]
    assert client.keys("*:1:*") == [] and len(client.keys("*:2:*")) > 0


def test_a_mirror_that_waits_is_woken(redis_server, tmp_path):
    # Given a store that waits for a version
    url = f"redis://{redis_server.address}/{tmp_path.name}"
    writer, store = Writer(url, tmp_path), open_store(url)
    writer.base()
    assert store.newest() == 1
    begin = time.monotonic()
    waiting = threading.Thread(target=store.wait, args=(4,))
    waiting.start()

    # When one comes, Then it waits no longer
    writer.delta()
    waiting.join()
    assert time.monotonic() - begin < 2 and store.newest() == 2
