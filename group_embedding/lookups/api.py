"""Many embedding lookups in one fused op.

The arguments become tables (`lookup_table`) and tensors of ids (`feature_ids`). The lookups that
one op can serve form a group (`groups`); `flow` is the path of their ids. Ids may be routed one
step before the lookup (`routed_ids`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import tensorflow as tf

from group_embedding.arguments import (
    as_list,
    check_is_none,
    check_length,
    check_word,
    known_combiners,
    lookup_names,
    per_lookup,
)
from group_embedding.config import COMBINERS, INVALID_IDS
from group_embedding.lookups import feature_ids, flow
from group_embedding.lookups.groups import Lookups
from group_embedding.lookups.lookup_table import make_table
from group_embedding.lookups.routed_ids import RoutedIds, from_routed_ids, to_routed_ids
from group_embedding.types import (
    Combiner,
    InvalidIds,
    PartitionStrategy,
    SparseLike,
    Table,
    TensorLike,
)
from group_embedding.variables import EmbeddingVariable

# The combiners of the ops that count every id, whatever its weight.
_SIGNED = {"sum": "sum", "mean": "signed_mean", "sqrtn": "signed_sqrtn"}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _as_it_is(function: _Function) -> _Function:
    """A function that AutoGraph does not convert. Converting lookups took most of the
    time of a trace, and there is no control flow of tensors in it."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


@_as_it_is
def group_embedding_lookup_sparse(
    params: Sequence[Table],
    sp_ids: Sequence[SparseLike] | RoutedIds,
    combiners: Combiner | Sequence[Combiner] | None,
    partition_strategy: PartitionStrategy = "mod",
    sp_weights: Sequence[SparseLike | None] | None = None,
    name: str | None = None,
    *,
    max_norm: float | None | Sequence[float | None] = None,
    concat: bool = False,
    invalid_ids: InvalidIds = "raise",
    feature_names: Sequence[str] | None = None,
) -> Any:
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
            last axis) or `tf.RaggedTensor` (rank 2) of int32, int64, uint32 or uint64. Or what
            `route_ids` made of such a list, given the same arguments, weights included.
        combiners: 'mean', 'sum' or 'sqrtn', for all lookups or one each. None warns and means
            'mean'.
        partition_strategy: 'mod' or 'div'. Every table here is one piece, for which both mean the
            same; a variable in several pieces is refused.
        sp_weights: None, or a list with, for each lookup, None or weights with the same indices (or
            row splits, of either type) as its ids, of any floating type. Gradients flow to the
            weights.
        name: of the operation.
        max_norm: None, or the L2 norm above which a row is scaled down to it, a positive number;
            one for all lookups or a list with one, or None, each. Infinity is no limit, as None is.
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
        TypeError: a feature is neither SparseTensor nor RaggedTensor, its ids are not integers, a
            max_norm is no number, or a table is a PartitionedVariable of several parts.
        ValueError: lists of different lengths, an unknown word, a table that is not [rows, dim], a
            max_norm that is not positive, ids that were routed for other arguments.
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
    params, sp_ids = as_list("params", params), _as_list_of_ids("sp_ids", sp_ids, params)
    combiners = known_combiners(combiners)
    with tf.name_scope(name or "group_embedding_lookup_sparse"):
        lookups = _sparse_lookups(
            params, combiners, partition_strategy, max_norm, invalid_ids, feature_names
        )
        if isinstance(sp_ids, RoutedIds):
            check_is_none("sp_weights", sp_weights, "as routed ids have their weights")
            return _look_up_routed(lookups, sp_ids, concat)
        return _look_up_sparse(lookups, sp_ids, sp_weights, concat)


def group_embedding_lookup_signed(params, sp_ids, combiners, sp_weights=None):
    """`group_embedding_lookup_sparse` in which weights of any sign count: what
    `tf.nn.embedding_lookup_sparse` means, on ids that are not negative."""
    params, sp_ids = as_list("params", params), _as_list_of_ids("sp_ids", sp_ids, params)
    with tf.name_scope("group_embedding_lookup_signed"):
        lookups = _sparse_lookups(params, combiners, "mod", None, "raise", None)
        if sp_weights is not None:
            signed = [_SIGNED[combiner] for combiner in lookups.combiners]
            lookups = dataclasses.replace(lookups, combiners=signed)
        return _look_up_sparse(lookups, sp_ids, sp_weights, concat=False)


@_as_it_is
def group_embedding_lookup(
    params: Sequence[Table],
    ids: Sequence[TensorLike] | RoutedIds,
    partition_strategy: PartitionStrategy = "mod",
    name: str | None = None,
    *,
    invalid_ids: InvalidIds = "raise",
    feature_names: Sequence[str] | None = None,
) -> list[tf.Tensor]:
    """Looks up many dense id tensors at once: `tf.nn.embedding_lookup` on each.

    Args:
        params: a list of tables, as in `group_embedding_lookup_sparse`.
        ids: a list as long of integer tensors of any shape, or what `route_ids` made of it.
        partition_strategy: as in `group_embedding_lookup_sparse`.
        name: of the operation.
        invalid_ids: as in `group_embedding_lookup_sparse`; a negative id is outside its table too.
        feature_names: names for messages, one per lookup.

    Returns:
        A list with, for each lookup, a tensor of shape `ids.shape + [dim]`.

    Raises:
        TypeError, ValueError, tf.errors.InvalidArgumentError: as
            `group_embedding_lookup_sparse`.

    Example:

    >>> table = tf.Variable([[1., 2.], [3., 4.]])
    >>> ge.group_embedding_lookup([table], [[1, 0, 1]])[0].numpy().tolist()
    [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]
    """
    params, ids = as_list("params", params), _as_list_of_ids("ids", ids, params)
    with tf.name_scope(name or "group_embedding_lookup"):
        lookups = _dense_lookups(params, partition_strategy, invalid_ids, feature_names)
        if isinstance(ids, RoutedIds):
            return _look_up_routed(lookups, ids, concat=False)
        features = _dense_features(lookups, ids)
        results = flow.look_up(lookups, flow.pack_ids(lookups, features), concat=False)
        return [feature_ids.restore_id_shape(r, f.values) for r, f in zip(results, features)]


@_as_it_is
def route_ids(
    params: Sequence[Table],
    ids: Sequence[SparseLike] | Sequence[TensorLike],
    combiners: Combiner | Sequence[Combiner] | None = None,
    partition_strategy: PartitionStrategy = "mod",
    sp_weights: Sequence[SparseLike | None] | None = None,
    name: str | None = None,
    *,
    max_norm: float | None | Sequence[float | None] = None,
    invalid_ids: InvalidIds = "raise",
    feature_names: Sequence[str] | None = None,
) -> RoutedIds:
    """Does the part of a lookup that needs its ids alone, and no value of a table: for a later
    lookup.

    All ids are packed into one buffer: one batch element, and one copy to a GPU. Where tables are
    spread over ranks, the ids are exchanged too, unless the GPUs of the ranks do that in the lookup
    itself. Results and gradients are those of a lookup without it, to the bit.

    In a function of a `tf.data.Dataset`, such as the one given to `map`, ids are packed only, and
    no other rank takes part: the lookup exchanges them, or a second `route_ids` that is given the
    packed ids. Batch the dataset before it packs. Packed ids can be prefetched, cached, saved with
    `Dataset.save` and `Dataset.snapshot`, and given to `fit`:

    >>> rows = tf.Variable([[1., 2.], [3., 4.], [5., 6.]])
    >>> clicks = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[0, 1], [2], [], [1]]))
    >>> for packed in clicks.batch(2).map(lambda ids: ge.route_ids([rows], [ids], "sum")):
    ...     print(ge.group_embedding_lookup_sparse([rows], packed, "sum")[0].numpy().tolist())
    [[4.0, 6.0], [5.0, 6.0]]
    [[0.0, 0.0], [3.0, 4.0]]

    Rows of keyed tables in several tiers begin to move to the first tier: from host memory to the
    GPU's on a CUDA stream of its own, from disk to memory in a thread. A training loop
    that routes the next batch after this one is looked up has the rows move while the model
    computes. Packed ids of a dataset are routed once more for that.

    Over ranks, a training loop that routes the next batch while it trains on this one has the
    exchange overlap the dense part of the model: that of ids, and with
    `ge.enable_distributed_strategy(ahead=True)` that of rows, too. Route between the forward pass
    and the gradients, in the same `tf.function`: functions keep exchanges in the order of the
    program, and what is dense runs beside them. Graphs of a `Session` know no order, and eagerly
    nothing overlaps. All ranks must route, and look up, alike. Gradients reach weights where the
    tape, or `tf.gradients`, has seen them being routed.

    Args:
        params, partition_strategy, max_norm, invalid_ids, feature_names: as the lookup will get
            them.
        ids: a list as `group_embedding_lookup_sparse` takes it, or `group_embedding_lookup`; or the
            `RoutedIds` that a dataset packed for the same lookup.
        combiners: for `group_embedding_lookup_sparse`, as it will get them; for
            `group_embedding_lookup`, None.
        sp_weights: as in `group_embedding_lookup_sparse`, which then gets none.
        name: of the operation.

    Returns:
        A `RoutedIds`, which the lookup takes in the place of the ids. The number of samples is no
        part of the static shapes of its results.

    Raises:
        TypeError, ValueError, tf.errors.InvalidArgumentError: as the lookup. A bad id raises here,
            on all ranks and with the number of the rank that has it, if the ids of its table are
            exchanged here; else where it is looked up.

    Example:

    >>> table = tf.Variable([[1., 2.], [3., 4.], [5., 6.]])
    >>> optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.1))
    >>> def route(ids):
    ...     return ge.route_ids([table], [ids], "sum")
    >>> @tf.function
    ... def step(routed, next_ids):
    ...     with tf.GradientTape() as tape:
    ...         (vectors,) = ge.group_embedding_lookup_sparse([table], routed, "sum")
    ...         loss = tf.reduce_sum(vectors)  # the dense part of a model
    ...     routed_next = route(next_ids)
    ...     optimizer.apply_gradients([(tape.gradient(loss, table), table)])
    ...     return loss, routed_next
    >>> batches = [tf.ragged.constant([[0, 1]]), tf.ragged.constant([[2], []])]
    >>> routed = route(batches[0])
    >>> for next_ids in [*batches[1:], batches[0]]:  # the last is for the step after
    ...     loss, routed = step(routed, next_ids)
    ...     print(loss.numpy())
    10.0
    11.0
    """
    params, ids = as_list("params", params), _as_list_of_ids("ids", ids, params)
    with tf.name_scope(name or "route_ids"):
        if combiners is None:
            check_is_none("sp_weights", sp_weights, "without combiners")
            check_is_none("max_norm", max_norm, "without combiners")
            lookups = _dense_lookups(params, partition_strategy, invalid_ids, feature_names)
        else:
            lookups = _sparse_lookups(
                params, combiners, partition_strategy, max_norm, invalid_ids, feature_names
            )
        if isinstance(ids, RoutedIds):
            check_is_none("sp_weights", sp_weights, "as routed ids have their weights")
            batches, axes = from_routed_ids(lookups, ids)
        elif combiners is None:
            features = _dense_features(lookups, ids)
            batches = flow.pack_ids(lookups, features)
            axes = [feature_ids.id_axes(feature.values) for feature in features]
        else:
            batches = flow.pack_ids(lookups, _sparse_features(lookups, ids, sp_weights))
            axes = [feature_ids.sample_axes(i) for i in ids]
        if not _is_in_dataset():
            batches = flow.go_ahead(lookups, batches)
        return to_routed_ids(lookups, batches, axes)


# Rows read one by one, as by `tf.gather(table, keys)`, are looked up too.
EmbeddingVariable._group_embedding_lookup = staticmethod(group_embedding_lookup)


def _is_in_dataset():
    """Returns whether the code runs in a function of a `tf.data.Dataset`, as given to `map`. A
    dataset runs it in its own threads, any number of batches ahead: it must not wait for ranks.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        name = getattr(graph, "name", None) or ""
        # The body of a loop over a dataset in a tf.function is named as if the dataset ran it.
        if name.startswith("Dataset_") and not name.startswith("Dataset_scan_scan_body"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _as_list_of_ids(name, ids, params):
    """A list as long as `params`, or RoutedIds."""
    if isinstance(ids, RoutedIds):
        return ids
    ids = as_list(name, ids)
    check_length(name, ids, "params", len(params))
    return ids


def _sparse_lookups(params, combiners, partition_strategy, max_norm, invalid_ids, names):
    count = len(params)
    combiners = per_lookup("combiners", combiners, count)
    for combiner in combiners:
        check_word("combiners", combiner, COMBINERS)
    max_norms = per_lookup("max_norm", max_norm, count)
    names = lookup_names("sp_ids", names, count)
    return _lookups(params, max_norms, combiners, partition_strategy, invalid_ids, names, True)


def _dense_lookups(params, partition_strategy, invalid_ids, names):
    count = len(params)
    names = lookup_names("ids", names, count)
    given = ([None] * count, ["sum"] * count, partition_strategy, invalid_ids, names)
    return _lookups(params, *given, prune_negative=False)


def _lookups(params, max_norms, combiners, partition_strategy, invalid_ids, names, prune_negative):
    check_word("partition_strategy", partition_strategy, ("mod", "div"))
    check_word("invalid_ids", invalid_ids, INVALID_IDS)
    tables = [make_table(p, norm, i) for i, (p, norm) in enumerate(zip(params, max_norms))]
    return Lookups(tables, names, combiners, prune_negative, invalid_ids)


def _look_up_sparse(lookups, sp_ids, sp_weights, concat):
    batches = flow.pack_ids(lookups, _sparse_features(lookups, sp_ids, sp_weights))
    results = flow.look_up(lookups, batches, concat)
    if concat:
        return feature_ids.restore_sample_shape(results, sp_ids[0])
    return [feature_ids.restore_sample_shape(r, ids) for r, ids in zip(results, sp_ids)]


def _sparse_features(lookups, sp_ids, sp_weights):
    weights = [None] * len(sp_ids) if sp_weights is None else as_list("sp_weights", sp_weights)
    check_length("sp_weights", weights, "sp_ids", len(sp_ids))
    return [feature_ids.from_rows(*given) for given in zip(lookups.names, sp_ids, weights)]


def _dense_features(lookups, ids):
    return [feature_ids.from_dense(*given) for given in zip(lookups.names, ids)]


def _look_up_routed(lookups, routed_ids, concat):
    batches, axes = from_routed_ids(lookups, routed_ids)
    results = flow.look_up(lookups, batches, concat)
    if concat:
        return feature_ids.restore_axes(results, axes[0])
    return [feature_ids.restore_axes(*given) for given in zip(results, axes)]
