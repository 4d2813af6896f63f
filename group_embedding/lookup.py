"""Many embedding lookups in one fused op.

The flow: what the user gave becomes tables (tables.py) and tensors of ids (feature_ids.py). Lookups
that one op can serve form a group, which is packed into one batch and looked up (local_lookup.py),
or exchanged between the ranks that own its rows (exchange/).
"""

import warnings
from typing import NamedTuple

import tensorflow as tf

from group_embedding import exchange, feature_ids
from group_embedding.config import COMBINERS, INVALID_IDS
from group_embedding.local_lookup import look_up_local
from group_embedding.ops.group_ids import FeatureIds
from group_embedding.tables import Table, make_table


class Lookup(NamedTuple):
    """One (table, ids) pair of a call."""

    table: Table
    feature: FeatureIds
    combiner: str

    def check(self):
        self.table.check_ids(self.feature.name, self.feature.values.dtype)
        return self


def group_embedding_lookup_sparse(
    params,
    sp_ids,
    combiners,
    partition_strategy="mod",
    sp_weights=None,
    name=None,
    *,
    max_norm=None,
    concat=False,
    invalid_ids="raise",
    feature_names=None,
):
    """Looks up and combines many sparse features at once.

    Every result, and every gradient, means what `tf.nn.safe_embedding_lookup_sparse` means on that
    lookup alone: a sample without ids gives zeros, negative ids are left out, and so are weights
    that are not positive, for 'mean' and 'sqrtn'. The gradient of a table is an `IndexedSlices`
    with unique, ascending indices, the same bits on every run.

    Args:
        params: a list of tables, each an EmbeddingVariable, or a `tf.Variable` or tensor of shape
            [rows, dim], float32, float16 or bfloat16, dim from 1 to 4096. One table may appear
            several times. Ids of an EmbeddingVariable are keys, of its `key_dtype`: none is left
            out or invalid, negative ones neither.
        sp_ids: a list as long of `tf.SparseTensor` (rank 2 or more, in row order, pooled over the
            last axis) or `tf.RaggedTensor` (rank 2) of int32, int64, uint32 or uint64.
        combiners: 'mean', 'sum' or 'sqrtn', for all lookups or one each. None warns and means
            'mean'.
        partition_strategy: 'mod' or 'div'. Every table here is one piece, for which both mean the
            same; a variable in several pieces is refused.
        sp_weights: None, or a list with, for each lookup, None or weights with the same indices (or
            row splits) as its ids, of any floating type. Gradients flow to the weights.
        name: of the operation.
        max_norm: None, or the L2 norm above which a row is scaled down to it; one for all lookups
            or a list with one, or None, each.
        concat: return one tensor, the results side by side in the order of `params`, written so by
            the op. All features must then have the same samples and all tables one dtype.
        invalid_ids: what an id outside its table does: 'raise' an error, or 'ignore': it reads as a
            row of zeros. On a GPU the error is raised by the backward pass of the same step or by
            the next lookup, so that no step has to wait for the GPU.
        feature_names: names for messages, one per lookup; default 'sp_ids[0]', 'sp_ids[1]', ...

    Returns:
        A list with, for each lookup, a tensor of the table's dtype and shape [samples, dim] (for
        ids of rank n: their first n - 1 axes, then dim). With `concat`, the one tensor.

    Raises:
        TypeError: a feature is neither SparseTensor nor RaggedTensor, its ids are not integers, or
            a table is a PartitionedVariable of several parts.
        ValueError: lists of different lengths, an unknown word, a table that is not [rows, dim].
        tf.errors.InvalidArgumentError: when the op runs: an id outside its table, indices not in
            row order or outside the dense shape, weights in other places than the ids.

    Example:

    >>> user = tf.Variable([[1., 2.], [3., 4.], [5., 6.]])
    >>> item = tf.Variable([[10.], [20.]])
    >>> clicks = tf.sparse.from_dense([[1, 2, 0], [0, 0, 0]])
    >>> bought = tf.ragged.constant([[0, 1], [1]], dtype=tf.int64)
    >>> mean, total = ge.group_embedding_lookup_sparse(
    ...     [user, item], [clicks, bought], ["mean", "sum"])
    >>> mean.numpy().tolist(), total.numpy().tolist()
    ([[4.0, 5.0], [0.0, 0.0]], [[30.0], [20.0]])
    """
    params, sp_ids = _as_list("params", params), _as_list("sp_ids", sp_ids)
    count = len(params)
    _check_length("sp_ids", sp_ids, "params", count)
    if combiners is None:
        warnings.warn("combiners is None; it will mean 'mean'", stacklevel=2)
        combiners = "mean"
    combiners = _per_lookup("combiners", combiners, count)
    for combiner in combiners:
        _check_word("combiners", combiner, COMBINERS)
    _check_word("partition_strategy", partition_strategy, ("mod", "div"))
    weights = [None] * count if sp_weights is None else _as_list("sp_weights", sp_weights)
    _check_length("sp_weights", weights, "sp_ids", count)
    max_norms = _per_lookup("max_norm", max_norm, count)
    names = feature_names or [f"sp_ids[{i}]" for i in range(count)]
    _check_length("feature_names", names, "sp_ids", count)
    with tf.name_scope(name or "group_embedding_lookup_sparse"):
        lookups = [
            Lookup(
                make_table(params[i], max_norms[i], i),
                feature_ids.from_rows(names[i], sp_ids[i], weights[i]),
                combiners[i],
            ).check()
            for i in range(count)
        ]
        results = _look_up(lookups, concat, prune_negative=True, invalid_ids=invalid_ids)
        if concat:
            return feature_ids.restore_sample_shape(results, sp_ids[0])
        return [feature_ids.restore_sample_shape(r, ids) for r, ids in zip(results, sp_ids)]


def group_embedding_lookup(
    params, ids, partition_strategy="mod", name=None, *, invalid_ids="raise", feature_names=None
):
    """Looks up many dense id tensors at once: `tf.nn.embedding_lookup` on each.

    Args:
        params: a list of tables, as in `group_embedding_lookup_sparse`.
        ids: a list as long of integer tensors of any shape.
        partition_strategy: as in `group_embedding_lookup_sparse`.
        name: of the operation.
        invalid_ids: as in `group_embedding_lookup_sparse`; a negative id is outside its table too.
        feature_names: names for messages, one per lookup.

    Returns:
        A list with, for each lookup, a tensor of shape `ids.shape + [dim]`.

    Raises:
        As `group_embedding_lookup_sparse`.

    Example:

    >>> table = tf.Variable([[1., 2.], [3., 4.]])
    >>> ge.group_embedding_lookup([table], [[1, 0, 1]])[0].numpy().tolist()
    [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]
    """
    params, ids = _as_list("params", params), _as_list("ids", ids)
    _check_length("ids", ids, "params", len(params))
    _check_word("partition_strategy", partition_strategy, ("mod", "div"))
    names = feature_names or [f"ids[{i}]" for i in range(len(ids))]
    _check_length("feature_names", names, "ids", len(ids))
    with tf.name_scope(name or "group_embedding_lookup"):
        features = [feature_ids.from_dense(n, i) for n, i in zip(names, ids)]
        lookups = [
            Lookup(make_table(param, None, i), feature, "sum").check()
            for i, (param, feature) in enumerate(zip(params, features))
        ]
        results = _look_up(lookups, False, prune_negative=False, invalid_ids=invalid_ids)
        return [feature_ids.restore_id_shape(r, f.values) for r, f in zip(results, features)]


def _look_up(lookups, concat, prune_negative, invalid_ids):
    """Looks up each group of lookups that one op can serve; results in the order given."""
    _check_word("invalid_ids", invalid_ids, INVALID_IDS)
    # Ops that use a table run where it is: keyed tables of two devices need two, and so does a
    # variable on a GPU beside a keyed table in host memory. One exchange serves all tables, but for
    # those that GPUs serve themselves.
    any_keyed = any(lookup.table.keyed is not None for lookup in lookups)
    groups = {}
    for place, lookup in enumerate(lookups):
        table = lookup.table
        kind = (table.dtype, table.device_type if any_keyed else None)
        if table.exchange:
            on_gpus = exchange.is_served_by_gpus(table)
            kind = (table.exchange, table.dtype) if on_gpus else table.exchange
        groups.setdefault(kind, []).append(place)
    dtypes = list(dict.fromkeys(lookup.table.dtype.name for lookup in lookups))
    if concat and len(dtypes) > 1:
        raise ValueError(f"concat: expected tables of one dtype, got {dtypes}")
    options = {"prune_negative": prune_negative, "invalid_ids": invalid_ids}
    if concat and len(groups) == 1:
        return _look_up_group(lookups, concat=True, **options)[0]
    results = [None] * len(lookups)
    for places in groups.values():
        outputs = _look_up_group([lookups[place] for place in places], concat=False, **options)
        for place, output in zip(places, outputs):
            results[place] = output
    return tf.concat(results, axis=-1) if concat else results


def _look_up_group(lookups, **options):
    """One group: tables of this rank alone, or spread over GPUs, of one dtype; or over ranks, of
    any."""
    tables = list(dict.fromkeys(lookup.table for lookup in lookups))
    arguments = {
        "tables": tables,
        "features": [lookup.feature for lookup in lookups],
        "table_of_feature": [tables.index(lookup.table) for lookup in lookups],
        "combiners": [lookup.combiner for lookup in lookups],
    }
    look_up = look_up_local
    if tables[0].exchange:
        on_gpus = exchange.is_served_by_gpus(tables[0])
        look_up = exchange.look_up_on_gpus if on_gpus else exchange.look_up_sharded
    return look_up(**arguments, **options)


def _as_list(name, value):
    if value is None or isinstance(value, (str, tf.Tensor, tf.Variable)) or len(value) == 0:
        raise ValueError(f"{name} must be specified: expected a list with one per lookup")
    return list(value)


def _per_lookup(name, value, count):
    if isinstance(value, (list, tuple)):
        _check_length(name, value, "sp_ids", count)
        return list(value)
    return [value] * count


def _check_length(name, value, other, count):
    if len(value) != count:
        raise ValueError(
            f"len of {name} must be equal to len of {other}: expected {count}, got {len(value)}"
        )


def _check_word(name, word, choices):
    if word not in choices:
        choices = ", ".join(f"'{choice}'" for choice in choices)
        raise ValueError(f"{name} must be one of {choices}, got {word!r}")
