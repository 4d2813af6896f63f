"""A Redis Cluster below memory: slots move, and primaries die, while requests come and rows are
loaded."""

import contextlib
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from serving.square_tables import Squares, assert_answers, assert_fails, some_keys, tiered
from support.servers.redis_server import RedisCluster, until

pytestmark = pytest.mark.soak  # six servers, and their elections


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def addresses(cluster):
    return ",".join(node.address for node in cluster.nodes)


class Askers:
    """Threads that ask for rows while a `with` block runs.

    Attributes:
        times: of right answers.
        errors: of others, by their text.
    """

    def __init__(self, session, timeout, count=3):
        self.times, self.errors, self._wrong = [], [], []
        self._session, self._timeout = session, timeout
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(count)]

    def _ask(self, seed):
        while not self._stop.is_set():
            seed += 10
            try:
                assert_answers(self._session, some_keys(seed), timeout=self._timeout)
                self.times.append(time.monotonic())
            except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError) as error:
                self.errors.append(str(error))
            except BaseException as error:
                self._wrong.append(error)
                raise

    def wait_for_answers(self, count=20, seconds=30):
        """Until so many more requests were answered."""
        wanted, end = len(self.times) + count, time.monotonic() + seconds
        while len(self.times) < wanted and not self._wrong:
            assert time.monotonic() < end, f"no answers in {seconds} s: {self.errors[-1:]}"
            time.sleep(0.01)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        self.wait_for_answers()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._wrong, self._wrong[0]


def hash_on(node):
    """A hash of rows on a node, and its slot."""
    name = node.ask("--raw", "KEYS", "group_embedding:rows:*same").split()[0]
    return name, node.ask("CLUSTER", "KEYSLOT", name)


def test_every_key_has_its_row(squares, cluster, addresses):
    # Given a cluster, and a model that was loaded into it
    with tiered(squares, addresses) as session:
        for seed in range(3):
            assert_answers(session, some_keys(seed))
        assert_answers(session, some_keys(7, 20_000))
    # When the next one is given one address, of any node, Then it answers, too
    for node in cluster.nodes:
        with tiered(squares, node.address) as session:
            assert_answers(session, some_keys(1))


def test_slots_move_under_requests(squares, cluster, addresses):
    # Given a model that is asked
    source = cluster.pair()[0]
    to = next(n for n in cluster.nodes[:3] if n is not source)
    ids = [node.ask("CLUSTER", "MYID") for node in (source, to)]
    with tiered(squares, addresses) as session, Askers(session, timeout=5) as asked:
        # When a slot is between two nodes, its keys on the second (ASK)
        name, slot = hash_on(source)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        host, port = to.address.split(":")
        assert source.ask("MIGRATE", host, port, name, 0, 5000) == "OK"
        assert "ASK" in source.ask("HLEN", name)
        asked.wait_for_answers()
        # And when it has moved, and many others after it (MOVED)
        for node in (to, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        asked.wait_for_answers()
        move = ["--cluster-from", ids[0], "--cluster-to", ids[1], "--cluster-slots", "600"]
        command = ["redis-cli", "--cluster", "reshard", source.address, *move, "--cluster-yes"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        asked.wait_for_answers()
    # Then every request was answered, and right
    assert not asked.errors


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_replica_takes_over_under_requests(squares, cluster, addresses, how):
    # Given a model that is asked by requests that have little time, and by others that have much
    primary, replica = cluster.pair()
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(tiered(squares, addresses))
        hasty = stack.enter_context(Askers(session, timeout=0.3))
        patient = stack.enter_context(Askers(session, timeout=30, count=1))
        # When a primary dies, or hangs, and its replica takes its place
        os.kill(primary.process.pid, how)
        until(lambda: replica.ask("INFO", "replication"), "role:master")
        # Then requests are answered again while it is away
        for asked in (hasty, patient):
            asked.wait_for_answers()
        failed = len(hasty.errors)
        hasty.wait_for_answers(50)
        assert len(hasty.errors) - failed <= 3  # the last of those that began before
        # And when it is there again, it is a replica, and nobody sees that
        if how == signal.SIGKILL:
            primary.process.wait()
            primary.start()
        else:
            os.kill(primary.process.pid, signal.SIGCONT)
        assert cluster.pair() == (replica, primary)
        patient.wait_for_answers()
    # Then no answer was wrong; errors say where; the patient have seen none, but where a node that
    # hangs kept what was sent to it
    assert hasty.errors and all("tier redis=127.0.0.1:" in error for error in hasty.errors)
    if how == signal.SIGKILL:
        assert not patient.errors


def test_a_replica_takes_over_while_rows_are_loaded(cluster, addresses, tmp_path):
    # Given a load that waits for a node, after it has begun
    count = 20_000
    model = Squares(count)
    tf.saved_model.save(model, str(tmp_path / "1"), signatures=model.serve)
    primary, replica = cluster.pair()
    other = next(node for node in cluster.nodes if node not in (primary, replica))
    other.ask("CLIENT", "PAUSE", 60_000, "WRITE")
    errors = []

    def load():
        try:
            tiered(tmp_path / "1", addresses).close()
        except tf.errors.UnavailableError as error:
            errors.append(str(error))

    loader = threading.Thread(target=load)
    loader.start()
    until(lambda: other.ask("CLIENT", "LIST"), "cmd=hset")
    # When a primary dies, and its replica, which may lack rows, takes its place
    primary.stop()
    until(lambda: replica.ask("INFO", "replication"), "role:master")
    other.ask("CLIENT", "UNPAUSE")
    loader.join()
    primary.start()
    cluster.pair()
    # Then the load is an error that says so
    assert len(errors) == 1 and "load them again" in errors[0]
    # And the next one is right
    with tiered(tmp_path / "1", addresses) as session:
        assert_answers(session, np.arange(-5, count + 5), count)


def test_a_node_without_a_replica(squares, cluster, addresses):
    # Given a model, and a primary that has no replica
    lone = next(node for node in cluster.nodes if node not in cluster.pair())
    with tiered(squares, addresses) as session:
        assert_answers(session, some_keys(1))
        # When it dies, Then requests are errors that name it
        lone.stop()
        assert_fails(session, lone.address)
        # And when it is there again, without its rows, Then no key reads a default row
        lone.start()
        cluster.wait()
        assert_fails(session, lone.address, "the rows are gone")
