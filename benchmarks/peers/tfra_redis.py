"""TFRA with Redis, as the peer of bench_tiers.py, in an environment of its own.

    python benchmarks/peers/tfra_redis.py PORT FOLDER ROWS DIM

Fills a table, and then answers lines of stdin: the path of an .npy file with keys [requests, keys].
For each it prints the seconds of each request, as JSON.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_recommenders_addons import dynamic_embedding as de

BLOCK = 4096


def table(port, folder, dim):
    config = Path(folder) / "tfra.json"
    settings = {
        "redis_connection_mode": 1,  # one server
        "redis_host_ip": ["127.0.0.1"],
        "redis_host_port": [port],
        "redis_user": "default",
        "redis_password": "",
        "storage_slice": 1,
        "keys_sending_size": 1024,
        "model_tag_runtime": "bench",
    }
    config.write_text(json.dumps(settings))
    return de.get_variable(
        "bench",
        key_dtype=tf.int64,
        value_dtype=tf.float32,
        dim=dim,
        devices=["/CPU:0"],
        initializer=0.0,
        kv_creator=de.RedisTableCreator(de.RedisTableConfig(redis_config_abs_dir=str(config))),
    )


def main():
    port, folder, rows, dim = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    variable = table(port, folder, dim)
    for begin in range(0, rows, BLOCK):
        keys = np.arange(begin, min(begin + BLOCK, rows))
        values = np.repeat((keys % 65536)[:, None], dim, 1).astype(np.float32)
        variable.upsert(tf.constant(keys), tf.constant(values))
    lookup = tf.function(variable.lookup, input_signature=[tf.TensorSpec([None], tf.int64)])
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        for keys in np.load(line.strip()):
            start = time.perf_counter()
            found = lookup(tf.constant(keys)).numpy()
            times.append(time.perf_counter() - start)
            assert (found[:, 0] == keys % 65536).all(), "a wrong row"
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
