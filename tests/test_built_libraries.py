"""Exports, needs and contents of the built libraries."""

import re
import subprocess
from pathlib import Path

import pytest

from buildtools import native

ROOT = Path(__file__).resolve().parents[1]


def built_libraries():
    """The cores, and what is built on them."""
    package = ROOT / "group_embedding"
    others = [*package.glob("_*.so"), *package.glob(f"{native.SERVED_TABLES}.*.so")]
    return sorted(package.glob(f"{native.CORE}.*.so")), sorted(others)


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_core_exports_names_of_the_project_alone():
    # Given the framework-free libraries: the CUDA runtime, if it is inside, is for each alone
    cores, others = built_libraries()
    cores += [library for library in others if library.name.startswith(native.SERVED_TABLES)]
    assert cores

    for core in cores:
        # When their exported names are read
        lines = output_of("nm", "-D", "--defined-only", core).splitlines()
        names = [line.split()[-1] for line in lines]

        # Then all belong to the project
        assert names and not [name for name in names if "group_embedding" not in name]


# Each is compiled for every architecture of a wheel. A change that needs more kernels says so here;
# one that needs fewer lowers the number.
MOST_KERNELS = 199
# These sum up gradients; most of them then update rows by a rule.
OF_ROWS = ("ReduceRowsKernel", "StreamRowsKernel", "TakeLongRowsKernel")
MOST_KERNELS_OF_ROWS = 72


def test_the_core_has_no_more_kernels_than_its_budget():
    # Given the names of the functions of the core built last
    cores, _ = built_libraries()
    core = max(cores, key=lambda library: library.stat().st_mtime)
    lines = output_of("nm", "-C", "--defined-only", core).splitlines()
    found = (re.search(r"(\w+Kernel)(<.*>)?\(", line) for line in lines)

    # When those of its own kernels are counted, each with its template arguments
    kernels = {
        (one[1], one[2])
        for one in found
        if one and not re.search("device_stub|cub::|^Launch", one.string.split(maxsplit=2)[2])
    }
    if not kernels:
        pytest.skip("the core is built without CUDA")
    of_rows = [kernel for kernel, _ in kernels if kernel in OF_ROWS]

    # Then they are no more than their budget
    assert len(kernels) <= MOST_KERNELS
    assert len(of_rows) <= MOST_KERNELS_OF_ROWS


def test_libraries_hold_no_copy_of_the_core():
    # Given the libraries that use the core
    cores, others = built_libraries()
    assert others

    for library in others:
        # When what they need, and a function of the core in them, is read
        needs = output_of("readelf", "-d", library)
        defined = output_of("nm", "--defined-only", library)
        undefined = output_of("nm", "--undefined-only", library)

        # Then each needs one core, finds it beside itself, and calls its functions there
        assert len([core for core in cores if core.name in needs]) == 1, needs
        assert "[$ORIGIN]" in needs
        assert "15group_embedding" in undefined
        assert "SortRowsCpu" not in defined
        if library.name.startswith(native.OPS):
            assert "SortRowsCpu" in undefined
        if library.name.startswith(native.SERVING):
            assert "ReadDelta" in undefined and "ReadDelta" not in defined


def test_libraries_that_train_know_nothing_of_served_models():
    # Given the libraries that `make train` builds, and the module for Python
    cores, others = built_libraries()
    libraries = [*cores, *(f for f in others if f.name.startswith((native.OPS, "_native")))]
    assert len(libraries) >= 2

    # When their names and what they need are read, Then nothing is of the served half
    for library in libraries:
        names = output_of("nm", "-C", library) + output_of("readelf", "-d", library)
        served = r"\bServed(?:Table|Index|Model)|LowerTier|RedisNodes|" + native.SERVED_TABLES
        assert not re.findall(served, names)


def test_ops_of_served_models_use_the_op_library_that_is_loaded():
    # Given the libraries of served ops
    package = ROOT / "group_embedding"
    libraries = sorted(package.glob(f"{native.SERVING}.*.so"))
    assert libraries

    for library in libraries:
        # When what they need, and what the op library is called, is read
        ops = library.with_name(library.name.replace(native.SERVING, native.OPS))
        needs, names = output_of("readelf", "-d", library), output_of("readelf", "-d", ops)

        # Then it is the op library, by its name: a process that has loaded it gets that one
        assert f"[{ops.name}]" in needs and f"soname: [{ops.name}]" in names
        assert native.SERVED_TABLES in needs
