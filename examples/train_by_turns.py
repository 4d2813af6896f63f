"""Trains whole models on stock layers and on grouped ones by turns, and compares their times.

$ python examples/train_by_turns.py
$ python examples/train_by_turns.py --model features --turns 30
$ python examples/train_by_turns.py --model many --model dlrm
$ python examples/train_by_turns.py --inputs in-step

Inputs are made ahead for both: stock layers get SparseTensors from memory, grouped ones packed ids.
With `--inputs in-step` tf.data's threads make both for every step, from flat ids and lengths.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import numpy as np
import tensorflow as tf

import group_embedding as ge
from by_turns import batches, models, samples, turns

SEED = 2024
MODELS = {
    "features": samples.Shape(
        "100 features of 1 to 5 ids", samples.spread_rows(100, 10, 100_000), 5, 0, 1024
    ),
    "many": samples.Shape(
        "300 features of 1 to 5 ids", samples.spread_rows(300, 10, 100_000), 5, 0, 1024
    ),
    "dlrm": samples.Shape(
        "DLRM of 26 features, 13 numbers", samples.spread_rows(26, 10, 1_000_000), 1, 13, 2048
    ),
}
BY_ITSELF = ("many", "dlrm")  # of MODELS
TRAINING, TESTING = 40, 8  # batches in memory


def main():
    chosen = arguments()
    ahead = chosen.inputs == "ahead"
    results = [run(MODELS[name], chosen.turns, ahead) for name in chosen.model]
    print(f"\n{table(results)}\n")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    path = chosen.folder / "by_turns.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(path)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, action="append", help="default: many, dlrm")
    parser.add_argument("--turns", type=int, default=10, help="of ten steps (default: 10)")
    parser.add_argument("--inputs", choices=("ahead", "in-step"), default="ahead")
    parser.add_argument("--folder", type=Path, default=Path("runs/by_turns"))
    chosen = parser.parse_args()
    if chosen.turns < 1:
        parser.error(f"--turns: expected 1 or more, got {chosen.turns}")
    chosen.model = chosen.model or list(BY_ITSELF)
    return chosen


def run(shape, num_turns, ahead=True):
    """Trains both models of a shape by turns; returns the AUC and the times of each, and ratios."""
    made = "made ahead" if ahead else "made in the step"
    print(f"{shape.name}, batches of {shape.batch_size:,}, inputs {made}", flush=True)
    train = batches.batches(shape, samples.draw(shape, TRAINING, SEED))
    layer = models.grouped_embeddings(shape.rows)
    stock = Trained(
        models.Network(shape, models.StockEmbeddings(shape.rows)),
        models.make_optimizer(),
        batches.for_stock(shape, train, ahead=ahead),
    )
    grouped = Trained(
        models.Network(shape, layer),
        ge.optimizers.wrap(models.make_optimizer()),
        batches.for_grouped(shape, train, layer, ahead=ahead),
    )
    timed = [stock.timed, grouped.timed]
    load = turns.take_turns(timed, num_turns, lambda done: show(done, num_turns))
    test = batches.batches(shape, samples.draw(shape, TESTING, SEED + 1))
    return {
        "model": shape.name,
        "inputs": made,
        "steps": num_turns * (turns.STEPS + 1) + 1,
        "stock": figures(stock, batches.for_stock(shape, test, epochs=1)),
        "grouped": figures(grouped, batches.for_grouped(shape, test, layer, epochs=1)),
        "wall_ratio": turns.ratios(stock.timed.wall, grouped.timed.wall),
        "cpu_ratio": turns.ratios(stock.timed.cpu, grouped.timed.cpu),
        "load": load,
        "cores": len(os.sched_getaffinity(0)),
    }


class Trained:
    """A network, and its training step on batches of a dataset."""

    def __init__(self, network, optimizer, dataset):
        self._network = network
        self.timed = turns.Timed(models.make_step(network, optimizer, iter(dataset)))
        self.timed.step()  # traces it

    def auc(self, dataset):
        predict = tf.function(self._network)
        answers = [(predict(*inputs), labels) for inputs, labels in dataset]
        logits, labels = (np.concatenate([np.ravel(a) for a in each]) for each in zip(*answers))
        return turns.auc(labels, logits)


def figures(trained, test):
    timed = trained.timed
    return {
        "wall_ms": turns.quartiles(timed.wall),
        "cpu_ms": turns.quartiles(timed.cpu),
        "auc": trained.auc(test),
    }


def show(done, total):
    """The progress line."""
    if sys.stdout.isatty() or done == total:
        end = "\n" if done == total else "\r"
        print(f"  turn {done}/{total}, load {os.getloadavg()[0]:.1f}", end=end, flush=True)


def table(results):
    """All figures as lines of text."""
    lines = []
    for result in results:
        lines.append(
            f"{result['model']}: {result['steps']} steps each, inputs {result['inputs']}, "
            f"{result['cores']} cores, load {result['load']:.1f}"
        )
        lines.append(f"{'':>10}{'AUC':>9}  {'ms a step':^24}{'CPU ms a step':^24}")
        for name in ("stock", "grouped"):
            one = result[name]
            spans = f"{_span(one['wall_ms'], 1):^24}{_span(one['cpu_ms'], 1):^24}"
            lines.append(f"{name:>10}{one['auc']:>9.4f}  {spans}")
        both = f"{_span(result['wall_ratio'], 2):^24}{_span(result['cpu_ratio'], 2):^24}"
        lines.append(f"{'ratio':>10}{'':>9}  {both}")
    return "\n".join(["Medians of turns (first to third quartile)", *lines])


def _span(quartiles, digits):
    low, median, high = (f"{q:.{digits}f}" for q in quartiles)
    return f"{median} ({low} to {high})"


if __name__ == "__main__":
    main()
