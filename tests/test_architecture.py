"""The layer rule of the package: who may import whom."""

import ast
import functools
import re

import pytest
from support.cases.source_files import PACKAGE, ROOT, offenders

PURE = ("config.py", "placement.py", "layers/feature_plan.py", "ranks/sharding/placement_plan.py")
EXTENSIONS = ("recommender", "serving", "compat")


# Folders of folders: each inner one has a job of its own.
HALLS = ("ranks", *EXTENSIONS)


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


def test_plans_and_configs_are_pure():
    native = ("tensorflow", "group_embedding._native", "group_embedding.ops", "horovod")

    found = offenders([PACKAGE / f for f in PURE], lambda f: imports_of(f, *native))

    assert not found


def test_the_watch_over_ranks_imports_nothing_but_itself():
    watch = "group_embedding.ranks.exchange.liveness"

    found = offenders(
        (PACKAGE / "ranks/exchange/liveness").glob("*.py"),
        lambda f: [
            name
            for name in imports_of(f, "tensorflow", "horovod", "group_embedding")
            if not name.startswith(watch)
        ],
    )

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


def test_the_library_has_at_most_fourteen_folders():
    folders = {
        folder_of(name_of(f))
        for f in PACKAGE.rglob("*.py")
        if f.parent != PACKAGE and extension_of(name_of(f)) is None and f.stem != "__init__"
    }

    assert "ranks/exchange" in folders
    assert len(folders) <= 14, folders


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


@pytest.mark.parametrize("folder", ["feature_column", "layers"])
def test_ways_in_do_not_import_each_other(folder):
    others = [f"group_embedding.{o}" for o in ("feature_column", "layers") if o != folder]

    found = offenders((PACKAGE / folder).rglob("*.py"), lambda f: imports_of(f, *others))

    assert not found
