"""How long training waits while tables of keys are saved, for each method of saving them.

A table is filled, trained step by step, and saved every so many steps. For each method:

* step ms: a training step while nothing is saved (median, slowest);
* wait ms: what a save takes of the training thread before that can go on (median, longest, and of
  the first save, which is not counted): the call that begins it, or all of it; of a step in which
  a hook saves, and of steps beside a `Saver.save` in another thread, what the longest takes more
  than a median step;
* step while written: ms (median, slowest); write s: from the beginning of a save to its end;
* copy ms: a copy, by NumPy on one thread into memory that is in use, of what the table keeps of
  its rows beside values and slots (key, count and version, 24 bytes each) and what its filter
  counted. wait / copy below 1 is the claim.

    python benchmarks/bench_save.py waits [--rows 10000000] [--dim 16] [--tables 1]
                                          [--storage DRAM] [--saves 5]

--storage HBM, HBM_DRAM (a tenth of the rows in HBM) and DRAM_SSDHASH (half of them in memory) are
for machines with a GPU, or tables with a disk. Checkpoints go to a temporary folder in --folder.
"""

import gc
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from parts.save_ways import STEPS_TO_LIVE, ObjectModel, SessionModel, Size
from report import machine, write_json

import group_embedding as ge

WARM_UP = 2  # saves that are not counted: in the second, enable_async traces its copies
ALL_KEYS = "all, none"


def add_options(parser):
    parser.add_argument("--rows", type=int, default=10_000_000, help="of all tables together")
    parser.add_argument("--tables", type=int, default=1)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8192, help="ids of each table in a step")
    parser.add_argument("--steps", type=int, default=20, help="between two saves")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--storage", default="DRAM", choices=[k.name for k in ge.StorageType])
    parser.add_argument("--only", default="", help="a part of the name of a save method or policy")
    parser.add_argument("--folder", type=Path)


def policies(rows_of_each):
    """{which keys a table admits and evicts: its options}."""
    return {
        ALL_KEYS: {},
        "counter filter": {"filter_option": ge.CounterFilter(3)},
        "Bloom filter, uint8": {"filter_option": ge.CBFFilter(3, rows_of_each, 0.01, tf.uint8)},
        "Bloom filter, uint64": {"filter_option": ge.CBFFilter(3, rows_of_each, 0.01)},
        "evicts 1% by steps": {"evict_option": ge.GlobalStepEvict(STEPS_TO_LIVE)},
        "evicts 1% by L2": {"evict_option": ge.L2WeightEvict(1e-6)},
    }


def storage_option(chosen):
    """A table's storage option, with space for its rows, Adagrad's slots and the rows' infos."""
    kind = ge.StorageType[chosen.storage]
    share = {"HBM_DRAM": 0.1, "HBM_DRAM_SSDHASH": 0.1, "DRAM_SSDHASH": 0.5}.get(kind.name)
    if share is None:
        return ge.StorageOption(kind)
    rows = max(share * chosen.rows / chosen.tables, 65536)
    return ge.StorageOption(kind, storage_size=[int(rows * (8 * chosen.dim + 40))])


def metadata_bytes(chosen, options, num_candidates):
    """Bytes that a table keeps for its keys beside values and slots."""
    counted = 16 * num_candidates
    cbf = options.get("filter_option")
    if isinstance(cbf, ge.CBFFilter):
        per_key = -np.log(cbf.false_positive_probability) / np.log(2) ** 2
        counted = int(cbf.max_element_size * per_key) * cbf.counter_type.size * chosen.tables
    return 24 * chosen.rows + counted


def copy_ms(num_bytes):
    source, copy = np.ones(num_bytes // 8, np.int64), np.ones(num_bytes // 8, np.int64)
    return statistics.median(milliseconds(lambda: np.copyto(copy, source)) for _ in range(5))


def milliseconds(run):
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e3


def save_once(name, method, model, prefix, num_steps):
    """Trains, saves, and trains on until the save has ended. Times in ms."""
    plain = [milliseconds(model.step) for _ in range(num_steps)]
    step_ms = statistics.median(plain)
    begin = time.perf_counter()
    end = method(prefix)
    wait = (time.perf_counter() - begin) * 1e3
    writing, ended = [], []
    if end is not None:
        thread = threading.Thread(target=lambda: ended.append(end()))
        thread.start()
        while thread.is_alive():
            writing.append(milliseconds(model.step))
        assert ended, name
    write = (time.perf_counter() - begin) * 1e3
    if name == "CheckpointSaverHook":  # which saved in a step
        wait = max(wait - step_ms, 0.0)
    if name == "Saver.save in a thread":  # for which nobody waits but in steps
        wait = max(max(writing, default=0.0) - step_ms, 0.0)
    return {"plain": plain, "waits": [wait], "writing": writing, "writes": [write]}


def measure(name, model, chosen, folder, evicts):
    """Measures one row of the table."""
    method = getattr(model, model.save_methods[name])
    saves = []
    for turn in range(WARM_UP + chosen.saves):
        if evicts:
            model.insert_stale(turn)
        tell(f"{name}: save {turn + 1} of {WARM_UP + chosen.saves}")
        (folder / "now").mkdir()
        saves.append(save_once(name, method, model, f"{folder}/now/model", chosen.steps))
        shutil.rmtree(folder / "now")
    times = {what: sum((save[what] for save in saves[WARM_UP:]), []) for what in saves[0]}
    median = statistics.median
    return {
        "step ms": median(times["plain"]),
        "slowest step": max(times["plain"]),
        "wait ms": median(times["waits"]),
        "longest wait": max(times["waits"]),
        "first wait": saves[0]["waits"][0],
        "step while written": median(times["writing"]) if times["writing"] else None,
        "slowest then": max(times["writing"], default=None),
        "write s": median(times["writes"]) / 1e3,
    }


def tell(text):
    if sys.stderr.isatty():
        print(f"\r{text:60}\r", end="", file=sys.stderr, flush=True)


def wanted(chosen):
    """Yields (policy, its options, class of model, save methods): one model is made for each."""
    for policy, options in policies(chosen.rows // chosen.tables).items():
        for kind in (SessionModel, ObjectModel):
            methods = [
                w
                for w in kind.save_methods
                if policy == ALL_KEYS or w == "BackgroundSave of a Saver"
            ]
            methods = [w for w in methods if chosen.only in f"{w}, {policy}"]
            if methods:
                yield policy, options, kind, methods


def measure_all(chosen, folder):
    """Yields rows."""
    for policy, options, kind, methods in wanted(chosen):
        option = ge.EmbeddingVariableOption(storage_option=storage_option(chosen), **options)
        size = Size(chosen.rows, chosen.tables, chosen.dim, chosen.batch, option)
        model = kind(size, str(folder / "hook"))
        model.fill(lambda part, policy=policy: tell(f"{policy}: {part:.0%} of {chosen.rows:,}"))
        candidates = model.count_candidates() if "filter_option" in options else 0
        num_bytes = metadata_bytes(chosen, options, candidates)
        copy = copy_ms(num_bytes)
        for name in methods:
            row = {"save method": name, "admits, evicts": policy}
            row |= measure(name, model, chosen, folder, "evict_option" in options)
            row |= {"metadata MB": num_bytes / 1e6, "copy ms": copy}
            row["wait / copy"] = row["wait ms"] / copy
            yield {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}
        model.close()
        del model
        gc.collect()


def plot(path, about, rows):
    """Waits beside the copy, and steps with and without a save."""
    from matplotlib import pyplot

    figure, (waits, steps) = pyplot.subplots(
        1, 2, figsize=(15, 1.5 + 0.42 * len(rows)), sharey=True, layout="constrained"
    )
    at, grey, blue = np.arange(len(rows)), "#999999", "#2a6fbb"
    columns = {name: [row[name] or np.nan for row in rows] for name in rows[0]}
    whole = np.multiply(columns["write s"], 1e3)
    waits.barh(at, whole, color="#dddddd", label="until it is written (median)")
    waits.barh(at, columns["wait ms"], 0.5, color=blue, label="training waits (median)")
    waits.plot(columns["longest wait"], at, "|", color=blue, ms=12, label="longest wait")
    waits.plot(columns["copy ms"], at, "d", color="#c0392b", label="a copy of the metadata")
    waits.set(xscale="log", xlabel="ms", title="a save")
    waits.set_xlim(left=0.5)
    policies = [f"\n{policy}" if policy != ALL_KEYS else "" for policy in columns["admits, evicts"]]
    waits.set_yticks(at, [w + p for w, p in zip(columns["save method"], policies)], fontsize=8)
    waits.invert_yaxis()
    for offset, name, slowest, color, label in (
        (-0.2, "step ms", "slowest step", grey, "nothing is saved"),
        (0.2, "step while written", "slowest then", blue, "a save is written"),
    ):
        steps.barh(at + offset, columns[name], 0.4, color=color, label=f"{label} (median)")
        steps.plot(columns[slowest], at + offset, "|", color=color, ms=10, label="slowest")
    steps.set(xlabel="ms", title="a training step")
    below = -0.5 / (0.42 * len(rows))  # half an inch
    for axis in (waits, steps):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, below), ncols=4, fontsize=8)
    shape = f"{about['rows']:,} rows of dim {about['dim']} with Adagrad's slots"
    figure.suptitle(f"{shape}, {about['storage']}, {about['device']}, {about['date']}")
    figure.savefig(path, dpi=100)


def run(chosen):
    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    about = machine() | {"tensorflow": tf.__version__}
    about["device"] = details.get("device_name", f"{about['cores']} cores")
    for name in ("rows", "tables", "dim", "batch", "saves", "storage"):
        about[name] = getattr(chosen, name)
    rows = []
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for row in measure_all(chosen, Path(folder)):
            print(row, flush=True)
            rows.append(row)
            if chosen.json:  # kept if a later save fails
                write_json(chosen.json, about, rows)
    return about, rows
