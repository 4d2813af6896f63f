"""Overlay: a module with its own names in front of the names of another module."""

import types


class Overlay(types.ModuleType):
    """Has the names of `behind`, and in front of them those of `names`.

    Args:
        name: of the module.
        behind: a module.
        names: a dict from dotted names ("nn.group_embedding_lookup") to objects. `behind.nn` is
            behind an Overlay too then.
    """

    def __init__(self, name, behind, names):
        super().__init__(name, behind.__doc__)
        self.__dict__["_behind"] = behind
        inner = {}
        for dotted, value in names.items():
            first, _, rest = dotted.partition(".")
            if rest:
                inner.setdefault(first, {})[rest] = value
            else:
                self.__dict__[first] = value
        for first, of_it in inner.items():
            self.__dict__[first] = Overlay(f"{name}.{first}", getattr(behind, first), of_it)

    def __getattr__(self, name):
        return getattr(self._behind, name)

    def __dir__(self):
        return sorted({*dir(self._behind), *self.__dict__} - {"_behind"})
