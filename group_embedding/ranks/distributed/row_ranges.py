"""A sharded table on its way to and from a checkpoint.

In memory rank r holds the rows r, r + N, ...; in a checkpoint it writes and reads the r-th of N
contiguous ranges, because a checkpoint knows slices and not strides. An alltoall leads from one to
the other, so that no rank ever holds more than its share. A table that is on one rank is written
and read there, and columns where they are.
"""

import tensorflow as tf


def rows_written_by(shard, rank):
    """The rows [begin, end) of a ShardedTable that a rank writes."""
    if shard.placement.kind == "one_rank":
        return (0, shard.num_rows) if rank == shard.placement.rank else (0, 0)
    if shard.placement.is_by_columns:
        return 0, shard.num_rows
    return range_of_rank(shard.num_rows, rank, shard.exchange.num_ranks)


def range_of_rank(num_rows, rank, num_ranks):
    """The r-th of N contiguous ranges; the last ones may be empty."""
    size = -(-num_rows // num_ranks)
    return min(rank * size, num_rows), min((rank + 1) * size, num_rows)


def to_range(shard, name):
    """The rows that this rank writes, in order, as a tensor. Every rank must call it."""
    if _is_written_as_held(shard):
        return tf.identity(shard.variable)
    rank, num_ranks = shard.exchange.rank, shard.exchange.num_ranks
    # Local rows ascend, and so those bound for one range are contiguous.
    splits = [
        _num_strided(range_of_rank(shard.num_rows, to, num_ranks), rank, num_ranks)
        for to in range(num_ranks)
    ]
    received, _ = shard.exchange.alltoall(tf.identity(shard.variable), _int32(splits), name)
    begin, end = range_of_rank(shard.num_rows, rank, num_ranks)
    if begin == end:
        return received
    # From rank r came the rows of the range that are r modulo num_ranks.
    first, firsts_received = 0, []
    for origin in range(num_ranks):
        firsts_received.append(first - _first_strided(begin, origin, num_ranks) // num_ranks)
        first += _num_strided((begin, end), origin, num_ranks)
    row = tf.range(begin, end, dtype=tf.int64)
    offset = tf.gather(tf.constant(firsts_received, tf.int64), row % num_ranks)
    return tf.gather(received, offset + row // num_ranks)


def from_range(shard, rows, name):
    """The inverse: this rank's local rows out of the rows that it wrote."""
    if _is_written_as_held(shard):
        return tf.ensure_shape(rows, shard.variable.shape)
    rank, num_ranks = shard.exchange.rank, shard.exchange.num_ranks
    mine = range_of_rank(shard.num_rows, rank, num_ranks)
    strided = [
        rows[_first_strided(mine[0], to, num_ranks) - mine[0] :: num_ranks]
        for to in range(num_ranks)
    ]
    splits = [_num_strided(mine, to, num_ranks) for to in range(num_ranks)]
    # Ranges ascend with the rank they come from, and so do the local rows.
    local, _ = shard.exchange.alltoall(tf.concat(strided, axis=0), _int32(splits), name)
    return tf.ensure_shape(local, shard.variable.shape)


def _is_written_as_held(shard):
    return shard.placement.kind == "one_rank" or shard.placement.is_by_columns


def _first_strided(begin, rank, num_ranks):
    """The first row of a rank that is not before `begin`."""
    return begin + (rank - begin) % num_ranks


def _num_strided(row_range, rank, num_ranks):
    begin, end = row_range
    return max(0, -(-(end - _first_strided(begin, rank, num_ranks)) // num_ranks))


def _int32(values):
    return tf.constant(values, tf.int32)
