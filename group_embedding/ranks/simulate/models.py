"""The tables to compute with: of a known model, of a JSON file, and traces of their ids."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile

import numpy as np

from group_embedding.config import check_int, check_not_negative, check_number, nearest
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
      alpha: The exponent of the law, 0 or more; 0: uniform ids.

    Raises:
      ValueError: there is no such model, or the exponent is negative.
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
        try:
            found = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}: expected JSON, got {error}") from None
    if not isinstance(found, list) or not found:
        got = "an empty list" if found == [] else type(found).__name__
        raise ValueError(f"{path}: expected a list of tables, got {got}")
    tables = [_table(f"{path}: table {i}", table, alpha) for i, table in enumerate(found)]
    names = [table.name for table in tables]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"{path}: expected a name for each table, got two named '{name}'")
    return tables


def with_trace(tables: list[TableOfModel], path: str | os.PathLike[str]) -> list[TableOfModel]:
    """The tables, with ids as they are in a trace.

    Args:
      path: An .npz file with an integer array for each table that it traces, by the table's name:
        the ids of some batches, of any shape. Other tables keep their law.

    Raises:
      ValueError: the trace names a table that is not there, or holds something else than ids.
    """
    try:
        with np.load(path) as arrays:
            trace = {name: arrays[name] for name in arrays.files}
    except (AttributeError, EOFError, ValueError, zipfile.BadZipFile):
        raise ValueError(f"{path}: expected an .npz file of integer arrays by table") from None
    names = [table.name for table in tables]
    for name, ids in trace.items():
        if name not in names:
            raise ValueError(
                f"{path}: expected names of tables, got '{name}'{nearest(name, names)}"
            )
        if not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"{path}: table '{name}': expected integers, got {ids.dtype}")
        if ids.size < 2:
            raise ValueError(f"{path}: table '{name}': expected at least 2 ids, got {ids.size}")
    return [
        dataclasses.replace(table, source=TracedIds.of(trace[table.name], table.rows))
        if table.name in trace
        else table
        for table in tables
    ]


def _table(owner, table, alpha):
    allowed = {"name", "rows", "dim", "ids", "alpha"}
    if not isinstance(table, dict) or not {"name", "rows", "dim"} <= set(table) <= allowed:
        raise ValueError(
            f"{owner}: expected name, rows, dim, and perhaps ids and alpha, got {table}"
        )
    if not isinstance(table["name"], str):
        raise ValueError(f"{owner}: expected name to be a string, got {table['name']!r}")
    owner = f"{owner}, '{table['name']}'"
    rows, dim = (check_int(owner, key, table[key], at_least=1) for key in ("rows", "dim"))
    ids, exponent = table.get("ids", 1), table.get("alpha", alpha)
    check_number(owner, "ids", ids, above=0)
    check_not_negative(owner, "alpha", exponent)
    return TableOfModel(table["name"], rows, dim, ids, ZipfIds(rows, exponent))
