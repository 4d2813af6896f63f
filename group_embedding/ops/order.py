"""Ops that exchange run in the order in which they were made, so that it is the same on all ranks.

In a graph each waits for the one before. All read one resource, which a `tf.function` takes for a
reason to keep calls of other functions in order, too. Eager ops run one after the other anyway.
"""

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps import register_acd_resource_resolver

# Collections of graphs: of those of TensorFlow 1 the resource; of all the op that was made last.
_RESOURCE = "group_embedding_exchange_resource"
_LAST = "group_embedding_exchange_last"
_eager_resource = []


def in_order(make):
    """Makes an op that runs after those made here before it, and returns what `make` does.

    Args:
        make: takes the resource that the op must read; makes the op, and returns its outputs.
    """
    resource = _resource()
    if tf.executing_eagerly():
        return make(resource)
    graph = tf.compat.v1.get_default_graph()
    last = graph.get_collection_ref(_LAST)
    # A function's graph begins with the collections of the one around it.
    with tf.control_dependencies([op for op in last if op.graph is graph]):
        outputs = make(resource)
    last[:] = [tf.nest.flatten(outputs)[0].op]
    return outputs


def let_tables_be_read(op_type):
    """Declares that ops of this type only read their tables. Functions assume that an op may write
    each of its resources; for these ops that holds for the last one only, which `in_order` gave."""

    def resolve(op, reads, writes):
        read = [resource for resource in writes if resource is not op.inputs[-1]]
        if op.type != op_type or not read:
            return False
        for resource in read:
            writes.remove(resource)
            reads.add(resource)
        return True

    resolve.__name__ = op_type  # the registry's key
    register_acd_resource_resolver(resolve)


def _resource():
    with tf.init_scope():
        known = _eager_resource
        if not tf.executing_eagerly():
            known = tf.compat.v1.get_collection_ref(_RESOURCE)
        if not known:
            known.append(_make_resource())
        return known[0]


def _make_resource():
    """Holds nothing; on a GPU, as the ops that read it are."""
    with tf.device("/GPU:0"):
        return tf.raw_ops.VarHandleOp(
            dtype=tf.float32, shape=[], shared_name="group_embedding_exchange_order"
        )
