"""Variables that lookups and updates use are moved into large pages, once."""

import ctypes
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

# 40 MB: more than the allocator keeps, which would give memory that was moved before.
_ROWS, _DIM = 160 * 1024, 64
_MOVED_KB = 36 * 1024  # at least, wherever the variable begins


def large_pages_kb():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


def moves_memory():
    """Returns whether this system moves memory in use into large pages."""
    size, page = 8 << 20, 2 << 20
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"1" * size)
    begin = -(-ctypes.addressof(ctypes.c_char.from_buffer(memory)) // page) * page
    libc = ctypes.CDLL(None, use_errno=True)
    before = large_pages_kb()
    failed = libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(2 * page), 25)  # MADV_COLLAPSE
    return not failed and large_pages_kb() - before >= 2 * page // 1024


pytestmark = [
    pytest.mark.skipif(
        bool(tf.config.list_physical_devices("GPU")), reason="variables are on the GPU"
    ),
    pytest.mark.skipif(not moves_memory(), reason="this system moves no memory to large pages"),
]


def look_up(*tables):
    ids = [tf.constant([1, 70, _ROWS - 1], tf.int64)] * len(tables)
    return ge.group_embedding_lookup(list(tables), ids)


def test_the_first_lookup_moves_variables_and_no_value_changes():
    # given two variables of 40 MB
    tables = [tf.Variable(tf.random.uniform([_ROWS, _DIM], seed=i)) for i in range(2)]
    expected = [table.numpy()[[1, 70, _ROWS - 1]] for table in tables]
    before = large_pages_kb()
    # when they are looked up twice
    found = [look_up(*tables) for _ in range(2)]
    # then both are in large pages, and rows are what they were
    assert large_pages_kb() - before >= 2 * _MOVED_KB
    for outputs in found:
        for output, rows in zip(outputs, expected):
            np.testing.assert_array_equal(output, rows)


def test_a_step_moves_the_slots_too():
    """The fused update of a function; memory of an earlier test may be in large pages already."""
    # given two variables, and a step that updates them and their slots
    tables = [tf.Variable(tf.random.uniform([_ROWS, _DIM])) for _ in range(2)]
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    optimizer.build(tables)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(output) for output in look_up(*tables)])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    # when it is called
    step()
    # then two tables and two slots are in large pages
    assert large_pages_kb() >= 4 * _MOVED_KB


def test_a_table_that_is_a_tensor_stays():
    # given a tensor as a table, of which each step may have another
    table = tf.random.uniform([_ROWS, _DIM])
    before = large_pages_kb()
    # when it is looked up
    look_up(table)
    # then it is where it was
    assert large_pages_kb() - before < 2048


def test_the_environment_turns_moves_off():
    # given a process that is told to leave pages as they are
    program = (
        "import sys; sys.path.insert(0, 'tests/lookup');"
        "import test_large_pages as t, tensorflow as tf;"
        "table = tf.Variable(tf.random.uniform([t._ROWS, t._DIM])); before = t.large_pages_kb();"
        "t.look_up(table); print('moved', t.large_pages_kb() - before)"
    )
    environment = os.environ | {"GROUP_EMBEDDING_LARGE_PAGES": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # when it looks a variable up
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=os.path.join(os.path.dirname(__file__), "..", ".."),
    )
    # then nothing was moved
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 2048
