"""Strings between ranks, which exchanges do not carry: as bytes."""

import tensorflow as tf

_BYTES = [bytes([value]) for value in range(256)]


def gather_strings(exchange, strings, name):
    """The strings of all ranks, [ranks, n], of `strings`, a vector of n on each rank."""
    with tf.device("/CPU:0"):
        lengths = tf.cast(tf.strings.length(strings), tf.int64)
        content = tf.io.decode_raw(tf.strings.reduce_join(strings), tf.uint8)
        all_content, all_lengths = exchange.allgather([content, lengths], name)
        characters = tf.gather(tf.constant(_BYTES), tf.cast(all_content, tf.int32))
        rows = tf.RaggedTensor.from_row_lengths(characters, all_lengths)
        return tf.reshape(tf.strings.reduce_join(rows, axis=-1), [exchange.num_ranks, -1])
