"""Import paths that scripts and files of Keras name, and the modules that stand behind them.

`from group_embedding import sok` and `import group_embedding.sok` find the module
`group_embedding.compat.sok`. It is loaded when it is first used. Both names are of one module, so
its classes exist once.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys

# {path below the package: where the module is}. Files of Keras name modules of models.
PATHS = {
    "convert": "compat.convert",
    "data": "recommender.data",
    "deeprec": "compat.deeprec.tensorflow",
    "distributed": "ranks.distributed",
    "exchange": "ranks.exchange",
    "hugectr": "compat.hugectr",
    "models": "recommender.zoo",
    "parquet": "compat.deeprec.parquet",
    "sok": "compat.sok",
}
_PACKAGE = __name__.rpartition(".")[0]


def path_of(name: str) -> str | None:
    """The module behind an import path, "group_embedding.sok.optimizers"; None: it has no other."""
    package, _, below = name.partition(".")
    first, dot, rest = below.partition(".")
    if package != _PACKAGE or first not in PATHS:
        return None
    return f"{_PACKAGE}.{PATHS[first]}{dot}{rest}"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        real = path_of(name)
        found = real and importlib.util.find_spec(real)
        if not found:
            return None
        is_package = found.submodule_search_locations is not None
        spec = importlib.machinery.ModuleSpec(
            name, self, origin=found.origin, is_package=is_package
        )
        spec.has_location = found.has_location
        return spec

    def create_module(self, spec):
        module = importlib.import_module(path_of(spec.name))
        spec.loader_state = module.__spec__  # which importlib replaces by that of the other name
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state

    def get_code(self, name):  # for python -m
        real = importlib.util.find_spec(path_of(name))
        return real.loader.get_code(real.name)


def install() -> None:
    """Has Python's import find the paths."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First: Python's own finder would load the file of a submodule a second time.
        sys.meta_path.insert(0, _Finder())
