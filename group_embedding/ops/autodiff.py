"""Properties of TensorFlow's autodiff that ops depend on."""

import contextlib

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph
from tensorflow.python.framework.auto_control_deps import register_acd_resource_resolver

_LARGEST_CONSTANT = 1000  # elements; tf.zeros makes a Fill of more


def differentiated(grads):
    """The indices of the output gradients that are not zeros which autodiff put in place of none.

    For an output that the loss does not depend on, autodiff hands an op's gradient function zeros,
    where the gradient of an op of one output would be None. Those zeros differ from others:
    in a graph by the op that made them, in eager code since autodiff takes them from a cache. (Not
    behind the boundary of a `tf.function` that was called under the tape: there they come in as any
    tensor does.) If all are zeros, they are what the loss's gradient is.
    """
    cached = {id(zeros) for zeros in _zeros_cache()} if tf.executing_eagerly() else ()
    found = [i for i, grad in enumerate(grads) if not (id(grad) in cached or _is_zeros(grad))]
    return found or list(range(len(grads)))


def after(op):
    """Inside, ops are made that run after `op` in a graph of TensorFlow 1, where nothing else says
    that what is read in a step is read before the step writes it: a gradient need not depend on
    what was looked up. Functions have an order of their own."""
    in_graph = isinstance(op, tf.Operation) and not isinstance(op.graph, func_graph.FuncGraph)
    if not in_graph or op._get_control_flow_context() is not None:
        return contextlib.nullcontext()
    return tf.control_dependencies([op])


def is_used(tensor):
    """Returns whether an op of the graph consumes the tensor, so far."""
    return any(not _is_idle_gate(consumer) for consumer in tensor.consumers())


def let_unused_op_go(op_type):
    """Lets functions drop unused ops of this type. Functions run every op that reads a variable
    before the variable is written, even if its result is not used: an optimizer may have replaced
    the op."""

    def resolve(op, reads, writes):
        del writes
        if op.type != op_type or not reads or any(is_used(output) for output in op.outputs):
            return False
        reads.clear()
        return True

    resolve.__name__ = f"let {op_type} go"  # the registry's key
    register_acd_resource_resolver(resolve)


def end_with_function(op_type):
    """Declares that a function has not ended before its used ops of this type have. A write after a
    call of a function waits until the function has ended, which TensorFlow has wait for stateful
    ops alone."""

    def resolve(op, reads, writes):
        del reads, writes
        if op.type == op_type and any(is_used(output) for output in op.outputs):
            _end_with_graph(op)
        return False

    resolve.__name__ = f"end {op_type}"  # the registry's key
    register_acd_resource_resolver(resolve)


def end_with_gradient(op):
    """Declares that the graph at hand has not ended before an op of it has, if it is the gradient
    of a function. TensorFlow gives the ops of such a graph no order, and resolves none."""
    graph = tf.compat.v1.get_default_graph()
    if not tf.executing_eagerly() and graph.experimental_acd_manager is None:
        _end_with_graph(op)


def _end_with_graph(op):
    if isinstance(op.graph, func_graph.FuncGraph) and op not in op.graph.control_outputs:
        op.graph.control_outputs.append(op)


def _zeros_cache():
    return context.context().zeros_cache()._data.values()


def _is_zeros(grad):
    op = None if tf.executing_eagerly() or not tf.is_tensor(grad) else grad.op
    if op is None or op.type == "ZerosLike":
        return op is not None
    if op.type == "Fill":
        return _is_zero(op.inputs[1])
    small = grad.shape.is_fully_defined() and grad.shape.num_elements() < _LARGEST_CONSTANT
    return op.type == "Const" and small and _is_zero(grad)


def _is_zero(tensor):
    value = tf.get_static_value(tensor)
    return value is not None and not np.any(value)


def _is_idle_gate(op):
    """`tf.gradients(..., gate_gradients=True)`, which is how optimizers of TensorFlow 1 call it,
    puts behind each gradient an Identity that waits for its siblings."""
    if op.type != "Identity" or not op.control_inputs:
        return False
    return not any(is_used(output) for output in op.outputs)
