"""Processes that train through TensorFlow, alone or as ranks: their start, their transport, and the
time of their steps."""

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
from group_embedding.ranks.exchange.active import set_current
from group_embedding.ranks.sharding.make_sharded_table import make_table

TRANSPORTS = ("peer_memory", "nccl", "horovod")


def run_on_ranks(num_ranks, command):
    """Runs `command`, with a folder as its last argument, on each rank. Returns what each rank
    wrote there as JSON, in the order of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        horovodrun = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(num_ranks)]
        launched = [*(horovodrun if num_ranks > 1 else []), sys.executable, *command, folder]
        subprocess.run(launched, check=True)
        return [json.loads((Path(folder) / str(n)).read_text()) for n in range(num_ranks)]


def write_of_rank(folder, figures):
    """Passes `figures` to the caller of `run_on_ranks`."""
    (Path(folder) / str(ge.exchange.current().rank)).write_text(json.dumps(figures))


def start_ranks(through):
    """Makes this process a rank of its job, if it was started as one.

    Args:
        through: one of TRANSPORTS: GPUs write rows into each other's memory, NCCL sends them, or
            Horovod's alltoall sends rows and ids, even where ranks share memory.
    """
    if "HOROVOD_RANK" not in os.environ:
        return
    ge.enable_distributed_strategy("collective")
    if through == "horovod":
        from group_embedding.ranks.exchange.horovod import HorovodExchange

        set_current(HorovodExchange())
    current = ge.exchange.current()
    if through == "nccl" and current.nccl_ranks:
        current.nccl_ranks = current.nccl_ranks._replace(use_peer_memory=False)


def transport_of(through):
    """The transport of rows. Without peer memory it is NCCL, and a warning says so."""
    ranks = ge.exchange.current().nccl_ranks
    if ranks is None:
        return "horovod" if through == "horovod" else "host"
    return "peer_memory" if ranks.use_peer_memory else "nccl"


def make_spread_table(rows, dim, name):
    """A variable, sharded over the ranks."""

    def create(shape, initializer):
        return tf.Variable(initializer(shape, tf.float32), name=name)

    initializer = tf.random_uniform_initializer(-0.01, 0.01)
    return make_table((rows, dim), initializer, create)


def device_name():
    """The name of the first GPU; None without a GPU."""
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
    """The median milliseconds per step of rounds of ten steps, after five uncounted steps."""
    step_ms(step, 5)
    return round(statistics.median(step_ms(step, 10) for _ in range(count // 10)), 3)
