"""`Schema`: which features files of samples have, and the tables that they look up."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from group_embedding.config import COMBINERS, Combiner, FeatureConfig, TableConfig, check_choice
from group_embedding.files import DataSourceParams
from group_embedding.recommender.data import plain_values
from group_embedding.recommender.data.columns import Column, Ragged
from group_embedding.recommender.data.files import find_files
from group_embedding.recommender.data.formats import format_of
from group_embedding.recommender.data.scan import scan

KINDS = ("categorical", "continuous", "label")


@dataclasses.dataclass(frozen=True)
class Feature:
    """One column of a `Schema`.

    Example:

    >>> ge.data.Feature("clicks", "categorical", "int64", is_list=True, table="items", num_ids=100)
    Feature(name='clicks', kind='categorical', dtype='int64', is_list=True, ...)

    Attributes:
      name: The column's name.
      kind: "categorical", "continuous" or "label".
      dtype, is_list, missing, base, separator: As in `Column`.
      num_ids: Categorical: ids are 0 to `num_ids - 1`.
      hash_size: Categorical: the number of rows of the table, into which values are hashed. Without
        `num_ids` and `hash_size` values are the keys of a keyed table.
      table: Categorical: the name of the table; features that name one table share it. `None`: a
        table of the feature's name.
      dim: Categorical: how long the table's rows are.
      combiner: Categorical: how the rows of a list become one vector.

    Raises:
      TypeError, ValueError: An attribute is not of the form above; the message names the feature.
    """

    name: str
    kind: str
    dtype: str
    is_list: bool = False
    missing: Any = None
    base: int = 10
    separator: str | None = None
    num_ids: int | None = None
    hash_size: int | None = None
    table: str | None = None
    dim: int | None = None
    combiner: Combiner = "mean"

    def __post_init__(self):
        owner = f"feature '{self.name}'"
        check_choice(owner, "kind", self.kind, KINDS)
        check_choice(owner, "combiner", self.combiner, COMBINERS)
        object.__setattr__(self, "dtype", self.column.dtype)
        if self.kind != "categorical":
            for name in ("num_ids", "hash_size", "table", "dim"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{owner}: expected {name} of categorical features alone, got "
                        f"{getattr(self, name)!r} of a {self.kind} one"
                    )
        elif self.dtype.startswith("float") or self.dtype == "bool":
            raise ValueError(f"{owner}: expected an integer dtype or string, got {self.dtype}")
        if self.num_ids is not None and self.hash_size is not None:
            raise ValueError(f"{owner}: expected num_ids or hash_size, got both")

    @property
    def column(self) -> Column:
        """The column that a reader reads."""
        return Column(
            *(self.name, self.dtype, self.is_list, self.missing, self.base, self.separator)
        )


class Schema:
    """Features of files of samples, kept as YAML or JSON.

    Example:

    >>> items = {"table": "items", "num_ids": 1000, "dim": 8}
    >>> schema = ge.data.Schema(
    ...     [
    ...         ge.data.Feature("item", "categorical", "int64", **items),
    ...         ge.data.Feature("history", "categorical", "int64", is_list=True, **items),
    ...         ge.data.Feature("click", "label", "int64"),
    ...     ]
    ... )
    >>> layer = ge.layers.GroupEmbedding(schema.feature_configs())
    >>> [table.name for table in schema.table_configs()]
    ['items']

    Args:
        features: `Feature`s of different names.

    Raises:
        ValueError: two features have one name, or share a table of different dims or sizes.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        names = [feature.name for feature in self.features]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"schema: expected each name once, got {', '.join(twice)} twice")
        self._tables, self._made = {}, {}
        for feature in self.features:
            if feature.kind == "categorical":
                self._add_table(feature)

    def _add_table(self, feature):
        name = feature.table or feature.name
        new = (feature.num_ids or feature.hash_size, feature.dim)
        known = self._tables.setdefault(name, (feature.name, *new))
        if known[1:] != new:
            raise ValueError(
                f"feature '{feature.name}': expected {known[1]} rows and dim {known[2]}, as the "
                f"feature '{known[0]}' has of table '{name}', got {new[0]} rows and dim {new[1]}"
            )

    def __eq__(self, other):
        return isinstance(other, Schema) and self.features == other.features

    def __hash__(self):
        return hash(self.features)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a `Reader`."""
        return tuple(feature.column for feature in self.features)

    @property
    def labels(self) -> str | tuple[str, ...] | None:
        """The labels of a `Reader`: a name, several, or None."""
        names = tuple(feature.name for feature in self.features if feature.kind == "label")
        return names[0] if len(names) == 1 else names or None

    def table_configs(self) -> list[TableConfig]:
        """A `TableConfig` for each table: at each call the same objects, so that layers that are
        made of one schema share its tables.

        Raises:
            ValueError: a table has no dim.
        """
        return list(self._configs().values())

    def feature_configs(self, dim: int | None = None) -> list[FeatureConfig]:
        """A `FeatureConfig` for each categorical feature, for `ge.layers.GroupEmbedding`.

        Args:
            dim: of tables of which the schema says none.

        Raises:
            ValueError: a table has no dim.
        """
        tables = self._configs(dim)
        return [
            FeatureConfig(f.name, tables[f.table or f.name], combiner=f.combiner)
            for f in self.features
            if f.kind == "categorical"
        ]

    def _configs(self, default_dim=None):
        """{name: TableConfig}, the same object for a table of the same dim."""
        configs = {}
        for name, (feature, rows, dim) in self._tables.items():
            dim = default_dim if dim is None else dim
            if dim is None:
                raise ValueError(f"feature '{feature}': expected a dim, for its table '{name}'")
            if (name, dim) not in self._made:
                self._made[name, dim] = TableConfig(name, num_rows=rows, dim=dim)
            configs[name] = self._made[name, dim]
        return configs

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain values, without those that are defaults."""
        defaults = {f.name: f.default for f in dataclasses.fields(Feature)}
        return {
            "features": [
                {k: v for k, v in dataclasses.asdict(f).items() if v != defaults[k]}
                for f in self.features
            ]
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Schema:
        """The schema of what `to_dict` gave.

        Raises:
            ValueError: a key is unknown.
        """
        known = [field.name for field in dataclasses.fields(Feature)]
        if not isinstance(values, dict) or list(values) != ["features"]:
            raise ValueError(f"schema: expected the key features, got {values!r:.200}")
        for feature in values["features"]:
            for key in feature:
                if key not in known:
                    raise ValueError(
                        f"feature '{feature.get('name')}': expected the keys {', '.join(known)}, "
                        f"got '{key}'"
                    )
        return cls([Feature(**feature) for feature in values["features"]])

    def save(self, path: str) -> None:
        """Writes the schema: as JSON where the name ends in .json, as YAML otherwise."""
        is_json = str(path).endswith(".json")
        text = (
            json.dumps(self.to_dict(), indent=1)
            if is_json
            else plain_values.yaml().safe_dump(self.to_dict(), sort_keys=False)
        )
        with open(path, "w") as file:
            file.write(text)

    @classmethod
    def load(cls, path: str) -> Schema:
        """Reads what `save` wrote."""
        return cls.from_dict(plain_values.load(path))

    def check(
        self, files: Any, format: Any = None, data_source: DataSourceParams | None = None
    ) -> int:
        """Reads all rows of files and compares them with the schema.

        Args:
            files, format, data_source: As `Reader` takes them.

        Returns:
            The number of rows.

        Raises:
            ValueError: a file has other columns or types, or a value that does not fit; the message
                names file, row, column, expected and got.
        """
        paths, num_rows = find_files(files, data_source), 0
        file_format = format_of(format, paths[0])
        for path in paths:
            columns = file_format.complete(path, self.columns)
        sizes = {f.name: f.num_ids for f in self.features if f.num_ids is not None}
        for path, row, piece, _ in scan(paths, columns, file_format):
            for name, size in sizes.items():
                _check_ids(path, row, name, piece.arrays[name], size)
            num_rows += piece.num_rows
        return num_rows


def _check_ids(path, row, name, array, size):
    values = array.values if isinstance(array, Ragged) else array
    bad = np.flatnonzero((values >= size) | (values < -1))
    if len(bad):
        first = int(bad[0])
        if isinstance(array, Ragged):
            first = int(np.searchsorted(array.splits, first, "right")) - 1
        raise ValueError(
            f"{path}, row {row + first + 1}, column '{name}': expected ids 0 to {size - 1}, or -1 "
            f"for none, got {values[bad[0]]}"
        )
