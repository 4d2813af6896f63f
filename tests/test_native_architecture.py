"""The layer rule of cc/: who may include whom, what may throw, and names that must differ."""

import collections
import re

import pytest
from support.cases.source_files import NATIVE, includes, native_files, offenders

LEAVES = ("tf", "bindings")
SERVER = "serving/server"
SERVED = ("serving", "tf/serving")  # the served half; the rest of cc/ is the library's
CLASS = re.compile(r"(?:class|struct) (?:alignas\(\d+\) )?(\w+)\b(?!::)[^;]*\{")


def top_folder_of(path):
    return path.relative_to(NATIVE).parts[0]


def test_core_includes_nothing_above_it():
    above = {p.name for p in NATIVE.iterdir() if p.is_dir()} - {"core"}

    found = offenders(
        native_files("core"), lambda f: [i for i in includes(f) if i.split("/")[0] in above]
    )

    assert not found


# What may throw in the core: the function that turns an error into an exception, and lack of
# memory. Everything else returns a Status.
THROWS = {
    "cc/core/status.h": ["runtime_error"],
    "cc/table/host/row_infos.cc": ["NoMemory"],
    "cc/table/large_page_blocks.cc": ["NoMemory"],
    "cc/table/zeroed_memory.h": ["NoMemory"],
}


def core_files():
    """The native files of the framework-free libraries: the core and served tables."""
    leaves = ("tf", "bindings", "serving/c_api", SERVER)
    return [
        f for f in native_files() if not any(f.is_relative_to(NATIVE / leaf) for leaf in leaves)
    ]


def code_of(path):
    """The text of a native file without its comments."""
    return re.sub(r"//[^\n]*", "", path.read_text())


def test_the_core_throws_only_by_require_and_without_memory():
    found = offenders(core_files(), lambda f: re.findall(r"\bthrow\s+(?:std::)?(\w+)", code_of(f)))

    assert found == THROWS


def test_an_error_that_leaves_the_core_is_a_status():
    # An error as a string could be dropped without a warning.
    found = offenders(
        core_files(), lambda f: re.findall(r"std::string\s*\*\s*(?:error|why\w*)\b", f.read_text())
    )

    assert not found
    assert "class [[nodiscard]] Status" in (NATIVE / "core" / "status.h").read_text()


@pytest.mark.parametrize(
    "prefixes, folder",
    [
        (("tensorflow/", "absl/", "Eigen/", "unsupported/"), "tf"),
        (("pybind11/", "Python.h"), "bindings"),
        (("nghttp2/", "google/protobuf/", "tensorflow_serving/", "rapidjson/", "boost/"), SERVER),
    ],
)
def test_only_its_leaf_includes_a_framework(prefixes, folder):
    # The server's messages of TensorFlow are protobuf's, made of .proto files; no code is.
    messages = (".pb.h",) if folder == "tf" else ()
    others = [f for f in native_files() if not f.is_relative_to(NATIVE / folder)]

    found = offenders(
        others,
        lambda f: [
            i
            for i in includes(f)
            if i.startswith(prefixes)
            and not (f.is_relative_to(NATIVE / SERVER) and i.endswith(messages))
        ],
    )

    assert not found


def test_nobody_includes_a_leaf():
    found = offenders(
        native_files(),
        lambda f: [
            i
            for i in includes(f)
            if i.split("/")[0] in LEAVES and top_folder_of(f) != i.split("/")[0]
        ],
    )

    assert not found


def is_served(name):
    """True if a file of cc/, by its path there, is of the served half."""
    return name.startswith(tuple(f"{folder}/" for folder in SERVED))


def test_the_library_includes_nothing_of_the_served_half():
    # Given the library's half of cc/, and of the served half those that the library may not know
    files = [f for f in native_files() if not is_served(str(f.relative_to(NATIVE)))]
    served = [f for f in native_files(*SERVED) if f.suffix == ".h"]
    assert len(files) > 300 and len(served) > 60

    # When their includes are read
    found = offenders(files, lambda f: [i for i in includes(f) if is_served(i)])

    # Then none is of the served half, whose tables include nothing of its sessions
    assert not found
    assert not offenders(
        native_files("serving"), lambda f: [i for i in includes(f) if i.startswith("tf/")]
    )


@pytest.mark.parametrize(
    "folder, above",
    [
        ("serving/lower", ("table", "device", "session", "c_api", "server")),
        ("serving/table", ("device", "session", "c_api", "server")),
        ("serving/device", ("session", "c_api", "server")),
        ("serving/session", ("c_api", "server")),
        ("serving/c_api", ("table", "device", "server")),
    ],
)
def test_folders_of_the_served_half_include_those_below(folder, above):
    names = tuple(f"serving/{folder}/" for folder in above)

    assert not offenders(
        native_files(folder), lambda f: [i for i in includes(f) if i.startswith(names)]
    )


def test_cuda_sources_never_include_tensorflow():
    cuda = [f for f in native_files() if f.suffix in (".cu", ".cuh")]

    found = offenders(cuda, lambda f: [i for i in includes(f) if i.startswith("tensorflow/")])

    assert not found


def test_no_two_files_define_a_class_of_one_name():
    """The linker would keep one destructor of both. Classes of a file alone are in an anonymous
    namespace."""
    files_of = collections.defaultdict(set)
    for file in native_files():
        namespaces = []
        for line in file.read_text().splitlines():
            if opened := re.match(r"namespace ?([\w:]*) ?\{", line):
                namespaces.append(opened[1])
            elif line.startswith("}  // namespace"):
                namespaces.pop()
            elif "" not in namespaces and (defined := CLASS.match(line)):
                files_of["::".join([*namespaces, defined[1]])].add(file.name)

    assert len(files_of) > 300
    assert {name: files for name, files in files_of.items() if len(files) > 1} == {}
