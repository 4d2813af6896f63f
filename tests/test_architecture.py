"""The layer rule: who may include and import whom."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "group_embedding"
NATIVE = ROOT / "cc"
LEAVES = ("tf", "python")


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


def test_core_includes_nothing_above_it():
    above = {p.name for p in NATIVE.iterdir() if p.is_dir()} - {"core"}

    found = offenders(
        native_files("core"), lambda f: [i for i in includes(f) if i.split("/")[0] in above]
    )

    assert not found


@pytest.mark.parametrize(
    "prefixes, folder",
    [
        (("tensorflow/", "absl/", "Eigen/", "unsupported/"), "tf"),
        (("pybind11/", "Python.h"), "python"),
    ],
)
def test_only_its_leaf_includes_a_framework(prefixes, folder):
    others = [f for f in native_files() if top_folder_of(f) != folder]

    found = offenders(others, lambda f: [i for i in includes(f) if i.startswith(prefixes)])

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


def test_cuda_sources_never_include_tensorflow():
    cuda = [f for f in native_files() if f.suffix in (".cu", ".cuh")]

    found = offenders(cuda, lambda f: [i for i in includes(f) if i.startswith("tensorflow/")])

    assert not found


def test_plans_and_configs_are_pure():
    native = ("tensorflow", "group_embedding._core", "group_embedding.ops", "horovod")

    found = offenders(
        [PACKAGE / "config.py", PACKAGE / "plan.py"], lambda f: imports_of(f, *native)
    )

    assert not found


def test_only_one_module_imports_horovod():
    others = [f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "exchange" / "horovod.py"]

    found = offenders(others, lambda f: imports_of(f, "horovod"))

    assert not found


def test_only_one_module_loads_the_ops():
    others = [f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "ops" / "_library.py"]

    found = offenders(others, lambda f: re.findall(r"\bload_op_library\b", f.read_text()))

    assert not found


@pytest.mark.parametrize("folder", ["feature_column", "layers", "sok"])
def test_ways_in_do_not_import_each_other(folder):
    others = [f"group_embedding.{o}" for o in ("feature_column", "layers", "sok") if o != folder]

    found = offenders((PACKAGE / folder).rglob("*.py"), lambda f: imports_of(f, *others))

    assert not found
