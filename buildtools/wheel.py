"""`make wheel`: the wheel of one Python, with an op library for each TensorFlow minor that has one.

    python -m buildtools.wheel 3.11 3.12 [--tensorflows 2.18.1 2.19.1] [--dist dist]

For each Python the steps are:

1. the headers and the framework library of each TensorFlow for it, downloaded once into
   ~/.cache/group_embedding/tensorflow (GROUP_EMBEDDING_CACHE names another folder);
2. an environment under build/wheel/ with the pinned tools of requirements/;
3. the libraries of `buildtools/native.py`, `ge-serve` where nghttp2 is installed, and the wheel of
   all;
4. auditwheel, which gives the wheel the manylinux tag of the symbols that it needs, and puts the
   shared libraries of `ge-serve` into it (OpenSSL). TensorFlow's own library stays
   outside: the environment that the wheel goes into has it.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from buildtools import tensorflow
from buildtools.ninja_file import OBJECTS, ROOT
from buildtools.report import fail, say
from buildtools.versions import TENSORFLOWS, tensorflows_of

REQUIREMENTS = [ROOT / "requirements" / name for name in ("build.txt", "wheel.txt")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="such as 3.12")
    parser.add_argument(
        "--tensorflows", nargs="+", metavar="VERSION", help="only these (default: all that exist)"
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the wheels' folder")
    chosen = parser.parse_args()
    for python in chosen.pythons:
        wheel = build(python, chosen.tensorflows, chosen.dist)
        say(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


def build(python, only, dist):
    """Builds the wheel of one Python.

    Args:
        python: such as "3.12".
        only: the versions of TensorFlow that get an op library; None: each minor's newest patch.
        dist: the folder that the wheel goes into.

    Returns:
        The wheel's path.
    """
    versions = [v for v in tensorflows_of(python) if only is None or v in only]
    if not versions:
        fail(f"no TensorFlow of {', '.join(only or TENSORFLOWS)} has a wheel for Python {python}")
    bin_folder = environment(python, find_python(python))
    folders = [tensorflow.unpack(version, tensorflow.cache()) for version in versions]
    work = OBJECTS / "wheel" / f"cp{python.replace('.', '')}"
    work.mkdir(parents=True, exist_ok=True)
    for stale in ("build", "linux", "manylinux"):
        shutil.rmtree(work / stale, ignore_errors=True)
    _run(
        [bin_folder / "python", "setup.py", "--quiet"]
        + ["build", "--build-base", work / "build"]
        + ["egg_info", "--egg-base", work]
        + ["bdist_wheel", "--dist-dir", work / "linux"],
        GROUP_EMBEDDING_TENSORFLOWS=":".join(map(str, folders)),
    )
    (built,) = (work / "linux").glob("*.whl")
    _run(
        [bin_folder / "auditwheel", "repair", "--exclude", tensorflow.FRAMEWORK]
        + ["--wheel-dir", work / "manylinux", built],
        PATH=f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
    )
    (tagged,) = (work / "manylinux").glob("*.whl")
    dist.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(tagged, dist / tagged.name))


def find_python(python):
    """The interpreter of a version such as "3.12": on PATH, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    name = f"python{python}"
    candidates = [Path(folder) / name for folder in os.environ.get("PATH", "").split(os.pathsep)]
    candidates += sorted(pyenv.glob(f"{python}.*/bin/{name}"))
    for candidate in candidates:
        if candidate.exists() and _version_of(candidate) == python:
            return candidate
    return fail(f"Python {python} is not on PATH and not in {pyenv}: install it, with its headers")


def environment(python, interpreter):
    """The `bin` folder of an environment with the tools of the build, made once."""
    folder = OBJECTS / "wheel" / f"environment-{python}"
    wanted = "".join(path.read_text() for path in REQUIREMENTS)
    installed = folder / "requirements.txt"
    if not installed.exists() or installed.read_text() != wanted:
        options = [option for path in REQUIREMENTS for option in ("-r", path)]
        _run([interpreter, "-m", "venv", "--clear", folder])
        _run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *options])
        installed.write_text(wanted)
    return folder / "bin"


def _run(command, **variables):
    """Runs a step in the folder of the sources. Where it fails, it has said why itself."""
    command = [str(argument) for argument in command]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}).returncode != 0:
        fail(f"no wheel was made, as this step failed: {' '.join(command)}")


def _version_of(interpreter):
    asked = subprocess.run(
        [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True,
        text=True,
    )
    return asked.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
