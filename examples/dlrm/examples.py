"""Labelled examples held in NumPy arrays, and the batches that training and evaluation read."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Examples:
    """`features[name]`: [n] or, where an example has several values, [n, width] padded with b""."""

    features: dict[str, np.ndarray]
    labels: np.ndarray  # [n] float32, 0 or 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, rows):
        return Examples({k: v[rows] for k, v in self.features.items()}, self.labels[rows])

    def split(self, share):
        """The first `share` of the examples, and the rest."""
        middle = int(len(self) * share)
        if not 0 < middle < len(self):
            raise ValueError(f"{len(self)} examples are too few to split at {share:.0%}")
        return self[:middle], self[middle:]

    def sample(self, count):
        """At most `count` examples, evenly spread."""
        return self[:: -(-len(self) // count)]

    def signature(self):
        """The (features, labels) of one batch, as TensorSpecs."""

        def spec(array):
            dtype = tf.string if array.dtype.kind == "S" else tf.as_dtype(array.dtype)
            return tf.TensorSpec((None, *array.shape[1:]), dtype)

        return {k: spec(v) for k, v in self.features.items()}, spec(self.labels)


def training_rows(num_examples, batch_size, num_batches, seed, rank=0, num_ranks=1):
    """Yields the rows of each batch, or this rank's part of them; each epoch is shuffled anew."""
    per_epoch = num_examples // batch_size
    for batch in range(num_batches):
        epoch, place = divmod(batch, per_epoch)
        if place == 0:
            order = np.random.default_rng((seed, epoch)).permutation(num_examples)
        yield order[place * batch_size : (place + 1) * batch_size][rank::num_ranks]


def training_batches(examples, batch_size, num_batches, seed, rank=0, num_ranks=1):
    """A tf.data.Dataset of `num_batches` shuffled (features, labels)."""
    if batch_size % num_ranks:
        raise ValueError(f"batch size {batch_size} cannot be shared evenly by {num_ranks} ranks")
    if batch_size > len(examples):
        raise ValueError(f"batch size {batch_size} is more than the {len(examples)} examples")

    def batches():
        for rows in training_rows(len(examples), batch_size, num_batches, seed, rank, num_ranks):
            part = examples[rows]
            yield part.features, part.labels

    dataset = tf.data.Dataset.from_generator(batches, output_signature=examples.signature())
    return dataset.apply(tf.data.experimental.assert_cardinality(num_batches)).prefetch(4)


def evaluation_batches(examples, batch_size=4096):
    """A tf.data.Dataset of all (features, labels) in order; the last batch may be smaller."""

    def batches():
        for start in range(0, len(examples), batch_size):
            part = examples[start : start + batch_size]
            yield part.features, part.labels

    dataset = tf.data.Dataset.from_generator(batches, output_signature=examples.signature())
    num_batches = -(-len(examples) // batch_size)
    return dataset.apply(tf.data.experimental.assert_cardinality(num_batches)).prefetch(1)
