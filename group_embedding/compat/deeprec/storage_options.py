"""DeepRec's options of the memory of a table's rows."""

import dataclasses
import enum
import warnings
from typing import Any, Optional

from group_embedding.compat.deeprec.option_checks import check_kind


class StorageType(enum.Enum):
    """The memory of a table's rows; the names of several tiers have the fastest first.

    DRAM is host memory. HBM is the memory of the first GPU or, on several ranks, of each rank's own
    GPU. It is allocated beside TensorFlow's memory, so TensorFlow must not take all of it
    (`tf.config.experimental.set_memory_growth(gpu, True)`, or TF_FORCE_GPU_ALLOW_GROWTH=true). In
    HBM_DRAM, rows that HBM does not hold are in page-locked host memory, which the GPU reads and
    writes directly; when a batch has ended, hot rows are exchanged with cold rows of HBM, beside
    other work of the GPU. SSDHASH is RocksDB on a disk: a row moves to memory when its key is
    located, and cold rows move to disk. With HBM_DRAM_SSDHASH every lookup waits for the GPU once
    rows are on disk, since the host needs to know which keys have no row in memory.
    """

    DRAM = "DRAM"
    HBM = "HBM"
    HBM_DRAM = "HBM_DRAM"
    DRAM_SSDHASH = "DRAM_SSDHASH"
    HBM_DRAM_SSDHASH = "HBM_DRAM_SSDHASH"

    # DeepRec's others: a StorageOption takes the nearest one of the above.
    PMEM_MEMKIND = "PMEM_MEMKIND"
    PMEM_LIBPMEM = "PMEM_LIBPMEM"
    DRAM_PMEM = "DRAM_PMEM"
    SSDHASH = "SSDHASH"
    LEVELDB = "LEVELDB"
    DRAM_LEVELDB = "DRAM_LEVELDB"
    DRAM_PMEM_SSDHASH = "DRAM_PMEM_SSDHASH"


_NEAREST = {
    StorageType.PMEM_MEMKIND: StorageType.DRAM,
    StorageType.PMEM_LIBPMEM: StorageType.DRAM,
    StorageType.DRAM_PMEM: StorageType.DRAM,
    StorageType.SSDHASH: StorageType.DRAM_SSDHASH,
    StorageType.LEVELDB: StorageType.DRAM_SSDHASH,
    StorageType.DRAM_LEVELDB: StorageType.DRAM_SSDHASH,
    StorageType.DRAM_PMEM_SSDHASH: StorageType.DRAM_SSDHASH,
}


_TIERS = {
    StorageType.DRAM: ("dram",),
    StorageType.DRAM_SSDHASH: ("dram", "disk"),
    StorageType.HBM: ("hbm",),
    StorageType.HBM_DRAM: ("hbm", "dram"),
    StorageType.HBM_DRAM_SSDHASH: ("hbm", "dram", "disk"),
}


class CacheStrategy(enum.Enum):
    """The rows that stay in the faster tier: those used last, or those used most."""

    LRU = "LRU"
    LFU = "LFU"


@dataclasses.dataclass(frozen=True)
class StorageOption:
    """The memory of a table's rows, and the size of each tier.

    Attributes:
      storage_type: A StorageType; None: DRAM. A type of DeepRec's that does not exist here is
        replaced by the nearest one, with a warning: DRAM for persistent memory (PMEM), DRAM_SSDHASH
        for LevelDB and for a disk alone. DRAM then has no folder and no sizes, which were those of
        persistent memory.
      storage_path: The folder of the disk tier, if there is one; None: the system's for temporary
        files. Each table makes a folder of its own in it, which is removed with the table; folders
        of killed processes are removed when the next table is made.
      storage_size: Bytes of each tier, the fastest first, for rows, slots and metadata; None, or a
        tier that is not in the list: no limit, or 1 GiB for a tier above another. In addition to
        its size, HBM holds 40 bytes for each row in host memory, and the index, 14 to 20 bytes per
        key. A slot that is made after the first rows, as that of a table's first optimizer is,
        takes memory of HBM from later rows.
      cache_strategy: A CacheStrategy: which rows stay in the first tier when it is full.
    """

    storage_type: Optional[StorageType] = None
    storage_path: Optional[str] = None
    storage_size: Any = None
    cache_strategy: CacheStrategy = CacheStrategy.LFU

    def __post_init__(self):
        check_kind(self, "storage_type", StorageType, optional=True)
        check_kind(self, "storage_path", str, optional=True)
        check_kind(self, "cache_strategy", CacheStrategy)
        if self.storage_type in _NEAREST:
            self._take_nearest(_NEAREST[self.storage_type])
        if self.storage_size is None:
            return
        sizes = self.storage_size if isinstance(self.storage_size, (list, tuple)) else None
        if not sizes or any(not isinstance(s, int) or s < 1 for s in sizes):
            raise ValueError(
                "StorageOption: expected storage_size to be a list of positive numbers of bytes, "
                f"got {self.storage_size!r}"
            )
        object.__setattr__(self, "storage_size", tuple(sizes))

    def _take_nearest(self, nearest):
        warnings.warn(
            f"StorageOption: storage_type {self.storage_type.name} is not here; {nearest.name} is "
            "taken in its place",
            stacklevel=4,
        )
        object.__setattr__(self, "storage_type", nearest)
        if nearest == StorageType.DRAM:
            object.__setattr__(self, "storage_path", None)
            object.__setattr__(self, "storage_size", None)
            object.__setattr__(self, "cache_strategy", CacheStrategy.LFU)

    def keyed_fields(self):
        kind = self.storage_type or StorageType.DRAM
        tiers = _TIERS[kind]
        sizes = self.storage_size
        if sizes is not None and len(sizes) > len(tiers):
            count = "one tier" if len(tiers) == 1 else f"at most {len(tiers)} tiers"
            raise ValueError(
                f"expected storage_size of {count}, as storage_type {kind.name} has, got "
                f"{list(sizes)}"
            )
        if self.storage_path and "disk" not in tiers:
            raise ValueError(
                f"expected no storage_path, as storage_type {kind.name} has no disk tier, got "
                f"{self.storage_path!r}"
            )
        if self.cache_strategy != CacheStrategy.LFU and len(tiers) == 1:
            raise ValueError(
                f"expected no cache_strategy, as storage_type {kind.name} has one tier that rows "
                f"stay in, got {self.cache_strategy.name}"
            )
        return {
            "tiers": tiers,
            "tier_bytes": sizes,
            "disk_folder": self.storage_path or None,
            "keep": "last_used" if self.cache_strategy == CacheStrategy.LRU else "most_used",
        }
