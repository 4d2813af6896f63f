"""`get_embedding_variable`: DeepRec's function of that name."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from group_embedding.annotations import DTypeLike, Initializer
from group_embedding.config import TABLE_DTYPES, check_int
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.replica_tables import is_over_replicas, part_here
from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.key_types import KEY_DTYPES
from group_embedding.variables.keyed_options import TableOptions, to_keyed_options
from group_embedding.variables.over_replicas import make_over_replicas

_log = logging.getLogger(__name__)


def get_embedding_variable(
    name: str,
    embedding_dim: int,
    key_dtype: DTypeLike = tf.int64,
    value_dtype: DTypeLike | None = None,
    initializer: Initializer = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    custom_getter: Any = None,
    constraint: Any = None,
    init_data_source: Any = None,
    ev_option: TableOptions | None = None,
    *,
    placement: str | None = None,
    steps_to_live: int | None = None,
) -> EmbeddingVariable:
    """Makes a table whose rows are found by key; in a graph of TensorFlow 1, or gets the one that
    has this name.

    Any integer of `key_dtype` is a key. It gets a row only when it is trained, and as often as the
    filter asks. Lookups without a gradient never insert keys, as in evaluation and serving. Tables
    are trained by optimizers of `group_embedding.optimizers` alone.

    In a graph of TensorFlow 1 this is `tf.compat.v1.get_variable` for such tables: variable scopes,
    their reuse and their initializers, and collections mean the same. A scope's regularizer,
    partitioner, caching device and constraint are for its variables, and not for tables.

    In eager code each call makes a table of its own, as `tf.Variable` does: two parts of a model
    share a table when both are given the variable, two `layers.GroupEmbedding` when both are given
    one `TableConfig`.

    Args:
        name: of the table.
        embedding_dim: length of a row, 1 to 4096.
        key_dtype: int32, int64, uint32 or uint64.
        value_dtype: float32, float16 or bfloat16; None: float32.
        initializer: of rows, if `ev_option` has none, which counts first; None: that of the
            variable scope, or a truncated normal distribution.
        trainable: whether training changes the table; if not, no lookup inserts keys.
        collections: graph collections it is added to.
        validate_shape: must be True.
        custom_getter: see `tf.compat.v1.get_variable`.
        ev_option: KeyedOptions, or DeepRec's EmbeddingVariableOption; None: the defaults.
        placement: over several ranks, 'distributed': each key is on the rank that its hash says; or
            `'localized:<rank>'`: all are on that one; with ':sums' behind it, owners send one sum
            of a sample's rows; with ':two_levels', a row crosses once to each host. None: the
            default of the job.
        steps_to_live: `evict_after_steps` of options that evict no keys by themselves.
        partitioner: None, or what says for variables how many pieces they have. The table is one
            piece, and a warning says so once: it grows in parts by itself, and
            `enable_distributed_strategy` spreads it over ranks.
        regularizer, caching_device, constraint, init_data_source: must be None: there is no matrix
            that they could be applied to.

    Returns:
        An EmbeddingVariable.

    Raises:
        TypeError, ValueError: an argument is not as above; the message names the table.

    Example:

    >>> table = ge.get_embedding_variable("user", 2, initializer=tf.ones_initializer())
    >>> ids = tf.ragged.constant([[-7, 2**40], []], dtype=tf.int64)
    >>> ge.group_embedding_lookup_sparse([table], [ids], "sum")[0].numpy().tolist()
    [[2.0, 2.0], [0.0, 0.0]]
    >>> int(table.total_count())
    0
    """
    meaningless = {
        "regularizer": regularizer,
        "caching_device": caching_device,
        "constraint": constraint,
        "init_data_source": init_data_source,
    }
    for argument, value in meaningless.items():
        if value is not None:
            raise ValueError(
                f"table '{name}': {argument} has no meaning for an EmbeddingVariable, which has no "
                f"fixed rows; leave it out, got {value!r}"
            )
    if not validate_shape:
        raise ValueError(f"table '{name}': expected validate_shape=True, got {validate_shape!r}")
    if partitioner is not None:
        note_one_piece("partitioner")
    if steps_to_live is not None:
        steps_to_live = check_int(f"table '{name}'", "steps_to_live", steps_to_live, at_least=1)
    options = to_keyed_options(name, ev_option)
    option = (ev_option or options).with_steps_to_live(steps_to_live)
    arguments = {
        "embedding_dim": check_dim(name, embedding_dim),
        "key_dtype": check_dtype(name, "key_dtype", key_dtype, KEY_DTYPES),
        "value_dtype": check_dtype(name, "value_dtype", value_dtype or tf.float32, TABLE_DTYPES),
        "initializer": _initializer(initializer, options),
        "ev_option": option,
        "placement": placement,
    }

    # The scopes see to names, reuse and collections; what they make is one of ours.
    with tf.init_scope(), keyed_variables(**arguments):
        variable = tf.compat.v1.get_variable(
            name,
            [0, arguments["embedding_dim"]],
            arguments["value_dtype"],
            initializer=tf.compat.v1.zeros_initializer(),
            regularizer=_no_regularizer,
            trainable=trainable,
            collections=collections,
            partitioner=None,
            use_resource=True,
            custom_getter=custom_getter,
        )
    _check_same(variable, name, arguments)
    return variable


@contextlib.contextmanager
def keyed_variables(**arguments):
    """A scope in which whoever makes a variable, of shape [0, embedding_dim], makes an
    EmbeddingVariable, with these arguments beside its name, trainable and collections."""

    def create(next_creator, **kwargs):
        del next_creator
        trainable = kwargs["trainable"] is not False
        return make_keyed(kwargs["name"], trainable, kwargs.get("collections"), **arguments)

    with _whole_variables(), tf.variable_creator_scope(create):
        yield


def make_keyed(name, trainable=True, collections=None, **arguments):
    """An EmbeddingVariable; over the replicas of a strategy, one for each as one variable."""

    def make(**of_replica):
        return EmbeddingVariable(
            name=name, trainable=trainable, collections=collections, **of_replica, **arguments
        )

    return make_over_replicas(make) if is_over_replicas(current()) else make()


@contextlib.contextmanager
def _whole_variables():
    """The partitioner of a variable scope is not for tables: ranks are what they are split over."""
    scope = tf.compat.v1.get_variable_scope()
    partitioner = scope.partitioner
    scope.set_partitioner(None)
    try:
        yield
    finally:
        scope.set_partitioner(partitioner)


@functools.cache
def note_one_piece(argument):
    """Warns, the first time, that a table is not cut as `argument` says."""
    _log.warning(
        "%s: an EmbeddingVariable is one piece, which grows in parts by itself; "
        "enable_distributed_strategy spreads it over ranks",
        argument,
    )


def check_dim(name, dim):
    if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim <= 4096:
        raise ValueError(f"table '{name}': expected an embedding_dim from 1 to 4096, got {dim!r}")
    return dim


def check_dtype(name, argument, dtype, choices):
    names = [tf.as_dtype(choice).name for choice in choices]
    try:
        found = tf.as_dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in names:
        raise ValueError(
            f"table '{name}': expected {argument} to be one of {', '.join(names)}, got {dtype!r}"
        )
    return found


def _initializer(initializer, options):
    scope = tf.compat.v1.get_variable_scope().initializer
    choices = (options.initializer, initializer, scope)
    return next(
        (choice for choice in choices if choice is not None),
        tf.compat.v1.truncated_normal_initializer(),
    )


def _no_regularizer(_):
    """Replaces a variable scope's regularizer, which does not apply to tables."""


def _check_same(variable, name, arguments):
    """Refuses to share a table with one that asks for another."""
    variable = part_here(variable)
    if not isinstance(variable, EmbeddingVariable):
        raise ValueError(
            f"table '{name}': expected an EmbeddingVariable, as it is asked for again, got "
            f"{type(variable).__name__}"
        )
    options = to_keyed_options(name, arguments["ev_option"])
    if variable.options != options:
        raise ValueError(
            f"table '{name}': expected ev_option {variable.ev_option}, as it has, got "
            f"{arguments['ev_option']}"
        )
    if variable.key_dtype != arguments["key_dtype"]:
        raise ValueError(
            f"table '{name}': expected key_dtype {variable.key_dtype}, as it has, got "
            f"{arguments['key_dtype']}"
        )
