"""From files to a served model, for Criteo's lines, for a shop's events and for news.

$ python examples/train_from_files.py criteo                                    # generated files
$ python examples/train_from_files.py criteo --train "day_[0-5].tsv" --test day_6.tsv
$ python examples/train_from_files.py shop --steps 400
"""

import argparse
import json
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import numpy as np
import tensorflow as tf
from fetch_files import generate

import group_embedding as ge
from by_turns.turns import auc
from from_files.data_sets import DATA_SETS
from from_files.serving import Served, export, request

keras = tf.keras
SEED, LEARNING_RATE = 2024, 0.05
POINTS = 10  # of the curves


def main():
    chosen = arguments()
    data_set = DATA_SETS[chosen.data_set]
    folder = chosen.folder or Path("runs") / chosen.data_set
    folder.mkdir(parents=True, exist_ok=True)
    files = chosen.train, chosen.test
    if not chosen.train:
        files = [[str(path)] for path in generate(chosen.data_set, folder)]
    keras.utils.set_random_seed(SEED)

    pipeline = data_set.make_pipeline().fit(data_set.reader(files[0], 4096))
    model = data_set.make_model(pipeline.num_ids)
    served = Served(pipeline, model)
    curves = train(data_set, served, model, files, chosen)
    quality, first = evaluate(data_set, served, files[1])
    saved = folder / "saved_model"
    shutil.rmtree(saved, ignore_errors=True)
    export(served, data_set.reader(files[1], 1).element_spec[0], saved)
    check(saved, *first)

    result = {"data_set": chosen.data_set, "steps": chosen.steps, **quality, **curves}
    (folder / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    if chosen.plot:
        plot(result, chosen.plot)
    for label, figures in quality.items():
        print(f"{label}: AUC {figures['auc']:.4f}, log loss {figures['log_loss']:.4f}")
    print(f"{saved}, in an InferenceSession, answers the same")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_set", choices=DATA_SETS)
    parser.add_argument("--train", nargs="+", help="files, folders or globs (default: generated)")
    parser.add_argument("--test", nargs="+", help="files, folders or globs of later rows")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--folder", type=Path, help="default: runs/<data set>")
    parser.add_argument("--plot", help="the picture to draw, by matplotlib: loss and AUC")
    chosen = parser.parse_args()
    if bool(chosen.train) != bool(chosen.test):
        parser.error("expected both --train and --test, or neither")
    if chosen.steps < 1 or chosen.batch_size < 1:
        parser.error("expected --steps and --batch-size of 1 or more")
    return chosen


def train(data_set, served, model, files, chosen):
    """Trains the model; returns the loss of each tenth of the steps, and then each label's AUC."""
    options = {"shuffle_rows": 50_000, "seed": SEED, "epochs": None, "drop_remainder": True}
    reader = data_set.reader(files[0], chosen.batch_size, **options)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(
        ge.optimizers.wrap(keras.optimizers.Adagrad(LEARNING_RATE, 1e-6)),
        loss if len(data_set.labels) == 1 else dict.fromkeys(data_set.labels, loss),
    )
    curves = {label: [] for label in data_set.labels}

    def test(epoch, logs):
        for label, quality in evaluate(data_set, served, files[1])[0].items():
            curves[label].append(quality["auc"])

    epochs = min(POINTS, chosen.steps)
    history = model.fit(
        reader.map(served.pipeline).prefetch(2),
        steps_per_epoch=chosen.steps // epochs,
        epochs=epochs,
        verbose=2,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=test)],
    )
    return {"loss": history.history["loss"], "test_auc": curves}


def evaluate(data_set, served, files):
    """Returns AUC and log loss of each label; and the first batch with its answers."""
    labels, answers, first = [], [], None
    for features, true in data_set.reader(files, 4096):
        given = served.predict(features)
        first = first or (features, given)
        one = len(data_set.labels) == 1
        labels.append({data_set.labels[0]: true} if one else true)
        answers.append({data_set.labels[0]: given["probability"]} if one else given)
    return {name: figures(labels, answers, name) for name in data_set.labels}, first


def figures(labels, answers, name):
    true = np.concatenate([np.ravel(batch[name]) for batch in labels])
    given = np.concatenate([np.ravel(batch[name]) for batch in answers])
    losses = -np.log(np.clip(np.where(true > 0.5, given, 1 - given), 1e-7, 1))
    return {"auc": float(auc(true, given)), "log_loss": float(losses.mean())}


def check(saved, features, expected):
    """Asks an InferenceSession about rows of the files, and compares its answers with the
    model's."""
    with ge.serving.InferenceSession(saved) as session:
        answers = session.predict({name: np.asarray(x) for name, x in request(features).items()})
    for label, probabilities in expected.items():
        np.testing.assert_allclose(answers[label], probabilities, rtol=1e-5, atol=1e-6)


def plot(result, path):
    """Loss while training, and AUC on later rows, over the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = np.linspace(0, result["steps"], len(result["loss"]) + 1)[1:]
    picture, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(steps, result["loss"], marker="o")
    left.set(xlabel="step", ylabel="loss, mean since the last point")
    for label, areas in result["test_auc"].items():
        right.plot(steps, areas, marker="o", label=label)
    right.set(xlabel="step", ylabel="AUC on later rows")
    right.legend(loc="lower right")
    picture.suptitle(result["data_set"])
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


if __name__ == "__main__":
    main()
