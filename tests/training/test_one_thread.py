"""Functions whose ops one thread runs."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from training.test_make_step import Trainer, batches

import group_embedding as ge
from group_embedding.training import compiled_step, one_thread
from group_embedding.training.one_thread import OnOneThread


def executors_of(call, function):
    """The executors of the calls that `call` makes of `function`, given 1.0 each time."""
    seen = []

    def recorded(x):
        seen.append(context.context().function_call_options.executor_type)
        return function(x)

    on_thread = OnOneThread(recorded, "CPU")
    results = [float(call(on_thread)) for _ in range(5)]
    return seen, results, on_thread


def test_steps_are_the_same(monkeypatch):
    # Given a compiled step whose ops only launch kernels, as on a GPU, and one that threads run
    on_cpu = functools.partial(OnOneThread, device_type="CPU")
    monkeypatch.setattr(compiled_step, "OnOneThread", lambda function, _: on_cpu(function))
    monkeypatch.setattr(compiled_step, "_only_launches", lambda: True)
    trainers, losses = [], []
    for compile_step in (ge.training.make_step, tf.function):
        trainer = Trainer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)), f"k{len(losses)}")
        # When each trains on the same batches
        step = compile_step(trainer.step)
        losses.append([float(step(*batch)) for batch in batches(6)])
        trainers.append(trainer)
    # Then losses, tables and layers are the same
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for ours, theirs in zip(*(trainer.values() for trainer in trainers)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_first_calls_are_ordinary_ones():
    # Given a function, when it is called five times
    seen, results, on_thread = executors_of(lambda f: f(1.0), tf.function(lambda x: x + 1.0))
    # Then one thread runs its ops once they have been prepared and seen
    assert results == [2.0] * 5 and not on_thread.is_refused
    assert "SINGLE_THREADED_EXECUTOR" not in seen[:2]
    assert set(seen[2:]) == {"SINGLE_THREADED_EXECUTOR"}


def test_other_devices_of_arguments_are_another_function(monkeypatch):
    # Given a function, and what TensorFlow says of its parts
    parts = {"integers": [({"/GPU:0"}, {"AddV2"})], "floats": [({"/CPU:0"}, {"AddV2"})]}
    said = []
    monkeypatch.setattr(one_thread, "_parts_of", lambda function: parts[said[-1]])
    seen = []

    @tf.function
    def add(x):
        return x + x

    def recorded(x):
        seen.append((said[-1], context.context().function_call_options.executor_type))
        return add(x)

    on_thread = OnOneThread(recorded, "CPU")
    # When it is called with two kinds of arguments by turns
    for _ in range(4):
        for kind, x in (("integers", tf.constant(1)), ("floats", tf.constant(1.0))):
            said.append(kind)
            on_thread(x)
    # Then one thread runs the kind whose ops are on the device, and never the other
    of_kinds = {
        kind: [of == "SINGLE_THREADED_EXECUTOR" for k, of in seen if k == kind] for kind in parts
    }
    assert of_kinds == {"integers": [False] * 4, "floats": [False, False, True, True]}


@pytest.mark.parametrize(
    "parts, is_on",
    [
        ({"GPU:0": ["_Arg", "MatMul", "_Retval"]}, True),
        ({"CPU:0": ["_Arg", "MatMul", "_Retval"]}, False),
        ({"CPU:0": ["_Arg", "_Send"], "GPU:0": ["_Recv", "MatMul", "_Retval"]}, True),
        ({"CPU:0": ["_Arg", "Sum", "_Send"], "GPU:0": ["_Recv", "MatMul", "_Retval"]}, False),
        ({"CPU:0": ["_Arg", "_Send", "_Recv"], "GPU:0": ["_Recv", "MatMul", "_Send"]}, False),
        ({"GPU:0": ["MatMul", "_Send"], "GPU:1": ["_Recv", "MatMul"]}, False),
    ],
    ids=["GPU", "CPU", "arguments of a CPU", "work of a CPU", "both wait", "two GPUs"],
)
def test_one_device_does_all_work(parts, is_on):
    # Given the parts of a function, as TensorFlow's metadata have them
    graphs = [tf.compat.v1.GraphDef() for _ in parts]
    for graph, (device, ops) in zip(graphs, parts.items()):
        for op in ops:
            graph.node.add(name=op, op=op, device=f"/job:localhost/task:0/device:{device}")
    # When they are looked at, Then a GPU does all work, or it does not
    found = one_thread._parts_of(SimpleNamespace(partition_graphs=graphs))
    assert one_thread._is_on("GPU", found) == is_on


def test_a_function_that_tensorflow_refuses_runs_once_a_call():
    # Given a function with a branch of TensorFlow 1 that counts its calls
    counter = tf.Variable(0.0)

    @tf.function
    def count(x):
        counter.assign_add(x)
        no, yes = tf.raw_ops.Switch(data=x, pred=counter > 1.0)
        return tf.raw_ops.Merge(inputs=[no, yes])[0]

    # When it is called five times
    seen, results, on_thread = executors_of(lambda f: f(1.0), count)
    # Then it ran five times, and was refused once
    assert results == [1.0] * 5 and float(counter) == 5.0
    assert on_thread.is_refused and seen.count("SINGLE_THREADED_EXECUTOR") == 1


def test_errors_of_a_function_are_raised():
    # Given a function that reads a variable that was never made, from its second call on
    @tf.function
    def read(x, is_missing=False):
        if not is_missing:
            return x
        handle = tf.raw_ops.VarHandleOp(shape=[], dtype=tf.float32, shared_name="never made")
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)

    on_thread = OnOneThread(read, "CPU")
    on_thread(1.0)
    on_thread(1.0)
    # Then its error is raised, which is none of TensorFlow's refusals
    with pytest.raises(tf.errors.FailedPreconditionError, match="never made"):
        on_thread(1.0, is_missing=True)
    assert not on_thread.is_refused
