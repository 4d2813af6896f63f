"""Variables that are read and written beside the group that trains them, in each order."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

ROWS, RATE, MOMENTUM = 2000, 0.25, 0.5
# {name: (dim, whether it is by key, whether it is trained)}
TABLES = {
    "first": (2, False, True),
    "second": (3, False, True),
    "frozen": (2, False, False),
    "last": (4, False, True),
    "keys": (2, True, True),
    "frozen_keys": (3, True, False),
}
TRAINED = [name for name, (_, _, is_trained) in TABLES.items() if is_trained]
PART = ["second", "frozen", "keys"]
START = {name: 1.0 + t for t, name in enumerate(TABLES)}


class Group:
    """The tables, all rows of which are equal at any time, and what can be done to them.

    Each action takes a number, waits until the one before has ended where `in_order` says so, and
    returns a list of tensors.

    Args:
        optimizer: of SGD with momentum, of Keras or of TensorFlow 1.
    """

    def __init__(self, optimizer, name):
        self.ids = tf.RaggedTensor.from_row_splits(
            tf.range(ROWS, dtype=tf.int64), tf.range(ROWS + 1, dtype=tf.int64)
        )
        self.tables = {table: self._make(name, table) for table in TABLES}
        self.optimizer = ge.optimizers.wrap(optimizer)
        if hasattr(self.optimizer, "build"):
            self.optimizer.build([self.tables[name] for name in TRAINED])

    def _make(self, name, table):
        dim, is_keyed, is_trained = TABLES[table]
        start = keras.initializers.Constant(START[table])
        if is_keyed:
            return ge.get_embedding_variable(
                f"{name}_{table}", dim, trainable=is_trained, initializer=start
            )
        return tf.Variable(start([ROWS, dim]), trainable=is_trained, name=f"{name}_{table}")

    def read(self, _):
        """Reads each table by itself."""
        return [self._read(self.tables[name]) for name in TABLES]

    def _read(self, table):
        is_keyed = hasattr(table, "table_handle")
        return table.sparse_read(self.ids.values) if is_keyed else table.read_value()

    def write(self, number):
        """Writes a table as a whole, another one row by row, and a keyed one key by key."""
        first, last, keys = (self.tables[name] for name in ("first", "last", "keys"))
        rows = self.ids.values[:, None]
        return [
            first.assign(tf.fill([ROWS, 2], number)),
            last.scatter_nd_update(rows, tf.fill([ROWS, 4], number + 1)),
            keys.insert(self.ids.values, tf.fill([ROWS, 2], number + 2)),
        ]

    def look_up(self, _, names=tuple(TABLES)):
        """Looks a group of tables up."""
        tables = [self.tables[name] for name in names]
        return ge.group_embedding_lookup_sparse(tables, [self.ids] * len(tables), "sum")

    def train(self, _, names=tuple(TABLES)):
        """Looks a group of tables up, and trains each row towards 0."""
        trained = [self.tables[name] for name in names if name in TRAINED]
        with tf.GradientTape() as tape:
            vectors = self.look_up(_, names)
            loss = sum(tf.reduce_sum(v * v) for v in vectors) / 2
        applied = self.optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return [*vectors, *([applied] if isinstance(applied, tf.Operation) else [])]

    def train_part(self, number):
        """Trains a group that shares tables with the other one."""
        return self.train(number, PART)


class Oracle:
    """The same actions on the numbers of which all rows of a table consist."""

    def __init__(self):
        self.values, self.velocities = dict(START), dict.fromkeys(START, 0.0)

    def read(self, _):
        return list(self.values.values())

    def write(self, number):
        written = {"first": number, "last": number + 1, "keys": number + 2}
        self.values.update(written)
        self.velocities["keys"] = 0.0  # a key that is inserted starts with new slots
        return []

    def look_up(self, _, names=TABLES):
        return [self.values[name] for name in names]

    def train(self, _, names=TABLES):
        found = self.look_up(_, names)
        for name in set(names) & set(TRAINED):
            velocity = MOMENTUM * self.velocities[name] - RATE * self.values[name]
            self.velocities[name] = velocity
            self.values[name] += velocity
        return found

    def train_part(self, number):
        return self.train(number, PART)


def every_pair(items):
    """The shortest sequence in which each item follows each other one, and itself."""
    for i, item in enumerate(items):
        yield item
        for other in items[i + 1 :]:
            yield item
            yield other
    yield items[0]


# What happens, in order, and the number that a write writes.
PROGRAM = [
    (action, 10.0 + i)
    for i, action in enumerate(every_pair(["read", "write", "look_up", "train", "train_part"]))
]


def sgd():
    return keras.optimizers.SGD(RATE, momentum=MOMENTUM)


def run_program(of_action):
    """The results of a program whose actions are `{name: a function of a number}`."""
    results = []
    for action, number in PROGRAM:
        found = of_action[action](tf.constant(number))
        results.append([] if action == "write" else found)
    return results


def in_eager_code(name):
    return run_program(actions_of(Group(sgd(), name)))


def actions_of(group):
    return {action: getattr(group, action) for action, _ in PROGRAM}


def in_a_function(name):
    actions = actions_of(Group(sgd(), name))
    return tf.function(lambda: tensors_of(run_program(actions)))()


def in_functions_of_a_function(name):
    """Each action is a function of its own, which a function calls several times."""
    group = Group(sgd(), name)
    actions = {n: _function_of(action) for n, action in actions_of(group).items()}
    return tf.function(lambda: run_program(actions))()


def in_functions_one_by_one(name):
    """Each action is a function of its own, called by eager code."""
    group = Group(sgd(), name)
    return run_program({n: _function_of(action) for n, action in actions_of(group).items()})


def _function_of(action):
    return tf.function(lambda number: tensors_of(action(number)))


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


def tensors_of(values):
    """Leaves operations out of a structure of lists."""
    if isinstance(values, list):
        return [tensors_of(value) for value in values if not isinstance(value, tf.Operation)]
    return values


WAYS = [
    in_eager_code,
    in_a_function,
    in_functions_of_a_function,
    in_functions_one_by_one,
    in_compiled_steps,
    in_a_session,
    in_runs_of_a_session,
]


@pytest.mark.parametrize("way", WAYS)
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
