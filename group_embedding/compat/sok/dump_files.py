"""`dump` and `load`: tables in a folder, by name, for any number of ranks."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from typing import Any

import tensorflow as tf

from group_embedding.checkpoint import checkpoint_files as files
from group_embedding.compat.sok.sok_tables import is_table, name_of
from group_embedding.lookups import tf_variable
from group_embedding.ranks import exchange
from group_embedding.ranks.distributed import mark_slots
from group_embedding.ranks.sharding import table_shape
from group_embedding.types import Optimizer

_PREFIX = "tables"
_OF_OPTIMIZER = re.compile(r"^optimizer/|/\.OPTIMIZER_SLOT/optimizer/")
_VALUE = re.compile(r"tables/([^/]+)/\.ATTRIBUTES/VARIABLE_VALUE$")


def dump(path: str | os.PathLike[str], dump_vars: Any, optimizer: Optimizer | None = None) -> None:
    """Writes tables to a folder that all ranks share.

    Every rank must call it, with the same tables. What is written is a checkpoint of
    `tf.train.Checkpoint`; a table may be empty. With the rows of a DynamicVariable come those of
    its optimizer.

    Args:
        path: the folder, on any file system that TensorFlow has. It is made; an earlier dump in it
            is replaced.
        dump_vars: a table, or a list of tables with different names.
        optimizer: None, or one whose state is written too: of `OptimizerWrapper`, or a stock one,
            which trains tables of `Variable`. A list of one is taken as well.

    Raises:
        TypeError: a variable is no table.
        ValueError: two tables of one name; a call in a graph of TensorFlow 1.

    Example:

    >>> import tempfile
    >>> folder, table = tempfile.mkdtemp(), ge.sok.Variable([[1., 2.]], name="dumped")
    >>> ge.sok.dump(folder, table)
    >>> _ = table.assign([[0., 0.]])
    >>> ge.sok.load(folder, table)
    >>> table.numpy().tolist()
    [[1.0, 2.0]]
    """
    tables = _by_name("dump", dump_vars)
    write(path, tables, _only_one("dump", optimizer))


def load(path: str | os.PathLike[str], load_vars: Any, optimizer: Optimizer | None = None) -> None:
    """Reads tables that `dump` wrote, on however many ranks.

    Every rank must call it. A table then has the dumped rows and no others.

    Args:
        path: the folder.
        load_vars: a table, or a list of some of the dumped ones. They are found by their names.
        optimizer: None, or one, as of `dump`, whose state is read too. Where it has not taken a
            step yet, it is built for `load_vars`, which then are all that it trains.

    Raises:
        TypeError: a variable is no table.
        FileNotFoundError: there is no dump in `path`.
        ValueError: it has no such table, one of another shape, or no state of an optimizer; a call
            in a graph of TensorFlow 1.
    """
    read(path, _by_name("load", load_vars), _only_one("load", optimizer))


def write(path, tables, optimizer=None):
    """Writes a dict of tables, as `dump` does."""
    _check_eager("dump")
    spread_over = exchange.current()
    if optimizer is not None:
        mark_slots(optimizer, tables.values())
    checkpoint = _checkpoint(tables, optimizer)
    with contextlib.ExitStack() as stack:
        folder = path
        if spread_over.rank > 0:  # it gives its rows to rank 0, and writes nothing of worth
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        tf.io.gfile.makedirs(folder)
        checkpoint.write(os.path.join(folder, _PREFIX))
    spread_over.barrier("sok_dumped")


def read(path, tables, optimizer=None):
    """Reads a dict of tables, as `load` does."""
    _check_eager("load")
    prefix = os.path.join(path, _PREFIX)
    if not tf.io.gfile.exists(prefix + ".index"):
        raise FileNotFoundError(f"load: expected a dump in {path}, got none")
    entries = files.reader(prefix).get_variable_to_shape_map()
    _check_tables(path, tables, entries)
    if optimizer is not None:
        if not any(_OF_OPTIMIZER.search(entry) for entry in entries):
            raise ValueError(
                f"load: expected the state of an optimizer in {path}, got tables alone"
            )
        _build(optimizer, list(tables.values()))
        mark_slots(optimizer, tables.values())
    restored = _checkpoint(tables, optimizer).read(prefix)
    restored.assert_existing_objects_matched().expect_partial()  # there may be other tables


def _only_one(caller, optimizer):
    if not isinstance(optimizer, (list, tuple)):
        return optimizer
    if len(optimizer) > 1:
        raise ValueError(f"{caller}: expected one optimizer, got {len(optimizer)}")
    return optimizer[0] if optimizer else None


def _by_name(caller, variables):
    variables = variables if isinstance(variables, (list, tuple)) else [variables]
    tables = {}
    for variable in variables:
        if not is_table(variable):
            raise TypeError(
                f"{caller}: expected tables of sok.Variable or sok.DynamicVariable, got "
                f"{variable!r}"
            )
        name = name_of(variable)
        if name in tables:
            raise ValueError(f"{caller}: expected tables of different names, got two '{name}'")
        tables[name] = variable
    return tables


def _checkpoint(tables, optimizer):
    parts = {_entry(name): tf_variable(table) for name, table in tables.items()}
    if optimizer is None:
        return tf.train.Checkpoint(tables=parts)
    return tf.train.Checkpoint(tables=parts, optimizer=optimizer)


def _entry(name):
    """Names of tables have slashes, which end the name of an entry in a checkpoint."""
    return name.replace("%", "%25").replace("/", "%2F").replace(".", "%2E")


def _check_tables(path, tables, entries):
    found = {
        match[1]: shape
        for match, shape in ((_VALUE.match(e), s) for e, s in entries.items())
        if match
    }
    for name, table in tables.items():
        expected = table_shape(table).as_list()
        actual = found.get(_entry(name))
        if actual is None:
            raise ValueError(
                f"table '{name}': expected it among the tables in {path}, got {sorted(found)}"
            )
        if actual != expected:
            raise ValueError(
                f"table '{name}': expected {_in_words(expected)} in {path}, got {_in_words(actual)}"
            )


def _in_words(shape):
    rows, dim = shape
    return f"keys with rows of dim {dim}" if rows == 0 else f"{rows} rows of dim {dim}"


def _build(optimizer, variables):
    """Makes the optimizer's slots. Those of a table that is spread over ranks must exist when they
    are restored, as what is stored is the whole."""
    if getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        return
    for make in ("build", "_create_all_weights", "_create_slots"):
        if hasattr(optimizer, make):
            getattr(optimizer, make)(variables)
            return


def _check_eager(caller):
    if not tf.executing_eagerly():
        raise ValueError(
            f"{caller}: expected eager code; in a graph of TensorFlow 1, ge.Saver saves and "
            "restores tables with all other variables"
        )
