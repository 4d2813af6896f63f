"""`import group_embedding` loads the library alone, and every name when it is used."""

import importlib
import subprocess
import sys

import pytest

import group_embedding as ge
from group_embedding import import_paths

PROGRAM = """
import sys
import group_embedding as ge
print(*(name for name in sys.modules if name.startswith("group_embedding.")))
"""
EXTENSIONS = ("recommender", "serving", "compat")


@pytest.fixture(scope="module")
def modules_of_an_import():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    return run.stdout.split()


def test_an_import_loads_the_library_alone(modules_of_an_import):
    # Given the modules of a process that imported the package
    assert "group_embedding.lookups.api" in modules_of_an_import

    # When those of extensions are looked for
    found = [m for m in modules_of_an_import if m.split(".")[1] in EXTENSIONS]

    # Then there is none, nor one under the name by which scripts know it
    assert found == []
    assert not {f"group_embedding.{name}" for name in import_paths.PATHS} & {*modules_of_an_import}


def test_the_package_shows_the_names_of_a_first_program():
    shown = [name for name in dir(ge) if not name.startswith("_")]

    assert sorted(shown) == sorted(ge.__all__)
    assert len(shown) <= 20


def test_every_name_that_is_not_shown_is_there_when_it_is_used():
    names = {*ge._MODULES, *(n for names in ge._NAMES.values() for n in names)}
    assert len(names) > 30

    found = {name: getattr(ge, name) for name in names}

    assert all(value is getattr(ge, name) for name, value in found.items())
    with pytest.raises(AttributeError, match="module 'group_embedding' has no attribute 'lokup'"):
        ge.lokup  # noqa: B018


@pytest.mark.parametrize("path", sorted({*import_paths.PATHS} - {"deeprec"}))
def test_an_import_path_names_the_module_itself(path):
    # Given a path that scripts import
    real = importlib.import_module(f"group_embedding.{import_paths.PATHS[path]}")

    # When it is imported by that path
    found = importlib.import_module(f"group_embedding.{path}")

    # Then it is the one module, which still knows where it is
    assert found is real
    assert found.__name__ == found.__spec__.name == f"group_embedding.{import_paths.PATHS[path]}"


def test_a_class_that_a_file_of_keras_names_is_found_below_a_path():
    # Keras writes the module of a class into the files of models.
    module = importlib.import_module("group_embedding.models.dlrm")

    assert module.DLRM is ge.models.DLRM
    with pytest.raises(ModuleNotFoundError, match="group_embedding.models.dlrn"):
        importlib.import_module("group_embedding.models.dlrn")


def test_deeprecs_tensorflow_comes_by_an_import_alone():
    # It turns TensorFlow 2's behaviour off, for the whole process.
    program = (
        "import group_embedding as ge\n"
        "print(hasattr(ge, 'deeprec'))\n"
        "import group_embedding.deeprec as tf\n"
        "print(tf.__name__, ge.deeprec is tf, tf.executing_eagerly())\n"
    )

    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    name = "group_embedding.compat.deeprec.tensorflow"
    assert run.stdout.split() == ["False", name, "True", "False"]


def test_a_command_is_found_by_its_path():
    command = [sys.executable, "-m", "group_embedding.convert", "--help"]

    run = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "python -m group_embedding.convert" in run.stdout


def test_short_names_are_the_long_ones():
    assert ge.lookup is ge.group_embedding_lookup
    assert ge.lookup_sparse is ge.group_embedding_lookup_sparse
    assert ge.column_scope is ge.group_embedding_column_scope
