"""EmbeddingVariables whose keys are spread over the ranks of an Exchange."""

import json

import tensorflow as tf

from group_embedding.checkpoint.parts import Share
from group_embedding.ops import table_keys
from group_embedding.ops.route_ids import key_owners
from group_embedding.placement import DISTRIBUTED, REPLICATED, is_by_columns, to_placement
from group_embedding.ranks.exchange.gather_strings import gather_text
from group_embedding.ranks.exchange.local import LocalExchange
from group_embedding.ranks.sharding.replica_tables import check_spread, is_over_replicas


def placement_of_table(name, word, exchange, storage):
    """How the keys of a table are spread over the ranks; None: there is one.

    Args:
        word: of `placement.check_placement`, or None: the default of the job.
        storage: variables.storage.Storage.

    Raises:
        ValueError: a placement or a storage that such a table cannot have.
    """
    if word is None:  # a default of 'replicated', or of columns, is not for keys
        is_for_rows = exchange.placement == REPLICATED or is_by_columns(exchange.placement)
        word = DISTRIBUTED if is_for_rows else exchange.placement
    where = to_placement(f"table '{name}'", word, exchange.num_ranks, keyed=True)
    if where is not None and is_over_replicas(exchange) and "GPU" in storage.device:
        raise ValueError(
            f"table '{name}': expected storage in host memory, as {exchange.num_ranks} replicas of "
            "one process share it, got HBM; use DRAM, or a process for each GPU"
        )
    if where is not None and is_over_replicas(exchange) and where.sums:
        check_spread(where)
    return where


def start_as_first_rank(table, initial):
    """InitialValues as rank 0 drew them, whose random numbers may be others: so that what a key
    starts as does not depend on which rank owns it.

    Every rank must call it. In a graph of TensorFlow 1 what the ranks make is compared while it is
    built, and the matrix is sent when the table is initialized.

    Raises:
        ValueError: another rank makes another table.
    """
    if table.placement is None or is_over_replicas(table.exchange):  # see `over_replicas`
        return initial
    exchange, name = table.exchange, table.name.partition(":")[0]
    made = (
        f"table '{name}': dim {table.shape[1]} of {table.dtype.name}, keys of "
        f"{table.key_dtype.name}, which start as {_describe(initial)}"
    )
    told = json.dumps({"made": made, "seed": initial.seed})
    gathered = (exchange, told, "make_table", f"making table '{name}'")
    of_ranks = [json.loads(text) for text in gather_text(*gathered)]
    for rank, of_rank in enumerate(of_ranks):
        if of_rank["made"] != made:
            raise ValueError(
                f"{made}: expected the same table on all ranks, got {of_rank['made']} on rank "
                f"{rank}; make the same tables, in the same order, on all ranks"
            )
    matrix = initial.matrix
    if initial.distribution == "matrix":
        (sent,) = exchange.broadcast([matrix], f"start_{name}".replace("/", "_"))
        matrix = tf.ensure_shape(sent, matrix.shape)
    return initial._replace(matrix=matrix, seed=of_ranks[0]["seed"])


def _describe(initial):
    if initial.distribution == "matrix":
        return f"rows of a matrix of {initial.matrix.shape[0]}"
    return f"{initial.distribution} ({initial.a:g}, {initial.b:g})"


def share_of(table):
    """This rank's share of a table, for checkpoints."""
    if table.placement is None:
        return None
    if is_over_replicas(table.exchange):  # this process writes the files of all
        return Share(LocalExchange(), table.exchange.rank, table.exchange.num_ranks)
    if table.placement.kind == "one_rank":
        is_own = table.placement.rank == table.exchange.rank
        return Share(table.exchange, 0 if is_own else None, 1)
    return Share(table.exchange, table.exchange.rank, table.exchange.num_ranks)


def gather_export(table, found):
    """The keys of all ranks, in the order of one table, of each rank's Export."""
    if table.placement is None:
        return found
    parts = table_keys.Export(*table.exchange.allgather(list(found), "gather_export"))
    flip = tf.constant(tf.int64.min if table.key_dtype.is_unsigned else 0, tf.int64)
    order = tf.argsort(tf.bitwise.bitwise_xor(parts.keys, flip))
    return table_keys.Export(*(tf.gather(part, order) for part in parts))


def sum_over_ranks(table, counts):
    """The sum of what the ranks know: of a key, only its owner knows anything but zero."""
    if table.placement is None:
        return counts
    (of_all,) = table.exchange.allgather([tf.reshape(counts, [-1])], "gather_counts")
    total = tf.reduce_sum(tf.reshape(of_all, [table.exchange.num_ranks, -1]), axis=0)
    return tf.reshape(total, tf.shape(counts))


def counts_of_own_keys(table, keys, found):
    """A rank's KeyInfo without counts of keys of other ranks, of which a Bloom filter makes some
    up."""
    if table.placement is None:
        return found
    own = tf.where(_is_own(table, keys), found.frequencies, tf.zeros_like(found.frequencies))
    return found._replace(frequencies=own)


def own_keys(table, keys):
    """The keys that this rank owns, among the keys [n] that each rank gives, in their own type."""
    if table.placement is None:
        return keys
    (of_all,) = table.exchange.allgather([table._to_int64(keys)], "own_keys")
    return table._from_int64(tf.boolean_mask(of_all, _is_own(table, of_all)))


def rank_of_owners(table):
    """This rank's number among the ranks that have the table's keys, and how many these are."""
    if table.placement is None or table.placement.kind == "one_rank":
        return 0, 1
    return table.exchange.rank, table.exchange.num_ranks


def scores_of_own_keys(table, keys, scores):
    """The keys that this rank owns, and their scores, among those that each rank gives."""
    if table.placement is None:
        return keys, scores
    flat = [tf.reshape(keys, [-1]), tf.reshape(scores, [-1])]
    keys, scores = table.exchange.allgather(flat, "scores_of_own_keys")
    is_own = _is_own(table, keys)
    return tf.boolean_mask(keys, is_own), tf.boolean_mask(scores, is_own)


def _is_own(table, keys):
    if table.placement.kind == "one_rank":
        return tf.fill(tf.shape(keys), table.placement.rank == table.exchange.rank)
    return tf.equal(key_owners(keys, table.exchange.num_ranks), table.exchange.rank)


def gather_found(table, found):
    """The KeyInfo that keys have on their owners, of each rank's. (Without a row -1 stands for no
    version and no tier.)"""
    return table_keys.KeyInfo(
        sum_over_ranks(table, found.frequencies),
        sum_over_ranks(table, found.versions + 1) - 1,
        sum_over_ranks(table, found.tiers + 1) - 1,
    )


def rows_of_this_rank(table, keys, values, versions, frequencies):
    """The rows to insert whose keys this rank owns.

    Args:
        keys: int64 [n].
        values: [n, dim].
        versions, frequencies: [n], or [0]: none are given.

    Raises:
        tf.errors.InvalidArgumentError: when it runs: there are not as many as keys.
    """
    if table.placement is None or keys.shape.rank != 1:
        return [keys, values, versions, frequencies]
    is_own = _is_own(table, keys)
    counts = {
        what: (tf.shape(given)[0], tf.shape(keys)[0])
        for what, given in (("values", values), ("versions", versions), ("freqs", frequencies))
    }
    with tf.control_dependencies(_check_counts(table, counts)):
        mine = [tf.boolean_mask(keys, is_own), tf.boolean_mask(values, is_own)]
    for what, given in (("versions", versions), ("freqs", frequencies)):
        # Where none are given, no place names any.
        places = tf.where(is_own)[:, 0]
        count = counts[what][0]
        mine.append(tf.gather(given, tf.boolean_mask(places, tf.fill(tf.shape(places), count > 0))))
    return mine


def _check_counts(table, counts):
    """Ops that fail where there is a value for some keys alone."""
    name = table.name.partition(":")[0]
    checks = []
    for what, (count, num_keys) in counts.items():
        good = tf.equal(count, num_keys)
        if what != "values":
            good = tf.logical_or(good, tf.equal(count, 0))
        text = f"table '{name}': expected as many {what} as keys, got"
        checks.append(tf.debugging.Assert(good, [text, count, "and", num_keys]))
    return [check for check in checks if check is not None]
