"""Package metadata, and the one build_ext that drives the native build: see buildtools/.

The variables that steer the build are listed in docs/reference/environment.md.
"""

import fcntl
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # pip runs this file without its folder there

from buildtools import cuda, native, serving, tensorflow  # noqa: E402
from buildtools.ninja_file import OBJECTS  # noqa: E402
from buildtools.versions import TENSORFLOWS  # noqa: E402


def version():
    text = (ROOT / "group_embedding" / "version.py").read_text()
    stated = {}
    exec(text, stated)
    return stated["VERSION"]


def pythons():
    """The Python versions for which any supported TensorFlow has wheels."""
    found = {python for _, pythons in TENSORFLOWS.values() for python in pythons}
    return sorted(found, key=lambda python: [int(number) for number in python.split(".")])


def replace_file(path, content):
    """Writes by rename: a process that has the old library mapped keeps the old one."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(content)
    fresh.chmod(0o755 if path.name == serving.PROGRAM.name else 0o644)
    fresh.replace(path)


class BuildNative(build_ext):
    user_options = [
        *build_ext.user_options,
        ("ops-only", None, "leave out the module for Python and all that serves models"),
    ]
    boolean_options = [*build_ext.boolean_options, "ops-only"]

    def initialize_options(self):
        super().initialize_options()
        self.ops_only = False

    def run(self):
        tensorflows = tensorflow.wanted()
        found = cuda.find_cuda()
        OBJECTS.mkdir(exist_ok=True)
        with open(OBJECTS / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            built = native.build(tensorflows, found, ops_only=self.ops_only)
            if tensorflow.for_wheels():
                built |= serving.for_wheel(tensorflows[0])
            package = Path(self.get_ext_fullpath("group_embedding._native")).parent
            package.mkdir(parents=True, exist_ok=True)
            if not self.inplace:  # a wheel has what it is built for, whatever was here before
                for stale in [
                    *package.glob(f"{native.OPS}.*"),
                    *package.glob(f"{native.SERVING}.*"),
                ]:
                    stale.unlink()
            for stale in native.outdated(package, built):
                stale.unlink()
            for name, content in built.items():
                replace_file(package / name, content)
            for stale in native.unused_cores(package):
                stale.unlink()

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


setup(
    name="group_embedding",
    version=version(),
    description=f"Many sparse embedding lookups in one fused op, for {tensorflow.described()}",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    author="The group_embedding authors",
    license="Apache-2.0",
    keywords="tensorflow keras embedding recommender sparse cuda horovod",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Environment :: GPU :: NVIDIA CUDA",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: {python}" for python in pythons()),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.9",
    packages=find_packages(include=["group_embedding*"]),
    package_data={"group_embedding": ["py.typed"]},
    # TensorFlow itself is not listed: it comes as tensorflow or as tensorflow-cpu, and the library
    # is built for the one that is there.
    install_requires=["numpy"],
    extras_require={
        "collective": ["horovod==0.28.1"],
        "disk": ["aimrocks==0.5.2; python_version < '3.13'"],
        "data": ["pyarrow==21.0.0", "pyyaml"],
        "gs": ["gcsfs==2026.10.1"],
        "hdfs": ["fsspec==2026.9.0", "hdfs-native==0.14.7"],
        "parquet": ["pyarrow==21.0.0"],
        "kafka": ["confluent-kafka==2.16.1"],
        "redis": ["redis==8.1.0"],
        "s3": ["s3fs==2026.9.0"],
    },
    ext_modules=[Extension("group_embedding._native", sources=[])],
    cmdclass={"build_ext": BuildNative},
    zip_safe=False,
)
