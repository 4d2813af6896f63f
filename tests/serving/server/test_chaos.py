"""Everything is up, and anything may be killed: a trainer, Kafka, Redis, mirrors, three servers."""

import collections
import contextlib
import os
import random
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.programs.killed_replicas import Killed, copy
from support.programs.publish_and_die import NUM_KEYS, rows_at, train_through_failures
from support.servers.kafka_broker import KafkaBroker
from support.servers.redis_server import RedisServer
from support.servers.server_clients import Client

import group_embedding as ge
from group_embedding.serving import TargetError, server
from group_embedding.serving.stores import open_store
from group_embedding.serving.versions.deltas import Reader

LOG = Path(__file__).parents[3] / "benchmarks" / "results" / "serving_chaos.txt"
SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
SECONDS = 600
CONVERGES_SECONDS = 240  # after the last kill, on loaded cores
NUM_KEYS_ASKED = 64
STEP_SECONDS = 0.2
# Codes of a server that is there and has no answer; those of one that is killed are others.
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DATA_LOSS,
}


class Replica:
    """A server that is killed, and starts again on another port, and a client that asks it.

    Attributes:
        asked: The number of answers.
        unanswered: The number of requests that failed, as the server was away.
        wrong: What was wrong with an answer; None: nothing.
        version: That of the last answer.
    """

    def __init__(self, name, model, source, folder):
        self.name = name
        (folder / name).mkdir()
        arguments = ("--state", str(folder / name), "--threads", "1", "--op-threads", "1")
        self._make = lambda: server.ServerProcess(
            {"m": model}, *arguments, sources={"m": source}, start_seconds=120
        )
        self.asked = self.unanswered = self.version = 0
        self.wrong = None
        self._running = self._client = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.start()
        self._thread.start()

    def start(self):
        """Starts a server; where its source is away there is none, and `ended` says so."""
        with contextlib.suppress(RuntimeError):
            self._running = self._make().__enter__()
            self._client = Client(self._running)

    def stop(self):
        running, client, self._running, self._client = self._running, self._client, None, None
        if running is not None:
            running.kill()
            running.__exit__()
            client.channel.close()

    def ended(self):
        return self._running is None or not self._running.running()

    def end(self):
        self._ended.set()
        self._thread.join()
        self.stop()

    def answer(self, keys):
        """(rows, weights, version) of the newest version that the server has."""
        found, version = self._client.predict({"keys": keys}, seconds=10)
        return found["rows"], found["weights"], version

    def _ask(self):
        draw = np.random.default_rng(SEED)
        while not self._ended.wait(0.05):
            keys = draw.integers(0, NUM_KEYS, NUM_KEYS_ASKED)
            try:
                rows, weights, version = self.answer(keys)
            except (grpc.RpcError, AttributeError, ValueError) as error:  # killed, channel closed
                if isinstance(error, grpc.RpcError) and error.code() in REFUSALS:
                    self.wrong = self.wrong or f"{self.name}: {error}"
                self.unanswered += 1
                continue
            self.asked += 1
            self.wrong = self.wrong or self._what_is_wrong(keys, rows, weights, version)
            self.version = version

    def _what_is_wrong(self, keys, rows, weights, version):
        if version < self.version:
            return f"{self.name}: version {version} after {self.version}"
        step = int(weights.flat[0])
        if not (weights == step).all():
            return f"{self.name}, version {version}: weights of several steps"
        if not np.array_equal(rows, rows_at(keys, step)[1]):
            return f"{self.name}, version {version}: rows that are not those of step {step}"
        return None


def newest_of(url):
    """The newest version of a store; 0 while it does not answer."""
    with contextlib.closing(open_store(url)) as store, contextlib.suppress(TargetError, OSError):
        return store.newest()
    return 0


def wait_until(condition, what, seconds=CONVERGES_SECONDS):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what()}"
        time.sleep(0.1)


def first_base(url, folder):
    """A folder with the first version, which servers start from."""
    wait_until(lambda: newest_of(url) > 0, lambda: "no version")
    with contextlib.closing(ge.serving.open_target(url)) as target:
        version = Reader(target).versions()[0]
        os.rename(target.base_path(version), folder / str(version))
    return folder / str(version)


class Chaos:
    """Kills one of the parts at a time, and starts it again."""

    def __init__(self, parts, log):
        self._parts, self._log = parts, log
        self._draw = random.Random(SEED)
        self.kills = collections.Counter()

    def run(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self._draw.uniform(0.5, 5.0))
            name = self._draw.choice(list(self._parts))
            self._parts[name].stop()
            self.kills[name] += 1
            away = self._draw.uniform(0.1, 3.0)
            time.sleep(away)
            self._parts[name].start()
            self._log(f"killed {name}, away for {away:.1f} s")
            self.revive()

    def revive(self):
        """Starts what ended as its source was away when it started."""
        for part in self._parts.values():
            if hasattr(part, "ended") and part.ended():
                part.start()


def run(folder, s3_server, seconds, log):
    """Returns the lines of the log's summary."""
    with contextlib.ExitStack() as parts:
        broker = parts.enter_context(KafkaBroker(folder, s3_server))
        durable = ("--appendonly", "yes", "--appendfsync", "always")
        redis = parts.enter_context(RedisServer(folder, *durable))
        topic = f"kafka://{broker.address}/chaos?timeout=3"
        stream = f"redis://{redis.address}/chaos?timeout=3"
        trainer = Killed(train_through_failures, topic, STEP_SECONDS)
        parts.callback(trainer.stop)
        model = first_base(topic, folder)
        copies = Killed(copy, topic, stream)
        parts.callback(copies.stop)
        wait_until(lambda: newest_of(stream) > 0, lambda: "no version in Redis")
        replicas = []
        for number, source in enumerate([topic, topic, stream]):
            replicas.append(Replica(f"replica-{number}", model, source, folder))
            parts.callback(replicas[-1].end)
        named = {"trainer": trainer, "broker": broker, "redis": redis, "mirror": copies}
        named |= {one.name: one for one in replicas}
        chaos = Chaos(named, log)
        chaos.run(seconds)

        # The trainer goes on for a while, and ends; all replicas come to its last version.
        enough = newest_of(topic) + 5
        wait_until(lambda: (chaos.revive(), newest_of(topic) > enough)[1], lambda: "no publish")
        trainer.stop()
        newest = newest_of(topic)
        del named["trainer"]
        wait_until(
            lambda: (chaos.revive(), {one.version for one in replicas} == {newest})[1],
            lambda: f"{newest}, got {[one.version for one in replicas]}",
        )
        keys = np.arange(NUM_KEYS)
        found = [one.answer(keys) for one in replicas]
        for one in replicas:
            assert one.wrong is None, one.wrong
        for rows, weights, version in found:
            assert version == newest and weights.tobytes() == found[0][1].tobytes()
            step = int(weights.flat[0])
            assert rows.tobytes() == rows_at(keys, step)[1].tobytes()
        assert all(one.asked > 0 for one in replicas)
        return [
            f"{seconds} s, {sum(chaos.kills.values())} kills: "
            + ", ".join(f"{name} {count}" for name, count in sorted(chaos.kills.items())),
            *(
                f"{one.name}: {one.asked} answers, {one.unanswered} requests while it was away, "
                "0 wrong, versions never less"
                for one in replicas
            ),
            f"all at version {newest}, step {step}: {len(keys)} rows and the weights equal to the "
            "bit",
        ]


@pytest.mark.soak
def test_chaos(program, s3_server, tmp_path):
    pytest.importorskip("confluent_kafka")
    # Given a trainer that publishes to Kafka, a mirror from there to Redis, and three servers that
    # follow them, which clients ask
    start, lines = time.monotonic(), [time.strftime("%Y-%m-%d")]

    def log(text):
        lines.append(f"{time.monotonic() - start:7.1f} s  {text}")

    # When anything is killed at random for ten minutes, Then no answer is wrong, versions never
    # become less, and all servers end at the trainer's last version, equal to the bit
    try:
        lines[1:1] = run(tmp_path, s3_server, SECONDS, log)
    except BaseException as error:
        lines.insert(1, f"failed: {error}")
        raise
    finally:
        LOG.write_text("\n".join(lines) + "\n")
