"""The native libraries of the package.

* ``libgroup_embedding_core.<digest>.so``: the framework-free core, CUDA inside, once for all
  versions of TensorFlow and Python. The other libraries find it beside them. Its name has the
  digest of its sources and flags, so a library that was built for another core never meets it.
* ``_group_embedding_ops.tf<major.minor>.so``: the TensorFlow ops and kernels, beside a ``.json``
  record of what they were built for. The name carries the TensorFlow version so that one package
  can serve several of them.
* ``libge_serving.so``: serves models to programs in C and C++. It loads TensorFlow and the ops.
* ``_core.<python tag>.so``: the core for NumPy and CUDA arrays, without TensorFlow. Training in one
  process does not need it; several ranks on GPUs, the tools for checkpoints and the tests do.
"""

import hashlib
import json
import sys
import sysconfig
from pathlib import Path

from buildtools.ninja_file import OBJECTS, ROOT, SOURCES, NinjaFile, march
from buildtools.report import fail

CORE = "libgroup_embedding_core"
# Names of the project alone leave the core: neither the CUDA runtime's nor templates of C++'s.
EXPORTS = f"-Wl,--version-script={ROOT / 'buildtools' / 'core.exports'}"
FIND_BESIDE = "-Wl,-rpath,'$$ORIGIN'"


def build(tensorflows, cuda, ops_only):
    """Builds the libraries under build/.

    Args:
        tensorflows: `TensorFlow`s to build the ops for. All have one C++ ABI.
        cuda: the `Cuda` to build with, or None.
        ops_only: whether `libge_serving` and the core for this Python are left out.

    Returns:
        {name in the package: the file's bytes}.
    """
    sources, tf, python, serving = _sources()
    python_tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    (abi,) = {f"-D_GLIBCXX_USE_CXX11_ABI={tensorflow.cxx11_abi}" for tensorflow in tensorflows}
    ninja = NinjaFile(cuda)
    # Nobody replaces the core's functions from outside, so it may inline and call them directly.
    flags = f"{abi} -fno-semantic-interposition"
    core = OBJECTS / "core" / _core_name(cuda, flags)
    ninja.library(core, ninja.objects("core", sources, flags), f"-Wl,-soname,{core.name} {EXPORTS}")
    built, records = {core.name: core}, {}
    for tensorflow in tensorflows:
        stem = f"_group_embedding_ops.tf{tensorflow.minor}"
        built[f"{stem}.so"] = _add_ops(ninja, tensorflow, tf, core, f"{stem}.so")
        records[f"{stem}.json"] = json.dumps(_record(tensorflow, cuda), indent=2) + "\n"
    if not ops_only:
        built["libge_serving.so"] = _add_serving(ninja, serving, abi)
        built["include/ge_serving.h"] = SOURCES / "serving" / "ge_serving.h"
        name = "_core" + sysconfig.get_config_var("EXT_SUFFIX")
        built[name] = OBJECTS / python_tag / name
        includes = " ".join(f"-isystem {folder}" for folder in _python_includes())
        objects = ninja.objects(python_tag, python, f"{abi} -fvisibility=hidden {includes}")
        ninja.library(built[name], objects, FIND_BESIDE, uses=[core])
    ninja.run("-".join([*(t.objects for t in tensorflows), *[python_tag] * (not ops_only)]))
    files = {name: path.read_bytes() for name, path in built.items()}
    return {**files, **{name: record.encode() for name, record in records.items()}}


def unused_cores(package):
    """The core libraries in a folder that none of its other libraries was built for."""
    cores = set(package.glob(f"{CORE}.*.so"))
    others = [library.read_bytes() for library in set(package.glob("*.so")) - cores]
    return [core for core in cores if not any(core.name.encode() in other for other in others)]


def _core_name(cuda, flags):
    digest = hashlib.blake2s(f"{flags} {march()} {cuda}".encode(), digest_size=4)
    for path in sorted(p for kind in ("h", "cuh", "cc", "cu") for p in SOURCES.rglob(f"*.{kind}")):
        name = path.relative_to(SOURCES)
        leaf = name.parts[0] in ("tf", "python", "libge_serving")
        if not leaf and name.parts[:2] != ("serving", "server"):
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return f"{CORE}.{digest.hexdigest()}.so"


def _add_ops(ninja, tensorflow, sources, core, name):
    folder = tensorflow.objects
    # What one TensorFlow deprecates is often all that an older one has.
    flags = " ".join([*tensorflow.compile_flags, "-Wno-deprecated-declarations"])
    flags += " -DGOOGLE_CUDA=1" if ninja.cuda else ""
    objects = ninja.objects(folder, sources, flags, header=SOURCES / "tf" / "precompiled.h")
    # -z defs: a symbol that nobody defines is an error of the build, not of the first import.
    libs = f"-L{tensorflow.lib_dir} -l:{tensorflow.framework} -ldl -Wl,-z,defs {FIND_BESIDE}"
    ninja.library(OBJECTS / folder / name, objects, libs, uses=[core])
    return OBJECTS / folder / name


def _add_serving(ninja, sources, abi):
    """The library that loads TensorFlow: no other one may come with it."""
    flags = f"{abi} -fvisibility=hidden"
    names = ("options.cc", "tier_options.cc", "redis/redis_options.cc")
    options = [SOURCES / "serving" / name for name in names]
    objects = ninja.objects("serving", [*sources, *options], flags)
    library = OBJECTS / "serving" / "libge_serving.so"
    ninja.library(library, objects, "-Wl,-soname,libge_serving.so -ldl -lpthread -Wl,-z,defs")
    return library


def _sources():
    """Splits cc/ by folder: (core, tf, python, libge_serving). buildtools/serving.py builds the
    server."""
    split = {"tf": [], "python": [], "libge_serving": []}
    core = []
    for source in sorted([*SOURCES.rglob("*.cc"), *SOURCES.rglob("*.cu")]):
        if not source.is_relative_to(SOURCES / "serving" / "server"):
            split.get(source.relative_to(SOURCES).parts[0], core).append(source)
    return core, split["tf"], split["python"], split["libge_serving"]


def _python_includes():
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        fail(
            f"{include}/Python.h is missing, install it with "
            f"`apt install python{sys.version_info.major}.{sys.version_info.minor}-dev`"
        )
    try:
        import pybind11
    except ImportError:
        fail("pybind11 is missing, install it with `pip install pybind11`")
    return [include, pybind11.get_include()]


def _record(tensorflow, cuda):
    return {
        "tensorflow": tensorflow.version,
        "cxx11_abi": tensorflow.cxx11_abi,
        "march": march(),
        "cuda": cuda.version if cuda else None,
        "cuda_archs": [str(arch) for arch in cuda.archs] if cuda else [],
    }
