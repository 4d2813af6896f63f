"""Variables that are read and written beside the group that trains them, in each order."""

import numpy as np
import pytest
import tensorflow as tf
from support.cases.group_actions import (
    ACTIONS,
    MOMENTUM,
    RATE,
    ROWS,
    Group,
    Oracle,
    actions_of,
    function_of,
    sgd,
    tensors_of,
)

import group_embedding as ge


def every_pair(items):
    """The shortest sequence in which each item follows each other one, and itself."""
    for i, item in enumerate(items):
        yield item
        for other in items[i + 1 :]:
            yield item
            yield other
    yield items[0]


# What happens, in order, and the number that a write writes.
PROGRAM = [(action, 10.0 + i) for i, action in enumerate(every_pair(ACTIONS))]


def run_program(of_action):
    """The results of a program whose actions are `{name: a function of a number}`."""
    results = []
    for action, number in PROGRAM:
        found = of_action[action](tf.constant(number))
        results.append([] if action == "write" else found)
    return results


def in_eager_code(name):
    return run_program(actions_of(Group(sgd(), name)))


def in_a_function(name):
    actions = actions_of(Group(sgd(), name))
    return tf.function(lambda: tensors_of(run_program(actions)))()


def in_functions_of_a_function(name):
    """Each action is a function of its own, which a function calls several times."""
    group = Group(sgd(), name)
    actions = {n: function_of(action) for n, action in actions_of(group).items()}
    return tf.function(lambda: run_program(actions))()


def in_branches_of_a_function(name):
    """Each action is in a branch of a function."""
    group = Group(sgd(), name)

    def in_branch(action):
        def act(number):
            made = action(number)
            return [number, *([] if action == group.write else tensors_of(made))]

        return lambda number: tf.cond(number > 0, lambda: act(number), lambda: act(number))[1:]

    actions = {n: in_branch(action) for n, action in actions_of(group).items()}
    return tf.function(lambda: run_program(actions))()


def in_functions_one_by_one(name):
    """Each action is a function of its own, called by eager code."""
    group = Group(sgd(), name)
    return run_program({n: function_of(action) for n, action in actions_of(group).items()})


def in_compiled_steps(name):
    """Training is a compiled step, among the other actions of a function."""
    group = Group(sgd(), name)
    actions = actions_of(group)
    for action in ("train", "train_part"):
        actions[action] = ge.training.make_step(getattr(group, action))
    return tf.function(lambda: tensors_of(run_program(actions)))()


def in_a_session(name):
    """In a graph of TensorFlow 1, in which each action waits for the one before."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        group = Group(tf.compat.v1.train.MomentumOptimizer(RATE, MOMENTUM), name)
        results, before = [], []
        for action, number in PROGRAM:
            with tf.control_dependencies(before):
                before = getattr(group, action)(tf.constant(number))
            results.append(tensors_of([] if action == "write" else before))
        session.run(tf.compat.v1.global_variables_initializer())
        assert graph is tf.compat.v1.get_default_graph()
        return session.run(results)


def in_runs_of_a_session(name):
    """In a graph of TensorFlow 1, by a run for each action."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        group = Group(tf.compat.v1.train.MomentumOptimizer(RATE, MOMENTUM), name)
        number = tf.compat.v1.placeholder(tf.float32, [])
        made = {n: action(number) for n, action in actions_of(group).items()}
        session.run(tf.compat.v1.global_variables_initializer())
        results = []
        for action, value in PROGRAM:
            found = session.run(made[action], {number: value})
            results.append([] if action == "write" else [v for v in found if v is not None])
        return results


RUNNERS = [
    in_eager_code,
    in_a_function,
    in_functions_of_a_function,
    in_branches_of_a_function,
    in_functions_one_by_one,
    in_compiled_steps,
    in_a_session,
    in_runs_of_a_session,
]


@pytest.mark.parametrize("way", RUNNERS)
def test_each_action_sees_what_those_before_it_did(way):
    # Given a group of plain and keyed tables of several dims, some of them frozen, and the numbers
    # that reads, writes, lookups and updates leave if each of them follows each other one
    oracle = Oracle()
    expected = [getattr(oracle, action)(number) for action, number in PROGRAM]

    # When they are done to the group and to its single tables
    found = way(way.__name__)

    # Then each has read what those before it have written
    for place, ((action, _), numbers, tables) in enumerate(zip(PROGRAM, expected, found)):
        assert len(numbers) == len(tables)
        for number, table in zip(numbers, tables):
            np.testing.assert_allclose(table, number, rtol=1e-4, err_msg=f"{place}: {action}")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_write_waits_for_gradients_that_read_the_table(persistent):
    # Given a function of a lookup that shortens rows, whose gradient reads them again
    table = tf.Variable(tf.fill([ROWS, 4], 3.0))
    ids = tf.RaggedTensor.from_tensor(tf.range(ROWS, dtype=tf.int64)[:, None])
    weights = tf.random.stateless_uniform([ROWS, 4], [1, 2])

    @tf.function
    def look_up():
        return ge.group_embedding_lookup_sparse([table], [ids], "sum", max_norm=1.0)[0]

    def gradient_and_write():
        with tf.GradientTape(persistent=persistent) as tape:
            loss = tf.reduce_sum(look_up() * weights)
        gradient = tape.gradient(loss, table)
        table.assign(tf.fill([ROWS, 4], 7.0))
        return tf.convert_to_tensor(gradient)

    # When another function writes the table after it has asked for the gradient
    expected, in_function, found = gradient_and_write(), tf.function(gradient_and_write), []
    for _ in range(5):
        table.assign(tf.fill([ROWS, 4], 3.0))
        found.append(in_function())

    # Then the gradient is that of the rows before
    for gradient in found:
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
