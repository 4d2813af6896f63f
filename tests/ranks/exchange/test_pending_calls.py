"""Each eager call that waits for other ranks is in the list of calls that the watch over ranks
reads, whatever it goes through, and no longer once it has ended."""

import threading
import time
from pathlib import Path

import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ranks.distributed.strategy import disable_distributed_strategy
from group_embedding.ranks.exchange.active import set_current
from group_embedding.ranks.exchange.gather_strings import gather_text

pytest.importorskip("horovod.tensorflow")
from group_embedding.ranks.exchange.horovod import HorovodExchange  # noqa: E402

IDS = tf.constant([1, 2, 2, 5], tf.int64)
SECONDS = 5  # after which a call that is not listed goes on


class Program:
    """Tables and a dense variable. Each method makes ready on all ranks, and returns the call that
    one of them is late for."""

    def __init__(self, prefix, folder):
        zeros = tf.zeros_initializer()
        self.prefix, self.folder = prefix, folder
        self.tables = [
            ge.get_embedding_variable(f"{prefix}_{name}", dim, initializer=zeros)
            for name, dim in {"user": 2, "item": 4}.items()
        ]
        self.dense = tf.Variable(tf.ones([3]), name=f"{prefix}_dense")
        self.optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.01)))
        self.optimizer.build([*self.tables, self.dense])

    def look_up(self):
        return lambda: ge.group_embedding_lookup(self.tables, [IDS, IDS])

    def differentiate(self):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(rows) for rows in self.look_up()()])
        return lambda: tape.gradient(loss, self.tables)

    def update_dense(self):
        return lambda: self.optimizer.apply_gradients([(tf.ones([3]), self.dense)])

    def save(self):
        own = f"{self.folder}/rank_{self.exchange.rank}/model"
        return lambda: tf.train.Checkpoint(tables=self.tables).save(own)

    def export(self):
        return lambda: self.tables[0].export(gather=True)

    def make_table(self):
        return lambda: ge.get_embedding_variable(f"{self.prefix}_more", 2)

    def average(self):
        return lambda: self.exchange.average([tf.ones([2])], "average")

    def allgather(self):
        return lambda: self.exchange.allgather([tf.ones([2])], "allgather")

    def broadcast(self):
        return lambda: self.exchange.broadcast([tf.ones([2])], "broadcast")

    def barrier(self):
        return lambda: self.exchange.barrier("barrier")

    def gather_text(self):
        return lambda: gather_text(self.exchange, "text", "texts")

    @property
    def exchange(self):
        return ge.exchange.current()


CALLS = [name for name in vars(Program) if not name.startswith("_") and name != "exchange"]


def list_pending_calls(kind, folder):
    """For each call: the descriptions in the list while it waited, and after it had ended."""
    ge.enable_distributed_strategy()
    if kind == "horovod":
        set_current(HorovodExchange())
    program, found = Program(kind, folder), {}
    for name in CALLS:
        call, seen = getattr(program, name)(), Path(folder, f"seen_{name}")
        if program.exchange.rank == 0:
            found[name] = watch(call, program.exchange, seen)
        else:
            wait_for(seen)
            call()
    disable_distributed_strategy()
    return found


def watch(call, exchange, seen):
    listed, ended = [], threading.Event()

    def poll():
        while not listed and not ended.wait(0.002):
            listed.extend(exchange.pending_calls())
        seen.touch()

    poller = threading.Thread(target=poll)
    poller.start()
    call()
    ended.set()
    poller.join()
    return [call.description for call in listed], exchange.pending_calls()


def wait_for(file):
    deadline = time.monotonic() + SECONDS
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.002)


@pytest.mark.parametrize("kind", ["memory", "horovod"])
def test_a_call_that_waits_is_listed(two_ranks, tmp_path, kind):
    found, _ = two_ranks.run(list_pending_calls, kind, str(tmp_path), timeout=150)

    assert list(found) == CALLS
    for name, (during, after) in found.items():
        assert during and all(during), f"{name}: {during}"
        assert after == [], name
    assert any("of a lookup of tables" in what for what in found["look_up"][0])
    assert any("of a lookup of tables" in what for what in found["differentiate"][0])
