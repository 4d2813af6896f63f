"""The step of ranks on several hosts, by the delay of the link between them: hosts are namespaces
of this machine, joined by the relay of tests/hosts. Needs root.

A step looks up 4 keyed tables of dim 32 in one call, 4 ids for each of 1,024 samples a rank, and
trains them by Adagrad; with `dense`, also a kernel of [128, 64], whose gradient is averaged over
the ranks. Each delay is that of a job from its start on. Milliseconds are rank 0's, the median of
the steps.

`round_trips` is half of the longest chain of packets with data, each of which left after the one
before it had arrived, for each step (see tests/hosts/link.cc). It is counted in a job of 16 samples
a rank on a link of 100 ms one way, so that all that a rank sends at once leaves before anything
comes back. `idle_packets` is what the hosts send in a second in which the ranks wait.

    python benchmarks/bench_ranks.py hosts [--hosts aabb] [--delays 0 1 5 20] [--steps 12]
                                           [--before FILE]

`--before` is the JSON file of an earlier run, whose figures stand beside.
"""

import json
import sys
import time
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_FOLDER), str(_FOLDER.parent / "tests")]  # for the ranks, too

import numpy as np  # noqa: E402
from hosts.job import Job  # noqa: E402
from hosts_and_ranks import joined_hosts  # noqa: E402
from report import machine  # noqa: E402

NUM_TABLES, DIM, NUM_KEYS = 4, 32, 200_000
BATCH_SIZE, IDS_OF_SAMPLE = 1024, 4
WARM_UP = 8  # steps, in which TCP finds out what the link carries
COUNT_DELAY, COUNT_SAMPLES, COUNT_STEPS = 100, 16, 4
IDLE_SECONDS = 5
TIMEOUT = 300  # seconds


def train(folder, num_samples, num_steps, dense):
    """Warms up, waits for the file `go` in `folder`, and takes steps. Returns the milliseconds of
    each."""
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
    shape = [NUM_TABLES, num_samples * IDS_OF_SAMPLE]
    batches = [tf.constant(generator.integers(0, NUM_KEYS, shape)) for _ in range(3)]
    milliseconds = []
    for i in range(WARM_UP + num_steps):
        if i == WARM_UP:
            print("is warm", flush=True)
            while not Path(folder, "go").exists():
                time.sleep(0.02)
        begin = time.perf_counter()
        float(step(tf.unstack(batches[i % len(batches)])))
        milliseconds.append(1e3 * (time.perf_counter() - begin))
    print("is done", flush=True)
    return milliseconds[WARM_UP:]


class Measured:
    """A job on a link of a delay: `milliseconds` of its steps, and the `Traffic` of these (`steps`)
    and of a while before (`idle`)."""

    def __init__(self, bed, starter, folder, hosts, delay, num_samples, num_steps, dense):
        names = sorted(bed.hosts)
        for one in names:
            for other in names[names.index(one) + 1 :]:
                bed.set_link(one, other, delay=delay)
        folder.mkdir()
        arguments = str(folder), num_samples, num_steps, dense
        job = Job(bed, starter, hosts, folder / "job", train, arguments, TIMEOUT)
        job.wait_until_all_said("is warm")
        time.sleep(0.5)
        bed.count()
        time.sleep(IDLE_SECONDS)
        self.idle = bed.count()
        (folder / "go").touch()
        job.wait_until_all_said("is done")
        self.steps = bed.count()
        self.milliseconds = job.results()[0]


def measure(bed, starter, folder, arguments, dense):
    """A row for each delay."""
    where = bed, starter
    counted = Measured(
        *where,
        folder / f"count_{dense}",
        arguments.hosts,
        COUNT_DELAY,
        COUNT_SAMPLES,
        COUNT_STEPS,
        dense,
    )
    rows = []
    for delay in arguments.delays:
        of_delay = Measured(
            *where,
            folder / f"{delay:g}_{dense}",
            arguments.hosts,
            delay,
            BATCH_SIZE,
            arguments.steps,
            dense,
        )
        rows.append(
            {
                "hosts": arguments.hosts,
                "dense": dense,
                "delay_ms": delay,
                "step_ms": float(np.median(of_delay.milliseconds)),
                "packets": of_delay.steps.packets / arguments.steps,
                "megabytes": of_delay.steps.bytes / arguments.steps / 1e6,
                "round_trips": counted.steps.crossings / COUNT_STEPS / 2,
                "idle_packets": of_delay.idle.packets / IDLE_SECONDS,
            }
        )
    return rows


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


def add_options(parser):
    parser.add_argument("--hosts", default="ab", help="the host of each rank, such as aabb")
    parser.add_argument("--delays", type=float, nargs="+", default=[0, 1, 5, 20])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--before")


def run(options):
    rows = []
    for dense in (False, True):
        with joined_hosts(len(set(options.hosts))) as (bed, starter, folder):
            rows += measure(bed, starter, folder, options, dense)
    if options.before:
        add_before(options.before, rows)
    return machine(), rows
