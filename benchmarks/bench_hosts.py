#!/usr/bin/env python3
"""The step of ranks on several hosts, by the delay of the link between them: hosts are namespaces
of this machine, joined by the relay of tests/hosts. Needs root.

A step looks up 4 keyed tables of dim 32 in one call, 4 ids for each of 1,024 samples a rank, and
trains them by Adagrad; with `dense`, also a kernel of [128, 64], whose gradient is averaged over
the ranks. Milliseconds are rank 0's, the median of the steps. `round_trips` is half of the longest
chain of packets with data, each of which left after the one before it had arrived, for each step
(see tests/hosts/link.cc). It is counted at 200 ms one way, which is longer than the time in which a
rank sends what it sends at once. `idle_packets` is what the hosts send in a second in which ranks
wait.

    python benchmarks/bench_hosts.py [--hosts aabb] [--delays 0 1 5 20] [--steps 12]
                                     [--before FILE] [--json FILE] [--plot FILE.png]

`--before` is the JSON file of an earlier run, whose figures stand beside.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(_FOLDER), str(_FOLDER.parent / "tests")]  # for the ranks, too

import numpy as np  # noqa: E402
from hosts.bed import Bed, compile_link, why_not  # noqa: E402
from hosts.job import Job  # noqa: E402
from report import machine, print_table, write_results  # noqa: E402
from support.programs.ranks import Starter  # noqa: E402

NUM_TABLES, DIM, NUM_KEYS = 4, 32, 200_000
BATCH_SIZE, IDS_OF_SAMPLE = 1024, 4
WARM_UP = 4  # steps
IDLE_SECONDS = 10
IDLE, COUNT = "idle", "count"
COUNT_DELAY, COUNT_STEPS = 200, 4
TIMEOUT = 900  # seconds


def train(folder, phases, num_steps, dense):
    """Runs the steps of each phase once its file is in `folder`. Returns the milliseconds of each
    step of each phase, {phase: [...]}."""
    import tensorflow as tf

    import group_embedding as ge

    ge.enable_distributed_strategy()
    exchange = ge.exchange.current()
    constant = tf.keras.initializers.Constant(0.1)
    tables = [
        ge.get_embedding_variable(f"table_{t}", DIM, initializer=constant)
        for t in range(NUM_TABLES)
    ]
    kernel = tf.Variable(tf.fill([NUM_TABLES * DIM, 64], 0.1))
    trained = [*tables, kernel] if dense else tables
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @tf.function(reduce_retracing=True)
    def step(ids):
        with tf.GradientTape() as tape:
            vectors = tf.concat(ge.group_embedding_lookup(tables, ids), 1)
            loss = tf.reduce_mean(tf.square(vectors @ kernel))
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    generator = np.random.default_rng(exchange.rank)
    shape = [NUM_TABLES, BATCH_SIZE * IDS_OF_SAMPLE]
    batches = [tf.constant(generator.integers(0, NUM_KEYS, shape)) for _ in range(3)]
    milliseconds = {}
    for phase in phases:
        while not Path(folder, phase).exists():
            time.sleep(0.02)
        milliseconds[phase] = []
        of_phase = {IDLE: 0, COUNT: COUNT_STEPS}.get(phase, num_steps)
        for i in range(of_phase):
            begin = time.perf_counter()
            float(step(tf.unstack(batches[i % len(batches)])))
            milliseconds[phase].append(1e3 * (time.perf_counter() - begin))
        print(f"{phase} is done", flush=True)
    return milliseconds


def measure(bed, starter, folder, arguments, dense):
    """A row for each delay."""
    folder.mkdir()
    phases = ["warm up", *(f"{delay:g} ms" for delay in arguments.delays), COUNT, IDLE]
    args = str(folder), phases, arguments.steps + WARM_UP, dense
    job = Job(bed, starter, arguments.hosts, folder / "job", train, args, TIMEOUT)
    traffic = {}
    for phase, delay in zip(phases, [0, *arguments.delays, COUNT_DELAY, 0]):
        names = sorted(bed.hosts)
        for one in names:
            for other in names[names.index(one) + 1 :]:
                bed.set_link(one, other, delay=delay)
        bed.count()
        if phase == IDLE:
            time.sleep(IDLE_SECONDS)
        else:
            (folder / phase).touch()
            job.wait_until_all_said(f"{phase} is done")
        traffic[phase] = bed.count()
    (folder / IDLE).touch()
    milliseconds = job.results()[0]
    num_steps = arguments.steps + WARM_UP
    return [
        {
            "hosts": arguments.hosts,
            "dense": dense,
            "delay_ms": delay,
            "step_ms": float(np.median(milliseconds[phase][WARM_UP:])),
            "round_trips": traffic[COUNT].crossings / COUNT_STEPS / 2,
            "packets": traffic[phase].packets / num_steps,
            "megabytes": traffic[phase].bytes / num_steps / 1e6,
            "idle_packets": traffic[IDLE].packets / IDLE_SECONDS,
        }
        for delay, phase in zip(arguments.delays, phases[1:])
    ]


def add_before(path, rows):
    """Adds the step of an earlier run to each row, and its round trips."""
    before = json.loads(Path(path).read_text())["rows"]
    cases = ("hosts", "dense", "delay_ms")
    found = {tuple(row[name] for name in cases): row for row in before}
    for row in rows:
        earlier = found.get(tuple(row[name] for name in cases), {})
        for name in ("step_ms", "round_trips", "packets", "idle_packets"):
            row[f"{name}_before"] = earlier.get(name)


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4))
    lines = [
        ("step_ms_before", "by Horovod's alltoall", "lightgray", "tab:gray"),
        ("step_ms", "by messages", "tab:red", "tab:blue"),
    ]
    for name, label, *colors in lines:
        for dense, color in zip([False, True], colors):
            of_line = [row for row in rows if row["dense"] == dense and row.get(name)]
            if not of_line:
                continue
            what = "tables and a dense kernel" if dense else "tables alone"
            delays = [row["delay_ms"] for row in of_line]
            steps = [row[name] for row in of_line]
            axis.plot(delays, steps, "o-", color=color, label=f"{label}, {what}")
            axis.annotate(f" {steps[-1]:.0f}", (delays[-1], steps[-1]), fontsize=8)
    axis.set_xlabel("delay of the link, ms one way")
    axis.set_ylabel("ms a step")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)
    ranks = len(rows[0]["hosts"])
    axis.set_title(f"{ranks} ranks on hosts {rows[0]['hosts']}, {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--hosts", default="ab", help="the host of each rank, such as aabb")
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 1, 5, 20])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--before")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    arguments = parser.parse_args()
    if why_not():
        parser.error(why_not())
    starter = Starter()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        compile_link(folder / "link")
        for dense in (False, True):
            with Bed(folder / f"bed_{dense}", folder / "link", len(set(arguments.hosts))) as bed:
                rows += measure(bed, starter, folder / f"job_{dense}", arguments, dense)
    starter.close()
    if arguments.before:
        add_before(arguments.before, rows)
    print_table(rows)
    write_results(arguments, machine(), rows, plot)


if __name__ == "__main__":
    main()
