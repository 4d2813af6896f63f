"""The core as a module of Python, ``python -m buildtools.core_module``, for tests and benchmarks.

``tests/support/_core.<python tag>.so`` has groups, tables, updates and lookups over ranks on NumPy
and CUDA arrays, without TensorFlow, of the sources in tests/cc/python, and what the package's own
module has. It finds the core in group_embedding/, where `make build` has put it. The package and
its wheels do without it.
"""

import shutil
import sys
import sysconfig

from buildtools import cuda, native, tensorflow
from buildtools.ninja_file import OBJECTS, ROOT, NinjaFile

TESTS = ROOT / "tests"
FIND_IN_PACKAGE = "-Wl,-rpath,'$$ORIGIN/../../group_embedding'"


def main():
    tensorflows = [tensorflow.installed()]
    ninja = NinjaFile(cuda.find_cuda())
    core = native.add_core(ninja, tensorflows)
    tables = native.add_served_tables(ninja, tensorflows, core)
    bindings = [source for source in native.sources_of("bindings") if source.stem != "module"]
    objects = native.python_objects(ninja, tensorflows, bindings)
    sources = sorted((TESTS / "cc" / "python").glob("*.cc"))
    objects += native.python_objects(ninja, tensorflows, sources, root=TESTS / "cc")
    name = "_core" + sysconfig.get_config_var("EXT_SUFFIX")
    library = OBJECTS / native.python_tag() / name
    ninja.library(library, objects, FIND_IN_PACKAGE, uses=[tables, core])
    ninja.run(f"{native.python_tag()}-core-module")
    fresh = TESTS / "support" / (name + ".new")
    shutil.copy2(library, fresh)
    fresh.replace(fresh.with_suffix(""))


if __name__ == "__main__":
    sys.exit(main())
