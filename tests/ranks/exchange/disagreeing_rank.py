"""A rank that makes another model, or takes other steps, than the others: a program of each rank.

$ horovodrun -np 2 python disagreeing_rank.py FOLDER CASE...

Writes into FOLDER what each case raised, after how many seconds: {case: [error, seconds]}.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import group_embedding as ge
from group_embedding.ranks.distributed.strategy import disable_distributed_strategy
from group_embedding.ranks.exchange.active import set_current
from group_embedding.ranks.exchange.horovod import HorovodExchange
from group_embedding.ranks.sharding.make_sharded_table import make_table

v1 = tf.compat.v1
TIMEOUT = 6.0  # seconds
IDS = list(range(12))
NOT_CAUGHT = ("ids_of_another_rank", "enormous_batch")


def more_lookups(prefix, how, is_other):
    """The other rank looks one table up once more."""
    tables = [_table(f"{prefix}_user", 2), _table(f"{prefix}_item", 4)]
    return _step(how, tables, 2 + is_other)


def more_lookups_of_rows(prefix, how, is_other):
    return _step(how, [_rows(f"{prefix}_user", 2), _rows(f"{prefix}_item", 4)], 2 + is_other)


def another_dim(prefix, how, is_other):
    """A lookup by row number in a table of another dim: the ranks do not compare such tables when
    they are made."""
    return _step(how, [_rows(f"{prefix}_user", 3 if is_other else 2)], 1)


def another_dim_of_keys(prefix, how, is_other):
    return _step(how, [_table(f"{prefix}_user", 3 if is_other else 2)], 1)


def another_combiner(prefix, how, is_other):
    table = _table(f"{prefix}_user", 2)
    ids, combiner = tf.ragged.constant([IDS], dtype=tf.int64), "mean" if is_other else "sum"
    lookup = ge.group_embedding_lookup_sparse
    return _runner(how, lambda: tf.reduce_sum(lookup([table], [ids], combiner)[0]))


def another_dense_variable(prefix, how, is_other):
    """A dense variable with another shape but as many elements, so that gradients could be
    added."""
    variable = tf.Variable(tf.ones([1, 3] if is_other else [3, 1]), name=f"{prefix}_dense")
    optimizer = ge.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        return loss

    optimizer.build([variable])
    return _runner(how, step)


def more_tables(prefix, how, is_other):
    """Horovod carries what is compared where a table is made."""
    step = _step(how, [_table(f"{prefix}_user", 2)], 1)
    if is_other:
        return lambda: _table(f"{prefix}_extra", 5)
    return step


def leaves(prefix, how, is_other):
    """The other rank's program ends before its step."""
    step = _step(how, [_table(f"{prefix}_user", 2)], 1)
    return (lambda: sys.exit(0)) if is_other else step


def ids_of_another_rank(prefix, how, is_other):
    """The other rank has ids of shape [4, 3, 1], the rest [12, 1]."""
    table = _table(f"{prefix}_user", 2)
    ids = tf.reshape(tf.constant(IDS, tf.int64), [4, 3, 1] if is_other else [12, 1])
    ids = tf.RaggedTensor.from_tensor(ids, ragged_rank=ids.shape.rank - 1)
    lookup = ge.group_embedding_lookup_sparse
    return _runner(how, lambda: tf.reduce_sum(lookup([table], [ids], "sum")[0]))


def enormous_batch(prefix, how, is_other):
    """The other rank has 262,144 keys with rows of 4 KB, and each rank 512 MB more memory."""
    table = _table(f"{prefix}_user", 1024)
    ids = tf.range(1 << 18 if is_other else 12, dtype=tf.int64)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 29), resource.RLIM_INFINITY)
    )
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.01)))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.group_embedding_lookup([table], [ids])[0])
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    return _runner(how, step)


def exits(prefix, how, is_other):
    """The other rank ends without a word, as a call of C code may."""
    step = _step(how, [_table(f"{prefix}_user", 2)], 1)
    return (lambda: os._exit(0)) if is_other else step


def over_horovod(prefix, how, is_other):
    """All goes through Horovod, as between hosts."""
    set_current(HorovodExchange())
    return more_lookups(prefix, how, is_other)


def _table(name, dim):
    return ge.get_embedding_variable(name, dim, initializer=tf.zeros_initializer())


def _rows(name, dim):
    def make(shape, initializer):
        return tf.Variable(initializer(shape), name=name)

    return make_table((12, dim), tf.zeros_initializer(), make)


def _step(how, tables, num_lookups):
    """A step of training, which looks the tables up, and the first one again."""
    if how == "graph":
        return _graph_step(tables, num_lookups)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.01)))

    def step():
        with tf.GradientTape() as tape:
            loss = _loss(tables, num_lookups)
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return loss

    return _runner(how, step)


def _graph_step(tables, num_lookups):
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.01)))
    train = optimizer.minimize(_loss(tables, num_lookups))
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    return lambda: [session.run(train) for _ in range(2)]


def _loss(tables, num_lookups):
    ids = tf.constant(IDS, tf.int64)
    rows = ge.group_embedding_lookup(tables, [ids] * len(tables))
    for _ in range(num_lookups - len(tables)):
        rows += ge.group_embedding_lookup(tables[:1], [ids])
    return tf.add_n([tf.reduce_sum(of_table) for of_table in rows])


def _runner(how, step):
    step = tf.function(step) if how == "function" else step

    def run():
        for _ in range(2):
            step()

    return run


def _run(case):
    """The error that a case raised, and its duration; None: no error."""
    name, how = case.split("-")
    ge.enable_distributed_strategy(timeout_seconds=TIMEOUT)
    is_other = ge.exchange.current().rank == 1
    graph = tf.Graph().as_default() if how == "graph" else tf.name_scope(name)
    begin = time.monotonic()
    try:
        with graph:
            globals()[name](f"{name}_{how}", how, is_other)()
        error = None
    except (tf.errors.OpError, ValueError) as raised:
        if is_other and name in NOT_CAUGHT:
            raise
        error = str(raised)
    return [error, time.monotonic() - begin]


if __name__ == "__main__":
    folder, *cases = sys.argv[1:]
    found = {}
    for case in cases:
        found[case] = _run(case)
        rank = ge.exchange.current().rank
        Path(folder, f"found_{rank}").write_text(json.dumps(found))
        if case != cases[-1]:
            disable_distributed_strategy()
