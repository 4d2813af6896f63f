"""Trains the DLRM of train_movielens.py with Keras `fit`, on Keras 2 and on Keras 3.

$ python examples/train_keras.py
$ python examples/train_keras.py --data train.csv --steps 200
"""

import importlib.util
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is imported

import tensorflow as tf

from dlrm import ids, keras_model, model, options, report
from dlrm.examples import evaluation_batches, training_batches
from dlrm.progress import Progress

keras = tf.keras
DEFAULT_FOLDER = Path("runs/keras")
NUM_QUERIES = 5


class ShowProgress(keras.callbacks.Callback):
    """Tells a Progress of each step; Keras' loss is the mean since the start of the epoch."""

    def __init__(self, progress):
        super().__init__()
        self.progress = progress

    def on_train_batch_end(self, batch, logs=None):
        self.progress.step(logs["loss"] if self.progress.wants_loss() else None)


def main():
    chosen = options.parser(__doc__.splitlines()[0], DEFAULT_FOLDER).parse_args()
    schema, train, test = options.load(chosen.data)
    steps, folder = options.num_steps(chosen, train), chosen.folder or DEFAULT_FOLDER
    if chosen.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)

    encode = ids.encoder(schema)
    training = training_batches(train, chosen.batch_size, steps, model.SEED)
    training = training.map(lambda features, labels: (encode(features), labels)).prefetch(4)
    testing = evaluation_batches(test).map(lambda features, labels: encode(features))
    dlrm = keras_model.make_model(schema)
    progress = Progress("keras", steps, chosen.batch_size)
    callbacks = [ShowProgress(progress)]
    if importlib.util.find_spec("tensorboard"):  # TensorFlow 2.21 comes without it
        callbacks.append(keras.callbacks.TensorBoard(str(folder), update_freq=20))
    dlrm.fit(training, shuffle=False, verbose=0, callbacks=callbacks)

    saved = str(folder / "dlrm.keras")
    dlrm.save(saved)
    dlrm = keras.models.load_model(saved)
    logits = dlrm.predict(testing, verbose=0)[:, 0]
    result = {
        "model": "Keras",
        **metrics(test.labels, logits),
        "examples_per_second": progress.examples_per_second(),
        "steps": steps,
        "saved_model": saved,
        "answers": query(dlrm, test.sample(NUM_QUERIES), encode),
    }
    print(f"\n{report.answers(result)}\n\n{report.table([result])}\n")
    print(f"{report.write([result], folder)}; curves: tensorboard --logdir {folder}")


def metrics(labels, logits):
    auc = keras.metrics.AUC(num_thresholds=1000, from_logits=True)
    auc.update_state(labels, logits)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return {"auc": float(auc.result()), "log_loss": float(tf.reduce_mean(losses))}


def query(dlrm, examples, encode):
    """[(label, probability)] of the examples."""
    inputs = encode({name: tf.constant(array) for name, array in examples.features.items()})
    probability = tf.sigmoid(dlrm(inputs))[:, 0]
    return list(zip(examples.labels.tolist(), probability.numpy().tolist()))


if __name__ == "__main__":
    main()
