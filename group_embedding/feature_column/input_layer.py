"""Finds the columns of the current call, and the variable scopes that later columns will have."""

import contextlib
import sys

import tensorflow as tf

_MAX_FRAMES = 8  # `input_layer` is the direct caller; a few more for code that wraps columns.


def columns_of_layer(state_manager):
    """The columns of the Keras layer (`DenseFeatures`, ...) that the state manager serves."""
    return list(getattr(getattr(state_manager, "_layer", None), "_feature_columns", None) or ())


def columns_of_input_layer(builder):
    """The columns of the `input_layer` call that made this `_LazyBuilder`, in its order.

    `input_layer` tells a column nothing about the columns beside it: neither the builder nor any
    other argument knows them, and the scope must not guess, since it may neither make variables
    for columns that are not part of the call nor ask for features that are not there.
    The caller's own variables know. They are only read, and only to fuse: where no caller is found
    the answer is empty, and each column is looked up by an op of its own.
    """
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        frame = frame.f_back
        if frame is None:
            break
        variables = frame.f_locals
        if variables.get("builder") is builder and "feature_columns" in variables:
            return sorted(variables["feature_columns"], key=lambda column: column.name)
    return []


def columns_after(column, columns):
    """The columns that follow `column` in `columns`; none if `column` is not in it."""
    names = [other.name for other in columns]
    return columns[names.index(column.name) + 1 :] if column.name in names else []


def variable_scopes_ahead(column, later):
    """Yields each of the `later` columns, inside the variable scope that it is going to have.

    `input_layer` gives each column a variable scope with a free name when its turn comes. Here, in
    the scope of `column`, the scope around it is entered again, and each later column gets its
    free name ahead of its turn. That scope is entered as an object, not by name: so it does not
    nest, and at its end TensorFlow forgets which names were taken inside, and `input_layer` finds
    the same ones free. Every later column has to be stepped through, as names may be alike.
    No name scopes are opened, since TensorFlow would not forget those.

    Yields nothing where the current scope is not one that was made for `column`.
    """
    current = tf.compat.v1.get_variable_scope()
    depth = column._var_scope_name.count("/") + 1
    components = current.name.split("/")
    if not "/".join(components[-depth:]).startswith(column._var_scope_name):
        return
    parent = tf.compat.v1.VariableScope(
        name="/".join(components[:-depth]),
        reuse=current.reuse,
        initializer=current.initializer,
        regularizer=current.regularizer,
        caching_device=current.caching_device,
        partitioner=current.partitioner,
        custom_getter=current.custom_getter,
        name_scope=current.original_name_scope,
        dtype=current.dtype,
        use_resource=current.use_resource,
        constraint=current.constraint,
    )
    with tf.compat.v1.variable_scope(parent, auxiliary_name_scope=False):
        for other in later:
            with tf.compat.v1.variable_scope(
                None, default_name=other._var_scope_name, auxiliary_name_scope=False
            ):
                yield other


@contextlib.contextmanager
def collections_held_back(held, keep):
    """Takes out of the graph's collections what is added to them inside, and puts it in `held`.

    So the variable of a later column appears at that column's turn, in the stock order, and
    `input_layer`, which fills `cols_to_vars` by a prefix of names, sees no variable too early.

    Args:
      held: receives `{collection: items}`.
      keep: a collection to be left as it is.
    """
    graph = tf.compat.v1.get_default_graph()
    sizes = {key: len(graph.get_collection_ref(key)) for key in graph.get_all_collection_keys()}
    yield
    for key in graph.get_all_collection_keys():
        if key != keep:
            items = graph.get_collection_ref(key)
            held[key] = items[sizes.get(key, 0) :]
            del items[sizes.get(key, 0) :]


def add_to_collections(held):
    """Adds the items that `collections_held_back` kept."""
    graph = tf.compat.v1.get_default_graph()
    for key, items in held.items():
        graph.get_collection_ref(key).extend(items)
