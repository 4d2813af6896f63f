"""The sizes of a batch as a string, which TensorFlow keeps in host memory on its way to a GPU."""

import tensorflow as tf

from group_embedding.ops._library import library

tf.no_gradient("GroupEmbedding>BatchSizesToString")
tf.no_gradient("GroupEmbedding>BatchSizesFromString")


def to_string(sizes):
    """int64 [features, 2] -> string scalar."""
    return library().batch_sizes_to_string(sizes=sizes)


def from_string(text):
    """Returns the sizes of which `to_string` made the string."""
    return library().batch_sizes_from_string(text=text)
