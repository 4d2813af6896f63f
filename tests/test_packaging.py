"""Error messages when the library cannot be built or loaded, and the metadata of a wheel."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from group_embedding.ops import _library
from group_embedding.version import VERSION

ROOT = Path(__file__).resolve().parents[1]


class FakeTensorFlow(types.SimpleNamespace):
    """The parts of TensorFlow that loading a library uses."""

    class errors:
        class NotFoundError(Exception):
            pass

    def __init__(self, version, message=None):
        super().__init__(__version__=version)
        self.message = message
        self.loaded = []

    def load_op_library(self, path):
        if self.message:
            raise self.errors.NotFoundError(self.message)
        self.loaded.append(path)
        return types.SimpleNamespace(group_embedding_overflow="the op")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package folder of its own, with `built(version)` to put a library into it."""
    monkeypatch.setattr(_library, "PACKAGE", tmp_path)
    _library.library.cache_clear()

    def built(version, march="x86-64-v2"):
        stem = tmp_path / f"{_library.STEM}.tf{version.rpartition('.')[0]}"
        stem.with_name(stem.name + ".so").touch()
        stem.with_name(stem.name + ".json").write_text(
            json.dumps({"tensorflow": version, "march": march, "cuda": None, "cuda_archs": []})
        )

    yield types.SimpleNamespace(built=built)
    _library.library.cache_clear()


@pytest.fixture
def use(monkeypatch):
    def _use(tensorflow):
        monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
        return tensorflow

    return _use


def import_error():
    with pytest.raises(ImportError) as caught:
        _library.library()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_library_is_loaded_once(package, use):
    tensorflow = use(FakeTensorFlow("2.15.1"))
    package.built("2.15.1")

    assert _library.library().overflow == "the op"
    assert _library.library().overflow == "the op"

    assert len(tensorflow.loaded) == 1


def test_library_serves_another_patch_of_its_tensorflow(package, use):
    use(FakeTensorFlow("2.15.0"))
    package.built("2.15.1")

    assert _library.library().overflow == "the op"


def test_missing_tensorflow_is_named(package, use):
    use(None)

    assert "TensorFlow cannot be imported" in import_error()


def test_missing_library_says_how_to_build_it(package, use):
    use(FakeTensorFlow("2.15.1"))

    message = import_error()

    assert "is not built" in message
    assert "make build" in message
    assert "pip install ." in message


def test_library_of_another_tensorflow_names_both(package, use):
    use(FakeTensorFlow("2.21.0"))
    package.built("2.15.1")

    message = import_error()

    assert "built for TensorFlow 2.15, but TensorFlow 2.21.0 is installed" in message


@pytest.mark.parametrize("version", ["2.14.1", "2.22.0"], ids=["too old", "too new"])
def test_wheel_names_all_versions_that_work(package, use, version):
    # Given a package with libraries for several versions, as a wheel is
    use(FakeTensorFlow(version))
    for built in ("2.21.0", "2.9.3", "2.15.1"):
        package.built(built)

    # When it meets another TensorFlow
    message = import_error()

    # Then one sentence says which would do, in their order
    assert f"built for TensorFlow 2.9, 2.15 and 2.21, but TensorFlow {version}" in message
    assert "install one of these" in message


def test_wheel_without_tensorflow_says_which_to_install(package, use):
    use(None)
    package.built("2.15.1")
    package.built("2.21.0")

    assert "install tensorflow or tensorflow-cpu 2.15 or 2.21" in import_error()


def test_importing_the_package_without_tensorflow_ends_in_that_sentence(tmp_path):
    # Given a TensorFlow that cannot be imported
    (tmp_path / "tensorflow.py").write_text("raise ImportError('hidden by the test')\n")

    # When the package is imported
    done = subprocess.run(
        [sys.executable, "-c", "import group_embedding"],
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stderr=subprocess.PIPE,
        text=True,
    )

    # Then the last line says so, and what to do
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "TensorFlow cannot be imported (hidden by the test)" in last


def test_undefined_symbol_is_explained(package, use):
    use(FakeTensorFlow("2.15.1", message="x.so: undefined symbol: _ZN10tensorflow6StatusE"))
    package.built("2.15.0")

    message = import_error()

    assert "built for TensorFlow 2.15.0, does not load into TensorFlow 2.15.1" in message
    assert "undefined symbol: _ZN10tensorflow6StatusE" in message


def test_cpu_without_the_instructions_is_explained(package, use, monkeypatch):
    use(FakeTensorFlow("2.15.1"))
    package.built("2.15.1", march="x86-64-v3")
    monkeypatch.setitem(_library.CPU_FLAGS, "x86-64-v3", ["avx2", "no_such_flag"])

    message = import_error()

    assert "no_such_flag" in message
    assert "GROUP_EMBEDDING_MARCH" in message


def run_setup(tmp_path, *arguments, **env):
    return subprocess.run(
        [sys.executable, str(ROOT / "setup.py"), "--quiet", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
    )


def test_build_without_tensorflow_is_one_sentence(tmp_path):
    fake = tmp_path / "tensorflow.py"
    fake.write_text("raise ModuleNotFoundError(\"No module named 'tensorflow'\")\n")

    done = run_setup(tmp_path, "build_ext", PYTHONPATH=str(tmp_path))

    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    assert "TensorFlow cannot be imported" in sentence
    assert "pip install ." in sentence


def test_build_in_pips_isolation_finds_the_tensorflow_that_it_installs_beside(tmp_path):
    # Given an environment as pip lays it over its own to build in: without TensorFlow
    isolated = tmp_path / "pip-build-env-1" / "site"
    isolated.mkdir(parents=True)
    (isolated / "tensorflow.py").write_text("raise ModuleNotFoundError('hidden by pip')\n")
    nowhere = str(tmp_path / "no_cuda_here")

    # When the build begins there
    done = run_setup(
        tmp_path,
        "build_ext",
        PYTHONPATH=str(isolated),
        PYTHONNOUSERSITE="1",
        GROUP_EMBEDDING_CUDA=nowhere,
    )

    # Then it gets past TensorFlow, to the toolkit that is named and missing
    assert done.returncode != 0
    assert nowhere in done.stderr.strip().splitlines()[-1]


def test_build_with_cuda_that_is_not_there_is_one_sentence(tmp_path):
    fake = tmp_path / "tensorflow.py"
    fake.write_text(
        textwrap.dedent(
            """
            import types
            __version__ = "2.15.1"
            sysconfig = types.SimpleNamespace(
                get_compile_flags=lambda: [], get_lib=lambda: "", CXX11_ABI_FLAG=1,
                get_link_flags=lambda: ["-l:libtensorflow_framework.so.2"],
            )
            """
        )
    )
    nowhere = str(tmp_path / "no_cuda_here")

    done = run_setup(tmp_path, "build_ext", PYTHONPATH=str(tmp_path), GROUP_EMBEDDING_CUDA=nowhere)

    assert done.returncode != 0
    assert nowhere in done.stderr.strip().splitlines()[-1]


def test_metadata(tmp_path):
    done = run_setup(tmp_path, "egg_info", "--egg-base", str(tmp_path))

    assert done.returncode == 0, done.stderr
    metadata = (tmp_path / "group_embedding.egg-info" / "PKG-INFO").read_text().splitlines()
    for line in (
        "Name: group_embedding",
        "Author: The group_embedding authors",
        "Classifier: Programming Language :: Python :: 3.11",
        "Classifier: Typing :: Typed",
        f"Version: {VERSION}",
        "Requires-Dist: numpy",
        'Requires-Dist: horovod==0.28.1; extra == "collective"',
    ):
        assert line in metadata
    assert any(line.startswith("Requires-Dist: aimrocks==0.5.2;") for line in metadata)
    assert any(
        line in metadata for line in ("License: Apache-2.0", "License-Expression: Apache-2.0")
    )
    # TensorFlow comes under two names, and pip must not bring the other one.
    assert not any(line.startswith("Requires-Dist: tensorflow") for line in metadata)


def test_version_is_stated_once():
    # Given all files of the project
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.splitlines()]

    # When those are searched for an assignment of the version
    stated = re.compile(rf"(?i)\bversion\b[\"']?\s*[:=]+\s*[\"']?{re.escape(VERSION)}\b")
    stating = [f for f in files if f.is_file() and stated.search(f.read_text(errors="ignore"))]

    # Then one has it
    assert stating == [ROOT / "group_embedding" / "version.py"]


def test_workflows_call_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY:(.*)$", makefile, re.MULTILINE).group(1).split())
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

    text = "".join(workflow.read_text() for workflow in workflows)
    commands = re.findall(r"^\s*- run: (.*)$", text, re.MULTILINE)

    called = {command.split()[1] for command in commands}
    assert called >= {"lint", "docs", "test", "test-rest", "nightly"}
    for command in commands:
        assert command.split()[0] == "make" and command.split()[1] in targets


def test_every_module_is_in_a_package():
    # A folder without __init__.py works in the source tree, and is missing from the wheel.
    package = ROOT / "group_embedding"
    folders = {module.parent for module in package.rglob("*.py")}

    assert not [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()]


@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")
def test_importing_the_package_does_not_import_horovod():
    done = subprocess.run(
        [sys.executable, "-c", "import sys, group_embedding; sys.exit('horovod' in sys.modules)"],
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
    )

    assert done.returncode == 0, done.stderr


def test_missing_module_says_how_to_build_it(monkeypatch):
    # Given a package as `make train` leaves it: without the module for Python
    import group_embedding

    monkeypatch.setitem(sys.modules, "group_embedding._native", None)
    monkeypatch.delattr(group_embedding, "_native", raising=False)

    # When something asks for it
    with pytest.raises(ImportError) as caught:
        _library.core()

    # Then one sentence says what is missing and what to run
    message = str(caught.value)
    assert "\n" not in message
    assert "_native for Python" in message
    assert "make build" in message
