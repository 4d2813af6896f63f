"""The storages that tables are tested in. First tiers are small, where there are two."""

import pytest
from support.session.folders import make_folder

import group_embedding as ge

_FOLDER = make_folder()
DRAM = ge.StorageOption()
DISK = ge.StorageOption(ge.StorageType.DRAM_SSDHASH, storage_size=[2 << 20])
DISK_IN_FOLDER = ge.StorageOption(
    ge.StorageType.DRAM_SSDHASH, storage_path=_FOLDER, storage_size=[2 << 20]
)
HBM = ge.StorageOption(ge.StorageType.HBM)
HBM_DRAM = ge.StorageOption(ge.StorageType.HBM_DRAM, storage_size=[2 << 20])
ALL_THREE = ge.StorageOption(ge.StorageType.HBM_DRAM_SSDHASH, storage_size=[1 << 20, 1 << 20])

ON_CPU = [
    pytest.param(DRAM, id="DRAM"),
    pytest.param(DISK, id="DRAM_SSDHASH"),
    pytest.param(DISK_IN_FOLDER, id="DRAM_SSDHASH in a folder"),
]
WITH_DISK = ON_CPU[1:]
ON_GPU = [
    pytest.param(HBM, id="HBM", marks=pytest.mark.gpu),
    pytest.param(HBM_DRAM, id="HBM_DRAM", marks=pytest.mark.gpu),
    pytest.param(ALL_THREE, id="HBM_DRAM_SSDHASH", marks=pytest.mark.gpu),
]
ALL = [*ON_CPU, *ON_GPU]
