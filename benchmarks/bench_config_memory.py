"""Trains by a config on a Parquet file larger than its memory, and shows its memory over time.

    python benchmarks/bench_config_memory.py                       # 20 GB in 4 GiB
    python benchmarks/bench_config_memory.py --gigabytes 1 --gibibytes 1.5

The file is made first: rows of 26 categories and 13 numbers, a few bytes each on disk where values
repeat; its size is that of the values in memory. The training runs in a process of its own, to
which the system gives no more memory for data than `--gibibytes` (RLIMIT_DATA), and whose resident
memory is read every second. Row groups are read in a random order, so that a part of the steps
reads from all of the file.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from report import machine, print_table, write_results

CATEGORIES, NUMBERS, GROUP, BATCH = 26, 13, 100_000, 8192
ROW_BYTES = 8 * CATEGORIES + 4 * NUMBERS + 8
DIFFERENT_GROUPS = 8  # row groups with values of their own; later ones repeat them
LINES = 10  # of the table


def write(path, num_rows):
    """Writes the file by row groups: memory holds `DIFFERENT_GROUPS`."""
    import pyarrow.parquet as pq

    tables = [make_group(seed) for seed in range(min(DIFFERENT_GROUPS, -(-num_rows // GROUP)))]
    with pq.ParquetWriter(path, tables[0].schema, compression="none") as writer:
        for number, begin in enumerate(range(0, num_rows, GROUP)):
            table = tables[number % len(tables)].slice(0, min(GROUP, num_rows - begin))
            writer.write_table(table, row_group_size=GROUP)


def make_group(seed):
    import pyarrow as pa

    random = np.random.default_rng(seed)
    columns = {"label": random.integers(0, 2, GROUP)}
    columns |= {f"C{i}": random.zipf(1.5, GROUP) % 1000 for i in range(CATEGORIES)}
    columns |= {f"I{i}": random.integers(0, 20, GROUP).astype(np.float32) for i in range(NUMBERS)}
    return pa.table(columns)


def config(folder, steps):
    features = [{"name": "label", "kind": "label", "dtype": "int64"}]
    features += [
        {"name": f"C{i}", "kind": "categorical", "dtype": "int64", "num_ids": 1000}
        for i in range(CATEGORIES)
    ]
    features += [
        {"name": f"I{i}", "kind": "continuous", "dtype": "float32"} for i in range(NUMBERS)
    ]
    return {
        "data": {"train": "rows.parquet", "batch_size": BATCH, "shuffle_rows": 100_000},
        "schema": {"features": features},
        "model": {"name": "dlrm", "dim": 8, "bottom": [16], "top": [16]},
        "training": {"steps": steps},
        "checkpoints": {"folder": str(folder / "run")},
        "logging": {"every": 50, "tensorboard": False},
    }


def limited(gibibytes):
    """Returns a function that limits the memory that a process may map as data."""
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (int(gibibytes * 2**30),) * 2)


def train(path, gibibytes, samples):
    """Trains; appends (seconds, step, resident GiB) to `samples`; returns the exit status."""
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "2"}
    process = subprocess.Popen(
        [sys.executable, "-m", "group_embedding", "train", str(path)],
        **{"env": environment, "preexec_fn": limited(gibibytes)},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True},
    )
    seen = {"step": 0}
    watch = threading.Thread(target=sample, args=(process, seen, samples), daemon=True)
    watch.start()
    for line in process.stdout:
        print(line, end="", flush=True)
        if found := re.match(r"step (\d+)/", line):
            seen["step"] = int(found[1])
    watch.join()
    return process.wait()


def sample(process, seen, samples):
    """Reads the resident memory of a process every second, until it ends."""
    begin = time.monotonic()
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if resident := re.search(r"VmRSS:\s+(\d+)", status):
            seconds = time.monotonic() - begin
            samples.append((round(seconds, 1), seen["step"], int(resident[1]) / 2**20))
        time.sleep(1)


def table_of(samples):
    """The largest resident memory in each of `LINES` spans of time."""
    spans = [span for span in np.array_split(np.array(samples), LINES) if len(span)]
    return [
        {
            "until s": int(span[-1, 0]),
            "step": int(span[-1, 1]),
            "GB of values read": round(span[-1, 1] * BATCH * ROW_BYTES / 1e9, 2),
            "most GiB": round(float(span[:, 2].max()), 3),
        }
        for span in spans
    ]


def plot(path, about, rows):
    """Resident memory over what was read."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    read, most = ([row[key] for row in rows] for key in ("GB of values read", "most GiB"))
    axes.plot(read, most, marker="o", color="#2a6fbb")
    axes.axhline(about["limit GiB"], color="#999999", linestyle="--", label="limit of data")
    axes.set(xlabel="GB of values read", ylabel="resident GiB, largest", ylim=(0, None))
    axes.legend()
    axes.set_title(f"training on a Parquet file of {about['GB of values']:.1f} GB of values")
    figure.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=20.0, help="of values in the file")
    parser.add_argument("--gibibytes", type=float, default=4.0, help="that training may have")
    parser.add_argument("--steps", type=int, help="at most; by default the whole file")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    chosen = parser.parse_args()
    num_rows = int(chosen.gigabytes * 1e9 / ROW_BYTES)
    with tempfile.TemporaryDirectory() as name:
        folder, samples, begin = Path(name), [], time.monotonic()
        write(folder / "rows.parquet", num_rows)
        written = time.monotonic()
        (folder / "config.json").write_text(json.dumps(config(folder, chosen.steps)))
        status = train(folder / "config.json", chosen.gibibytes, samples)
        about = machine() | {
            **{"rows": num_rows, "GB of values": round(num_rows * ROW_BYTES / 1e9, 2)},
            "GB on disk": round((folder / "rows.parquet").stat().st_size / 1e9, 2),
            **{"limit GiB": chosen.gibibytes, "status": status},
            "peak GiB": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20, 3),
            "seconds to write": round(written - begin),
            "seconds of training": round(time.monotonic() - written),
        }
    rows = table_of(samples)
    print_table(rows)
    print(
        f"{num_rows:,} rows, {about['GB of values']} GB of values, {about['GB on disk']} GB on "
        f"disk: status {status}, {about['seconds of training']} s, "
        f"peak {about['peak GiB']:.2f} GiB, limit of data {chosen.gibibytes} GiB"
    )
    write_results(chosen, about, rows, plot)
    return status


if __name__ == "__main__":
    sys.exit(main())
