"""Processes that train through TensorFlow, alone or as ranks: how they start, by what their rows
travel, and how long their steps take."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tensorflow as tf

import group_embedding as ge

WAYS = ("rooms", "nccl", "horovod")


def run_on_ranks(num_ranks, command):
    """What each rank of `command`, which gets a folder as its last argument, wrote there as JSON,
    rank 0 first."""
    with tempfile.TemporaryDirectory() as folder:
        horovodrun = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(num_ranks)]
        launched = [*(horovodrun if num_ranks > 1 else []), sys.executable, *command, folder]
        subprocess.run(launched, check=True)
        return [json.loads((Path(folder) / str(n)).read_text()) for n in range(num_ranks)]


def write_of_rank(folder, figures):
    """Gives `figures` to who called `run_on_ranks`."""
    (Path(folder) / str(ge.exchange.current().rank)).write_text(json.dumps(figures))


def start_ranks(through):
    """Makes this process one of a job's ranks, if it is.

    Args:
        through: of WAYS: GPUs write rows into each other's memory, NCCL sends them, or Horovod's
            alltoall does, ids too, even where ranks share memory.
    """
    if "HOROVOD_RANK" not in os.environ:
        return
    ge.enable_distributed_strategy("collective")
    if through == "horovod":
        from group_embedding.exchange.horovod import HorovodExchange

        ge.exchange.set_current(HorovodExchange())
    current = ge.exchange.current()
    if through == "nccl" and current.nccl_ranks:
        current.nccl_ranks = current.nccl_ranks._replace(use_peer_memory=False)


def way_of(through):
    """By what rows travel. (Where rooms cannot be had after all, a warning says so.)"""
    ranks = ge.exchange.current().nccl_ranks
    if ranks is None:
        return "horovod" if through == "horovod" else "host"
    return "rooms" if ranks.use_peer_memory else "nccl"


def make_table(rows, dim, name):
    """A variable, spread over the ranks."""

    def create(shape, initializer):
        return tf.Variable(initializer(shape, tf.float32), name=name)

    initializer = tf.random_uniform_initializer(-0.01, 0.01)
    return ge.exchange.make_table((rows, dim), initializer, create)


def device_name():
    """The first GPU's; None where there is none."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    return tf.config.experimental.get_device_details(gpus[0])["device_name"]


def step_ms(step, count):
    """Milliseconds per step of `count` in a row. `step` returns a scalar, which is waited for."""
    begin = time.perf_counter()
    for _ in range(count):
        result = step()
    float(result)
    return (time.perf_counter() - begin) * 1e3 / count


def median_ms(step, count):
    """That of rounds of ten steps, after five that do not count."""
    step_ms(step, 5)
    return round(statistics.median(step_ms(step, 10) for _ in range(count // 10)), 3)
