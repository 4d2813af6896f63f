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
from collections.abc import Callable
from typing import Any

# DeepRec's classes of options, and two that it lacks.
OPTIONS = (
    "CBFFilter",
    "CacheStrategy",
    "CheckpointOption",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "ProbabilityFilter",
    "StorageOption",
    "StorageType",
    "TimeEvict",
)
# {folder of the library: {module of an extension: names that the folder has, too}}
NAMES = {
    "optimizers": {
        "compat.deeprec.adamw": ("AdamWOptimizer",),
        "compat.deeprec.optimizers": ("AdagradDecayOptimizer", "AdamAsyncOptimizer"),
    },
    "ranks.distributed": {"compat.deeprec.collective_strategy": ("CollectiveStrategy",)},
    "variables": {"compat.deeprec.options": OPTIONS},
}
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
    "simulate": "ranks.simulate",
    "sok": "compat.sok",
    "variables.options": "compat.deeprec.options",
}
_PACKAGE = __name__.rpartition(".")[0]


def names_of(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a folder of the library: extensions' names, loaded when they are used.

    Args:
        package: The folder's `__name__`.
    """
    modules = NAMES[package.partition(".")[2]]

    def find(name):
        for module, names in modules.items():
            if name in names:
                return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return find


def path_of(name: str) -> str | None:
    """The module behind an import path, "group_embedding.sok.optimizers"; None: it has no other."""
    package, _, below = name.partition(".")
    if package != _PACKAGE:
        return None
    for path, module in PATHS.items():
        if f"{below}.".startswith(f"{path}."):
            return f"{_PACKAGE}.{module}{below[len(path) :]}"
    return None


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
