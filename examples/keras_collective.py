"""Trains the DLRM of train_keras.py on several ranks with Keras `fit`, on Keras 2 and on Keras 3.

$ horovodrun -np 4 python examples/keras_collective.py
$ python examples/keras_collective.py                      # the same job as one process
"""

import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import tensorflow as tf
from train_keras import NUM_QUERIES, ShowProgress, metrics, query

import group_embedding as ge
from dlrm import ids, keras_model, model, options, ranks, report
from dlrm.examples import evaluation_batches, training_batches
from dlrm.progress import Progress

DEFAULT_FOLDER = Path("runs/keras_collective")


def main():
    chosen = options.parser(__doc__.splitlines()[0], DEFAULT_FOLDER).parse_args()
    schema, train, test = options.load(chosen.data)
    steps, folder = options.num_steps(chosen, train), chosen.folder or DEFAULT_FOLDER
    if chosen.folder is None and ranks.launched_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)

    strategy = ge.CollectiveStrategy()
    is_first = strategy.rank == 0
    tf.keras.utils.set_random_seed(model.SEED)
    encode = ids.encoder(schema)
    share = strategy.rank, strategy.world_size
    training = training_batches(train, chosen.batch_size, steps, model.SEED, *share)
    training = training.map(lambda features, labels: (encode(features), labels)).prefetch(4)
    testing = evaluation_batches(test).map(lambda features, labels: encode(features))
    with strategy.scope():  # the optimizer is one of all ranks
        dlrm = keras_model.make_model(schema)
    progress = Progress("keras collective", steps, chosen.batch_size, show=is_first)
    dlrm.fit(training, shuffle=False, verbose=0, callbacks=[ShowProgress(progress)])

    # All ranks answer, each for its rows; the same samples on all.
    logits = dlrm.predict(testing, verbose=0)[:, 0]
    with tempfile.TemporaryDirectory() as scratch:
        own = folder if is_first else Path(scratch)
        own.mkdir(parents=True, exist_ok=True)
        saved = str(own / "dlrm.keras")
        dlrm.save(saved)  # with the rows of all ranks; so all save
    if not is_first:
        return
    with ge.exchange.unsharded():  # this process alone has the whole model
        whole = tf.keras.models.load_model(saved)
        answers = query(whole, test.sample(NUM_QUERIES), encode)
    result = {
        "model": "Keras collective",
        **metrics(test.labels, logits),
        "examples_per_second": progress.examples_per_second(),
        "num_ranks": strategy.world_size,
        "steps": steps,
        "saved_model": saved,
        "answers": answers,
    }
    print(f"\n{report.answers(result)}\n\n{report.table([result])}\n")
    print(report.write([result], folder))


if __name__ == "__main__":
    main()
