"""ge-serve, the server: ``python -m buildtools.serving`` builds it into group_embedding/.

It needs nghttp2, protobuf, RapidJSON and Boost: ``requirements/serving.sh`` installs Debian's.
protobuf is linked in, so that TensorFlow, which the server loads later, does not find it. The
message types of TensorFlow are compiled from the .proto files of the installed wheel, or of the one
that a wheel of this package is built for.
"""

import shutil
import sys
from pathlib import Path

from buildtools import tensorflow
from buildtools.ninja_file import OBJECTS, ROOT, SOURCES, NinjaFile, write
from buildtools.report import fail, say

PROGRAM = ROOT / "group_embedding" / "ge-serve"
SERVER = SOURCES / "serving" / "server"
PROTOS = SERVER / "proto"
# What the server uses of the core: files with checksums.
CORE = [SOURCES / "table" / "file" / f for f in ("crc32c.cc", "local_files.cc", "section_file.cc")]
TENSORFLOW_PROTOS = [
    "tensorflow/core/example/example.proto",
    "tensorflow/core/protobuf/meta_graph.proto",
]
# Wheels from 2.20 on have no .proto files. The messages that the server reads are the same in all.
LAST_WITH_PROTOS = "2.19.1"
# Debian's packages of which a wheel carries code: in the program, or beside it by auditwheel.
CARRIED = [
    "libnghttp2-dev",
    "libprotobuf-dev",
    "libboost1.81-dev",
    "libssl-dev",
    "zlib1g-dev",
    "rapidjson-dev",
]
LIBRARIES = (
    "-Wl,-Bstatic -lprotobuf -lnghttp2 -Wl,-Bdynamic -Wl,--exclude-libs,ALL"
    " -lssl -lcrypto -lz -ldl -lpthread"
)
HEADERS = [
    "nghttp2/nghttp2.h",
    "google/protobuf/message.h",
    "rapidjson/document.h",
    "boost/beast.hpp",
]


def missing():
    """The parts that the build lacks on this machine: names of tools and headers."""
    tools = [] if shutil.which("protoc") else ["protoc"]
    return tools + [header for header in HEADERS if not Path("/usr/include", header).exists()]


def main():
    """Builds the program into the package; ends in one sentence where a part is missing."""
    if lacks := missing():
        fail(f"ge-serve needs {', '.join(lacks)}: run requirements/serving.sh")
    program = build(tensorflow.installed(), "server")
    fresh = PROGRAM.with_name(PROGRAM.name + ".new")
    shutil.copy2(program, fresh)
    fresh.replace(PROGRAM)


def for_wheel(wanted):
    """The program and the licenses of what is in it; nothing, and a line, where a part is missing.

    Args:
        wanted: the `TensorFlow` whose messages are compiled.

    Returns:
        {name in the package: the file's bytes}.
    """
    if lacks := missing():
        say(f"the wheel has no ge-serve, which needs {', '.join(lacks)}: requirements/serving.sh")
        return {}
    program = build(wanted, "server-for-wheels").read_bytes()
    return {PROGRAM.name: program, f"{PROGRAM.name}.licenses.txt": licenses(CARRIED).encode()}


def licenses(packages, documents=Path("/usr/share/doc")):
    """The copyright files of Debian's packages, one after the other."""
    texts = []
    for package in packages:
        file = documents / package / "copyright"
        if not file.exists():
            fail(f"{file} is missing, the license of {package}, which a wheel carries code of")
        texts.append(f"==== {package} ====\n\n{file.read_text(errors='replace').strip()}\n")
    return "\n".join(texts)


def build(wanted, name):
    """Builds the program.

    Args:
        wanted: the `TensorFlow` whose messages are compiled.
        name: the folder below build/.

    Returns:
        The program's path.
    """
    folder = OBJECTS / name
    ninja = NinjaFile(cuda=None)
    generated = _add_messages(ninja, _include_of(wanted), folder / "proto")
    flags = f"-I{folder / 'proto'} -DGE_SERVE_VERSION='\"{_version()}\"'"
    # What protoc writes has warnings of its own. A few files that include it all compile in a
    # fraction of the time.
    messages = ninja.objects(
        name,
        [_all_in_one(folder / "proto", generated[i::2], i) for i in range(2)],
        f"{flags} -w -O1",
        after=generated,
        root=folder,
    )
    ours = sorted(SERVER.rglob("*.cc")) + CORE
    objects = ninja.objects(name, ours, flags, header=SERVER / "precompiled.h", after=generated)
    ninja.program(folder / PROGRAM.name, messages + objects, LIBRARIES)
    ninja.run(name)
    return folder / PROGRAM.name


def _version():
    stated = {}
    exec((ROOT / "group_embedding" / "version.py").read_text(), stated)
    return stated["VERSION"]


def _all_in_one(folder, sources, number):
    """A source that includes those of protoc, whose two names of one file alone get a number."""
    path = folder / f"messages_{number}.cc"
    text = ""
    for i, source in enumerate(sources):
        text += f"#define schemas schemas_{i}\n#define file_default_instances defaults_{i}\n"
        text += f'#include "{source.relative_to(folder)}"\n'
        text += "#undef schemas\n#undef file_default_instances\n"
    return write(path, text)


def _include_of(wanted):
    """The folder with TensorFlow's .proto files: of this TensorFlow, or of one that has them."""
    paths = [Path(flag.removeprefix("-isystem")) for flag in wanted.compile_flags]
    paths = [path for path in paths if (path / TENSORFLOW_PROTOS[0]).exists()]
    if not paths:
        unpacked = tensorflow.unpack(LAST_WITH_PROTOS, tensorflow.cache())
        paths = [unpacked / "tensorflow" / "include"]
    return paths[0]


def _add_messages(ninja, include, folder):
    """Adds a rule for each .proto file; returns the C++ files that protoc writes."""
    ours = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    names = _with_imports(include, TENSORFLOW_PROTOS) + ours
    return ninja.messages(folder, names, [PROTOS, include])


def _with_imports(include, names):
    """The .proto files of TensorFlow that these need, without those of protobuf itself."""
    found, wanted = [], list(names)
    while wanted:
        name = wanted.pop()
        if name in found or name.startswith("google/protobuf/"):
            continue
        found.append(name)
        for line in (include / name).read_text().splitlines():
            if line.startswith("import "):
                wanted.append(line.split('"')[1])
    return sorted(found)


if __name__ == "__main__":
    sys.exit(main())
