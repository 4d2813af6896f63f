"""The op that replaces the keys of a batch by row numbers.

A key gets a row only when it is trained. The op is made to read, and lookups without a gradient
never insert keys. What differentiates the lookup has the op train: in a graph the gradient function
of GroupLookup, which changes the op; in eager code a tape that watches the table.
"""

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import record
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import resource_variable_ops

from group_embedding.ops._library import library

# Functions need not put the lookups of one table into an order.
auto_control_deps_utils.register_read_only_resource_op("GroupEmbedding>LocateRows")


def locate_rows(tables, batch, table_of_feature, times=None):
    """`batch` with the numbers of rows where it has keys.

    Args:
        tables: a Table for each table of the group. Those that are found by key are of one device.
        batch: ops.group_ids.Batch.
        table_of_feature: for each feature, the index into `tables`.
        times: int64 [ids], occurrences of each id of the batch; None: one each.
    """
    keyed = [t for t, table in enumerate(tables) if table.keyed is not None]
    place = {t: i for i, t in enumerate(keyed)}
    training = attrs_of_training([tables[t] for t in keyed])
    tables = [tables[t].keyed for t in keyed]
    steps = steps_of(tables)
    with tf.device(tables[0].device):
        times = tf.zeros([0], tf.int64) if times is None else times
        buffer = library().locate_rows(
            tables=[table.table_handle for table in tables],
            batch=batch.buffer,
            sizes=batch.sizes,
            steps=steps,
            times=times,
            table_of_feature=[place.get(t, -1) for t in table_of_feature],
            weighted=batch.weighted,
            **training,
        )
    return batch._replace(buffer=buffer)


def train_located(buffer):
    """Makes the op train that made this buffer."""
    if not tf.executing_eagerly() and buffer.op.type == "GroupEmbedding>LocateRows":
        train(buffer.op, steps_at=buffer.op.get_attr("num_tables") + 2)


def train(op, steps_at):
    """Makes an op train that was made to read. `steps_at`: which of its inputs the steps are."""
    op._set_attr("training", attr_value_pb2.AttrValue(b=True))
    _give_steps(op, steps_at)


def _give_steps(op, at):
    """In a graph of TensorFlow 1 the global step may be younger than the lookup."""
    if tf.compat.v1.executing_eagerly_outside_functions() or op.graph.building_function:
        return
    step = tf.compat.v1.train.get_global_step(op.graph)
    if step is None or op.inputs[at].op.type != "Const":  # which says that there was none
        return
    with op.graph.as_default(), tf.control_dependencies(None), tf.device("/CPU:0"):
        steps = tf.fill([len(op.get_attr("learning"))], tf.cast(step, tf.int64))
    op._update_input(at, steps)


def attrs_of_training(tables):
    """The attributes of ops that may train the keys of these Tables."""
    return {
        "learning": [_learns(table) for table in tables],
        "training": tf.executing_eagerly() and record.could_possibly_record(),
    }


def _learns(table):
    if not tf.executing_eagerly():
        return table.learns
    resource_variable_ops.variable_accessed(table.keyed)
    return table.learns and record.should_record_backprop([table.keyed.handle])


def steps_of(tables):
    """The training step of each table: int64 [tables], in host memory; -1: no step is known."""
    with tf.device("/CPU:0"):
        steps = [table.current_step() for table in tables]
        if all(step is None for step in steps):
            return tf.constant([-1] * len(steps), tf.int64)
        return tf.stack([tf.cast(-1 if step is None else step, tf.int64) for step in steps])


@tf.RegisterGradient("GroupEmbedding>LocateRows")
def _locate_rows_grad(op, buffer_grad):
    """The gradient of the batch's weights, which locating does not change."""
    return [*[None] * op.get_attr("num_tables"), buffer_grad, None, None, None]
