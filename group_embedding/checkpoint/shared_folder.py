"""The check that the folder of a checkpoint is one that all hosts share.

Ranks write parts of one checkpoint. Where each host has a folder of its own under that name, every
part is written without an error, and nobody has all of them. So each rank looks for what every rank
has written, and all fail if one of them does not see it.
"""

import socket

import tensorflow as tf

from group_embedding.ops import save_table
from group_embedding.ranks.exchange.gather_strings import gather_strings

_ALL = "all"  # in place of the rank whose files are not seen


def check_shared(exchange, wrote, prefixes, manifests, name):
    """An op that fails on all ranks if one of them does not see what another has written.

    Every rank must call it, when all ranks have written, as often and with the same `name`.

    Args:
        wrote: bool [ranks], whether a rank has written.
        prefixes: string [ranks], of the checkpoints that ranks have written.
        manifests: string [ranks], of the files of a table that a rank has written beside its
            prefix; empty: it has written a checkpoint there.

    Returns:
        The op; eagerly, None.

    Raises:
        tf.errors.InvalidArgumentError: the folder is not shared.
    """
    with tf.device("/CPU:0"):
        sees = save_table.sees_files(prefixes, manifests) | ~tf.convert_to_tensor(wrote)
        unseen = tf.strings.as_string(tf.argmin(tf.cast(sees, tf.int32), output_type=tf.int32))
        mine = [socket.gethostname(), tf.where(tf.reduce_all(sees), _ALL, unseen)]
        told = gather_strings(exchange, tf.stack(mine), f"{name}_sees")
        hosts, unseen = told[:, 0], told[:, 1]
        is_blind = tf.not_equal(unseen, _ALL)
        who = tf.argmax(tf.cast(is_blind, tf.int32), output_type=tf.int32)
        whose = tf.strings.to_number(tf.where(is_blind, unseen, "0")[who], tf.int32)
        message = [_rank(who, hosts), " does not see the file that ", _rank(whose, hosts)]
        message += [" wrote, of '", prefixes[whose], "': the folder must be shared by all hosts"]
        return tf.debugging.Assert(~tf.reduce_any(is_blind), [tf.strings.join(message)])


def _rank(rank, hosts):
    return tf.strings.join(["rank ", tf.strings.as_string(rank), " (host ", hosts[rank], ")"])
