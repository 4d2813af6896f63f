"""Trainers, mirrors and services are killed at random: versions stay whole, in order, and equal."""

import contextlib
import functools
import os
import random
import time
import uuid

import numpy as np
import pytest
from support.cases.written_versions import bytes_of
from support.programs.killed_replicas import DELTAS, Killed, graph_at, mirror, train, weights_at
from support.servers.kafka_broker import KafkaBroker
from support.servers.redis_server import RedisServer

from group_embedding.serving import TargetError
from group_embedding.serving.stores import open_store, records
from group_embedding.serving.stores.targets import FileTarget
from group_embedding.serving.versions import variables_file

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
SECONDS = 60  # until replicas have converged


@pytest.fixture(params=["kafka", "redis"])
def service(request, tmp_path):
    """A service that keeps what it has acknowledged, and its URL of a store."""
    if request.param == "redis":
        server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
        url = f"redis://{server.address}/killed?timeout=2"
    else:
        server = KafkaBroker(tmp_path, request.getfixturevalue("s3_server"))
        url = f"kafka://{server.address}/killed-{uuid.uuid4().hex}?timeout=3"
    with server:
        yield server, url


def check(folder, newest, last_step):
    """Compares the versions in a mirror's folder with what the trainer published.

    Returns:
        The newest version and its step, which never become less.
    """
    target = FileTarget(str(folder))
    steps, last_listed = [], None
    while not steps or steps[-1][0] != last_listed:
        # The mirror may remove listed versions meanwhile, the newest first: then there are others.
        steps, listed = [], target.versions()
        if not listed:
            break
        last_listed = listed[-1]
        for version in listed:
            try:
                steps.append((version, check_version(target, version)))
            except (FileNotFoundError, records.DamagedVersion):
                assert version not in target.versions()
    assert steps == sorted(steps) and len({version for version, _ in steps}) == len(steps)
    assert [step for _, step in steps] == sorted(step for _, step in steps)
    found = steps[-1] if steps else (0, 0)
    assert found >= (newest, last_step)
    return found


def check_version(target, version):
    """Compares a version with what the trainer published; returns its step."""
    record = records.decode(target.record(version), "COMMIT")
    for file in record.files:
        if file.kind == records.VARIABLES:
            path = target.path(version, file.path)
            found = variables_file.decode(path, file, functools.partial(target.open, path))
            np.testing.assert_array_equal(found["weights"].values, weights_at(record.step))
        elif file.path == "saved_model.pb":
            with open(f"{target.base_path(version)}/{file.path}", "rb") as opened:
                assert opened.read() == graph_at(record.step)
    return record.step


def run_kills(service, tmp_path, num_kills):
    """Kills each of the processes so often; returns the newest version."""
    server, url = service
    draw = random.Random(SEED)
    folders = [tmp_path / f"mirror-{number}" for number in range(3)]
    trainer = Killed(train, url, tmp_path)
    mirrors = [Killed(mirror, url, folder) for folder in folders]
    victims = [trainer, server, *mirrors] * num_kills
    draw.shuffle(victims)
    seen = dict.fromkeys(folders, (0, 0))
    try:
        for victim in victims:
            time.sleep(draw.uniform(0.0, 0.5))
            victim.stop()
            time.sleep(draw.uniform(0.0, 0.2))
            for folder in folders:
                seen[folder] = check(folder, *seen[folder])
            victim.start()
        # Left alone, the trainer publishes a base and deltas, and the mirrors follow.
        enough = max(newest for newest, _ in seen.values()) + DELTAS
        wait_until(lambda: newest_of(url) > enough)
    finally:
        trainer.stop()
    newest = newest_of(url)
    wait_until(lambda: [FileTarget(str(folder)).newest() for folder in folders] == 3 * [newest])
    for one in mirrors:
        one.stop()
    first = bytes_of(FileTarget(str(folders[0])), newest)
    for folder in folders:
        check(folder, *seen[folder])
        assert bytes_of(FileTarget(str(folder)), newest) == first
    return newest


def newest_of(url):
    """The newest version of a store; 0 while it does not answer."""
    with contextlib.closing(open_store(url)) as store, contextlib.suppress(TargetError):
        return store.newest()
    return 0


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "replicas did not converge"
        time.sleep(0.05)


@pytest.mark.slow
def test_replicas_survive_kills_of_everything(service, tmp_path):
    # Given a trainer, a service and three mirrors, When each is killed once at a random instant,
    # Then versions are whole and in order, and the mirrors end at the same one, to the bit
    assert run_kills(service, tmp_path, 1) > DELTAS


@pytest.mark.soak
def test_replicas_survive_many_kills_of_everything(service, tmp_path):
    assert run_kills(service, tmp_path, 200) > 200
