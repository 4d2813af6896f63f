"""Groups whose tables and slots come from checkpoints: under other names, of earlier versions."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from support.cases.group_actions import (
    MOMENTUM,
    RATE,
    ROWS,
    TABLES,
    TRAINED,
    Group,
    Oracle,
    actions_of,
    function_of,
    sgd,
    tensors_of,
)

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3


def saved_tables(group):
    """A checkpoint of a group: its tables by their keys in TABLES, and its slots."""
    return tf.train.Checkpoint(optimizer=group.optimizer, **group.tables)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_functions_go_on_with_tables_restored_under_other_names(is_compiled, tmp_path):
    # Given a group that was saved between two steps, and one of other names that has trained
    def steps_of(group):
        return (ge.training.make_step if is_compiled else tf.function)(
            lambda: tensors_of(group.train(0.0))
        )

    saved, restored = (Group(sgd(), f"restored_{is_compiled}_{i}") for i in range(2))
    step, other = steps_of(saved), steps_of(restored)
    step()
    path = saved_tables(saved).write(str(tmp_path / "group"))
    expected = [step() for _ in range(2)]
    other()
    restored.write(5.0)

    # When it reads the checkpoint
    saved_tables(restored).read(path).assert_existing_objects_matched()

    # Then its function, and reads of single tables, go on from there
    found = [other() for _ in range(2)]
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, restored.read(0), saved.read(0))


def in_session(name, program, keyed_name=None, num_rows=ROWS):
    """Calls a program with a session, a Saver of a group's tables and slots by their roles, and a
    function that runs an action."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        optimizer = tf.compat.v1.train.MomentumOptimizer(RATE, MOMENTUM)
        group = Group(optimizer, name, keyed_name, num_rows)
        made = {n: action(tf.constant(5.0)) for n, action in actions_of(group).items()}
        plain = [table for table in TRAINED if not TABLES[table][1]]
        slots = {n: group.optimizer.get_slot(group.tables[n], "momentum") for n in plain}
        slots = {f"{table}/momentum": slot for table, slot in slots.items()}
        saver = tf.compat.v1.train.Saver({**group.tables, **slots})
        session.run(tf.compat.v1.global_variables_initializer())

        def run(action):
            return [value for value in session.run(made[action]) if value is not None]

        return program(session, saver, run)


def test_a_session_goes_on_with_tables_restored_under_other_names(tmp_path):
    # Given a group of a graph of TensorFlow 1 that was saved between two steps
    path = str(tmp_path / "group")

    def train_and_save(session, saver, run):
        run("train")
        saver.save(session, path)
        return [run(action) for action in ("train", "train", "read")]

    expected = in_session("saved", train_and_save, "sessions")

    # When a group whose tables by row have other names reads them, after it has trained
    def restore_and_train(session, saver, run):
        for action in ("train", "train_part", "write"):
            run(action)
        saver.restore(session, path)
        return [run(action) for action in ("train", "train", "read")]

    found = in_session("restored", restore_and_train, "sessions")

    # Then both go on alike
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    assert (expected[0][0] != expected[1][0]).all()


# Checkpoints of groups of 20 rows after `train` and `train_part`, which a version wrote that gave
# ops the handle of each variable: by `write_checkpoints`.
EARLIER = pathlib.Path(__file__).parent / "checkpoints_of_single_handles"
OF_KERAS, OF_SESSION = f"keras_{2 + IS_KERAS_3}", "session"


def write_checkpoints(folder):
    """Writes both checkpoints of a group, of this version of Keras and of a session."""

    def train_and_save(session, saver, run):
        for action in ("train", "train_part"):
            run(action)
        saver.save(session, f"{folder}/{OF_SESSION}", write_meta_graph=False)

    in_session("earlier", train_and_save, num_rows=20)
    group = Group(sgd(), "earlier", num_rows=20)
    for action in (group.train, group.train_part):
        function_of(action)(0.0)
    saved_tables(group).write(f"{folder}/{OF_KERAS}")


@pytest.mark.parametrize("written_by", ["earlier version", "this version"])
def test_checkpoints_of_versions_of_single_handles_are_read(written_by, tmp_path):
    # Given checkpoints of a version whose ops had the handle of each variable, or of this one
    folder = EARLIER
    if written_by == "this version":
        folder = tmp_path
        write_checkpoints(folder)
    oracle = Oracle()
    for action in (oracle.train, oracle.train_part):
        action(0)

    # When groups read them and go on, in a function and in a session
    group = Group(sgd(), "later", num_rows=20)
    step = function_of(group.train)
    step(0.0)
    saved_tables(group).read(f"{folder}/{OF_KERAS}").assert_existing_objects_matched()
    found = [step(0.0), step(0.0), group.read(0)]

    def restore_and_train(session, saver, run):
        saver.restore(session, f"{folder}/{OF_SESSION}")
        return [run(action) for action in ("train", "train", "read")]

    found_by_session = in_session("later_session", restore_and_train, "earlier", num_rows=20)

    # Then tables and slots are what the steps before have left
    expected = [oracle.train(0), oracle.train(0), oracle.read(0)]
    for numbers, *tables in zip(expected, found, found_by_session, strict=True):
        for number, of_function, of_session in zip(numbers, *tables, strict=True):
            np.testing.assert_allclose(of_function, number, rtol=1e-5)
            np.testing.assert_allclose(of_session, number, rtol=1e-5)
