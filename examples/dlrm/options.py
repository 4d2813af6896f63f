"""The command line that the training scripts share, and the data it names."""

import argparse
from pathlib import Path

from dlrm import criteo, movielens
from dlrm.fetch import fetch_movielens


def parser(description, folder):
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--steps", type=positive, help="training steps (default: one epoch)")
    made.add_argument(
        "--batch-size", type=positive, default=512, help="of all ranks together (default: 512)"
    )
    made.add_argument(
        "--data",
        help="a .csv or .tsv file in Criteo's format, or a folder with ml-100k.inter, .user and "
        ".item (default: MovieLens-100K, downloaded once)",
    )
    made.add_argument(
        "--folder",
        type=Path,
        help=f"where everything is written (default: {folder}, emptied first)",
    )
    return made


def positive(text):
    if (number := int(text)) < 1:
        raise ValueError
    return number


def load(data):
    """The schema, and the examples to train on and to test on: 80% and the later 20%."""
    if data is not None and not Path(data).is_dir():
        schema, examples = criteo.SCHEMA, criteo.load_criteo(data)
    else:
        folder = fetch_movielens() if data is None else Path(data)
        schema, examples = movielens.SCHEMA, movielens.load_movielens(folder)
    train, test = examples.split(0.8)
    return schema, train, test


def num_steps(options, train):
    return options.steps or max(1, len(train) // options.batch_size)
