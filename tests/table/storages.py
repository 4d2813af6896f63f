"""The storages of tables found by key. Where there is a tier below the first, memory is small."""

import dataclasses

import numpy as np
import pytest
from support.cases.core_cases import to_storage
from support.cases.core_runner import on_gpu
from table.device_tables import DeviceTable, core

INFO_BYTES, DEVICE_INFO_BYTES = 16, 32  # kept of each row, in host memory and on a GPU
USE_BYTES = 8  # beside that, of a row that may move between two memories
RECORD_BYTES = 8 + 24  # of a row on disk, beside values and slots


@dataclasses.dataclass(frozen=True)
class Storage:
    name: str
    on_device: bool = False
    two_memories: bool = False
    has_disk: bool = False

    def make_table(
        self, dim=4, *, dtype="float32", slots=(), rows_in_memory=16, max_keys=None,
        cache_strategy="least_recent", distribution="matrix", path="", **options,
    ):  # fmt: skip
        """A table whose keys start as `steps.start_of` says, or as the distribution does.

        Args:
          dtype: of the rows.
          slots: the names of those that it has, in float32; they start as 0.5.
          rows_in_memory: all that a batch can have, where there is a disk; of two memories, the
            first has half of them.
          max_keys: None, or how many the table has space for.
          cache_strategy: which rows go to the tier below first.
          path: the folder of the rows on disk; empty: where temporary files go.
        """
        num_first_rows = 1
        if distribution == "matrix":
            options["matrix"] = to_storage(np.arange(8.0 * dim).reshape(8, dim), dtype)
            num_first_rows += 8
        values_bytes = dim * ((4 if dtype == "float32" else 2) + 4 * len(slots))
        info_bytes = DEVICE_INFO_BYTES if self.on_device else INFO_BYTES
        row_bytes = info_bytes + values_bytes + (USE_BYTES if self.two_memories else 0)
        if self.has_disk:
            disk_bytes = 0
            if max_keys is not None:
                rows_in_memory = min(rows_in_memory, max_keys // 2)
                disk_bytes = (max_keys - rows_in_memory) * (RECORD_BYTES + values_bytes)
            options["disk"] = core.DiskTier(
                path=path, max_bytes=disk_bytes, cache_strategy=cache_strategy
            )
            max_keys = rows_in_memory
        if self.two_memories:
            options["device_bytes"] = (num_first_rows + rows_in_memory // 2) * row_bytes
            options["cache_strategy"] = cache_strategy
        if max_keys is not None:
            options["max_bytes"] = max_keys * row_bytes
        kind = DeviceTable if self.on_device else core.HostTable
        table = kind(dim=dim, dtype=dtype, distribution=distribution, **options)
        for name in slots:
            table.slot(name, initial=0.5)
        return table


DRAM = Storage("DRAM")
DRAM_SSDHASH = Storage("DRAM_SSDHASH", has_disk=True)
HBM = Storage("HBM", on_device=True)
HBM_DRAM = Storage("HBM_DRAM", on_device=True, two_memories=True)
HBM_DRAM_SSDHASH = Storage("HBM_DRAM_SSDHASH", on_device=True, two_memories=True, has_disk=True)
ALL = [
    *(pytest.param(storage, id=storage.name) for storage in (DRAM, DRAM_SSDHASH)),
    *(
        pytest.param(storage, id=storage.name, marks=on_gpu)
        for storage in (HBM, HBM_DRAM, HBM_DRAM_SSDHASH)
    ),
]
WITH_DISK = [param for param in ALL if param.values[0].has_disk]
ON_HOST = [param for param in ALL if not param.values[0].on_device]
