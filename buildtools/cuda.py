"""The CUDA toolkit, and the GPU architectures to build for.

CUDA is built for the architectures that GROUP_EMBEDDING_CUDA_ARCHS names or, where it names none,
for those of the GPUs of this machine. Without either, a build has no CUDA and says so.
"""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple, Optional

from buildtools.report import fail, say

NAME_SOME = "GROUP_EMBEDDING_CUDA_ARCHS=80,90 would build for GPUs of other machines"


class Cuda(NamedTuple):
    root: Path
    nvcc: Path
    version: str
    archs: list

    @property
    def gencode(self):
        """Machine code for every architecture, and PTX of the newest for those still to come.

        nvcc's front end runs for each: code for sm_90 and sm_100 that is made of sm_80's PTX is
        other code, wherever bfloat16 is converted.
        """
        flags = [f"-gencode arch=compute_{a},code=sm_{a}" for a in self.archs]
        return " ".join(
            [*flags, f"-gencode arch=compute_{self.archs[-1]},code=compute_{self.archs[-1]}"]
        )


def find_cuda() -> Optional[Cuda]:
    """The toolkit and the architectures; None, and a line that says why, where none are wanted."""
    choice = os.environ.get("GROUP_EMBEDDING_CUDA", "")
    named = re.findall(r"\d+", os.environ.get("GROUP_EMBEDDING_CUDA_ARCHS", ""))
    if choice == "0":
        return None
    root = _toolkit(choice)
    wanted = named or architectures_of_gpus()
    if not wanted:
        if choice:
            fail(
                f"GROUP_EMBEDDING_CUDA={choice} asks for CUDA, but no GPU is here and "
                f"GROUP_EMBEDDING_CUDA_ARCHS names none: {NAME_SOME}"
            )
        say(f"no GPU is here, so CUDA is left out; {NAME_SOME}")
        return None
    if root is None:
        say(
            "no CUDA toolkit is in CUDA_HOME, on PATH or in /usr/local/cuda, so CUDA is left out "
            f"for architectures {', '.join(wanted)}; GROUP_EMBEDDING_CUDA=<folder> names a toolkit"
        )
        return None
    nvcc = root / "bin/nvcc"
    known = sorted(
        {int(a) for a in re.findall(r"compute_(\d+)\b", _output_of(nvcc, "--list-gpu-arch"))}
    )
    archs = known_of_named(named, known) if named else known_for_gpus(wanted, known)
    if not archs and named:
        fail(
            f"GROUP_EMBEDDING_CUDA_ARCHS={','.join(named)} names no architecture that {nvcc} "
            f"knows: {known}"
        )
    if not archs:
        say(
            f"{nvcc} knows no GPU as old as the one here (architecture {', '.join(wanted)}), so "
            f"CUDA is left out; GROUP_EMBEDDING_CUDA=<folder> names another toolkit"
        )
        return None
    version = re.search(r"release (\d+\.\d+)", _output_of(nvcc, "--version")).group(1)
    unknown = sorted(set(map(int, wanted)) - set(archs)) if named else []
    without = f"; it knows no {', '.join(map(str, unknown))}" if unknown else ""
    say(
        f"CUDA {version} of {root}, for the GPU architectures {', '.join(map(str, archs))}{without}"
    )
    return Cuda(root, nvcc, version, archs)


def known_of_named(named, known):
    """The architectures of `named` that nvcc knows; the others are left out."""
    return sorted({int(arch) for arch in named} & set(known))


def known_for_gpus(gpus, known):
    """For each GPU its architecture or, where nvcc is older, the newest one that it runs."""
    return sorted({max(a for a in known if a <= int(g)) for g in gpus if int(g) >= known[0]})


def architectures_of_gpus():
    """The compute capabilities of this machine's GPUs, as ["80", "90"]."""
    return sorted(set(_by_nvidia_smi() or _by_driver()), key=int)


def _by_nvidia_smi():
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return []
    found = re.findall(r"^(\d+)\.(\d+)\s*$", asked.stdout, re.MULTILINE)
    return [major + minor for major, minor in found] if asked.returncode == 0 else []


def _by_driver():
    """By the driver's library: containers may have it without nvidia-smi."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [
        f"{_attribute(driver, 75, gpu)}{_attribute(driver, 76, gpu)}" for gpu in range(count.value)
    ]


def _attribute(driver, attribute, gpu):
    """CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR is 75, ..._MINOR 76."""
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, gpu)
    return value.value


def _toolkit(choice):
    on_path = shutil.which("nvcc")
    candidates = (
        [choice]
        if choice not in ("", "1")
        else [
            os.environ.get("CUDA_HOME"),
            Path(on_path).resolve().parents[1] if on_path else None,
            "/usr/local/cuda",
        ]
    )
    # A folder counts with its headers: nvcc on PATH may be a wrapper that lives elsewhere.
    roots = [Path(c) for c in candidates if c]
    for root in roots:
        if (root / "bin/nvcc").exists() and (root / "include/cuda_runtime.h").exists():
            return root
    if choice:
        fail(
            f"GROUP_EMBEDDING_CUDA={choice} asks for CUDA, but no folder of "
            f"{[str(r) for r in roots]} has bin/nvcc and include/cuda_runtime.h"
        )
    return None


def _output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
