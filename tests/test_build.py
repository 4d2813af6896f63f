"""The build's choices: for which GPUs, with which toolkit, for which TensorFlow."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from buildtools import cuda, native, ninja_file, tensorflow, versions

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with the GPUs and the toolkit that a test gives it, and no others."""
    for name in ("GROUP_EMBEDDING_CUDA", "GROUP_EMBEDDING_CUDA_ARCHS", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cuda, "_by_driver", lambda: [])
    commands = tmp_path / "commands"
    commands.mkdir()
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")

    def command(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def has(gpus=(), toolkit="12.4", knows=("70", "80", "90")):
        lines = "".join(f"{gpu}\\n" for gpu in gpus)
        command(commands / "nvidia-smi", f'printf "{lines}"' if gpus else "exit 9")
        if toolkit:
            root = tmp_path / f"cuda-{toolkit}"
            (root / "include").mkdir(parents=True)
            (root / "include" / "cuda_runtime.h").touch()
            listed = " ".join(f"compute_{arch}" for arch in knows)
            answer = f'if [ "$1" = --version ]; then echo release {toolkit}; else echo {listed}; fi'
            command(root / "bin" / "nvcc", answer)
            monkeypatch.setenv("CUDA_HOME", str(root))
            return root
        monkeypatch.setattr(cuda, "_toolkit", lambda choice: None)
        return None

    return has


def test_cuda_is_built_for_the_gpus_that_are_here(machine, capsys):
    # Given a machine with three GPUs of two architectures
    root = machine(gpus=["9.0", "8.0", "8.0"])

    # When the build looks for CUDA
    found = cuda.find_cuda()

    # Then it takes these two, and a line says so
    assert found.archs == [80, 90]
    assert found.root == root
    assert "code=sm_80" in found.gencode
    assert "code=compute_90" in found.gencode
    assert "70" not in found.gencode
    assert "CUDA 12.4" in capsys.readouterr().err


def test_without_a_gpu_cuda_is_left_out_and_a_line_says_how_to_have_it(machine, capsys):
    machine(gpus=[])

    assert cuda.find_cuda() is None

    (line,) = capsys.readouterr().err.splitlines()
    assert "no GPU is here" in line
    assert "GROUP_EMBEDDING_CUDA_ARCHS=80,90" in line


def test_named_architectures_are_built_whatever_gpu_is_here(machine, monkeypatch, capsys):
    machine(gpus=["9.0"])
    monkeypatch.setenv("GROUP_EMBEDDING_CUDA_ARCHS", "80, 70,100")  # this nvcc knows no 100

    assert cuda.find_cuda().archs == [70, 80]
    assert "for the GPU architectures 70, 80; it knows no 100" in capsys.readouterr().err


@pytest.mark.parametrize(
    "gpu, archs",
    [
        pytest.param("8.9", [80], id="newer than what nvcc knows: runs the code of 80"),
        pytest.param("12.0", [90], id="of a later generation: compiles the PTX of 90"),
    ],
)
def test_gpu_that_nvcc_does_not_know_gets_what_it_runs(machine, gpu, archs):
    machine(gpus=[gpu])

    assert cuda.find_cuda().archs == archs


def test_gpu_older_than_all_that_nvcc_knows_is_left_out_with_a_line(machine, capsys):
    machine(gpus=["6.1"])

    assert cuda.find_cuda() is None

    assert "61" in capsys.readouterr().err


def test_gpu_without_a_toolkit_gets_a_line(machine, capsys):
    machine(gpus=["9.0"], toolkit=None)

    assert cuda.find_cuda() is None

    (line,) = capsys.readouterr().err.splitlines()
    assert "no CUDA toolkit" in line
    assert "GROUP_EMBEDDING_CUDA=<folder>" in line


def test_zero_leaves_cuda_out_without_a_word(machine, monkeypatch, capsys):
    machine(gpus=["9.0"])
    monkeypatch.setenv("GROUP_EMBEDDING_CUDA", "0")

    assert cuda.find_cuda() is None

    assert capsys.readouterr().err == ""


def test_toolkit_that_is_asked_for_needs_an_architecture(machine, monkeypatch):
    root = machine(gpus=[])
    monkeypatch.setenv("GROUP_EMBEDDING_CUDA", str(root))

    with pytest.raises(SystemExit, match="GROUP_EMBEDDING_CUDA_ARCHS names none"):
        cuda.find_cuda()


def test_named_architectures_that_nvcc_does_not_know_are_an_error(machine, monkeypatch):
    machine()
    monkeypatch.setenv("GROUP_EMBEDDING_CUDA_ARCHS", "35,50")

    with pytest.raises(SystemExit, match="35,50 names no architecture"):
        cuda.find_cuda()


def test_unpacked_tensorflow_has_the_flags_that_the_installed_one_says():
    # Given the folder of the installed TensorFlow, named as `unpack` names folders
    installed = tensorflow.installed()
    folder = Path(installed.lib_dir).parent

    # When it is read as an unpacked one
    unpacked = tensorflow.unpacked(folder)

    # Then flags and library are the same
    assert sorted(unpacked.compile_flags) == sorted(installed.compile_flags)
    assert unpacked[2:5] == installed[2:5]


@pytest.mark.parametrize(
    "jobs, archs, threads, files",
    [(2, [90], None, 2), (2, [75, 80, 90], 2, 1), (16, [75, 80, 90], 3, 5)],
)
def test_architectures_of_a_file_are_compiled_side_by_side(
    monkeypatch, jobs, archs, threads, files
):
    # Given a number of compilers that may run at a time, and architectures
    monkeypatch.setenv("GROUP_EMBEDDING_JOBS", str(jobs))
    toolkit = cuda.Cuda(Path("/cuda"), Path("/cuda/bin/nvcc"), "13.0", archs)

    # When the build's file is written
    text = "\n".join(ninja_file.NinjaFile(toolkit).lines)

    # Then nvcc and ninja together start no more compilers than that
    assert re.findall(r"--threads=(\d+)", text) == ([str(threads)] if threads else [])
    assert re.search(r"pool cuda\n  depth = (\d+)", text).group(1) == str(files)
    assert files * (threads or 1) <= jobs


def name_of_core(with_cuda, flags):
    return native.digested_name(native.CORE, "core", f"{flags} {with_cuda}")


@pytest.fixture
def core_sources(tmp_path, monkeypatch):
    """A source tree, of which two files belong to the core."""
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    for name in (
        *("core/owner.h", "fused/group_lookup.cu", "core/README.md", "tf/ops/op.cc"),
        *("bindings/module.cc", "serving/table/rows.h", "tf/serving/ops/op.cc"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("int value = 1;\n")
    return tmp_path


@pytest.mark.parametrize(
    "changed, is_another",
    [
        ("core/owner.h", True),
        ("fused/group_lookup.cu", True),
        ("tf/ops/op.cc", False),
        ("core/README.md", False),
        ("bindings/module.cc", False),
        ("serving/table/rows.h", False),
        ("tf/serving/ops/op.cc", False),
    ],
)
def test_core_of_other_sources_has_another_name(core_sources, changed, is_another):
    # Given the name of a core's library
    before = name_of_core(None, "-O3")

    # When a file changes
    (core_sources / changed).write_text("int value = 2;\n")

    # Then the name changes where the file belongs to the core
    assert (name_of_core(None, "-O3") != before) == is_another
    assert re.fullmatch(r"libgroup_embedding_core\.[0-9a-f]{8}\.so", before)


def test_core_of_other_flags_has_another_name(core_sources):
    with_cuda = cuda.Cuda(Path("/cuda"), Path("/cuda/bin/nvcc"), "12.4", [80, 90])
    names = [
        name_of_core(None, "-O3"),
        name_of_core(None, "-O2"),
        name_of_core(with_cuda, "-O3"),
        name_of_core(with_cuda._replace(archs=[90]), "-O3"),
    ]

    assert len(set(names)) == 4


def test_ops_are_compiled_ten_files_at_a_time(tmp_path, monkeypatch):
    # Given folders of twelve and of two files
    monkeypatch.setattr(native, "SOURCES", tmp_path / "cc")
    names = [*(f"tf/kernels/op_{i:02}.cc" for i in range(12)), "tf/ops/op.cc", "tf/ops/other.cc"]

    # When they are put together
    written = native.units([tmp_path / "cc" / name for name in names], tmp_path / "build")

    # Then each file is in one source, with files of its folder, which are not too many
    found = [re.findall(r'#include "(.*?)"', path.read_text()) for path in written]
    assert sorted(sum(found, [])) == names
    assert [len(files) for files in found] == [6, 6, 2]
    assert all(len({Path(name).parent for name in files}) == 1 for files in found)

    # And a second build, which writes the same, leaves them as they are
    before = [path.stat().st_mtime_ns for path in written]
    native.units([tmp_path / "cc" / name for name in names], tmp_path / "build")
    assert [path.stat().st_mtime_ns for path in written] == before


def test_cores_stay_while_a_library_was_built_for_them(tmp_path):
    # Given two op libraries, built for two cores, and a core that none was built for
    for minor, digest in (("2.15", "aaaaaaaa"), ("2.21", "bbbbbbbb")):
        needed = f"...\0{native.CORE}.{digest}.so\0..."
        (tmp_path / f"_group_embedding_ops.tf{minor}.so").write_text(needed)
    for digest in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        (tmp_path / f"{native.CORE}.{digest}.so").touch()

    # When the unused ones are looked for
    unused = native.unused_cores(tmp_path)

    # Then it is that one
    assert [path.name for path in unused] == [f"{native.CORE}.cccccccc.so"]


def test_tables_of_served_models_go_with_what_was_built_for_them(tmp_path):
    # Given a core and served tables on it that an op library was linked against, and older ones
    tables = native.SERVED_TABLES
    for core, served in (("aaaaaaaa", "cccccccc"), ("bbbbbbbb", "dddddddd")):
        (tmp_path / f"{native.CORE}.{core}.so").touch()
        (tmp_path / f"{tables}.{served}.so").write_text(f"...\0{native.CORE}.{core}.so\0...")
    (tmp_path / f"{native.SERVING}.tf2.15.so").write_text(f"...\0{tables}.cccccccc.so\0...")

    # When the unused ones are looked for, Then it is the older pair
    unused = [path.name for path in native.unused_cores(tmp_path)]
    assert unused == [f"{native.CORE}.bbbbbbbb.so", f"{tables}.dddddddd.so"]


@pytest.mark.parametrize(
    "built, are_outdated",
    [
        ({"ops": b"other"}, True),  # as `make train` builds after a change
        ({"ops": b"ops"}, False),
        ({"ops": b"other", "serving": b"other"}, False),
        ({}, False),
    ],
)
def test_served_ops_that_other_ops_were_linked_against_are_removed(tmp_path, built, are_outdated):
    # Given a package with the ops and the served ops of one build
    names = {"ops": f"{native.OPS}.tf2.15.so", "serving": f"{native.SERVING}.tf2.15.so"}
    for kind, name in names.items():
        (tmp_path / name).write_bytes(kind.encode())

    # When a build is put there
    found = native.outdated(tmp_path, {names[kind]: text for kind, text in built.items()})

    # Then the served ops go that would be used with an op library of another build
    assert found == [tmp_path / names["serving"]] * are_outdated


def test_python_that_tensorflow_has_no_wheel_for_is_told():
    assert versions.why_not("2.15.1", "3.11") is None
    assert versions.why_not("2.99.0", "3.11") is None  # unknown: pip decides
    assert "3.9 or 3.10 or 3.11" in versions.why_not("2.15.1", "3.12")


def test_each_python_gets_the_tensorflows_that_exist_for_it():
    assert versions.tensorflows_of("3.13") == ["2.20.0", "2.21.0"]
    assert len(versions.tensorflows_of("3.11")) == 7
    assert versions.tensorflows_of("3.14") == []


def dry_run(*arguments):
    """The commands that make would run in a fresh clone."""
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_in_one_process_builds_neither_horovod_nor_what_serves():
    commands = dry_run("train")

    assert "build_ext --inplace --ops-only" in commands
    assert "core_module" not in commands
    assert "horovod" not in commands
    assert "dev.txt" not in commands


@pytest.mark.parametrize("arguments", [["train", "RANKS=2"], ["test"]])
def test_several_ranks_and_tests_build_horovod_and_all_libraries(arguments):
    # Tests of C++ need the libraries of their TensorFlow: those that are here.
    commands = dry_run(*arguments, f"TF={tensorflow.installed().version}")

    assert re.search(r"build_ext --inplace$", commands, re.MULTILINE)
    assert "requirements/horovod.sh" in commands
    assert ("buildtools.core_module" in commands) == (arguments == ["test"])


def test_make_train_does_not_begin_again_where_served_code_changes():
    # Given what make knows of the ops' stamp
    database = dry_run("--print-data-base", "train")
    rule = re.search(r"^\.venv/ops\.stamp: (.*)$", database, re.MULTILINE).group(1).split()

    # When its prerequisites are read, Then the library's sources are there, and those alone
    assert {"cc/core/owner.h", "cc/tf/ops/group_lookup.cc", "buildtools/native.py"} <= set(rule)
    assert not [name for name in rule if re.match(r"cc/(serving|tf/serving|bindings)\b", name)]


@pytest.mark.parametrize("combiner, is_refused", [("kLargest", True), (None, False)])
def test_a_combiner_that_no_formula_has_does_not_compile(combiner, is_refused, tmp_path):
    # Given the headers with one combiner more
    header = (ninja_file.SOURCES / "core" / "group.h").read_text()
    if combiner:
        header = header.replace("kSignedSqrtN = 4\n", f"kSignedSqrtN = 4,\n  {combiner} = 5\n")
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "group.h").write_text(header)
    source = tmp_path / "formulas.cc"
    source.write_text('#include "fused/sample_ids.h"\n')
    # When the file that says what combiners do is compiled as the build does
    command = ["g++", "-std=c++17", "-fsyntax-only", *ninja_file.WARNINGS.split()]
    command += [f"-I{tmp_path}", f"-I{ninja_file.SOURCES}", source]
    compiled = subprocess.run(command, capture_output=True, text=True)
    # Then each of its three formulas is an error
    assert (compiled.returncode != 0) == is_refused, compiled.stderr
    assert compiled.stderr.count("not handled in switch") == 3 * is_refused
