"""The text of a build.ninja, and running it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from buildtools.report import fail

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "cc"
OBJECTS = ROOT / "build"
DEFAULT_MARCH = "x86-64-v3"


# A switch over an enumeration that leaves a value out is an error.
WARNINGS = "-Wall -Werror=switch"


def march():
    """The instruction set of the CPU code."""
    return os.environ.get("GROUP_EMBEDDING_MARCH") or DEFAULT_MARCH


def find_tool(name, why):
    """A build tool from PyPI or from PATH."""
    found = shutil.which(
        name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    )
    return found or fail(f"{name} is missing, {why}")


def write(path, text):
    """Writes a source that the build makes, unless it is there: it is not compiled anew."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def _ccache():
    """The front of a compiler's command: ccache, where it is installed."""
    ccache = shutil.which("ccache")
    if not ccache:
        return ""
    # What it asks for before it keeps an object that a precompiled header went into. No object has
    # the folder that it was compiled in.
    sloppiness = "pch_defines,time_macros,include_file_mtime,include_file_ctime"
    return f"CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS={sloppiness} {ccache} "


class NinjaFile:
    """The text of a build.ninja: compile rules, one link rule, and the edges between them.

    Paths in this checkout are written as seen from it, so that ccache knows the same command in
    another one.

    Objects of the core are shared by all TensorFlow and Python versions, so the command that makes
    one must not depend on either. Depfiles stay on disk (no ``deps = gcc``) because several ninja
    files share one log.
    """

    def __init__(self, cuda):
        self.cuda = cuda
        self.precompiled = set()
        self.jobs = int(os.environ.get("GROUP_EMBEDDING_JOBS") or len(os.sched_getaffinity(0)))
        launcher = _ccache()
        cxx = find_tool(os.environ.get("CXX") or "g++", "install it with `apt install g++`")
        defines = "-DNDEBUG"
        if cuda:
            defines += f" -DGROUP_EMBEDDING_CUDA=1 -isystem {cuda.root}/include"
        self.lines = [
            "ninja_required_version = 1.5",
            f"builddir = {OBJECTS}",
            # -g0: TensorFlow's headers make debug information of hundreds of megabytes.
            f"cxxflags = -std=c++17 -O3 -fno-math-errno -g0 -fPIC -march={march()} {WARNINGS}"
            f" -I{SOURCES} {defines}",
            "rule cxx",
            f"  command = {launcher}{cxx} $cxxflags $extra -MMD -MF $out.d -c $in -o $out",
            "  depfile = $out.d",
            "  description = C++ $in",
            "rule precompile",
            f"  command = {launcher}{cxx} $cxxflags $extra -MMD -MF $out.d -x c++-header -c $in"
            " -o $out",
            "  depfile = $out.d",
            "  description = precompile $in",
            "rule link",
            f"  command = {cxx} -shared -o $out $in $libs",
            "  description = link $out",
            "rule link_program",
            f"  command = {cxx} -o $out $in $libs",
            "  description = link $out",
        ]
        if cuda:
            # A file takes minutes for each architecture: nvcc compiles for several at a time, and
            # so few files at a time that there are no more compilers than jobs.
            threads = min(len(cuda.archs), self.jobs)
            at_a_time = f" --threads={threads}" if threads > 1 else ""
            # No multiply-adds but those that are written: where the compiler chooses, two kernels
            # may round the same expression in two ways.
            self.lines += [
                "pool cuda",
                f"  depth = {self.jobs // threads}",
                "rule nvcc",
                "  pool = cuda",
                f"  command = {launcher}{cuda.nvcc} -ccbin {cxx} -std=c++17 -O3{at_a_time}"
                f" -fmad=false --expt-relaxed-constexpr --extended-lambda {cuda.gencode}"
                f" -Xcompiler=-fPIC,-g0,-march={march()},{WARNINGS.replace(' ', ',')}"
                " -Xcompiler=-fno-semantic-interposition"
                f" -I{SOURCES} {defines} -MMD -MF $out.d -c $in -o $out",
                "  depfile = $out.d",
                "  description = CUDA $in",
            ]

    def objects(self, folder, sources, extra="", header=None, after=(), root=SOURCES):
        """Adds one object under build/<folder>/ for each source; returns them.

        Args:
            folder: under build/.
            sources: paths of .cc and .cu files, below `root`.
            extra: flags of the C++ compiler.
            header: compiled once and included in front of each source, to save time. Calls with one
                folder and header have the same flags.
            after: files that are written before any source is compiled.
        """
        made = []
        after = f" || {' '.join(map(str, after))}" if after else ""
        if header is not None:
            # g++ takes the .gch beside the path that it is given, if it was made with these flags.
            included = OBJECTS / folder / header.relative_to(SOURCES)
            if included not in self.precompiled:
                self.precompiled.add(included)
                self.lines += [
                    f"build {included}.gch: precompile {header}{after}",
                    f"  extra = {extra}",
                ]
            after = f" | {included}.gch{after}"
            extra += f" -Winvalid-pch -include {included}"
        for source in sources:
            if source.suffix == ".cu" and not self.cuda:
                continue
            target = OBJECTS / folder / source.relative_to(root).with_suffix(source.suffix + ".o")
            rule = "nvcc" if source.suffix == ".cu" else "cxx"
            self.lines += [f"build {target}: {rule} {source}{after}", f"  extra = {extra}"]
            made.append(target)
        return made

    def library(self, target, objects, libs="", uses=()):
        """Adds the shared library of these objects, which is linked to the libraries `uses`."""
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
            f"build {target}: link {' '.join(map(str, [*objects, *uses]))}",
            f"  libs = {libs} -Wl,-Bsymbolic",
        ]

    def program(self, target, objects, libs):
        """Adds the program of these objects."""
        self.lines += [
            f"build {target}: link_program {' '.join(map(str, objects))}",
            f"  libs = {libs}",
        ]

    def messages(self, folder, names, includes):
        """Adds protoc's output for .proto files; returns the C++ sources.

        Args:
            folder: where they are written.
            names: .proto files, relative to one of `includes`.
            includes: folders.
        """
        flags = " ".join(f"-I{include}" for include in includes)
        self.lines += [
            "rule protoc",
            f"  command = protoc {flags} --cpp_out={folder} $name",
            "  description = protoc $name",
        ]
        written = []
        for name in names:
            source = next(i / name for i in includes if (i / name).exists())
            written.append(folder / name.replace(".proto", ".pb.cc"))
            self.lines += [f"build {written[-1]}: protoc {source}", f"  name = {name}"]
        folder.mkdir(parents=True, exist_ok=True)
        return written

    def run(self, name):
        """Writes build/<name>.ninja and builds all of it; ends the process where that fails."""
        OBJECTS.mkdir(exist_ok=True)
        file = OBJECTS / f"{name}.ninja"
        file.write_text("\n".join(self.lines).replace(f"{ROOT}/", "") + "\n")
        ninja = find_tool("ninja", "install it with `pip install ninja`")
        if subprocess.call([ninja, "-f", file, "-j", str(self.jobs)], cwd=ROOT) != 0:
            fail("the native build failed, see the compiler's message above")
