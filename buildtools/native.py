"""The native libraries of the package.

The library's half, all that training needs:

* ``libgroup_embedding_core.<digest>.so``: the framework-free core, CUDA inside, once for all
  versions of TensorFlow and Python. The other libraries find it beside them. Its name has the
  digest of its sources and flags, so a library that was built for another core never meets it.
* ``_group_embedding_ops.tf<major.minor>.so``: the TensorFlow ops and kernels, beside a ``.json``
  record of what they were built for. The name carries the TensorFlow version so that one package
  can serve several of them.
* ``_native.<python tag>.so``: what the package calls of the core from Python. Training in one
  process does not need it; several ranks on GPUs and the tools for checkpoints do.

The served half, which the library's half neither reads nor links:

* ``libgroup_embedding_serving.<digest>.so``: the tables of served models, framework-free, CUDA
  inside.
* ``_group_embedding_serving.tf<major.minor>.so``: their ops, and the sessions that answer requests.
  It is linked against the op library, as its tables' kernels share helpers with those that train,
  and a session's graph has the library's ops too. Loading it therefore loads the op library, or
  finds the one that is loaded: the ops are registered once, and the process has one copy of all
  state. Objects of the op library, linked in a second time, would register its ops twice.
* ``libge_serving.so``: serves models to programs in C and C++. It loads TensorFlow and the library
  above, which nothing else loads: in Python a served model is used through `libge_serving` too.
"""

import hashlib
import json
import sys
import sysconfig
from pathlib import Path

from buildtools.ninja_file import OBJECTS, ROOT, SOURCES, NinjaFile, march, write
from buildtools.report import fail

CORE = "libgroup_embedding_core"
SERVED_TABLES = "libgroup_embedding_serving"
OPS = "_group_embedding_ops"
SERVING = "_group_embedding_serving"
# Names of the project alone leave the core: neither the CUDA runtime's nor templates of C++'s.
EXPORTS = f"-Wl,--version-script={ROOT / 'buildtools' / 'core.exports'}"
FIND_BESIDE = "-Wl,-rpath,'$$ORIGIN'"

# What is built of each folder of cc/. The innermost folder of a file counts.
PARTS = {
    ".": "core",
    "tf": "ops",
    "bindings": "bindings",
    "serving": "served tables",
    "serving/c_api": "libge_serving",
    "serving/server": "ge-serve",  # by buildtools/serving.py
    "tf/serving": "served ops",
}


def build(tensorflows, cuda, ops_only):
    """Builds the libraries under build/.

    Args:
        tensorflows: `TensorFlow`s to build the ops for. All have one C++ ABI.
        cuda: the `Cuda` to build with, or None.
        ops_only: whether the served half and the module for this Python are left out.

    Returns:
        {name in the package: the file's bytes}.
    """
    ninja = NinjaFile(cuda)
    core = add_core(ninja, tensorflows)
    built, records = {core.name: core}, {}
    for tensorflow in tensorflows:
        ops = _add_ops(ninja, tensorflow, f"{OPS}.tf{tensorflow.minor}.so", "ops", [core])
        built[ops.name] = ops
        record = json.dumps(_record(tensorflow, cuda), indent=2) + "\n"
        records[ops.with_suffix(".json").name] = record
    if not ops_only:
        tables = add_served_tables(ninja, tensorflows, core)
        built[tables.name] = tables
        for tensorflow in tensorflows:
            ops = built[f"{OPS}.tf{tensorflow.minor}.so"]
            name = f"{SERVING}.tf{tensorflow.minor}.so"
            built[name] = _add_ops(ninja, tensorflow, name, "served ops", [tables, ops, core])
        built["libge_serving.so"] = _add_libge_serving(ninja, _abi(tensorflows))
        built["include/ge_serving.h"] = SOURCES / "serving" / "c_api" / "ge_serving.h"
        module = OBJECTS / python_tag() / ("_native" + sysconfig.get_config_var("EXT_SUFFIX"))
        objects = python_objects(ninja, tensorflows, sources_of("bindings"))
        ninja.library(module, objects, FIND_BESIDE, uses=[core])
        built[module.name] = module
    ninja.run("-".join([*(t.objects for t in tensorflows), *[python_tag()] * (not ops_only)]))
    files = {name: path.read_bytes() for name, path in built.items()}
    return {**files, **{name: record.encode() for name, record in records.items()}}


def add_core(ninja, tensorflows):
    """Adds the core to a ninja file; returns the library's path."""
    return _add_shared(ninja, tensorflows, CORE, "core", [])


def add_served_tables(ninja, tensorflows, core):
    """Adds the tables of served models to a ninja file; returns the library's path."""
    return _add_shared(ninja, tensorflows, SERVED_TABLES, "served tables", [core])


def python_objects(ninja, tensorflows, sources, root=SOURCES):
    """Adds objects for modules of this Python to a ninja file; returns them.

    Args:
        sources: paths of .cc files, below `root`, from which they include each other.
    """
    includes = " ".join(f"-isystem {folder}" for folder in _python_includes())
    flags = f"{_abi(tensorflows)} -fvisibility=hidden {includes} -I{root}"
    return ninja.objects(python_tag(), sources, flags, root=root)


def digested_name(stem, part, flags, uses=()):
    """The file name of a library of one of `PARTS`, made of its sources, flags and what it uses."""
    digest = hashlib.blake2s(" ".join([flags, *(u.name for u in uses)]).encode(), digest_size=4)
    for path in sorted(p for kind in ("h", "cuh", "cc", "cu") for p in SOURCES.rglob(f"*.{kind}")):
        if part_of(path) == part:
            digest.update(f"{path.relative_to(SOURCES)}\n".encode() + path.read_bytes())
    return f"{stem}.{digest.hexdigest()}.so"


def sources_of(part):
    """The sources of one of `PARTS`."""
    found = [*SOURCES.rglob("*.cc"), *SOURCES.rglob("*.cu")]
    return sorted(source for source in found if part_of(source) == part)


def part_of(path):
    """The one of `PARTS` that a file of cc/ belongs to."""
    folders = [str(folder) for folder in path.relative_to(SOURCES).parents]
    return next(PARTS[folder] for folder in folders if folder in PARTS)


def units(sources, folder):
    """Writes sources below a folder that each include up to ten files of one folder of cc/.

    Of the two seconds that a file of ops or kernels takes, TensorFlow's templates take more than
    one, whatever is in the file: together ten files take as long as three. They share a namespace
    without a name, in which the compiler refuses a second function of one name.
    """
    written = []
    for inside in sorted({source.parent for source in sources}):
        files = [source for source in sources if source.parent == inside]
        count = -(-len(files) // 10)
        for i in range(count):
            name = f"{'_'.join(inside.relative_to(SOURCES).parts)}_{i}.cc"
            names = [source.relative_to(SOURCES) for source in files[i::count]]
            written.append(write(folder / name, "".join(f'#include "{n}"\n' for n in names)))
    return written


def python_tag():
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def outdated(package, built):
    """The libraries of served ops in a folder that were linked against an op library that will be
    another one, and are not built with it: calls between the two would meet other code.

    Args:
        built: what `build` returned, which will be written to the folder.
    """
    found = []
    for library in sorted(package.glob(f"{SERVING}.*.so")):
        ops = package / library.name.replace(SERVING, OPS)
        before = ops.read_bytes() if ops.exists() else b""
        if library.name not in built and built.get(ops.name, before) != before:
            found.append(library)
    return found


def unused_cores(package):
    """The libraries of the core and of served tables in a folder that none of its other libraries
    was built for."""
    texts = {library: library.read_bytes() for library in package.glob("*.so")}
    used = {library for library in texts if not library.name.startswith((CORE, SERVED_TABLES))}
    while more := {
        library
        for library in texts.keys() - used
        if any(library.name.encode() in texts[other] for other in used)
    }:
        used |= more
    return sorted(texts.keys() - used)


def _add_shared(ninja, tensorflows, stem, part, uses):
    """Adds a framework-free library whose name has the digest of what it is made of."""
    # Nobody replaces these functions from outside, so a library may inline and call its own.
    flags = f"{_abi(tensorflows)} -fno-semantic-interposition"
    name = digested_name(stem, part, f"{flags} {march()} {ninja.cuda}", uses)
    library = OBJECTS / "core" / name
    objects = ninja.objects("core", sources_of(part), flags)
    libs = f"-Wl,-soname,{name} {EXPORTS} {FIND_BESIDE}"
    ninja.library(library, objects, libs, uses=uses)
    return library


def _abi(tensorflows):
    (abi,) = {f"-D_GLIBCXX_USE_CXX11_ABI={tensorflow.cxx11_abi}" for tensorflow in tensorflows}
    return abi


def _add_ops(ninja, tensorflow, name, part, uses):
    folder = tensorflow.objects
    # What one TensorFlow deprecates is often all that an older one has.
    flags = " ".join([*tensorflow.compile_flags, "-Wno-deprecated-declarations"])
    flags += " -DGOOGLE_CUDA=1" if ninja.cuda else ""
    sources = units(sources_of(part), OBJECTS / folder)
    header = SOURCES / "tf" / "precompiled.h"
    objects = ninja.objects(folder, sources, flags, header=header, root=OBJECTS / folder)
    # -z defs: a symbol that nobody defines is an error of the build, not of the first import.
    libs = f"-L{tensorflow.lib_dir} -l:{tensorflow.framework} -ldl -Wl,-z,defs {FIND_BESIDE}"
    ninja.library(OBJECTS / folder / name, objects, f"-Wl,-soname,{name} {libs}", uses=uses)
    return OBJECTS / folder / name


def _add_libge_serving(ninja, abi):
    """The library that loads TensorFlow: no other one may come with it."""
    flags = f"{abi} -fvisibility=hidden"
    names = ("session/options.cc", "lower/tier_options.cc", "lower/redis/redis_options.cc")
    options = [SOURCES / "serving" / name for name in names]
    objects = ninja.objects("serving", [*sources_of("libge_serving"), *options], flags)
    library = OBJECTS / "serving" / "libge_serving.so"
    ninja.library(library, objects, "-Wl,-soname,libge_serving.so -ldl -lpthread -Wl,-z,defs")
    return library


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
