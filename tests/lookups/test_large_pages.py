"""Variables that lookups and updates use are moved into large pages, once."""

import ast
import ctypes
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

# 40 MB: more than the allocator keeps, which could give memory that was moved before.
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


def moved_kb(function, *arguments):
    """How much memory a call moves into large pages."""
    before = large_pages_kb()
    function(*arguments)
    return large_pages_kb() - before


def look_up_twice():
    """Two variables: kB that were moved, and whether rows are what they were."""
    tables = [tf.Variable(tf.random.uniform([_ROWS, _DIM], seed=i)) for i in range(2)]
    expected = [table.numpy()[[1, 70, _ROWS - 1]] for table in tables]
    found = []
    kb = moved_kb(lambda: found.extend(look_up(*tables) for _ in range(2)))
    return kb, all(
        np.array_equal(output, rows) for outputs in found for output, rows in zip(outputs, expected)
    )


def update():
    """Two variables and their slots, in a fused update of a function: kB that were moved."""
    tables = [tf.Variable(tf.random.uniform([_ROWS, _DIM])) for _ in range(2)]
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1))
    optimizer.build(tables)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(output) for output in look_up(*tables)])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))

    return moved_kb(step)


def look_up_a_tensor():
    """A tensor as a table, of which each step may have another: kB that were moved."""
    return moved_kb(look_up, tf.random.uniform([_ROWS, _DIM]))


def in_a_fresh_process(function, **environment):
    """The return value of the function there: elsewhere memory of earlier tests comes and goes."""
    program = (
        "import sys; sys.path.insert(0, 'tests/lookups');"
        f"import test_large_pages as t; print(t.{function.__name__}())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=os.path.join(os.path.dirname(__file__), "..", ".."),
    )
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_first_lookup_moves_variables_and_no_value_changes():
    # when two variables of 40 MB are looked up twice
    moved, are_equal = in_a_fresh_process(look_up_twice)
    # then both are in large pages, and rows are what they were
    assert moved >= 2 * _MOVED_KB
    assert are_equal


@pytest.mark.soak
def test_a_step_moves_the_slots_too():
    # when a step updates two variables, then they and their slots are in large pages
    assert in_a_fresh_process(update) >= 4 * _MOVED_KB


@pytest.mark.soak
def test_a_table_that_is_a_tensor_stays():
    assert in_a_fresh_process(look_up_a_tensor) < 2048


@pytest.mark.soak
def test_the_environment_turns_moves_off():
    # when a process that must leave pages as they are looks variables up, then none is moved
    moved, _ = in_a_fresh_process(look_up_twice, GROUP_EMBEDDING_LARGE_PAGES="0")
    assert moved < 2048
