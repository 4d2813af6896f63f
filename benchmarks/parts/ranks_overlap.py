"""How far the ranks of a host request the same rows of other hosts: the sum of the ranks' unique
remote ids over the unique remote ids of the host. Where the ratio is 1, an exchange of two levels
(unique ids of the host across, spread within) sends what one level does; where it is 2, half of it.

Each table has ids by Zipf's law, one for each sample, or those of a data set, whose samples are
dealt to the ranks in their order. `workload` sums the 26 tables of MLPerf's DCNv2, of at most four
million rows. Rows belong to ranks by number; hosts are four, so three quarters of the ids are
remote. It needs no network and no TensorFlow.

    python benchmarks/bench_ranks.py overlap [--ranks 2 8] [--samples 2048 32768]
                                             [--rows 100000 10000000] [--alphas 0 1.05 1.2]
                                             [--movielens FOLDER]

FOLDER has MovieLens-100K, as `make train` leaves it in ~/.cache/group_embedding/ml-100k.
"""

import csv
from pathlib import Path

import numpy as np
from report import machine
from workloads import WORKLOADS, ids_from_uniform

NUM_HOSTS = 4


def overlap(ids_of_ranks):
    """(the sum of the ranks' unique remote ids, the unique remote ids of their host)."""
    num_ranks = len(ids_of_ranks)

    def remote(ids):
        unique = np.unique(ids)
        return unique[unique % (num_ranks * NUM_HOSTS) >= num_ranks]  # the host has ranks 0, 1, ...

    of_ranks = [remote(ids) for ids in ids_of_ranks]
    return sum(map(len, of_ranks)), len(np.unique(np.concatenate(of_ranks)))


def zipf(generator, count, rows, alpha):
    return ids_from_uniform(
        generator.random(count), rows, alpha, lambda u: np.floor(u).astype(np.int64)
    )


def of_table(generator, num_ranks, samples, rows, alpha, hotness=1):
    return overlap([zipf(generator, samples * hotness, rows, alpha) for _ in range(num_ranks)])


def of_workload(generator, num_ranks, samples, alpha):
    workload = WORKLOADS["dcnv2_cap4M"]
    parts = [
        of_table(generator, num_ranks, samples, rows, alpha, hotness)
        for rows, hotness in zip(workload.rows, workload.hotness)
    ]
    return tuple(map(sum, zip(*parts)))


def read_movielens(folder):
    """The ids of the columns of MovieLens-100K, in the order of time."""
    with open(Path(folder, "ml-100k.inter")) as file:
        ratings = list(csv.DictReader(file, delimiter="\t"))
    names = {name.partition(":")[0]: name for name in ratings[0]}
    ratings.sort(key=lambda rating: float(rating[names["timestamp"]]))
    return {
        column: np.array([int(rating[names[column]]) for rating in ratings])
        for column in ("user_id", "item_id")
    }


def rows_of(arguments):
    """The table of results."""
    sets = read_movielens(arguments.movielens) if arguments.movielens else {}
    for num_ranks in arguments.ranks:
        for samples in arguments.samples:
            generator = np.random.default_rng([num_ranks, samples])
            shape = num_ranks, samples

            def row(ids, alpha, counts, shape=shape):
                ranks, samples = shape
                ratio = counts[0] / max(1, counts[1])
                columns = {"ids": ids, "alpha": alpha, "ranks": ranks, "samples": samples}
                return {**columns, "of_ranks": counts[0], "of_host": counts[1], "ratio": ratio}

            for alpha in arguments.alphas:
                for rows in arguments.rows:
                    counts = of_table(generator, *shape, rows, alpha)
                    yield row(f"{rows:,} rows", alpha, counts)
                yield row("workload", alpha, of_workload(generator, *shape, alpha))
            for column, ids in sets.items():
                if num_ranks * samples <= len(ids):
                    batches = ids[: num_ranks * samples].reshape(samples, num_ranks).T
                    yield row(f"MovieLens {column}", None, overlap(list(batches)))


def plot(path, about, rows):
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 0.22 * len(rows) + 1.2))
    labels = [
        f"{row['ids']}{'' if row['alpha'] is None else ', alpha ' + format(row['alpha'], 'g')}, "
        f"{row['ranks']} x {row['samples']:,}"
        for row in rows
    ]
    colors = ["tab:red" if row["ratio"] > 1.5 else "lightgray" for row in rows]
    axis.barh(range(len(rows)), [row["ratio"] for row in rows], color=colors)
    axis.axvline(1.5, color="black", linewidth=0.8)
    axis.set_yticks(range(len(rows)), labels, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlabel("unique remote ids of the ranks / those of their host")
    axis.set_title(f"Rows that ranks of a host share, {about['date']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def add_options(parser):
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8], help="of a host")
    parser.add_argument("--samples", type=int, nargs="+", default=[2048, 32768], help="of a rank")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 10_000_000])
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.0, 1.05, 1.2])
    parser.add_argument("--movielens")


def run(options):
    return machine(), list(rows_of(options))
