"""The layer rule: who may include and import whom."""

import ast
import collections
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "group_embedding"
NATIVE = ROOT / "cc"
LEAVES = ("tf", "bindings")
SERVER = "serving/server"
SERVED = ("serving", "tf/serving")  # the served half; the rest of cc/ is the library's
PURE = ("config.py", "placement.py", "layers/feature_plan.py", "ranks/sharding/placement_plan.py")
EXTENSIONS = ("recommender", "serving", "compat")
# Folders of folders: each inner one has a job of its own.
HALLS = ("ranks", *EXTENSIONS)
CLASS = re.compile(r"(?:class|struct) (?:alignas\(\d+\) )?(\w+)\b(?!::)[^;]*\{")


def native_files(*folders):
    folders = [NATIVE / folder for folder in folders] or [NATIVE]
    return [
        f
        for folder in folders
        for f in folder.rglob("*")
        if f.suffix in (".h", ".cc", ".cu", ".cuh")
    ]


def top_folder_of(path):
    return path.relative_to(NATIVE).parts[0]


def includes(path):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def imports(path):
    """The absolute names of the modules that a file imports, anywhere in it."""
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def imports_of(path, *modules):
    return sorted(
        name for name in imports(path) for m in modules if name == m or name.startswith(m + ".")
    )


def offenders(files, find):
    return {str(f.relative_to(ROOT)): find(f) for f in files if find(f)}


def name_of(path):
    """The module that a file is."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def names_of_modules():
    return frozenset({name_of(f) for f in PACKAGE.rglob("*.py")} - {"group_embedding"})


def folder_of(module):
    """The folder of a module: "lookups", "ranks/exchange", or the module itself at the top."""
    parts = module.split(".")[1:]
    if parts and parts[0] in HALLS:
        return "/".join(parts[:2])
    return parts[0] if parts else ""


def extension_of(module):
    """The extension that a module belongs to; None: the library."""
    first = (module.split(".") + [""])[1]
    return first if first in EXTENSIONS else None


def imported_modules(path):
    """The modules of the package that a file imports, those of a type checker included."""
    modules = names_of_modules()
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                found.add(module if module in modules else node.module)
    return found & modules


def circle_in(edges):
    """The nodes of one circle of a graph {node: its successors}, in order; none: []."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return []
        path.append(node)
        for other in sorted(edges.get(node, ())):
            if circle := visit(other):
                return circle
        done.add(path.pop())
        return []

    for node in sorted(edges):
        if circle := visit(node):
            return circle
    return []


def test_core_includes_nothing_above_it():
    above = {p.name for p in NATIVE.iterdir() if p.is_dir()} - {"core"}

    found = offenders(
        native_files("core"), lambda f: [i for i in includes(f) if i.split("/")[0] in above]
    )

    assert not found


# What may throw in the core: the two functions that turn an error into an exception, and lack of
# memory. Everything else returns a Status.
THROWS = {
    "cc/core/device_buffer.h": ["runtime_error"],
    "cc/core/status.h": ["runtime_error"],
    "cc/table/large_page_blocks.cc": ["bad_alloc"],
    "cc/table/zeroed_memory.h": ["bad_alloc"],
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
        (("grpcpp/", "google/protobuf/", "tensorflow_serving/", "rapidjson/", "boost/"), SERVER),
    ],
)
def test_only_its_leaf_includes_a_framework(prefixes, folder):
    # The server's messages of TensorFlow are protobuf's, made of .proto files; no code is. The
    # locks of its gRPC are Abseil's.
    messages = (".pb.h", "absl/synchronization/mutex.h") if folder == "tf" else ()
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
    """Whether a file of cc/, by its path there, is of the served half."""
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
    "room, above",
    [
        ("serving/lower", ("table", "device", "session", "c_api", "server")),
        ("serving/table", ("device", "session", "c_api", "server")),
        ("serving/device", ("session", "c_api", "server")),
        ("serving/session", ("c_api", "server")),
        ("serving/c_api", ("table", "device", "server")),
    ],
)
def test_rooms_of_the_served_half_include_those_below(room, above):
    names = tuple(f"serving/{folder}/" for folder in above)

    assert not offenders(
        native_files(room), lambda f: [i for i in includes(f) if i.startswith(names)]
    )


def test_cuda_sources_never_include_tensorflow():
    cuda = [f for f in native_files() if f.suffix in (".cu", ".cuh")]

    found = offenders(cuda, lambda f: [i for i in includes(f) if i.startswith("tensorflow/")])

    assert not found


def test_plans_and_configs_are_pure():
    native = ("tensorflow", "group_embedding._native", "group_embedding.ops", "horovod")

    found = offenders([PACKAGE / f for f in PURE], lambda f: imports_of(f, *native))

    assert not found


@pytest.mark.parametrize(
    "client, module",
    [
        ("horovod", "ranks/exchange/horovod.py"),
        ("confluent_kafka", "serving/stores/kafka_client.py"),
        ("redis", "serving/stores/redis_stream.py"),
        ("fsspec", "files/connections.py"),
    ],
)
def test_only_one_module_imports_a_client(client, module):
    others = [f for f in PACKAGE.rglob("*.py") if f != PACKAGE / module]

    found = offenders(others, lambda f: imports_of(f, client))

    assert imports_of(PACKAGE / module, client)

    assert not found


def test_only_one_module_loads_the_ops():
    others = [f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "ops" / "_library.py"]

    found = offenders(others, lambda f: re.findall(r"\bload_op_library\b", f.read_text()))

    assert not found


def test_no_circle_of_imports():
    # Given every import of every module, also inside of functions, and for a type checker alone
    modules = {name_of(f): f for f in PACKAGE.rglob("*.py")}
    edges = {m: imported_modules(f) - {m} for m, f in modules.items()}
    folders = {}
    for module, others in edges.items():
        if folder := folder_of(module):
            folders.setdefault(folder, set()).update(folder_of(other) for other in others)
    folders = {folder: others - {folder} for folder, others in folders.items()}

    # When circles are looked for, Then there is none: of two folders, of more, or of files
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert not circle_in(folders)
    assert not circle_in(edges)

    # And folders import what stands above them in the package's map
    rows = re.findall(r"^\| (`.*?) \|", (PACKAGE / "README.md").read_text(), re.MULTILINE)
    names = [
        name.strip("/").removesuffix(".py") for row in rows for name in re.findall("`(.+?)`", row)
    ]
    height = {name: number for number, name in enumerate(names)}
    doors = {"command_log", "import_paths", "version", "__main__", "serving/__main__", *HALLS}
    assert set(folders) - doors <= set(height)
    wrong = [
        (a, b)
        for a, others in folders.items()
        for b in others
        if not {a, b} & doors and height[b] > height[a]
    ]
    assert wrong == []


# Doors, which load an extension when it is used.
DOORS = ("group_embedding", "group_embedding.__main__")
# What extensions may import of the library besides its folders: plain values and checks.
PLAIN = ("arguments", "config", "keras_compat", "placement", "types")


def from_imports(path):
    """The pairs (module, name) of a file's `from group_embedding... import`, anywhere in it."""
    return sorted(
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("group_embedding")
        for alias in node.names
    )


def is_public(module, name):
    """If the `__init__.py` of a folder makes the name, or a plain module of the library has it."""
    folder = module.removeprefix("group_embedding").strip(".").replace(".", "/")
    if folder in PLAIN:
        return True
    init = PACKAGE / folder / "__init__.py"
    if not init.exists():
        return False
    tree = ast.parse(init.read_text())
    made = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    made |= {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    # A folder itself, such as that of `from group_embedding.ranks import exchange`.
    return name in made or name in PLAIN or (PACKAGE / folder / name / "__init__.py").exists()


def test_the_library_imports_no_extension():
    library = [
        f
        for f in PACKAGE.rglob("*.py")
        if extension_of(name_of(f)) is None and name_of(f) not in DOORS
    ]
    extensions = [f"group_embedding.{name}" for name in EXTENSIONS]
    assert len(library) > 100

    found = offenders(library, lambda f: imports_of(f, *extensions))

    assert not found


def test_extensions_import_public_names_of_the_library_and_of_each_other():
    def private(path):
        of = extension_of(name_of(path))
        return [
            f"{module}.{name}"
            for module, name in from_imports(path)
            if extension_of(f"{module}.{name}") != of and not is_public(module, name)
        ]

    extensions = [f for name in EXTENSIONS for f in (PACKAGE / name).rglob("*.py")]
    assert len(extensions) > 100

    found = offenders(extensions, private)

    assert not found


PROSE = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(
        f
        for folder in ("cc", "group_embedding", "benchmarks")
        for f in (ROOT / folder).rglob("*.md")
    ),
]
FILE = re.compile(r"`((?:cc|group_embedding|tests|docs|benchmarks|examples|buildtools)/[\w./-]+)`")


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page):
    named = FILE.findall(page.read_text())

    assert [name for name in named if not (ROOT / name).exists()] == []


# "`Owners` in `cc/core/owner.h`"
NAME_IN_FILE = re.compile(r"`([A-Za-z_][\w:]*)`\s+in\s+`([\w/.]+\.(?:py|cc|cu|h|cuh))`")


def test_a_name_is_in_the_file_that_a_page_says_it_is_in():
    # Given the names that pages give a file to
    named = [(page, *found) for page in PROSE for found in NAME_IN_FILE.findall(page.read_text())]
    assert len(named) > 20
    folders = [ROOT / f for f in ("group_embedding", "tests", "benchmarks", "buildtools")]
    sources = [*native_files(), *(f for folder in folders for f in folder.rglob("*.py"))]

    # When each is looked for in its file
    missing = []
    for page, name, path in named:
        files = [f for f in sources if f"/{f.relative_to(ROOT)}".endswith(f"/{path}")]
        word = re.compile(rf"\b{name.split('::')[-1]}\b")
        if not any(word.search(f.read_text()) for f in files):
            missing.append(f"{page.relative_to(ROOT)}: {name} in {path}")

    # Then it is there
    assert missing == []


@pytest.mark.parametrize("folder", ["feature_column", "layers"])
def test_ways_in_do_not_import_each_other(folder):
    others = [f"group_embedding.{o}" for o in ("feature_column", "layers") if o != folder]

    found = offenders((PACKAGE / folder).rglob("*.py"), lambda f: imports_of(f, *others))

    assert not found


def test_every_stem_of_the_native_library_is_on_a_map():
    """A stem is named by the README of its folder, or by one above it."""
    missing = []
    for folder in sorted({f.parent for f in native_files()}):
        above = [folder, *folder.parents]
        maps = [f / "README.md" for f in above[: above.index(NATIVE) + 1]]
        text = "".join(page.read_text() for page in maps if page.exists())
        named = set(re.findall(r"\w+", text))
        stems = {f.stem for f in native_files(folder.relative_to(NATIVE)) if f.parent == folder}
        missing += [f"{folder.relative_to(ROOT)}/{stem}" for stem in sorted(stems - named)]
    assert missing == []


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


def test_every_folder_of_the_native_library_has_a_short_readme():
    folders = {f.parent for f in native_files()} - {NATIVE / "tf"}
    assert len(folders) > 12
    for folder in sorted(folders):
        lines = (folder / "README.md").read_text().splitlines()
        assert len(lines) <= 25, folder
        assert lines[0].startswith(f"# {folder.relative_to(NATIVE)}/"), folder
