"""The part of bench_serving.py about rows in int8: what they cost, and what they save."""

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from serving_models import Features

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import online_learning

from dlrm.fetch import fetch_movielens
from group_embedding.serving import InferenceSession

FORMATS = (None, "bfloat16", "int8", "fp8")
LAST = 0.1  # the share of ratings that AUC is of
EPOCHS = 4
IDS, DIM, SAMPLES = 20, 64, 4096


def run_int8(options, client, folder):
    del client
    quality = auc_of_formats(options, folder)
    times = times_of_formats(options, folder)
    for name in FORMATS:
        row = {"part": "int8", "rows in": name or "float32", "AUC": round(quality[name], 5)}
        row["AUC - float32's"] = round(quality[name] - quality[None], 5)
        yield row | times[name]


def auc_of_formats(options, folder):
    """{format: AUC of the last ratings}, of one model, trained on those before."""
    ids, labels = online_learning.read_stream(options.data or fetch_movielens())
    first = int(len(labels) * (1 - LAST))
    model = online_learning.make_model()
    inputs = {name: value[:, None] for name, value in ids.items()}
    trained = {name: value[:first] for name, value in inputs.items()}
    model.fit(trained, labels[:first], online_learning.BATCH, EPOCHS, verbose=0)
    tf.saved_model.save(model, str(folder / "ml"), online_learning.signature_of(model))
    asked = {name: value[first:] for name, value in inputs.items()}
    found = {}
    for name in FORMATS:
        with InferenceSession(folder / "ml", quantize=name) as session:
            found[name] = online_learning.auc(labels[first:], session.predict(asked)["score"])
    return found


def times_of_formats(options, folder):
    """{format: figures of lookups in one keyed table, at random}: milliseconds by turns."""
    model = Features(1, IDS, options.rows, DIM, keyed=True)
    model.export(folder / "lookups")
    del model
    random = np.random.default_rng(5)
    batches = [{"f000": random.integers(0, options.rows, [SAMPLES, IDS])} for _ in range(8)]
    sessions = {name: InferenceSession(folder / "lookups", quantize=name) for name in FORMATS}
    wall, cpu = {name: [] for name in FORMATS}, {name: [] for name in FORMATS}
    for turn in range(10 * options.turns + 1):
        for name, session in sessions.items():
            begin, begin_cpu = time.perf_counter(), time.process_time()
            session.predict(batches[turn % len(batches)])
            if turn > 0:
                wall[name].append(1e3 * (time.perf_counter() - begin))
                cpu[name].append(1e3 * (time.process_time() - begin_cpu))
    rows = {}
    for name, session in sessions.items():
        rows[name] = {
            "ms": round(statistics.median(wall[name]), 2),
            "CPU ms": round(statistics.median(cpu[name]), 2),
            "CPU times": round(median_ratio(cpu[None], cpu[name]), 2),
            "MB": round(session.info()["memory_bytes"] / 1e6, 1),
        }
        session.close()
    return rows


def median_ratio(ours, others):
    return statistics.median(a / b for a, b in zip(ours, others))
