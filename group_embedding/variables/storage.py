"""A StorageOption -> the device of a table, and what the op takes that makes it."""

from typing import NamedTuple

import tensorflow as tf

from group_embedding.ops import _library
from group_embedding.variables.options import CacheStrategy, StorageType

_TIERS = {
    StorageType.DRAM: ("DRAM",),
    StorageType.DRAM_SSDHASH: ("DRAM", "disk"),
    StorageType.HBM: ("HBM",),
    StorageType.HBM_DRAM: ("HBM", "DRAM"),
    StorageType.HBM_DRAM_SSDHASH: ("HBM", "DRAM", "disk"),
}
_CACHE_BYTES = 1 << 30  # of a tier above others whose size is not given


class Storage(NamedTuple):
    """The device of a table, and the attributes of InitializeEmbeddingTable for its storage."""

    device: str
    attributes: dict


def plan_storage(name, option):
    """The Storage of table `name`.

    Raises:
        ValueError: a StorageOption that no table can have here and now.
    """
    kind = option.storage_type or StorageType.DRAM
    tiers = _TIERS[kind]
    sizes = option.storage_size or ()
    if len(sizes) > len(tiers):
        raise ValueError(
            f"table '{name}': expected storage_size of {_count(tiers)}, as storage_type "
            f"{kind.name} has, got {list(sizes)}"
        )
    if option.storage_path and "disk" not in tiers:
        raise ValueError(
            f"table '{name}': expected no storage_path, as storage_type {kind.name} has no disk "
            f"tier, got {option.storage_path!r}"
        )
    if option.cache_strategy != CacheStrategy.LFU and len(tiers) == 1:
        raise ValueError(
            f"table '{name}': expected no cache_strategy, as storage_type {kind.name} has one tier "
            f"that rows stay in, got {option.cache_strategy.name}"
        )
    is_on_gpu = tiers[0] == "HBM"
    if is_on_gpu:
        _check_gpu(name, kind)
    defaults = [_CACHE_BYTES] * (len(tiers) - 1) + [0] * (4 - len(tiers))
    first, lower, lowest = list(sizes) + defaults[len(sizes) :]
    return Storage(
        "/GPU:0" if is_on_gpu else "/CPU:0",
        {
            "storage": kind.name.lower(),
            "max_bytes": first,
            "lower_max_bytes": lower,
            "lowest_max_bytes": lowest,
            "storage_path": option.storage_path or "",
            "cache_strategy": option.cache_strategy.name.lower(),
        },
    )


def has_tiers(option):
    """Returns whether rows of a table with this StorageOption move between tiers."""
    return len(_TIERS[option.storage_type or StorageType.DRAM]) > 1


def _count(tiers):
    return "one tier" if len(tiers) == 1 else f"at most {len(tiers)} tiers"


def _check_gpu(name, kind):
    instead = "use DRAM, or DRAM_SSDHASH where memory does not hold all rows"
    if _library.build_record(tf.__version__)["cuda"] is None:
        raise ValueError(
            f"table '{name}': storage_type {kind.name} needs a group_embedding that was built with "
            f"CUDA, which this one was not; build it where nvcc is, or {instead}"
        )
    if not tf.config.list_physical_devices("GPU"):
        raise ValueError(
            f"table '{name}': storage_type {kind.name} needs a GPU, and TensorFlow sees none; "
            f"{instead}"
        )
