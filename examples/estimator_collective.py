"""Trains the DLRM of train_movielens.py on several ranks, as an Estimator of a CollectiveStrategy.

$ horovodrun -np 4 python examples/estimator_collective.py
$ python examples/estimator_collective.py                  # the same job as one process
"""

import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import tensorflow as tf

import group_embedding as ge
from dlrm import estimator, examples, job, options, ranks, report
from dlrm.model import SEED
from dlrm.progress import Progress, ProgressHook

DEFAULT_FOLDER = Path("runs/estimator_collective")


def main():
    chosen = options.parser(__doc__.splitlines()[0], DEFAULT_FOLDER).parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    schema, train, test = options.load(chosen.data)
    steps = options.num_steps(chosen, train)
    folder = (chosen.folder or DEFAULT_FOLDER).resolve()
    # Before the ranks meet, so that none reads what is about to be removed.
    if chosen.folder is None and ranks.launched_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)

    strategy = ge.CollectiveStrategy()
    # Users and items are found by key; all tables are updated on their owners, in one op.
    grouped = ranks.Ranks(
        strategy.rank,
        strategy.world_size,
        column_scope=strategy.embedding_scope,
        column_of_keys=ge.categorical_column_with_embedding,
        wrap_optimizer=ge.optimizers.wrap,
    )
    trained = strategy.estimator(
        estimator.model_fn,
        str(folder),
        job.run_config(max(1, steps // 4), grouped),
        {"schema": schema, "ranks": grouped},
    )

    def training():  # this rank's part of each batch
        share = strategy.rank, strategy.world_size
        return examples.training_batches(train, chosen.batch_size, steps, SEED, *share)

    def testing():  # the same on all ranks
        return examples.evaluation_batches(test)

    progress = Progress("collective", steps, chosen.batch_size, show=strategy.rank == 0)
    metrics = trained.train_and_evaluate(
        tf.estimator.TrainSpec(training, max_steps=steps, hooks=[ProgressHook(progress)]),
        tf.estimator.EvalSpec(testing, steps=None),
    )
    saved_model = job.export(trained, train)
    if strategy.rank > 0:
        return
    result = {
        "model": "collective",
        "auc": float(metrics["auc"]),
        "log_loss": float(metrics["log_loss"]),
        "examples_per_second": progress.examples_per_second(),
        "num_ranks": strategy.world_size,
        "steps": int(metrics["global_step"]),
        "saved_model": saved_model,
        "answers": job.query(saved_model, test.sample(job.NUM_QUERIES)),  # of this process alone
    }
    print(f"\n{report.answers(result)}\n\n{report.table([result])}\n")
    print(f"{report.write([result], folder)}; curves: tensorboard --logdir {folder}")


if __name__ == "__main__":
    main()
