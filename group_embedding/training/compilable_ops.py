"""Which ops XLA can compile."""

import functools

import tensorflow as tf
from tensorflow.python.util import pywrap_xla_ops

# XLA drops assertions, and so does a step that is compiled.
DROPPED = ("Assert",)


def is_compilable(op):
    """Returns whether XLA has a kernel for an op, and for all ops of the functions it calls."""
    if op.type in DROPPED:
        return True
    tensors = [*op.inputs, *op.outputs]
    if op.type not in _kernels() or any(t.dtype == tf.string for t in tensors):
        return False
    return all(map(is_compilable, _ops_of_functions(op)))


def with_functions(op):
    """An op, and those of the functions that it calls."""
    yield op
    for inner in _ops_of_functions(op):
        yield from with_functions(inner)


def _ops_of_functions(op):
    for attr in op.node_def.attr.values():
        functions = [attr.func] if attr.HasField("func") else attr.list.func
        for function in functions:
            definition = op.graph._functions.get(function.name)
            if definition is not None and function.name:
                body = getattr(definition, "graph", None)
                yield from () if body is None else body.get_operations()


@functools.cache
def _kernels():
    # Arguments and constants of a function's body, which no kernel is asked for.
    bodies = {"Placeholder", "_Arg", "_Retval"}
    return bodies.union(pywrap_xla_ops.get_cpu_kernel_names())
