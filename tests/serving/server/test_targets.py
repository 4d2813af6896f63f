"""A server that follows a publisher's target: docs/reference/deltas.md has its layout."""

import shutil
import struct

import numpy as np
import pytest
from support.oracles.table_file_format import FOOTER, Section, file_of
from support.servers.server_clients import Client, http, wait_for

INPUTS = {"x": np.ones([1, 3], np.float32), "n": np.array([4])}
POLL = ("--poll-seconds", "0.05")
BASE, DELTA, ROLLBACK = 1, 2, 3


class Publisher:
    """Writes records of versions; the double takes a delta's number from its folder."""

    def __init__(self, target, model):
        self.target = target
        self._model = model
        self._newest = None

    def publish(self, version, kind=DELTA, base=1, parent=None, content=None, damaged=False):
        if kind == BASE:
            base = version
            self._model(self.target / str(version))
        if parent is None:
            parent = -1 if kind == BASE else version - 1
        folder = self.target / "versions" / f"{version:020}"
        folder.mkdir(parents=True)
        if damaged:
            (folder / "damaged").touch()
        payload = struct.pack("<II", kind, 1) + b"m"
        payload += struct.pack("<qqQqQ", version, parent, 5, base, 5)
        payload += struct.pack("<qqq", version if content is None else content, 100, 10**15)
        written = folder / "COMMIT.new"
        written.write_bytes(file_of([Section(16, payload), Section(FOOTER, b"")]))
        written.rename(folder / "COMMIT")


@pytest.fixture
def publisher(tmp_path, model):
    return Publisher(tmp_path / "target", model)


@pytest.fixture
def serve(start, model, tmp_path):
    """Starts a server whose own model is version 0, and that follows the target."""
    own = model(tmp_path / "own" / "0")

    def begin(target):
        return start({"m": own}, *POLL, sources={"m": f"file://{target}"})

    return begin


def test_a_first_base_with_the_number_of_the_servers_own_model(publisher, start, model, tmp_path):
    # Given a server that was started with version 1 of a model, before its publisher began
    publisher.target.mkdir()
    own = model(tmp_path / "own" / "1")
    server = start({"m": own}, *POLL, sources={"m": f"file://{publisher.target}"})
    with Client(server) as client:
        assert client.predict(INPUTS)[1] == 1

        # When the publisher's first base comes, which is its version 1, and a delta
        publisher.publish(1, BASE)
        wait_for(lambda: f"loaded from {publisher.target / '1'}" in server.errors())
        publisher.publish(2)

        # Then both are served
        wait_for(lambda: client.predict(INPUTS)[1] == 2)


def test_deltas_are_applied_as_they_come(publisher, serve):
    # Given a base and two deltas
    publisher.publish(1, BASE)
    publisher.publish(2)
    publisher.publish(3)

    # When a server starts, and two more come
    server = serve(publisher.target)
    with Client(server) as client:
        first = client.predict(INPUTS)[1]
        publisher.publish(4)
        publisher.publish(5)

        # Then it answers from the newest each time
        assert first == 3
        wait_for(lambda: client.predict(INPUTS)[1] == 5)
        assert client.states()[5] == ("AVAILABLE", "")
    assert 'ge_serve_source_version{model="m"} 5' in http(server, "/metrics")[1]


def test_its_own_model_answers_until_the_target_has_a_version(publisher, serve):
    # Given a server whose target is not there yet
    server = serve(publisher.target)
    with Client(server) as client:
        first, message = client.predict(INPUTS)[1], client.states()[0][1]

        # When the first version comes
        publisher.publish(1, BASE)

        # Then it takes over
        assert first == 0
        assert "cannot read folder" in message
        wait_for(lambda: client.predict(INPUTS)[1] == 1)


def test_a_damaged_delta_is_not_applied_and_a_base_leads_on(publisher, serve):
    # Given a server at version 2
    publisher.publish(1, BASE)
    publisher.publish(2)
    server = serve(publisher.target)
    with Client(server) as client:
        # When a damaged delta comes, and one after it
        publisher.publish(3, damaged=True)
        publisher.publish(4)

        # Then version 2 answers, and the state says why
        wait_for(lambda: "is damaged" in client.states()[2][1])
        assert client.predict(INPUTS)[1] == 2

        # And the next base, and what follows it, are served
        publisher.publish(5, BASE)
        publisher.publish(6, base=5)
        wait_for(lambda: client.predict(INPUTS)[1] == 6)
        wait_for(lambda: client.states()[6] == ("AVAILABLE", ""))


def test_a_gap_leads_to_a_base(publisher, serve):
    # Given a server at version 1
    publisher.publish(1, BASE)
    server = serve(publisher.target)

    # When deltas were retired before it saw them, and a base came
    publisher.publish(4, BASE)
    publisher.publish(5, base=4)

    # Then it goes on from the base
    with Client(server) as client:
        wait_for(lambda: client.predict(INPUTS)[1] == 5)


def test_a_base_with_a_parent_is_applied_as_a_delta(publisher, serve):
    # Given a server at version 2
    publisher.publish(1, BASE)
    publisher.publish(2)
    server = serve(publisher.target)

    # When a base comes that has its own delta, and a delta after it
    publisher.publish(3, BASE, parent=2)
    publisher.publish(4, base=3)

    # Then both are applied, and nothing is loaded
    with Client(server) as client:
        wait_for(lambda: client.predict(INPUTS)[1] == 4)
    assert "version 3 is loaded" not in server.errors()
    assert 'ge_serve_model_version{model="m",base="1"} 4' in http(server, "/metrics")[1]


def test_rollback(publisher, serve):
    # Given a server at version 3
    publisher.publish(1, BASE)
    publisher.publish(2)
    publisher.publish(3)
    server = serve(publisher.target)
    with Client(server) as client:
        # When version 4 says that 2 is served again
        publisher.publish(4, ROLLBACK, content=2)

        # Then 2 answers, until the base that comes next
        wait_for(lambda: client.predict(INPUTS)[1] == 2)
        publisher.publish(5, BASE)
        wait_for(lambda: client.predict(INPUTS)[1] == 5)


def test_a_target_that_is_away(publisher, serve):
    # Given a server at version 2
    publisher.publish(1, BASE)
    publisher.publish(2)
    server = serve(publisher.target)
    with Client(server) as client:
        # When the target goes
        away = publisher.target.with_name("away")
        shutil.move(publisher.target, away)

        # Then version 2 answers, and metrics and states say so
        wait_for(lambda: 'ge_serve_source_up{model="m"} 0' in http(server, "/metrics")[1])
        assert "cannot read folder" in client.states()[2][1]
        assert client.predict(INPUTS)[1] == 2

        # And it goes on when the target is back
        shutil.move(away, publisher.target)
        publisher.publish(3)
        wait_for(lambda: client.predict(INPUTS)[1] == 3)
        assert 'ge_serve_source_up{model="m"} 1' in http(server, "/metrics")[1]


def test_a_damaged_record(publisher, serve):
    # Given a server at version 1
    publisher.publish(1, BASE)
    server = serve(publisher.target)
    with Client(server) as client:
        # When records come that are no records, or of another version
        for version, content in ((2, b"\x00" * 100), (3, b"")):
            folder = publisher.target / "versions" / f"{version:020}"
            folder.mkdir()
            (folder / "COMMIT").write_bytes(content)

        # Then version 1 answers, and the state says why
        wait_for(lambda: "COMMIT" in client.states()[1][1])
        assert client.predict(INPUTS)[1] == 1
