"""`DynamicVariable`: tables whose rows are found by key."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.saved_model import registration

from group_embedding.compat.sok.rank_gradients import summed_over_ranks
from group_embedding.compat.sok.sok_tables import (
    check_mode,
    name_of,
    next_name,
    target_of,
    to_initializer,
)
from group_embedding.config import TABLE_DTYPES
from group_embedding.lookups import group_embedding_lookup
from group_embedding.types import DTypeLike, Initializer, TensorLike
from group_embedding.variables import (
    KEY_DTYPES,
    EmbeddingVariable,
    KeyedOptions,
    check_dim,
    check_dtype,
    read_rows,
    widened,
)

_TIERS = {
    None: ("dram",),
    "hbm": ("hbm",),
    "hybrid": ("hbm", "dram"),
}
# The words are HierarchicalKV's. SOK takes the first and the last of them.
_EVICT_FIRST = {"kLru": "least_recent", "kLfu": "least_frequent", "kCustomized": "score"}
_INSTEAD = {
    "kEpochLru": "; SOK's tables have no epochs; use 'kLru'",
    "kEpochLfu": "; SOK's tables have no epochs; ge.keyed_table(max_keys=..., budget_of='rank', "
    "evict='decayed_frequency', decay_steps=...) halves counts as they age",
}
# SOK's max_capacity where none is given.
_MAX_CAPACITY = 2**26
# No GPU has more. SOK counts GiB and HierarchicalKV bytes, so a larger number is one of bytes.
_MAX_GIB = 1024


class Config(NamedTuple):
    """SOK's options of a table beside its type."""

    init_capacity: int | None
    max_capacity: int | None
    filter_ratio: float
    evict_strategy: str | None = None
    max_hbm_for_vectors: float | None = None

    @property
    def capacity(self) -> int:
        """`max_capacity`, or SOK's where none is given."""
        return int(self.max_capacity or _MAX_CAPACITY)


@registration.register_serializable(package="group_embedding")
class DynamicVariable(EmbeddingVariable):
    """A table with a row for every key that was trained: an EmbeddingVariable.

    Trained by `OptimizerWrapper`. Every integer of `key_type` is a key: none is kept back, and a
    key may come twice in a batch. Keys that are looked up and not trained read what they would
    start from, and take no memory; SOK inserts them. A key's version is the time, in microseconds
    since 1970, at which it was trained or assigned last.

    Args:
        dimension: length of a row, 1 to 4096.
        initializer: what rows start as: one of TensorFlow or Keras; a number, also as a string;
            'random' or None: uniform between -0.05 and 0.05. It draws 4,096 rows once; key k starts
            as row `k % 4096` of them.
        var_type: 'hbm': rows lie in a GPU's memory; 'hybrid': in both; None: in host memory, or,
            with a capacity, `evict_strategy` or `max_hbm_for_vectors`, as 'hybrid'. Where there is
            no GPU all lie in host memory, and a warning says so.
        name: of the table; None: a number of its own. Dumps know tables by it.
        constraint: must be None.
        trainable: whether training changes the table.
        key_type: int64, int32, uint64 or uint32. None: int64. Lookups take ids of a narrower
            integer type too.
        dtype: of the rows: float32, float16 or bfloat16. None: float32.
        mode: 'distributed': keys are spread over the ranks; `'localized:<rank>'`: all are on that
            one. None means 'distributed'.
        **config: SOK's options of 'hybrid' tables, see below.

    Options:

    - `init_capacity`, `max_capacity`: numbers of rows. The larger is the number of rows of a
      'hybrid' table, without optimizers' slots, that the GPU's memory holds; further rows are in
      host memory. A table of 'hbm' grows with its keys, and needs neither.
    - `evict_strategy`: with one, the table never has more than `max_capacity` keys on a rank (None:
      `2**26`). Before new keys would exceed the limit, the table evicts keys until nine tenths of
      it are left. 'kLru' evicts the keys that were trained or assigned longest ago, 'kLfu' the keys
      that were trained least often, 'kCustomized' the keys with the lowest scores, which
      `set_scores` gives. The lowest of all keys go; HierarchicalKV evicts the lowest of a bucket.
      Where a batch has more new keys than there are places, the others read what they would start
      as, and are not trained.
    - Without `evict_strategy`, where SOK takes 'kLru', a table grows without a limit, and only
      `sparse_read_and_evict` keeps to `max_capacity` (None: `2**26`).
    - `max_hbm_for_vectors`: how many GiB of the GPU's memory rows, slots and what is kept of each
      row take, whatever the capacities say; a fraction is possible. Further rows are in host
      memory. 0: all rows are in host memory.
    - `filter_ratio`, above 0 to 1: with what probability a new key gets a row where `lookup_sparse`
      filters; None means 1.

    SOK's other options are refused, as a table chooses its parts itself.

    Attributes:
        backend_type: 'hybrid', also of var_type None, or 'hbm'.
        target_gpu: the rank of a 'localized' table, -1 of a 'distributed' one.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names the table.

    Example:

    >>> table = ge.sok.DynamicVariable(dimension=2, initializer="13")
    >>> tf.nn.embedding_lookup(table, [7, 2**40]).numpy().tolist()
    [[13.0, 13.0], [13.0, 13.0]]
    >>> ge.sok.assign(table, [7], [[1., 2.]])
    >>> table.size.numpy().tolist()
    [1, 2]
    """

    def __init__(
        self,
        dimension: int,
        initializer: Initializer = None,
        var_type: str | None = None,
        name: str | None = None,
        constraint: Any = None,
        trainable: bool = True,
        key_type: DTypeLike | None = None,
        dtype: DTypeLike | None = None,
        mode: str | None = None,
        **config: Any,
    ) -> None:
        name = name or next_name("sok_dynamic_Variable")
        owner = f"table '{name}'"
        if constraint is not None:
            raise ValueError(f"{owner}: expected no constraint, which no update of rows asks for")
        self.mode = check_mode(owner, mode)
        dtype = check_dtype(name, "dtype", dtype or tf.float32, TABLE_DTYPES)
        dim = check_dim(name, dimension)
        self.backend_type = var_type or "hybrid"
        self.target_gpu = target_of(self.mode)
        self.config = read_config(owner, **config)
        super().__init__(
            name,
            dimension,
            check_dtype(name, "key_type", key_type or tf.int64, KEY_DTYPES),
            dtype,
            to_initializer(owner, initializer),
            trainable,
            ev_option=keyed_options(owner, var_type, dim * dtype.size, self.config),
            placement=self.mode,
        )
        # All ranks must give a checkpoint the same step, and their clocks differ.
        self.rows.current_step = lambda: None

    @property
    def dimension(self) -> int:
        """The length of a row."""
        return self.shape[1]

    @property
    def key_type(self) -> tf.DType:
        """The type of keys."""
        return self.key_dtype

    @property
    def size(self) -> tf.Tensor:
        """int64 [2]: how many keys have a row on this rank, and the length of a row."""
        return tf.stack([tf.cast(self.total_count(), tf.int64), self.dimension])

    def current_step(self) -> tf.Tensor:
        """Now, in microseconds since 1970."""
        with tf.device("/CPU:0"):
            return tf.cast(tf.timestamp() * 1e6, tf.int64)

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> tf.Tensor:
        """The rows of keys, [..., dim]: what `tf.nn.embedding_lookup` calls.

        Over several ranks every rank must call it, with keys of its own. A 'localized' table is
        read by its rank alone, as SOK reads what a rank has: without the others, and without a
        gradient, which `all2all_dense_embedding` gives.

        Raises:
            ValueError: another rank reads a 'localized' table.
        """
        with tf.name_scope(name or "sparse_read"):
            if self.placement is None or self.placement.kind != "one_rank":
                keys = widened(tf.convert_to_tensor(indices), self.key_dtype)
                return summed_over_ranks(group_embedding_lookup([self], [keys])[0], self)
            if self.placement.rank != self.exchange.rank:
                raise ValueError(
                    f"table '{name_of(self)}': expected to be read on rank {self.placement.rank}, "
                    f"which has its rows, got rank {self.exchange.rank}; every rank reads it by "
                    "sok.all2all_dense_embedding"
                )
            keys = self._to_int64(widened(tf.convert_to_tensor(indices), self.key_dtype))
            with tf.device(self.device):
                return read_rows(self.table_handle, keys, self.dtype, self.shape[1])


def read_config(
    owner,
    init_capacity=None,
    max_capacity=None,
    filter_ratio=None,
    evict_strategy=None,
    max_hbm_for_vectors=None,
    **others,
):
    """The Config of a table."""
    if others:
        raise ValueError(
            f"{owner}: expected no {', '.join(others)}, as a table grows with its keys and chooses "
            "its parts itself; leave it out"
        )
    for name, rows in (("init_capacity", init_capacity), ("max_capacity", max_capacity)):
        if rows is not None and not (_is_number(rows) and rows >= 1 and rows % 1 == 0):
            raise ValueError(f"{owner}: expected {name} to be a positive int, got {rows!r}")
    ratio = 1.0 if filter_ratio is None else filter_ratio
    if not _is_number(ratio) or not 0 < ratio <= 1:
        raise ValueError(f"{owner}: expected filter_ratio above 0, at most 1, got {filter_ratio!r}")
    if evict_strategy is not None and evict_strategy not in tuple(_EVICT_FIRST):
        raise ValueError(
            f"{owner}: expected evict_strategy 'kLru', 'kLfu' or 'kCustomized', got "
            f"{evict_strategy!r}{_INSTEAD.get(str(evict_strategy), '')}"
        )
    gib = max_hbm_for_vectors
    if gib is not None and (not _is_number(gib) or not 0 <= gib <= _MAX_GIB):
        raise ValueError(
            f"{owner}: expected max_hbm_for_vectors in GiB, 0 to {_MAX_GIB}, got {gib!r}"
        )
    return Config(init_capacity, max_capacity, float(ratio), evict_strategy, gib)


def _is_number(value):
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def keyed_options(owner, var_type, row_bytes, config):
    """The KeyedOptions of a DynamicVariable's var_type and Config."""
    if var_type not in _TIERS:
        raise ValueError(f"{owner}: expected var_type None, 'hbm' or 'hybrid', got {var_type!r}")
    _check_var_type(owner, var_type, config)
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    gib = config.max_hbm_for_vectors
    hbm_bytes = None if gib is None else int(gib * 2**30)
    if hbm_bytes and not has_gpu:
        raise ValueError(
            f"{owner}: TensorFlow sees no GPU for max_hbm_for_vectors={gib!r}; leave it out, or "
            "give 0, and all rows lie in host memory"
        )
    capacities = [rows for rows in (config.init_capacity, config.max_capacity) if rows is not None]
    if hbm_bytes == 0:
        var_type = None
    elif var_type is None and (capacities or config.evict_strategy or hbm_bytes):
        var_type = "hybrid"
    if var_type is not None and not has_gpu:
        warnings.warn(
            f"{owner}: its rows lie in host memory, as TensorFlow sees no GPU for var_type "
            f"{var_type!r}",
            stacklevel=3,
        )
        var_type = None
    if hbm_bytes is None and capacities:
        hbm_bytes = int(max(capacities)) * row_bytes
    sizes = [hbm_bytes] if var_type == "hybrid" and hbm_bytes else None
    return KeyedOptions(tiers=_TIERS[var_type], tier_bytes=sizes, **_budget_of(config))


def _budget_of(config):
    if config.evict_strategy is None:
        return {}
    evict = _EVICT_FIRST[config.evict_strategy]
    return {"max_keys": config.capacity, "budget_of": "rank", "evict": evict}


def _check_var_type(owner, var_type, config):
    """Refuses options of 'hybrid' tables for one of 'hbm', where SOK leaves them without effect."""
    if var_type != "hbm":
        return
    if config.evict_strategy is not None:
        raise ValueError(
            f"{owner}: expected var_type 'hybrid', as evict_strategy is given, got 'hbm'; SOK's "
            "tables of 'hbm' evict no keys, ge.keyed_table(tiers=['hbm'], max_keys=..., "
            "budget_of='rank') makes one that does"
        )
    if config.max_hbm_for_vectors is not None:
        raise ValueError(
            f"{owner}: expected var_type 'hybrid', as max_hbm_for_vectors is given, got 'hbm', "
            "which has all rows in GPU memory; leave it out"
        )
