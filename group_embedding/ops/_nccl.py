"""Tells the native libraries which NCCL they may load, for ranks with a GPU each."""

import importlib.util
import os
from pathlib import Path

VARIABLE = "GROUP_EMBEDDING_NCCL"


def name_nccl():
    """Names the NCCL of NVIDIA's wheel (`nvidia-nccl-cu12`), if it is installed and the user named
    no other; else the system's is loaded.

    Nothing is loaded or imported: the native library does that when ranks meet.
    """
    try:
        wheel = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # there is no `nvidia` at all
        return
    for folder in wheel.submodule_search_locations if wheel else []:
        file = Path(folder) / "lib" / "libnccl.so.2"
        if file.exists():
            os.environ.setdefault(VARIABLE, str(file))
