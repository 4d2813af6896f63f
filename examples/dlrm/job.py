"""One model from training to the answers of its SavedModel."""

import math
from pathlib import Path

import tensorflow as tf

from dlrm.estimator import model_fn
from dlrm.examples import evaluation_batches, training_batches
from dlrm.model import SEED
from dlrm.progress import Progress, ProgressHook

estimator = tf.compat.v1.estimator
NUM_QUERIES = 5


def run(name, ranks, schema, train, test, steps, batch_size, folder):
    """Trains, evaluates, exports and queries; returns what `report.py` shows, as a dict."""
    folder = Path(folder).resolve() / name
    progress = Progress(name, steps, batch_size, show=ranks.is_first)
    params = {"schema": schema, "ranks": ranks}
    every = math.ceil(steps / 4)
    trained = estimator.Estimator(model_fn, str(folder), run_config(every, ranks), params)
    trained.train(
        lambda: training_batches(train, batch_size, steps, SEED, ranks.rank, ranks.num_ranks),
        hooks=[ProgressHook(progress), *ranks.saving_hooks(folder, every)],
    )
    # All ranks evaluate, and on the same data: each answers for its rows of the tables.
    evaluated = estimator.Estimator(model_fn, str(ranks.own(folder)), params=params)
    latest = tf.train.latest_checkpoint(folder)
    metrics = evaluated.evaluate(lambda: evaluation_batches(test), checkpoint_path=latest)
    result = {
        "model": name,
        "num_ranks": ranks.num_ranks,
        "steps": int(metrics["global_step"]),
        "auc": float(metrics["auc"]),
        "log_loss": float(metrics["log_loss"]),
        "examples_per_second": progress.examples_per_second(),
        "ops_in_graph": progress.num_ops,
    }
    if ranks.is_first:
        with ranks.alone():
            result["saved_model"] = export(trained, train)
        result["answers"] = query(result["saved_model"], test.sample(NUM_QUERIES))
    return result


def run_config(save_steps, ranks):
    return estimator.RunConfig(
        tf_random_seed=SEED,
        save_checkpoints_steps=save_steps,  # by steps, not seconds: all ranks save together
        keep_checkpoint_max=2,
        save_summary_steps=20 if ranks.is_first else None,
        log_step_count_steps=20 if ranks.is_first else None,
    )


def export(job, examples):
    """Writes a SavedModel that takes each feature by its name; returns its path."""
    feature_specs, _ = examples.signature()

    def receiver():
        placeholders = {
            name: tf.compat.v1.placeholder(spec.dtype, spec.shape, name)
            for name, spec in feature_specs.items()
        }
        return estimator.export.ServingInputReceiver(placeholders, placeholders)

    return job.export_saved_model(str(Path(job.model_dir) / "saved_model"), receiver).decode()


def query(saved_model, examples):
    """Loads the SavedModel and asks it: [(label, probability)] of the examples."""
    serve = tf.saved_model.load(saved_model).signatures["serving_default"]
    answers = serve(**{name: tf.constant(v) for name, v in examples.features.items()})
    return list(zip(examples.labels.tolist(), answers["probability"].numpy().tolist()))
