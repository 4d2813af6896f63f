"""The bytes of a key of a keyed table, measured of a small table that a copy of the optimizer
trains for a step: with all slots and options, as this version makes them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.lookups import group_embedding_lookup
from group_embedding.ops._library import core
from group_embedding.optimizers import WRAPPED, wrap
from group_embedding.ranks.exchange.active import unsharded
from group_embedding.variables import EmbeddingVariable, KeyedOptions, keyed_options
from group_embedding.variables.live_tables import unlisted

_MOST_KEYS = 1 << 15
_MOST_NUMBERS = 1 << 24  # of a table's rows

# GPU memory beside a row and its slots there: what is kept of it, and its part of the index.
_HBM_BYTES_OF_ROW = 32
HBM_BYTES_OF_KEY = _HBM_BYTES_OF_ROW + 17
# GPU memory of a row in host memory below.
HBM_BYTES_OF_ROW_BELOW = 40 + 17
_STORE_BYTES = 64 << 20  # as of MemoryOfStore in cc/table/budget.h

HEAD_BYTES = 32  # of a row below the first tier: key, count, version and clock
# RocksDB's files take so many times the bytes of their records, until it compacts them.
_FILES_OF_RECORDS = 2
# Host memory of a record in a file: ten bits of a filter, and an entry for each block of records
# (cc/table/disk/rocksdb_handles.cc).
_FILTER_BYTES, _ENTRY_BYTES, _BLOCK_BYTES = 1.25, 15, 1024


@dataclasses.dataclass(frozen=True)
class TableBytes:
    """Bytes of a table with any number of keys.

    Attributes:
        fixed: {first tier: bytes without keys}: initial rows, which a tier of limited size in GPU
            memory has among its rows.
        filter: of a Bloom filter, in the first tier.
        row: of a key's row and slots.
        kept: of what is kept of a key, and its part of the index, in host memory.
        store: of host memory that a disk takes at most for buffers, which updates fill, however
            few rows there are, and for blocks that were read.
        max_keys: of a rank, that a budget of bytes allows; None: there is none.
    """

    fixed: dict[str, float]
    filter: float
    row: float
    kept: float
    store: int
    max_keys: int | None = None

    def of_disk(self, num_rows: float) -> tuple[float, float]:
        """(bytes on disk, those of host memory) that RocksDB takes at most for so many rows."""
        record = self.row + HEAD_BYTES
        in_memory = _FILTER_BYTES + _ENTRY_BYTES * min(1.0, record / _BLOCK_BYTES)
        # Beside the records there are four files of a buffer each, which are not compacted yet.
        return (
            self.store + num_rows * _FILES_OF_RECORDS * record,
            self.store + num_rows * _FILES_OF_RECORDS * in_memory,
        )


def measure(
    name: str, dim: int, dtype: str, options: KeyedOptions, optimizer: Any, num_ranks: int
) -> TableBytes:
    """Measures a table in host memory.

    Args:
        name: of the table, for messages.
        num_ranks: among which a budget of all ranks is divided.
        options: those that say where rows lie, and from where they start do not matter.
        optimizer: of Keras; None: rows have no slots.
    """
    kind, plain = (name, dim, dtype), _plain(options)
    keys = np.arange(max(1, min(_MOST_KEYS, _MOST_NUMBERS // dim)))
    with unsharded(), tf.device("/CPU:0"):
        empty = _empty_bytes(kind, plain)
        filter_bytes = _filter_bytes(kind, plain, options, empty)
        initial_row = (
            _empty_bytes(kind, plain, num_initial_rows=1 + _FEW_ROWS) - empty
        ) / _FEW_ROWS
        with _table(kind, plain) as table:
            sizes = list(_grown(table, keys))
        slots = 0.0
        if optimizer is not None:
            with _table(kind, plain) as table:
                _train(table, keys, optimizer)
                slots = (int(table.memory_bytes()) - sizes[-1][1]) / len(keys)
        max_keys = _keys_of_bytes(kind, options, optimizer, num_ranks)
    row = dim * tf.as_dtype(dtype).size
    # The index grows in parts, so that its bytes of a key vary until there are twice as many keys.
    of_key = float(np.mean([(size - empty) / count for count, size in sizes]))
    initial_rows = options.num_initial_rows or 0
    fixed = {  # initial rows have slots, too; one is among those of the empty table
        "dram": empty + max(0, initial_rows - 1) * (initial_row + slots),
        "hbm": initial_rows * (row + slots + _HBM_BYTES_OF_ROW),
    }
    store = _store_bytes(options, num_ranks) if "disk" in options.tiers else 0
    return TableBytes(fixed, filter_bytes, row + slots, of_key - row, store, max_keys)


_FEW_ROWS, _FEW_KEYS = 64, 4096  # of small tables, from which larger ones follow


@contextlib.contextmanager
def _table(kind, options):
    """A table that no other part of the process sees, for a while."""
    name, dim, dtype = kind
    start = tf.zeros_initializer()
    with unlisted():
        table = EmbeddingVariable(
            name, dim, value_dtype=dtype, initializer=start, ev_option=options
        )
    try:
        yield table
    finally:
        # The resource refers to itself and to the variable, so that the table would keep its memory
        # until Python looks for cycles.
        vars(table.rows).clear()


def _empty_bytes(kind, options, **changes):
    with _table(kind, dataclasses.replace(options, **changes)) as table:
        return int(table.memory_bytes())


def _filter_bytes(kind, plain, options, empty):
    """Bytes of a Bloom filter, which follow from those of a small one."""
    if options.expected_keys is None:
        return 0.0
    changes = {name: getattr(options, name) for name in _OF_A_FILTER}
    small = _empty_bytes(kind, plain, **changes, expected_keys=_FEW_KEYS)
    return (small - empty) / _FEW_KEYS * options.expected_keys


_OF_A_FILTER = ("admit_after", "admit_probability", "early_share", "counter_bits")


def _keys_of_bytes(kind, options, optimizer, num_ranks):
    """How many keys of a rank a budget of bytes allows; None: there is none."""
    if options.max_bytes is None:
        return None
    with _table(kind, _with_bytes(options, num_ranks)) as table:
        if optimizer is not None:
            _train(table, np.arange(1), optimizer)
        return int(table.budget_counts().max_keys)


def _bytes_of_rank(options, num_ranks):
    return options.max_bytes // (num_ranks if options.budget_of == "all" else 1)


def _store_bytes(options, num_ranks):
    """Host memory of a disk: buffers of records to be written, and blocks read."""
    if options.max_bytes is None:
        return _STORE_BYTES
    return core().store_bytes(_bytes_of_rank(options, num_ranks)) // 2


def _with_bytes(options, num_ranks):
    """The options, with the budget of one rank, for a table without a disk of as many keys."""
    max_bytes = _bytes_of_rank(options, num_ranks)
    if "disk" in options.tiers:
        max_bytes = max(1, max_bytes - core().store_bytes(max_bytes))
    return keyed_options(
        max_bytes=max_bytes,
        budget_of="rank",
        **{name: getattr(options, name) for name in _OF_BYTES},
    )


# The options by which a budget of bytes counts.
_OF_BYTES = (
    "num_initial_rows", *_OF_A_FILTER, "expected_keys", "keep_share", "evict", "decay_steps",
    "safe_steps", "hand_out", "evict_after_minutes", "slot_dtype",
)  # fmt: skip


def _plain(options):
    """The options that change what is kept of a key, and no others: of one initial row."""
    budget = {"max_keys": 1 << 20, "budget_of": "rank"} if options.has_budget else {}
    if options.has_budget:
        for name in ("evict", "decay_steps", "safe_steps"):
            budget[name] = getattr(options, name)
    return keyed_options(
        num_initial_rows=1,
        evict_after_minutes=options.evict_after_minutes,
        slot_dtype=options.slot_dtype,
        **budget,
    )


def _grown(table, keys):
    """(number of keys, bytes) of a table that grows from half of the keys to all."""
    half = (len(keys) + 1) // 2
    for part in [keys[:half], *np.array_split(keys[half:], 8)]:
        table.insert(part, tf.zeros([len(part), table.shape[1]], table.dtype))
        yield int(table.total_count()), int(table.memory_bytes())


def _train(table, keys, optimizer):
    optimizer = type(optimizer).from_config(optimizer.get_config())
    optimizer = optimizer if isinstance(optimizer, WRAPPED) else wrap(optimizer)
    with tf.GradientTape() as tape:
        (rows,) = group_embedding_lookup([table], [tf.constant(keys, tf.int64)])
        loss = tf.reduce_sum(tf.cast(rows, tf.float32))
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
