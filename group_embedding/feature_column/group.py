"""A group of columns that are looked up in one op, and the results kept for each column."""

import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from group_embedding.config import check_max_norm
from group_embedding.feature_column.variable import Keys, can_be_fused
from group_embedding.lookups.api import group_embedding_lookup_sparse
from group_embedding.ranks.sharding.placement_plan import TableLoad
from group_embedding.ranks.sharding.resolve_placements import resolve_placements
from group_embedding.ranks.sharding.sharded_table import ShardedTable
from group_embedding.variables import EmbeddingVariable


@dataclasses.dataclass(frozen=True)
class Request:
    """The request of one column to a lookup: some rows of one table for each sample."""

    column: Any
    table: Any  # tf.Variable, ShardedTable or, for a table in several parts, PartitionedVariable
    ids: tf.SparseTensor  # [batch, ids], or [batch, time, ids] of a sequence column
    weights: Any  # tf.SparseTensor like `ids`, or None
    held: dict = dataclasses.field(default_factory=dict)  # see `collections_held_back`

    @property
    def is_fused(self):
        """Returns whether the fused lookup computes the same as the stock lookup."""
        column = self.column
        is_safe = column.use_safe_embedding_lookup or self.weights is None
        return can_be_fused(self.table) and is_safe

    @property
    def max_norm(self):
        """The column's max_norm as a float, or None: there is no limit."""
        return check_max_norm(f"column '{self.column.name}'", self.column.max_norm)


class Group:
    """The columns constructed in one scope.

    TensorFlow asks the columns of an input one after the other. The first member asked looks up
    all members that are part of the same call, and the others find their result waiting.
    A call is known by its transformation cache (`_LazyBuilder`, `FeatureTransformationCache`):
    TensorFlow makes one per call, it dies with the call, and results not asked for die with it.
    """

    def __init__(self, name, placement=None):
        self.name = name
        self._placement = placement  # a word, or one by the name of the table, or None
        self._loads = {}  # of its tables, by name
        self._placements = {}  # the same, once tables are made
        self._member_classes = {}
        self._waiting = weakref.WeakKeyDictionary()  # cache of the call -> {column name: result}

    def __repr__(self):
        return f"Group({self.name!r})"

    def member_class(self, grouped):
        """The subclass of one of the grouped column classes for members of this group."""
        if grouped not in self._member_classes:
            stock = grouped._stock
            # Under the stock name, which is what TensorFlow writes when it serialises a column.
            namespace = {"_group": self, "__module__": stock.__module__, "__doc__": stock.__doc__}
            member_class = type(grouped)(stock.__name__, (grouped,), namespace)
            self._member_classes[grouped] = member_class
        return self._member_classes[grouped]

    def add_table(self, name, num_rows, dim):
        """Tells of the table of a member; several may have one."""
        by_name = isinstance(self._placement, Mapping)
        word = self._placement.get(name) if by_name else self._placement
        known = None if isinstance(num_rows, Keys) else num_rows
        self._loads[name] = TableLoad(name, known, dim, placement=word)

    def placement_of(self, table_name):
        """The placement of a table over several ranks, planned together with all tables that are
        known now."""
        if table_name not in self._placements:
            unknown = set(self._placement or ()) - self._loads.keys()
            if isinstance(self._placement, Mapping) and unknown:
                raise ValueError(
                    f"group_embedding_column_scope: expected placements of {sorted(self._loads)}, "
                    f"got one of {sorted(unknown)}"
                )
            self._placements.update(resolve_placements(self._loads.values()))
        return self._placements[table_name]

    def serve(self, cache, column, gather):
        """Returns the output of `column` and the request that it answers.

        Args:
          cache: identifies the call; weakly held.
          column: the member that is asked.
          gather: `gather(alone)` returns the `Request`s of all members in the call, or that of
            `column` alone. A column of a call already served is alone: nobody knew of it, or it
            is asked once more.
        """
        waiting = self._waiting.get(cache)
        if waiting is None:
            waiting = look_up(gather(alone=False), self.name)
            self._waiting[cache] = waiting
        # By name, which is unique in a call: Keras hands out proxies in place of columns.
        if column.name not in waiting:
            waiting.update(look_up(gather(alone=True), self.name))
        return waiting.pop(column.name)


def look_up(requests, name):
    """Looks up all requests, in one op where possible.

    Returns:
      `{column name: (tensor [batch, dim] or [batch, time, dim], request)}`.
    """
    fused = [request for request in requests if request.is_fused]
    outputs = {}
    if fused:
        tensors = group_embedding_lookup_sparse(
            [request.table for request in fused],
            [request.ids for request in fused],
            [request.column.combiner for request in fused],
            sp_weights=[request.weights for request in fused],
            max_norm=[request.max_norm for request in fused],
            feature_names=[request.column.name for request in fused],
            name=name,
        )
        for request, tensor in zip(fused, tensors):
            # A variable of a mixed precision layer of Keras reads as the layer's compute dtype.
            dtype = getattr(request.table, "_cast_dtype", tensor.dtype)
            outputs[request.column.name] = (tf.cast(tensor, dtype), request)
    for request in requests:
        if not request.is_fused:
            outputs[request.column.name] = (_stock_look_up(request), request)
    return outputs


def _stock_look_up(request):
    """The stock column's lookup of its ids in its variable."""
    column = request.column
    if isinstance(request.table, (ShardedTable, EmbeddingVariable)):
        kind = "sharded over the ranks" if isinstance(request.table, ShardedTable) else "keyed"
        raise ValueError(
            f"column '{column.name}': expected what the fused lookup takes, as its table is "
            f"{kind}: a dim up to 4096, and with weights the safe lookup; got dim "
            f"{request.table.shape[1]} and "
            f"use_safe_embedding_lookup={column.use_safe_embedding_lookup}"
        )
    rank = tf.compat.dimension_value(request.ids.dense_shape.shape[0])
    is_safe = column.use_safe_embedding_lookup or rank is None or rank > 2
    stock = tf.nn.safe_embedding_lookup_sparse if is_safe else tf.nn.embedding_lookup_sparse
    return stock(
        request.table,
        request.ids,
        request.weights,
        combiner=column.combiner,
        max_norm=request.max_norm,
        name=f"{column.name}_weights",
    )
