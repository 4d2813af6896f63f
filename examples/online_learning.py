"""Trains on MovieLens in the order of time while ge-serve answers, and publishes each second.

The stream is ratings in the order in which people gave them. A model that was trained on the first
part of it is served twice: as `updated`, which follows what a Publisher publishes, and as `frozen`,
which stays as it is. Each batch of ratings is first predicted by both over REST, and trained on
afterwards, so that AUC is always of ratings that no model has seen. (Whether a rating has 4 stars
or more is predicted.)

$ make serving && python examples/online_learning.py

Prints both AUCs per part of the stream; --folder gets results.json and online_learning.png.
"""

import argparse
import json
import os
import shutil
import time
import urllib.request
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import group_embedding as ge
from dlrm.fetch import fetch_movielens
from group_embedding.keras_compat import keras
from group_embedding.serving import Publisher
from group_embedding.serving.server import ServerProcess

BATCH = 200
DIM = 16


def read_stream(folder):
    """Ids of people and films, and labels, in the order of time."""
    lines = (Path(folder) / "ml-100k.inter").read_text().splitlines()[1:]
    user, item, rating, when = np.array([line.split("\t") for line in lines], np.float64).T
    order = np.argsort(when, kind="stable")
    ids = {"user": user[order].astype(np.int64), "item": item[order].astype(np.int64)}
    return ids, (rating[order] >= 4).astype(np.float32)


def make_model():
    """The dot product of two vectors and a linear part; keys get rows when they are trained."""
    tables = {}
    for name, dim in (("user", DIM), ("item", DIM), ("user_bias", 1), ("item_bias", 1)):
        start = keras.initializers.RandomNormal(stddev=0.01, seed=1)
        tables[name] = ge.TableConfig(name, num_rows=None, dim=dim, initializer=start)
    features = [ge.FeatureConfig(name, table, "sum") for name, table in tables.items()]
    ids = {name: keras.Input([1], dtype="int64", name=name) for name in ("user", "item")}
    of_feature = {name: ids[name.partition("_")[0]] for name in tables}
    found = ge.layers.GroupEmbedding({f.name: f for f in features})(of_feature)
    dot = keras.layers.Dot(axes=1)([found["user"], found["item"]])
    bias = keras.layers.Dense(1, name="bias")(
        keras.layers.Concatenate()([found["user_bias"], found["item_bias"], dot])
    )
    score = keras.layers.Activation("sigmoid", name="score")(bias)
    model = keras.Model(ids, score)
    # A key that comes for the first time moves by about 0.05, whatever the batch's size.
    optimizer = keras.optimizers.Adagrad(0.05, initial_accumulator_value=1e-6)
    model.compile(ge.optimizers.wrap(optimizer), "binary_crossentropy")
    return model


def signature_of(model):
    spec = {name: tf.TensorSpec([None, 1], tf.int64, name=name) for name in ("user", "item")}

    @tf.function
    def serve(user, item):
        return {"score": model({"user": user, "item": item}, training=False)[:, 0]}

    return serve.get_concrete_function(**spec)


def ask(port, name, ids):
    """The scores that a served model gives, and its version."""
    body = json.dumps({"inputs": {key: value[:, None].tolist() for key, value in ids.items()}})
    url = f"http://127.0.0.1:{port}/v1/models/{name}:predict"
    with urllib.request.urlopen(url, body.encode(), timeout=30) as answer:
        return np.array(json.load(answer)["outputs"])


def auc(labels, scores):
    """The chance that a liked film has a higher score than another one."""
    _, ranks = np.unique(scores, return_inverse=True)
    counts = np.bincount(ranks)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    liked = labels > 0.5
    num_liked, num_others = liked.sum(), (~liked).sum()
    above = mean_rank[ranks][liked].sum() - num_liked * (num_liked + 1) / 2
    return float(above / max(num_liked * num_others, 1))


def learn_online(options, ids, labels):
    """Scores of both served models for the stream behind the first part, and the versions."""
    first = int(len(labels) * options.first)
    model = make_model()
    model.fit({k: v[:first, None] for k, v in ids.items()}, labels[:first], BATCH, 2, verbose=0)
    target, frozen = options.folder / "published", options.folder / "frozen" / "1"
    scores = {"updated": [], "frozen": []}
    serve = signature_of(model)
    with Publisher(
        model, target, every_seconds=options.every_seconds, signatures=serve
    ) as publisher:
        publisher.publish()
        shutil.copytree(target / "1", frozen)
        models = {"updated": target / "1", "frozen": frozen}
        sources = {"updated": target}
        with ServerProcess(models, "--poll-seconds", "0.1", sources=sources) as server:
            for begin in range(first, len(labels), BATCH):
                batch = {key: value[begin : begin + BATCH] for key, value in ids.items()}
                for name, found in scores.items():
                    found.append(ask(server.rest_port, name, batch))
                now = {key: value[:, None] for key, value in batch.items()}
                model.train_on_batch(now, labels[begin : begin + BATCH, None])
                publisher.after_step()
                time.sleep(options.pause)
        versions = publisher.version
    return first, {name: np.concatenate(found) for name, found in scores.items()}, versions


def curve_of(labels, scores, num_parts):
    """AUC of each part of the stream."""
    bounds = np.linspace(0, len(labels), num_parts + 1).astype(int)
    return [auc(labels[a:b], scores[a:b]) for a, b in zip(bounds, bounds[1:])]


def draw(curves, first, total, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    num_parts = len(curves["updated"])
    at = first + (np.arange(num_parts) + 0.5) * (total - first) / num_parts
    for name, label in (("updated", "updated each second"), ("frozen", "not updated")):
        axes.plot(at / 1000, curves[name], marker="o", markersize=3, label=label)
    axes.set_xlabel("ratings in the order of time, thousands")
    axes.set_ylabel("AUC of ratings not seen yet")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a folder with ml-100k.inter; by default it is fetched once")
    parser.add_argument("--folder", type=Path, default=Path("runs/online"), help="emptied first")
    parser.add_argument("--first", type=float, default=0.2, help="the share trained in advance")
    parser.add_argument("--parts", type=int, default=16, help="of the stream, in the curve")
    parser.add_argument("--every-seconds", type=float, default=1.0, help="between two versions")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two batches")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    ids, labels = read_stream(options.data or fetch_movielens())
    first, scores, versions = learn_online(options, ids, labels)
    curves = {
        name: curve_of(labels[first:], found, options.parts) for name, found in scores.items()
    }
    print(f"{versions} versions were published; AUC of ratings that were not seen yet:")
    print("part  updated  frozen")
    for part, pair in enumerate(zip(curves["updated"], curves["frozen"])):
        print(f"{part:4}  {pair[0]:7.4f}  {pair[1]:6.4f}")
    results = [
        {
            "model": name,
            "auc": auc(labels[first:], found),
            "curve": curves[name],
            "versions": versions if name == "updated" else 1,
        }
        for name, found in scores.items()
    ]
    for result in results:
        print(f"{result['model']}: AUC {result['auc']:.4f} of all")
    (options.folder / "results.json").write_text(json.dumps(results, indent=1))
    try:
        draw(curves, first, len(labels), options.folder / "online_learning.png")
    except ImportError:
        print("no picture: matplotlib is not installed")


if __name__ == "__main__":
    main()
