"""Flags and library of the TensorFlow to build for: the installed one, or a wheel's, unpacked."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from buildtools.report import fail, say
from buildtools.versions import TENSORFLOWS, minor_of

FRAMEWORK = "libtensorflow_framework.so.2"
# Oldest first: pip takes a wheel that has any of these tags.
PLATFORMS = ["manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_27_x86_64"]


class TensorFlow(NamedTuple):
    version: str
    compile_flags: list
    lib_dir: str
    framework: str  # file name of libtensorflow_framework
    cxx11_abi: int
    objects: str  # the folder under build/ that its objects are in

    @property
    def minor(self):
        return minor_of(self.version)


# Run by a process of its own: see `environment_to_install_into`.
ASK_TENSORFLOW = """
import json
import tensorflow as tf
print("\\n" + json.dumps([
    tf.__version__, tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags(),
    tf.sysconfig.get_lib(), tf.sysconfig.CXX11_ABI_FLAG,
]))
"""


def installed():
    """Asks the installed TensorFlow for its flags; ends in one sentence where there is none."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK_TENSORFLOW],
        cwd=sys.prefix,  # not the source tree, whose folders Python would import from
        env={**environment_to_install_into(), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if asked.returncode != 0:
        error = (asked.stderr.strip() or "no message").splitlines()[-1]
        fail(
            f"TensorFlow cannot be imported by {sys.executable} ({error}): install tensorflow or "
            f"tensorflow-cpu, {versions_that_work()}, into that environment first, then run "
            "`pip install .` again"
        )
    version, flags, link_flags, lib_dir, cxx11_abi = json.loads(asked.stdout.splitlines()[-1])
    flags = [flag for flag in flags if "std=" not in flag]
    framework = next(f[3:] for f in link_flags if f.startswith("-l:"))
    flags = _as_system_includes(flags)
    return TensorFlow(version, flags, lib_dir, framework, cxx11_abi, f"tf{version}")


def wanted():
    """The TensorFlows to build for: those unpacked in the folders that GROUP_EMBEDDING_TENSORFLOWS
    names, joined by ":", or the installed one."""
    folders = os.environ.get("GROUP_EMBEDDING_TENSORFLOWS", "")
    return [unpacked(folder) for folder in folders.split(":")] if folders else [installed()]


def for_wheels():
    """True if `make wheel` builds, for TensorFlows that were unpacked."""
    return bool(os.environ.get("GROUP_EMBEDDING_TENSORFLOWS"))


def described():
    """The versions that a package is built for, in its metadata: "TensorFlow 2.20, 2.21"."""
    folders = os.environ.get("GROUP_EMBEDDING_TENSORFLOWS", "")
    minors = [minor_of(Path(folder).name) for folder in folders.split(":") if folder]
    return f"TensorFlow {', '.join(minors)}" if minors else "stock TensorFlow"


def versions_that_work():
    minors = list(TENSORFLOWS)
    return f"{minors[0]} to {minors[-1]}"


def environment_to_install_into():
    """The variables under which this Python sees the environment that it installs into.

    pip builds in an environment of its own, which has `ninja` and `pybind11` but no TensorFlow. Two
    variables alone lay it over the environment that pip installs into.
    """
    variables = dict(os.environ)
    if "pip-build-env-" in variables.get("PYTHONPATH", ""):
        del variables["PYTHONPATH"]
        variables.pop("PYTHONNOUSERSITE", None)
    return variables


def unpacked(folder):
    """The TensorFlow whose headers and framework library `unpack` has put into a folder."""
    folder = Path(folder)
    package = folder / "tensorflow"
    framework = (package / FRAMEWORK).read_bytes()
    # The flags that tf.sysconfig gives; all wheels since 2.9 have the C++11 ABI.
    cxx11_abi = int(b"__cxx11" in framework)
    flags = [
        f"-I{package / 'include'}",
        f"-D_GLIBCXX_USE_CXX11_ABI={cxx11_abi}",
        "-DEIGEN_MAX_ALIGN_BYTES=64",
    ]
    flags = _as_system_includes(flags)
    objects = f"unpacked-tf{folder.name}"  # apart from an installed one's: their flags differ
    return TensorFlow(folder.name, flags, str(package), FRAMEWORK, cxx11_abi, objects)


def cache():
    """The folder of unpacked TensorFlows."""
    folder = os.environ.get("GROUP_EMBEDDING_CACHE") or Path.home() / ".cache/group_embedding"
    return Path(folder) / "tensorflow"


def unpack(version, cache):
    """Downloads tensorflow-cpu once and keeps of it what a build needs.

    The headers and the framework library of `tensorflow` and of `tensorflow-cpu` are of the same
    sources, and do not depend on the Python that a wheel is for.

    Args:
        version: such as "2.15.1".
        cache: a folder; its subfolder named by the version is returned.
    """
    folder = Path(cache) / version
    if folder.exists():
        return folder
    fresh = folder.with_name(f"{version}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    say(f"downloading tensorflow-cpu {version} (about 250 MB) for its headers")
    python = TENSORFLOWS[minor_of(version)][1][-1]
    platforms = [option for tag in PLATFORMS for option in ("--platform", tag)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        + ["--python-version", python, "--implementation", "cp", *platforms]
        + ["--dest", str(fresh), f"tensorflow-cpu=={version}"],
        check=True,
    )
    (wheel,) = fresh.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        members = [
            name
            for name in archive.namelist()
            if name.startswith("tensorflow/include/") or name == f"tensorflow/{FRAMEWORK}"
        ]
        archive.extractall(fresh, members)
    wheel.unlink()
    fresh.rename(folder)
    return folder


def _as_system_includes(flags):
    """The warnings of TensorFlow's headers are not ours to read."""
    return [re.sub(r"^-I", "-isystem", flag) for flag in flags]
