"""A training program as plain values: what is drawn, printed, made smaller and run again.

`repr` of a Program is an expression that makes it again.
"""

import dataclasses
import pprint
from typing import Optional


class _Plain:
    """Printed without the fields that have their default."""

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(self.fields())})"

    def fields(self, to_text=repr):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            else:
                default = field.default
            if default is dataclasses.MISSING or repr(value) != repr(default):
                yield f"{field.name}={to_text(value)}"


@dataclasses.dataclass(frozen=True, repr=False)
class Table(_Plain):
    """One table. Its initial values are drawn from `seed`."""

    name: str
    dim: int
    seed: int
    rows: int  # of a table by key: how many keys are drawn from
    keys: tuple = ()  # of a table by key: the keys; () means a table by row
    key_dtype: str = "int64"
    dtype: str = "float32"
    trainable: bool = True
    filter_freq: int = 0
    counts_steps: bool = False  # keys have versions
    poison: tuple = ()  # (row, column, value) of the initial values

    @property
    def is_keyed(self):
        return bool(self.keys)

    def has(self, ids):
        """Which ids are rows of a table without keys."""
        return (ids >= 0) & (ids < self.rows)


@dataclasses.dataclass(frozen=True, repr=False)
class Lookup(_Plain):
    """One feature. `combiner` None: dense ids, one vector per id."""

    name: str
    table: str
    combiner: Optional[str]
    call: int = 0  # lookups of one number are made by one call
    weighted: bool = False
    max_norm: Optional[float] = None
    form: str = "sparse"  # or "ragged", "dense"
    ids_dtype: str = "int64"
    splits_dtype: str = "int64"  # of ragged ids
    weight_splits_dtype: str = "int64"


@dataclasses.dataclass(frozen=True, repr=False)
class Step(_Plain):
    """One batch, and what is trained on it."""

    seed: int  # of the targets
    ids: dict  # {lookup: [samples][ids]}: row numbers, or places among `Table.keys`
    weights: dict = dataclasses.field(default_factory=dict)  # {weighted lookup: the same shape}
    frozen: tuple = ()  # names of tables that are not differentiated
    unused: tuple = ()  # names of lookups that the loss does not depend on
    poison: tuple = ()  # (sample, column, value) of the targets

    @property
    def samples(self):
        return len(next(iter(self.ids.values())))


@dataclasses.dataclass(frozen=True, repr=False)
class Optimizer(_Plain):
    """`family`: "keras", "legacy", "v1" or "own"."""

    family: str
    name: str
    arguments: dict

    @property
    def writes_no_slots(self):
        """Stock SGD of Keras 2 writes momenta that it never reads."""
        return self.name == "SGD" and not self.arguments["momentum"]

    @property
    def swallows_nan(self):
        """Stock's own ops for dense gradients do: the greater of a number and NaN is the number."""
        is_amsgrad = self.family == "legacy" and self.arguments.get("amsgrad", False)
        named = {"legacy": ("Adamax", "Ftrl"), "v1": ("FtrlOptimizer",)}
        return is_amsgrad or self.name in named.get(self.family, ())


@dataclasses.dataclass(frozen=True, repr=False)
class Program(_Plain):
    """`way`: "eager", "function", "layer", "layer function" or "fit".

    `clip`: None, or ("norm" or "global_norm" or "value", a number): applied to the gradients.
    """

    seed: int
    way: str
    tables: tuple
    lookups: tuple
    optimizer: Optimizer
    steps: tuple
    clip: Optional[tuple] = None
    invalid_ids: str = "raise"
    concat: bool = False
    routed: bool = False
    watches_all: bool = True  # whether the tape watches frozen tables too

    @property
    def is_layer(self):
        return self.way in ("layer", "layer function", "fit")

    def table(self, name):
        return next(table for table in self.tables if table.name == name)

    def lookups_of(self, table):
        return [lookup for lookup in self.lookups if lookup.table == table.name]

    def width_of(self, lookup):
        """The columns of a lookup's output, as a matrix."""
        dim = self.table(lookup.table).dim
        if lookup.combiner is not None:
            return dim
        return dim * len(self.steps[0].ids[lookup.name][0])

    @property
    def width(self):
        return sum(self.width_of(lookup) for lookup in self.lookups)

    def text(self):
        """A Python expression of the program."""
        fields = self.fields(lambda value: pprint.pformat(value, width=110, sort_dicts=False))
        return "Program(\n" + "".join(f"{field},\n" for field in fields) + ")"


def from_text(text):
    """The program that `Program.text` printed."""
    names = {kind.__name__: kind for kind in (Table, Lookup, Step, Optimizer, Program)}
    return eval(text, {**names, "nan": float("nan"), "inf": float("inf")})
