"""A fuzzer of all native ops: near-valid calls, made in a process of its own.

    PYTHONPATH=tests python tests/support/cases/hostile_ops.py LOG SEED FIRST COUNT

makes the calls FIRST to FIRST + COUNT - 1 of a seed. Call i depends on the seed and on i alone, but
for what the calls before it left in tables. Before each call a line that describes it is written to
LOG, and after all of them "done": the log of a process that crashed ends with the call that did it.
"""

import os
import resource
import sys

import numpy as np
import tensorflow as tf
from support.cases import hostile_calls
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2
from tensorflow.python.eager import context, execute

INTEGERS = [-(2**63), -(2**62), -(2**31) - 1, -8, -2, -1, 0, 1, 2, 3, 64, 2**31 - 1, 2**31]
INTEGERS += [2**32 - 1, 2**32, 2**40, 2**53, 2**62, 2**63 - 1]
FLOATS = [0.0, -1.0, 0.5, 1e30, -1e30, float("nan"), float("inf")]
STRINGS = [b"", b"sum", b"mean", b"mod", b"one_rank", b"ragged", b"dense", b"adam", b"a" * 300]
MAX_OUTPUTS = 4096
MEMORY_BYTES = 4 << 30  # that all calls together may take
# TensorFlow lists every input and output of an op before the op's own checks run: 16,000 outputs
# take 20 s, 2^31 take all memory, for TensorFlow's own ops too.
MAX_LISTED = 300


def main(log, seed, first, count):
    calls = hostile_calls.record()
    fuzzer = Fuzzer(calls, hostile_calls.all_ops())
    _limit_memory()
    with open(log, "w", buffering=1) as out, tf.device("/CPU:0"):
        for i in range(first, first + count):
            rng = np.random.default_rng([seed, i])
            call, changes = fuzzer.draw(rng)
            out.write(f"call {i} of seed {seed}: {call.op}: {'; '.join(changes)}\n")
            fuzzer.make(call, rng)
            if i % 1000 == 0:
                context.context().clear_kernel_cache()
        out.write(f"done: {fuzzer.num_good} calls were valid\n")
    os._exit(0)  # saves of tables may be under way


def _limit_memory():
    """Memory that is asked for by mistake is an error, not the end of the machine. Addresses that a
    table only reserves do not count."""
    with open("/proc/self/status") as status:
        now = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + MEMORY_BYTES, now + MEMORY_BYTES))


class Fuzzer:
    def __init__(self, calls, ops):
        self.ops = ops
        self.by_op = {}
        for call in calls:
            self.by_op.setdefault(call.op, []).append(call)
        missing = set(ops) - set(self.by_op)
        assert not missing, f"no program of hostile_calls.py calls {sorted(missing)}"
        self.tensors = [tensor for call in calls for tensor in call.inputs]
        self.resources = [t for t in self.tensors if t.dtype == tf.resource] + _odd_resources()
        self.num_good = 0

    def draw(self, rng):
        """A call, and what was changed of a valid one, in words."""
        op = rng.choice(sorted(self.by_op))
        call = self.by_op[op][rng.integers(len(self.by_op[op]))]
        inputs, attrs, changes = list(call.inputs), list(call.attrs), []
        counts = {arg.number_attr for arg in (*self.ops[op].input_arg, *self.ops[op].output_arg)}
        for _ in range(rng.choice([0, 1, 2, 3, 5], p=[0.05, 0.5, 0.25, 0.15, 0.05])):
            if attrs and (not inputs or rng.random() < 0.35):
                changes.append(self._change_attr(rng, attrs, counts))
            elif inputs:
                changes.append(self._change_inputs(rng, inputs))
        return hostile_calls.Call(op, inputs, attrs), changes

    def make(self, call, rng):
        """In a graph, where shape functions run, and, unless it needs one, in eager code."""
        knows_shapes = rng.random() < 0.7
        try:
            graph = _graph_of(call, self.ops[call.op], knows_shapes)
        except (TypeError, ValueError, OverflowError):
            return  # what no graph can hold
        with tf.Graph().as_default() as in_graph:
            try:
                tf.import_graph_def(graph, name="")
            except (ValueError, TypeError):
                return
            if call.op in hostile_calls.REFERENCES:
                return self._run_session(in_graph)
        if call.op in hostile_calls.ON_GPUS:
            return
        pairs = [part for pair in call.attrs for part in pair]
        with tf.init_scope():
            try:
                execute.quick_execute(
                    call.op, MAX_OUTPUTS, call.inputs, tuple(pairs), context.context()
                )
                self.num_good += 1
            except (tf.errors.OpError, ValueError, TypeError, OverflowError, MemoryError):
                pass

    def _run_session(self, graph):
        with tf.compat.v1.Session(graph=graph) as session:
            variables = [op for op in graph.get_operations() if op.type == "Assign"]
            try:
                session.run(variables)
                session.run(graph.get_operation_by_name("hostile"))
                self.num_good += 1
            except tf.errors.OpError:
                pass

    def _change_inputs(self, rng, inputs):
        i = int(rng.integers(len(inputs)))
        kind = rng.random()
        if kind < 0.06:
            del inputs[i]
            return f"no input {i}"
        if kind < 0.12:
            inputs.insert(i, inputs[i])
            return f"input {i} twice"
        if kind < 0.2:
            j = int(rng.integers(len(inputs)))
            inputs[i], inputs[j] = inputs[j], inputs[i]
            return f"inputs {i} and {j} swapped"
        if kind < 0.28:
            inputs[i] = self.tensors[rng.integers(len(self.tensors))]
            return f"input {i} of another call: {_summary(inputs[i])}"
        inputs[i] = self._change_tensor(rng, inputs[i])
        return f"input {i}: {_summary(inputs[i])}"

    def _change_tensor(self, rng, tensor):
        if tensor.dtype == tf.resource:
            return self.resources[rng.integers(len(self.resources))]
        if tensor.dtype == tf.variant:
            return tensor
        array = tensor.numpy()
        if rng.random() < 0.3:
            return tf.constant(_other_shape(rng, np.asarray(array)), tensor.dtype)
        return tf.constant(_other_values(rng, np.array(array)), tensor.dtype)

    def _change_attr(self, rng, attrs, counts):
        i = int(rng.integers(len(attrs)))
        name, value = attrs[i]
        if isinstance(value, list):
            value = list(value)
            at = int(rng.integers(len(value) + 1))
            kind = rng.random()
            if kind < 0.2:
                value = value[:at]
            elif kind < 0.4:
                value.insert(at, value[0] if value else _other_scalar(rng, 0))
            elif value:
                at = min(at, len(value) - 1)
                value[at] = _other_scalar(rng, value[at])
        else:
            value = _other_scalar(rng, value)
        if name in counts:
            value = min(value, MAX_LISTED)
        attrs[i] = (name, value)
        return f"{name}={value!r}"


def _odd_resources():
    """Handles that no op of the library expects, or not like this."""
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    variables = [
        tf.Variable(value)
        for value in (
            tf.ones([5, 3], tf.float16),
            tf.ones([0, 3]),
            tf.ones([5, 0]),
            tf.ones([3]),
            tf.zeros([0, 2**31 - 1]),
            [["a", "b"]],
        )
    ]
    handles = [table.resource_handle, *[variable.handle for variable in variables]]
    never_made = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[5, 3], shared_name="never_made")
    handles += [tf.stack(handles[:2]), tf.stack(handles[:1])[:0], never_made]
    not_initialized = hostile_calls.library().embedding_table_handle_op(
        table_name="never initialized", shared_name="never initialized"
    )
    _odd_resources.kept = table, variables  # as long as their handles are used
    return [*handles, not_initialized]


def _other_shape(rng, array):
    flat = array.reshape(-1)
    kinds = [
        lambda: array[None],
        lambda: flat,
        lambda: flat[: len(flat) // 2],
        lambda: flat[:0],
        lambda: np.concatenate([flat, flat]),
        lambda: np.concatenate([array, array]) if array.ndim else flat,
        lambda: array[:-1] if array.ndim else flat,
        lambda: flat[0] if len(flat) else array,
        lambda: flat[:, None],
    ]
    return kinds[rng.integers(len(kinds))]()


def _other_values(rng, array):
    """Some numbers become others; of a batch, which is of int64 in disguise, whole ones."""
    flat = array.reshape(-1)
    if array.dtype == np.float32 and flat.size >= 2 and rng.random() < 0.7:
        words = flat[: flat.size // 2 * 2].view(np.int64)
    elif array.dtype.kind in "iufbO" or array.dtype.kind == "S":
        words = flat
    else:
        return array
    for _ in range(rng.integers(1, 4)):
        if words.size:
            at = rng.integers(words.size)
            with np.errstate(over="ignore"):  # 1e30 is infinite in 16 bits
                words[at] = _other_element(rng, words, at)
    return array


def _other_element(rng, words, at):
    kind = words.dtype.kind
    if kind == "b":
        return not words[at]
    if kind == "f":
        return FLOATS[rng.integers(len(FLOATS))]
    if kind in "SO":
        return STRINGS[rng.integers(len(STRINGS))]
    info = np.iinfo(words.dtype)
    near = [int(words[at]) + step for step in (-1, 1)] + [int(words[rng.integers(words.size)])]
    value = [*INTEGERS, *near, *near][rng.integers(len(INTEGERS) + 2 * len(near))]
    return min(max(value, info.min), info.max)


def _other_scalar(rng, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, bytes):
        return STRINGS[rng.integers(len(STRINGS))]
    if isinstance(value, float):
        return FLOATS[rng.integers(len(FLOATS))]
    near = [int(value) - 1, int(value) + 1] * 4
    return [*INTEGERS, *near][rng.integers(len(INTEGERS) + len(near))]


def _summary(tensor):
    if tensor.dtype in (tf.resource, tf.variant):
        return f"{tensor.dtype.name} {tensor.shape}"
    array = tensor.numpy()
    words = np.asarray(array).reshape(-1)
    if words.dtype == np.float32 and words.size >= 2:
        words = words[: words.size // 2 * 2].view(np.int64)
    return f"{tensor.dtype.name} {tensor.shape} {str(words[:16].tolist())[:200]}"


def _graph_of(call, op, knows_shapes):
    """A graph whose node "hostile" is the call. Where the op takes references its inputs are
    constants and variables, else placeholders."""
    graph = graph_pb2.GraphDef()
    node = node_def_pb2.NodeDef(name="hostile", op=call.op)
    num_references = _num_references(call) if call.op in hostile_calls.REFERENCES else 0
    for i, tensor in enumerate(call.inputs):
        if call.op not in hostile_calls.REFERENCES:
            _add_placeholder(graph, f"input_{i}", tensor, knows_shapes)
        else:
            _add_constant(graph, f"input_{i}", tensor, is_variable=i < num_references)
        node.input.append(f"input_{i}")
    kinds = {attr.name: attr.type for attr in op.attr}
    for name, value in call.attrs:
        node.attr[name].CopyFrom(_attr_value(kinds[name], value))
    graph.node.append(node)
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    return graph


def _num_references(call):
    attrs = dict(call.attrs)
    return attrs.get("num_tables", 0) + attrs.get("num_slots", 0)


def _add_placeholder(graph, name, tensor, knows_shapes):
    node = graph.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = tensor.dtype.as_datatype_enum
    if knows_shapes:
        node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
    else:
        node.attr["shape"].shape.unknown_rank = True


def _add_constant(graph, name, tensor, is_variable):
    if tensor.dtype in (tf.resource, tf.variant):
        if not is_variable:
            return _add_placeholder(graph, name, tensor, knows_shapes=True)
        tensor = tf.ones([5, 3])
    constant = graph.node.add(name=f"{name}_value" if is_variable else name, op="Const")
    constant.attr["dtype"].type = tensor.dtype.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(tensor.numpy(), tensor.dtype))
    if not is_variable:
        return
    variable = graph.node.add(name=name, op="VariableV2")
    variable.attr["dtype"].type = tensor.dtype.as_datatype_enum
    variable.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
    assign = graph.node.add(name=f"{name}_assign", op="Assign")
    assign.attr["T"].type = tensor.dtype.as_datatype_enum
    assign.input.extend([name, constant.name])


def _attr_value(kind, value):
    proto = attr_value_pb2.AttrValue()
    fields = {"int": "i", "float": "f", "bool": "b", "string": "s", "type": "type"}
    if kind.startswith("list("):
        proto.list.SetInParent()
        getattr(proto.list, fields[kind[5:-1]]).extend(value)
    else:
        setattr(proto, fields[kind], value)
    return proto


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
