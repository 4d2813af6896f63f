"""Package metadata, and the one build_ext that drives the native build of cc/ with ninja.

Two libraries come out of it, both inside the package:

* ``_group_embedding_ops.tf<major.minor>.so``: the TensorFlow ops and kernels, beside a ``.json``
  record of what they were built for. The name carries the TensorFlow version so that one source
  tree can serve several environments.
* ``_core.<python tag>.so``: the framework-free core for NumPy and CUDA arrays, without TensorFlow.

Variables that steer it:

=========================== ==================================================================
GROUP_EMBEDDING_MARCH       instruction set of the CPU code (default ``x86-64-v3``)
GROUP_EMBEDDING_CUDA        ``0`` builds without CUDA, a path names the toolkit, unset looks for
                            nvcc in CUDA_HOME, on PATH and in /usr/local/cuda
GROUP_EMBEDDING_CUDA_ARCHS  GPU architectures (default ``70,75,80,90,100``), cut down to those
                            that nvcc knows
GROUP_EMBEDDING_JOBS        compilers at a time (default: the number of cores)
CXX                         the C++ compiler (default ``g++``)
=========================== ==================================================================
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple, Optional

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "cc"
OBJECTS = ROOT / "build"
DEFAULT_MARCH = "x86-64-v3"
DEFAULT_CUDA_ARCHS = "70,75,80,90,100"


def fail(sentence):
    raise SystemExit(f"group_embedding: {sentence}")


class TensorFlow(NamedTuple):
    version: str
    compile_flags: list
    lib_dir: str
    framework: str  # file name of libtensorflow_framework
    cxx11_abi: int

    @property
    def minor(self):
        return ".".join(self.version.split(".")[:2])


# Run by a process of its own: see `environment_to_install_into`.
ASK_TENSORFLOW = """
import json
import tensorflow as tf
print("\\n" + json.dumps([
    tf.__version__, tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags(),
    tf.sysconfig.get_lib(), tf.sysconfig.CXX11_ABI_FLAG,
]))
"""


def find_tensorflow():
    """Asks the installed TensorFlow for its flags; ends in one sentence where there is none."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK_TENSORFLOW],
        cwd=sys.prefix,  # not the source tree, whose folders Python would import from
        env={**environment_to_install_into(), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        error = (asked.stderr.strip() or "no message").splitlines()[-1]
        fail(
            f"TensorFlow cannot be imported by {sys.executable} ({error}): install tensorflow or "
            "tensorflow-cpu into that environment first, then run `pip install .` again"
        )
    version, flags, link_flags, lib_dir, cxx11_abi = json.loads(asked.stdout.splitlines()[-1])
    # System includes: the warnings of TensorFlow's headers are not ours to read.
    flags = [re.sub(r"^-I", "-isystem", flag) for flag in flags if "std=" not in flag]
    framework = next(f[3:] for f in link_flags if f.startswith("-l:"))
    return TensorFlow(version, flags, lib_dir, framework, cxx11_abi)


def environment_to_install_into():
    """The variables under which this Python sees the environment that it installs into.

    pip builds in an environment of its own, which has `ninja` and `pybind11` but no TensorFlow. Two
    variables alone lay it over the environment that pip installs into.
    """
    variables = dict(os.environ)
    if "pip-build-env-" in variables.get("PYTHONPATH", ""):
        del variables["PYTHONPATH"]
        variables.pop("PYTHONNOUSERSITE", None)
    return variables


class Cuda(NamedTuple):
    root: Path
    nvcc: Path
    version: str
    archs: list

    @property
    def gencode(self):
        """Machine code for every architecture, and PTX of the newest for those still to come."""
        flags = [f"-gencode arch=compute_{a},code=sm_{a}" for a in self.archs]
        return " ".join(
            [*flags, f"-gencode arch=compute_{self.archs[-1]},code=compute_{self.archs[-1]}"]
        )


def find_cuda() -> Optional[Cuda]:
    choice = os.environ.get("GROUP_EMBEDDING_CUDA", "")
    if choice == "0":
        return None
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
    root = next(
        (r for r in roots if (r / "bin/nvcc").exists() and (r / "include/cuda_runtime.h").exists()),
        None,
    )
    if root is None:
        if choice:
            fail(
                f"GROUP_EMBEDDING_CUDA={choice} asks for CUDA, but no folder of "
                f"{[str(r) for r in roots]} has bin/nvcc and include/cuda_runtime.h"
            )
        return None
    nvcc = root / "bin/nvcc"
    version = re.search(r"release (\d+\.\d+)", output_of(nvcc, "--version")).group(1)
    known = re.findall(r"compute_(\d+)\b", output_of(nvcc, "--list-gpu-arch"))
    wanted = os.environ.get("GROUP_EMBEDDING_CUDA_ARCHS") or DEFAULT_CUDA_ARCHS
    archs = sorted(set(re.findall(r"\d+", wanted)) & set(known), key=int)
    if not archs:
        fail(
            f"GROUP_EMBEDDING_CUDA_ARCHS={wanted} names no architecture that {nvcc} knows: {known}"
        )
    return Cuda(root, nvcc, version, archs)


def output_of(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def find_tool(name, why):
    """A build tool from PyPI or from PATH."""
    found = shutil.which(
        name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    return found or fail(f"{name} is missing, {why}")


class NinjaFile:
    """The text of a build.ninja: three compile rules, one link rule, and the edges between them.

    Objects of the core are shared by all TensorFlow and Python versions, so the command that makes
    one must not depend on either. Depfiles stay on disk (no ``deps = gcc``) because several ninja
    files share one log.
    """

    def __init__(self, cuda):
        self.cuda = cuda
        march = os.environ.get("GROUP_EMBEDDING_MARCH") or DEFAULT_MARCH
        ccache = shutil.which("ccache")
        launcher = f"{ccache} " if ccache else ""
        cxx = find_tool(os.environ.get("CXX") or "g++", "install it with `apt install g++`")
        defines = "-DNDEBUG"
        if cuda:
            defines += f" -DGROUP_EMBEDDING_CUDA=1 -isystem {cuda.root}/include"
        self.lines = [
            "ninja_required_version = 1.5",
            f"builddir = {OBJECTS}",
            # -g0: TensorFlow's headers make debug information of hundreds of megabytes.
            f"cxxflags = -std=c++17 -O3 -fno-math-errno -g0 -fPIC -march={march} -Wall -I{SOURCES}"
            f" {defines}",
            "rule cxx",
            f"  command = {launcher}{cxx} $cxxflags $extra -MMD -MF $out.d -c $in -o $out",
            "  depfile = $out.d",
            "  description = C++ $in",
            "rule link",
            f"  command = {cxx} -shared -o $out $in $libs",
            "  description = link $out",
        ]
        if cuda:
            # No multiply-adds but those that are written: where the compiler chooses, two kernels
            # may round the same expression in two ways.
            self.lines += [
                "rule nvcc",
                f"  command = {launcher}{cuda.nvcc} -ccbin {cxx} -std=c++17 -O3"
                f" -fmad=false --expt-relaxed-constexpr --extended-lambda {cuda.gencode}"
                f" -Xcompiler=-fPIC,-g0,-march={march},-Wall,-fvisibility=hidden"
                f" -I{SOURCES} {defines} -MMD -MF $out.d -c $in -o $out",
                "  depfile = $out.d",
                "  description = CUDA $in",
            ]

    def objects(self, folder, sources, extra=""):
        """Adds one object under build/<folder>/ for each source; returns them."""
        made = []
        for source in sources:
            if source.suffix == ".cu" and not self.cuda:
                continue
            target = (
                OBJECTS / folder / source.relative_to(SOURCES).with_suffix(source.suffix + ".o")
            )
            rule = "nvcc" if source.suffix == ".cu" else "cxx"
            self.lines += [f"build {target}: {rule} {source}", f"  extra = {extra}"]
            made.append(target)
        return made

    def library(self, target, objects, libs=""):
        if self.cuda:
            # The CUDA runtime goes first and stays private: libtensorflow_framework exports stubs
            # of the same names, and a library that found those would run on TensorFlow's CUDA.
            folders = [self.cuda.root / f for f in ("lib64", "lib", "targets/x86_64-linux/lib")]
            libs = " ".join(
                [
                    *(f"-L{f}" for f in folders if f.is_dir()),
                    "-lcudart_static -ldl -lrt",
                    "-lpthread",
                    libs,
                    "-Wl,--exclude-libs,libcudart_static.a",
                ]
            )
        self.lines += [
            f"build {target}: link {' '.join(map(str, objects))}",
            f"  libs = {libs} -Wl,-Bsymbolic",
        ]

    def run(self, name):
        OBJECTS.mkdir(exist_ok=True)
        file = OBJECTS / f"{name}.ninja"
        file.write_text("\n".join(self.lines) + "\n")
        ninja = find_tool("ninja", "install it with `pip install ninja`")
        jobs = os.environ.get("GROUP_EMBEDDING_JOBS") or str(len(os.sched_getaffinity(0)))
        if subprocess.call([ninja, "-f", file, "-j", jobs]) != 0:
            fail("the native build failed, see the compiler's message above")


def native_sources():
    """Splits cc/ by folder: (core, tf, python)."""
    split = {"tf": [], "python": []}
    core = []
    for source in sorted([*SOURCES.rglob("*.cc"), *SOURCES.rglob("*.cu")]):
        split.get(source.relative_to(SOURCES).parts[0], core).append(source)
    return core, split["tf"], split["python"]


def build_native(tensorflow, cuda):
    """Builds both libraries under build/; returns {name in the package: path}."""
    core, tf, python = native_sources()
    python_tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    ninja = NinjaFile(cuda)
    # Hidden: the two libraries hold the same core, and must not share its static variables.
    core_objects = ninja.objects(
        "core", core, f"-D_GLIBCXX_USE_CXX11_ABI={tensorflow.cxx11_abi} -fvisibility=hidden"
    )
    built = {}
    if tf:
        name = f"_group_embedding_ops.tf{tensorflow.minor}.so"
        built[name] = OBJECTS / f"tf{tensorflow.version}" / name
        # What one TensorFlow deprecates is often all that an older one has.
        flags = " ".join([*tensorflow.compile_flags, "-Wno-deprecated-declarations"])
        flags += " -DGOOGLE_CUDA=1" if cuda else ""
        objects = ninja.objects(f"tf{tensorflow.version}", tf, flags)
        # -z defs: a symbol that nobody defines is an error of the build, not of the first import.
        libs = f"-L{tensorflow.lib_dir} -l:{tensorflow.framework} -ldl -Wl,-z,defs"
        ninja.library(built[name], core_objects + objects, libs)
    if python:
        name = "_core" + sysconfig.get_config_var("EXT_SUFFIX")
        built[name] = OBJECTS / python_tag / name
        flags = f"-D_GLIBCXX_USE_CXX11_ABI={tensorflow.cxx11_abi} -fvisibility=hidden " + " ".join(
            f"-isystem {folder}" for folder in python_includes()
        )
        ninja.library(built[name], core_objects + ninja.objects(python_tag, python, flags))
    ninja.run(f"tf{tensorflow.version}-{python_tag}")
    return built


def python_includes():
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


def build_record(tensorflow, cuda):
    return {
        "tensorflow": tensorflow.version,
        "cxx11_abi": tensorflow.cxx11_abi,
        "march": os.environ.get("GROUP_EMBEDDING_MARCH") or DEFAULT_MARCH,
        "cuda": cuda.version if cuda else None,
        "cuda_archs": cuda.archs if cuda else [],
    }


def replace_file(path, content):
    """Writes by rename: a process that has the old library mapped keeps the old one."""
    if path.exists() and path.read_bytes() == content:
        return
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    fresh.replace(path)


class BuildNative(build_ext):
    def run(self):
        tensorflow, cuda = find_tensorflow(), find_cuda()
        OBJECTS.mkdir(exist_ok=True)
        with open(OBJECTS / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            built = build_native(tensorflow, cuda)
            package = Path(self.get_ext_fullpath("group_embedding._core")).parent
            package.mkdir(parents=True, exist_ok=True)
            if not self.inplace:  # a wheel serves one TensorFlow, whatever was built here before
                for stale in package.glob("_group_embedding_ops.*"):
                    stale.unlink()
            for name, path in built.items():
                replace_file(package / name, path.read_bytes())
            record = json.dumps(build_record(tensorflow, cuda), indent=2) + "\n"
            name = f"_group_embedding_ops.tf{tensorflow.minor}.json"
            replace_file(package / name, record.encode())

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


setup(
    name="group_embedding",
    version="0.1.0",
    description="Many sparse embedding lookups in one fused op, for stock TensorFlow",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.9",
    packages=find_packages(include=["group_embedding*"]),
    # TensorFlow itself is not listed: it comes as tensorflow or as tensorflow-cpu, and the library
    # is built for the one that is there.
    install_requires=["numpy"],
    extras_require={
        "collective": ["horovod==0.28.1"],
        "disk": ["aimrocks==0.5.2; python_version < '3.13'"],
        "parquet": ["pyarrow==21.0.0"],
    },
    ext_modules=[Extension("group_embedding._core", sources=[])],
    cmdclass={"build_ext": BuildNative},
    zip_safe=False,
)
