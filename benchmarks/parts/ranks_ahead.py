"""The step of ranks on several hosts whose next batch goes ahead, beside steps that fetch in turn
and steps without tables: hosts are namespaces of this machine, joined by the relay of tests/hosts.
Needs root.

A step looks up 4 keyed tables of dim 32, 4 ids for each of 1,024 samples a rank, trains them by
Adagrad, and averages the gradient of a kernel of [128, 64] over the ranks. Its dense part takes so
many milliseconds, half of them forward: on a `device`, for which the host only waits, as for a GPU;
or on the `host`, which multiplies matrices in one thread.

`dense` is a step without tables: the dense part, and the mean of the kernel's gradients, which
crosses the link twice. `in_turn` fetches ids and rows in the step; `ids_ahead` has the next batch's
ids go ahead; `ahead` rows, too. The four take blocks of calls in turn in one job; milliseconds are
rank 0's, the medians of the calls and their tenth percentiles (`best`).

    python benchmarks/bench_ranks.py ahead [--delays 1 5 20] [--rates 0 1000] [--dense 20]
                                           [--on device host] [--alphas 0 1.05]
                                           [--steps-per-call 1 6] [--rounds 6]
"""

import itertools
import sys
import time
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_FOLDER), str(_FOLDER.parent / "tests")]  # for the ranks, too

import numpy as np  # noqa: E402
from hosts.job import Job  # noqa: E402
from hosts_and_ranks import joined_hosts  # noqa: E402
from report import machine  # noqa: E402
from workloads import ids_from_uniform  # noqa: E402

NUM_TABLES, DIM, NUM_KEYS = 4, 32, 200_000
BATCH_SIZE, IDS_OF_SAMPLE = 1024, 4
KINDS = ("dense", "in_turn", "ids_ahead", "ahead")
WARM_UP, CALLS_OF_BLOCK = 2, 6
TIMEOUT = 300  # seconds


class Device:
    """Computes for half of the milliseconds forward, and for half backward."""

    def __init__(self, milliseconds):
        self._seconds = milliseconds / 2e3

    def __call__(self, vectors):
        import tensorflow as tf

        @tf.custom_gradient
        def compute(x):
            return self._wait(x), self._wait

        return compute(vectors)

    def _wait(self, tensor):
        import tensorflow as tf

        def wait(array):
            time.sleep(self._seconds)
            return array

        return tf.ensure_shape(tf.numpy_function(wait, [tensor], tensor.dtype), tensor.shape)


class Host(Device):
    """Computes on the CPU: multiplies as many matrices as take the time when nothing else runs."""

    def __init__(self, milliseconds):
        import tensorflow as tf

        self._matrix = tf.random.normal([512, 512], stddev=0.01)
        self._times = 1
        function = tf.function(self._wait)
        ones, seconds = tf.ones([1024, 128]), []
        for times in (20, 20, 20):
            self._times = times
            function = tf.function(self._wait)
            function(ones)
            begin = time.perf_counter()
            function(ones)
            seconds.append(time.perf_counter() - begin)
        self._times = max(1, round(20 * milliseconds / 2e3 / min(seconds)))

    def _wait(self, tensor):
        import tensorflow as tf

        product = self._matrix
        for _ in range(self._times):
            product = product @ self._matrix
        return tensor + 0.0 * tf.reduce_sum(product)


def make_steps(kind, compute):
    """A function that takes steps on a batch and those that follow, but for the last, and what it
    takes a first batch as."""
    import tensorflow as tf

    import group_embedding as ge

    exchange = ge.exchange.current()
    constant = tf.keras.initializers.Constant(0.1)
    tables = [
        ge.get_embedding_variable(f"{kind}_{t}", DIM, initializer=constant)
        for t in range(NUM_TABLES if kind != "dense" else 0)
    ]
    kernel = tf.Variable(tf.fill([NUM_TABLES * DIM, 64], 0.1))
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))
    goes_ahead = kind in ("ids_ahead", "ahead")

    def step(ids, next_ids):
        exchange.ahead = kind == "ahead"
        with tf.GradientTape() as tape:
            vectors = tf.ones([BATCH_SIZE * IDS_OF_SAMPLE, NUM_TABLES * DIM])
            if tables:
                vectors = tf.concat(ge.group_embedding_lookup(tables, ids), 1)
                vectors = tf.ensure_shape(vectors, [BATCH_SIZE * IDS_OF_SAMPLE, NUM_TABLES * DIM])
            else:
                vectors = vectors * kernel[0, 0]  # so that it has a gradient
            loss = tf.reduce_mean(tf.square(compute(vectors) @ kernel))
        with tf.control_dependencies([vectors]):  # beside the dense part, not before it
            following = ge.route_ids(tables, next_ids) if goes_ahead else next_ids
        trained = [*tables, kernel]
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss, following

    @tf.function(reduce_retracing=True)
    def steps(batch, following):
        losses = []
        for next_ids in following:
            loss, batch = step(batch, next_ids)
            losses.append(loss)
        return losses, batch

    return steps, (lambda ids: ge.route_ids(tables, ids)) if goes_ahead else (lambda ids: ids)


def train(milliseconds, on, alpha, steps_per_call, num_rounds):
    """Returns {kind: the milliseconds a step, of each call}."""
    import tensorflow as tf

    import group_embedding as ge

    ge.enable_distributed_strategy(ahead=True)
    rank = ge.exchange.current().rank
    generator = np.random.default_rng(rank)

    def draw():
        uniform = generator.random([NUM_TABLES, BATCH_SIZE * IDS_OF_SAMPLE])
        floor = lambda u: np.floor(u).astype(np.int64)  # noqa: E731
        return tf.unstack(tf.constant(ids_from_uniform(uniform, NUM_KEYS, alpha, floor)))

    batches = [draw() for _ in range(5)]
    compute = {"device": Device, "host": Host}[on](milliseconds)
    steps = {kind: make_steps(kind, compute) for kind in KINDS}
    found = {kind: [] for kind in KINDS}
    for _ in range(num_rounds):
        for kind, (take, first) in steps.items():
            coming = itertools.cycle(batches)
            batch = first(next(coming))
            for i in range(WARM_UP + CALLS_OF_BLOCK):
                following = list(itertools.islice(coming, steps_per_call))
                begin = time.perf_counter()
                losses, batch = take(batch, following)
                float(losses[-1])
                if i >= WARM_UP:
                    found[kind].append(1e3 * (time.perf_counter() - begin) / steps_per_call)
    return found


def measure(bed, starter, folder, options, on, alpha, steps_per_call, delay, rate):
    bed.set_link("a", "b", delay=delay, rate=rate)
    name = f"{on}_{alpha:g}_{steps_per_call}_{delay:g}_{rate:g}"
    given = options.dense, on, alpha, steps_per_call, options.rounds
    job = Job(bed, starter, "ab", folder / name, train, given, TIMEOUT)
    found = job.results()[0]
    row = {"on": on, "alpha": alpha, "steps": steps_per_call, "delay_ms": delay, "mbit": rate}
    row.update({f"{kind}_ms": float(np.median(found[kind])) for kind in KINDS})
    row.update({f"{kind}_best": float(np.quantile(found[kind], 0.1)) for kind in KINDS})
    row["ratio_in_turn"] = row["in_turn_ms"] / row["dense_ms"]
    row["ratio_ahead"] = row["ahead_ms"] / row["dense_ms"]
    row["ratio_best"] = row["ahead_best"] / row["dense_best"]
    return row


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4))
    width = 0.8 / len(KINDS)
    for k, kind in enumerate(KINDS):
        places = np.arange(len(rows)) + k * width
        axis.bar(places, [row[f"{kind}_ms"] for row in rows], width, label=kind.replace("_", " "))
    labels = [
        f"{row['on']}\nalpha {row['alpha']:g}\n{row['steps']} a call\n{row['delay_ms']:g} ms"
        f"\n{row['mbit']:g} Mbit/s"
        for row in rows
    ]
    axis.set_xticks(np.arange(len(rows)) + 1.5 * width, labels, fontsize=7)
    axis.set_ylabel("ms a step")
    axis.legend(fontsize=8)
    axis.set_title(f"Steps whose next batch goes ahead, {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def add_options(parser):
    parser.add_argument("--delays", type=float, nargs="+", default=[5])
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0, 1000], help="Mbit/s of the link; 0: unlimited"
    )
    parser.add_argument("--dense", type=float, default=20, help="milliseconds of the dense part")
    parser.add_argument("--on", nargs="+", choices=["device", "host"], default=["device", "host"])
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.0, 1.05])
    parser.add_argument("--steps-per-call", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--congestion-control", default="reno", help="of TCP")
    parser.add_argument("--rounds", type=int, default=6)


def run(options):
    rows = []
    with joined_hosts() as (bed, starter, folder):
        bed.set_congestion_control(options.congestion_control)
        choices = options.on, options.alphas, options.steps_per_call, options.delays
        for choice in itertools.product(*choices, options.rates):
            rows.append(measure(bed, starter, folder, options, *choice))
    return machine(), rows
