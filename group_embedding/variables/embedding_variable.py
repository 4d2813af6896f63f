"""A table whose rows are found by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.saved_model import registration

from group_embedding.annotations import DTypeLike, Initializer, TensorLike
from group_embedding.checkpoint.by_name import SavedByName
from group_embedding.checkpoint.initial_checkpoint import find_start
from group_embedding.ops import embedding_table, table_budget, table_keys
from group_embedding.ops.read_rows import read_rows
from group_embedding.placement import no_saved_model
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.make_sharded_table import table_is_made
from group_embedding.ranks.sharding.replica_tables import is_over_replicas
from group_embedding.variables import over_ranks
from group_embedding.variables.admission import admission_of, budget_of, eviction_of
from group_embedding.variables.initial_values import make_initial_values
from group_embedding.variables.key_types import to_int64, to_keys
from group_embedding.variables.keyed_options import TableOptions, to_keyed_options
from group_embedding.variables.live_tables import remember
from group_embedding.variables.placeholder_variable import PlaceholderVariable
from group_embedding.variables.steps import current_step, make_step
from group_embedding.variables.storage import plan_storage
from group_embedding.variables.table_resource import TableResource


@registration.register_serializable(package="group_embedding")
class EmbeddingVariable(PlaceholderVariable, SavedByName):
    """A trainable table with a row for every 64-bit key that was trained.

    Made by `get_embedding_variable`. To TensorFlow it is a variable of shape [0, dim], which stands
    in for the table where gradients are taken, variables are collected and optimizers make slots;
    the rows lie in a native table, which lookups read and wrapped optimizers update. A layer of
    Keras 2 tracks it as an attribute, one of Keras 3 what `layers.as_keras_variable` makes of it.

    Over several ranks all make the table, in the same order as others, and keys start as rank 0
    draws them. Each key has its row on one of the ranks, where lookups find it. The methods
    `total_count`, `export` and those with arguments of keys cover this rank's keys, or, with
    `gather=True`, of those of all ranks: then every rank must call them. `insert` and `erase` take
    any keys, and every rank does what concerns its own.

    Attributes:
      step: Where the versions of keys come from: the step in which a key was trained last. None,
        a number or a scalar variable, such as a Keras optimizer's `iterations`. None means, in a
        graph of TensorFlow 1, the graph's global step, if it has one; else `trained_steps`.
      trained_steps: A variable with the number of steps in which wrapped optimizers have trained
        the table. Only for a table that evicts by steps or has a budget, outside of graphs of
        TensorFlow 1; else None.
      key_dtype: int32, int64, uint32 or uint64.
      ev_option: The options as they were given: KeyedOptions or an EmbeddingVariableOption.
      options: The same as KeyedOptions.
      rows: The TableResource.
      exchange: The Exchange that the ranks share it by.
      placement: How its keys are spread over ranks; None: there is one rank.
    """

    # `group_embedding_lookup`, which takes tables of this class; `group_embedding.lookups` sets it.
    _group_embedding_lookup: Callable[..., list[tf.Tensor]]
    _is_frozen = False  # as a variable of Keras 3 may be, unlike a `tf.Variable`

    def __init__(
        self,
        name: str,
        embedding_dim: int,
        key_dtype: DTypeLike = tf.int64,
        value_dtype: DTypeLike = tf.float32,
        initializer: Initializer = None,
        trainable: bool = True,
        collections: Sequence[str] | None = None,
        ev_option: TableOptions | None = None,
        placement: str | None = None,
        exchange: Any = None,
        starts_like: Any = None,
    ) -> None:
        _check_name(name)
        self.key_dtype = tf.as_dtype(key_dtype)
        self.options = to_keyed_options(name, ev_option)
        _check_before_admission(name, self.options.value_before_admission, value_dtype)
        self.ev_option = ev_option or self.options
        self.step = None
        if exchange is None:
            _check_no_strategy(name)
        storage = plan_storage(name, self.options)
        self.exchange = exchange or current()
        self.placement = over_ranks.placement_of_table(name, placement, self.exchange, storage)
        with tf.init_scope(), tf.device(storage.device):
            super().__init__(name, embedding_dim, value_dtype, trainable, collections)
            self._make_table(initializer, storage, starts_like)
            self.trained_steps = make_step(self)
        if self.placement is not None:
            table_is_made()
        remember(self)

    def _make_table(self, initializer, storage, starts_like):
        table_name, dim, options = self._table_name, self.shape[1], self.options
        with tf.device("/CPU:0"):  # so that they are the same wherever the table is
            if starts_like is not None:
                initial = starts_like._initial
            else:
                initial = make_initial_values(
                    table_name, initializer, options.num_initial_rows, dim, self.dtype
                )
                initial = over_ranks.start_as_first_rank(self, initial)
        self._initial = initial
        start = _start(table_name, options, dim, self.dtype)
        self._first_step = 0 if start is None else start.step

        budget = budget_of(options, *over_ranks.rank_of_owners(self))

        def initialize(handle, if_needed):
            return embedding_table.initialize(
                handle,
                self.key_dtype,
                initial,
                options.value_before_admission,
                options.slot_dtype,
                admission_of(options),
                storage.attributes,
                budget,
                if_needed,
            )

        with tf.name_scope(f"{table_name}/"):
            rows = TableResource(
                table_name,
                initialize,
                storage.device,
                self.current_step,
                eviction_of(options),
                over_ranks.share_of(self),
                start,
                options.start_again,
            )
            self.rows = self._track_trackable(rows, "table")
            made = self.rows.initialize()
        if not tf.executing_eagerly():
            self._initializer_op = tf.group(self._initializer_op, made)

    @property
    def learns(self) -> bool:
        """True if lookups that are differentiated insert and count keys."""
        return self.trainable and not self._is_frozen

    def freeze(self, is_frozen: bool) -> None:
        """Has lookups made from now on insert and count no keys, or do so again."""
        self._is_frozen = is_frozen

    @property
    def has_tiers(self) -> bool:
        """True if rows move between several tiers: GPU memory, host memory, disk."""
        return len(self.options.tiers) > 1

    @property
    def _owner(self):
        """The table in error messages."""
        return f"table '{self._table_name}'"

    @property
    def table_handle(self) -> tf.Tensor:
        """The handle of the native table."""
        return self.rows.resource_handle

    @property
    def slot_dtype(self) -> tf.DType:
        """The type of the optimizer's slots."""
        return tf.as_dtype(self.options.slot_dtype or self.dtype)

    @property
    def rounds_slots(self) -> bool:
        """True if the optimizer's slots are rounded at random."""
        return self.options.slot_dtype == "bfloat16"

    def current_step(self) -> tf.Tensor:
        """The step of a lookup made now: a tensor or None."""
        return current_step(self)

    def total_count(self, gather: bool = False) -> tf.Tensor:
        """How many keys have a row: a scalar."""
        count = self._stats().num_keys
        return over_ranks.sum_over_ranks(self, count) if gather else count

    def get_dynamic_shape(self) -> tf.Tensor:
        """`[keys that have a row, dim]`, an int64 vector: DeepRec's shape of the table."""
        with tf.device("/CPU:0"):
            return tf.stack([tf.cast(self.total_count(), tf.int64), int(self.shape[1])])

    def get_frequency(self, ids: TensorLike, gather: bool = False) -> tf.Tensor:
        """How often each key was trained, once per occurrence; also of those that a filter has not
        admitted (a Bloom filter may say more). 0: never."""
        return self._find(ids, gather).frequencies

    def get_version(self, ids: TensorLike, gather: bool = False) -> tf.Tensor:
        """The step in which each key was trained last; -1 for those without a row, or a step."""
        return self._find(ids, gather).versions

    def lookup_tier(self, ids: TensorLike, gather: bool = False) -> tf.Tensor:
        """The one of `options.tiers` in which each key's row lies, 0 the fastest; -1: no row."""
        return self._find(ids, gather).tiers

    def export(self, gather: bool = False) -> Any:
        """All keys that have a row, ascending: (keys, values, versions, freqs)."""
        with tf.device(self.device):
            found = table_keys.export_table(
                self.table_handle, self.dtype, self.shape[1], self.key_dtype.is_unsigned
            )
        with tf.device("/CPU:0"):
            if gather:
                found = over_ranks.gather_export(self, found)
            return found._replace(keys=self._from_int64(found.keys))

    def insert(
        self,
        keys: TensorLike,
        values: TensorLike,
        versions: TensorLike | None = None,
        freqs: TensorLike | None = None,
    ) -> Any:
        """Gives keys rows of these values, [keys, dim], whatever the filter says; their slots get
        initial values. If a key repeats, its last row counts. Without versions or freqs, one per
        key, keys that had a row keep theirs. Frequencies are 0 or more; those above `2**62` count
        as `2**62`. Versions and frequencies that are no integers are refused. Returns the op."""
        none = np.zeros([0], np.int64)
        with tf.device("/CPU:0"):
            rows = [
                self._to_int64(keys),
                tf.cast(tf.convert_to_tensor(values), self.dtype),
                to_int64(none if versions is None else versions, self._owner, "versions"),
                to_int64(none if freqs is None else freqs, self._owner, "freqs"),
            ]
            rows = over_ranks.rows_of_this_rank(self, *rows)
        with tf.device(self.device):
            return table_keys.insert_keys(self.table_handle, *rows)

    def erase(self, ids: TensorLike) -> Any:
        """Forgets keys: rows, slots, counts. Returns how many had a row here."""
        keys = self._to_int64(ids)
        with tf.device(self.device):
            return table_keys.erase_keys(self.table_handle, keys)

    def evict(self, step: TensorLike | None = None) -> Any:
        """Forgets the keys that `options` evict. Returns how many.

        Args:
            step: of now, for `evict_after_steps`; None: as `self.step` says.

        Raises:
            ValueError: `evict_after_steps` without a step, or a step that is no integer of 0 or
                more.
        """
        eviction = self.rows.eviction
        if eviction.kind == "none":
            return tf.constant(0, tf.int64)
        if "global_step" not in eviction.kind:
            with tf.device("/CPU:0"):
                step = tf.constant(-1, tf.int64)  # no step is asked for
        else:
            step = self.current_step() if step is None else step
            if step is None:
                raise ValueError(
                    f"table '{self._table_name}': GlobalStepEvict needs the step of now: "
                    "evict(step=...), or set the variable's attribute `step`"
                )
            step = self._checked_step(step)
        with tf.device(self.device):
            return table_keys.evict_keys(self.table_handle, step, eviction)

    def _checked_step(self, step):
        with tf.device("/CPU:0"):
            step = to_int64(step, self._owner, "step")
        value = tf.get_static_value(step)
        if value is not None and value < 0:
            raise ValueError(f"{self._owner}: expected step to be 0 or more, got {value}")
        return step

    def set_scores(self, ids: TensorLike, scores: TensorLike) -> Any:
        """Sets the scores by which keys are evicted, the lowest first, of those that have a row.

        Call it after the step that trained the keys: a new key has score 0 until then. Over several
        ranks each gives keys of its own batch, and all must call it.

        Args:
            ids: keys, of any shape; of one that comes several times the highest score counts.
            scores: float32, of the same shape.

        Returns:
            The op.

        Raises:
            tf.errors.InvalidArgumentError: when it runs: the table does not have evict="score".
        """
        with tf.device("/CPU:0"):
            keys, scores = self._to_int64(ids), tf.cast(scores, tf.float32)
            keys, scores = over_ranks.scores_of_own_keys(self, keys, scores)
        with tf.device(self.device):
            return table_budget.set_scores(self.table_handle, keys, scores)

    def set_time(self, seconds: TensorLike) -> Any:
        """Sets the time of the batches that come, in place of the clock's.

        Over several ranks each sets the time of its own rows: give the same on all, or other keys
        go than on one rank. Without it each rank reads its own clock.

        Args:
            seconds: since 1970, a scalar: the time of the events that are trained.

        Returns:
            The op.

        Raises:
            tf.errors.InvalidArgumentError: when it runs: the table does not evict by time.
        """
        with tf.device("/CPU:0"):
            minute = tf.cast(seconds, tf.int64) // 60
        with tf.device(self.device):
            return table_budget.set_time(self.table_handle, minute)

    def budget_counts(self) -> table_budget.BudgetCounts:
        """Counts how this rank has kept the table's budget: four scalars, all 0 without one:
        `max_keys`, how many keys it may have; `evicted`, keys that went; `without_place`, how often
        a new key found no place; `missed`, evicted keys that `take_evicted` was too late for."""
        with tf.device(self.device):
            return table_budget.budget_counts(self.table_handle)

    def take_evicted(self) -> Any:
        """The keys that a table with a budget has evicted on this rank since the last call, for new
        keys, with a save or by `evict`, in any order: (keys, values, versions, freqs). With
        `hand_out="keys"` there are no values. The table keeps them until then, but no more than an
        eighth of the budget and what one eviction takes, of which `max_bytes` may have no place for
        all: call it every few steps, or let `ge.hand_out_evicted` and its hook and callback do
        it."""
        with tf.device(self.device):
            found = table_budget.take_evicted(self.table_handle, self.dtype, self.shape[1])
        with tf.device("/CPU:0"):
            return found._replace(keys=self._from_int64(found.keys))

    def memory_bytes(self) -> Any:
        """Bytes in use: of rows, slots, what is kept of each row, and the index; a scalar."""
        return self._stats().memory_bytes

    def load_factor(self) -> Any:
        """How full the index is, 0 to 1; a scalar."""
        return self._stats().load_factor

    def _stats(self):
        with tf.device(self.device):
            return table_keys.table_stats(self.table_handle)

    def _find(self, ids, gather):
        keys = self._to_int64(ids)
        with tf.device(self.device):
            found = table_keys.find_keys(self.table_handle, keys)
        with tf.device("/CPU:0"):
            found = over_ranks.counts_of_own_keys(self, keys, found)
        return over_ranks.gather_found(self, found) if gather else found

    def _to_int64(self, keys):
        with tf.device("/CPU:0"):
            keys = to_keys(keys, self.key_dtype, self._owner)
            if self.key_dtype == tf.uint64:
                return tf.bitcast(keys, tf.int64)
            return tf.cast(keys, tf.int64)

    def _from_int64(self, keys):
        if self.key_dtype == tf.uint64:
            return tf.bitcast(keys, tf.uint64)
        return tf.cast(keys, self.key_dtype)

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        with tf.name_scope(name or "is_initialized"), tf.device(self.device):
            table = embedding_table.is_initialized(self.table_handle)
            return tf.logical_and(super().is_initialized(), table)

    def _export_to_saved_model_graph(self, *args, **kwargs):
        if self.placement is not None and not is_over_replicas(self.exchange):
            raise no_saved_model(self._table_name, self.exchange.num_ranks)
        return super()._export_to_saved_model_graph(*args, **kwargs)

    def __repr__(self):
        return (
            f"<EmbeddingVariable '{self._table_name}' dim={self.shape[1]} "
            f"key_dtype={self.key_dtype.name} dtype={self.dtype.name}>"
        )

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> tf.Tensor:
        """The rows of keys, [..., dim]: what `tf.gather` and `tf.nn.embedding_lookup` call."""
        if self._is_only_read(indices):
            resource_variable_ops.variable_accessed(self)
            keys = self._to_int64(indices)
            with tf.device(self.device):
                return read_rows(self.table_handle, keys, self.dtype, self.shape[1])
        lookup = type(self)._group_embedding_lookup
        (rows,) = lookup([self], [indices], name=name or "sparse_read")
        return rows

    def _is_only_read(self, ids):
        """Returns whether a single op can serve a lookup of `ids` made now: in eager code, without
        a tape that may need its gradient, in host memory, and without keys of other ranks."""
        return (
            tf.executing_eagerly()
            and not record.could_possibly_record()
            and isinstance(ids, tf.Tensor)
            and ids.dtype == self.key_dtype
            and self.placement is None
            and "GPU" not in self.device
        )


def _start(name, options, dim, dtype):
    """The start that KeyedOptions name, or None."""
    if options.start_from is None:
        return None
    return find_start(name, options.start_from, options.start_from_name or name, dim, dtype)


def _check_name(name):
    """Refuses a name that TensorFlow would cut: "clicks:v1" is output "v1" of "clicks"."""
    if not isinstance(name, str) or not name or ":" in name:
        raise ValueError(
            f"table {name!r}: expected a name that is a string, not empty and without ':', after "
            "which TensorFlow writes an output's number; use another sign, such as '.' or '_'"
        )


def _check_before_admission(name, value, dtype):
    """Refuses a value that rows of this type have as infinity."""
    dtype = tf.as_dtype(dtype)
    with np.errstate(over="ignore"):
        read = np.float32(value).astype(dtype.as_numpy_dtype)
    if not np.isfinite(float(read)):
        raise ValueError(
            f"table '{name}': expected value_before_admission from {dtype.min} to {dtype.max}, "
            f"which rows of {dtype.name} can have, got {value!r}"
        )


def _check_no_strategy(name):
    if tf.distribute.has_strategy():
        strategy = type(tf.distribute.get_strategy()).__name__
        raise ValueError(
            f"table '{name}': expected to be made outside of the scope of a tf.distribute "
            f"strategy, which has no copies of tables of keys, got {strategy}; train without one, "
            'over ranks: group_embedding.enable_distributed_strategy("collective"), or over the '
            "replicas of a MirroredStrategy: call group_embedding.sok.Init() in its scope, and "
            "make it by get_embedding_variable or a layer of sok"
        )
