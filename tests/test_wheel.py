"""Wheels: what goes into one, what is written of those that were tried, and that they work."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from buildtools import serving, tensorflow, try_wheel, versions, wheel

ROOT = Path(__file__).resolve().parents[1]


def unpacked_tensorflow(folder, version):
    """The files of an unpacked TensorFlow that are read to find its compiler flags."""
    package = folder / version / "tensorflow"
    (package / "include").mkdir(parents=True)
    (package / tensorflow.FRAMEWORK).write_bytes(b"_ZNSt7__cxx1112basic_string")
    return folder / version


def test_op_libraries_are_built_for_each_unpacked_tensorflow(tmp_path, monkeypatch):
    # Given two unpacked TensorFlows whose folders the build is given
    folders = [unpacked_tensorflow(tmp_path, version) for version in ("2.16.2", "2.21.0")]
    monkeypatch.setenv("GROUP_EMBEDDING_TENSORFLOWS", ":".join(map(str, folders)))

    # When it looks for the TensorFlows to build for
    wanted = tensorflow.wanted()

    # Then it finds these, with objects in folders of their own
    assert [found.minor for found in wanted] == ["2.16", "2.21"]
    assert len({found.objects for found in wanted}) == 2
    assert all(f"{f}/tensorflow/include" in t.compile_flags[0] for f, t in zip(folders, wanted))
    assert all(found.cxx11_abi == 1 for found in wanted)


def test_headers_are_downloaded_once_and_the_rest_is_left(tmp_path, monkeypatch):
    # Given a wheel of TensorFlow that pip downloads
    downloads = []

    def download(command, check):
        downloads.append(command)
        name = Path(command[command.index("--dest") + 1]) / "tensorflow_cpu-2.18.1-any.whl"
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("tensorflow/include/tensorflow/core/op.h", "// a header")
            archive.writestr(f"tensorflow/{tensorflow.FRAMEWORK}", "a library")
            archive.writestr("tensorflow/libtensorflow_cc.so.2", "a large library")

    monkeypatch.setattr(tensorflow.subprocess, "run", download)

    # When it is asked for twice
    folders = [tensorflow.unpack("2.18.1", tmp_path) for _ in range(2)]

    # Then it was downloaded once, and what a build needs was kept
    assert folders == [tmp_path / "2.18.1"] * 2
    assert len(downloads) == 1 and downloads[0][-1] == "tensorflow-cpu==2.18.1"
    kept = {str(path.relative_to(folders[0])) for path in folders[0].rglob("*") if path.is_file()}
    assert kept == {
        "tensorflow/include/tensorflow/core/op.h",
        f"tensorflow/{tensorflow.FRAMEWORK}",
    }


def test_wheel_of_a_python_without_any_tensorflow_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no TensorFlow of 2.15, .* has a wheel for Python 3.8"):
        wheel.build("3.8", None, tmp_path)


@pytest.mark.parametrize("named, archs", [("", "70,75,80,90,100"), ("80,90", "80,90")])
def test_make_wheel_names_the_architectures_of_others_gpus(tmp_path, monkeypatch, named, archs):
    # Given a Python that prints what `make wheel` builds for, and architectures that a user names
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$GROUP_EMBEDDING_CUDA_ARCHS for $*"\n')
    python.chmod(0o755)
    monkeypatch.setenv("GROUP_EMBEDDING_CUDA_ARCHS", named)
    for name in [name for name in os.environ if name.startswith(("MAKE", "ARGS"))]:
        monkeypatch.delenv(name)  # arguments of the `make test` that may have started this

    # When wheels of two Pythons are made
    command = ["make", "--silent", "wheel", f"VENV={tmp_path}", f"BIN={python.parent}"]
    made = subprocess.run([*command, "PYTHONS=3.11 3.12"], cwd=ROOT, capture_output=True, text=True)

    # Then the build has those architectures, or the five of all GPUs since Volta
    assert made.stdout.split() == [archs, "for", "-m", "buildtools.wheel", "3.11", "3.12"]


def test_step_of_a_wheel_that_fails_is_named_without_a_traceback(tmp_path, capfd):
    # Given a step that prints what is wrong
    step = tmp_path / "build step"
    step.write_text("#!/bin/sh\necho nvcc knows no such GPU >&2\nexit 3\n")
    step.chmod(0o755)

    # When the step runs, Then the wheel ends with its name, after its own message
    with pytest.raises(SystemExit, match="no wheel was made, .*build step"):
        wheel._run([step])
    assert capfd.readouterr().err == "nvcc knows no such GPU\n"


def test_interpreter_is_the_one_of_that_version():
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"

    found = wheel.find_python(python)

    asked = subprocess.run([found, "--version"], capture_output=True, text=True)
    assert asked.stdout.startswith(f"Python {python}.")
    with pytest.raises(SystemExit, match="Python 2.0 is not on PATH"):
        wheel.find_python("2.0")


def test_a_wheel_without_nghttp2_has_no_server_and_says_so(monkeypatch, capsys):
    # Given a machine without the headers of nghttp2 and of RapidJSON
    monkeypatch.setattr(serving, "missing", lambda: ["nghttp2/nghttp2.h", "rapidjson/document.h"])

    # When a wheel asks for the server, Then it gets none, and a line names the script that helps
    assert serving.for_wheel(None) == {}
    said = capsys.readouterr().err
    assert "no ge-serve, which needs nghttp2/nghttp2.h, rapidjson/document.h" in said
    assert "requirements/serving.sh" in said


def test_a_wheel_has_the_server_with_the_licenses_of_what_it_carries(monkeypatch, tmp_path):
    # Given a server that was built, and two of the packages that it has code of
    program = tmp_path / "ge-serve"
    program.write_bytes(b"a program")
    for package in ("libssl-dev", "libnghttp2-dev"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "copyright").write_text(f"license of {package}\n")
    monkeypatch.setattr(serving, "missing", list)
    monkeypatch.setattr(serving, "build", lambda wanted, name: program)
    monkeypatch.setattr(serving, "CARRIED", ["libssl-dev"])
    licenses = serving.licenses
    monkeypatch.setattr(serving, "licenses", lambda packages: licenses(packages, tmp_path))

    # When a wheel asks for it
    files = serving.for_wheel(None)

    # Then both files are there
    assert files["ge-serve"] == b"a program"
    assert b"license of libssl-dev" in files["ge-serve.licenses.txt"]

    # And a license that cannot be found ends the build
    with pytest.raises(SystemExit, match="copyright is missing, the license of libprotobuf-dev"):
        licenses(["libnghttp2-dev", "libprotobuf-dev"], tmp_path)


def test_messages_are_those_of_the_last_tensorflow_that_has_them(tmp_path, monkeypatch):
    # Given a TensorFlow with .proto files, and one without, as all are from 2.20 on
    folders = [unpacked_tensorflow(tmp_path, version) for version in ("2.18.1", "2.21.0")]
    proto = folders[0] / "tensorflow/include" / serving.TENSORFLOW_PROTOS[0]
    proto.parent.mkdir(parents=True)
    proto.touch()
    monkeypatch.setenv("GROUP_EMBEDDING_CACHE", str(tmp_path))
    monkeypatch.setattr(tensorflow, "unpack", lambda version, cache: cache / version)

    # When the server's messages are looked for
    found = [serving._include_of(tensorflow.unpacked(folder)) for folder in folders]

    # Then those of the first are its own, and for the other one 2.19.1 is downloaded
    assert found[0] == folders[0] / "tensorflow/include"
    assert found[1] == tmp_path / "tensorflow/2.19.1/tensorflow/include"


def test_only_a_wheel_with_the_server_has_to_serve(tmp_path):
    for name, files in (("with", ["group_embedding/ge-serve"]), ("without", [])):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file in ["group_embedding/version.py", *files]:
                archive.writestr(file, "")

    assert try_wheel.has_server(tmp_path / "with")
    assert not try_wheel.has_server(tmp_path / "without")


def test_results_of_tries_are_written_into_the_page():
    # Given a page without a table, and the results of two tries
    page = f"before\n{try_wheel.BEGIN}\n{try_wheel.END}\nafter\n"
    assert try_wheel.recorded(page) == {}
    first = {("2.15.1", "3.11"): None, ("2.21.0", "3.12"): "a | line"}

    # When they are written, and later one of them and another one
    first = try_wheel.words(first, "2024-05-01")
    page = try_wheel.with_table(page, try_wheel.table(first))
    later = try_wheel.words({("2.21.0", "3.12"): None, ("2.20.0", "3.13"): None}, "2024-06-01")
    page = try_wheel.with_table(page, try_wheel.table({**try_wheel.recorded(page), **later}))

    # Then the table has a row for each TensorFlow with the last result, and the rest stays
    assert "| TensorFlow | Python 3.11 | Python 3.12 | Python 3.13 |\n" in page
    none = "no such TensorFlow"
    assert f"| 2.15.1 | works (2024-05-01) | {none} | {none} |\n" in page
    assert "| 2.20.0 | not tried | not tried | works (2024-06-01) |\n" in page
    assert "| 2.21.0 | not tried | works (2024-06-01) | not tried |\n" in page
    assert page.startswith("before\n") and page.endswith(f"{try_wheel.END}\nafter\n")
    assert try_wheel.words({("2.21.0", "3.12"): "a | line"}, "2024-05-01") == {
        ("2.21.0", "3.12"): "fails (2024-05-01): a / line"
    }


@pytest.mark.parametrize("error", [None, "it does not import"])
def test_the_command_fails_if_a_wheel_does(tmp_path, monkeypatch, error):
    # Given a page with a table, and a wheel that works beside 2.20 and maybe beside 2.21
    page = tmp_path / "install.md"
    page.write_text(f"{try_wheel.BEGIN}\n{try_wheel.END}\n")
    monkeypatch.setattr(try_wheel, "PAGE", page)
    monkeypatch.setattr(try_wheel, "wheel_for", lambda python, dist: None)
    monkeypatch.setattr(
        try_wheel, "try_wheel", lambda wheel, python, version: error if "2.21" in version else None
    )
    command = "try_wheel --table --pythons 3.12 --tensorflows 2.20.0 2.21.0"

    # When the command tries both and writes the table
    monkeypatch.setattr(sys, "argv", command.split())
    failed = try_wheel.main()

    # Then its exit code tells whether all worked, and the table has both
    assert failed == (error is not None)
    assert page.read_text().count("works (") == (2 if error is None else 1)


@pytest.mark.soak  # downloads two TensorFlows and compiles two op libraries: ten minutes
@pytest.mark.parametrize("version, python", [("2.15.1", "3.11"), ("2.21.0", "3.12")])
def test_wheel_runs_the_quick_start_in_a_fresh_environment(tmp_path, version, python):
    # Given a wheel with the op library of this TensorFlow
    built = wheel.build(python, [version], tmp_path)
    assert "manylinux" in built.name

    # When it is installed beside TensorFlow in an environment that has nothing else
    error = try_wheel.try_wheel(built, python, version)

    # Then README's first program runs and prints what it says
    assert error is None


def test_every_minor_names_a_patch_of_its_own():
    for minor, (version, pythons) in versions.TENSORFLOWS.items():
        assert versions.minor_of(version) == minor
        assert pythons
