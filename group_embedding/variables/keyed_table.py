"""`keyed_table`: a table of keys by plain arguments, and `keyed_options`, the same for columns and
layers."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from group_embedding.annotations import DTypeLike, Initializer
from group_embedding.config import check_choice
from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.get_variable import get_embedding_variable
from group_embedding.variables.options import (
    CacheStrategy,
    CBFFilter,
    CheckpointOption,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    InitializerOption,
    L2WeightEvict,
    StorageOption,
    StorageType,
)

# {tiers, the fastest first: the storage that has them}
_STORAGE = {
    ("dram",): None,  # the default
    ("hbm",): StorageType.HBM,
    ("hbm", "dram"): StorageType.HBM_DRAM,
    ("dram", "disk"): StorageType.DRAM_SSDHASH,
    ("hbm", "dram", "disk"): StorageType.HBM_DRAM_SSDHASH,
}
_KEEP = {"most_used": CacheStrategy.LFU, "last_used": CacheStrategy.LRU}


def keyed_table(
    name: str,
    dim: int,
    *,
    key_dtype: DTypeLike = tf.int64,
    dtype: DTypeLike = tf.float32,
    trainable: bool = True,
    placement: str | None = None,
    initializer: Initializer = None,
    num_initial_rows: int | None = 4096,
    admit_after: int = 0,
    value_before_admission: float = 0.0,
    expected_keys: int | None = None,
    early_share: float = 0.01,
    evict_after_steps: int | None = None,
    evict_below_norm: float | None = None,
    tiers: Sequence[str] = ("dram",),
    tier_bytes: Sequence[int] | None = None,
    disk_folder: str | os.PathLike | None = None,
    keep: str = "most_used",
    start_from: str | None = None,
    start_from_name: str | None = None,
) -> EmbeddingVariable:
    """Makes a table whose rows are found by key.

    Any integer of `key_dtype` is a key. A key gets a row only when it is trained. Lookups without a
    gradient never insert keys. Wrapped optimizers (`ge.optimizers.wrap`) train the table.

    Args:
        name: of the table.
        dim: length of a row, 1 to 4096.
        key_dtype: int32, int64, uint32 or uint64.
        dtype: of rows: float32, float16 or bfloat16.
        trainable: if not, no lookup inserts keys and no step changes rows.
        placement: over several ranks, 'distributed': the hash of a key says on which rank it is; or
            `'localized:<rank>'`: all keys are on that rank. None: the default of the job.
        initializer: of rows, an initializer of TensorFlow or Keras, or a matrix; None: a truncated
            normal distribution.
        num_initial_rows: how many rows the initializer draws once. Key k starts as row
            `k % num_initial_rows`. None: each key has values of its own, which depend on the key
            and the seed only; for initializers of a constant, of a uniform, normal or truncated
            normal distribution.
        admit_after: a key gets a row when it has been trained so often; 0: in its first step.
        value_before_admission: the constant that a key reads until then.
        expected_keys: None: each key has a counter for `admit_after`. Else a counting Bloom filter
            for so many keys counts: less memory, and some keys are admitted early.
        early_share: of that filter, the share of keys that may be admitted early once so many were
            seen, between 0 and 1.
        evict_after_steps: a save removes keys that were not trained for more steps than that; None:
            none.
        evict_below_norm: a save removes keys whose row has a smaller L2 norm; None: none.
        tiers: the memories of the rows, the fastest first: "hbm", GPU memory; "dram", host memory;
            "disk". One of `["dram"]`, `["hbm"]`, `["hbm", "dram"]`, `["dram", "disk"]` and
            `["hbm", "dram", "disk"]`.
        tier_bytes: bytes of each tier, for rows, slots and metadata; None, or a tier that is not in
            the list: no limit, or 1 GiB for a tier above another.
        disk_folder: the folder of the disk tier; None: the system's for temporary files.
        keep: the rows that stay in the first tier when it is full: "most_used" or "last_used".
        start_from: the prefix of a checkpoint, or a folder with checkpoints, whose rows the table
            starts with; None: it starts empty.
        start_from_name: the name that the table had in `start_from`; None: `name`.

    Returns:
        An EmbeddingVariable.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names the table.

    Example:

    >>> users = ge.keyed_table("users", dim=2, initializer=tf.ones_initializer(), admit_after=2)
    >>> ids = tf.ragged.constant([[-7, 2**40], []], dtype=tf.int64)
    >>> ge.lookup_sparse([users], [ids], "sum")[0].numpy().tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    try:
        options = keyed_options(
            num_initial_rows=num_initial_rows,
            admit_after=admit_after,
            value_before_admission=value_before_admission,
            expected_keys=expected_keys,
            early_share=early_share,
            evict_after_steps=evict_after_steps,
            evict_below_norm=evict_below_norm,
            tiers=tiers,
            tier_bytes=tier_bytes,
            disk_folder=disk_folder,
            keep=keep,
            start_from=start_from,
            start_from_name=start_from_name,
        )
    except (TypeError, ValueError) as error:
        raise type(error)(f"table '{name}': {error}") from None
    return get_embedding_variable(
        name,
        dim,
        key_dtype,
        dtype,
        initializer,
        trainable=trainable,
        ev_option=options,
        placement=placement,
    )


def keyed_options(
    *,
    initializer: Initializer = None,
    num_initial_rows: int | None = 4096,
    admit_after: int = 0,
    value_before_admission: float = 0.0,
    expected_keys: int | None = None,
    early_share: float = 0.01,
    evict_after_steps: int | None = None,
    evict_below_norm: float | None = None,
    tiers: Sequence[str] = ("dram",),
    tier_bytes: Sequence[int] | None = None,
    disk_folder: str | os.PathLike | None = None,
    keep: str = "most_used",
    start_from: str | None = None,
    start_from_name: str | None = None,
) -> EmbeddingVariableOption:
    """The options of `keyed_table` for a table that a layer or a column makes.

    Args:
        all: see `keyed_table`.

    Returns:
        The `ev_option` of a `TableConfig(num_rows=None)`, of a column of keys, or of
        `get_embedding_variable`.

    Raises:
        TypeError, ValueError: an argument is not as `keyed_table` says.

    Example:

    >>> options = ge.variables.keyed_options(admit_after=3, evict_after_steps=100_000)
    >>> config = ge.TableConfig("users", num_rows=None, dim=16, ev_option=options)
    """
    return EmbeddingVariableOption(
        init_option=InitializerOption(initializer, num_initial_rows, value_before_admission),
        filter_option=_filter(admit_after, expected_keys, early_share),
        evict_option=_eviction(evict_after_steps, evict_below_norm),
        storage_option=_storage(tiers, tier_bytes, disk_folder, keep),
        ckpt=_checkpoint(start_from, start_from_name),
    )


def _filter(admit_after, expected_keys, early_share):
    if expected_keys is not None:
        return CBFFilter(admit_after, expected_keys, early_share)
    return CounterFilter(admit_after) if admit_after != 0 else None


def _eviction(after_steps, below_norm):
    if after_steps is not None and below_norm is not None:
        raise ValueError(
            "expected evict_after_steps or evict_below_norm, got both: "
            f"{after_steps!r} and {below_norm!r}"
        )
    if below_norm is None:
        return None if after_steps is None else GlobalStepEvict(after_steps)
    if isinstance(below_norm, bool) or not isinstance(below_norm, (int, float)) or below_norm <= 0:
        raise ValueError(f"expected evict_below_norm above 0, got {below_norm!r}")
    return L2WeightEvict(below_norm**2 / 2)  # which compares sum(row**2) / 2


def _storage(tiers, tier_bytes, disk_folder, keep):
    if isinstance(tiers, str) or tuple(tiers) not in _STORAGE:
        choices = " or ".join(str(list(choice)) for choice in _STORAGE)
        raise ValueError(f"expected tiers to be {choices}, got {tiers!r}")
    check_choice("options of a keyed table", "keep", keep, _KEEP)
    if disk_folder is not None and "disk" not in tiers:
        raise ValueError(f"expected disk among tiers, as disk_folder is given, got {list(tiers)}")
    if tier_bytes is not None and len(tier_bytes) > len(tiers):
        raise ValueError(f"expected tier_bytes of {len(tiers)} tiers, got {list(tier_bytes)}")
    folder = None if disk_folder is None else os.fspath(disk_folder)
    sizes = None if tier_bytes is None else list(tier_bytes)
    return StorageOption(_STORAGE[tuple(tiers)], folder, sizes, _KEEP[keep])


def _checkpoint(start_from, name):
    if start_from is None and name is not None:
        raise ValueError(f"expected start_from, as start_from_name is given, got {name!r}")
    return None if start_from is None else CheckpointOption(os.fspath(start_from), name)
