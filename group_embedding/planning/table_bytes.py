"""The bytes of a key of a keyed table, measured of a small table that a copy of the optimizer
trains for a step: with all slots and options, as this version makes them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.lookups import group_embedding_lookup
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
    """

    fixed: float
    row: float
    kept: float


def measure(dim: int, dtype: str, options: KeyedOptions, optimizer: Any) -> TableBytes:
    """Measures a table in host memory.

    Args:
        options: those that say where rows lie, which keys get one, and from where they start do not
            matter.
        optimizer: of Keras; None: rows have no slots.
    """
    num_keys = max(1, min(_MOST_KEYS, _MOST_NUMBERS // dim))
    with unsharded(), tf.device("/CPU:0"):
        tables = [
            EmbeddingVariable(
                f"measured_{n}",
                dim,
                value_dtype=dtype,
                initializer=tf.zeros_initializer(),
                ev_option=_plain(options),
            )
            for n in range(2)
        ]
        fixed = int(tables[0].memory_bytes())
        keys = np.arange(num_keys)
        of_key = [(size - fixed) / count for count, size in _grown(tables[0], keys)]
        slots = 0.0
        if optimizer is not None:
            _train(tables[1], keys, type(optimizer).from_config(optimizer.get_config()))
            slots = (int(tables[1].memory_bytes()) - int(tables[0].memory_bytes())) / num_keys
    row = dim * tf.as_dtype(dtype).size
    # The index grows in parts, so that its bytes of a key vary until there are twice as many keys.
    return TableBytes(fixed, row + slots, float(np.mean(of_key)) - row)


def _plain(options):
    """The options that change what is kept of a key, and no others."""
    budget = {"max_keys": 1 << 20, "budget_of": "rank"} if options.has_budget else {}
    if options.has_budget:
        for name in ("evict", "decay_steps", "safe_steps"):
            budget[name] = getattr(options, name)
    return keyed_options(
        num_initial_rows=1, evict_after_minutes=options.evict_after_minutes, **budget
    )


def _grown(table, keys):
    """(number of keys, bytes) of a table that grows from half of the keys to all."""
    half = (len(keys) + 1) // 2
    for part in [keys[:half], *np.array_split(keys[half:], 8)]:
        table.insert(part, tf.zeros([len(part), table.shape[1]], table.dtype))
        yield int(table.total_count()), int(table.memory_bytes())


def _train(table, keys, optimizer):
    optimizer = optimizer if isinstance(optimizer, WRAPPED) else wrap(optimizer)
    with tf.GradientTape() as tape:
        (rows,) = group_embedding_lookup([table], [tf.constant(keys, tf.int64)])
        loss = tf.reduce_sum(tf.cast(rows, tf.float32))
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
