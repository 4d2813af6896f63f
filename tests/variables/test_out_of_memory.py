"""Tables in a process that may take no more memory: an error each time, and nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.session.tiers import by_day

# In each round an op of a table gets a little more memory than in the one before, too little in the
# first rounds. Whatever becomes of it, the table then has the keys that it had, and works.
PROGRAM = """
import gc, resource, sys
import numpy as np, tensorflow as tf
import group_embedding as ge

name, storage = sys.argv[1:]
FEW, MANY, DIM = 500, 300_000, 4
type_ = ge.StorageType[storage]
sizes = None if type_ == ge.StorageType.DRAM else [2 * MANY * 64]  # two rounds of keys fit
filters = {
    "train_counted": ge.CounterFilter(2),
    "train_bloom": ge.CBFFilter(2, 10**6, 0.1, tf.uint8),
}
table = ge.get_embedding_variable(
    "user", DIM, initializer=tf.ones_initializer(),
    ev_option=ge.EmbeddingVariableOption(
        init_option=ge.InitializerOption(default_value_dim=1), filter_option=filters.get(name),
        storage_option=ge.StorageOption(type_, storage_size=sizes)))
optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.5))
few = np.arange(FEW)
rows = np.repeat(few[:, None], DIM, 1).astype(np.float32)
counter = 0

def new_keys():
    global counter
    counter += 1
    return tf.constant(np.arange(MANY) + counter * 10**9)

def train(keys):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(ge.group_embedding_lookup([table], [keys])[0])
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])

many_rows = tf.zeros([MANY, DIM])
ops = {
    "insert": lambda keys: table.insert(keys, many_rows),
    "read": lambda keys: table.sparse_read(tf.tile(keys, [10])),
    "train": train,
    "train_counted": train,
    "train_bloom": train,
    "erase": lambda keys: (table.insert(keys[:2000], many_rows[:2000]), table.erase(keys)),
}
op = ops[name]

def check():
    gc.collect()
    np.testing.assert_array_equal(table.sparse_read(tf.constant(few)), rows)
    found = table.export()
    kept = found.keys.numpy() < FEW
    np.testing.assert_array_equal(found.keys.numpy()[kept], few)
    np.testing.assert_array_equal(found.values.numpy()[kept], rows)
    assert int(table.total_count()) == len(found.keys)
    assert len(np.unique(found.keys)) == len(found.keys)

def taken():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

table.insert(few, rows)
train(tf.constant([FEW], tf.int64))  # makes slots
check()
errors = 0
for megabytes in [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]:
    keys = new_keys()
    resource.setrlimit(resource.RLIMIT_AS, (taken() + (megabytes << 20), resource.RLIM_INFINITY))
    try:
        op(keys)
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        errors += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check()
keys = tf.constant(np.arange(1000) + 10**13)
train(keys), train(keys), train(keys)
found = table.export()
assert (found.keys.numpy() >= 10**13).sum() == 1000
print("errors", errors)
"""


OPS = ["insert", "read", "train", "train_counted", "train_bloom", "erase"]
# Each takes ten seconds: one of each storage runs in `make test-all`.
CASES = [(op, storage) for storage in ("DRAM", "DRAM_SSDHASH") for op in OPS]
RARE = set(CASES) - {("train", "DRAM")}


@pytest.mark.parametrize("op, storage", by_day(CASES, (), RARE))
def test_memory_that_runs_out_is_an_error(op, storage):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, op, storage],
        # CUDA ends where addresses are limited, and the allocator of oneDNN tries for ten seconds.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
    )
    # A process that is ended has a negative code.
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    # Erasing, and counting in a Bloom filter, may find all the memory that they need at hand.
    assert int(done.stdout.split()[-1]) > 0 or op in ("erase", "train_bloom")


LIMITED = """
import gc, os, resource, sys
import numpy as np, tensorflow as tf
import group_embedding as ge

MEGABYTES, DIM, BATCH = 600, 16, 20_000
optimizers = {}

def train(table, keys):
    if table.name not in optimizers:
        optimizers[table.name] = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.5))
    optimizer = optimizers[table.name]
    with tf.GradientTape() as tape:
        (rows,) = ge.lookup([table], [tf.constant(keys)])
        loss = tf.reduce_sum(rows)
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    return rows.numpy()

def make(name):
    return ge.keyed_table(name, DIM, initializer=tf.ones_initializer(), num_initial_rows=1)

for step in range(3):  # so that threads and their memory are there
    train(warm := make(f"warm_{step}"), np.arange(BATCH))
del warm
optimizers.clear()
gc.collect()  # what a table has reserved is far more than the limit

def taken():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

assert taken() < 32 << 30, taken()
limit = taken() + (MEGABYTES << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
tables = [make("user"), make("item")]
error = None
for step in range(4 * (MEGABYTES << 20) // (2 * BATCH * 2 * 4 * DIM)):  # rows of four limits
    try:
        for table in tables:
            train(table, np.arange(BATCH) + step * BATCH)
    except tf.errors.ResourceExhaustedError as raised:
        error = str(raised)
        break
print(error.replace(chr(10), " "), flush=True)
num_keys = [int(table.total_count()) for table in tables]
row_bytes = 2 * 4 * DIM + 16  # with its slot and what is kept of it
print(sum(num_keys) * row_bytes / (MEGABYTES << 20), flush=True)
for table in tables:  # whole, trains known keys, and saves, for the first time
    before = train(table, np.arange(100))
    assert (train(table, np.arange(100)) < before).all()
path = tf.train.Checkpoint(tables=tables).save(sys.argv[1] + "/save")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = [make("user_again"), make("item_again")]
tf.train.Checkpoint(tables=again).restore(path)
for table, copy in zip(tables, again):
    found, kept = table.export(), copy.export()
    assert len(np.unique(found.keys)) == len(found.keys) == int(table.total_count())
    np.testing.assert_array_equal(found.keys, kept.keys)
    np.testing.assert_array_equal(found.values, kept.values)
print("whole", flush=True)
"""


@pytest.mark.slow
def test_a_table_under_a_limit_uses_it_and_says_what_it_lacks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-3000:])
    error, share, whole = done.stdout.splitlines()[-3:]
    assert "table 'user'" in error or "table 'item'" in error
    assert "it wants" in error and "bytes are left" in error and "RLIMIT_AS" in error
    assert float(share) > 0.5  # rows and slots; indexes, batches and threads have the rest
    assert whole == "whole"


# Two tables take new keys until no memory is left to them. Arguments: a control group, a folder.
IN_GROUP = """
import os, sys
import numpy as np, tensorflow as tf
import group_embedding as ge

group, folder = sys.argv[1:]
tables = [
    ge.keyed_table(name, 16, initializer=tf.ones_initializer(), num_initial_rows=1)
    for name in ("user", "item")]
optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.5))

def train(keys):
    with tf.GradientTape() as tape:
        rows = ge.lookup(tables, [tf.constant(keys)] * 2)
        loss = tf.add_n([tf.reduce_sum(of) for of in rows])
    optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
    return [of.numpy() for of in rows]

train(np.arange(10_000))
tf.train.Checkpoint(tables=tables).save(folder + "/before")  # loads what saves need
with open(group + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
try:
    for step in range(1, 1000):
        train(np.arange(10_000) + 10_000 * step)
except tf.errors.ResourceExhaustedError as error:
    print(str(error))
before, after = train(np.arange(10_000)), train(np.arange(10_000))
assert all((one > other).all() for one, other in zip(before, after))
path = tf.train.Checkpoint(tables=tables).save(folder + "/save")
print("saved", *[int(table.total_count()) for table in tables], flush=True)
"""
MEGABYTES = 300  # of the control group
GROUPS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}


@pytest.fixture
def group():
    """The folder of a control group that may take MEGABYTES."""
    for folder, limit in GROUPS.items():
        path = Path(folder) / f"group_embedding_{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            if (path / limit).exists():
                (path / limit).write_text(str(MEGABYTES << 20))
                yield path
                return
        except OSError:
            continue
        finally:
            path.rmdir()
    pytest.skip("no control group of memory can be made here")


def test_the_kernel_ends_no_process_whose_control_group_has_no_memory_for_a_table(group, tmp_path):
    # Given a process in a control group
    command = [sys.executable, "-c", IN_GROUP, str(group), str(tmp_path)]

    # When two tables of it take keys until one has no memory for more
    run = subprocess.run(command, capture_output=True, text=True)

    # Then an error says so, and both train the keys that they have, and are saved
    assert run.returncode == 0, run.stderr[-2000:]
    error, saved = run.stdout.strip().splitlines()[-2:]
    assert "table 'user' is full" in error or "table 'item' is full" in error, error
    assert "bytes are left of the limit of the control group (raise its memory." in error
    word, *counts = saved.split()
    assert word == "saved" and min(map(int, counts)) > 100_000


DISK = """
import os, resource, sys
import tensorflow as tf
import group_embedding as ge

options = {"tiers": ["dram", "disk"], "tier_bytes": [1 << 20], "disk_folder": sys.argv[1]}
tf.ones([2]).numpy()  # so that TensorFlow has started
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (300 << 20), resource.RLIM_INFINITY))
for name in ("users", "items"):
    try:
        ge.keyed_table(name, 8, initializer=tf.ones_initializer(), **options)
    except tf.errors.ResourceExhaustedError as error:
        print(error.message)
"""


def test_a_disk_tier_says_that_it_has_no_addresses(tmp_path):
    # Given a process with little address space, When it makes two tables with a disk
    done = subprocess.run(
        [sys.executable, "-c", DISK, str(tmp_path)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
    )
    # Then each error names the table, the bytes that RocksDB wants and that are left, and a remedy
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    for name, error in zip(("users", "items"), done.stdout.strip().splitlines(), strict=True):
        assert f"table '{name}': its disk tier wants 671088640 bytes" in error
        assert "are left of the limit of address space (raise RLIMIT_AS" in error
