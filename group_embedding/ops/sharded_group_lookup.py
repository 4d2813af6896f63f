"""The op that looks up a group whose tables are spread over ranks with a GPU each, and its
gradient.

The gradients of a table are those that the ranks send, and the op that adds them is the one that
adds a local lookup's: GroupLookupGrad, of the batch of rows that were asked for. So a wrapped
optimizer puts its one op in the place of that as it always does.
"""

import ctypes
import functools
from typing import NamedTuple

import tensorflow as tf

from group_embedding.ops import autodiff
from group_embedding.ops._library import library, native
from group_embedding.ops.group_lookup import (
    SHARED_ATTRS,
    samples_with_gradient,
    table_gradients,
)
from group_embedding.ops.locate_rows import attrs_of_training, steps_of, train
from group_embedding.ops.order import in_order, let_tables_be_read
from group_embedding.ops.select_samples import select_samples

let_tables_be_read("GroupEmbedding>ShardedGroupLookup")
let_tables_be_read("GroupEmbedding>SendGroupGradients")


class NcclRanks(NamedTuple):
    """The ranks that meet when the first op runs that names them."""

    nccl_id: bytes  # the same on all ranks
    rank: int
    num_ranks: int
    timeout_seconds: float
    use_peer_memory: bool = (
        False  # they are of one host: rows go into each other's memory, if they can
    )

    def sent_bytes(self):
        """The bytes of lookups that this rank sent to each rank, by NCCL or into peer buffers."""
        sent = (ctypes.c_int64 * self.num_ranks)()
        native().GroupEmbeddingNcclSentBytes(self.nccl_id, len(self.nccl_id), sent)
        return tuple(sent)


class Exchange(NamedTuple):
    """How a lookup exchanges rows, or sums of rows, and their gradients."""

    ranks: NcclRanks
    num_rows: list[int]  # of each whole table; not used for keyed tables
    description: str  # lists the lookup's tables and features, the same on all ranks
    comm_dtype: tf.DType  # of what is on its way between ranks
    gradient_scale: float  # the factor of a rank's gradients before all ranks' are added

    def attrs(self):
        """The attributes of the op."""
        attrs = self._asdict()
        return attrs.pop("ranks")._asdict() | attrs


def sharded_group_lookup(group, batch, concat, exchange):
    """Looks a batch up in tables of one dtype that are spread over ranks.

    Args:
        group: an `ops.lookup_group.LookupGroup` with this rank's rows of each table; keyed ones
            where the batch has no weights.
        batch, concat: as for `ops.group_lookup.group_lookup`, with ids and keys of all ranks' rows.
        exchange: Exchange.

    Returns:
        As `ops.group_lookup.group_lookup`.
    """
    keyed = [group.tables[t] for t in group.keyed]
    make = functools.partial(
        library().sharded_group_lookup,
        [table.tensor() for table in group.tables],
        batch.buffer,
        batch.sizes,
        [table.keyed.table_handle for table in keyed],
        steps_of([table.keyed for table in keyed]),
        keyed=group.keyed,
        **attrs_of_training(keyed),
        **group.attrs(),
        num_outputs=1 if concat else len(group.names),
        concat=concat,
        weighted=batch.weighted,
        **exchange.attrs(),
    )
    return in_order(lambda order: make(order=order)).outputs


@tf.RegisterGradient("GroupEmbedding>ShardedGroupLookup")
def _sharded_group_lookup_grad(op, *grads):
    *grads, _ = grads  # of the state
    num_tables, num_ranks = len(op.get_attr("dims")), op.get_attr("num_ranks")
    tables = list(op.inputs[:num_tables])
    buffer, sizes, *keyed_tables, _, _ = op.inputs[num_tables:]
    keyed = op.get_attr("keyed")
    if keyed and not tf.executing_eagerly():
        train(op.outputs[0].op, steps_at=num_tables + 2 + len(keyed))
    differentiated = autodiff.differentiated(grads)
    samples = samples_with_gradient(op, grads)
    if samples:
        buffer, sizes = select_samples(buffer, sizes, samples, weighted=False)
    shared = {name: op.get_attr(name) for name in SHARED_ATTRS}
    send = functools.partial(
        library().send_group_gradients,
        tables,
        buffer,
        sizes,
        [
            grads[i].values if i in samples else tf.convert_to_tensor(grads[i])
            for i in differentiated
        ],
        op.outputs[-1],
        keyed_tables,
        keyed=keyed,
        grad_features=differentiated,
        num_parts=num_ranks * num_tables,
        is_other_batch=bool(samples) or len(differentiated) < len(grads),
        **shared,
    )
    sent = in_order(lambda order: send(order=order))
    added = _add_gradients(tables, keyed_tables, keyed, sent, num_ranks, shared)
    weight_grad = sent.weight_grad if op.get_attr("weighted") else None
    return [
        *table_gradients(op, added, tables, differentiated),
        weight_grad,
        None,
        *[None] * len(keyed),
        None,
        None,
    ]


def _add_gradients(tables, keyed_tables, keyed, sent, num_ranks, shared):
    """The sums of what the ranks sent, of this rank's rows."""
    num_tables = len(tables)
    of_parts = {
        "table_of_feature": list(range(num_tables)) * num_ranks,
        "combiners": ["sum"] * num_tables * num_ranks,
        "max_norms": [0.0] * num_tables,
        "feature_names": [
            f"{name} for rank {rank}" for rank in range(num_ranks) for name in shared["table_names"]
        ],
        "concat": False,
        "weighted": True,
        "prune_negative": False,
        "invalid_ids": "raise",
    }
    return library().group_lookup_grad(
        tables=tables,
        batch=sent.requests,
        sizes=sent.request_sizes,
        grads=sent.request_grads,
        grad_features=list(range(num_tables * num_ranks)),
        num_tables=num_tables,
        keyed_tables=keyed_tables,
        keyed=keyed,
        **{**shared, **of_parts},
    )
