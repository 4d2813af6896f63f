"""A server whose source is not a folder: mirrors are beside it."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from support.cases.written_versions import Writer
from support.servers.kafka_broker import KafkaBroker
from support.servers.server_clients import Client, http, wait_for

from group_embedding.serving import server
from group_embedding.serving.__main__ import main

pytest.importorskip("confluent_kafka")
from group_embedding.serving.stores import kafka_client  # noqa: E402

INPUTS = {"x": np.ones([1, 3], np.float32), "n": np.array([4])}


@pytest.fixture
def broker(tmp_path):
    with KafkaBroker(tmp_path) as one:
        yield one


def mirrors_of(url):
    """[(id, parent's id)] of the processes that run a server's mirrors of a source."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if url.encode() in path.read_bytes():
                status = (path.parent / "status").read_text()
                parent = next(line for line in status.splitlines() if line.startswith("PPid:"))
                found.append((int(path.parent.name), int(parent.split()[1])))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.slow
def test_a_server_follows_kafka_through_failures(broker, start, model, tmp_path):
    # Given a model's base in a topic, and a server that knows an older one
    url = f"kafka://{broker.address}/clicks?timeout=2"
    writer = Writer(url, tmp_path)
    writer.base()
    running = start({"m": model(tmp_path / "own" / "0")}, sources={"m": url})
    with Client(running) as client:
        assert client.predict(INPUTS)[1] == 1

        # When a delta is published, Then it is served
        writer.delta()
        wait_for(lambda: client.predict(INPUTS)[1] == 2)
        assert metric(running, "source_up") == 1

        # When the mirror is killed, Then another one follows
        supervisor = next(pid for pid, parent in mirrors_of(url) if parent == running.pid)
        (mirror,) = (pid for pid, parent in mirrors_of(url) if parent == supervisor)
        os.kill(mirror, signal.SIGKILL)
        wait_for(lambda: metric(running, "source_up") == 0)
        assert "the mirror of kafka://" in client.states()[2][1]
        writer.delta()
        wait_for(lambda: client.predict(INPUTS)[1] == 3)

        # When the broker is away, Then the model answers, and its state names the broker
        broker.stop()
        wait_for(lambda: metric(running, "source_up") == 0)
        assert broker.address in client.states()[3][1]
        assert client.predict(INPUTS)[1] == 3
        broker.start()
        wait_for(lambda: metric(running, "source_up") == 1)

    # And a server that is killed takes its mirrors and their folder with it
    running.kill()
    wait_for(lambda: mirrors_of(url) == [])
    writer.close()


def metric(running, name):
    page = http(running, "/metrics")[1]
    (line,) = (line for line in page.splitlines() if line.startswith(f"ge_serve_{name}" + "{"))
    return float(line.split()[-1])


@pytest.mark.soak
def test_a_server_does_not_start_without_its_broker_unless_it_has_a_version(
    broker, start, model, tmp_path, capfd, monkeypatch
):
    # Given a broker that is away, and a state folder with a version that was mirrored before
    url = f"kafka://{broker.address}/clicks?timeout=2"
    own, state = model(tmp_path / "own" / "0"), tmp_path / "state"
    Writer(url, tmp_path).base()
    assert main(["mirror", "--once", url, str(state / "m.mirror")]) == 0
    broker.stop()

    # When a server starts that has nothing, Then it ends and names the broker
    monkeypatch.setattr(kafka_client, "CONNECT_SECONDS", 0.5)
    assert server.main(["--model", f"m={own}", "--source", url]) == 1
    assert f"the Kafka broker {broker.address} did not answer" in capfd.readouterr().err

    # And one that has the folder serves what is there
    running = start({"m": own}, "--state", str(state), sources={"m": url})
    with Client(running) as client:
        assert client.predict(INPUTS)[1] == 1
        assert metric(running, "source_up") == 0


@pytest.fixture
def silent():
    """The URL of a Redis server that takes connections, and answers nothing for a minute."""
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/clicks?timeout=60"


@pytest.mark.soak
def test_a_server_that_has_a_version_does_not_wait_for_a_slow_source(
    silent, start, model, tmp_path
):
    # Given a state folder with a version, and a source that does not answer
    writer = Writer(str(tmp_path / "target"), tmp_path)
    writer.base()
    state = tmp_path / "state"
    assert main(["mirror", "--once", str(tmp_path / "target"), str(state / "m.mirror")]) == 0
    began = time.monotonic()

    # When a server starts, then it does so before the source's time-out, and serves the version
    own = model(tmp_path / "own" / "0")
    running = start({"m": own}, "--state", str(state), sources={"m": silent})
    assert time.monotonic() - began < 50
    with Client(running) as client:
        assert client.predict(INPUTS)[1] == 1
        assert metric(running, "source_up") == 0
    writer.close()


def test_a_server_that_is_killed_before_it_has_started_leaves_no_process(silent, program):
    # Given a server that waits for its source
    command = server.command(["--model", "m=/nowhere", "--source", silent])
    waiting = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(mirrors_of(silent)) == 2)

    # When it is killed, then the process that asks the source ends, too
    waiting.kill()
    waiting.wait()
    wait_for(lambda: mirrors_of(silent) == [])


@pytest.mark.parametrize("source", ["kafka://", "what://host/x"])
def test_a_source_that_cannot_be_is_refused(program, source, capsys):
    assert server.main(["--model", "m=/nowhere", "--source", source]) == 1
    assert f"'{source}" in capsys.readouterr().err
