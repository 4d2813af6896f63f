"""KeyedOptions -> the device of a table, and what the op takes that makes it."""

from typing import NamedTuple

import tensorflow as tf

from group_embedding.ops import _library
from group_embedding.variables.keyed_options import CACHE_STRATEGIES, STORAGES

DEFAULT_TIER_BYTES = 1 << 30  # of a tier above others whose size is not given


class Storage(NamedTuple):
    """The device of a table, and the attributes of InitializeEmbeddingTable for its storage."""

    device: str
    attributes: dict


def plan_storage(name, options):
    """The Storage of table `name`.

    Raises:
        ValueError: tiers that no table can have here and now.
    """
    tiers = options.tiers
    storage = STORAGES[tiers]
    is_on_gpu = tiers[0] == "hbm"
    if is_on_gpu:
        _check_gpu(name, storage.upper())
    given = options.tier_bytes or ()
    defaults = [DEFAULT_TIER_BYTES] * (len(tiers) - 1) + [0] * (4 - len(tiers))
    first, lower, lowest = list(given) + defaults[len(given) :]
    return Storage(
        "/GPU:0" if is_on_gpu else "/CPU:0",
        {
            "storage": storage,
            "max_bytes": first,
            "lower_max_bytes": lower,
            "lowest_max_bytes": lowest,
            "storage_path": options.disk_folder or "",
            "cache_strategy": CACHE_STRATEGIES[options.keep],
        },
    )


def _check_gpu(name, storage):
    instead = "use DRAM, or DRAM_SSDHASH where memory does not hold all rows"
    if _library.build_record(tf.__version__)["cuda"] is None:
        raise ValueError(
            f"table '{name}': storage_type {storage} needs a group_embedding that was built with "
            f"CUDA, which this one was not; build it where nvcc is, or {instead}"
        )
    if not tf.config.list_physical_devices("GPU"):
        raise ValueError(
            f"table '{name}': storage_type {storage} needs a GPU, and TensorFlow sees none; "
            f"{instead}"
        )
