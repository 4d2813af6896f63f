"""A trainer that is killed at any moment leaves whole versions, each equal to a snapshot."""

import functools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kafka_broker import KafkaBroker

import group_embedding as ge
from group_embedding.serving.deltas import Reader

SCRIPT = Path(__file__).with_name("publish_and_die.py")
SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))


def kill_at_random(target, draw):
    """Starts a trainer, and kills it after a while, or after a while behind its first version."""
    newest = newest_of(target)
    command = [sys.executable, str(SCRIPT), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "ready\n"
        if draw.random() < 0.7:
            end = time.monotonic() + 60
            while newest_of(target) == newest and time.monotonic() < end:
                time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 1.0))
        assert trainer.poll() is None
        trainer.send_signal(signal.SIGKILL)


def newest_of(target):
    return opened(target).newest()


@functools.cache
def opened(target):
    return ge.serving.open_target(target)


def check_versions(target, content_at, seen):
    """Compares all versions with what the trainer had; returns the newest."""
    reader = Reader(opened(target))
    content, last_step = None, -1
    for version in reader.versions():
        record = reader.record(version)
        if content is not None and record.parent == content.record.version:
            content = reader.apply(content, record)
        else:
            content = reader.read(version)
        rows, weights = content_at(record.step)
        assert content.tables["dies"] == rows
        np.testing.assert_array_equal(
            content.variables["weights/.ATTRIBUTES/VARIABLE_VALUE"], weights
        )
        # Versions rise with steps, and a version never becomes another one.
        assert (
            record.step > last_step and seen.setdefault(version, record.base_id) == record.base_id
        )
        last_step = record.step
    return max(reader.versions(), default=0)


def run_kills(target, num_kills):
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from publish_and_die import content_at
    finally:
        sys.path.pop(0)
    draw, seen, newest = random.Random(SEED), {}, 0
    for _ in range(num_kills):
        kill_at_random(target, draw)
        found = check_versions(target, content_at, seen)
        assert found >= newest
        newest = found
    return newest


def test_versions_survive_kills(tmp_path):
    assert run_kills(tmp_path / "target", 2) > 1


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["folder", "kafka"])
def test_versions_survive_many_kills(kind, tmp_path):
    if kind == "folder":
        assert run_kills(tmp_path / "target", 200) > 200
        return
    with KafkaBroker(tmp_path) as broker:
        assert run_kills(f"kafka://{broker.address}/dies", 200) > 200
