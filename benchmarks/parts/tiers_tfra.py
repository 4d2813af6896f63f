"""Rows in Redis below a served model, beside TensorFlow Recommenders Addons (TFRA) with Redis.

Both ask one server on loopback, by turns, for the same keys, each request's keys different ones;
both answer numpy arrays. Medians in milliseconds:

* tier: an InferenceSession whose memory keeps no rows (`insert=off`);
* memory above: one whose memory is for half of the rows, and has the tenth of the table from which
  requests take 90% of their keys;
* TFRA: `lookup` of its dynamic embedding with RedisTableCreator, in a `tf.function`. It has an
  environment of its own, since it needs its own TensorFlow:
  `python3.11 -m venv tfra && tfra/bin/pip install tensorflow-cpu==2.15.1 "numpy<2" "typeguard<3" &&
  tfra/bin/pip install --no-deps tensorflow-recommenders-addons==0.7.2`

    python benchmarks/bench_tiers.py tfra --peer tfra/bin/python [--rows 400000] [--dim 64]
                                          [--turns 15]
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # they have the server

import tensorflow as tf
from report import machine
from support.servers.redis_server import RedisServer

import group_embedding as ge
from group_embedding.serving import InferenceSession

PEER = Path(__file__).resolve().parents[1] / "peers/tfra_redis.py"
COUNTS = (26, 832, 26_000)
BLOCK = 4096


def add_options(parser):
    parser.add_argument("--peer", required=True, help="the python of an environment with TFRA")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--turns", type=int, default=15)


class Model(tf.Module):
    def __init__(self, rows, dim):
        self.table = ge.get_embedding_variable("tfra_bench", dim)
        for begin in range(0, rows, BLOCK):
            keys = np.arange(begin, min(begin + BLOCK, rows))
            values = np.repeat((keys % 65536)[:, None], dim, 1)
            self.table.insert(keys, values.astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="keys")])
    def serve(self, keys):
        return {"rows": ge.group_embedding_lookup([self.table], [keys])[0]}


def ask(session, requests):
    """Seconds of each request."""
    times = []
    for keys in requests:
        start = time.perf_counter()
        found = session.predict({"keys": keys})["rows"]
        times.append(time.perf_counter() - start)
        assert (found[:, 0] == keys % 65536).all(), "a wrong row"
    return times


class Peer:
    """The process of peers/tfra_redis.py."""

    def __init__(self, python, port, folder, options):
        command = [python, str(PEER), port, str(folder), str(options.rows), str(options.dim)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._path = folder / "keys.npy"
        while (line := self._process.stdout.readline().strip()) != "ready":
            if not line and self._process.poll() is not None:
                raise SystemExit("the peer has ended; is TFRA installed there?")

    def ask(self, requests):
        np.save(self._path, requests)
        self._process.stdin.write(f"{self._path}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class Draw:
    """Requests of different keys: 90% of the first tenth of the table, the others asked for the
    first time, as long as there are any."""

    def __init__(self, rows):
        self._rows, self._hot = rows, rows // 10
        self._random = np.random.default_rng(1)
        self._next = 0

    def hot(self):
        return np.arange(self._hot)

    def __call__(self, count):
        in_hot, requests = min(int(0.9 * count), self._hot), []
        for _ in range(20 if count < 1000 else 2):
            often = self._random.choice(self._hot, in_hot, replace=False)
            seldom = self._next + np.arange(count - in_hot)
            self._next += len(seldom)
            seldom = self._hot + seldom % (self._rows - self._hot)
            requests.append(self._random.permutation(np.concatenate([often, seldom])))
        return np.array(requests)


def keys_of_answers(session):
    """(those that were found in memory, all)."""
    (table,) = session.info()["tables"]
    return np.array([table["in_memory"], table["in_memory"] + table["below"]])


def run(options):
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(folder))
        model = Model(options.rows, options.dim)
        tf.saved_model.save(model, str(folder / "1"), signatures=model.serve)
        # A row of a cache takes 32 bytes more: its key.
        half = options.rows // 2 * (4 * options.dim + 32)
        below = f"redis={server.address},timeout=30s"
        tiers = [f"memory=1,{below},insert=off", f"memory={half},{below}"]
        sessions = [stack.enter_context(InferenceSession(folder / "1", tiers=t)) for t in tiers]
        peer = Peer(options.peer, server.address.split(":")[1], folder, options)
        stack.callback(peer.close)
        asked = {"tier": sessions[0], "memory above": sessions[1]}
        asked = {name: lambda r, s=one: ask(s, r) for name, one in asked.items()}
        asked["TFRA"] = peer.ask
        draw = Draw(options.rows)
        sessions[1].predict({"keys": draw.hot()})
        for count in COUNTS:
            times = {name: [] for name in asked}
            before = keys_of_answers(sessions[1])
            for turn in range(-3, options.turns):
                for name, function in asked.items():
                    found = function(draw(count))
                    times[name] += found if turn >= 0 else []
            row = {"keys": count} | {n: round(1e3 * np.median(t), 3) for n, t in times.items()}
            found, all_keys = keys_of_answers(sessions[1]) - before
            row["found in memory"] = round(found / all_keys, 3)
            row["tier / TFRA"] = round(row["tier"] / row["TFRA"], 2)
            row["TFRA / memory above"] = round(row["TFRA"] / row["memory above"], 2)
            rows.append(row)
            print(row, flush=True)
    return {**machine(), "rows": options.rows, "dim": options.dim}, rows
