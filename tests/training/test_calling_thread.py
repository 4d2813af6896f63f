"""Functions whose ops the calling thread runs."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from training.test_make_step import Trainer, batches

import group_embedding as ge
from group_embedding.training import calling_thread, compiled_step
from group_embedding.training.calling_thread import OnCallingThread


def executors_of(call, function):
    """The executors of the calls that `call` makes of `function`, given 1.0 each time."""
    seen = []

    def recorded(x):
        seen.append(context.context().function_call_options.executor_type)
        return function(x)

    on_thread = OnCallingThread(recorded, "CPU")
    results = [float(call(on_thread)) for _ in range(5)]
    return seen, results, on_thread


def test_steps_are_the_same(monkeypatch):
    # Given a compiled step whose ops only launch kernels, as on a GPU, and one that threads run
    on_cpu = functools.partial(OnCallingThread, device_type="CPU")
    monkeypatch.setattr(compiled_step, "OnCallingThread", lambda function, _: on_cpu(function))
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
    # Then the calling thread runs its ops once they have been prepared and seen
    assert results == [2.0] * 5 and not on_thread.is_refused
    assert "SINGLE_THREADED_EXECUTOR" not in seen[:2]
    assert set(seen[2:]) == {"SINGLE_THREADED_EXECUTOR"}


def test_other_devices_of_arguments_are_another_function(monkeypatch):
    # Given a function, and what TensorFlow says of where its ops are
    devices = {"integers": {"/CPU:0", "/GPU:0"}, "floats": {"/CPU:0"}}
    said = []
    monkeypatch.setattr(calling_thread, "_devices_of", lambda function: devices[said[-1]])
    seen = []

    @tf.function
    def add(x):
        return x + x

    def recorded(x):
        seen.append((said[-1], context.context().function_call_options.executor_type))
        return add(x)

    on_thread = OnCallingThread(recorded, "CPU")
    # When it is called with two kinds of arguments by turns
    for _ in range(4):
        for kind, x in (("integers", tf.constant(1)), ("floats", tf.constant(1.0))):
            said.append(kind)
            on_thread(x)
    # Then the kind whose ops are of one device runs on the calling thread, the other never
    of_kinds = {
        kind: [of == "SINGLE_THREADED_EXECUTOR" for k, of in seen if k == kind] for kind in devices
    }
    assert of_kinds == {"integers": [False] * 4, "floats": [False, False, True, True]}


def test_a_function_of_two_devices_is_seen_as_one():
    # Given what TensorFlow tells of a function of two devices, and of one
    def told(*devices):
        graphs = [tf.compat.v1.GraphDef() for _ in devices]
        for graph, device in zip(graphs, devices):
            graph.node.add(name="add", op="AddV2", device=f"/job:localhost/task:0/device:{device}")
        return calling_thread._devices_of(SimpleNamespace(partition_graphs=graphs))

    # Then only the other may run on the calling thread
    assert not calling_thread._are_one(told("CPU:0", "CPU:1"), "CPU")
    assert not calling_thread._are_one(told("GPU:0", "CPU:0"), "GPU")
    assert not calling_thread._are_one(told("CPU:0"), "GPU")
    assert calling_thread._are_one(told("GPU:0"), "GPU")


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

    on_thread = OnCallingThread(read, "CPU")
    on_thread(1.0)
    on_thread(1.0)
    # Then its error is raised, which is none of TensorFlow's refusals
    with pytest.raises(tf.errors.FailedPreconditionError, match="never made"):
        on_thread(1.0, is_missing=True)
    assert not on_thread.is_refused
