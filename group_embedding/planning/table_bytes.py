"""The bytes of a key of a keyed table, measured of a small table that a copy of the optimizer
trains for a step: with all slots and options, as this version makes them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.lookups import group_embedding_lookup
from group_embedding.ops._library import core
from group_embedding.optimizers import WRAPPED, wrap
from group_embedding.ranks.exchange.active import unsharded
from group_embedding.variables import EmbeddingVariable, KeyedOptions, keyed_options

_MOST_KEYS = 1 << 15
_MOST_NUMBERS = 1 << 24  # of a table's rows

# GPU memory beside a row and its slots there: what is kept of it, and its part of the index.
HBM_BYTES_OF_KEY = 32 + 17
# GPU memory of a row in host memory below.
HBM_BYTES_OF_ROW_BELOW = 40 + 17


@dataclasses.dataclass(frozen=True)
class TableBytes:
    """Bytes of a table with any number of keys.

    Attributes:
        fixed: without keys.
        row: of a key's row and slots.
        kept: of what is kept of a key, and its part of the index, in host memory.
        max_keys: of a rank, that a budget of bytes allows; None: there is none.
    """

    fixed: float
    row: float
    kept: float
    max_keys: int | None = None


def measure(
    dim: int, dtype: str, options: KeyedOptions, optimizer: Any, num_ranks: int
) -> TableBytes:
    """Measures a table in host memory.

    Args:
        num_ranks: among which a budget of all ranks is divided.
        options: those that say where rows lie, which keys get one, and from where they start do not
            matter.
        optimizer: of Keras; None: rows have no slots.
    """
    num_keys = max(1, min(_MOST_KEYS, _MOST_NUMBERS // dim))
    with unsharded(), tf.device("/CPU:0"):
        plain = _plain(options)
        bare, trained = (_table(f"measured_{n}", dim, dtype, plain) for n in range(2))
        fixed = int(bare.memory_bytes())
        keys = np.arange(num_keys)
        of_key = [(size - fixed) / count for count, size in _grown(bare, keys)]
        slots = 0.0
        if optimizer is not None:
            _train(trained, keys, optimizer)
            slots = (int(trained.memory_bytes()) - int(bare.memory_bytes())) / num_keys
        max_keys = None
        if options.max_bytes is not None:
            limited = _table("measured_budget", dim, dtype, _with_bytes(options, num_ranks))
            if optimizer is not None:
                _train(limited, keys[:1], optimizer)
            max_keys = int(limited.budget_counts().max_keys)
    row = dim * tf.as_dtype(dtype).size
    # The index grows in parts, so that its bytes of a key vary until there are twice as many keys.
    return TableBytes(fixed, row + slots, float(np.mean(of_key)) - row, max_keys)


def _table(name, dim, dtype, options):
    return EmbeddingVariable(
        name, dim, value_dtype=dtype, initializer=tf.zeros_initializer(), ev_option=options
    )


def _with_bytes(options, num_ranks):
    """The options, with the budget of one rank, for a table without a disk of as many keys."""
    max_bytes = options.max_bytes
    if options.budget_of == "all":
        max_bytes //= num_ranks
    if "disk" in options.tiers:
        max_bytes = max(1, max_bytes - core().store_bytes(max_bytes))
    return keyed_options(
        max_bytes=max_bytes,
        budget_of="rank",
        **{name: getattr(options, name) for name in _OF_BYTES},
    )


# The options by which a budget of bytes counts.
_OF_BYTES = (
    "num_initial_rows", "admit_after", "expected_keys", "early_share", "counter_bits", "keep_share",
    "evict", "decay_steps", "safe_steps", "hand_out", "evict_after_minutes",
    "slot_dtype",
)  # fmt: skip


def _plain(options):
    """The options that change what is kept of a key, and no others."""
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
