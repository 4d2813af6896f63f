"""The steps that the versions of keys count, and by which tables evict keys.

In a graph of TensorFlow 1 they are those of the global step. TensorFlow 2 has none: there a table
that evicts by steps, or keeps a budget, has a variable of its own, which wrapped optimizers count.
"""

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from group_embedding.ranks.sharding.replica_tables import is_over_replicas


def make_step(table):
    """Makes the step variable of a table, which checkpoints save with it; None if the table needs
    none."""
    evicts = table.options.evict_after_steps is not None or table.options.has_budget
    in_v1_graph = not tf.compat.v1.executing_eagerly_outside_functions()
    if in_v1_graph or not evicts or is_over_replicas(table.exchange):
        return None
    with tf.init_scope(), tf.device("/CPU:0"):
        # Not by tf.Variable, which creators of variables, such as ours, see.
        step = resource_variable_ops.ResourceVariable(
            table._first_step, trainable=False, name=f"{table._table_name}/step", dtype=tf.int64
        )
    return table._track_trackable(step, "step")


def current_step(table):
    """The step of a lookup made now: a tensor or None."""
    if table.step is not None:
        return tf.convert_to_tensor(table.step)
    if table.trained_steps is not None:
        return table.trained_steps.read_value()
    if tf.compat.v1.executing_eagerly_outside_functions():
        return None
    global_step = tf.compat.v1.train.get_global_step()
    return None if global_step is None else tf.convert_to_tensor(global_step)


def count_step(tables):
    """Says that `tables` (EmbeddingVariables) have been trained. Each counts its own steps: those
    of an optimizer begin anew with each optimizer, and versions of keys do not."""
    counting = [table.trained_steps for table in tables if table.trained_steps is not None]
    return [trained.assign_add(1) for trained in counting]
