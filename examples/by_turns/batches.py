"""Generated samples as datasets, in the form that each model takes."""

import numpy as np
import tensorflow as tf

from by_turns.models import name_of


def batches(shape, samples):
    """Samples as a dataset.

    Args:
        shape: the `samples.Shape` of the samples.
        samples: a `samples.Samples`.

    Returns:
        A `tf.data.Dataset` of ([ids of each feature], how many ids of each feature each sample has
        [features, B], numbers [B, numbers], labels [B]).
    """
    features = len(shape.rows)
    ends = np.cumsum(samples.lengths.sum(axis=2, dtype=np.int64))
    starts = np.concatenate([[0], ends[:-1]]).reshape(-1, features)
    ends = ends.reshape(-1, features)

    def rows():
        for batch, labels in enumerate(samples.labels):
            ids = [samples.ids[a:b] for a, b in zip(starts[batch], ends[batch])]
            yield tuple(ids), samples.lengths[batch], samples.numbers[batch], labels

    signature = (
        (tf.TensorSpec([None], tf.int64),) * features,
        tf.TensorSpec([features, shape.batch_size], tf.int32),
        tf.TensorSpec([shape.batch_size, shape.numbers]),
        tf.TensorSpec([shape.batch_size]),
    )
    return tf.data.Dataset.from_generator(rows, output_signature=signature)


def for_stock(shape, dataset, epochs=None, ahead=True):
    """SparseTensors, or tensors [B] where every sample has one id.

    Args:
        shape: the `samples.Shape` of the samples.
        dataset: of `batches`.
        epochs: how often it is repeated; None: for ever.
        ahead: make them once and keep them in memory; else for every step, from ids and lengths.

    Returns:
        A dataset of ((ids by feature, numbers), labels).
    """

    def inputs(ids, lengths, numbers, labels):
        if shape.most_ids > 1:
            ids = tuple(of.to_sparse() for of in _ragged(ids, lengths))
        return (_by_name(ids), numbers), labels

    return _repeated(dataset, inputs, epochs, ahead)


def for_grouped(shape, dataset, layer, epochs=None, ahead=True):
    """Makes the dataset of `for_stock`, but with ids packed by `layer.route`."""

    def inputs(ids, lengths, numbers, labels):
        if shape.most_ids > 1:
            ids = _ragged(ids, lengths)
        return (layer.route(_by_name(ids)), numbers), labels

    return _repeated(dataset, inputs, epochs, ahead)


def _repeated(dataset, inputs, epochs, ahead):
    if ahead:
        return dataset.map(inputs).cache().repeat(epochs).prefetch(2)
    return dataset.cache().repeat(epochs).map(inputs).prefetch(2)


def _ragged(ids, lengths):
    each = zip(ids, tf.unstack(lengths))
    return [tf.RaggedTensor.from_row_lengths(*one, validate=False) for one in each]


def _by_name(ids):
    return {name_of(i): of for i, of in enumerate(ids)}
