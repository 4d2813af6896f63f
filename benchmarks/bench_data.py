#!/usr/bin/env python3
"""Rows per second of `ge.data.Reader`, beside other readers of the same files.

Files of Criteo's columns are made first: a label, 13 numbers and 26 categories, from a seed. Text
is
compared with `tf.data.experimental.make_csv_dataset`, Parquet with `pandas.read_parquet` and
`tf.data.Dataset.from_generator`, where pandas can be imported: a tensor for each category, or, as
training takes them, packed ids by `layer.route` in `map` behind both. Each reads for some seconds,
by turns with the other, from its first batch on; medians of the turns.

    python benchmarks/bench_data.py --only "Parquet, packed ids" --threads 16   # rows/s of 16 cores

    python benchmarks/bench_data.py [--rows 400000] [--batch 4096] [--seconds 3] [--turns 5]
                                    [--only FILES] [--threads N] [--json FILE] [--plot FILE.png]
"""

import argparse
import importlib.util
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from report import machine, print_table, write_results

import group_embedding as ge

DENSE, CATEGORIES = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
NAMES = ["label", *DENSE, *CATEGORIES]
FILES = 4


def make_columns(rows, seed=1):
    """Columns by name: numbers and categories by Zipf's law."""
    rng = np.random.default_rng(seed)
    columns = {"label": rng.integers(0, 2, rows)}
    columns |= {name: rng.zipf(1.5, rows) % 10_000 for name in DENSE}
    factor = np.uint64(2654435761)
    for number, name in enumerate(CATEGORIES):
        ids = rng.zipf(1.2, rows).astype(np.uint64) % np.uint64(1_000_000) + np.uint64(number)
        columns[name] = (ids * factor % np.uint64(2**32)).astype(np.int64)
    return columns


def write_files(folder, rows):
    """Writes the rows in every format; some text is made once and repeated."""
    columns = make_columns(rows)
    part = rows // FILES
    text = make_text({name: column[: min(part, 50_000)] for name, column in columns.items()})
    for number in range(FILES):
        rows_of_part = slice(number * part, (number + 1) * part)
        values = {name: column[rows_of_part] for name, column in columns.items()}
        (folder / "tsv").mkdir(exist_ok=True)
        (folder / "tsv" / f"day_{number}.tsv").write_bytes(text * max(part // 50_000, 1))
        (folder / "parquet").mkdir(exist_ok=True)
        numbers = {n: v.astype(np.float32) if n in DENSE else v for n, v in values.items()}
        path = folder / "parquet" / f"day_{number}.parquet"
        pq.write_table(pa.table(numbers), path, row_group_size=50_000)
        write_binary(folder, number, values)


def make_text(columns):
    """Criteo's lines; every seventh number and every eleventh category is missing."""
    cells = [columns["label"].astype(str)]
    cells += [np.where(columns[n] % 7 == 0, "", columns[n].astype(str)) for n in DENSE]
    for name in CATEGORIES:
        words = np.array([f"{value:08x}" for value in columns[name].tolist()])
        cells.append(np.where(columns[name] % 11 == 0, "", words))
    return "".join("\t".join(row) + "\n" for row in zip(*cells)).encode()


def write_binary(folder, number, values):
    (folder / "hugectr").mkdir(exist_ok=True)
    (folder / "torchrec").mkdir(exist_ok=True)
    label = values["label"].astype(np.int32)[:, None]
    dense = np.stack([values[name] for name in DENSE], axis=1).astype(np.int32)
    sparse = np.stack([values[name] for name in CATEGORIES], axis=1).astype(np.uint32)
    raw = np.concatenate([label.view(np.uint32), dense.view(np.uint32), sparse], axis=1)
    raw.tofile(folder / "hugectr" / f"day_{number}.bin")
    arrays = {"labels": label, "dense": np.log1p(dense).astype(np.float32), "sparse": sparse}
    for kind, array in arrays.items():
        np.save(folder / "torchrec" / f"day_{number}_{kind}.npy", array)


def ours(folder, batch, kind, **options):
    form = {"tsv": "criteo"}.get(kind, kind)
    groups = {"dense": DENSE}
    return ge.data.Reader(
        folder / kind, batch, labels="label", format=form, epochs=None, groups=groups, **options
    )


def stock_csv(folder, batch):
    defaults = [tf.float32, *[tf.constant([0.0])] * 13, *[tf.constant([""])] * 26]
    return tf.data.experimental.make_csv_dataset(
        str(folder / "tsv" / "*.tsv"),
        batch,
        column_names=NAMES,
        column_defaults=defaults,
        label_name="label",
        field_delim="\t",
        header=False,
        shuffle=False,
        num_parallel_reads=os.cpu_count(),
    )


def packed_ids(dataset):
    """(packed ids, numbers [batch, 13]), labels: what a training step takes."""
    layer = ge.layers.GroupEmbedding(
        [ge.FeatureConfig(name, ge.TableConfig(name, 1, 16)) for name in CATEGORIES]
    )

    def pack(features, labels):
        ids = {name: features[name] for name in CATEGORIES}
        return (layer.route(ids), features["dense"]), labels

    return dataset.map(pack).prefetch(2)


def by_pandas(folder, batch):
    import pandas

    def generate():
        for path in itertools.cycle(sorted((folder / "parquet").iterdir())):
            frame = pandas.read_parquet(path)
            for begin in range(0, len(frame) - batch + 1, batch):
                rows = frame.iloc[begin : begin + batch]
                features = {name: rows[name].to_numpy() for name in CATEGORIES}
                yield features | {"dense": rows[DENSE].to_numpy()}, rows["label"].to_numpy()

    spec = {name: tf.TensorSpec([None], tf.int64) for name in CATEGORIES}
    spec |= {"dense": tf.TensorSpec([None, len(DENSE)], tf.float32)}
    label = tf.TensorSpec([None], tf.int64)
    return tf.data.Dataset.from_generator(generate, output_signature=(spec, label)).prefetch(2)


def rate(dataset, seconds):
    """(rows per second, nanoseconds of CPU time of a row), from the first batch on."""
    batches = iter(dataset)
    next(batches)
    rows, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        rows += len(next(batches)[1])
    return rows / (time.perf_counter() - start), (time.process_time() - cpu) / rows * 1e9


def run(chosen, folder):
    batch, threads = chosen.batch, {"num_threads": chosen.threads}
    shuffled = {"shuffle_rows": 100_000, "seed": 1, **threads}

    def read(kind, options=threads):
        return lambda: ours(folder, batch, kind, **options)

    def packed(read):
        return lambda *of: packed_ids(read(*of))

    cases = [
        ("Criteo TSV", read("tsv"), "make_csv_dataset", stock_csv),
        ("Parquet", read("parquet"), "pandas", by_pandas),
        ("Parquet, packed ids", packed(read("parquet")), "pandas", packed(by_pandas)),
        ("Criteo TSV, shuffled", read("tsv", shuffled), None, None),
        ("Parquet, shuffled", read("parquet", shuffled), None, None),
        ("HugeCTR Raw", read("hugectr"), None, None),
        ("TorchRec arrays", read("torchrec"), None, None),
    ]
    has_pandas = importlib.util.find_spec("pandas") is not None
    for name, reader, other_name, other in cases:
        if chosen.only and name not in chosen.only:
            continue
        if other_name == "pandas" and not has_pandas:
            other_name = other = None
        yield compare(chosen, folder, name, reader, other_name, other)


def compare(chosen, folder, name, reader, other_name, other):
    """A row of the table: both read by turns."""
    rates, others = [], []
    for _ in range(chosen.turns):
        rates.append(rate(reader(), chosen.seconds))
        if other:
            others.append(rate(other(folder, chosen.batch), chosen.seconds))
    (speeds, cpu), row = zip(*rates), {}
    if others:
        their_speeds, their_cpu = zip(*others)
        row = {
            "its rows/s": round(statistics.median(their_speeds)),
            "its CPU ns": round(statistics.median(their_cpu)),
            "ratio": round(statistics.median(a / b for a, b in zip(speeds, their_speeds)), 2),
            "CPU ratio": round(statistics.median(b / a for a, b in zip(cpu, their_cpu)), 2),
        }
    return {
        "files": name,
        "rows/s": round(statistics.median(speeds)),
        "least": round(min(speeds)),
        "most": round(max(speeds)),
        "CPU ns": round(statistics.median(cpu)),
        "beside": other_name,
        **dict.fromkeys(("its rows/s", "its CPU ns", "ratio", "CPU ratio")),
        **row,
        "load": round(os.getloadavg()[0], 1),
    }


def plot(path, about, rows):
    """Bars of rows per second."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.6 * len(rows)), layout="constrained")
    at = np.arange(len(rows))
    axes.barh(at - 0.2, [row["rows/s"] for row in rows], 0.4, color="#2a6fbb", label="ge.data")
    others = [row["its rows/s"] or 0 for row in rows]
    axes.barh(at + 0.2, others, 0.4, color="#999999", label="make_csv_dataset, pandas")
    for i, row in enumerate(rows):
        if row["ratio"]:
            axes.text(row["rows/s"], i - 0.2, f" {row['ratio']:.1f}x", va="center", fontsize=9)
    axes.set_yticks(at, [row["files"] for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="rows/s, of a label, 13 numbers and 26 categories")
    axes.legend(fontsize=8)
    figure.suptitle(f"batches of {about['batch']:,}, {about['cores']} cores, {about['date']}")
    figure.savefig(path, dpi=100)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", action="append", help="a name of the table's first column")
    parser.add_argument("--threads", type=int, help="of the reader (default: cores, at most 8)")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    return parser.parse_args()


def main():
    chosen, rows = parse_arguments(), []
    about = machine() | {"tensorflow": tf.__version__, "pyarrow": pa.__version__}
    for name in ("rows", "batch", "seconds", "turns"):
        about[name] = getattr(chosen, name)
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), chosen.rows)
        for row in run(chosen, Path(folder)):
            print(row, flush=True)
            rows.append(row)
    print_table(rows)
    write_results(chosen, about, rows, plot)


if __name__ == "__main__":
    main()
