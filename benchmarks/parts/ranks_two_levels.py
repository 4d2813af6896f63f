"""The step of ranks on two hosts whose rows cross between hosts once a rank (`one`), or once a host
(`two`): hosts are namespaces of this machine, joined by the relay of tests/hosts. Needs root.

A step looks up 4 tables of dim 32, 4 ids by Zipf's law for each of 2,048 samples a rank, and trains
them by Adagrad. `one` and `two` take blocks of steps in turn in one job; milliseconds are rank 0's
medians, megabytes what all ranks send to the other host in a step, `overlap` how often the ranks of
a host ask for a row of the other one, and `chosen` the placement that `ge.place_tables` takes.

    python benchmarks/bench_ranks.py two_levels [--hosts aabb aaaabbbb] [--rates 0 1000 200]
                                                [--table-rows 2000 20000 200000] [--alpha 1.05]
                                                [--delay 1] [--rounds 3]
"""

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

NUM_TABLES, DIM, BATCH_SIZE, IDS_OF_SAMPLE = 4, 32, 2048, 4
PLACEMENTS = {"one": "distributed", "two": "distributed:two_levels"}
LABELS = {"one": "one level", "two": "two levels"}
WARM_UP, STEPS_OF_BLOCK = 2, 5
TIMEOUT = 300  # seconds


def features_of(kind, table_rows, placement):
    import group_embedding as ge

    tables = [
        ge.TableConfig(f"{kind}_{t}", table_rows, DIM, placement=placement)
        for t in range(NUM_TABLES)
    ]
    return [ge.FeatureConfig(f"{t}", table) for t, table in enumerate(tables)]


def make_step(kind, table_rows):
    import tensorflow as tf

    import group_embedding as ge

    features = features_of(kind, table_rows, PLACEMENTS[kind])
    layer = ge.layers.GroupEmbedding(features, concat=True)
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @tf.function(reduce_retracing=True)
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(layer(batch)))
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step


def draw(rank, number, table_rows, alpha):
    """A batch of a rank: {feature: ids}."""
    generator = np.random.default_rng([rank, number])
    uniform = generator.random([NUM_TABLES, BATCH_SIZE, IDS_OF_SAMPLE])
    ids = ids_from_uniform(uniform, table_rows, alpha, lambda u: np.floor(u).astype(np.int64))
    return {f"{t}": of_table for t, of_table in enumerate(ids)}


def train(table_rows, alpha, num_rounds):
    """Returns {kind: (milliseconds of its steps, bytes that a step sends to the other host)}."""
    import tensorflow as tf

    import group_embedding as ge

    ge.enable_distributed_strategy()
    exchange = ge.exchange.current()
    given = [draw(exchange.rank, number, table_rows, alpha) for number in range(3)]
    batches = [{name: tf.constant(ids) for name, ids in batch.items()} for batch in given]
    steps = {kind: make_step(kind, table_rows) for kind in PLACEMENTS}
    found = {kind: ([], []) for kind in PLACEMENTS}

    def sent_to_other_host():
        hosts, sent, _ = exchange.use()
        return sum(size for host, size in zip(hosts, sent) if host != hosts[exchange.rank])

    for _ in range(num_rounds):
        for kind, step in steps.items():
            for i in range(WARM_UP + STEPS_OF_BLOCK):
                before, begin = sent_to_other_host(), time.perf_counter()
                float(step(batches[i % len(batches)]))
                if i >= WARM_UP:
                    found[kind][0].append(1e3 * (time.perf_counter() - begin))
                    found[kind][1].append(sent_to_other_host() - before)
    return found


def chosen(table_rows, alpha, num_ranks):
    """The placement that the plan of these tables has."""
    import group_embedding as ge

    found = ge.place_tables(
        features_of("planned", table_rows, None),
        batches=[draw(rank, 0, table_rows, alpha) for rank in range(num_ranks)],
        ranks=num_ranks,
        hosts=2,
        dry_run=True,
    )
    return found.tables["planned_0"].placement


def overlap(table_rows, alpha, ranks_of_host):
    """The unique ids of the ranks of the first host which the other has, over those of the host."""
    of_ranks = of_host = 0
    for t in range(NUM_TABLES):
        batches = [draw(rank, 0, table_rows, alpha)[f"{t}"] for rank in range(ranks_of_host)]
        remote = [np.unique(ids[ids % (2 * ranks_of_host) >= ranks_of_host]) for ids in batches]
        of_ranks += sum(map(len, remote))
        of_host += len(np.unique(np.concatenate(remote)))
    return of_ranks / of_host


def measure(bed, starter, folder, options, where, table_rows, rate):
    bed.set_link("a", "b", delay=options.delay, rate=rate)
    given = table_rows, options.alpha, options.rounds
    name = f"{where}_{table_rows}_{rate:g}"
    ranks = Job(bed, starter, where, folder / name, train, given, TIMEOUT).results()
    row = {"hosts": where, "rows": table_rows, "alpha": options.alpha}
    row.update({"delay_ms": options.delay, "mbit": rate})
    row["overlap"] = overlap(table_rows, options.alpha, len(where) // 2)
    for kind in PLACEMENTS:
        row[f"{kind}_ms"] = float(np.median(ranks[0][kind][0]))
        row[f"{kind}_mb"] = sum(float(np.median(rank[kind][1])) for rank in ranks) / 1e6
    row["one_mb / two_mb"] = row["one_mb"] / row["two_mb"]
    row["one_ms / two_ms"] = row["one_ms"] / row["two_ms"]
    row["chosen"] = chosen(table_rows, options.alpha, len(where))
    return row


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys((row["hosts"], row["mbit"]) for row in rows))
    figure, axes = plt.subplots(1, len(cases), figsize=(2 * len(cases) + 1, 3.5), squeeze=False)
    for axis, case in zip(axes[0], cases):
        of_case = [row for row in rows if (row["hosts"], row["mbit"]) == case]
        for k, kind in enumerate(PLACEMENTS):
            places = np.arange(len(of_case)) + k * 0.4
            axis.bar(places, [row[f"{kind}_ms"] for row in of_case], 0.4, label=LABELS[kind])
        labels = [f"{row['overlap']:.2f}" for row in of_case]
        axis.set_xticks(np.arange(len(of_case)) + 0.2, labels, fontsize=8)
        where, mbit = case
        link = f"{mbit:g} Mbit/s" if mbit else "unlimited"
        axis.set_title(f"{len(where) // 2} ranks a host,\n{link}", fontsize=8)
        axis.set_xlabel("overlap", fontsize=8)
    axes[0][0].set_ylabel("ms a step")
    axes[0][0].legend(fontsize=7)
    figure.suptitle(f"Rows that cross once a rank, and once a host, {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def add_options(parser):
    parser.add_argument("--hosts", nargs="+", default=["aabb", "aaaabbbb"], help="of the ranks")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0, 1000, 200], help="Mbit/s; 0: unlimited"
    )
    parser.add_argument("--table-rows", type=int, nargs="+", default=[2000, 20_000, 200_000])
    parser.add_argument("--alpha", type=float, default=1.05)
    parser.add_argument("--delay", type=float, default=1, help="of the link, ms one way")
    parser.add_argument("--rounds", type=int, default=3)


def run(options):
    rows = []
    with joined_hosts() as (bed, starter, folder):
        for where in options.hosts:
            for rate in options.rates:
                for table_rows in options.table_rows:
                    rows.append(measure(bed, starter, folder, options, where, table_rows, rate))
    return machine(), rows
