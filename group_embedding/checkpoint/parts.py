"""Tables whose keys are spread over ranks: each rank writes a file of its keys beside one
checkpoint, and all restore theirs from the files of however many ranks there were."""

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from group_embedding.checkpoint.shared_folder import check_shared
from group_embedding.ops import save_table
from group_embedding.ranks.exchange.gather_strings import gather_strings

_NOTHING = -1  # in place of the number of a full save: this rank has no rows of the table


class Share(NamedTuple):
    """A rank's share of a table: part `part` of `num_parts`. `part` is None if another rank has
    all."""

    exchange: Any
    part: Optional[int]
    num_parts: int


def agree_on_changes(tables, changes):
    """Bool [tables], the same on all ranks: whether of each table the changes are saved.

    They are if all ranks that have some of it want that, and have the same full save to add it to;
    else all save all their rows, as parts of two kinds make no checkpoint. Every rank must call it
    that shares one of the tables.

    Args:
        changes: a bool or a tensor: whether this rank wants it.
    """
    with tf.device("/CPU:0"):
        agreed = [tf.convert_to_tensor(changes)] * len(tables)
        shares = [share_of(table) for table in tables]
        spread = [i for i, share in enumerate(shares) if share is not None]
        if spread:
            told = [tf.where(changes, _full_save(tables[i], shares[i]), 0) for i in spread]
            (of_ranks,) = shares[spread[0]].exchange.allgather([[told]], "full_saves")
            last = tf.reduce_max(of_ranks, axis=0)
            same = tf.equal(of_ranks, last) | tf.equal(of_ranks, _NOTHING)
            can_all = tf.reduce_all(same, axis=0) & (last > 0)
            for place, can in zip(spread, tf.unstack(can_all, len(spread))):
                agreed[place] = can
        return tf.stack(agreed)


def _full_save(table, share):
    if share.part is None:
        return tf.constant(_NOTHING, tf.int64)
    return save_table.full_save_id(table.resource_handle)


def save_parts(tables, prefix, snapshots, name, is_shared=True):
    """Writes this rank's part of `tables`, TableResources, from their snapshots, beside the
    checkpoint. Every rank must call it, with the same tables and `name`.

    Args:
        is_shared: whether to check that each rank sees the files of all; of one table, as they are
            all written to one folder.

    Returns:
        The tables' manifests, which list the files of all ranks.
    """
    shares = [share_of(table) for table in tables]
    written = [_save(*saved, prefix) for saved in zip(tables, shares, snapshots)]
    spread = [i for i, share in enumerate(shares) if share is not None]
    if spread:
        exchange = shares[spread[0]].exchange
        parts = gather_strings(
            exchange, tf.stack([written[i] for i in spread]), f"{name}_manifests".replace("/", "_")
        )
        if is_shared:
            parts = _seen_by_all(exchange, prefix, parts, name)
        for place, i in enumerate(spread):
            of_table = parts[:, place]
            written[i] = save_table.merge_manifests(
                tf.boolean_mask(of_table, tf.not_equal(of_table, ""))
            )
    return written


def _seen_by_all(exchange, prefix, parts, name):
    """`parts`, the manifests of all ranks, [ranks, tables], once each rank has seen those of the
    first table."""
    first = parts[:, 0]
    prefixes = tf.fill([exchange.num_ranks], prefix)
    wrote = tf.not_equal(first, "")
    checked = check_shared(exchange, wrote, prefixes, first, name.replace("/", "_"))
    with tf.control_dependencies([] if checked is None else [checked]):
        return tf.identity(parts)


def verify_part(table, prefix, manifest):
    """Fails if `restore_part` would."""
    index, count = part_of(table) or (0, 1)  # where it is nothing, what its owner needs
    return save_table.verify_table(
        table.resource_handle, prefix, manifest, index=index, count=count
    )


def restore_part(table, prefix, manifest):
    """Restores this rank's part of a table into its TableResource. The files were verified just
    before."""
    part = part_of(table)
    if part is None:
        return table.initialize()
    index, count = part
    return save_table.restore_table(
        table.resource_handle, prefix, manifest, index=index, count=count
    )


def part_of(table):
    """Which part a TableResource is of how many; None: it has nothing."""
    share = share_of(table)
    if share is None:
        return 0, 1
    return None if share.part is None else (share.part, share.num_parts)


def prefix_of_all(tables, prefix):
    """The prefix of the checkpoint that all ranks write: rank 0's."""
    shares = [share for share in map(share_of, tables) if share is not None]
    if not shares:
        return prefix
    return gather_strings(shares[0].exchange, tf.stack([prefix]), "checkpoint_prefix")[0, 0]


def _save(table, share, snapshot, prefix):
    if share is None:
        return save_table.save_table(table.resource_handle, prefix, snapshot)
    if share.part is None:
        return tf.constant("")
    return save_table.save_table(
        table.resource_handle, prefix, snapshot, part=share.part, num_parts=share.num_parts
    )


def share_of(table):
    """The Share of a TableResource; None: this rank has the whole table, as one that was loaded
    from a SavedModel."""
    return getattr(table, "share", None)
