"""The tables to compute with: of a known model, of a JSON file, and traces of their ids."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np

from group_embedding.config import nearest
from group_embedding.ranks.simulate.step_time import TableOfModel
from group_embedding.ranks.simulate.unique_ids import TracedIds, ZipfIds

# MLPerf's DCNv2: rows and ids of a sample, by table.
_DCNV2_ROWS = [
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282,
    10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108,
    36,
]  # fmt: skip
_DCNV2_IDS = [
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
]  # fmt: skip
_MODELS = {
    "dcnv2": (_DCNV2_ROWS, _DCNV2_IDS),
    "dlrm": ([1_000_000] * 26, [1] * 26),
}


def tables_of_model(name: str, alpha: float) -> list[TableOfModel]:
    """The tables of a model of 26 tables of dim 128, with ids by Zipf's law.

    Args:
      name: 'dcnv2': those of MLPerf's DCNv2, of 3 to 40,000,000 rows and 1 to 100 ids; 'dlrm': of a
        million rows and one id each.
      alpha: The exponent of the law; 0: uniform ids.

    Raises:
      ValueError: there is no such model.
    """
    if name not in _MODELS:
        raise ValueError(
            f"model: expected one of {', '.join(_MODELS)}, got {name!r}{nearest(name, _MODELS)}"
        )
    return [
        TableOfModel(f"table_{i}", rows, 128, ids, ZipfIds(rows, alpha))
        for i, (rows, ids) in enumerate(zip(*_MODELS[name]))
    ]


def read_tables(path: str | os.PathLike[str], alpha: float) -> list[TableOfModel]:
    """The tables of a JSON file: a list of objects with `name`, `rows`, `dim`, `ids` (of a sample,
    1 where it is left out) and `alpha` (the argument, where it is left out).

    Raises:
      ValueError: the file holds something else.
    """
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if not isinstance(found, list) or not found:
        raise ValueError(f"{path}: expected a list of tables, got {type(found).__name__}")
    return [_table(path, i, table, alpha) for i, table in enumerate(found)]


def with_trace(tables: list[TableOfModel], path: str | os.PathLike[str]) -> list[TableOfModel]:
    """The tables, with ids as they are in a trace.

    Args:
      path: An .npz file with an integer array for each table that it traces, by the table's name:
        the ids of some batches, of any shape. Other tables keep their law.

    Raises:
      ValueError: the trace names a table that is not there, or holds something else than ids.
    """
    with np.load(path) as arrays:
        trace = {name: arrays[name] for name in arrays.files}
    names = [table.name for table in tables]
    for name, ids in trace.items():
        if name not in names:
            raise ValueError(
                f"{path}: expected names of tables, got '{name}'{nearest(name, names)}"
            )
        if not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"{path}: table '{name}': expected integers, got {ids.dtype}")
    return [
        dataclasses.replace(table, source=TracedIds.of(trace[table.name], table.rows))
        if table.name in trace
        else table
        for table in tables
    ]


def _table(path, place, table, alpha):
    allowed = {"name", "rows", "dim", "ids", "alpha"}
    if not isinstance(table, dict) or not {"name", "rows", "dim"} <= set(table) <= allowed:
        raise ValueError(
            f"{path}: table {place}: expected name, rows, dim, and perhaps ids and alpha, got "
            f"{table}"
        )
    rows, dim, ids = (_positive(path, table, key) for key in ("rows", "dim", "ids"))
    exponent = table.get("alpha", alpha)
    if not isinstance(exponent, (int, float)) or exponent < 0:
        raise ValueError(
            f"{path}: table '{table['name']}': alpha: expected 0 or more, got {exponent!r}"
        )
    return TableOfModel(str(table["name"]), int(rows), int(dim), ids, ZipfIds(int(rows), exponent))


def _positive(path, table, key) -> Any:
    value = table.get(key, 1)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"{path}: table '{table['name']}': {key}: expected a number above 0, got {value!r}"
        )
    return value
