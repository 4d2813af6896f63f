"""The part of bench_serving.py about the time from a publish until its rows are served, by where
they are published.

A keyed table is filled and published; a server follows each target. Between two publishes
`--changed` of the rows are written. For each of `--targets`, of `--publishes` publishes:

* acknowledged s: from the call of `publish` until it returns (median, 99th percentile, longest);
* served s: from the call until the server's status says that the version is available;
* bare s: from the call until the bytes of the same rows are written to a file and synced: what
  the disk alone takes.

The services are those of the tests, on this machine's loopback: tansu in memory, Redis in memory,
SeaweedFS. They share its cores with the trainer and the servers.
"""

import contextlib
import json
import os
import statistics
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding.serving.server import ServerProcess

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # they have the services

TARGETS = ("file", "kafka", "redis", "s3")


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
    from support.servers.kafka_broker import KafkaBroker
    from support.servers.redis_server import RedisServer
    from support.servers.s3_server import S3Server

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


def run_publish(options, client, folder):
    del client
    model = Model(options.dim)
    for begin in range(0, options.rows, 1 << 20):
        model.write(np.arange(begin, min(begin + (1 << 20), options.rows)), 0.5)
    for target in options.targets:
        yield {"part": "publish", **measure(target, options, model, folder / target)}
