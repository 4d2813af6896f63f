"""Strings between ranks, which exchanges do not carry: as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.ops.pending_calls import waits_in
from group_embedding.ranks.exchange.interface import Exchange

_BYTES = [bytes([value]) for value in range(256)]


def gather_strings(exchange: Exchange, strings: Sequence[str | bytes], name: str) -> Any:
    """The strings of all ranks, [ranks, n], of `strings`, a vector of n on each rank."""
    with tf.device("/CPU:0"):
        lengths = tf.cast(tf.strings.length(strings), tf.int64)
        content = tf.io.decode_raw(tf.strings.reduce_join(strings), tf.uint8)
        all_content, all_lengths = exchange.allgather([content, lengths], name)
        characters = tf.gather(tf.constant(_BYTES), tf.cast(all_content, tf.int32))
        starts = tf.cumsum(all_lengths, exclusive=True)
        parts = tf.strings.substr(tf.strings.reduce_join(characters), starts, all_lengths)
        return tf.reshape(parts, [exchange.num_ranks, -1])


def gather_text(exchange: Exchange, text: str, name: str, what: str | None = None) -> list[str]:
    """The texts of all ranks, a list of str, given one text on each rank.

    Runs at once, in a graph of its own, whether or not the caller executes eagerly, and not on a
    GPU.

    Args:
        what: a description of the call for messages; by default its name.
    """
    if exchange.num_ranks == 1:
        return [text]
    content = np.frombuffer(text.encode(), np.uint8)
    on_cpu = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    waits = waits_in(f"gather_text {name}", what or name)
    graph, make_session = tf.Graph(), tf.compat.v1.Session
    with waits, graph.as_default(), make_session(config=on_cpu) as session, tf.device("/CPU:0"):
        mine = [tf.constant(content), tf.constant([len(content)], tf.int64)]
        content, lengths = session.run(list(exchange.allgather(mine, name)))
    return [part.tobytes().decode() for part in np.split(content, np.cumsum(lengths)[:-1])]
