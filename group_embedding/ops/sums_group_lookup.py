"""The op that looks up a group whose tables' owners combine rows, over ranks with a GPU each, and
its gradient.

An owner has the ids of all ranks, and the gradients of all their sums. So the op that adds the
gradients of a table's rows is the one that adds a local lookup's, GroupLookupGrad, of the batches
of all ranks, and a wrapped optimizer puts its one op in the place of that as it always does.
"""

import functools

import tensorflow as tf

from group_embedding.ops import autodiff
from group_embedding.ops._library import library
from group_embedding.ops.group_lookup import SHARED_ATTRS, table_gradients
from group_embedding.ops.order import in_order, let_tables_be_read

let_tables_be_read("GroupEmbedding>SumsGroupLookup")

BY_COLUMNS, BY_ROWS = -1, -2
"""Owners of a table of which each rank has a part, beside the rank that has all of it."""


def sums_group_lookup(group, batch, concat, exchange, owners):
    """Looks a batch up in tables of one dtype whose owners combine rows.

    Args:
        group: an `ops.lookup_group.LookupGroup` with this rank's part of each table, none keyed.
        batch, concat: as for `ops.group_lookup.group_lookup`, with ids of all ranks' rows.
        exchange: an `ops.sharded_group_lookup.Exchange`.
        owners: of each table, the rank that has all of it, BY_COLUMNS or BY_ROWS.

    Returns:
        As `ops.group_lookup.group_lookup`.
    """
    whole = group.attrs()
    whole["dims"] = [
        dim * exchange.ranks.num_ranks if owner == BY_COLUMNS else dim
        for dim, owner in zip(whole["dims"], owners)
    ]
    make = functools.partial(
        library().sums_group_lookup,
        [table.tensor() for table in group.tables],
        batch.buffer,
        batch.sizes,
        **whole,
        num_outputs=1 if concat else len(group.names),
        concat=concat,
        weighted=batch.weighted,
        owners=owners,
        **exchange.attrs(),
    )
    return in_order(lambda order: make(order=order)).outputs


@tf.RegisterGradient("GroupEmbedding>SumsGroupLookup")
def _sums_group_lookup_grad(op, *grads):
    *grads, _, _, _ = grads  # of the gathered batch, its sizes and the state
    num_tables, num_ranks = len(op.get_attr("dims")), op.get_attr("num_ranks")
    tables = list(op.inputs[:num_tables])
    buffer, sizes, _ = op.inputs[num_tables:]
    gathered, gathered_sizes, state = op.outputs[-3:]
    shared = {name: op.get_attr(name) for name in SHARED_ATTRS}
    num_features = len(shared["table_of_feature"])
    differentiated = autodiff.differentiated(grads)
    send = functools.partial(
        library().send_sums_gradients,
        buffer,
        sizes,
        [tf.convert_to_tensor(grads[i]) for i in differentiated],
        state,
        grad_features=differentiated,
        num_parts=num_ranks * num_features,
        **shared,
    )
    sums_grads = in_order(lambda order: send(order=order))
    reached = range(num_features) if shared["concat"] else differentiated
    parts = [rank * num_features + i for rank in range(num_ranks) for i in reached]
    added = library().group_lookup_grad(
        tables=tables,
        batch=gathered,
        sizes=gathered_sizes,
        grads=[sums_grads[part] for part in parts],
        grad_features=parts,
        num_tables=num_tables,
        keyed_tables=[],
        keyed=[],
        **{**shared, **_of_gathered(op, shared, num_ranks)},
    )
    weight_grad = None
    if shared["weighted"]:
        give_back = functools.partial(
            library().return_weight_gradients, buffer, sizes, added.weight_grad, state,
            dtype=op.get_attr("dtype"), **shared
        )  # fmt: skip
        weight_grad = in_order(lambda order: give_back(order=order))
    return [*table_gradients(op, added, tables, differentiated), weight_grad, None, None]


def _of_gathered(op, shared, num_ranks):
    """The attributes of the gathered batch that are not those of the lookup."""
    owners = op.get_attr("owners")
    dims = [
        dim // num_ranks if owner == BY_COLUMNS else dim
        for dim, owner in zip(shared["dims"], owners)
    ]
    adds = [owners[t] == BY_ROWS and num_ranks > 1 for t in shared["table_of_feature"]]
    combiners = [b"sum" if added else c for added, c in zip(adds, shared["combiners"])]
    names = shared["feature_names"]
    return {
        "dims": dims,
        "table_of_feature": shared["table_of_feature"] * num_ranks,
        "combiners": combiners * num_ranks,
        "feature_names": [f"{_text(n)} of rank {rank}" for rank in range(num_ranks) for n in names],
        "concat": False,
        "invalid_ids": "ignore",  # the lookup has reported them, and has marked other ranks' rows
    }


def _text(name):
    return name.decode() if isinstance(name, bytes) else name
