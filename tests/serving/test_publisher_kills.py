"""A trainer that is killed at any moment leaves whole versions, each equal to a snapshot."""

import functools
import os
import random
import time

import numpy as np
import pytest
from support.programs.killed_replicas import Killed
from support.programs.publish_and_die import content_at, train
from support.servers.kafka_broker import KafkaBroker

import group_embedding as ge
from group_embedding.serving.versions.deltas import Reader

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))


def kill_at_random(url, draw):
    """Starts a trainer, and kills it after a while, or after a while behind its first version."""
    newest = newest_of(url)
    trainer = Killed(train, url)
    if draw.random() < 0.9:
        end = time.monotonic() + 60
        while newest_of(url) == newest and time.monotonic() < end:
            time.sleep(0.01)
    time.sleep(draw.uniform(0.0, 1.0))
    trainer.stop()


def newest_of(url):
    return opened(url).newest()


@functools.cache
def opened(url):
    return ge.serving.open_target(url)


def check_versions(url, seen):
    """Compares all versions with what the trainer had; returns the newest."""
    reader = Reader(opened(url))
    content, last_step = None, -1
    for version in reader.versions():
        record = reader.record(version)
        # Versions rise with steps, and a version never becomes another one.
        assert (
            record.step > last_step and seen.setdefault(version, record.base_id) == record.base_id
        )
        last_step = record.step
        if content is not None and record.parent == content.record.version:
            content = reader.apply(content, record)
        else:
            content = reader.read(version)
        rows, weights = content_at(record.step)
        assert content.tables["dies"] == rows
        np.testing.assert_array_equal(
            content.variables["weights/.ATTRIBUTES/VARIABLE_VALUE"], weights
        )
    return max(reader.versions(), default=0)


def run_kills(url, num_kills):
    draw, seen, newest = random.Random(SEED), {}, 0
    for _ in range(num_kills):
        kill_at_random(url, draw)
        found = check_versions(url, seen)
        assert found >= newest
        newest = found
    return newest


@pytest.mark.slow
def test_versions_survive_kills(tmp_path):
    assert run_kills(str(tmp_path / "target"), 2) > 1


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["folder", "kafka"])
def test_versions_survive_many_kills(kind, tmp_path):
    if kind == "folder":
        assert run_kills(str(tmp_path / "target"), 200) > 200
        return
    with KafkaBroker(tmp_path) as broker:
        assert run_kills(f"kafka://{broker.address}/dies", 200) > 200
