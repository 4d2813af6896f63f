"""The memory of a process whose table has a budget of bytes, seen from outside."""

import json
import os
import subprocess
import sys

import pytest

MEMORY = """
import json, sys
import numpy as np, tensorflow as tf
import group_embedding as ge

megabytes, tiers, folder = int(sys.argv[1]), sys.argv[2].split("+"), sys.argv[3]
hand_out, keep_share = sys.argv[4], float(sys.argv[5])
filter_options, count = json.loads(sys.argv[6]), int(sys.argv[7])
tiered = {"tier_bytes": [8 << 20], "disk_folder": folder} if "disk" in tiers else {}
table = ge.keyed_table(
    "user", 16, initializer=tf.ones_initializer(), num_initial_rows=1, tiers=tiers,
    max_bytes=megabytes << 20, budget_of="rank", hand_out=hand_out, keep_share=keep_share,
    **tiered, **filter_options)
def trainer(table):
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.5))

    def train(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.lookup([table], [tf.constant(keys)])[0])
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    return train

train = trainer(table)
other = ge.keyed_table("warm", 16, initializer=tf.ones_initializer(), num_initial_rows=1)
warm = trainer(other)
for _ in range(3):
    warm(np.arange(8192))
print("ready", flush=True)
sys.stdin.readline()
train(np.arange(8192))  # makes the optimizer's slot, which takes bytes, too
max_keys = int(table.budget_counts().max_keys)
for begin in range(0, max_keys - 3 * 8192 if count else 0, 8192):
    keys = np.arange(8192) + begin + 10**9
    counts = np.full(8192, count)
    table.insert(keys, tf.ones([8192, 16]), freqs=counts, versions=0 * counts)
times = max(1, filter_options.get("admit_after", 1))
for step in range(5 * max_keys // 8192):
    for _ in range(times):
        train(np.arange(8192) + step * 8192)
counts = table.budget_counts()
print(int(counts.max_keys), int(table.total_count()), flush=True)
print(int(counts.evicted), int(counts.without_place), flush=True)
sys.stdin.readline()
"""


def resident_bytes(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        fields = dict(line.split()[:2] for line in file if line.split()[0].endswith(":"))
    return int(fields["Rss:"]) * 1024


def peak_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


BLOOM = {"admit_after": 2, "expected_keys": 10**6, "counter_bits": 8}


@pytest.mark.slow
@pytest.mark.parametrize(
    "megabytes, tiers, hand_out, keep_share, filter_options, count",
    [
        (64, "dram", "nothing", 0.9, {}, 0),
        (128, "dram", "nothing", 0.9, {}, 0),
        (128, "dram", "rows", 0.5, {}, 0),
        (128, "dram", "nothing", 0.9, {"admit_after": 2}, 0),
        (64, "dram", "nothing", 0.9, BLOOM, 0),
        (128, "dram", "nothing", 0.9, {}, 70_000),
        (40, "dram+disk", "nothing", 0.9, {}, 0),
        (64, "dram+disk", "nothing", 0.9, {}, 0),
    ],
)
def test_memory_seen_from_outside_stays_within_the_bytes(
    megabytes, tiers, hand_out, keep_share, filter_options, count, tmp_path
):
    # Given a table with a budget of bytes, and keys with counts beyond 16 bits if `count` is given
    command = [sys.executable, "-c", MEMORY, str(megabytes), tiers, str(tmp_path)]
    command += [hand_out, str(keep_share), json.dumps(filter_options), str(count)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        before = resident_bytes(process.pid)
        with open(f"/proc/{process.pid}/clear_refs", "w") as file:
            file.write("5")  # the peak starts anew
        # When it is trained with more keys than it has space for
        process.stdin.write("\n")
        process.stdin.flush()
        limit, num_keys = map(int, process.stdout.readline().split())
        evicted, without = map(int, process.stdout.readline().split())
        grown = peak_bytes(process.pid) - before
        process.stdin.write("\n")

    # Then its process has grown by no more than the bytes
    assert without == 0
    assert 0.95 * keep_share * limit <= num_keys <= limit
    assert evicted > 3 * limit
    assert grown <= megabytes << 20
    in_memory = 0.2 if "disk" in tiers else 0.4
    assert grown >= in_memory * (megabytes << 20)  # what is measured is the table
