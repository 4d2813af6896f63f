#!/usr/bin/env python3
"""How long it takes until rows that a trainer published are served, by where it publishes them.

A keyed table is filled and published; a server follows each target. Between two publishes
`--changed` of the rows are written. By turns, for each target:

* acknowledged s: from the call of `publish` until it returns (median, 99th percentile, longest);
* served s: from the call until the server's status says that the version is available;
* bare s: from the call until the bytes of the same rows are written to a file and synced: what
  the disk alone takes.

    python benchmarks/bench_publish_served.py [--targets file kafka redis s3] [--rows 1000000]
        [--changed 100000] [--dim 16] [--publishes 100] [--json FILE]

The services are those of the tests, on this machine's loopback: tansu in memory, Redis in memory,
SeaweedFS. They share its cores with the trainer and the servers.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # they have the services
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf
from report import machine, print_table, write_json

import group_embedding as ge
from group_embedding.serving.server import ServerProcess

TARGETS = ("file", "kafka", "redis", "s3")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, default=100_000, help="rows between two publishes")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--publishes", type=int, default=100, help="to each target")
    parser.add_argument("--folder", type=Path, help="for files; a temporary one without it")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


class Model(tf.Module):
    def __init__(self, dim):
        super().__init__()
        self.table = ge.get_embedding_variable("served", embedding_dim=dim)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="id")])
    def serve(self, id):
        (vectors,) = ge.group_embedding_lookup([self.table], [id])
        return {"sum": tf.reduce_sum(vectors, 1)}

    def write(self, keys, value):
        self.table.insert(keys, np.full([len(keys), self.table.shape[1]], value, np.float32))


@contextlib.contextmanager
def url_of(target, folder):
    """The URL of an empty target, while its service runs."""
    from kafka_broker import KafkaBroker
    from redis_server import RedisServer
    from s3_server import S3Server

    folder.mkdir()
    if target == "file":
        yield f"file://{folder}"
    elif target == "kafka":
        with KafkaBroker(folder) as broker:
            yield f"kafka://{broker.address}/served"
    elif target == "redis":
        with RedisServer(folder) as server:
            yield f"redis://{server.address}/served"
    else:
        server = S3Server(folder)
        try:
            server.start()
            os.environ.update(server.settings["environment"])
            yield f"{server.settings['url']}/served"
        finally:
            server.stop()


def wait_until_served(server, version):
    status = f"http://127.0.0.1:{server.rest_port}/v1/models/m/versions/{version}"
    while True:
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(status) as page:
            states = json.load(page)["model_version_status"]
            if states[0]["state"] == "AVAILABLE":
                return
        time.sleep(0.002)


def write_bare(folder, num_bytes):
    """Seconds to write and sync so many bytes."""
    content = os.urandom(num_bytes)
    begin = time.perf_counter()
    with open(folder / "bare", "wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def measure(target, options, model, folder):
    """A row of figures for one target."""
    random = np.random.default_rng(0)
    acknowledged, served, bare = [], [], []
    with (
        url_of(target, folder) as url,
        ge.serving.Publisher(model, url, signatures=model.serve, base_every=None) as publisher,
    ):
        publisher.publish()
        own = folder / "own"
        tf.saved_model.save(model, str(own), signatures=model.serve)
        with ServerProcess({"m": own}, "--poll-seconds", "0.05", sources={"m": url}) as server:
            wait_until_served(server, 1)
            for turn in range(options.publishes + 1):
                model.write(random.choice(options.rows, options.changed, replace=False), turn)
                begin = time.perf_counter()
                version = publisher.publish()
                at = time.perf_counter() - begin
                wait_until_served(server, version)
                if turn:  # the first one prepares
                    acknowledged.append(at)
                    served.append(time.perf_counter() - begin)
                    bare.append(write_bare(folder, options.changed * (16 + 4 * options.dim)))
    return {
        "target": target,
        "changed rows": options.changed,
        **figures("acknowledged", acknowledged),
        **figures("served", served),
        "bare s": round(statistics.median(bare), 3),
    }


def figures(name, seconds):
    return {
        f"{name} s": round(statistics.median(seconds), 3),
        f"{name} p99 s": round(float(np.percentile(seconds, 99)), 3),
        f"{name} longest s": round(max(seconds), 3),
    }


def main():
    options = parse_arguments()
    model = Model(options.dim)
    for begin in range(0, options.rows, 1 << 20):
        model.write(np.arange(begin, min(begin + (1 << 20), options.rows)), 0.5)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = [measure(t, options, model, Path(folder) / t) for t in options.targets]
    print_table(rows)
    if options.json:
        write_json(options.json, machine(), rows)


if __name__ == "__main__":
    main()
