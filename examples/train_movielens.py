"""Trains a DLRM on stock TensorFlow, on grouped lookups, with a wrapped optimizer, and by keys.

$ python examples/train_movielens.py                     # MovieLens-100K
$ python examples/train_movielens.py --data train.csv    # a file in Criteo's format
$ horovodrun -np 2 python examples/train_movielens.py    # tables sharded over two ranks
"""

import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import tensorflow as tf

from dlrm import job, options, ranks, report

DEFAULT_FOLDER = Path("runs/movielens")


def main():
    parser = options.parser(__doc__.splitlines()[0], DEFAULT_FOLDER)
    parser.add_argument("--stock", action="store_true", help="train on stock TensorFlow only")
    chosen = parser.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)

    schema, train, test = options.load(chosen.data)
    steps = options.num_steps(chosen, train)
    folder = chosen.folder or DEFAULT_FOLDER
    # Before the ranks meet in `start_grouped`, so that none reads what is about to be removed.
    if chosen.folder is None and ranks.launched_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)

    ways = {}
    if not chosen.stock:
        ways["grouped"] = ranks.start_grouped()
        if not ranks.launched():
            ways["wrapped"] = ranks.with_native_updates(ways["grouped"])
            ways["keyed"] = ranks.with_keys(ways["wrapped"])
    if ranks.launched_rank() == 0:  # the stock model is the first rank's alone
        ways["stock"] = ranks.STOCK
    results = [
        job.run(name, way, schema, train, test, steps, chosen.batch_size, folder)
        for name, way in ways.items()
    ]
    if ranks.launched_rank() > 0:
        return
    results.insert(0, results.pop())  # stock

    print(f"\n{report.answers(results[-1])}\n\n{report.table(results)}\n")
    print(f"{report.write(results, folder)}; curves: tensorboard --logdir {folder}")


if __name__ == "__main__":
    main()
